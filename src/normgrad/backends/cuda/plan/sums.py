"""The first of two passes: partial sums, and how they are joined."""

from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.joins import add_parameters, parameters_of
from normgrad.backends.cuda.plan.layout import Layout, flatten, fold, folded, run_of
from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.tiles import WIDE, alignment, ceil_div, cut, magic, power_of_two
from normgrad.backends.cuda.plan.tuned import passes as tuned
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Op


def add_sums(
    builder: Builder, geometry: Geometry, layout: Layout, device: Device, *, reads_x: bool
) -> tuple[Ref, int]:
    """Partial sums of each unit; returns where they are and how many a unit has."""
    group = geometry.statistic == "row"
    units = layout.channels * (layout.outer if group else 1)
    arguments: dict[str, Argument] = {
        "dy": layout.gradient,
        "x": layout.x.ref if reads_x else None,
        "mean": builder.vector("mean") if reads_x and layout.gradient else None,
        **_before_activation(builder),
        "units": units,
        "channels": layout.channels,
        "group_size": geometry.channels,
    }
    layout, pixels = (
        flatten(layout) if not group and layout.inner <= tuned.PIXELS_AS_COLUMNS else (layout, 1)
    )
    if layout.family == "planes" and group and layout.inner <= tuned.SMALL_CHANNEL:
        return _add_unit_sums(builder, layout, arguments, units)
    if layout.family == "planes":
        return _add_plane_sums(builder, layout, device, arguments, units, group=group)
    return _add_column_sums(builder, layout, device, arguments, units, pixels, group=group)


def _before_activation(builder: Builder) -> dict[str, Argument]:
    """What an activation's argument is made of, where its slope is a factor of dy."""
    roles = ("rstd", "gamma", "beta")
    return {role: builder.vector(role) if builder.slopes else None for role in roles}


def _meaning(builder: Builder, arguments: dict[str, Argument]) -> dict[str, Any]:
    """Whether rstd is a variance, and then what is added to it; whether weights are a sample's."""
    given = arguments["rstd"] is not None and builder.given_variance
    arguments["eps"] = builder.spec.eps if given else None
    return {"VARIANCE": given, "EACH": builder.spec.samples > 1}


def _itemsize(layout: Layout) -> int:
    """Bytes of an element, of the wider of dy and x."""
    return max(ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[layout.x.ref.dtype])


def _add_plane_sums(
    builder: Builder,
    layout: Layout,
    device: Device,
    arguments: dict[str, Argument],
    units: int,
    *,
    group: bool,
) -> tuple[Ref, int]:
    """Channels first."""
    dy, x = layout.dy, layout.x
    itemsize = _itemsize(layout)
    cols = cut(layout.span, tuned.PLANE_COLUMNS)
    tile_rows = max(1, tuned.PLANE_BYTES // itemsize // cols)
    pieces = ceil_div(layout.span, cols)
    planes = 1 if group else layout.outer
    rows = planes * pieces
    wanted = tuned.PLANE_BLOCKS * device.multiprocessors
    typical = layout.channels * layout.typical if group else units
    splits = max(1, min(ceil_div(rows, 2 * tile_rows), ceil_div(wanted, typical)))
    align = alignment(itemsize, layout.inner, dy.outer, dy.channel, x.outer, x.channel)
    partials = builder.scratch(builder.numbers * units * splits, builder.compute)
    forward = builder.spec.operator.forward
    even = layout.window or align * itemsize >= 16
    arguments |= {
        "partials": partials,
        "splits": splits,
        "planes": planes,
        "pieces": pieces,
        "run": layout.inner // align,
        "dy_plane": 0 if group else dy.outer // align,
        "dy_outer": dy.outer // align if group else 0,
        "dy_channel": dy.channel // align,
        "x_plane": 0 if group else x.outer // align,
        "x_outer": x.outer // align if group else 0,
        "x_channel": x.channel // align,
        "magic": magic(pieces) if forward and rows * pieces < 1 << 32 else None,
    }
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "GROUP": group,
        "FULL_PIECES": forward and not layout.window and layout.inner % cols == 0,
        "WIDE": layout.span + cols >= WIDE,
        "ROWS": tile_rows,
        "COLS": cols,
        "ALIGN": align,
        "WINDOW": layout.window,
        "COMPUTE": builder.compute,
        "STAGES": tuned.PLANE_STAGES if even else tuned.UNALIGNED_STAGES,
        **_meaning(builder, arguments),
    }
    builder.launch("sums.plane_sums", (units * splits,), arguments, constants)
    return partials, splits


