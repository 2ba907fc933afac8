"""Element by element: the second of two passes, the element stage and inference."""

from typing import Any

from normgrad.backends.cuda.plan.layout import Data, Layout, flatten, fold, folded, run_of
from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.tiles import WIDE, alignment, ceil_div, cut, power_of_two
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Op

# Pixels of odd planes, by their itemsize, from which on windows are better than columns: 23x23
# images in float32 take 34.8 and 30.1 us so (64x256x23x23), 31x31 38.5 and 38.8; in bfloat16 9x9
# 26.3 and 20.9 (256x512x9x9), 15x15 27.3 and 27.0, 21x21 25.7 and 27.3 (64x512x21x21).
_SHORT = {2: 256, 4: 900}
_MOST_COUNTS = 1024  # counts of ranks that every block adds up itself


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
    mean, rstd = made or (builder.vector("mean"), builder.vector("rstd"))
    sums, counts = _sums(builder, geometry, totals)
    bits = builder.result("mask") if spec.operator.forward else builder.vector("mask")
    inference = spec.op is Op.BATCH_NORM_BACKWARD and not spec.training
    reads_x = not inference or spec.activation is not None
    itemsize = max(ITEMSIZE[one.ref.dtype] for one in layout.tensors)
    arguments: dict[str, Argument] = {
        "dy": layout.gradient,
        "x": x.ref if reads_x else None,
        "dx": dx.ref,
        "shortcut": None if layout.shortcut is None else layout.shortcut.ref,
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
    # Planes that start at multiples of 16 bytes are better as they are: 64x256x8x8 takes 5.6 us so
    # and 6.3 as columns, 64x512x7x7 14.5 and 6.9, 64x192x31x31 27.9 and 24.0 (bfloat16).
    odd = not group and layout.inner * itemsize % 16
    in_windows = layout.window and layout.inner >= _SHORT[itemsize]
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
    cols = cut(span, 1024) if window else min(power_of_two(layout.inner), 1024)
    cols = max(cols, 8) if bits else cols
    # 64x256x56x56 in bfloat16 on an H200: 99.3 % with 1024 elements for 4 warps, 98.7 for one, 97
    # with 2048 for two; float32 103 % with any of them.
    tile_rows = max(1, 1024 // cols)
    pieces = ceil_div(span, cols)
    rows = layout.outer * layout.channels * pieces
    steps = [step for one in layout.tensors for step in (one.outer, one.channel)]
    align = alignment(itemsize, layout.inner, *steps)
    arguments |= {"rows": rows, "pieces": pieces, "run": layout.inner // align}
    arguments |= _steps(layout, "channel", align)
    constants |= {"ROWS": tile_rows, "COLS": cols, "ALIGN": align, "WINDOW": window}
    constants["WIDE"] = max(rows + tile_rows, span + cols) >= WIDE
    builder.launch("apply.plane_apply", (ceil_div(rows, tile_rows),), arguments, constants, warps=4)


def _add_column_apply(
    builder: Builder,
    layout: Layout,
    itemsize: int,
    arguments: dict[str, Argument],
    constants: dict[str, Any],
    pixels: int,
) -> None:
    """Channels last; ``pixels`` columns of each channel lie side by side."""
    # In float32 rows that are multiples of 16 bytes take 1 % longer folded.
    bits = arguments["bits"] is not None
    folds = pixels == 1 and (itemsize == 2 or layout.channels % 4) and not bits
    layout, times = fold(layout, 256) if folds else (layout, 1)
    cols = min(power_of_two(layout.channels), 256)
    # In bfloat16 on an H200: 64x256x56x56 75.4 us with 4096 elements for 8 warps, 75.8 to 126 with
    # others; 256x64x112x112 282.4 with 1024 for two, 283.4 with 512 for one, 292 to 329 with 1024
    # for one or 4096 for 4 or 8; 320 channels folded 92.3, 98.5, 107.5 with 4096, 2048, 1024 for
    # 8, 4, 2. In float32 they are alike.
    sizes = {64: (2, 1024), 256: (8, 4096)} if itemsize == 2 else {}
    warps, each = sizes.get(cols, (1, 512))
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
