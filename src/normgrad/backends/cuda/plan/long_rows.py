"""Layer norm of rows that are not kept on chip: two passes."""

from dataclasses import dataclass

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.joins import finish_rows
from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.row_data import RowData, row_besides, row_operands, row_sizes
from normgrad.backends.cuda.plan.sums import add_statistics
from normgrad.backends.cuda.plan.tiles import ceil_div, power_of_two
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.geometry import Geometry


@dataclass(frozen=True, slots=True)
class _Strips:
    """Columns that ``parts`` blocks go down together, in tiles."""

    rows: int  # of a tile
    cols: int
    parts: int
    stages: int


def _strips(rows: int, cols: int, itemsize: int, device: Device, writes: bool) -> _Strips:
    """Few parts, as each has sums of its own; strips so narrow that there are blocks enough.

    Without dx nothing is joined where all blocks go down all rows.
    """
    per: float  # blocks of a multiprocessor
    if writes:
        tile_rows, width, per, stages = 1, tuned.LONG_TILE, tuned.LONG_BLOCKS, tuned.LONG_STAGES
    elif rows < tuned.SOME_ROWS:
        tile_rows, nbytes, per, stages = tuned.FEW_STRIPS
        width = nbytes // itemsize
    elif rows < tuned.MANY_ROWS:
        tile_rows, width, per, stages = tuned.SOME_STRIPS
    else:
        nbytes, width, per, stages = tuned.MANY_STRIPS
        tile_rows = nbytes // itemsize
    size = tile_rows * width
    width = min(power_of_two(cols), width)
    tile_rows = min(size // width, power_of_two(rows))
    parts = int(per * device.multiprocessors) // ceil_div(cols, width)
    return _Strips(tile_rows, width, min(ceil_div(rows, tile_rows), max(1, parts)), stages)


def long_rows(
    builder: Builder, geometry: Geometry, device: Device, data: RowData, *, reads_x: bool
) -> None:
    """Launch: the sums of rows if they are needed, then dx and the parameter gradients."""
    rows, cols = geometry.outer, geometry.channels
    align, itemsize = row_sizes(geometry, data)
    operands = row_operands(data, align)
    if not reads_x:
        operands["x"] = None
    spec = builder.spec
    common: dict[str, Argument] = {
        **{name: one for name, one in operands.items() if not name.startswith("dx")},
        "mean": None if spec.operator.forward else builder.vector("mean"),
        "gamma": builder.vector("gamma"),
        "beta": builder.vector("beta"),
        "rows": rows,
        "cols": cols // align,
        "each": rows // geometry.samples if geometry.samples > 1 else None,
    }
    forward = spec.operator.forward
    # What gradients add to dx has no part in their sums.
    added = row_besides(data if forward else {"residual": None}, align, "residual")
    writes = data["dx"] is not None
    totals = None
    rstd: Ref | None
    if forward:
        parts, splits = _row_parts(builder, rows, cols, align, common | added)
        common["mean"], rstd = add_statistics(builder, parts, rows, splits, device)
        if not writes:
            return
    else:
        rstd = builder.vector("rstd")
        if writes:
            totals = _row_totals(builder, rows, cols, align, common | added)
    samples = geometry.samples
    strips = _strips(rows // samples, cols, itemsize, device, writes)
    programs = strips.parts
    wants = builder.wants_parameters
    joined = wants and (programs > 1 or samples > 1)
    partials = builder.scratch(2 * programs * samples * cols, builder.compute) if joined else None
    results = {
        role: builder.result(role) if wants and not joined else None for role in ("dgamma", "dbeta")
    }
    builder.launch(
        "apply.row_apply",
        (ceil_div(cols, strips.cols), programs * samples),
        common
        | row_besides(data, align, "residual", "total")
        | results
        | {
            "dx": operands["dx"],
            "dx_row": operands["dx_row"],
            "rstd": rstd,
            "totals": totals,
            "partials": partials,
            "parts": programs,
        },
        {
            "FORMULA": builder.formula,
            "ROWS": strips.rows,
            "COLS": strips.cols,
            "ALIGN": align,
            "STAGES": strips.stages,
            "COMPUTE": builder.compute,
        },
    )
    finish_rows(builder, partials, programs, cols, samples)


def _row_parts(
    builder: Builder, rows: int, cols: int, align: int, common: dict[str, Argument]
) -> tuple[Ref, int]:
    """The two sums of each row, by several blocks, however many rows there are; and by how many."""
    width = min(power_of_two(cols), tuned.SUM_TILE)
    splits = ceil_div(cols, tuned.SUM_COLUMNS)
    partials = builder.scratch(builder.numbers * rows * splits, builder.compute)
    rstd = builder.vector("rstd") if builder.slopes else None
    given: dict[str, Argument] = {
        "rstd": rstd,
        "beta": common["beta"] if builder.slopes else None,
    }
    builder.launch(
        "apply.row_statistics",
        (rows * splits,),
        common | given | {"partials": partials, "splits": splits, "span": tuned.SUM_COLUMNS},
        {
            "FORMULA": builder.formula,
            # Gradients keep the order of their sums, which wide loads would change.
            "SPAN": tuned.SUM_COLUMNS if builder.spec.operator.forward else 0,
            "COLS": width,
            "ALIGN": align,
            "COMPUTE": builder.compute,
        },
    )
    return partials, splits


def _row_totals(
    builder: Builder, rows: int, cols: int, align: int, common: dict[str, Argument]
) -> Ref:
    """The same joined."""
    partials, splits = _row_parts(builder, rows, cols, align, common)
    if splits == 1:
        return partials
    totals = builder.scratch(2 * rows, builder.compute)
    builder.launch(
        "finish.finish_groups",  # each row is a group of one channel, with gamma inside already
        (rows,),
        {
            "partials": partials,
            "gamma": None,
            "totals": totals,
            "units": rows,
            "splits": splits,
            "channels": 1,
            "group_size": 1,
            "statistics": rows,
        },
        {
            "CHANNELS": 1,
            "SPLITS": min(power_of_two(splits), 128),
            "COMPUTE": builder.compute,
            "EARLY": False,
        },
    )
    return totals
