"""What `vector` names, as LLVM instructions. Addresses are integers, lane 0 comes first."""

import operator
import os
import platform

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.core.imputils import lower_constant
from numba.extending import (
    intrinsic,
    models,
    overload,
    register_model,
    typeof_impl,
)

from normgrad.backends.cpu.formats import Format

_F16, _F32, _F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
_I1, _I16, _I32, _I64 = ir.IntType(1), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_STORED = {
    "float16": _F16,
    "bfloat16": _I16,
    "float32": _F32,
    "float64": _F64,
    "int16": _I16,
    "int32": _I32,
    "int64": _I64,
}
_X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")


def _compiles_for(feature):
    """Whether the code that Numba makes may use a feature of the processor."""
    if config.CPU_NAME or config.CPU_FEATURES:
        return f"+{feature}" in (config.CPU_FEATURES or "").split(",")
    return bool(binding.get_host_cpu_features().get(feature))


# Float16 conversions are instructions everywhere but on old x86, where LLVM would call functions
# that nobody provides.
_HAS_HALF = not _X86 or _compiles_for("f16c")
# One instruction instead of seven; it flushes numbers below 2**-126 to zero. The cache of compiled
# kernels is keyed by the processor's features.
_HAS_BF16 = _X86 and _compiles_for("avx512bf16")
if _HAS_BF16:
    binding.initialize_native_asmparser()
_LINE = 64


