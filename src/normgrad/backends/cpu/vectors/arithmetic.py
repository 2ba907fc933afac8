"""Vectors of compute numbers in LLVM: their types, and arithmetic with them. Lane 0 comes first."""

import operator

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import (
    lower_builtin,
    models,
    register_model,
    type_callable,
    typeof_impl,
)

from normgrad.backends.cpu import compiler
from normgrad.backends.cpu.vectors.conversions import (
    F32,
    F64,
    I32,
    I64,
    SCALES,
    call,
    const,
    spread,
)
from normgrad.backends.cpu.vectors.formats import Format
from normgrad.backends.cpu.vectors.traced import Traced, intrinsic


class FormatType(types.Type):
    """The type of one `Format`; its values carry nothing."""

    def __init__(self, fmt: Format) -> None:
        self.fmt = fmt
        super().__init__(name=f"Format({fmt.name}, {'float64' if fmt.wide else 'float32'})")


class LanesType(types.Type):
    """A vector of compute numbers."""

    def __init__(self, wide: bool, count: int) -> None:
        self.wide = wide
        self.count = count
        super().__init__(name=f"Lanes({'float64' if wide else 'float32'} x {count})")

    @property
    def llvm(self):
        return ir.VectorType(F64 if self.wide else F32, self.count)


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


def opaque_constant(kind):
    """Let kernels name values that are nothing but their type."""
    lower_constant(kind)(lambda context, builder, type_, value: context.get_dummy_value())


opaque_constant(FormatType)


def lanes_of(fmt):
    """The vectors of a format."""
    return LanesType(fmt.wide, fmt.lanes)


def _constant(kind, read):
    """A number of a format, which traced functions see as Python's."""

    @intrinsic
    def constant(typingctx, fmt):
        def codegen(context, builder, signature, arguments):
            return context.get_constant(kind, read(fmt.fmt))

        return kind(fmt), codegen

    constant.traced = lambda fmt: read(fmt.kind.fmt if isinstance(fmt, Traced) else fmt)
    return constant


# How many elements a vector of a format has, the bytes of a stored one, and whether a stored vector
# is a cache line, not half of one.
lanes = _constant(types.int64, lambda fmt: fmt.lanes)
size_of = _constant(types.int64, lambda fmt: fmt.itemsize)
fills_line = _constant(types.boolean, lambda fmt: fmt.fills_line)


@intrinsic
def _least(typingctx, *values):
    """Python's ``min`` of integers: as Numba has it, a function for each kind of constant."""

    def codegen(context, builder, signature, arguments):
        least = arguments[0]
        for one in arguments[1:]:
            least = builder.select(builder.icmp_signed("<", least, one), least, one)
        return least

    return types.int64(*[types.int64] * len(values)), codegen


compiler.OWN[min] = _least._numba_type_


@intrinsic
def hidden_constant(typingctx, value):
    """Hides a constant from Numba, which compiles what is called anew for every constant."""
    kind = types.unliteral(value)

    def codegen(context, builder, signature, arguments):
        return arguments[0]

    return kind(kind), codegen


@intrinsic
def splat_pair(typingctx, fmt, first, second, count):
    """Two vectors in the order of `load_pair`: one number for ``count`` elements, then another."""
    vector = lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        width = fmt.fmt.lanes
        element = vector.llvm.element
        one, other = (
            value if fmt.fmt.wide else builder.fptrunc(value, element) for value in arguments[1:3]
        )
        one, other = (spread(builder, value, width) for value in (one, other))
        integers = ir.VectorType(I64, width)
        limit = spread(builder, arguments[3], width)
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
def splat(typingctx, fmt, value):
    """One float64, rounded to the compute type, in every lane."""
    lanes_type = lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        value = arguments[1]
        if not lanes_type.wide:
            value = builder.fptrunc(value, F32)
        return spread(builder, value, lanes_type.count)

    return lanes_type(fmt, types.float64), codegen


@intrinsic
def zero(typingctx, fmt):
    """A vector of zeros."""
    lanes_type = lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        return const(lanes_type.llvm, 0.0)

    return lanes_type(fmt), codegen


@intrinsic
def fma(typingctx, first, second, third):
    """``first * second + third``, rounded once where the processor can."""

    def codegen(context, builder, signature, arguments):
        kind = f"v{first.count}{'f64' if first.wide else 'f32'}"
        return call(builder, f"llvm.fmuladd.{kind}", first.llvm, list(arguments))

    return first(first, first, first), codegen


