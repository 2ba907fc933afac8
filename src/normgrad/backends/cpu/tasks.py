"""Every task that phases are made of, compiled when a plan first needs it."""

import functools
from typing import Any

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.formulas import Formula
from normgrad.backends.cpu.schedules import (
    copies,
    row_blocks,
    row_joins,
    rows,
    scalar,
    shortcuts,
    side_by_side_planes,
    single_segment,
    slabs,
    split_slabs,
)
from normgrad.backends.cpu.threads import driver
from normgrad.backends.cpu.vectors.formats import Format

_FACTORIES: dict[str, Any] = {
    "add_counts": scalar.add_counts,
    "statistics_of_nothing": scalar.statistics_of_nothing,
    "gather_statistics": scalar.gather_statistics,
    "copies": copies.copies,
    "transposes": copies.transposes,
    "slabs": slabs.slabs,
    "single_segment_slabs": single_segment.single_segment_slabs,
    "sum_pieces": split_slabs.sum_pieces,
    "write_pieces": split_slabs.write_pieces,
    "combine_pieces": split_slabs.combine_pieces,
    "side_by_side_planes": side_by_side_planes.side_by_side_planes,
    "spread_known": row_blocks.spread_known,
    "sum_row_blocks": row_blocks.sum_row_blocks,
    "write_row_blocks": row_blocks.write_row_blocks,
    "join_blocks": row_blocks.join_blocks,
    "join_samples": row_blocks.join_samples,
    "whole_samples": row_blocks.whole_samples,
    "rows": rows.rows,
    "column_blocks_of_rows": rows.column_blocks_of_rows,
    "shortcut_factors": shortcuts.shortcut_factors,
    "with_shortcut": shortcuts.with_shortcut,
    "spread_parameter": row_joins.spread_parameter,
    "join_rows": row_joins.join_rows,
    "join_channels": row_joins.join_channels,
}


@functools.cache
def _task(name: str, formats: tuple[Format | Formula | bool, ...]) -> Any:
    function = _FACTORIES[name](*formats)
    return jit.compiled(jit.TASK_SIGNATURE, function) if jit.ENABLED else function


def address(name: str, *formats: Format | Formula | bool) -> Any:
    """What a phase table holds: the task's address, or the function without the compiler."""
    task = _task(name, formats)
    return task.address if jit.ENABLED else task


@functools.cache
def compiled_driver() -> Any:
    """The function that runs a parameter block."""
    return jit.compiled(jit.DRIVER_SIGNATURE, driver.drive)


@functools.cache
def compiled_helpers() -> tuple[Any, Any]:
    """What a caller with helpers runs, and what a helper does."""
    from normgrad.backends.cpu.threads import helpers

    return (
        jit.compiled(jit.RUN_WITH_HELPERS_SIGNATURE, helpers.run_with_helpers),
        jit.compiled(jit.HELPER_LOOP_SIGNATURE, helpers.helper_loop),
    )


@functools.cache
def compiled_team() -> tuple[Any, Any]:
    """What a caller with a team runs, and what each of its threads does."""
    from normgrad.backends.cpu.threads import helpers

    return (
        jit.compiled(jit.LEAD_TEAM_SIGNATURE, helpers.lead_team),
        jit.compiled(jit.TAKE_PART_SIGNATURE, helpers.take_part),
    )
