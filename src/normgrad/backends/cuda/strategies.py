"""Which kernels compute a request, with which tiles."""

import dataclasses
import math
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.layout import Data, Layout, fold, lay_out
from normgrad.backends.cuda.parameters import add_parameters
from normgrad.backends.cuda.program import Argument, Builder, Launch, Program, Ref
from normgrad.backends.cuda.resident import resident_planes
from normgrad.backends.cuda.resident_columns import resident_columns
from normgrad.backends.cuda.rows_plan import plan_rows
from normgrad.backends.cuda.tiles import alignment, ceil_div, cut, power_of_two
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry
from normgrad.spec import Op, Spec

_MOST_COUNTS = 1024  # counts of ranks that every block adds up itself


def make_program(spec: Spec, geometry: Geometry, compute: str, device: Device) -> Program:
    """The kernel plan: a pure function of its arguments."""
    program = _make(spec, geometry, compute, device, resident=True)
    if not any(isinstance(step, Launch) and step.aligned for step in program.steps):
        return program
    # Asynchronous copies take 4 bytes at the least, at addresses that are multiples of that.
    other = _make(spec, geometry, compute, device, resident=False)
    return dataclasses.replace(program, unaligned=other)


def _make(
    spec: Spec, geometry: Geometry, compute: str, device: Device, *, resident: bool
) -> Program:
    builder = Builder(spec, compute)
    if geometry.size == 0:
        return _zeros(builder)
    if spec.op is Op.LAYER_NORM:
        return plan_rows(builder, geometry, device, teams=resident)
    layout = lay_out(builder, geometry)
    sums_wanted = any(role != "dx" for role in spec.wanted)
    corrected = spec.op is not Op.BATCH_NORM_ELEMT and spec.training
    if resident and spec.dx is not None and corrected:
        keep = {"planes": resident_planes, "columns": resident_columns}[layout.family]
        if keep(builder, geometry, layout, device):
            return builder.finish(f"resident {layout.family}")
    name = "elements"
    totals = None
    if spec.op is not Op.BATCH_NORM_ELEMT and (sums_wanted or (spec.dx and corrected)):
        name = "sums" if spec.dx is None else "two passes"
        reads_x = bool(spec.dx and corrected) or not {"dgamma", "sum_dy_xmu"}.isdisjoint(
            spec.wanted
        )
        partials, splits = add_sums(builder, geometry, layout, device, reads_x=reads_x)
        totals = add_finish(
            builder, geometry, layout, device, partials, splits, spec.dx and corrected
        )
    if spec.dx is not None:
        add_apply(builder, geometry, layout, totals, correct=corrected or totals is None)
    return builder.finish(f"{name} ({layout.family})")


def _zeros(builder: Builder) -> Program:
    """Nothing to add up: parameter gradients are 0."""
    for role in builder.spec.wanted:
        tensor = builder.spec.tensor(role)
        target = builder.result(role)
        if tensor is not None and target is not None and tensor.size:
            builder.fill(target, tensor.size, 0)
    return builder.finish("zeros")