def _halved(builder, vector, count, least):
    """Halves of a vector added until so many lanes are left."""
    while count > least:
        count //= 2
        kind = ir.VectorType(I32, count)
        low = builder.shuffle_vector(vector, vector, ir.Constant(kind, list(range(count))))
        high = builder.shuffle_vector(
            vector, vector, ir.Constant(kind, list(range(count, 2 * count)))
        )
        vector = builder.fadd(low, high)
    return vector


@intrinsic
def total(typingctx, values):
    """The sum of all lanes in float64: halves are added until one is left."""

    def codegen(context, builder, signature, arguments):
        vector = arguments[0]
        if not values.wide:
            vector = builder.fpext(vector, ir.VectorType(F64, values.count))
        return builder.extract_element(_halved(builder, vector, values.count, 1), I32(0))

    return types.float64(values), codegen


def _four_sums(builder, vectors, size):
    """The sums of all lanes of four vectors, in four lanes: 13 instructions, not 40."""
    kind = ir.VectorType(I32, size)

    def added(one, other, low, high):
        """Two vectors mixed in both ways, for each four lanes."""
        mixed = []
        for order in (low, high):
            lanes = [block + lane for block in range(0, size, 4) for lane in order]
            mixed.append(builder.shuffle_vector(one, other, ir.Constant(kind, lanes)))
        return builder.fadd(*mixed)

    ones, others = (
        added(*vectors[at : at + 2], (0, size, 1, size + 1), (2, size + 2, 3, size + 3))
        for at in (0, 2)
    )
    # In each four lanes one of every vector.
    vector = added(ones, others, (0, 1, size, size + 1), (2, 3, size + 2, size + 3))
    return _halved(builder, vector, size, 4)


@intrinsic
def four_totals(typingctx, first, second, third, fourth):
    """The sums of all lanes of four vectors, in the compute type."""

    def codegen(context, builder, signature, arguments):
        vector = _four_sums(builder, arguments, first.count)
        sums = [builder.extract_element(vector, I32(lane)) for lane in range(4)]
        sums = sums if first.wide else [builder.fpext(one, F64) for one in sums]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.float64, 4)(first, first, first, first), codegen


@intrinsic
def totals_in_lanes(typingctx, first, second, third, fourth):
    """The same in the first four of eight float64 lanes; the others are 0."""

    def codegen(context, builder, signature, arguments):
        vector = _four_sums(builder, arguments, first.count)
        if not first.wide:
            vector = builder.fpext(vector, ir.VectorType(F64, 4))
        order = ir.Constant(ir.VectorType(I32, 8), list(range(8)))
        return builder.shuffle_vector(vector, const(vector.type, 0.0), order)

    return LanesType(True, 8)(first, first, first, first), codegen


@intrinsic
def widen(typingctx, values):
    """The same numbers in float64 lanes."""

    def codegen(context, builder, signature, arguments):
        if values.wide:
            return arguments[0]
        return builder.fpext(arguments[0], ir.VectorType(F64, values.count))

    return LanesType(True, values.count)(values), codegen


@intrinsic
def lane_of(typingctx, values, lane):
    """One lane of a vector of float64."""

    def codegen(context, builder, signature, arguments):
        return builder.extract_element(*arguments)

    return types.float64(values, types.int64), codegen


@intrinsic
def with_lane(typingctx, values, lane, value):
    """A vector of float64 with another number in one lane."""

    def codegen(context, builder, signature, arguments):
        values, lane, value = arguments
        return builder.insert_element(values, value, lane)

    return values(values, types.int64, types.float64), codegen


@intrinsic
def kept(typingctx, values, count):
    """The first ``count`` lanes; the others are 0."""

    def codegen(context, builder, signature, arguments):
        vector, count = arguments
        lane = ir.Constant(ir.VectorType(I64, values.count), list(range(values.count)))
        first = builder.icmp_signed("<", lane, spread(builder, count, values.count))
        return builder.select(first, vector, const(vector.type, 0.0))

    return values(values, types.int64), codegen


@intrinsic
def any_above(typingctx, first, second):
    """Whether a number, or one in any lane, is more than the other."""

    def codegen(context, builder, signature, arguments):
        found = builder.fcmp_ordered(">", *arguments)
        if not isinstance(first, LanesType):
            return found
        lanes = builder.bitcast(found, ir.IntType(first.count))
        return builder.icmp_unsigned("!=", lanes, lanes.type(0))

    return types.boolean(first, second), codegen


@intrinsic
def absolute(typingctx, values):
    """Without the sign."""

    def codegen(context, builder, signature, arguments):
        kind = f"v{values.count}{'f64' if values.wide else 'f32'}"
        return call(builder, f"llvm.fabs.{kind}", values.llvm, list(arguments))

    return values(values), codegen


