"""What `vector` names, as LLVM instructions. Addresses are integers, lane 0 comes first."""

import operator

from llvmlite import ir
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import (
    intrinsic,
    models,
    overload,
    register_model,
    typeof_impl,
)

from normgrad.backends.cpu.conversions import (
    F16,
    F32,
    F64,
    I16,
    I32,
    I64,
    STORED,
    call,
    const,
    joined,
    narrowed,
    pointer,
    to_odd,
    widened,
)
from normgrad.backends.cpu.formats import Format

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


@lower_constant(FormatType)
def _constant_format(context, builder, type_, value):
    return context.get_dummy_value()


def _lanes_of(fmt):
    return LanesType(fmt.wide, fmt.lanes)


def _splat(builder, scalar, count):
    vector = builder.insert_element(
        ir.Constant(ir.VectorType(scalar.type, count), ir.Undefined), scalar, I32(0)
    )
    order = ir.Constant(ir.VectorType(I32, count), [0] * count)
    return builder.shuffle_vector(vector, vector, order)


@intrinsic
def lanes(typingctx, fmt):
    """How many elements a vector of this format has."""

    def codegen(context, builder, signature, arguments):
        return I64(fmt.fmt.lanes)

    return types.int64(fmt), codegen


@intrinsic
def size_of(typingctx, fmt):
    """Bytes of one stored element."""

    def codegen(context, builder, signature, arguments):
        return I64(fmt.fmt.itemsize)

    return types.int64(fmt), codegen


@intrinsic
def load(typingctx, fmt, address):
    """A full vector."""

    def codegen(context, builder, signature, arguments):
        stored = ir.VectorType(STORED[fmt.fmt.name], fmt.fmt.lanes)
        loaded = builder.load(pointer(builder, arguments[1], stored), align=fmt.fmt.itemsize)
        return widened(builder, fmt.fmt, loaded)

    return _lanes_of(fmt.fmt)(fmt, types.int64), codegen


@intrinsic
def store(typingctx, fmt, address, values):
    """A full vector, rounded."""

    def codegen(context, builder, signature, arguments):
        narrow = narrowed(builder, fmt.fmt, arguments[2])
        target = pointer(builder, arguments[1], narrow.type)
        builder.store(narrow, target, align=fmt.fmt.itemsize)
        return context.get_dummy_value()

    return types.none(fmt, types.int64, _lanes_of(fmt.fmt)), codegen


def _line(builder, values, address):
    """A store of whole cache lines past the cache."""
    written = builder.store(values, pointer(builder, address, values.type), align=_LINE)
    written.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))


