"""Strided copies with a change of type, and other small launches around the kernels."""

import triton
import triton.language as tl

from normgrad.backends.cuda.kernels.common import let_next_start


@triton.jit
def strided_copy(
    source,
    target,
    size,
    n0,
    n1,
    n2,
    n3,
    n4,
    n5,
    n6,
    n7,
    s0,
    s1,
    s2,
    s3,
    s4,
    s5,
    s6,
    s7,
    t0,
    t1,
    t2,
    t3,
    t4,
    t5,
    t6,
    t7,
    BLOCK: tl.constexpr,
):
    """Element by element in row-major order of (n0 .. n7), the last axis fastest."""
    rest = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = rest < size
    read = rest * 0
    write = rest * 0
    sizes = (n7, n6, n5, n4, n3, n2, n1, n0)
    reads = (s7, s6, s5, s4, s3, s2, s1, s0)
    writes = (t7, t6, t5, t4, t3, t2, t1, t0)
    for axis in tl.static_range(8):
        position = rest % sizes[axis]
        rest = rest // sizes[axis]
        read += position * reads[axis]
        write += position * writes[axis]
    values = tl.load(source + read, mask=mask)
    tl.store(target + write, values.to(target.dtype.element_ty), mask=mask)


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