@intrinsic
def at_most(typingctx, first, second, yes, no):
    """Where the first is not more than the second, else, and where either is NaN, ``no``."""

    def codegen(context, builder, signature, arguments):
        return builder.select(builder.fcmp_ordered("<=", *arguments[:2]), *arguments[2:])

    return no(first, second, yes, no), codegen


@intrinsic
def bits_above(typingctx, values, bound):
    """A bit for each lane that is not at most as much; NaN is above."""

    def codegen(context, builder, signature, arguments):
        found = builder.fcmp_unordered(">", *arguments)
        return builder.zext(builder.bitcast(found, ir.IntType(values.count)), I64)

    return types.int64(values, bound), codegen


@intrinsic
def kept_where(typingctx, values, bits):
    """The lanes whose bit is set; the others are 0."""

    def codegen(context, builder, signature, arguments):
        vector, bits = arguments
        some = builder.trunc(bits, ir.IntType(values.count))
        chosen = builder.bitcast(some, ir.VectorType(ir.IntType(1), values.count))
        return builder.select(chosen, vector, const(vector.type, 0.0))

    return values(values, types.int64), codegen


def _resized(kind, wide):
    """The type of the same numbers in another compute type."""
    if isinstance(kind, LanesType):
        return LanesType(wide, kind.count)
    return types.float64 if wide else types.float32


def _llvm(kind):
    return kind.llvm if isinstance(kind, LanesType) else F64 if kind == types.float64 else F32


@intrinsic
def in_float32(typingctx, values):
    """A number, or each lane, rounded to float32."""
    kind = _resized(values, False)

    def codegen(context, builder, signature, arguments):
        return arguments[0] if kind == values else builder.fptrunc(arguments[0], _llvm(kind))

    return kind(values), codegen


@intrinsic
def in_type_of(typingctx, values, like):
    """The same numbers as wide as others are."""

    def codegen(context, builder, signature, arguments):
        return arguments[0] if like == values else builder.fpext(arguments[0], _llvm(like))

    return like(values, like), codegen


@intrinsic
def times_power(typingctx, values, whole):
    """Values near 1 times 2 to whole powers, rounded once where that is too small."""
    bits, bias, steps = (I64, 1023, 52) if values.wide else (I32, 127, 23)
    kind = ir.VectorType(bits, values.count)

    def codegen(context, builder, signature, arguments):
        vector, whole = arguments
        if SCALES and values.count * (8 if values.wide else 4) == 64:
            # The processor's own, in one instruction.
            lane_bits = ir.IntType(values.count)
            name = f"llvm.x86.avx512.mask.scalef.{'pd' if values.wide else 'ps'}.512"
            rest = [vector, lane_bits(-1), I32(4)]
            return call(builder, name, values.llvm, [vector, whole, *rest])
        size = f"v{values.count}i{bits.width}.v{values.count}{'f64' if values.wide else 'f32'}"
        power = call(builder, f"llvm.fptosi.sat.{size}", kind, [whole])
        half = builder.ashr(power, const(kind, 1))
        for one in (half, builder.sub(power, half)):
            shifted = builder.shl(builder.add(one, const(kind, bias)), const(kind, steps))
            vector = builder.fmul(vector, builder.bitcast(shifted, values.llvm))
        return vector

    return values(values, whole), codegen


@intrinsic
def square_root(typingctx, values):
    """Of each lane."""

    def codegen(context, builder, signature, arguments):
        kind = f"v{values.count}{'f64' if values.wide else 'f32'}"
        return call(builder, f"llvm.sqrt.{kind}", values.llvm, list(arguments))

    return values(values), codegen


@intrinsic
def float_of(typingctx, bits):
    """The float64 whose bits an integer holds."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], F64)

    return types.float64(types.int64), codegen


def _operator(function, instruction):
    """An operator of vectors, one instruction. As an overload it is a function more to compile."""

    @type_callable(function)
    def typed(context):
        def result(first, second):
            return first if isinstance(first, LanesType) and first == second else None

        return result

    @lower_builtin(function, LanesType, LanesType)
    def lowered(context, builder, signature, arguments):
        return getattr(builder, instruction)(*arguments)


@type_callable(operator.neg)
def _negative(context):
    return lambda values: values if isinstance(values, LanesType) else None


@lower_builtin(operator.neg, LanesType)
def _negated(context, builder, signature, arguments):
    return builder.fneg(*arguments)


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")
