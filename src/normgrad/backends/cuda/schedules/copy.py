"""Strided copies with a change of type, and other small launches around the kernels."""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import let_next_start, load_rstd


@triton.jit
def flat_copy(source, target, count, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Elements that follow each other.

    134 MB in 16 bits from an odd address take 73 us on an H200, row by row (below) 199.
    """
    first = tl.program_id(0).to(tl.int64 if WIDE else tl.int32) * BLOCK
    at = first + tl.arange(0, BLOCK)
    if first + BLOCK <= count:  # a mask would make wide accesses narrow: 199 us again
        tl.store(target + at, tl.load(source + at).to(target.dtype.element_ty))
    else:
        values = tl.load(source + at, mask=at < count)
        tl.store(target + at, values.to(target.dtype.element_ty), mask=at < count)


@triton.jit
def strided_copy(
    source,
    target,
    rows,  # all but the last axis
    blocks,  # of columns
    cols,
    col_read,
    col_write,
    n0,
    n1,
    n2,
    n3,
    n4,
    n5,
    n6,
    s0,
    s1,
    s2,
    s3,
    s4,
    s5,
    s6,
    t0,
    t1,
    t2,
    t3,
    t4,
    t5,
    t6,
    AXES: tl.constexpr,  # of the rows: the last of (n0 .. n6), with their strides
    UNIT_READ: tl.constexpr,  # columns lie side by side
    UNIT_WRITE: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Row by row; where a row starts is worked out once for all its columns."""
    index: tl.constexpr = tl.int64 if WIDE else tl.int32
    program = tl.program_id(0)
    rest = (program // blocks).to(index) * ROWS + tl.arange(0, ROWS)
    col = (program % blocks).to(index) * COLS + tl.arange(0, COLS)
    mask = (rest < rows)[:, None] & (col < cols)[None, :]
    sizes = (n6, n5, n4, n3, n2, n1, n0)
    reads = (s6, s5, s4, s3, s2, s1, s0)
    writes = (t6, t5, t4, t3, t2, t1, t0)
    read = tl.zeros([ROWS], tl.int64)
    write = tl.zeros([ROWS], tl.int64)
    for axis in tl.static_range(AXES):
        position = (rest % sizes[axis]).to(tl.int64)
        rest = rest // sizes[axis]
        read += position * reads[axis]
        write += position * writes[axis]
    from_col = col if UNIT_READ else col.to(tl.int64) * col_read
    to_col = col if UNIT_WRITE else col.to(tl.int64) * col_write
    values = tl.load(source + read[:, None] + from_col[None, :], mask=mask)
    to = target + write[:, None] + to_col[None, :]
    tl.store(to, values.to(target.dtype.element_ty), mask=mask)


@triton.jit
def transposed_copy(
    source,
    target,
    across,  # elements of one axis
    along,  # of the other
    blocks_across,
    blocks_along,
    read,  # from element to element of the axis that is not dense in the source
    write,  # the same in the target
    n0,
    n1,
    n2,
    n3,
    n4,
    n5,
    s0,
    s1,
    s2,
    s3,
    s4,
    s5,
    t0,
    t1,
    t2,
    t3,
    t4,
    t5,
    AXES: tl.constexpr,  # of the others: the last of (n0 .. n5), with their strides
    INWARD: tl.constexpr,  # across is dense in the source, and along in the target; else reversed
    ALIGN: tl.constexpr,  # divides all strides, which come divided by it
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Two axes, of which one is dense in the source and the other in the target: by tiles.

    Triton lays a tile out as the loads want it, and again as the stores do.
    """
    program = tl.program_id(0).to(tl.int64 if WIDE else tl.int32)
    # Neighbours read what lies side by side.
    if INWARD:
        first_across = program % blocks_across * TILE
        first_along = program // blocks_across % blocks_along * TILE
    else:
        first_along = program % blocks_along * TILE
        first_across = program // blocks_along % blocks_across * TILE
    rest = program // blocks_across // blocks_along
    sizes = (n5, n4, n3, n2, n1, n0)
    reads = (s5, s4, s3, s2, s1, s0)
    writes = (t5, t4, t3, t2, t1, t0)
    from_here = tl.zeros([], tl.int64)
    to_here = tl.zeros([], tl.int64)
    for axis in tl.static_range(AXES):
        position = (rest % sizes[axis]).to(tl.int64)
        rest = rest // sizes[axis]
        from_here += position * reads[axis]
        to_here += position * writes[axis]
    source += from_here * ALIGN
    target += to_here * ALIGN
    aside = first_across.to(tl.int64) + tl.arange(0, TILE)
    forth = first_along.to(tl.int64) + tl.arange(0, TILE)
    if INWARD:
        from_at = aside[:, None] + forth[None, :] * (read.to(tl.int64) * ALIGN)
        to_at = aside[:, None] * (write.to(tl.int64) * ALIGN) + forth[None, :]
    else:
        from_at = aside[:, None] * (read.to(tl.int64) * ALIGN) + forth[None, :]
        to_at = aside[:, None] + forth[None, :] * (write.to(tl.int64) * ALIGN)
    if (first_across + TILE <= across) & (first_along + TILE <= along):
        tl.store(target + to_at, tl.load(source + from_at).to(target.dtype.element_ty))
    else:  # a mask would make wide accesses narrow
        mask = (aside < across)[:, None] & (forth < along)[None, :]
        values = tl.load(source + from_at, mask=mask)
        tl.store(target + to_at, values.to(target.dtype.element_ty), mask=mask)


@triton.jit
def add_counts(counter, total, size, BLOCK: tl.constexpr):
    """The sum of a long vector of counts, exactly, as one float64."""
    position = tl.arange(0, BLOCK)
    found = tl.zeros([BLOCK], tl.float64)
    for first in range(0, size, BLOCK):
        at = first + position
        found += tl.load(counter + at, mask=at < size, other=0).to(tl.float64)
    tl.store(total, tl.sum(found, 0))


@triton.jit
def clear_words(words, count, BLOCK: tl.constexpr):
    """Set all bits: no block has published its sums yet."""
    let_next_start()
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(words + at, tl.full([BLOCK], 0xFFFFFFFFFFFFFFFF, tl.uint64), mask=at < count)


@triton.jit
def deviations(source, target, count, eps, COMPUTE: tl.constexpr, BLOCK: tl.constexpr):
    """Reciprocal deviations of variances."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < count
    tl.store(target + at, load_rstd(source, at, ok, eps, True, COMPUTE), mask=ok)