class FormatType(types.Type):
    """The type of one `Format`; its values carry nothing."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt
        super().__init__(name=f"Format({fmt.name})")


class LanesType(types.Type):
    """A vector of compute numbers."""

    def __init__(self, wide: bool, count: int) -> None:
        self.wide = wide
        self.count = count
        super().__init__(name=f"Lanes({'float64' if wide else 'float32'} x {count})")

    @property
    def llvm(self):
        return ir.VectorType(_F64 if self.wide else _F32, self.count)


@register_model(FormatType)
class _FormatModel(models.OpaqueModel):
    pass


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


@typeof_impl.register(Format)
def _typeof_format(value, context):
    return FormatType(value)


@lower_constant(FormatType)
def _constant_format(context, builder, type_, value):
    return context.get_dummy_value()


def _lanes_of(fmt):
    return LanesType(fmt.wide, fmt.lanes)


def _pointer(builder, address, to):
    return builder.inttoptr(address, to.as_pointer())


def _call(builder, name, result, arguments):
    module = builder.module
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(module, kind, name)
    return builder.call(function, arguments)


def _splat(builder, scalar, count):
    vector = builder.insert_element(
        ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined), scalar, _I32(0)
    )
    order = ir.Constant(ir.VectorType(_I32, count), [0] * count)
    return builder.shuffle_vector(vector, vector, order)


def _like(stored, element):
    """The type of the same number of other elements."""
    return ir.VectorType(element, stored.count) if isinstance(stored, ir.VectorType) else element


def _const(type_, value):
    if isinstance(type_, ir.VectorType):
        return ir.Constant(type_, [value] * type_.count)
    return ir.Constant(type_, value)


def _half_widened(builder, stored):
    """Float16 to float32 in integers: the exponent moves by 112, subnormals come right with it."""
    whole, single = _like(stored.type, _I32), _like(stored.type, _F32)
    bits = builder.zext(builder.bitcast(stored, _like(stored.type, _I16)), whole)
    size = builder.shl(builder.and_(bits, _const(whole, 0x7FFF)), _const(whole, 13))
    scaled = builder.fmul(builder.bitcast(size, single), _const(single, 2.0**112))
    special = builder.icmp_unsigned(">=", size, _const(whole, 0x7C00 << 13))
    exponent = builder.or_(size, _const(whole, 0x7F800000))
    value = builder.select(special, exponent, builder.bitcast(scaled, whole))
    sign = builder.shl(builder.and_(bits, _const(whole, 0x8000)), _const(whole, 16))
    return builder.bitcast(builder.or_(value, sign), single)


def _half_narrowed(builder, values):
    """Float32 to float16 in integers, to nearest even."""
    whole, half = _like(values.type, _I32), _like(values.type, _I16)
    bits = builder.bitcast(values, whole)
    size = builder.and_(bits, _const(whole, 0x7FFFFFFF))
    last = builder.and_(builder.lshr(size, _const(whole, 13)), _const(whole, 1))
    moved = builder.sub(size, _const(whole, 0x38000000 - 0xFFF))
    normal = builder.lshr(builder.add(moved, last), _const(whole, 13))
    # One half has the step of float16's subnormals in its last place: adding it rounds.
    single = values.type
    aligned = builder.fadd(builder.bitcast(size, single), _const(single, 0.5))
    tiny = builder.sub(builder.bitcast(aligned, whole), _const(whole, 0x3F000000))
    value = builder.select(
        builder.icmp_unsigned("<", size, _const(whole, 0x38800000)), tiny, normal
    )
    too_large = builder.icmp_unsigned(">=", size, _const(whole, 0x477FF000))
    value = builder.select(too_large, _const(whole, 0x7C00), value)
    is_nan = builder.icmp_unsigned(">", size, _const(whole, 0x7F800000))
    value = builder.select(is_nan, _const(whole, 0x7E00), value)
    sign = builder.and_(builder.lshr(bits, _const(whole, 16)), _const(whole, 0x8000))
    return builder.bitcast(builder.trunc(builder.or_(value, sign), half), _like(single, _F16))


def _widened(builder, fmt, stored):
    """Stored elements, one or many, as compute numbers: exact."""
    if fmt.name == "float16":
        if _HAS_HALF:
            return builder.fpext(stored, _like(stored.type, _F32))
        return _half_widened(builder, stored)
    if fmt.name == "bfloat16":
        whole = _like(stored.type, _I32)
        shifted = builder.shl(builder.zext(stored, whole), _const(whole, 16))
        return builder.bitcast(shifted, _like(stored.type, _F32))
    return stored


def _narrowed(builder, fmt, values):
    """Compute numbers rounded once, to nearest even, as they are stored."""
    if fmt.name == "float16":
        if _HAS_HALF:
            return builder.fptrunc(values, _like(values.type, _F16))
        return _half_narrowed(builder, values)
    if fmt.name != "bfloat16":
        return values
    if _HAS_BF16 and isinstance(values.type, ir.VectorType):
        halves = ir.FunctionType(_like(values.type, _I16), [values.type])
        return builder.asm(halves, "vcvtneps2bf16 $1, $0", "=v,v", [values], False)
    whole = _like(values.type, _I32)
    bits = builder.bitcast(values, whole)
    last = builder.and_(builder.lshr(bits, _const(whole, 16)), _const(whole, 1))
    rounded = builder.add(bits, builder.add(last, _const(whole, 0x7FFF)))
    quiet = builder.or_(bits, _const(whole, 0x400000))
    is_nan = builder.fcmp_unordered("uno", values, values)
    chosen = builder.select(is_nan, quiet, rounded)
    return builder.trunc(builder.lshr(chosen, _const(whole, 16)), _like(values.type, _I16))


@intrinsic
def lanes(typingctx, fmt):
    """How many elements a vector of this format has."""

    def codegen(context, builder, signature, arguments):
        return _I64(fmt.fmt.lanes)

    return types.int64(fmt), codegen


@intrinsic
def size_of(typingctx, fmt):
    """Bytes of one stored element."""

    def codegen(context, builder, signature, arguments):
        return _I64(fmt.fmt.itemsize)

    return types.int64(fmt), codegen


@intrinsic
def load(typingctx, fmt, address):
    """A full vector."""

    def codegen(context, builder, signature, arguments):
        stored = ir.VectorType(_STORED[fmt.fmt.name], fmt.fmt.lanes)
        loaded = builder.load(_pointer(builder, arguments[1], stored), align=fmt.fmt.itemsize)
        return _widened(builder, fmt.fmt, loaded)

    return _lanes_of(fmt.fmt)(fmt, types.int64), codegen


@intrinsic
def store(typingctx, fmt, address, values):
    """A full vector, rounded."""

    def codegen(context, builder, signature, arguments):
        narrow = _narrowed(builder, fmt.fmt, arguments[2])
        target = _pointer(builder, arguments[1], narrow.type)
        builder.store(narrow, target, align=fmt.fmt.itemsize)
        return context.get_dummy_value()

    return types.none(fmt, types.int64, _lanes_of(fmt.fmt)), codegen


def _line(builder, values, address):
    """A store of whole cache lines past the cache."""
    written = builder.store(values, _pointer(builder, address, values.type), align=_LINE)
    written.set_metadata("nontemporal", builder.module.add_metadata([_I32(1)]))


def _interleaved(builder, values):
    """Halves of a vector of 32 as its even and odd elements."""
    order = [half + index for index in range(16) for half in (0, 16)]
    return builder.shuffle_vector(values, values, ir.Constant(ir.VectorType(_I32, 32), order))


def _joined(builder, fmt, first, second, apart):
    """Two vectors of a 16-bit format as one line."""
    if fmt.name == "bfloat16" and _HAS_BF16:
        kind = ir.FunctionType(ir.VectorType(_I16, 32), [first.type] * 2)
        text = "vcvtne2ps2bf16 $1, $2, $0"
        both = builder.asm(kind, text, "=v,v,v", [first, second], False)
    else:
        one, other = (_narrowed(builder, fmt, values) for values in (first, second))
        order = ir.Constant(ir.VectorType(_I32, 32), list(range(32)))
        both = builder.shuffle_vector(one, other, order)
    return _interleaved(builder, both) if apart and fmt.name == "bfloat16" else both


def _stream(builder, fmt, address, first, second, apart):
    if fmt.itemsize == 2:
        _line(builder, _joined(builder, fmt, first, second, apart), address)
    else:
        _line(builder, first, address)
        _line(builder, second, builder.add(address, _I64(_LINE)))


@intrinsic
def stream(typingctx, fmt, address, first, second):
    """Two vectors past the cache; the address must be a multiple of 64.

    Two, because 16 elements of 16 bits are half a line: LLVM narrows them with an instruction
    that writes memory itself and forgets about the cache.
    """

    def codegen(context, builder, signature, arguments):
        _stream(builder, fmt.fmt, *arguments[1:], apart=False)
        return context.get_dummy_value()

    vector = _lanes_of(fmt.fmt)
    return types.none(fmt, types.int64, vector, vector), codegen


@intrinsic
def stream_line(typingctx, fmt, address, values):
    """A vector that fills a line past the cache; one of 16-bit elements fills half: as `store`."""

    def codegen(context, builder, signature, arguments):
        narrow = _narrowed(builder, fmt.fmt, arguments[2])
        if fmt.fmt.itemsize == 2:
            builder.store(narrow, _pointer(builder, arguments[1], narrow.type), align=2)
        else:
            _line(builder, narrow, arguments[1])
        return context.get_dummy_value()

    return types.none(fmt, types.int64, _lanes_of(fmt.fmt)), codegen


@intrinsic
def splat_pair(typingctx, fmt, first, second, count):
    """Two vectors in the order of `load_pair`: one number for ``count`` elements, then another."""
    vector = _lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        width = fmt.fmt.lanes
        element = vector.llvm.element
        one, other = (
            value if fmt.fmt.wide else builder.fptrunc(value, element) for value in arguments[1:3]
        )
        one, other = (_splat(builder, value, width) for value in (one, other))
        integers = ir.VectorType(_I64, width)
        limit = _splat(builder, arguments[3], width)
        apart = fmt.fmt.name == "bfloat16"
        pair = []
        for half in (0, 1):
            places = [2 * i + half if apart else i + half * width for i in range(width)]
            taken = builder.icmp_signed("<", ir.Constant(integers, places), limit)
            pair.append(builder.select(taken, one, other))
        return context.make_tuple(builder, signature.return_type, pair)

    signature = types.UniTuple(vector, 2)(fmt, types.float64, types.float64, types.int64)
    return signature, codegen


@intrinsic
def load_pair(typingctx, fmt, address):
    """Two vectors of neighbouring elements, in an order that only `store_pair` undoes.

    Bfloat16 comes as even and odd elements: two instructions for 32 of them instead of four.
    """
    vector = _lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        address = arguments[1]
        if fmt.fmt.name == "bfloat16":
            words = ir.VectorType(_I32, 16)
            bits = builder.load(_pointer(builder, address, words), align=2)
            even = builder.shl(bits, _const(words, 16))
            odd = builder.and_(bits, _const(words, -65536))
            pair = [builder.bitcast(half, vector.llvm) for half in (even, odd)]
        else:
            stored = ir.VectorType(_STORED[fmt.fmt.name], fmt.fmt.lanes)
            there = builder.add(address, _I64(fmt.fmt.itemsize * fmt.fmt.lanes))
            pair = [
                _widened(
                    builder,
                    fmt.fmt,
                    builder.load(_pointer(builder, where, stored), align=fmt.fmt.itemsize),
                )
                for where in (address, there)
            ]
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(vector, 2)(fmt, types.int64), codegen


@intrinsic
def store_pair(typingctx, fmt, address, first, second):
    """What `load_pair` loaded and was computed from it, rounded, in memory's order."""
    vector = _lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        _, address, first, second = arguments
        if fmt.fmt.itemsize == 2:
            both = _joined(builder, fmt.fmt, first, second, apart=True)
            builder.store(both, _pointer(builder, address, both.type), align=2)
        else:
            for index, values in enumerate((first, second)):
                there = builder.add(address, _I64(_LINE * index))
                target = _pointer(builder, there, values.type)
                builder.store(values, target, align=fmt.fmt.itemsize)
        return context.get_dummy_value()

    return types.none(fmt, types.int64, vector, vector), codegen


