"""Layer norm, and group norm of small images: which phases, over which blocks of rows."""

from typing import TYPE_CHECKING

from normgrad.backends.cpu import sizes, slots
from normgrad.backends.cpu.blocks_plan import cut_blocks
from normgrad.backends.cpu.kernels.rows import FACTORS
from normgrad.backends.cpu.sizes import ceil_div
from normgrad.spec import Op

if TYPE_CHECKING:
    from normgrad.backends.cpu.program import Program


def groups_are_rows(program: "Program") -> bool:
    """Whether group norm is taken as layer norm of one group after another.

    Its channels are then columns that are added up over the samples, and not one by one: small
    ones would cost more than what is in them.
    """
    geometry = program.geometry
    tiny = (
        geometry.inner <= sizes.TINY_CHANNEL
        and geometry.count * program.format.itemsize <= sizes.TINY_GROUP
    )
    return (
        program.spec.op is Op.GROUP_NORM
        and (tiny or geometry.inner == 1)
        and runs(program, program.needs.sources)
    )


def runs(program: "Program", roles: tuple[str, ...]) -> bool:
    """Whether the groups of a sample follow each other, each without gaps."""
    return all(_runs(program.arrangement.strides[role], program.geometry.shape) for role in roles)


def _runs(strides: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    run = 1
    for step, size in zip(reversed(strides[1:]), reversed(shape[1:]), strict=True):
        if size > 1 and step != run:
            return False
        run *= size
    return True


def rows(program: "Program") -> None:
    """Blocks of rows from sums to gradients, then the parameters' sums."""
    geometry, params = program.geometry, program.params
    rows, groups = geometry.outer, geometry.groups
    columns = geometry.channels * geometry.inner
    # Sums over rows are of the parameters alone: dx has those of its own row.
    wants = bool(program.spec.dgamma or program.spec.dbeta)
    params[slots.SUM_DY] = int(program.spec.dbeta is not None)
    params[slots.SUM_XMU] = int(program.spec.dgamma is not None)
    params[slots.ROWS] = rows
    params[slots.WIDTH] = columns
    params[slots.APART] = ceil_div(columns * program.sum_flat.itemsize, 64) * 64
    program.stream(columns)
    # 16384x768 in float32 without dx takes 2.6 to 3.0 ms so, 3.4 without; in the cache it costs.
    params[slots.ASKS] = int(program.spec.dx is None and program.large())
    if _in_strips(program):
        _strips(program, columns)
        return
    blocks = groups * ceil_div(rows, cut_blocks(program, groups, rows, columns, joined=wants))
    gamma_slot = _gamma(program, columns)
    if wants:
        params[slots.AT_PARTS] = program.reserve(blocks * 2 * params[slots.APART])
    work = ceil_div(blocks, params[slots.PER_TASK])
    params[slots.AT_COEFFICIENTS] = program.reserve(work * FACTORS)
    formats = program.format, program.flat, program.sum_format, program.sum_flat
    program.phase("rows", work, *formats, argument=gamma_slot)
    if wants:
        _join(program, columns)


def _gamma(program: "Program", columns: int) -> int:
    """The slot of gamma's place: as it was given, or laid out for every column."""
    geometry, params, gamma = program.geometry, program.params, program.spec.gamma
    slot = len(params)
    if (
        gamma is not None
        and gamma.dtype == program.flat.name
        and params[slots.GAMMA + slots.STRIDE] == program.flat.itemsize
        and geometry.inner == 1
    ):
        params.append(params[slots.GAMMA])
    else:
        params.append(program.reserve(geometry.groups * columns * program.flat.itemsize))
        if program.spec.dx is not None:
            program.phase("spread_gamma", geometry.groups, program.flat, argument=slot)
    return slot


def _join(program: "Program", columns: int) -> None:
    """The parameters' sums of all blocks."""
    geometry, params = program.geometry, program.params
    params[slots.CHUNK] = sizes.JOINED_COLUMNS
    if geometry.inner == 1:
        params[slots.CHUNKS] = ceil_div(columns, sizes.JOINED_COLUMNS)
        program.phase("join_rows", geometry.groups * params[slots.CHUNKS], program.sum_flat)
    else:
        channels = ceil_div(geometry.parameters, sizes.JOINED_COLUMNS)
        program.phase("join_channels", channels, program.sum_flat)


def _in_strips(program: "Program") -> bool:
    """Whether parameter gradients alone are wanted, of few rows of many columns.

    Blocks of rows would each have sums as long as a row, to be written and joined.
    """
    geometry, spec = program.geometry, program.spec
    return (
        spec.dx is None
        and (spec.dgamma is not None or spec.dbeta is not None)
        and geometry.groups == geometry.inner == 1
        and sizes.ROW_STRIP_LEAST <= geometry.outer <= sizes.BLOCK_ROWS
        and geometry.channels >= 2 * sizes.ROW_STRIP
    )


def _strips(program: "Program", columns: int) -> None:
    """Some columns of all rows in each task, joined as a single block is."""
    params = program.params
    work = ceil_div(columns, sizes.ROW_STRIP)
    params[slots.PIECE] = sizes.ROW_STRIP
    params[slots.BLOCKS] = 1
    params[slots.AT_PARTS] = program.reserve(2 * params[slots.APART])
    params[slots.AT_COEFFICIENTS] = program.reserve(work * FACTORS)
    program.phase("row_strips", work, program.format, program.flat)
    _join(program, columns)
