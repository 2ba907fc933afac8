"""Every task that phases are made of, compiled when a plan first needs it."""

import functools
from typing import Any

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.kernels import (
    blocks,
    copies,
    lone,
    row_joins,
    rows,
    scalar,
    slabs,
    strips,
    units,
)
from normgrad.backends.cpu.threads import driver
from normgrad.backends.cpu.vectors.formats import Format

_FACTORIES: dict[str, Any] = {
    "add_counts": scalar.add_counts,
    "copies": copies.copies,
    "transposes": copies.transposes,
    "slabs": slabs.slabs,
    "lone_slabs": lone.lone_slabs,
    "units_in": units.units_in,
    "units_out": units.units_out,
    "join_units": units.join_units,
    "strips": strips.strips,
    "spread_means": blocks.spread_means,
    "blocks_in": blocks.blocks_in,
    "blocks_out": blocks.blocks_out,
    "join_blocks": blocks.join_blocks,
    "join_samples": blocks.join_samples,
    "samples": blocks.samples,
    "rows": rows.rows,
    "row_strips": rows.row_strips,
    "spread_gamma": row_joins.spread_gamma,
    "join_rows": row_joins.join_rows,
    "join_channels": row_joins.join_channels,
}


@functools.cache
def _task(name: str, formats: tuple[Format, ...]) -> Any:
    function = _FACTORIES[name](*formats)
    return jit.compiled(jit.TASK_SIGNATURE, function) if jit.ENABLED else function


def address(name: str, *formats: Format) -> Any:
    """What a phase table holds: the task's address, or the function without the compiler."""
    task = _task(name, formats)
    return task.address if jit.ENABLED else task


@functools.cache
def compiled_driver() -> Any:
    """The function that runs a parameter block."""
    return jit.compiled(jit.DRIVER_SIGNATURE, driver.drive)


@functools.cache
def compiled_meeting() -> tuple[Any, Any]:
    """What a caller with helpers runs, and what a helper does."""
    from normgrad.backends.cpu.threads import meeting

    return (
        jit.compiled(jit.LEAD_SIGNATURE, meeting.lead),
        jit.compiled(jit.ATTEND_SIGNATURE, meeting.attend),
    )


@functools.cache
def compiled_team() -> tuple[Any, Any]:
    """What a caller with a team runs, and what each of its threads does."""
    from normgrad.backends.cpu.threads import meeting

    return (
        jit.compiled(jit.LEAD_TEAM_SIGNATURE, meeting.lead_team),
        jit.compiled(jit.TAKE_PART_SIGNATURE, meeting.take_part),
    )
