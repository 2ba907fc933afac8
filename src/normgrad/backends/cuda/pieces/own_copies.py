"""Asynchronous copies to places in shared memory that only the thread that asked reads again.

Nobody waits for anybody: a thread knows when its own copies have come. The compiler does not see
that, and puts two barriers of the block around each tile: hence PTX, in the *ring* (see `bulk`).
Whole slabs in several rounds have a barrier for each held tile all the same: warps that drift apart
do not ask for neighbours together (batch norm 131072x256 in bfloat16 takes 81 us without any, 74
with two, both with older sums). Streams and single rounds are 2 to 14 % faster without.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.bulk import read, ring_at, write_vector
from normgrad.backends.cuda.pieces.common import INTERPRETED
from normgrad.backends.cuda.pieces.gluon import gl, jit


@triton.constexpr_function
def _copying(x, dy, each, behind):
    """PTX that copies some elements of x and of dy; those of 16 bytes go past the L1 cache."""
    lines = []
    for number, bits in enumerate((x, dy)):
        count = each * bits // 8
        level = "cg" if count == 16 else "ca"
        size = "$5" if x == dy else f"size{number}"
        lines.append("" if x == dy else f"selp.b32 {size}, {count}, 0, there;")
        at = f"[$2 + {behind}]" if number else "[$1]"
        lines.append(f"cp.async.{level}.shared.global {at}, [${3 + number}], {count}, {size};")
    if x != dy:
        lines = [".reg .pred there; .reg .b32 size0, size1; setp.ne.s32 there, $5, 0;", *lines]
    return "{ " + " ".join(lines) + " mov.u32 $0, 0; }"


@triton.jit
def copy_both(to_x, to_dy, x, dy, mask, EACH: tl.constexpr, BEHIND: tl.constexpr):
    """Start copying EACH elements from every pointer, or zeros: 4, 8 or 16 bytes.

    Those of dy to places so many bytes BEHIND.
    """
    X: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    DY: tl.constexpr = dy.dtype.element_ty.primitive_bitwidth
    tl.inline_asm_elementwise(
        _copying(X, DY, EACH, BEHIND),
        "=&r,r,r,l,l,r",
        [to_x, to_dy, x.to(tl.uint64), dy.to(tl.uint64), tl.where(mask, EACH * X // 8, 0)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def copy_one(to, x, mask, EACH: tl.constexpr):
    """The same of x alone."""
    BYTES: tl.constexpr = EACH * x.dtype.element_ty.primitive_bitwidth // 8
    LEVEL: tl.constexpr = "cg" if BYTES == 16 else "ca"
    tl.inline_asm_elementwise(
        f"cp.async.{LEVEL}.shared.global [$1], [$2], {BYTES}, $3; mov.u32 $0, 0;",
        "=&r,r,l,r",
        [to, x.to(tl.uint64), tl.where(mask, BYTES, 0)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def fetch_both(x, dy, mask):
    """Have the L2 cache fetch what lies at these pointers."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred there; setp.ne.s32 there, $3, 0; mov.u32 $0, 0; "
            "@there prefetch.global.L2 [$1]; @there prefetch.global.L2 [$2]; }",
            "=&r,l,l,r",
            [x.to(tl.uint64), dy.to(tl.uint64), mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def fetch_one(pointer, mask):
    """The same of one pointer."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred there; setp.ne.s32 there, $2, 0; mov.u32 $0, 0; "
            "@there prefetch.global.L2 [$1]; }",
            "=&r,l,r",
            [pointer.to(tl.uint64), mask.to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def commit(like):
    """What was asked for since the last time is one group."""
    tl.inline_asm_elementwise(
        "cp.async.commit_group; mov.u32 $0, $1;",
        "=r,r",
        [like],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def wait(like, OUTSTANDING: tl.constexpr):
    """All groups of this thread have come but for the last so many."""
    tl.inline_asm_elementwise(
        f"cp.async.wait_group {OUTSTANDING}; mov.u32 $0, $1;",
        "=r,r",
        [like],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.constexpr_function
def _bits(data):
    """Of an element, where there are any."""
    return 0 if data is None else data.dtype.element_ty.primitive_bitwidth


@jit
def own_places(
    x,
    dy,
    zero,
    tile: tl.constexpr,
    SLOTS: tl.constexpr,
    VECTOR: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    EACH: tl.constexpr,  # elements of a copy
    LANES: tl.constexpr,
    DOWN: tl.constexpr,
    WARPS: tl.constexpr,
    MORE: tl.constexpr = 0,  # bytes behind these
):
    """What `ask_own` and `take_own` need after the tensors: a ring where threads have places.

    The ring, rows and columns of a thread's copies, places of its copies and vectors.
    """
    # A thread's part of a tile is that of ``tile``, in copies.
    asks: tl.constexpr = gl.BlockedLayout(
        [1, VECTOR // EACH], [32 // LANES, LANES], [DOWN, WARPS // DOWN], [1, 0]
    )
    BITS: tl.constexpr = x.dtype.element_ty.primitive_bitwidth + _bits(dy)
    base = ring_at(zero, SLOTS * ROWS * COLS * BITS // 8 + MORE)
    if INTERPRETED:  # what is read without having been copied shows
        start_ring(base)
    local = gl.arange(0, ROWS, gl.SliceLayout(1, asks))
    cols = gl.arange(0, COLS // EACH, gl.SliceLayout(0, asks)) * EACH
    to = local[:, None] * COLS + cols[None, :]
    own = gl.arange(0, ROWS, gl.SliceLayout(1, tile))
    vectors = gl.arange(0, COLS, gl.SliceLayout(0, tile)) // VECTOR * VECTOR
    return base, local, cols, to, own[:, None] * COLS + vectors[None, :]


@jit
def _in_slot(data, slot, offsets, SIZE: tl.constexpr):
    """Where elements of these offsets in a tile lie, of x; and of dy, but for the tile of x."""
    x, dy, base = data[0], data[1], data[2]
    X: tl.constexpr = x.dtype.element_ty.primitive_bitwidth // 8
    DY: tl.constexpr = _bits(dy) // 8
    start = base + slot * (SIZE * (X + DY))
    at_x = start + offsets * X
    at_dy = at_x
    if X != DY and DY > 0:
        at_dy = start + offsets * DY
    return at_x, at_dy


@jit
def ask_own(data, slot, x, dy, mask, SIZE: tl.constexpr, EACH: tl.constexpr):
    """Ask for the elements of a tile of SIZE at these pointers, in the group to come."""
    BEHIND: tl.constexpr = SIZE * x.dtype.element_ty.primitive_bitwidth // 8
    to_x, to_dy = _in_slot(data, slot, data[5], SIZE)
    if dy is None:
        copy_one(to_x, x, mask, EACH)
    else:
        copy_both(to_x, to_dy, x, dy, mask, EACH, BEHIND)


@jit
def put_own(data, slot, tile_dy, VECTOR: tl.constexpr, SIZE: tl.constexpr):
    """Another tile in the place of dy."""
    BEHIND: tl.constexpr = SIZE * data[0].dtype.element_ty.primitive_bitwidth // 8
    _, at_dy = _in_slot(data, slot, data[6], SIZE)
    write_vector(at_dy, tile_dy, VECTOR, BEHIND)


@jit
def take_own(data, slot, VECTOR: tl.constexpr, SIZE: tl.constexpr):
    """A tile in registers: dy, x; or x twice."""
    x, dy = data[0], data[1]
    BEHIND: tl.constexpr = SIZE * x.dtype.element_ty.primitive_bitwidth // 8
    at_x, at_dy = _in_slot(data, slot, data[6], SIZE)
    if dy is None:
        tile_x = read(at_x, x, VECTOR)
        tile_dy = tile_x
    else:
        tile_dy = read(at_dy, dy, VECTOR, BEHIND)
        tile_x = read(at_x, x, VECTOR)
    return tile_dy, tile_x


if INTERPRETED:
    from normgrad.backends.cuda.pieces import bulk_stand_in

    commit, wait, copy_both = bulk_stand_in.commit, bulk_stand_in.wait, bulk_stand_in.copy_both
    start_ring, copy_one = bulk_stand_in.start_ring, bulk_stand_in.copy_one