def add_sums(
    builder: Builder, geometry: Geometry, layout: Layout, device: Device, *, reads_x: bool
) -> tuple[Ref, int]:
    """Partial sums of each unit; returns where they are and how many a unit has."""
    group = geometry.statistic == "row"
    units = layout.channels * (layout.outer if group else 1)
    dy, x = layout.dy, layout.x
    itemsize = max(ITEMSIZE[dy.ref.dtype], ITEMSIZE[x.ref.dtype])
    vector = 16 // itemsize
    common: dict[str, Any] = {"GROUP": group, "COMPUTE": builder.compute}
    arguments: dict[str, Argument] = {
        "dy": dy.ref,
        "x": x.ref if reads_x else None,
        "mean": builder.vector("mean") if reads_x else None,
        "units": units,
        "channels": layout.channels,
        "group_size": geometry.channels,
    }
    if layout.family == "planes":
        cols = cut(layout.inner, 1024)
        tile_rows = max(1, 128 * vector * 2 // cols)
        pieces = ceil_div(layout.inner, cols)
        planes = 1 if group else layout.outer
        rows = planes * pieces
        wanted = 4 * device.multiprocessors  # as many blocks as run at once
        splits = max(1, min(ceil_div(rows, 2 * tile_rows), ceil_div(wanted, units)))
        align = alignment(itemsize, layout.inner, dy.outer, dy.channel, x.outer, x.channel)
        partials = builder.scratch(2 * units * splits, builder.compute)
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
        }
        constants = {"ROWS": tile_rows, "COLS": cols, "ALIGN": align, "STAGES": 3, **common}
        builder.launch("sums.plane_sums", (units * splits,), arguments, constants)
        return partials, splits
    # Narrow tiles, all blocks along one front, two of them a multiprocessor that fetch three tiles
    # ahead: 59.5 us for 64x256x56x56 in bfloat16 on an H200, 64.2 with tiles of 256 channels and
    # rows in one piece for each block; float32 102 instead of 106.
    layout, times = fold(layout, 64)
    dy, x = layout.dy, layout.x
    cols = min(power_of_two(layout.channels), 64)
    tile_rows = 512 * vector // cols
    blocks = ceil_div(layout.channels, cols)
    outer = layout.outer if group else 1
    most = ceil_div(layout.inner, 2 * tile_rows)
    splits = max(1, min(most, ceil_div(2 * device.multiprocessors, blocks * outer)))
    align = alignment(itemsize, layout.channels, dy.outer, dy.inner, x.outer, x.inner)
    partials = builder.scratch(2 * units * splits * times, builder.compute)
    arguments |= {
        **_folded(layout, times, align),
        "times": times,
        "partials": partials,
        "splits": splits,
        "rows": layout.inner,
        "dy_row": dy.inner // align,
        "dy_outer": dy.outer // align,
        "x_row": x.inner // align,
        "x_outer": x.outer // align,
    }
    constants = {"ROWS": tile_rows, "COLS": cols, "ALIGN": align, "STAGES": 4, **common}
    constants["RUN"] = _run(layout, times)
    # One axis of the grid: the others end at 65535, and there may be more samples.
    arguments["blocks"] = blocks
    builder.launch("sums.column_sums", (splits * blocks * outer,), arguments, constants)
    return partials, splits * times


