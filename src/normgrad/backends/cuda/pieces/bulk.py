"""Bulk copies: a thread asks for a run of bytes, a barrier in shared memory counts what has come.

One instruction copies kilobytes, past the registers and without an address for each thread, and
it may say what the L2 cache is to evict last, as asynchronous copies of 16 bytes may not. On an
H200 three streams read 98 % of the memory-bandwidth limit so, 94 with copies of 16 bytes.

Gluon has no name for them. They are PTX, and so is the shared memory that they fill: the *ring*,
`Launch.ring` bytes behind what the compiler has of its own. Its first bytes are the barriers.
"""

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import INTERPRETED


@triton.jit
def ring_at(offset, BYTES: tl.constexpr):
    """Addresses in a ring of so many bytes. The kernel must have other shared memory too."""
    return tl.inline_asm_elementwise(
        "{ .reg .u32 size; mov.u32 size, %dynamic_smem_size; mov.u32 $0, global_smem; "
        "add.u32 $0, $0, size; add.u32 $0, $0, $1; }",
        "=&r,r",
        [offset - BYTES],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def keep_last(thread):
    """The policy of what the L2 cache is to evict last: 1 to 2 points, as in `apply.load_once`."""
    return tl.inline_asm_elementwise(
        "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;",
        "=l,r",
        [thread],
        dtype=tl.uint64,
        is_pure=False,
        pack=1,
    )


@triton.constexpr_function
def _starting(count):
    lines = ["{", ".reg .pred first;", "mov.u32 $0, %tid.x;", "setp.eq.u32 first, $0, 0;"]
    init = "@first mbarrier.init.shared::cta.b64"
    lines += [f"{init} [$1 + {8 * number}], 1;" for number in range(count)]
    return "\n".join([*lines, "@first fence.mbarrier_init.release.cluster;", "}"])


@triton.jit
def start_barriers(base, COUNT: tl.constexpr):
    """COUNT barriers at the start of the ring; one thread arrives at each for a turn of it."""
    tl.inline_asm_elementwise(
        _starting(COUNT), "=&r,r", [base], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.debug_barrier()


@triton.jit
def clear_place(address):
    """16 bytes of the ring become zeros."""
    tl.inline_asm_elementwise(
        "{ .reg .pred first; mov.u32 $0, %tid.x; setp.eq.u32 first, $0, 0; "
        "@first st.shared.v4.b32 [$1], {0, 0, 0, 0}; }",
        "=&r,r",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()


@triton.jit
def is_warp(number, like):
    """Whether this is the warp of that number. What depends on it must not need other warps."""
    mine = tl.inline_asm_elementwise(
        "{ .reg .u32 thread; mov.u32 thread, %tid.x; shr.u32 $0, thread, 5; }",
        "=r,r",
        [like],
        dtype=tl.int32,
        is_pure=True,
        pack=1,
    )
    return mine == number


@triton.jit
def lane_of(thread):
    """A thread's number in its warp."""
    return thread % 32


@triton.jit
def await_turn(barrier, turn):
    """All that was promised for this turn of a barrier, even or odd, has come.

    The threads of a warp go on together: else the compiler has two ways for each exchange between
    them.
    """
    tl.inline_asm_elementwise(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [$1], $2; "
        "@!done bra again; bar.warp.sync 0xFFFFFFFF; mov.u32 $0, 0; }",
        "=&r,r,r",
        [barrier, turn],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def all_read(like):
    """Whatever the threads of a block asked to read of the ring has been read: it may be filled.

    A barrier alone says so to threads; a bulk copy is none, and could overtake a read.
    """
    tl.inline_asm_elementwise(
        "fence.proxy.async.shared::cta; mov.u32 $0, $1;",
        "=r,r",
        [like],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.debug_barrier()


@triton.jit
def copy_runs(barrier, promise, to, come, sizes, policy):
    """Copy a run of x and one of dy for each thread that has an address of the first.

    A thread whose ``promise`` is not negative arrives at the barrier, with so many bytes to come.
    """
    to_x, to_dy = to
    x, dy = come
    x_bytes, dy_bytes = sizes
    copy: tl.constexpr = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    )
    tl.inline_asm_elementwise(
        "{ .reg .pred arrives, copies; mov.u32 $0, 0;"
        "setp.ge.s32 arrives, $2, 0; setp.ne.u64 copies, $5, 0;"
        "@arrives mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;"
        f"@copies {copy} [$3], [$5], $7, [$1], $9;"
        f"@copies {copy} [$4], [$6], $8, [$1], $9; bar.warp.sync 0xFFFFFFFF; }}",
        "=&r,r,r,r,r,l,l,r,r,l",
        [barrier, promise, to_x, to_dy, x, dy, x_bytes, dy_bytes, policy],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def copy_run(barrier, promise, to, come, size, policy):
    """The same of x alone."""
    copy: tl.constexpr = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
    )
    tl.inline_asm_elementwise(
        "{ .reg .pred arrives, copies; mov.u32 $0, 0;"
        "setp.ge.s32 arrives, $2, 0; setp.ne.u64 copies, $4, 0;"
        "@arrives mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], $2;"
        f"@copies {copy} [$3], [$4], $5, [$1], $6; bar.warp.sync 0xFFFFFFFF; }}",
        "=&r,r,r,r,l,r,l",
        [barrier, promise, to, come, size, policy],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def write(address, number):
    """A float32 number at each address."""
    tl.inline_asm_elementwise(
        "st.shared.b32 [$1], $2; mov.u32 $0, 0;",
        "=&r,r,r",
        [address, number],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def write_some(address, element):
    """An element at each address that is not negative."""
    HALF: tl.constexpr = element.dtype.primitive_bitwidth == 16
    tl.inline_asm_elementwise(
        "{ .reg .pred there; setp.ge.s32 there, $1, 0; @there st.shared.b"
        + ("16" if HALF else "32")
        + " [$1], $2; mov.u32 $0, 0; }",
        "=&r,r," + ("h" if HALF else "r"),
        [address, element],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.constexpr_function
def _reading(words, behind=0):
    if words < 2:
        return f"ld.shared.b{32 if words else 16} $0, [$1 + {behind}];"
    outputs = ", ".join(f"${number}" for number in range(words))
    return f"ld.shared.v{words}.b32 {{{outputs}}}, [${words} + {behind}];"


@triton.constexpr_function
def _registers(words, vector):
    return ",".join((["=r"] * words or ["=h"]) + ["r"] * vector)


@triton.jit
def read(address, like, VECTOR: tl.constexpr, BEHIND: tl.constexpr = 0):
    """Elements of the ring: VECTOR neighbours have the same address, BEHIND before the first.

    2, 4, 8 or 16 bytes; 8 are better than 16 for 8192x8192 in bfloat16 (105 us instead of 107).
    """
    WORDS: tl.constexpr = VECTOR * like.dtype.element_ty.primitive_bitwidth // 32
    return tl.inline_asm_elementwise(
        _reading(WORDS, BEHIND),
        _registers(WORDS, VECTOR),
        [address],
        dtype=like.dtype.element_ty,
        is_pure=False,
        pack=VECTOR,
    )


@triton.constexpr_function
def _writing(count, item, behind):
    """PTX that stores a vector; its outputs are bytes that nobody wants: there must be some."""
    words, outs = count * item // 4, count // 4
    values = ", ".join(f"${outs + count + word}" for word in range(words))
    width = f"v{words}.b32" if words > 1 else "b32"
    lines = [f"mov.b32 ${out}, 0;" for out in range(outs)]
    lines.append(f"st.shared.{width} [${outs} + {behind}], {{{values}}};")
    return " ".join(lines)


@triton.constexpr_function
def _written(count, item):
    return ",".join(["=&r"] * (count // 4) + ["r"] * (count + count * item // 4))


@triton.jit
def write_vector(address, values, VECTOR: tl.constexpr, BEHIND: tl.constexpr = 0):
    """Elements to the ring, as `read` has them from it."""
    ITEM: tl.constexpr = values.dtype.primitive_bitwidth // 8
    tl.inline_asm_elementwise(
        _writing(VECTOR, ITEM, BEHIND),
        _written(VECTOR, ITEM),
        [address, values],
        dtype=tl.int8,
        is_pure=False,
        pack=VECTOR,
    )


@triton.jit
def read_number(address):
    """The float32 number at each address."""
    return tl.inline_asm_elementwise(
        _reading(1), "=r,r", [address], dtype=tl.float32, is_pure=False, pack=1
    )


if INTERPRETED:
    from normgrad.backends.cuda.pieces import bulk_stand_in

    await_turn, read, ring_at = bulk_stand_in.await_turn, bulk_stand_in.read, bulk_stand_in.ring_at
    copy_runs, write = bulk_stand_in.copy_runs, bulk_stand_in.write
    copy_run = bulk_stand_in.copy_run
    write_some, write_vector = bulk_stand_in.write_some, bulk_stand_in.write_vector
    read_number = bulk_stand_in.read_number
    keep_last, start_barriers = bulk_stand_in.keep_last, bulk_stand_in.start_barriers
    clear_place, is_warp = bulk_stand_in.clear_place, bulk_stand_in.is_warp
    all_read, lane_of = bulk_stand_in.all_read, bulk_stand_in.lane_of
