"""Strided tensors of any type into dense ones of another, and back."""

from normgrad.backends.cpu import jit, slots
from normgrad.backends.cpu.kernels.scalar import place, read_any, write_any
from normgrad.backends.cpu.vectors import move
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
        for _ in range(length):
            move(I16, source, target)
            source += source_step
            target += target_step
    elif source_code == F32_CODE:
        for _ in range(length):
            move(F32, source, target)
            source += source_step
            target += target_step
    else:
        for _ in range(length):
            move(F64, source, target)
            source += source_step
            target += target_step


def copies():
    """The task that copies some runs of a description in the parameter block."""

    def copies_task(params, addresses, workspace, copy, index, after):
        rank = params[copy + slots.COPY_RANK]
        per_task = params[copy + slots.COPY_RUNS_PER_TASK]
        piece = params[copy + slots.COPY_PIECE]
        first = index * per_task
        start = place(params, addresses, workspace, copy + slots.COPY_FROM)
        end = place(params, addresses, workspace, copy + slots.COPY_TO)
        inner = copy + slots.COPY_AXES + 3 * (rank - 1)
        length = params[inner]
        pieces = -(-length // piece)
        for run in range(first, min(first + per_task, params[copy + slots.COPY_RUNS])):
            rest = run // pieces
            begin = (run - rest * pieces) * piece
            source = start + begin * params[inner + 1]
            target = end + begin * params[inner + 2]
            for back in range(2, rank + 1):
                axis = copy + slots.COPY_AXES + 3 * (rank - back)
                size = params[axis]
                index_here = rest % size
                rest = rest // size
                source += index_here * params[axis + 1]
                target += index_here * params[axis + 2]
            copy_run(
                source,
                params[inner + 1],
                params[copy + slots.COPY_FROM_CODE],
                target,
                params[inner + 2],
                params[copy + slots.COPY_TO_CODE],
                min(piece, length - begin),
            )
        return 0

    return copies_task
