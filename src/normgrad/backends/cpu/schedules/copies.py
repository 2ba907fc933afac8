"""Strided tensors of any type into dense ones of another, and back."""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.schedules.scalar import place, read_any, write_any
from normgrad.backends.cpu.vectors import move, move_line, side, size_of, transpose
from normgrad.backends.cpu.vectors.formats import BF16_CODE, F16_CODE, F32, F32_CODE, F64, I16


@jit.inner
def copy_run(source, source_step, source_code, target, target_step, target_code, length):
    """Elements at even distances."""
    if source_code != target_code:
        for _ in range(length):
            write_any(target_code, target, read_any(source_code, source))
            source += source_step
            target += target_step
    elif source_code in (F16_CODE, BF16_CODE):
        move_run(I16, source, source_step, target, target_step, length)
    elif source_code == F32_CODE:
        move_run(F32, source, source_step, target, target_step, length)
    else:
        move_run(F64, source, source_step, target, target_step, length)


@jit.inner
def move_run(fmt, source, source_step, target, target_step, length):
    """The same of one type; a run that lies dense, or repeats one element, by whole lines."""
    size = size_of(fmt)
    end = target + length * size
    if target_step != size or source_step not in (0, size) or end - target < 64:
        for _ in range(length):
            move(fmt, source, target)
            source += source_step
            target += target_step
        return
    step = 64 if source_step else 0
    if step == 0:
        for there in range(target, target + 64, size):
            move(fmt, source, there)
        source = target  # a line of it, for all others
    while target + 64 <= end:
        move_line(source, target)
        source += step
        target += 64
    if target < end:  # the last line covers some elements again
        back = target + 64 - end
        move_line(source - (back if step else 0), target - back)


@jit.inlined
def runs(params, copy, index):
    """The first run of a task, and the one behind its last."""
    first = index * params[copy + slots.COPY_RUNS_PER_TASK]
    last = first + params[copy + slots.COPY_RUNS_PER_TASK]
    return first, min(last, params[copy + slots.COPY_RUNS])


@jit.inlined
def run_at(params, addresses, workspace, copy, run, axes):
    """Where a run is read and written, and its length: some of the last axis, one of the outer."""
    inner = copy + slots.COPY_AXES + 3 * (params[copy + slots.COPY_RANK] - 1)
    length, piece = params[inner], params[copy + slots.COPY_PIECE]
    pieces = -(-length // piece)
    rest = run // pieces
    begin = (run - rest * pieces) * piece
    source = place(params, addresses, workspace, copy + slots.COPY_FROM)
    target = place(params, addresses, workspace, copy + slots.COPY_TO)
    source += begin * params[inner + 1]
    target += begin * params[inner + 2]
    for back in range(axes):
        axis = copy + slots.COPY_AXES + 3 * (axes - 1 - back)
        size = params[axis]
        here = rest % size
        rest = rest // size
        source += here * params[axis + 1]
        target += here * params[axis + 2]
    return source, target, min(piece, length - begin)


def copies():
    """The task that copies some runs of a description in the parameter block."""

    def copies_task(params, addresses, workspace, copy, index, after):
        axes = params[copy + slots.COPY_RANK] - 1
        inner = copy + slots.COPY_AXES + 3 * axes
        first, last = runs(params, copy, index)
        for run in range(first, last):
            source, target, length = run_at(params, addresses, workspace, copy, run, axes)
            copy_run(
                source,
                params[inner + 1],
                params[copy + slots.COPY_FROM_CODE],
                target,
                params[inner + 2],
                params[copy + slots.COPY_TO_CODE],
                length,
            )
        return 0

    return copies_task


@jit.inner
def transpose_run(fmt, source, across_read, read, target, across_write, write, across, length):
    """Two axes, of which one is dense in the source and the other in the target.

    In squares, so that whole vectors are read and written, four of them along: columns of images
    of 64x64 lie a multiple of 4 KB apart, and such lines push each other out of the cache before
    their second half is written. The last squares cover some elements again.
    """
    size, square = size_of(fmt), side(fmt)
    if length < square:
        for along in range(length):
            for aside in range(across):
                there = source + along * read + aside * across_read
                move(fmt, there, target + along * write + aside * across_write)
        return
    # From row to row of a square there, and from column to column.
    rows = read if across_read == size else across_read
    columns = across_write if across_read == size else write
    for first in range(0, length, 4 * square):
        for beside in range(0, across, square):
            aside = min(beside, across - square)
            for begin in range(first, min(first + 4 * square, length), square):
                along = min(begin, length - square)
                there = source + along * read + aside * across_read
                here = target + along * write + aside * across_write
                transpose(fmt, there, rows, here, columns)


def transposes(fmt):
    """The task that copies between tensors whose dense axes differ: the last two of a description.

    A run is a piece of the last axis and all of the other.
    """

    def transposes_task(params, addresses, workspace, copy, index, after):
        axes = params[copy + slots.COPY_RANK] - 2
        other = copy + slots.COPY_AXES + 3 * axes
        first, last = runs(params, copy, index)
        for run in range(first, last):
            source, target, length = run_at(params, addresses, workspace, copy, run, axes)
            transpose_run(
                fmt,
                source,
                params[other + 1],
                params[other + 4],
                target,
                params[other + 2],
                params[other + 5],
                params[other],
                length,
            )
        return 0

    return transposes_task