@intrinsic
def stream_pair(typingctx, fmt, address, first, second):
    """`store_pair` past the cache; the address must be a multiple of 64."""

    def codegen(context, builder, signature, arguments):
        _stream(builder, fmt.fmt, *arguments[1:], apart=True)
        return context.get_dummy_value()

    vector = _lanes_of(fmt.fmt)
    return types.none(fmt, types.int64, vector, vector), codegen


def _mask(builder, count, size):
    lane = ir.Constant(ir.VectorType(_I64, size), list(range(size)))
    return builder.icmp_signed("<", lane, _splat(builder, count, size))


@intrinsic
def load_part(typingctx, fmt, address, count):
    """The first ``count`` lanes; the others are 0 and their memory is not touched."""

    def codegen(context, builder, signature, arguments):
        element = _I16 if fmt.fmt.itemsize == 2 else _STORED[fmt.fmt.name]
        stored = ir.VectorType(element, fmt.fmt.lanes)
        name = {2: "i16", 4: "f32", 8: "f64"}[fmt.fmt.itemsize]
        loaded = _call(
            builder,
            f"llvm.masked.load.v{stored.count}{name}.p0",
            stored,
            [
                _pointer(builder, arguments[1], stored),
                _I32(fmt.fmt.itemsize),
                _mask(builder, arguments[2], stored.count),
                _const(stored, 0),
            ],
        )
        if fmt.fmt.name == "float16":
            loaded = builder.bitcast(loaded, ir.VectorType(_F16, stored.count))
        return _widened(builder, fmt.fmt, loaded)

    return _lanes_of(fmt.fmt)(fmt, types.int64, types.int64), codegen


