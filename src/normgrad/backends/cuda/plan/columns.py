"""Plans for channels-last data: slabs stay on chip, or as much of them as there is room for."""

from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan import column_cuts
from normgrad.backends.cuda.plan.column_cuts import Cut, Slabs
from normgrad.backends.cuda.plan.forms import tiles_for_slope
from normgrad.backends.cuda.plan.joins import joint_parameters, parameters_of
from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.program import Argument, Builder
from normgrad.backends.cuda.plan.tiles import alignment, ceil_div
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry


def resident_columns(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Channels last; False where the data lie unevenly or two passes are as good."""
    data = slabs_of(builder, geometry, layout, device)
    if data is None:
        return False
    if layout.batch_independent:
        best = column_cuts.settle(data, device, layout.typical)
    else:
        best = column_cuts.choose(data, device)
    if best is None:
        return False
    add_columns(builder, geometry, layout, device, data, best)
    return True


def slabs_of(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> Slabs | None:
    """What there is to do; None where asynchronous copies cannot do it."""
    x, shortcut = layout.x, layout.shortcut
    if builder.compute != "float32" or not layout.same_strides or not device.copies_ahead:
        return None
    if shortcut is not None and shortcut.ref.dtype != x.ref.dtype:
        return None
    itemsizes = {ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[x.ref.dtype]}
    itemsize = max(itemsizes)
    align = alignment(itemsize, layout.channels, x.outer, x.inner)
    # The least that an asynchronous copy takes; rows of a tile that 32-bit offsets reach.
    if align * min(itemsizes) < 4 or layout.channels * itemsize < 16 or x.inner >= 1 << 21:
        return None
    group = geometry.channels if geometry.statistic == "row" else 1
    tensors = 1 if layout.gradient is None else 2
    slopes = tiles_for_slope(builder.spec)
    sizes = (layout.outer, layout.inner, layout.channels)
    besides = shortcut is not None, builder.spec.mask is not None
    return Slabs(*sizes, group, itemsize, align, tensors, slopes, *besides)


def add_columns(
    builder: Builder, geometry: Geometry, layout: Layout, device: Device, data: Slabs, cut: Cut
) -> None:
    """The launches of one cut."""
    spec = builder.spec
    group = geometry.statistic == "row"
    forward = spec.operator.forward
    x = layout.x
    split = ceil_div(data.channels, cut.width)
    slabs = data.images * split
    bins = cut.width // data.group
    solo = cut.team == 1 and not cut.streams
    ring = (cut.depth + cut.fixed) * layout.tile_bytes
    count = slabs * (cut.parts + (cut.totals_columns > 0)) * cut.spans * bins
    wants = group and builder.wants_parameters
    sums = 2 * data.images * data.channels * cut.parts
    partials = builder.scratch(sums, "float32") if wants else None
    arguments: dict[str, Argument] = {
        **layout.operands(builder, results=True),
        **builder.running(),
        "partials": partials,
        "slabs": slabs,
        "rows": data.rows,
        "parts": cut.parts,
        "pieces": cut.pieces,
        "width": cut.width // data.align,
        "bins": bins,
        "team": cut.team,
        "teams": cut.teams,
        "split": split,
        "images": data.images,
        "channels": data.channels // data.align,
        "row_step": x.inner // data.align,
        "outer_step": x.outer // data.align,
        "count": float(geometry.count),
        "eps": spec.eps,
    }
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "GROUP": group,
        "GROUP_SIZE": data.group,
        "EACH": geometry.samples > 1,
        "VARIANCE": spec.rstd_is == "variance" if forward else builder.given_variance,
        "DEPTH": cut.depth,
        "REGISTER_TILES": cut.held,
        "ROWS": cut.rows,
        "COLS": cut.cols,
        "BINS": cut.bins,
        "SPANS": cut.spans,
        "STEP": cut.step,
        "TOTALS_COLUMNS": cut.totals_columns,
        "VECTOR": 16 // data.itemsize,
        "WARPS": cut.block.warps,
        "ALIGN": data.align,
        "L2_TILES": 0 if forward else cut.l2_tiles,
        **joint_parameters(
            parameters_of(geometry, layout), cut.parts, cut.block.warps, joins=wants
        ),
        "PHASE": 0,
    }
    if cut.streams:
        kernel = "column_streams.column_streams"
        arguments["stream"] = cut.tiles - cut.fixed - cut.held
        constants["FIXED"] = cut.fixed
    else:
        kernel = "columns.column_slabs"
        # See `own_copies`.
        constants |= {"CHUNKS": cut.tiles, "SOLO": solo, "TOGETHER": cut.rounds > 1}
        constants["REQUEST_AFTER_PUBLISH"] = cut.requests_after_publish
        constants["BESIDE"] = cut.beside
        arguments |= {"shortcut": layout.shortcut_ref, "bits": builder.bits()}
        ring += cut.beside * data.itemsize
    builder.launch_teams(
        kernel,
        (cut.team * cut.teams,),
        arguments,
        constants,
        words=0 if solo else count,
        joins=wants,
        starts_early=device.starts_early,
        warps=cut.block.warps,
        registers=cut.block.registers,
        ring=cut.rows * cut.cols * ring,
    )