def _stream(builder, fmt, address, first, second, apart):
    if fmt.itemsize == 2:
        _line(builder, joined(builder, fmt, first, second, apart), address)
    else:
        _line(builder, first, address)
        _line(builder, second, builder.add(address, I64(_LINE)))


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
        narrow = narrowed(builder, fmt.fmt, arguments[2])
        if fmt.fmt.itemsize == 2:
            builder.store(narrow, pointer(builder, arguments[1], narrow.type), align=2)
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
        integers = ir.VectorType(I64, width)
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
            words = ir.VectorType(I32, 16)
            bits = builder.load(pointer(builder, address, words), align=2)
            even = builder.shl(bits, const(words, 16))
            odd = builder.and_(bits, const(words, -65536))
            pair = [builder.bitcast(half, vector.llvm) for half in (even, odd)]
        else:
            stored = ir.VectorType(STORED[fmt.fmt.name], fmt.fmt.lanes)
            there = builder.add(address, I64(fmt.fmt.itemsize * fmt.fmt.lanes))
            pair = [
                widened(
                    builder,
                    fmt.fmt,
                    builder.load(pointer(builder, where, stored), align=fmt.fmt.itemsize),
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
            both = joined(builder, fmt.fmt, first, second, apart=True)
            builder.store(both, pointer(builder, address, both.type), align=2)
        else:
            for index, values in enumerate((first, second)):
                there = builder.add(address, I64(_LINE * index))
                target = pointer(builder, there, values.type)
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
    lane = ir.Constant(ir.VectorType(I64, size), list(range(size)))
    return builder.icmp_signed("<", lane, _splat(builder, count, size))


@intrinsic
def load_part(typingctx, fmt, address, count):
    """The first ``count`` lanes; the others are 0 and their memory is not touched."""

    def codegen(context, builder, signature, arguments):
        element = I16 if fmt.fmt.itemsize == 2 else STORED[fmt.fmt.name]
        stored = ir.VectorType(element, fmt.fmt.lanes)
        name = {2: "i16", 4: "f32", 8: "f64"}[fmt.fmt.itemsize]
        loaded = call(
            builder,
            f"llvm.masked.load.v{stored.count}{name}.p0",
            stored,
            [
                pointer(builder, arguments[1], stored),
                I32(fmt.fmt.itemsize),
                _mask(builder, arguments[2], stored.count),
                const(stored, 0),
            ],
        )
        if fmt.fmt.name == "float16":
            loaded = builder.bitcast(loaded, ir.VectorType(F16, stored.count))
        return widened(builder, fmt.fmt, loaded)

    return _lanes_of(fmt.fmt)(fmt, types.int64, types.int64), codegen


@intrinsic
def store_part(typingctx, fmt, address, values, count):
    """The first ``count`` lanes, rounded; memory of the others is not touched."""

    def codegen(context, builder, signature, arguments):
        narrow = narrowed(builder, fmt.fmt, arguments[2])
        if fmt.fmt.name == "float16":
            narrow = builder.bitcast(narrow, ir.VectorType(I16, fmt.fmt.lanes))
        name = {2: "i16", 4: "f32", 8: "f64"}[fmt.fmt.itemsize]
        call(
            builder,
            f"llvm.masked.store.v{fmt.fmt.lanes}{name}.p0",
            ir.VoidType(),
            [
                narrow,
                pointer(builder, arguments[1], narrow.type),
                I32(fmt.fmt.itemsize),
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
            value = builder.fptrunc(value, F32)
        return _splat(builder, value, lanes_type.count)

    return lanes_type(fmt, types.float64), codegen


@intrinsic
def zero(typingctx, fmt):
    """A vector of zeros."""
    lanes_type = _lanes_of(fmt.fmt)

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


@intrinsic
def four_totals(typingctx, first, second, third, fourth):
    """The sums of all lanes of four vectors, in the compute type: 13 instructions, not 40."""

    def codegen(context, builder, signature, arguments):
        size = first.count
        kind = ir.VectorType(I32, size)

        def added(one, other, low, high):
            """Two vectors mixed in both ways, for each four lanes."""
            mixed = []
            for order in (low, high):
                lanes = [block + lane for block in range(0, size, 4) for lane in order]
                mixed.append(builder.shuffle_vector(one, other, ir.Constant(kind, lanes)))
            return builder.fadd(*mixed)

        ones, others = (
            added(*arguments[at : at + 2], (0, size, 1, size + 1), (2, size + 2, 3, size + 3))
            for at in (0, 2)
        )
        # In each four lanes one of every vector.
        vector = added(ones, others, (0, 1, size, size + 1), (2, 3, size + 2, size + 3))
        vector = _halved(builder, vector, size, 4)
        sums = [builder.extract_element(vector, I32(lane)) for lane in range(4)]
        sums = sums if first.wide else [builder.fpext(one, F64) for one in sums]
        return context.make_tuple(builder, signature.return_type, sums)

    return types.UniTuple(types.float64, 4)(first, first, first, first), codegen


@intrinsic
def widen(typingctx, values):
    """The same numbers in float64 lanes."""

    def codegen(context, builder, signature, arguments):
        if values.wide:
            return arguments[0]
        return builder.fpext(arguments[0], ir.VectorType(F64, values.count))

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
        call(
            builder,
            f"llvm.masked.store.v{values.count}f64.p0",
            ir.VoidType(),
            [
                arguments[1],
                pointer(builder, arguments[0], values.llvm),
                I32(8),
                _mask(builder, arguments[2], values.count),
            ],
        )
        return context.get_dummy_value()

    return types.none(types.int64, values, types.int64), codegen


@intrinsic
def read(typingctx, fmt, address):
    """One element as float64."""

    def codegen(context, builder, signature, arguments):
        stored = builder.load(pointer(builder, arguments[1], STORED[fmt.fmt.name]))
        if fmt.fmt.name.startswith("int"):
            return builder.sitofp(stored, F64)
        value = widened(builder, fmt.fmt, stored)
        return value if fmt.fmt.wide else builder.fpext(value, F64)

    return types.float64(fmt, types.int64), codegen


@intrinsic
def move(typingctx, fmt, source, target):
    """One element as it is."""

    def codegen(context, builder, signature, arguments):
        stored = STORED[fmt.fmt.name]
        value = builder.load(pointer(builder, arguments[1], stored))
        builder.store(value, pointer(builder, arguments[2], stored))
        return context.get_dummy_value()

    return types.none(fmt, types.int64, types.int64), codegen


@intrinsic
def write(typingctx, fmt, address, value):
    """One float64, rounded once."""

    def codegen(context, builder, signature, arguments):
        value = arguments[2]
        if fmt.fmt.itemsize == 2:
            value = narrowed(builder, fmt.fmt, to_odd(builder, value))
        elif not fmt.fmt.wide:
            value = builder.fptrunc(value, F32)
        builder.store(value, pointer(builder, arguments[1], value.type))
        return context.get_dummy_value()

    return types.none(fmt, types.int64, types.float64), codegen


@intrinsic
def float_of(typingctx, bits):
    """The float64 whose bits an integer holds."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], F64)

    return types.float64(types.int64), codegen


@intrinsic
def prefetch(typingctx, address):
    """Ask for a cache line that will be read; any address is harmless."""

    def codegen(context, builder, signature, arguments):
        line = pointer(builder, arguments[0], ir.IntType(8))
        call(builder, "llvm.prefetch.p0", ir.VoidType(), [line, I32(0), I32(2), I32(1)])
        return context.get_dummy_value()

    return types.none(types.int64), codegen


@intrinsic
def fence(typingctx):
    """Make streamed stores visible before anything that follows."""

    def codegen(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen


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