@intrinsic
def store_part(typingctx, fmt, address, values, count):
    """The first ``count`` lanes, rounded; memory of the others is not touched."""

    def codegen(context, builder, signature, arguments):
        narrow = _narrowed(builder, fmt.fmt, arguments[2])
        if fmt.fmt.name == "float16":
            narrow = builder.bitcast(narrow, ir.VectorType(_I16, fmt.fmt.lanes))
        name = {2: "i16", 4: "f32", 8: "f64"}[fmt.fmt.itemsize]
        _call(
            builder,
            f"llvm.masked.store.v{fmt.fmt.lanes}{name}.p0",
            ir.VoidType(),
            [
                narrow,
                _pointer(builder, arguments[1], narrow.type),
                _I32(fmt.fmt.itemsize),
                _mask(builder, arguments[3], fmt.fmt.lanes),
            ],
        )
        return context.get_dummy_value()

    return types.none(fmt, types.int64, _lanes_of(fmt.fmt), types.int64), codegen


@intrinsic
def splat(typingctx, fmt, value):
    """One float64, rounded to the compute type, in every lane."""
    lanes_type = _lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        value = arguments[1]
        if not lanes_type.wide:
            value = builder.fptrunc(value, _F32)
        return _splat(builder, value, lanes_type.count)

    return lanes_type(fmt, types.float64), codegen


