"""Layer norm of rows that are not kept on chip: two passes."""

from dataclasses import dataclass

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.joins import finish_rows
from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.row_data import RowData, row_besides, row_operands, row_sizes
from normgrad.backends.cuda.plan.sums import add_statistics
from normgrad.backends.cuda.plan.tiles import ceil_div, power_of_two
from normgrad.core.geometry import Geometry

# Elements of a tile: 16x1048576 in bfloat16 takes 67 us with one row of 1024, 83 with four of 512,
# 159 with 16 of 256; without dx 26, 39 and 93.
_TILE = 1024
_SOME_ROWS, _MANY_ROWS = 64, 512
_SPAN = 8192  # columns of a row that a block adds up


@dataclass(frozen=True, slots=True)
class _Strips:
    """Columns that ``parts`` blocks go down together, in tiles."""

    rows: int  # of a tile
    cols: int
    parts: int
    stages: int


def _strips(rows: int, cols: int, itemsize: int, device: Device, writes: bool) -> _Strips:
    """Few parts, as each has sums of its own; strips so narrow that there are blocks enough.

    Without dx nothing is joined where all blocks go down all rows. Few rows want 2 KB of each: in
    bfloat16 16x200000 takes 9.6 us so, 22.6 with 512 bytes of all rows, 33 in parts; 3x100000 takes
    5.3, 11 and 18. Some rows come without a loop, or nearly: 100x65536 in 17.8, 20.3 in tiles of
    32; in float32 22.5 and 24.9. Many are as sums of channels last: 1024x12288 in 22.7, 28.0 in
    tiles of 64.
    """
    per: float  # blocks of a multiprocessor
    if writes:
        tile_rows, width, per, stages = 1, _TILE, 4, 3
    elif rows < _SOME_ROWS:
        tile_rows, width, per, stages = 4, 2048 // itemsize, 0, 3
    elif rows < _MANY_ROWS:
        tile_rows, width, per, stages = 64, 64, 0.5, 1
    else:
        tile_rows, width, per, stages = 128 // itemsize, 64, 2, 4
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
    """The two sums of each row, by several blocks, however many rows there are; and by how many.

    With one block for each 16x1048576 in bfloat16 takes 1076 us on an H200.
    """
    width = min(power_of_two(cols), 2048)
    splits = ceil_div(cols, _SPAN)
    partials = builder.scratch(builder.numbers * rows * splits, builder.compute)
    rstd = builder.vector("rstd") if builder.slopes else None
    given: dict[str, Argument] = {
        "rstd": rstd,
        "beta": common["beta"] if builder.slopes else None,
    }
    builder.launch(
        "apply.row_statistics",
        (rows * splits,),
        common | given | {"partials": partials, "splits": splits, "span": _SPAN},
        {
            "FORMULA": builder.formula,
            # Gradients keep the order of their sums, which wide loads would change.
            "SPAN": _SPAN if builder.spec.operator.forward else 0,
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
        "sums.finish_groups",  # each row is a group of one channel, with gamma inside already
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
