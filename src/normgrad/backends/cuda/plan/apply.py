"""Element by element: the second of two passes, the element stage and inference."""

from typing import Any

from normgrad.backends.cuda.plan.layout import Data, Layout, flatten, fold, folded, run_of
from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.tiles import WIDE, alignment, ceil_div, cut, power_of_two
from normgrad.backends.cuda.plan.tuned import passes as tuned
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Op


def add_apply(
    builder: Builder,
    geometry: Geometry,
    layout: Layout,
    totals: Ref | None,
    *,
    correct: bool,
    made: tuple[Ref, Ref] | None = None,  # mean and rstd, if they are not given
) -> None:
    """Write dx or y element by element."""
    spec = builder.spec
    group = geometry.statistic == "row"
    x, dx = layout.x, layout.dx
    assert dx is not None
    bits = builder.bits()
    mean, rstd = made or (builder.vector("mean"), builder.vector("rstd"))
    sums, counts = _sums(builder, geometry, totals)
    inference = spec.op is Op.BATCH_NORM_BACKWARD and not spec.training
    reads_x = not inference or spec.activation is not None
    itemsize = max(ITEMSIZE[one.ref.dtype] for one in layout.tensors)
    arguments: dict[str, Argument] = {
        "dy": layout.gradient,
        "x": x.ref if reads_x else None,
        "dx": dx.ref,
        "shortcut": layout.shortcut_ref,
        "bits": bits,
        "mean": mean,
        "rstd": rstd,
        "gamma": builder.vector("gamma"),
        "beta": builder.vector("beta"),
        **sums,
        "counts": counts,
        "group_size": geometry.channels,
        "count": float(geometry.count),
        "eps": spec.eps,
    }
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "GROUP": group,
        "EACH": geometry.samples > 1,
        "CORRECT": correct and not inference,
        "VARIANCE": builder.given_variance and made is None,
        "REVERSE": totals is not None or made is not None,
        "COUNTS": power_of_two(counts),
        "COMPUTE": builder.compute,
    }
    # Planes that start at multiples of 16 bytes are better as they are.
    odd = not group and layout.inner * itemsize % 16
    in_windows = layout.window and layout.inner >= tuned.PIXELS_IN_WINDOWS[itemsize]
    # Bytes of a mask begin with each plane, or with each row of channels.
    layout, pixels = flatten(layout) if odd and not in_windows and not bits else (layout, 1)
    arguments["channels"] = layout.channels
    if layout.family == "planes":
        _add_plane_apply(builder, layout, itemsize, arguments, constants)
    else:
        _add_column_apply(builder, layout, itemsize, arguments, constants, pixels)


def _add_plane_apply(
    builder: Builder,
    layout: Layout,
    itemsize: int,
    arguments: dict[str, Argument],
    constants: dict[str, Any],
) -> None:
    """Channels first."""
    bits = arguments["bits"] is not None
    window = 0 if bits else layout.window
    span = layout.span if window else layout.inner
    tile = tuned.PLANE_TILE
    cols = cut(span, tile) if window else min(power_of_two(layout.inner), tile)
    cols = max(cols, 8) if bits else cols
    tile_rows = max(1, tile // cols)
    pieces = ceil_div(span, cols)
    rows = layout.outer * layout.channels * pieces
    steps = [step for one in layout.tensors for step in (one.outer, one.channel)]
    align = alignment(itemsize, layout.inner, *steps)
    arguments |= {"rows": rows, "pieces": pieces, "run": layout.inner // align}
    arguments |= _steps(layout, "channel", align)
    constants |= {"ROWS": tile_rows, "COLS": cols, "ALIGN": align, "WINDOW": window}
    constants["WIDE"] = max(rows + tile_rows, span + cols) >= WIDE
    grid = (ceil_div(rows, tile_rows),)
    builder.launch("apply.plane_apply", grid, arguments, constants, warps=tuned.PLANE_WARPS)


def _add_column_apply(
    builder: Builder,
    layout: Layout,
    itemsize: int,
    arguments: dict[str, Argument],
    constants: dict[str, Any],
    pixels: int,
) -> None:
    """Channels last; ``pixels`` columns of each channel lie side by side."""
    bits = arguments["bits"] is not None
    folds = pixels == 1 and (itemsize == 2 or layout.channels % 4) and not bits
    layout, times = fold(layout, tuned.FOLDED_COLUMNS) if folds else (layout, 1)
    cols = min(power_of_two(layout.channels), 256)
    sizes = tuned.COLUMN_TILES_16 if itemsize == 2 else {}
    warps, each = sizes.get(cols, tuned.COLUMN_TILE)
    cols = min(power_of_two(layout.channels), max(cols, each // power_of_two(layout.inner)))
    cols = max(cols, 8) if bits else cols
    tile_rows = max(1, each // cols)
    steps = [step for one in layout.tensors for step in (one.outer, one.inner)]
    align = alignment(itemsize, layout.channels, *steps)
    tiles, blocks = ceil_div(layout.inner, tile_rows), ceil_div(layout.channels, cols)
    arguments |= {"rows": layout.inner, **folded(layout, times, align)}
    arguments["pixels"] = pixels if pixels > 1 else None
    arguments["tiles"] = tiles if layout.outer > 1 else None
    arguments["blocks"] = blocks if blocks > 1 else None
    arguments |= _steps(layout, "row", align)
    constants |= {"ROWS": tile_rows, "COLS": cols, "ALIGN": align, "RUN": run_of(layout, times)}
    grid = (tiles * blocks * layout.outer,)
    builder.launch("apply.column_apply", grid, arguments, constants, warps=warps)


def _steps(layout: Layout, kind: str, align: int) -> dict[str, Argument]:
    def entry(name: str, one: Data) -> dict[str, Argument]:
        second = one.channel if kind == "channel" else one.inner
        return {f"{name}_outer": one.outer // align, f"{name}_{kind}": second // align}

    assert layout.dx is not None
    besides: dict[str, Argument] = {"shortcut_outer": None, f"shortcut_{kind}": None}
    if layout.shortcut is not None:
        besides = entry("shortcut", layout.shortcut)
    return entry("dy", layout.dy) | entry("x", layout.x) | entry("dx", layout.dx) | besides


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
    if counts > tuned.MOST_COUNTS:
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
