"""Sets of rows that come by bulk copies, and the statistics that come before them."""

import triton.language as tl

from normgrad.backends.cuda.pieces.bulk import copy_run, copy_runs, write, write_some
from normgrad.backends.cuda.pieces.common import load_or
from normgrad.backends.cuda.pieces.gluon import gl, jit


@jit
def shift_of(row, size):
    """Bytes between the last multiple of 16 and where a row of so many bytes starts."""
    return (row & 15) * (size & 15) & 15


@jit
def _bring_end(data, to, size, rows, length, thread, SLOT: tl.constexpr):
    """The last ``size`` bytes of dy and x, fewer than 16, element by element."""
    dy, x = data
    base, offset = to
    ITEM: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    place = thread * ITEM
    there = place < size
    at = rows.to(tl.int64) * length - size // ITEM + thread
    address = gl.where(there, base + offset + place, -1)
    write_some(address, tl.load(x + at, mask=there, other=0.0))
    if dy is not None:
        address = gl.where(there, address + SLOT // 2, -1)
        write_some(address, tl.load(dy + at, mask=there, other=0.0))


@jit
def ask_rows(
    data,
    ring,  # where it starts, and the policy
    slot,
    first,
    sizes,  # rows in all, those of a set, columns
    thread,
    PACKED: tl.constexpr,
    SHIFTED: tl.constexpr,
    RAGGED: tl.constexpr,
    HEAD: tl.constexpr,
    SLOT: tl.constexpr,
    ALIGN: tl.constexpr,
):
    """Start copying the rows from ``first`` on: the first thread, or one for each row.

    Copies start and end at multiples of 16 bytes: SHIFTED ones bring some of the rows around too.
    Behind the last of RAGGED data nothing may be read, so its end comes by plain loads.
    """
    dy, x, dy_row, x_row = data
    rows, height, length = sizes
    base, policy = ring
    count = tl.minimum(tl.maximum(rows - first, 0), height)
    leads = (thread == 0) & (count > 0)
    x_bytes = length * (x.dtype.element_ty.primitive_bitwidth // 8)
    dy_bytes = 0
    if dy is not None:
        dy_bytes = length * (dy.dtype.element_ty.primitive_bitwidth // 8)
    all_x, all_dy = count * x_bytes, count * dy_bytes
    before = first * 0
    if SHIFTED or RAGGED:  # x and dy have the same type
        before = shift_of(first, x_bytes) if SHIFTED else before
        end = before + all_x
        all_x = (end + 15) & -16
        if RAGGED:  # noqa: SIM102
            if (first + count == rows) & (count > 0):
                all_x = end & -16
                to_end = (base, slot * SLOT + HEAD + all_x)
                _bring_end((dy, x), to_end, end - all_x, rows, length, thread, SLOT)
        all_dy = all_x if dy is not None else 0
    promise = tl.where(leads, all_x + all_dy, -1)
    to = base + (HEAD + slot * SLOT)
    to_dy = to + SLOT // 2
    zero = thread * 0
    row = first + zero
    copies = leads & (all_x > 0)
    sizes = (zero + all_x, zero + all_dy)
    if not PACKED:
        row = first + thread
        copies = thread < count
        to, to_dy = to + thread * x_bytes, to_dy + thread * dy_bytes
        sizes = (zero + x_bytes, zero + dy_bytes)
    far = row.to(tl.int64)
    from_x = tl.where(copies, (x + far * x_row * ALIGN).to(tl.uint64) - before, 0)
    if dy is None:
        copy_run(base + slot * 8, promise, to, from_x, sizes[0], policy)
    else:
        from_dy = (dy + far * dy_row * ALIGN).to(tl.uint64) - before
        copy_runs(base + slot * 8, promise, (to, to_dy), (from_x, from_dy), sizes, policy)


@jit
def note_statistics(
    mean,
    rstd,
    first,
    stride,
    rows,
    at,  # where the ring has room for them
    thread,
    ROWS: tl.constexpr,
    STATISTICS_ROWS: tl.constexpr,
):
    """Mean and rstd of this block's next STATISTICS_ROWS rows, from ``first`` on; 0 for no row."""
    tl.debug_barrier()  # all have read those before
    left = tl.cdiv(rows - first, stride) * ROWS
    for done in tl.range(0, tl.minimum(left, STATISTICS_ROWS), thread.shape[0]):
        number = done + thread
        row = first + number // ROWS * stride + number % ROWS
        ok = row < rows
        write(at + number * 4, load_or(mean, row, ok, 0.0, tl.float32))
        write(at + (number + STATISTICS_ROWS) * 4, load_or(rstd, row, ok, 0.0, tl.float32))
    tl.debug_barrier()