@intrinsic
def zero(typingctx, fmt):
    """A vector of zeros."""
    lanes_type = _lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        return _const(lanes_type.llvm, 0.0)

    return lanes_type(fmt), codegen


@intrinsic
def fma(typingctx, first, second, third):
    """``first * second + third``, rounded once where the processor can."""

    def codegen(context, builder, signature, arguments):
        kind = f"v{first.count}{'f64' if first.wide else 'f32'}"
        return _call(builder, f"llvm.fmuladd.{kind}", first.llvm, list(arguments))

    return first(first, first, first), codegen


@intrinsic
def total(typingctx, values):
    """The sum of all lanes in float64: halves are added until one is left."""

    def codegen(context, builder, signature, arguments):
        vector = arguments[0]
        if not values.wide:
            vector = builder.fpext(vector, ir.VectorType(_F64, values.count))
        count = values.count
        while count > 1:
            count //= 2
            kind = ir.VectorType(_I32, count)
            low = builder.shuffle_vector(vector, vector, ir.Constant(kind, list(range(count))))
            high = builder.shuffle_vector(
                vector, vector, ir.Constant(kind, list(range(count, 2 * count)))
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, _I32(0))

    return types.float64(values), codegen


@intrinsic
def widen(typingctx, values):
    """The same numbers in float64 lanes."""

    def codegen(context, builder, signature, arguments):
        if values.wide:
            return arguments[0]
        return builder.fpext(arguments[0], ir.VectorType(_F64, values.count))

    return LanesType(True, values.count)(values), codegen


@intrinsic
def rounded(typingctx, fmt, values):
    """Float64 lanes as the compute type of a format."""
    lanes_type = _lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        if lanes_type.wide:
            return arguments[1]
        return builder.fptrunc(arguments[1], lanes_type.llvm)

    return lanes_type(fmt, values), codegen


@intrinsic
def store_wide(typingctx, address, values, count):
    """The first ``count`` lanes of a float64 vector as float64."""

    def codegen(context, builder, signature, arguments):
        _call(
            builder,
            f"llvm.masked.store.v{values.count}f64.p0",
            ir.VoidType(),
            [
                arguments[1],
                _pointer(builder, arguments[0], values.llvm),
                _I32(8),
                _mask(builder, arguments[2], values.count),
            ],
        )
        return context.get_dummy_value()

    return types.none(types.int64, values, types.int64), codegen


@intrinsic
def read(typingctx, fmt, address):
    """One element as float64."""

    def codegen(context, builder, signature, arguments):
        stored = builder.load(_pointer(builder, arguments[1], _STORED[fmt.fmt.name]))
        if fmt.fmt.name.startswith("int"):
            return builder.sitofp(stored, _F64)
        value = _widened(builder, fmt.fmt, stored)
        return value if fmt.fmt.wide else builder.fpext(value, _F64)

    return types.float64(fmt, types.int64), codegen


@intrinsic
def move(typingctx, fmt, source, target):
    """One element as it is."""

    def codegen(context, builder, signature, arguments):
        stored = _STORED[fmt.fmt.name]
        value = builder.load(_pointer(builder, arguments[1], stored))
        builder.store(value, _pointer(builder, arguments[2], stored))
        return context.get_dummy_value()

    return types.none(fmt, types.int64, types.int64), codegen


def _to_odd(builder, value):
    """A float64 as the float32 at or next to it whose last bit says that it was inexact.

    A second rounding, to 16 bits, then sees on which side of a tie the value lies.
    """
    single = builder.fptrunc(value, _F32)
    back = builder.fpext(single, _F64)
    bits = builder.bitcast(single, _I32)
    absolute = [_call(builder, "llvm.fabs.f64", _F64, [one]) for one in (value, back)]
    moved = builder.select(
        builder.fcmp_ordered(">", *absolute), builder.add(bits, _I32(1)), builder.sub(bits, _I32(1))
    )
    even = builder.icmp_unsigned("==", builder.and_(bits, _I32(1)), _I32(0))
    inexact = builder.fcmp_ordered("!=", value, back)
    return builder.bitcast(builder.select(builder.and_(even, inexact), moved, bits), _F32)


