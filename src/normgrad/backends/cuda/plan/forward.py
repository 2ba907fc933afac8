"""Plans of forward operators: statistics of the data, and y made of them."""

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.apply import add_apply
from normgrad.backends.cuda.plan.columns import resident_columns
from normgrad.backends.cuda.plan.layout import lay_out
from normgrad.backends.cuda.plan.long_rows import long_rows
from normgrad.backends.cuda.plan.planes import resident_planes
from normgrad.backends.cuda.plan.program import Builder, Program
from normgrad.backends.cuda.plan.row_data import rows_of
from normgrad.backends.cuda.plan.rows import norm_rows
from normgrad.backends.cuda.plan.sums import add_statistics, add_sums
from normgrad.backends.cuda.plan.tiles import ceil_div
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Op


def plan_forward(builder: Builder, geometry: Geometry, device: Device) -> Program:
    """Data that stay on chip are read once, others twice."""
    spec = builder.spec
    if geometry.size == 0:
        if geometry.statistics and spec.operator.sums != "given":
            partials = builder.scratch(4 * geometry.statistics, builder.compute)
            builder.fill(partials, 4 * geometry.statistics, 0)
            add_statistics(builder, partials, geometry.statistics, 1, device)
        return builder.finish("statistics of nothing")
    if spec.op is Op.BATCH_NORM_GATHER_STATS:
        _join_ranks(builder, geometry, device)
        return builder.finish("statistics of ranks")
    if spec.operator.axes == "rows":
        data = rows_of(builder, geometry)
        programs = norm_rows(builder, geometry, device, data)
        if programs is not None:
            return builder.finish(f"whole rows, {programs} programs")
        long_rows(builder, geometry, device, data, reads_x=True)
        return builder.finish("long rows")
    layout = lay_out(builder, geometry)
    plan_resident = {"planes": resident_planes, "columns": resident_columns}[layout.family]
    whole = spec.y is not None and spec.operator.sums == "own"
    if whole and plan_resident(builder, geometry, layout, device):
        besides = "" if spec.shortcut is None else " with a shortcut"
        return builder.finish(f"resident {layout.family}{besides}")
    name, made = "elements", None
    if spec.operator.sums != "given":
        name = "statistics" if spec.y is None else "two passes"
        partials, splits = add_sums(builder, geometry, layout, device, reads_x=True)
        parts = splits * (geometry.channels if geometry.statistic == "row" else 1)
        made = add_statistics(builder, partials, geometry.statistics, parts, device)
    if spec.y is not None:
        add_apply(builder, geometry, layout, None, correct=False, made=made)
    return builder.finish(f"{name} ({layout.family})")


def _join_ranks(builder: Builder, geometry: Geometry, device: Device) -> None:
    """The statistics of ranks become those of all."""
    ranks, channels = geometry.outer, geometry.channels
    partials = builder.scratch(4 * ranks * channels, builder.compute)
    tile = 8, 128
    builder.launch(
        "finish.rank_parts",
        (ceil_div(ranks, tile[0]), ceil_div(channels, tile[1])),
        {
            "means": builder.vector("x"),
            "variances": builder.vector("variances"),
            "counter": builder.vector("counter"),
            "partials": partials,
            "ranks": ranks,
            "channels": channels,
            "eps": builder.spec.eps,
        },
        {
            "RANKS": tile[0],
            "CHANNELS": tile[1],
            "INVSTD": builder.spec.variances_are == "invstd",
            "COMPUTE": builder.compute,
        },
    )
    add_statistics(builder, partials, channels, ranks, device)
