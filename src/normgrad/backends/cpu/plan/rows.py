"""Layer norm, and group norm of small images: which phases, over which blocks of rows."""

from typing import TYPE_CHECKING

from normgrad.backends.cpu.plan import ceil_div, slots, tuned
from normgrad.backends.cpu.plan.row_blocks import cut_blocks
from normgrad.backends.cpu.schedules.row_statistics import FACTORS, SHORT

if TYPE_CHECKING:
    from normgrad.backends.cpu.plan.program import Program


def groups_are_rows(program: "Program") -> bool:
    """Whether group norm is taken as layer norm of one group after another.

    Its channels are then columns that are added up over the samples, and not one by one: small
    ones would cost more than what is in them.
    """
    geometry = program.geometry
    tiny = (
        geometry.inner <= tuned.TINY_CHANNEL
        and geometry.count * program.format.itemsize <= tuned.TINY_GROUP
    )
    # With weights of each sample nothing is added up over samples: 256x512x4x4 takes 17 ms so.
    return (
        program.spec.operator.axes == "groups"
        and ((tiny and not _own_weights(program)) or geometry.inner == 1)
        and runs(program, program.needs.sources)
    )


def _own_weights(program: "Program") -> bool:
    """Whether weights are each sample's own, which a single sample's are by their axes alone."""
    spec, geometry = program.spec, program.geometry
    given = [one for one in (spec.gamma, spec.beta) if one is not None]
    alone = geometry.outer == 1 and spec.extents is None
    return geometry.samples > 1 or (alone and any(len(one.shape) > 1 for one in given))


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
    # Of each set of parameters; in blocks as if it were the only one.
    rows, groups, sets = geometry.outer // geometry.samples, geometry.groups, geometry.samples
    columns = geometry.channels * geometry.inner
    # Sums over rows are of the parameters alone: dx has those of its own row.
    wants = bool(program.spec.dgamma or program.spec.dbeta)
    params[slots.SUM_DY] = int(program.spec.dbeta is not None)
    params[slots.SUM_XMU] = int(program.spec.dgamma is not None)
    params[slots.ROWS] = rows
    params[slots.WIDTH] = columns
    params[slots.DGAMMA_OFFSET] = ceil_div(columns * program.sum_flat.itemsize, 64) * 64
    program.stream(columns)
    # 16384x768 in float32 without dx takes 2.6 to 3.0 ms so, 3.4 without; in the cache it costs.
    params[slots.PREFETCH_NEXT_TASK] = int(wants and program.spec.dx is None and program.large())
    if _in_strips(program):
        _strips(program, columns)
        return
    blocks = (
        sets
        * groups
        * ceil_div(rows, cut_blocks(program, groups, rows, columns, has_parameter_sums=wants))
    )
    given = _gamma_and_beta(program, columns)
    if wants:
        params[slots.AT_PARTS] = program.reserve(blocks * 2 * params[slots.DGAMMA_OFFSET])
    work = ceil_div(blocks, params[slots.PER_TASK])
    params[slots.AT_COEFFICIENTS] = program.reserve(work * FACTORS)
    formats = program.format, program.flat, program.sum_format, program.sum_flat, columns <= SHORT
    beside = bool({"sum", "dsum"} & set(program.needs.data))
    program.phase("rows", work, program.form, *formats, beside, argument=given)
    if wants:
        _join(program, columns)


def _gamma_and_beta(program: "Program", columns: int) -> int:
    """Where their places are, each beside its slot: as given, or laid out for every column."""
    geometry, params, spec = program.geometry, program.params, program.spec
    at, flat, beta = len(params), program.flat, program.form.reads_beta()
    params += [0, slots.GAMMA, 0, slots.BETA]
    for here, role in ((at, "gamma"), (at + 2, "beta"))[: 1 + beta]:
        given, vector = spec.tensor(role), params[here + 1]
        if (
            given is not None
            and given.dtype == flat.name
            and params[vector + slots.STRIDE] == flat.itemsize
            and geometry.inner == 1
            and not spec.weight_offset
        ):
            params[here] = params[vector]
            continue
        groups = geometry.samples * geometry.groups
        params[here] = program.reserve(groups * columns * flat.itemsize)
        if program.needs.out or beta:
            program.phase("spread_parameter", groups, flat, argument=here)
    if not beta:
        params[at + 2] = params[at]  # nothing reads it
    return at


def _join(program: "Program", columns: int) -> None:
    """The parameters' sums of all blocks."""
    geometry, params = program.geometry, program.params
    params[slots.JOIN_COLUMNS] = tuned.JOINED_COLUMNS
    if geometry.inner == 1:
        params[slots.JOIN_TASKS] = ceil_div(columns, tuned.JOINED_COLUMNS)
        work = geometry.samples * geometry.groups * params[slots.JOIN_TASKS]
        program.phase("join_rows", work, program.sum_flat)
    else:
        channels = ceil_div(geometry.parameters, tuned.JOINED_COLUMNS)
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
        and tuned.ROW_STRIP_LEAST <= geometry.outer // geometry.samples <= tuned.BLOCK_ROWS
        and geometry.channels >= 2 * tuned.ROW_STRIP
    )


def _strips(program: "Program", columns: int) -> None:
    """Some columns of all rows in each task, joined as a single block is."""
    params, sets = program.params, program.geometry.samples
    params[slots.SPLIT_COUNT] = ceil_div(columns, tuned.ROW_STRIP)
    work = sets * params[slots.SPLIT_COUNT]
    params[slots.SPLIT_ELEMENTS] = tuned.ROW_STRIP
    params[slots.BLOCKS] = 1
    params[slots.AT_PARTS] = program.reserve(sets * 2 * params[slots.DGAMMA_OFFSET])
    params[slots.AT_COEFFICIENTS] = program.reserve(work * FACTORS)
    given = _gamma_and_beta(program, columns)
    formats = program.form, program.format, program.flat
    program.phase("column_blocks_of_rows", work, *formats, argument=given)
    _join(program, columns)
