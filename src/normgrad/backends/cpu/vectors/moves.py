"""Bits that only change their place, in LLVM instructions."""

from llvmlite import ir
from numba import types

from normgrad.backends.cpu.vectors.conversions import I16, I32, I64, pointer
from normgrad.backends.cpu.vectors.traced import intrinsic

_BITS = {2: I16, 4: I32, 8: I64}
_LINE = ir.VectorType(I64, 8)


def side_of(fmt):
    """Elements along a side of what `transpose` takes at once: at most a cache line of them."""
    return min(16, 64 // fmt.itemsize)


@intrinsic
def side(typingctx, fmt):
    """The same in a kernel."""

    def codegen(context, builder, signature, arguments):
        return I64(side_of(fmt.fmt))

    return types.int64(fmt), codegen


@intrinsic
def move_line(typingctx, source, target):
    """64 bytes."""

    def codegen(context, builder, signature, arguments):
        there, here = (pointer(builder, address, _LINE) for address in arguments)
        builder.store(builder.load(there, align=2), here, align=2)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def transpose(typingctx, fmt, source, source_step, target, target_step):
    """A square of elements: rows that lie a step apart become columns.

    Rows i and i + half of them are interleaved, and what comes of it again, until each row is a
    column: 64 instructions for 256 elements.
    """
    size = side_of(fmt.fmt)
    row = ir.VectorType(_BITS[fmt.fmt.itemsize], size)
    half = size // 2
    orders = [
        ir.Constant(
            ir.VectorType(I32, size),
            [first + lane // 2 + size * (lane % 2) for lane in range(size)],
        )
        for first in (0, half)
    ]

    def codegen(context, builder, signature, arguments):
        _, source, source_step, target, target_step = arguments

        def place(first, step, index):
            there = builder.add(first, builder.mul(step, I64(index)))
            return pointer(builder, there, row)

        rows = [
            builder.load(place(source, source_step, index), align=fmt.fmt.itemsize)
            for index in range(size)
        ]
        for _ in range(size.bit_length() - 1):
            rows = [
                builder.shuffle_vector(rows[index], rows[index + half], order)
                for index in range(half)
                for order in orders
            ]
        for index, one in enumerate(rows):
            builder.store(one, place(target, target_step, index), align=fmt.fmt.itemsize)
        return context.get_dummy_value()

    return types.none(fmt, *[types.int64] * 4), codegen
