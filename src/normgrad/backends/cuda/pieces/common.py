"""What the kernels share: pairs of sums, words that blocks exchange, operands that may be absent.

Blocks exchange a pair of float32 sums as one 64-bit word. A word is written whole, so it needs no
fence and no counter: it is there as soon as its bits are not all set (the launch sets them all
before; arithmetic never makes that NaN).
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from normgrad.backends.cuda.run.launch import interpreting

# The interpreter runs blocks one after another and knows neither PTX nor sums of pairs.
INTERPRETED = tl.constexpr(interpreting())


@triton.jit
def add_pairs(first, second, other_first, other_second):
    """The combine step of a sum of pairs."""
    return first + other_first, second + other_second


@triton.jit
def sum_pairs(first, second, axis: tl.constexpr):
    """Two sums in one reduction: half the barriers of two."""
    if INTERPRETED:
        sums = tl.sum(first, axis), tl.sum(second, axis)
    else:
        sums = tl.reduce((first, second), axis, add_pairs)
    return sums


@triton.jit
def pack_pair(first, second):
    """Two float32 numbers in one word."""
    low = first.to(tl.uint32, bitcast=True).to(tl.uint64)
    high = second.to(tl.uint32, bitcast=True).to(tl.uint64)
    return (high << 32) | low


@triton.jit
def unpack_pair(word):
    """The two numbers of a word."""
    low = (word & 0xFFFFFFFF).to(tl.uint32).to(tl.float32, bitcast=True)
    high = (word >> 32).to(tl.uint32).to(tl.float32, bitcast=True)
    return low, high


@triton.jit
def publish(pointers, words, mask):
    """Make words visible to the other blocks."""
    tl.atomic_xchg(pointers, words, mask=mask, sem="relaxed")


@triton.constexpr_function
def _polling(count, seen):
    """PTX that reads ``count`` words until all are there; at the address 0 lies a 0.

    Where they were looked at before (``seen``), it starts with what was found.
    """
    lines = ["{", ".reg .pred missing;", f".reg .pred wanted<{count}>;"]
    test = []
    for word in range(count):
        before = f"${2 * count + word}" if seen else "0"
        lines += [f"mov.u64 ${word}, {before};", f"setp.ne.u64 wanted{word}, ${count + word}, 0;"]
        either = (".or", ", missing") if word else ("", "")
        test.append(f"setp.eq{either[0]}.u64 missing, ${word}, 0xFFFFFFFFFFFFFFFF{either[1]};")
    lines += [*test, "@!missing bra done;"] if seen else []
    lines.append("again:")
    for word in range(count):
        lines.append(f"@wanted{word} ld.relaxed.gpu.global.u64 ${word}, [${count + word}];")
    return "\n".join([*lines, *test, "@missing bra again;", "done:", "}"])


@triton.constexpr_function
def _operands(count, seen):
    return ",".join(["=&l"] * count + ["l"] * (2 * count if seen else count))


@triton.jit
def await_words(pointers, wanted, EACH: tl.constexpr, seen=None):
    """The words at ``pointers`` once each has been published; 0 where not wanted.

    A thread polls its EACH words together: one after another, each would cost a trip to the L2
    cache. A word is polled by one thread (by every warp of 500 blocks: 5 times slower). In the
    interpreter the words are there already. ``seen`` is what a look at them found.
    """
    if INTERPRETED:
        words = tl.load(pointers, mask=wanted, other=0)
    else:
        addresses = tl.where(wanted, pointers.to(tl.uint64), 0)
        words = tl.inline_asm_elementwise(
            _polling(EACH, seen is not None),
            _operands(EACH, seen is not None),
            [addresses] if seen is None else [addresses, seen],
            dtype=tl.uint64,
            is_pure=False,
            pack=EACH,
        )
    return words


@triton.jit
def peek_words(pointers, wanted):
    """The words as they are now, without waiting; 0 where not wanted."""
    if INTERPRETED:
        words = tl.load(pointers, mask=wanted, other=0)
    else:
        words = tl.inline_asm_elementwise(
            "{ .reg .pred wanted; mov.u64 $0, 0; setp.ne.u64 wanted, $1, 0; "
            "@wanted ld.relaxed.gpu.global.u64 $0, [$1]; }",
            "=&l,l",
            [tl.where(wanted, pointers.to(tl.uint64), 0)],
            dtype=tl.uint64,
            is_pure=False,
            pack=1,
        )
    return words


@triton.jit
def count_arrival(arrivals):
    """Count this block, and say how many came before.

    A block that finds all of them counted sees what each stored before. The count starts with all
    bits set, as words do. In the interpreter blocks come in order.
    """
    if INTERPRETED:
        before = tl.program_id(0)
    else:
        tl.debug_barrier()
        before = (tl.atomic_add(arrivals, 1, sem="release") + 1).to(tl.int32)
    return before


@triton.jit
def spread_over_teams(counters, team, teams, SM_COUNTERS: tl.constexpr):
    """This block's number among the members of all teams: one team after another.

    Blocks of one multiprocessor go to different teams, so that one works while another waits.
    ``counters`` count the members of each team, then the blocks of each of SM_COUNTERS
    multiprocessors. A block that finds a team full goes on to the next: teams have room for as many
    as there are. What is computed depends on the number alone, not on which block has it.
    """
    if INTERPRETED:
        number = tl.program_id(0)
    else:
        place = tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r,r", [teams], dtype=tl.int32, is_pure=False, pack=1
        )
        turn = (tl.atomic_add(counters + teams + place % SM_COUNTERS, 1, sem="relaxed") + 1).to(
            tl.int32
        )
        number = teams * 0 - 1
        for attempt in range(teams):
            if number < 0:
                which = (turn + attempt) % teams
                before = (tl.atomic_add(counters + which, 1, sem="relaxed") + 1).to(tl.int32)
                if before < team:
                    number = which * team + before
    return number


@triton.jit
def await_all(arrivals, thread):
    """All blocks of the launch have arrived."""
    if not INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred missing; .reg .pred first; .reg .u64 count; mov.u32 $0, 0; "
            "setp.ne.u64 first, $1, 0; again: mov.u64 count, $2; "
            "@first ld.acquire.gpu.global.u64 count, [$1]; "
            "setp.ne.u64 missing, count, $2; @missing bra again; }",
            "=&r,l,l",
            [
                tl.where(thread == 0, arrivals.to(tl.uint64), 0),
                (tl.num_programs(0) - 1).to(tl.uint64) + thread.to(tl.uint64) * 0,
            ],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        tl.debug_barrier()


@triton.jit
def let_next_start():
    """The next launch may start, if it was planned to: it waits where it needs what we write."""
    if not INTERPRETED:
        gdc_launch_dependents()


@triton.jit
def await_step_before(EARLY: tl.constexpr):
    """The launch before is done and what it wrote is visible."""
    if EARLY and not INTERPRETED:
        gdc_wait()


@triton.jit
def clear_previous(previous_words, previous_count, thread, THREADS: tl.constexpr):
    """Clear the words that the call before this one used, for the next: see `exchange_areas`."""
    if previous_words is not None:
        for first in tl.range(
            tl.program_id(0) * THREADS, previous_count, tl.num_programs(0) * THREADS
        ):
            at = first + thread
            tl.store(previous_words + at, (thread * 0 - 1).to(tl.uint64), mask=at < previous_count)


@triton.jit
def widen(tile, COMPUTE: tl.constexpr = tl.float32):
    """The same in the compute type; bfloat16 by one instruction, where the compiler takes two.

    It takes pairs, so a tile of a single element is left to the compiler.
    """
    pairs: tl.constexpr = tile.dtype == tl.bfloat16 and tl.float32 == COMPUTE and tile.numel > 1
    if not INTERPRETED and pairs:
        wide = tl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;",
            "=r,=r,r",
            [tile],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    else:
        wide = tile.to(COMPUTE)
    return wide


@triton.constexpr_function
def _widening(dtype):
    """PTX that widens two packed numbers; $3 is 0, but the compiler does not know."""
    if dtype == tl.bfloat16:  # bytes of the second operand, the 0, below those of the number
        return "prmt.b32 $0, $2, $3, 0x1044; prmt.b32 $1, $2, $3, 0x3244;"
    return (
        "{ .reg .b32 both; .reg .b16 low, high; xor.b32 both, $2, $3; "
        "mov.b32 {low, high}, both; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }"
    )


@triton.jit
def rewiden_opaquely(tile, runtime_zero):
    """Widen a tile of registers a second time; ``runtime_zero`` is 0, which no compiler knows.

    The compiler must not see that the numbers are those of the first time: it would keep them
    wide, in twice the registers (264 bytes of spills a thread).
    """
    if INTERPRETED or tile.dtype == tl.float32:
        wide = tile.to(tl.float32)
    else:
        wide = tl.inline_asm_elementwise(
            _widening(tile.dtype),
            "=r,=r,r,r,r",
            [tile, runtime_zero.to(tl.uint32)],
            dtype=tl.float32,
            is_pure=True,
            pack=2,
        )
    return wide


@triton.jit
def opaque_copy(number):
    """The same number by a move that the compiler can neither hoist nor sink: it saves spills.

    Offsets of unrolled tiles are equal in each round, and hoisted they are spilled. Sums of
    unrolled tiles would sink to the end, and all that they are made of be spilled until then.
    """
    if INTERPRETED:
        same = number
    else:
        same = tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [number], dtype=number.dtype, is_pure=False, pack=1
        )
    return same


@triton.jit
def divide_by_magic(number, magic):
    """``number // divisor`` for the ``magic`` that the plan made of the divisor."""
    by = tl.umulhi(number.to(tl.uint32), magic.to(tl.uint32, bitcast=True)).to(tl.int32)
    return tl.where(magic == 0, number, by)