@intrinsic
def write(typingctx, fmt, address, value):
    """One float64, rounded once."""

    def codegen(context, builder, signature, arguments):
        value = arguments[2]
        if fmt.fmt.itemsize == 2:
            value = _narrowed(builder, fmt.fmt, _to_odd(builder, value))
        elif not fmt.fmt.wide:
            value = builder.fptrunc(value, _F32)
        builder.store(value, _pointer(builder, arguments[1], value.type))
        return context.get_dummy_value()

    return types.none(fmt, types.int64, types.float64), codegen


@intrinsic
def float_of(typingctx, bits):
    """The float64 whose bits an integer holds."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], _F64)

    return types.float64(types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for a cache line that will be read; any address is harmless."""

    def codegen(context, builder, signature, arguments):
        line = _pointer(builder, arguments[0], ir.IntType(8))
        _call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, _I32(0), _I32(2), _I32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@intrinsic
def call_task(typingctx, function, params, addresses, workspace, argument, index):
    """Call a task by its address."""

    def codegen(context, builder, signature, arguments):
        kinds = [value.type for value in arguments[1:]]
        target = _pointer(builder, arguments[0], ir.FunctionType(_I32, kinds))
        return builder.call(target, list(arguments[1:]))

    return types.int32(
        types.int64, params, addresses, types.int64, types.int64, types.int64
    ), codegen


@intrinsic
def add_atomic(typingctx, address, amount):
    """Add to a shared integer and return what it was; orders all memory around it."""

    def codegen(context, builder, signature, arguments):
        target = _pointer(builder, arguments[0], _I64)
        return builder.atomic_rmw("add", target, arguments[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def replace_atomic(typingctx, address, expected, value):
    """Write a shared integer if it is what was expected; whether it was."""

    def codegen(context, builder, signature, arguments):
        target = _pointer(builder, arguments[0], _I64)
        pair = builder.cmpxchg(target, *arguments[1:], "seq_cst", "seq_cst")
        return builder.extract_value(pair, 1)

    return types.boolean(types.int64, types.int64, types.int64), codegen


@intrinsic
def at_address(typingctx, address):
    """The 64-bit integers at an address."""

    def codegen(context, builder, signature, arguments):
        return _pointer(builder, arguments[0], _I64)

    return types.CPointer(types.int64)(types.int64), codegen


def _system(name, count):
    """A function of the system that takes one or two addresses."""

    def codegen(context, builder, signature, arguments):
        pointers = [_pointer(builder, address, ir.IntType(8)) for address in arguments]
        _call(builder, name, _I32, pointers)
        return context.get_dummy_value()

    if count == 1:
        return intrinsic(lambda typingctx, first: (types.none(types.int64), codegen))
    return intrinsic(
        lambda typingctx, first, second: (types.none(types.int64, types.int64), codegen)
    )


lock = _system("pthread_mutex_lock", 1)
unlock = _system("pthread_mutex_unlock", 1)
sleep = _system("pthread_cond_wait", 2)
wake = _system("pthread_cond_signal", 1)


@intrinsic
def fence(typingctx):
    """Make streamed stores visible before anything that follows."""

    def codegen(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def pause(typingctx, give_way):
    """Wait a moment inside a loop that polls; optionally let other threads have the core."""

    def codegen(context, builder, signature, arguments):
        if _X86:
            _call(builder, "llvm.x86.sse2.pause", ir.VoidType(), [])
        if os.name == "posix":
            with builder.if_then(arguments[0]):
                _call(builder, "sched_yield", _I32, [])
        return context.get_dummy_value()

    return types.none(types.boolean), codegen


def _binary(name, instruction):
    @intrinsic
    def operation(typingctx, first, second):
        def codegen(context, builder, signature, arguments):
            return getattr(builder, instruction)(*arguments)

        return first(first, second), codegen

    def typed(first, second):
        if isinstance(first, LanesType) and first == second:
            return lambda first, second: operation(first, second)  # noqa: PLW0108 (Numba's way)
        return None

    overload(getattr(operator, name))(typed)


_binary("add", "fadd")
_binary("sub", "fsub")
_binary("mul", "fmul")
