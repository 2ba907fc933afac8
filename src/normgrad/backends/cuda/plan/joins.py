"""Parameter gradients of layer and group norm: the end of their kernels, or a step of its own."""

from dataclasses import replace
from typing import Any

from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.program import Builder, Ref
from normgrad.backends.cuda.plan.tiles import THREADS, WIDE, ceil_div, power_of_two
from normgrad.core.geometry import Geometry

_AT_ONCE = 2048  # partials of a block: 1x128x1024x1024 in float32 reads 85.6 %, 83.7 with 512


def parameters_of(geometry: Geometry, layout: Layout) -> Layout:
    """The same with channels of one sample for each parameter: weights of each sample are that."""
    if geometry.samples == 1:
        return layout
    return replace(layout, outer=1, channels=layout.outer * layout.channels)


def add_parameters(
    builder: Builder, geometry: Geometry, layout: Layout, partials: Ref, splits: int
) -> None:
    """Group norm's parameter gradients from the partial sums of each sample and channel."""
    if builder.spec.dgamma is None and builder.spec.dbeta is None:
        return
    layout = parameters_of(geometry, layout)
    # Few channels for each block, as many blocks as there can be.
    count = layout.outer * splits
    parts = min(power_of_two(count), _AT_ONCE)
    size = max(1, min(power_of_two(layout.channels), _AT_ONCE // parts, 8))
    builder.launch(
        "sums.finish_parameters",
        (ceil_div(layout.channels, size),),
        {
            "partials": partials,
            "rstd": builder.vector("rstd"),
            "dgamma": builder.result("dgamma"),
            "dbeta": builder.result("dbeta"),
            "samples": layout.outer,
            "channels": layout.channels,
            "splits": splits,
            "group_size": geometry.channels,
        },
        {
            "CHANNELS": size,
            "PARTS": parts,
            "TIMES": ceil_div(count, parts),
            "MANY": _are_many(layout),
            "COMPUTE": builder.compute,
        },
        warps=8 if parts > 512 else 4,
    )


def joint_parameters(layout: Layout, splits: int, warps: int, *, meets: bool) -> dict[str, Any]:
    """Constants of the end of a group norm kernel: tiles of the partials that blocks join.

    An element for each thread, 4 where there are many parts.
    """
    count = layout.outer * splits
    parts = min(power_of_two(count), 4 * warps * THREADS)
    size = max(1, warps * THREADS // parts)
    tiles = {"CHANNELS": size, "PARTS": parts, "TIMES": ceil_div(count, parts)}
    return {"MEETS": meets, **tiles, "MANY": _are_many(layout)}


def _are_many(layout: Layout) -> bool:
    """Whether the channels of all samples take 64 bits."""
    return layout.outer * layout.channels >= WIDE


def joint_sums(partials: int, cols: int, blocks: int, warps: int, *, meets: bool) -> dict[str, Any]:
    """Constants of the end of a layer norm kernel: tiles of the partial sums that blocks join.

    A slice of columns for each block, segments of 32 bytes at the least; 8 elements a thread. Few
    blocks have wide ones: 32 slices took one block half of 14 us (layer norm 1x4096).
    """
    most = max(128, 8 * warps * THREADS // power_of_two(partials))
    width = min(max(8, power_of_two(ceil_div(cols, blocks))), most)
    down = min(power_of_two(partials), max(1, 8 * warps * THREADS // width))
    return {"MEETS": meets, "DOWN": down, "TIMES": ceil_div(partials, down), "WIDTH": width}


def finish_rows(
    builder: Builder, partials: Ref | None, programs: int, cols: int, samples: int = 1
) -> None:
    """Join the partial sums of the parameters, those of each sample by so many programs."""
    if partials is None:
        return
    # Measured on an H200: large tiles for many columns or programs, else more blocks.
    down, width, warps = (64, 32, 8) if cols >= 4096 or programs > 300 else (32, 16, 4)
    builder.launch(
        "sums.finish_rows",
        (ceil_div(cols, width), samples),
        {
            "partials": partials,
            "dgamma": builder.result("dgamma"),
            "dbeta": builder.result("dbeta"),
            "programs": programs,
            "cols": cols,
        },
        {
            "PROGRAMS": down,
            "TIMES": ceil_div(programs, down),
            "COLS": width,
            "EACH": samples > 1,
            "COMPUTE": builder.compute,
        },
        warps=warps,
    )