@triton.jit
def channel_of(column, period, RUN: tl.constexpr):
    """The channel of a column where several rows lie side by side; ``period`` comes over RUN.

    RUN columns are neighbours in all of them: one division, and wide loads of parameters.
    """
    return column // RUN % period * RUN + column % RUN


@triton.jit
def coefficients(FORMULA: tl.constexpr, rs, factor, sum_d, sum_dt, count):
    """What a formula makes of its two sums, of numbers that are not divided by the deviation.

    Gamma is inside of the sums where it differs within a statistic; ``factor`` is the rest of what
    dy is multiplied by.
    """
    return FORMULA.coefficients(sum_d / count, sum_dt * rs / count * rs, factor)


@triton.jit
def load_or(pointer, offsets, mask, default: tl.constexpr, COMPUTE: tl.constexpr):
    """A vector in the compute type, or its default where it is not given."""
    if pointer is None:
        # The interpreter's loops count in plain ints: the 0 makes a tensor of them.
        values = ((offsets + tl.program_id(0) * 0) * 0 + default).to(COMPUTE)
    elif mask is None:
        values = tl.load(pointer + offsets).to(COMPUTE)
    else:
        values = tl.load(pointer + offsets, mask=mask, other=0.0).to(COMPUTE)
    return values


@triton.jit
def load_weight(FORMULA: tl.constexpr, pointer, offsets, mask, COMPUTE: tl.constexpr):
    """Gamma, and what is added to it."""
    weight = load_or(pointer, offsets, mask, 1.0, COMPUTE)
    if FORMULA.weight_offset != 0.0:
        weight += FORMULA.weight_offset
    return weight


@triton.jit
def add_rounded(tile, other, COMPUTE: tl.constexpr):
    """A sum as its own type has it."""
    return (widen(tile, COMPUTE) + widen(other, COMPUTE)).to(tile.dtype)


@triton.jit
def load_rstd(pointer, offsets, mask, eps, VARIANCE: tl.constexpr, COMPUTE: tl.constexpr):
    """The reciprocal deviation, derived from a variance if need be."""
    values = load_or(pointer, offsets, mask, 1.0, COMPUTE)
    if VARIANCE:
        # Masked lanes hold 0: they may divide by 0, and are not read.
        values = 1.0 / tl.sqrt(values + eps)
    return values


@triton.jit
def store_as(pointer, offsets, values, mask):
    """Round once into the pointer's own type; nothing where there is no pointer."""
    if pointer is not None:
        tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=mask)
