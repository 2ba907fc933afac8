"""Channels first: which phases, over strips, units or whole slabs."""

import math
from typing import TYPE_CHECKING

from normgrad.backends.cpu.plan import ceil_div, slots, tuned

if TYPE_CHECKING:
    from normgrad.backends.cpu.plan.program import Program


def channels_first(program: "Program") -> None:
    """Phases over slabs: strips of several, units of one, or whole ones."""
    geometry, params, needs = program.geometry, program.params, program.needs
    by_row = geometry.statistic == "row"
    slabs = geometry.statistics
    segments = geometry.channels if by_row else geometry.outer
    elements = segments * geometry.inner
    params[slots.SLABS] = slabs
    params[slots.SEGMENTS] = segments
    # What was just summed is near, all of it in the last cache at least.
    beyond = 2 * geometry.size * program.format.itemsize > tuned.LAST_CACHE
    params[slots.PREFETCH_AHEAD] = int(not needs.sum_dy or (beyond and slabs < tuned.FEW_SLABS))
    program.stream(geometry.inner)
    _units(program, segments)
    if by_row and not needs.own:
        params[slots.AT_SUMS] = program.reserve(2 * geometry.outer * geometry.parameters * 8)
    if strip := strip_of(program, needs.data):
        _strips(program, strip)
    elif slabs < _few(program, elements) and elements >= 2 * tuned.TASK_ELEMENTS:
        _split(program, slabs, segments)
    else:
        _whole(program, slabs, elements)
    program.join_samples()


