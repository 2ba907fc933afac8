"""Parameter gradients of layer and group norm: the end of their kernels, or a step of its own."""

from dataclasses import replace
from typing import Any

from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.program import Builder, Ref
from normgrad.backends.cuda.plan.tiles import THREADS, WIDE, ceil_div, power_of_two
from normgrad.backends.cuda.plan.tuned import passes as tuned
from normgrad.core.geometry import Geometry


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
    parts = min(power_of_two(count), tuned.PARTIALS)
    size = max(1, min(power_of_two(layout.channels), tuned.PARTIALS // parts, 8))
    builder.launch(
        "finish.finish_parameters",
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
            "JOIN_CHANNELS": size,
            "JOIN_PARTS": parts,
            "JOIN_STEPS": ceil_div(count, parts),
            "INDEX64": _are_many(layout),
            "COMPUTE": builder.compute,
        },
        warps=8 if parts > 512 else 4,
    )


def joint_parameters(layout: Layout, splits: int, warps: int, *, joins: bool) -> dict[str, Any]:
    """Constants of the end of a group norm kernel: tiles of the partials that blocks join.

    An element for each thread, 4 where there are many parts.
    """
    count = layout.outer * splits
    parts = min(power_of_two(count), 4 * warps * THREADS)
    size = max(1, warps * THREADS // parts)
    tiles = {"JOIN_CHANNELS": size, "JOIN_PARTS": parts, "JOIN_STEPS": ceil_div(count, parts)}
    return {"JOINS_AT_END": joins, **tiles, "INDEX64": _are_many(layout)}


def _are_many(layout: Layout) -> bool:
    """Whether the channels of all samples take 64 bits."""
    return layout.outer * layout.channels >= WIDE


def joint_sums(partials: int, cols: int, blocks: int, warps: int, *, joins: bool) -> dict[str, Any]:
    """Constants of the end of a layer norm kernel: tiles of the partial sums that blocks join.

    A slice of columns for each block; few blocks have wide ones.
    """
    elements = tuned.JOIN_ELEMENTS * warps * THREADS
    most = max(tuned.JOIN_WIDE, elements // power_of_two(partials))
    width = min(max(tuned.JOIN_LEAST, power_of_two(ceil_div(cols, blocks))), most)
    down = min(power_of_two(partials), max(1, elements // width))
    return {
        "JOINS_AT_END": joins,
        "JOIN_ROWS": down,
        "JOIN_STEPS": ceil_div(partials, down),
        "JOIN_COLUMNS": width,
    }


def finish_rows(
    builder: Builder, partials: Ref | None, programs: int, cols: int, samples: int = 1
) -> None:
    """Join the partial sums of the parameters, those of each sample by so many programs."""
    if partials is None:
        return
    many = cols >= tuned.FINISH_MANY_COLUMNS or programs > tuned.FINISH_MANY_PROGRAMS
    down, width, warps = tuned.FINISH_MANY if many else tuned.FINISH_FEW
    builder.launch(
        "finish.finish_rows",
        (ceil_div(cols, width), samples),
        {
            "partials": partials,
            "dgamma": builder.result("dgamma"),
            "dbeta": builder.result("dbeta"),
            "programs": programs,
            "cols": cols,
        },
        {
            "JOIN_ROWS": down,
            "JOIN_STEPS": ceil_div(programs, down),
            "JOIN_COLUMNS": width,
            "EACH": samples > 1,
            "COMPUTE": builder.compute,
        },
        warps=warps,
    )