def _run(layout: Layout, times: int) -> int:
    """Channels that are neighbours wherever rows start: what parameters are loaded in."""
    return math.gcd(layout.channels // times, 8)


def _folded(layout: Layout, times: int, align: int) -> dict[str, Argument]:
    """Sizes of rows that lie side by side."""
    period = layout.channels // times // _run(layout, times) if times > 1 else None
    return {"channels": layout.channels // align, "period": period}


def add_finish(
    builder: Builder,
    geometry: Geometry,
    layout: Layout,
    device: Device,
    partials: Ref,
    splits: int,
    needs_totals: object,
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
        reduces = spec.op is Op.BATCH_NORM_REDUCE
        arguments = base | {
            "rstd": builder.vector("rstd"),
            "totals": totals,
            "sum_dy": builder.result("sum_dy") if reduces else None,
            "sum_dy_xmu": builder.result("sum_dy_xmu") if reduces else None,
            "dgamma": builder.result("dgamma"),
            "dbeta": builder.result("dbeta"),
            "eps": spec.eps,
        }
        constants = {"UNITS": size, "VARIANCE": spec.rstd_is == "variance", **common}
        builder.launch(
            "sums.finish_channels", (ceil_div(units, size),), arguments, constants, early=early
        )
        return totals
    if totals is not None:
        arguments = base | {
            "gamma": builder.vector("gamma"),
            "totals": totals,
            "channels": layout.channels,
            "group_size": geometry.channels,
            "statistics": geometry.statistics,
        }
        size = min(power_of_two(geometry.channels), max(1, 1024 // lanes))
        constants = {"CHANNELS": size, **common}
        builder.launch(
            "sums.finish_groups", (geometry.statistics,), arguments, constants, early=early
        )
    add_parameters(builder, geometry, layout, partials, splits)
    return totals


def add_apply(
    builder: Builder,
    geometry: Geometry,
    layout: Layout,
    totals: Ref | None,
    *,
    correct: bool,
) -> None:
    """Write dx element by element."""
    spec = builder.spec
    group = geometry.statistic == "row"
    dy, x, dx = layout.dy, layout.x, layout.dx
    assert dx is not None
    sums, counts = _sums(builder, geometry, totals)
    inference = spec.op is Op.BATCH_NORM and not spec.training
    itemsize = max(ITEMSIZE[one.ref.dtype] for one in layout.tensors)
    arguments: dict[str, Argument] = {
        "dy": dy.ref,
        "x": None if inference else x.ref,
        "dx": dx.ref,
        "mean": builder.vector("mean"),
        "rstd": builder.vector("rstd"),
        "gamma": builder.vector("gamma"),
        **sums,
        "counts": counts,
        "channels": layout.channels,
        "group_size": geometry.channels,
        "count": float(geometry.count),
        "eps": spec.eps,
    }
    constants: dict[str, Any] = {
        "GROUP": group,
        "CORRECT": correct and not inference,
        "VARIANCE": spec.rstd_is == "variance",
        "REVERSE": totals is not None,
        "COUNTS": power_of_two(counts),
        "COMPUTE": builder.compute,
    }
    if layout.family == "planes":
        cols = min(power_of_two(layout.inner), 1024)
        # 64x256x56x56 in bfloat16 on an H200: 99.3 % with 1024 elements for 4 warps, 98.7 for one,
        # 97 with 2048 for two; float32 103 % with any of them.
        tile_rows = max(1, 1024 // cols)
        pieces = ceil_div(layout.inner, cols)
        rows = layout.outer * layout.channels * pieces
        steps = [step for one in layout.tensors for step in (one.outer, one.channel)]
        align = alignment(itemsize, layout.inner, *steps)
        arguments |= {"rows": rows, "pieces": pieces, "run": layout.inner // align}
        arguments |= _steps(layout, "channel", align)
        constants |= {"ROWS": tile_rows, "COLS": cols, "ALIGN": align}
        constants["WIDE"] = rows + tile_rows >= 1 << 31
        grid: tuple[int, ...] = (ceil_div(rows, tile_rows),)
        builder.launch("apply.plane_apply", grid, arguments, constants, warps=4)
        return
    # In float32 rows that are multiples of 16 bytes take 1 % longer folded.
    layout, times = fold(layout, 256) if itemsize == 2 or layout.channels % 4 else (layout, 1)
    cols = min(power_of_two(layout.channels), 256)
    # In bfloat16 on an H200: 64x256x56x56 75.4 us with 4096 elements for 8 warps, 75.8 to 126 with
    # others; 256x64x112x112 282.4 with 1024 for two, 283.4 with 512 for one, 292 to 329 with 1024
    # for one or 4096 for 4 or 8; 320 channels folded 92.3, 98.5, 107.5 with 4096, 2048, 1024 for
    # 8, 4, 2. In float32 they are alike.
    sizes = {64: (2, 1024), 256: (8, 4096)} if itemsize == 2 else {}
    warps, each = sizes.get(cols, (1, 512))
    tile_rows = max(1, each // cols)
    steps = [step for one in layout.tensors for step in (one.outer, one.inner)]
    align = alignment(itemsize, layout.channels, *steps)
    tiles, blocks = ceil_div(layout.inner, tile_rows), ceil_div(layout.channels, cols)
    arguments |= {"rows": layout.inner, **_folded(layout, times, align)}
    arguments["tiles"] = tiles if layout.outer > 1 else None
    arguments["blocks"] = blocks if blocks > 1 else None
    arguments |= _steps(layout, "row", align)
    constants |= {"ROWS": tile_rows, "COLS": cols, "ALIGN": align, "RUN": _run(layout, times)}
    grid = (tiles * blocks * layout.outer,)
    builder.launch("apply.column_apply", grid, arguments, constants, warps=warps)


def _steps(layout: Layout, kind: str, align: int) -> dict[str, Argument]:
    def entry(name: str, one: Data) -> dict[str, Argument]:
        second = one.channel if kind == "channel" else one.inner
        return {f"{name}_outer": one.outer // align, f"{name}_{kind}": second // align}

    assert layout.dx is not None
    return entry("dy", layout.dy) | entry("x", layout.x) | entry("dx", layout.dx)


def _sums(
    builder: Builder, geometry: Geometry, totals: Ref | None
) -> tuple[dict[str, Argument], int]:
    """The two sums of each statistic, where the count behind them is, and in how many parts."""
    if totals is not None:
        second = totals._replace(
            offset=totals.offset + geometry.statistics * ITEMSIZE[builder.compute]
        )
        return {"first_sum": totals, "second_sum": second, "counter": None}, 1
    counter = builder.spec.counter
    if counter is None:
        return {"first_sum": None, "second_sum": None, "counter": None}, 1
    ref, counts = builder.vector("counter"), counter.size
    if counts > _MOST_COUNTS:
        total = builder.scratch(1, "float64")
        arguments: dict[str, Argument] = {"counter": ref, "total": total, "size": counts}
        builder.launch("copy.add_counts", (1,), arguments, {"BLOCK": 1024})
        ref, counts = total, 1
    given: dict[str, Argument] = {
        "first_sum": builder.vector("sum_dy"),
        "second_sum": builder.vector("sum_dy_xmu"),
        "counter": ref,
    }
    return given, counts