def _units(program: "Program", segments: int) -> None:
    """What a unit of a slab is: some segments, or a piece of one."""
    geometry, params = program.geometry, program.params
    piece = tuned.TASK_ELEMENTS if geometry.inner >= tuned.TASK_ELEMENTS else max(geometry.inner, 1)
    gathered = max(1, tuned.TASK_ELEMENTS // piece)
    if gathered > 4:
        # Short segments are summed four at a time: the same four of a slab, whole or in units.
        gathered -= gathered % 4
    per_segment = ceil_div(geometry.inner, piece)
    params[slots.SPLIT_COUNT] = ceil_div(segments, gathered) * per_segment
    params[slots.SPLIT_ELEMENTS] = piece
    params[slots.SPLIT_SEGMENTS] = gathered


def _split(program: "Program", slabs: int, segments: int) -> None:
    """Slabs in units for several threads."""
    geometry, params, needs = program.geometry, program.params, program.needs
    form, pieces = program.form, params[slots.SPLIT_COUNT]
    by_row = geometry.statistic == "row"
    of_units = form, program.format, by_row
    apart = by_row and not needs.own  # sums of each segment
    per_segment = ceil_div(geometry.inner, params[slots.SPLIT_ELEMENTS])
    parts = segments * per_segment if apart else pieces
    params[slots.AT_PARTS] = program.reserve(slabs * parts * 16)
    params[slots.AT_COEFFICIENTS] = program.reserve(slabs * 16)
    together = _together(program, slabs, segments * geometry.inner)
    params[slots.PREFETCH_AHEAD] &= int(together == slabs)
    for first in range(0, slabs, max(together, 1)):
        last = min(first + together, slabs)
        units = (last - first) * pieces
        if needs.sum_dy:
            program.phase("sum_pieces", units, *of_units, argument=first * pieces)
        program.phase("combine_pieces", last - first, form, program.flat, by_row, argument=first)
        if needs.out:
            program.phase("write_pieces", units, *of_units, argument=last * pieces)


def _whole(program: "Program", slabs: int, elements: int) -> None:
    """Slabs from sums to gradients, some in a task."""
    geometry, params = program.geometry, program.params
    by_row = geometry.statistic == "row"
    if by_row and _without_gaps(program):
        program.stream(elements)
        params[slots.STREAM_ACROSS_SEGMENTS] = params[slots.STREAM_DX]
    # At least SOME_TASKS, so that the tail is short: three tasks take two threads as long as four.
    each = min(tuned.TASK_ELEMENTS, geometry.size // tuned.SOME_TASKS)
    params[slots.PER_TASK] = max(1, each // max(elements, 1))
    short = geometry.inner * program.format.itemsize <= tuned.ASKED_SEGMENT
    params[slots.PREFETCH_NEXT_TASK] = int(not by_row and short and params[slots.STREAM_DX])
    tasks = ceil_div(slabs, params[slots.PER_TASK])
    if _single_segments(program, elements):
        params[slots.AT_COEFFICIENTS] = program.reserve(tasks * 5 * tuned.EIGHT)
        program.phase("single_segment_slabs", tasks, program.form, program.format, program.flat)
    else:
        program.phase("slabs", tasks, program.form, program.format, by_row)


def _single_segments(program: "Program", elements: int) -> bool:
    """Whether slabs are single short segments, whose factors cost as much as their data.

    From memory 64x256x14x14 in float32 takes a third longer eight at a time.
    """
    geometry, params, needs = program.geometry, program.params, program.needs
    return (
        elements == geometry.inner <= tuned.FEW_VECTORS * program.format.lanes
        and needs.sum_xmu
        and (needs.correction == slots.OWN_CORRECTION or not params[slots.WRITE_DX])
        and not program.large()
    )


def _few(program: "Program", elements: int) -> int:
    """How many slabs are too few to be taken whole: some of group norm's are near anyway."""
    near = 2 * elements * program.format.itemsize <= tuned.NEAR_SLAB
    return tuned.SOME_SAMPLES if near and program.geometry.statistic == "row" else tuned.FEW_SLABS


def strip_of(program: "Program", roles: tuple[str, ...]) -> int:
    """How many channels of short planes are taken together; 0 where planes are taken alone."""
    geometry = program.geometry
    if geometry.statistic == "row":
        return 0
    nbytes = geometry.inner * program.format.itemsize
    dense = all(program.arrangement.strides[role][2] == geometry.inner for role in roles)
    # Longer planes are worth it where they would be streamed in pieces of lines.
    pieces = program.format.itemsize > 2 and nbytes % 64 and program.large()
    short = 0 < nbytes <= (4 * tuned.SHORT_PLANE if pieces else tuned.SHORT_PLANE)
    if not dense or not short or geometry.outer < tuned.STRIP_SAMPLES:
        return 0
    whole = 64 // math.gcd(64, nbytes)  # channels that fill whole lines together
    strip = whole * ceil_div(tuned.STRIP_ROW, whole * nbytes)
    fits = 2 * strip * nbytes * geometry.outer <= tuned.STRIP_BYTES
    return strip if fits and geometry.channels >= strip else 0


def _strips(program: "Program", strip: int) -> None:
    geometry, params = program.geometry, program.params
    size = geometry.channels * geometry.inner
    program.stream(strip * geometry.inner)
    params[slots.PREFETCH_AHEAD] = int(program.far())
    params[slots.PER_TASK] = strip
    params[slots.PREFETCH_NEXT_TASK] = params[slots.STREAM_DX]
    params[slots.BLOCK] = tuned.BLOCK_ROWS
    params[slots.AT_COEFFICIENTS] = program.reserve(5 * size * program.flat.itemsize)
    params[slots.AT_PARTS] = program.reserve(2 * size * program.flat.itemsize)
    params[slots.AT_SUMS] = program.reserve(2 * geometry.channels * 8)
    strips = ceil_div(geometry.channels, strip)
    program.phase("side_by_side_planes", strips, program.form, program.format, program.flat)


def _without_gaps(program: "Program") -> bool:
    """Whether the channels of a group are one run of each tensor, none shorter than a line."""
    geometry, needs = program.geometry, program.needs
    return (
        needs.correction != slots.NO_CORRECTION
        and geometry.inner * program.format.itemsize >= 64
        and all(
            program.arrangement.strides[role][2] == geometry.inner or geometry.channels == 1
            for role in needs.data
        )
    )


def _together(program: "Program", slabs: int, elements: int) -> int:
    """How many large slabs to sum before they are written: those that stay in the last cache.

    All of them where that makes no difference: where they fit, where one does not, where data
    are read once. For 20x6x65536 in float32 4.4 ms become 3.8, 4.0 with three quarters of the
    cache.
    """
    both = program.needs.sum_dy and program.needs.out is not None
    each = 2 * elements * program.format.itemsize
    # Three phases for each turn, in what copies (of up to eight tensors) and joining leave.
    room = slots.MAX_PHASES - len(program.phases) - len(program.after) - 1
    turns = min(tuned.MOST_TURNS, room // 3)
    some = max(tuned.LAST_CACHE // 2 // max(each, 1), ceil_div(slabs, turns))
    stays = some * each <= tuned.LAST_CACHE
    return some if both and stays and slabs * each > tuned.LAST_CACHE else slabs
