"""Memory as `vectors` names it, in LLVM instructions. Addresses are integers, lane 0 is first."""

from dataclasses import replace

from llvmlite import ir
from numba import types

from normgrad.backends.cpu.vectors.arithmetic import lanes_of
from normgrad.backends.cpu.vectors.conversions import (
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
    rounded_once,
    spread,
    widened,
)
from normgrad.backends.cpu.vectors.traced import intrinsic

_LINE = 64


@intrinsic
def load(typingctx, fmt, address):
    """A full vector."""

    def codegen(context, builder, signature, arguments):
        stored = ir.VectorType(STORED[fmt.fmt.name], fmt.fmt.lanes)
        loaded = builder.load(pointer(builder, arguments[1], stored), align=fmt.fmt.itemsize)
        return widened(builder, fmt.fmt, loaded)

    return lanes_of(fmt.fmt)(fmt, types.int64), codegen


@intrinsic
def store(typingctx, fmt, address, values):
    """A full vector, rounded."""

    def codegen(context, builder, signature, arguments):
        narrow = narrowed(builder, fmt.fmt, arguments[2])
        target = pointer(builder, arguments[1], narrow.type)
        builder.store(narrow, target, align=fmt.fmt.itemsize)
        return context.get_dummy_value()

    return types.none(fmt, types.int64, lanes_of(fmt.fmt)), codegen


def _line(builder, values, address):
    """A store of whole cache lines past the cache."""
    written = builder.store(values, pointer(builder, address, values.type), align=_LINE)
    written.set_metadata("nontemporal", builder.module.add_metadata([I32(1)]))


def _stream(builder, fmt, address, first, second, apart):
    if not fmt.fills_line:
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

    vector = lanes_of(fmt.fmt)
    return types.none(fmt, types.int64, vector, vector), codegen


@intrinsic
def stream_line(typingctx, fmt, address, values):
    """A vector that fills a line past the cache; one that fills half: as `store`."""

    def codegen(context, builder, signature, arguments):
        narrow = narrowed(builder, fmt.fmt, arguments[2])
        if not fmt.fmt.fills_line:
            target = pointer(builder, arguments[1], narrow.type)
            builder.store(narrow, target, align=fmt.fmt.itemsize)
        else:
            _line(builder, narrow, arguments[1])
        return context.get_dummy_value()

    return types.none(fmt, types.int64, lanes_of(fmt.fmt)), codegen


@intrinsic
def load_pair(typingctx, fmt, address):
    """Two vectors of neighbouring elements, in an order that only `store_pair` undoes.

    Bfloat16 comes as even and odd elements: two instructions for 32 of them instead of four.
    """
    vector = lanes_of(fmt.fmt)

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
    vector = lanes_of(fmt.fmt)

    def codegen(context, builder, signature, arguments):
        _, address, first, second = arguments
        if not fmt.fmt.fills_line:
            both = joined(builder, fmt.fmt, first, second, apart=True)
            target = pointer(builder, address, both.type)
            builder.store(both, target, align=fmt.fmt.itemsize)
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

    vector = lanes_of(fmt.fmt)
    return types.none(fmt, types.int64, vector, vector), codegen


def _mask(builder, count, size):
    lane = ir.Constant(ir.VectorType(I32, size), list(range(size)))
    return builder.icmp_signed("<", lane, spread(builder, builder.trunc(count, I32), size))


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

    return lanes_of(fmt.fmt)(fmt, types.int64, types.int64), codegen


def _masked_store(builder, values, address, count):
    """The first ``count`` of some stored elements; memory of the others is not touched."""
    size = values.type.count
    if values.type.element == F16:
        values = builder.bitcast(values, ir.VectorType(I16, size))
    name, nbytes = {I16: ("i16", 2), F32: ("f32", 4), F64: ("f64", 8)}[values.type.element]
    call(
        builder,
        f"llvm.masked.store.v{size}{name}.p0",
        ir.VoidType(),
        [
            values,
            pointer(builder, address, values.type),
            I32(nbytes),
            _mask(builder, count, size),
        ],
    )


@intrinsic
def store_part(typingctx, fmt, address, values, count):
    """The first ``count`` lanes, rounded; memory of the others is not touched."""

    def codegen(context, builder, signature, arguments):
        _masked_store(builder, narrowed(builder, fmt.fmt, arguments[2]), *arguments[1::2])
        return context.get_dummy_value()

    return types.none(fmt, types.int64, lanes_of(fmt.fmt), types.int64), codegen


@intrinsic
def store_rounded(typingctx, fmt, address, values, count):
    """The first ``count`` lanes of a float64 vector, however long, rounded once."""

    def codegen(context, builder, signature, arguments):
        _masked_store(builder, rounded_once(builder, fmt.fmt, arguments[2]), *arguments[1::2])
        return context.get_dummy_value()

    return types.none(fmt, types.int64, values, types.int64), codegen


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
def take_byte(typingctx, address):
    """Eight bits."""

    def codegen(context, builder, signature, arguments):
        return builder.zext(builder.load(pointer(builder, arguments[0], ir.IntType(8))), I64)

    return types.int64(types.int64), codegen


@intrinsic
def put_byte(typingctx, address, bits):
    """Eight bits."""

    def codegen(context, builder, signature, arguments):
        byte = builder.trunc(arguments[1], ir.IntType(8))
        builder.store(byte, pointer(builder, arguments[0], byte.type))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def write(typingctx, fmt, address, value):
    """One float64, rounded once."""

    def codegen(context, builder, signature, arguments):
        value = rounded_once(builder, fmt.fmt, arguments[2])
        builder.store(value, pointer(builder, arguments[1], value.type))
        return context.get_dummy_value()

    return types.none(fmt, types.int64, types.float64), codegen


@intrinsic
def as_stored(typingctx, fmt, values):
    """Numbers of a vector, or a float64, rounded once as memory of a format would hold them."""
    wide = values == types.float64 or values.wide
    stored = replace(fmt.fmt, wide=wide)

    def codegen(context, builder, signature, arguments):
        value = arguments[1]
        if stored.itemsize == (8 if wide else 4):
            return value
        narrow = (rounded_once if wide else narrowed)(builder, stored, value)
        return widened(builder, stored, narrow)

    return values(fmt, values), codegen


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