def _add_column_sums(
    builder: Builder,
    layout: Layout,
    device: Device,
    arguments: dict[str, Argument],
    units: int,
    pixels: int,
    *,
    group: bool,
) -> tuple[Ref, int]:
    """Channels last; ``pixels`` columns of each channel lie side by side."""
    narrow = tuned.COLUMN_COLUMNS
    layout, times = fold(layout, narrow) if pixels == 1 else (layout, 1)
    dy, x = layout.dy, layout.x
    itemsize = _itemsize(layout)
    elements = tuned.COLUMN_BYTES // itemsize  # of a tile
    cols = min(power_of_two(layout.channels), max(narrow, elements // power_of_two(layout.inner)))
    tile_rows = elements // cols
    blocks = ceil_div(layout.channels, cols)
    outer = layout.outer if group else 1
    most = ceil_div(layout.inner, 2 * tile_rows)
    typical = blocks * (layout.typical if group else 1)
    splits = max(1, min(most, ceil_div(tuned.COLUMN_BLOCKS * device.multiprocessors, typical)))
    align = alignment(itemsize, layout.channels, dy.outer, dy.inner, x.outer, x.inner)
    count = builder.numbers * units * pixels * splits * times
    partials = builder.scratch(count, builder.compute)
    arguments |= {
        **folded(layout, times, align),
        "units": units * pixels,
        "pixels": pixels if pixels > 1 else None,
        "times": times,
        "partials": partials,
        "splits": splits,
        "blocks": blocks,
        "rows": layout.inner,
        "dy_row": dy.inner // align,
        "dy_outer": dy.outer // align,
        "x_row": x.inner // align,
        "x_outer": x.outer // align,
    }
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "GROUP": group,
        "ROWS": tile_rows,
        "COLS": cols,
        "ALIGN": align,
        "RUN": run_of(layout, times),
        "COMPUTE": builder.compute,
        "STAGES": tuned.COLUMN_STAGES,
        **_meaning(builder, arguments),
    }
    # One axis of the grid: the others end at 65535, and there may be more samples.
    builder.launch("sums.column_sums", (splits * blocks * outer,), arguments, constants)
    return partials, pixels * splits * times


def _add_unit_sums(
    builder: Builder, layout: Layout, arguments: dict[str, Argument], units: int
) -> tuple[Ref, int]:
    """Small channels of images, several in a block, each whole."""
    dy, x = layout.dy, layout.x
    steps = (dy.outer, dy.channel, x.outer, x.channel)
    align = alignment(_itemsize(layout), layout.inner, *steps)
    partials = builder.scratch(builder.numbers * units, builder.compute)
    cols = power_of_two(layout.inner)
    arguments |= {
        "partials": partials,
        "run": layout.inner // align,
        "dy_outer": dy.outer // align,
        "dy_channel": dy.channel // align,
        "x_outer": x.outer // align,
        "x_channel": x.channel // align,
    }
    rows = max(1, tuned.SMALL_TILE // cols)
    constants: dict[str, Any] = {
        "ROWS": rows,
        "COLS": cols,
        "ALIGN": align,
        "COMPUTE": builder.compute,
    }
    constants |= {"WIDE": units + rows >= WIDE, "FORMULA": builder.formula}
    constants["EACH"] = builder.spec.samples > 1
    builder.launch("sums.unit_sums", (ceil_div(units, rows),), arguments, constants)
    return partials, 1


def add_statistics(
    builder: Builder, partials: Ref, statistics: int, parts: int, device: Device
) -> tuple[Ref, Ref]:
    """Join the parts of each statistic; returns mean and rstd for who writes y."""
    spec = builder.spec
    early = device.starts_early
    lanes = min(power_of_two(parts), 128 if parts <= 1024 else 1024)
    size = max(1, 256 // lanes)
    given, made = (builder.scratch(statistics, builder.compute) for _ in range(2))
    builder.launch(
        "finish.finish_statistics",
        (ceil_div(statistics, size),),
        {
            "partials": partials,
            "next_mean": given,
            "next_rstd": made,
            "mean": builder.result("mean") if spec.operator.centred else None,
            "rstd": builder.result("rstd"),
            **builder.running(),
            "statistics": statistics,
            "parts": parts,
            "eps": spec.eps,
        },
        {
            "FORMULA": builder.formula,
            "VARIANCE": spec.rstd_is == "variance",
            "UNITS": size,
            "PARTS": lanes,
            "COMPUTE": builder.compute,
            "EARLY": early,
        },
        early=early,
    )
    return given, made


def add_finish(
    builder: Builder,
    geometry: Geometry,
    layout: Layout,
    device: Device,
    partials: Ref,
    splits: int,
    needs_totals: bool,
) -> Ref | None:
    """Join the partial sums; returns the sums of each statistic if dx needs them."""
    spec = builder.spec
    units = layout.channels * (layout.outer if geometry.statistic == "row" else 1)
    # Few channels, folded, have thousands of partial sums each, and few blocks to join them.
    lanes = min(power_of_two(splits), 128 if splits <= 1024 else 2048)
    totals = builder.scratch(2 * geometry.statistics, builder.compute) if needs_totals else None
    early = device.starts_early
    common: dict[str, Any] = {"SPLITS": lanes, "COMPUTE": builder.compute, "EARLY": early}
    base: dict[str, Argument] = {"partials": partials, "units": units, "splits": splits}
    if geometry.statistic == "channel":
        size = max(1, 256 // lanes)
        reduces = spec.op is Op.BATCH_NORM_REDUCE_BACKWARD
        arguments = base | {
            "rstd": builder.vector("rstd"),
            "totals": totals,
            "sum_dy": builder.result("sum_dy") if reduces else None,
            "sum_dy_xmu": builder.result("sum_dy_xmu") if reduces else None,
            "dgamma": builder.result("dgamma"),
            "dbeta": builder.result("dbeta"),
            "eps": spec.eps,
        }
        constants = {"UNITS": size, "VARIANCE": builder.given_variance, **common}
        builder.launch(
            "finish.finish_channels", (ceil_div(units, size),), arguments, constants, early=early
        )
        return totals
    if totals is not None:
        arguments = base | {
            "gamma": builder.vector("gamma"),
            "totals": totals,
            "channels": parameters_of(geometry, layout).channels,
            "group_size": geometry.channels,
            "statistics": geometry.statistics,
        }
        size = min(power_of_two(geometry.channels), max(1, 1024 // lanes))
        constants = {"CHANNELS": size, **common}
        builder.launch(
            "finish.finish_groups", (geometry.statistics,), arguments, constants, early=early
        )
    add_parameters(builder, geometry, layout, partials, splits)
    return totals
