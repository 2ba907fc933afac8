"""Numbers of every format in LLVM: stored ones widened exactly, computed ones rounded once."""

import platform

from llvmlite import binding, ir
from numba.core import cgutils, config

F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
STORED = {
    "float16": F16,
    "bfloat16": I16,
    "float32": F32,
    "float64": F64,
    "int16": I16,
    "int32": I32,
    "int64": I64,
}
X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")


def _compiles_for(feature):
    """Whether the code that Numba makes may use a feature of the processor."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return f"+{feature}" in (config.CPU_FEATURES or "").split(",")
    return bool(binding.get_host_cpu_features().get(feature))


# Float16 conversions are instructions everywhere but on old x86, where LLVM would call functions
# that nobody provides.
_HAS_HALF = not X86 or _compiles_for("f16c")
# One instruction instead of seven; it flushes numbers below 2**-126 to zero. The cache of compiled
# kernels is keyed by the processor's features.
FLUSHES_BF16 = X86 and _compiles_for("avx512bf16")
# One instruction that multiplies by a power of 2.
SCALES = X86 and _compiles_for("avx512f")
if FLUSHES_BF16:
    binding.initialize_native_asmparser()


def pointer(builder, address, to):
    """An address as a pointer."""
    return builder.inttoptr(address, to.as_pointer())


def call(builder, name, result, arguments):
    """Call a function of LLVM or of the system by its name."""
    module = builder.module
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(module, kind, name)
    return builder.call(function, arguments)


def like(stored, element):
    """The type of the same number of other elements."""
    return ir.VectorType(element, stored.count) if isinstance(stored, ir.VectorType) else element


def const(type_, value):
    """A number, or a vector full of it."""
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [value] * type_.count)
    return ir.Constant(type_, value)


def _half_widened(builder, stored):
    """Float16 to float32 in integers: the exponent moves by 112, subnormals come right with it."""
    whole, single = like(stored.type, I32), like(stored.type, F32)
    bits = builder.zext(builder.bitcast(stored, like(stored.type, I16)), whole)
    size = builder.shl(builder.and_(bits, const(whole, 0x7FFF)), const(whole, 13))
    scaled = builder.fmul(builder.bitcast(size, single), const(single, 2.0**112))
    special = builder.icmp_unsigned(">=", size, const(whole, 0x7C00 << 13))
    exponent = builder.or_(size, const(whole, 0x7F800000))
    value = builder.select(special, exponent, builder.bitcast(scaled, whole))
    sign = builder.shl(builder.and_(bits, const(whole, 0x8000)), const(whole, 16))
    return builder.bitcast(builder.or_(value, sign), single)


def _half(builder, values):
    """Float32 to float16, to nearest even."""
    if _HAS_HALF:
        return builder.fptrunc(values, like(values.type, F16))
    return _half_narrowed(builder, values)


def _half_narrowed(builder, values):
    """Float32 to float16 in integers, to nearest even."""
    whole, half = like(values.type, I32), like(values.type, I16)
    bits = builder.bitcast(values, whole)
    size = builder.and_(bits, const(whole, 0x7FFFFFFF))
    last = builder.and_(builder.lshr(size, const(whole, 13)), const(whole, 1))
    moved = builder.sub(size, const(whole, 0x38000000 - 0xFFF))
    normal = builder.lshr(builder.add(moved, last), const(whole, 13))
    # One half has the step of float16's subnormals in its last place: adding it rounds.
    single = values.type
    aligned = builder.fadd(builder.bitcast(size, single), const(single, 0.5))
    tiny = builder.sub(builder.bitcast(aligned, whole), const(whole, 0x3F000000))
    value = builder.select(builder.icmp_unsigned("<", size, const(whole, 0x38800000)), tiny, normal)
    too_large = builder.icmp_unsigned(">=", size, const(whole, 0x477FF000))
    value = builder.select(too_large, const(whole, 0x7C00), value)
    is_nan = builder.icmp_unsigned(">", size, const(whole, 0x7F800000))
    value = builder.select(is_nan, const(whole, 0x7E00), value)
    sign = builder.and_(builder.lshr(bits, const(whole, 16)), const(whole, 0x8000))
    return builder.bitcast(builder.trunc(builder.or_(value, sign), half), like(single, F16))


def widened(builder, fmt, stored):
    """Stored elements, one or many, as compute numbers: exact."""
    if fmt.name == "float16":
        if _HAS_HALF:
            stored = builder.fpext(stored, like(stored.type, F32))
        else:
            stored = _half_widened(builder, stored)
    elif fmt.name == "bfloat16":
        whole = like(stored.type, I32)
        shifted = builder.shl(builder.zext(stored, whole), const(whole, 16))
        stored = builder.bitcast(shifted, like(stored.type, F32))
    if fmt.itemsize < 8 and fmt.wide:
        return builder.fpext(stored, like(stored.type, F64))
    return stored


def narrowed(builder, fmt, values):
    """Compute numbers rounded once, to nearest even, as they are stored."""
    if fmt.name == "float16":
        return _half(builder, values)
    if fmt.name == "float32" and fmt.wide:
        return builder.fptrunc(values, like(values.type, F32))
    if fmt.name != "bfloat16":
        return values
    if FLUSHES_BF16 and isinstance(values.type, ir.VectorType):
        halves = ir.FunctionType(like(values.type, I16), [values.type])
        return builder.asm(halves, "vcvtneps2bf16 $1, $0", "=v,v", [values], False)
    return _brain_narrowed(builder, values)


def _brain_narrowed(builder, values):
    """Float32 to bfloat16 in integers, to nearest even; small numbers stay."""
    whole = like(values.type, I32)
    bits = builder.bitcast(values, whole)
    last = builder.and_(builder.lshr(bits, const(whole, 16)), const(whole, 1))
    rounded = builder.add(bits, builder.add(last, const(whole, 0x7FFF)))
    quiet = builder.or_(bits, const(whole, 0x400000))
    is_nan = builder.fcmp_unordered("uno", values, values)
    chosen = builder.select(is_nan, quiet, rounded)
    return builder.trunc(builder.lshr(chosen, const(whole, 16)), like(values.type, I16))


def _interleaved(builder, values):
    """Halves of a vector of 32 as its even and odd elements."""
    order = [half + index for index in range(16) for half in (0, 16)]
    return builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(I32, 32), order))


def joined(builder, fmt, first, second, apart):
    """Two vectors that fill half a line each as one."""
    if fmt.name == "bfloat16" and FLUSHES_BF16:
        kind = ir.FunctionType(ir.VectorType(I16, 32), [first.type] * 2)
        text = "vcvtne2ps2bf16 $1, $2, $0"
        both = builder.asm(kind, text, "=v,v,v", [first, second], False)
    else:
        one, other = (narrowed(builder, fmt, values) for values in (first, second))
        size = 2 * fmt.lanes
        order = ir.Constant(ir.VectorType(I32, size), list(range(size)))
        both = builder.shuffle_vector(one, other, order)
    return _interleaved(builder, both) if apart and fmt.name == "bfloat16" else both


def rounded_once(builder, fmt, values):
    """Float64 numbers, one or many, as they are stored."""
    if fmt.itemsize == 2:
        odd = _to_odd(builder, values)
        return (_brain_narrowed if fmt.name == "bfloat16" else _half)(builder, odd)
    return builder.fptrunc(values, like(values.type, F32)) if fmt.itemsize == 4 else values


def _to_odd(builder, values):
    """Float64 as the float32 at or next to it whose last bit says that it was inexact.

    A second rounding, to 16 bits, then sees on which side of a tie the value lies.
    """
    whole, double = like(values.type, I32), like(values.type, F64)
    single = builder.fptrunc(values, like(values.type, F32))
    back = builder.fpext(single, double)
    bits = builder.bitcast(single, whole)
    fabs = f"llvm.fabs.v{double.count}f64" if double is not F64 else "llvm.fabs.f64"
    absolute = [call(builder, fabs, double, [one]) for one in (values, back)]
    one = const(whole, 1)
    further = builder.fcmp_ordered(">", *absolute)
    moved = builder.select(further, builder.add(bits, one), builder.sub(bits, one))
    even = builder.icmp_unsigned("==", builder.and_(bits, one), const(whole, 0))
    inexact = builder.fcmp_ordered("!=", values, back)
    return builder.bitcast(builder.select(builder.and_(even, inexact), moved, bits), single.type)


def spread(builder, scalar, count):
    """A number in every lane."""
    vector = builder.insert_element(
        ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined), scalar, I32(0)
    )
    order = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(vector, vector, order)
