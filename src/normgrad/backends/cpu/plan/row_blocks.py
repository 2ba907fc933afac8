"""Channels last: which phases, over which blocks of rows."""

from typing import TYPE_CHECKING

from normgrad.backends.cpu.plan import ceil_div, slots, tuned

if TYPE_CHECKING:
    from normgrad.backends.cpu.plan.program import Program


def channels_last(program: "Program") -> None:
    """Phases over blocks of rows: sums, what they make, gradients; or sample by sample."""
    geometry, params, needs = program.geometry, program.params, program.needs
    by_row = geometry.statistic == "row"
    columns = geometry.parameters
    samples = geometry.outer if by_row else 1
    rows = geometry.inner if by_row else geometry.outer * geometry.inner
    params[slots.SAMPLES] = samples
    even, folded = evenly_and_folded(program, needs.data)
    rows //= folded
    width = columns * folded
    params[slots.EVEN_ROWS] = max(rows if even else geometry.inner, 1)
    _row_steps(program, even, folded)
    params[slots.ROWS] = rows
    params[slots.FOLDED] = folded
    program.stream(width)
    params[slots.WIDTH] = width
    narrow = width <= tuned.NARROW_COLUMNS
    sample_bytes = 2 * rows * width * program.format.itemsize  # batch norm: of all there is
    # Data that are near are written by who has summed them.
    params[slots.BACKWARDS] = int(program.far())
    # Four at a time is another order of the sums: where a sample has gradients of its own the
    # number of samples must not decide.
    near = tuned.SAMPLE_BYTES if by_row else tuned.LAST_CACHE // 2
    if narrow or sample_bytes <= near:
        params[slots.FOUR_ROWS] = 1 if program.far() else 2
        params[slots.PREFETCH_AHEAD] = int(program.far() and not narrow)
    block = cut_blocks(program, samples, rows, width, one_sample_cut=by_row)
    blocks = ceil_div(rows, block)
    params[slots.JOIN_COLUMNS] = _joined_columns(program, folded)
    params[slots.JOIN_TASKS] = ceil_div(columns, params[slots.JOIN_COLUMNS])
    params[slots.AT_COEFFICIENTS] = program.reserve(samples * 5 * width * program.flat.itemsize)
    params[slots.AT_SUMS] = program.reserve(samples * 2 * width * 8)
    if needs.sum_dy:
        # Beside both sums the row that distances are from, and what is read behind it for nothing.
        rows_of_part = 3 * samples * blocks + 4 if needs.own else 2 * samples * blocks
        params[slots.AT_PARTS] = program.reserve(rows_of_part * width * program.flat.itemsize)
    # Both passes read x and dy; where only one is made there is nothing to find in the cache.
    both = needs.sum_xmu and needs.out is not None
    if by_row and both and sample_bytes <= near and samples >= tuned.SOME_SAMPLES:
        params[slots.FOUR_ROWS] = 2 if sample_bytes <= tuned.SMALL_SAMPLE else 1
        params[slots.PREFETCH_AHEAD] = int(program.far())
        params[slots.PREFETCH_NEXT_TASK] = int(sample_bytes <= tuned.SMALL_SAMPLE)
        program.phase("whole_samples", samples, program.form, program.format, program.flat)
    else:
        _in_passes(program, samples, ceil_div(samples * blocks, params[slots.PER_TASK]))
    program.join_samples()


def _in_passes(program: "Program", samples: int, work: int) -> None:
    """All blocks are summed, then joined, then written, in so many tasks."""
    form, fmt, flat = program.form, program.format, program.flat
    if program.needs.x and not program.needs.own:
        program.phase("spread_known", samples, form, flat)
    if program.needs.sum_dy:
        program.phase("sum_row_blocks", work, form, fmt, flat)
    by_row = program.geometry.statistic == "row"
    program.phase("join_blocks", samples * program.params[slots.JOIN_TASKS], form, flat, by_row)
    if program.needs.out:
        program.phase("write_row_blocks", work, form, fmt, flat)


def _joined_columns(program: "Program", folded: int) -> int:
    """How many columns one task joins: whole groups, or all channels of folded rows.

    A second task would pair sums of folded rows that the first has paired already.
    """
    geometry = program.geometry
    if folded > 1:
        return geometry.parameters
    channels = max(geometry.channels, 1) if geometry.statistic == "row" else 1
    return channels * ceil_div(tuned.JOINED_COLUMNS, channels)


def evenly_and_folded(program: "Program", roles: tuple[str, ...]) -> tuple[bool, int]:
    """Whether rows are one run, and how many of few channels are taken as one.

    They are one run where every tensor steps evenly over all of them; vectors want 16 columns.
    """
    geometry = program.geometry
    if geometry.statistic == "row":
        return True, 1
    outer, inner, columns = geometry.outer, geometry.inner, geometry.parameters
    strides = [program.arrangement.strides[role] for role in roles]
    even = all(one[0] == inner * one[3] or outer == 1 or inner == 1 for one in strides)
    dense = all(one[0 if inner == 1 else 3] == columns for one in strides)
    if not 0 < columns < tuned.FOLD_COLUMNS or not even or not dense:
        return even, 1
    most = (32 if columns < 8 else 16) if columns % 16 else 256 // columns
    rows = outer * inner
    counts = (count for count in (32, 16, 8, 4, 2) if count <= most and rows % count == 0)
    return even, next(counts, 1)


def _row_steps(program: "Program", even: bool, folded: int) -> None:
    """How far it is from row to row."""
    geometry, params = program.geometry, program.params
    for role in program.needs.data:
        slot = slots.DATA[role]
        if geometry.statistic == "row":
            params[slot + slots.BY_SAMPLE] = params[slot + slots.BY_OUTER]
            params[slot + slots.BY_OUTER] = 0
        elif even and geometry.inner == 1:
            params[slot + slots.BY_INNER] = params[slot + slots.BY_OUTER]
        params[slot + slots.BY_INNER] *= folded


def cut_blocks(
    program: "Program",
    samples: int,
    rows: int,
    columns: int,
    *,
    has_parameter_sums: bool = True,
    one_sample_cut: bool = False,
) -> int:
    """Rows of a block: enough blocks for many cores, and few enough to join quickly.

    ``one_sample_cut``: each sample is cut as if it were the only one, so that its bits do not
    depend on the batch.
    """
    # Joining a block costs what two of its rows cost. Few long rows: layer norm 20x65536 takes
    # 0.57 ms in blocks of 8, 0.61 of 16, 0.60 of 4; dx alone 0.44 of 16, 0.34 of 4 (float32).
    total_rows = rows if one_sample_cut else samples * rows
    least = 8 if total_rows < 64 else 16 if total_rows < 256 else 32
    least = least if has_parameter_sums else 4
    block = min(tuned.BLOCK_ROWS, max(least, ceil_div(total_rows, 4 if one_sample_cut else 64)))
    block = ceil_div(block, 4) * 4
    program.params[slots.BLOCK] = block
    program.params[slots.BLOCKS] = ceil_div(rows, block)
    each = min(tuned.TASK_ELEMENTS, program.geometry.size // tuned.SOME_TASKS)
    program.params[slots.PER_TASK] = max(1, each // max(min(block, rows) * columns, 1))
    return block
