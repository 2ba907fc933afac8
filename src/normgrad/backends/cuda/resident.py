"""Plans that keep a slab on chip between its sums and its gradient: three trips to memory."""

from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.layout import Layout
from normgrad.backends.cuda.parameters import add_parameters
from normgrad.backends.cuda.program import Argument, Builder, Ref
from normgrad.backends.cuda.tiles import (
    RESIDENT_REGISTERS,
    RESIDENT_WARPS,
    THREADS,
    WARP_BYTES,
    alignment,
    blocks_per_multiprocessor,
    ceil_div,
    cut,
    power_of_two,
    share_out,
)
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry

_LARGE = 1 << 24  # elements from which on one more launch is worth it (at 2**21 it cost a third)
_MOST_CHANNELS = 8  # channels of one plane: their sums are told apart by masks


def resident_planes(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Channels first; False where the slabs do not fit or the data lie unevenly."""
    spec = builder.spec
    group = geometry.statistic == "row"
    if builder.compute != "float32" or not layout.same_strides or not device.cooperative:
        return False
    x, dx = layout.x, layout.dx
    assert dx is not None
    itemsize = max(ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[x.ref.dtype])
    warps = RESIDENT_WARPS[itemsize]
    block = 1 if group else _block_channels(layout, itemsize)
    run = layout.inner * block
    align = alignment(itemsize, run, x.outer, x.channel * block)
    vector = 16 // itemsize
    if group:
        # Group norm adds up each row by itself: few and long rows, each over all threads.
        cols = cut(layout.inner, 1024 if itemsize == 2 else 512, min(512, 64 * vector))
        cols = min(cols, max(64, power_of_two(layout.inner)))
        warps = max(1, min(warps, cols // (THREADS * vector)))
    elif block == 1:
        cols = cut(layout.inner, 1024)
    else:
        cols = power_of_two(run)
    tile = warps * WARP_BYTES // (2 * itemsize)
    if block > 1:
        tile //= 2  # more to keep beside the data
    if cols > tile or (align == 1 and itemsize == 2 and layout.inner > 1):
        return False
    pieces = ceil_div(run, cols)
    planes = geometry.channels if group else layout.outer
    slabs = geometry.statistics if group else ceil_div(layout.channels, block)
    if block > 1 and layout.channels % block:
        return False
    # The next slab's data, and what sums across warps need: more where channels share a row.
    extra = 2048 if block == 1 else 4096 + 4 * cols * power_of_two(block)
    shared = 2 * tile * itemsize + extra
    per = blocks_per_multiprocessor(device, warps, RESIDENT_REGISTERS, shared)
    team = share_out(planes * pieces, tile // cols, slabs, per * device.multiprocessors)
    if team is None:
        return False
    solo = team.team == 1
    words = None if solo else builder.scratch(slabs * team.team * power_of_two(block), "uint64")
    if words is not None:
        builder.fill(words, slabs * team.team * power_of_two(block), 0xFF)
    wants = group and (spec.dgamma is not None or spec.dbeta is not None)
    partials = builder.scratch(2 * slabs * planes * pieces, "float32") if wants else None
    arguments: dict[str, Argument] = {
        "dy": layout.dy.ref,
        "x": x.ref,
        "dx": dx.ref,
        "mean": builder.vector("mean"),
        "rstd": builder.vector("rstd"),
        "gamma": _gamma(builder, geometry),
        "dgamma": None if group else builder.result("dgamma"),
        "dbeta": None if group else builder.result("dbeta"),
        "partials": partials,
        "words": words,
        "slabs": slabs,
        "rows": planes * pieces,
        "share": team.share,
        "pieces": pieces,
        "run": run // align,
        "team": team.team,
        "teams": team.teams,
        "split": geometry.groups if group else 1,
        "channels": layout.channels,
        "plane_step": (x.channel if group else x.outer) // align,
        "outer_step": (x.outer if group else x.channel * block) // align,
        "inner_step": x.channel * geometry.channels // align if group else 0,
        "count": float(geometry.count),
        "eps": spec.eps,
        "zero": 0,
    }
    reach = planes * (x.channel if group else x.outer) + run
    threads = warps * THREADS
    lanes = power_of_two(team.team)
    constants: dict[str, Any] = {
        "GROUP": group,
        "VARIANCE": spec.rstd_is == "variance",
        "BLOCK_CHANNELS": block,
        "CHANNEL_TILE": power_of_two(block),
        "PIXELS": layout.inner if block > 1 else 1,
        "ROWS": tile // cols,
        "COLS": cols,
        "TEAM": max(lanes, threads) if block == 1 else lanes,
        "SOLO": solo,
        "ALIGN": align,
        "WIDE": reach >= 1 << 31,
        "STAGES": 2 if team.rounds > 1 else 1,
        "AHEAD": not group,  # group norm's tiles would spill: 68 % instead of 76
        "PHASE": 0,
    }
    builder.launch(
        "planes.plane_slabs",
        (team.team * team.teams,),
        arguments,
        constants,
        warps=warps,
        registers=RESIDENT_REGISTERS,
        cooperative=not solo,
    )
    if partials is not None:
        add_parameters(builder, geometry, layout, partials, pieces)
    return True


def _gamma(builder: Builder, geometry: Geometry) -> Ref | None:
    """Gamma; group norm's in 32 bits where the data are large.

    Each row of a tile has its own gamma, fetched ahead with the data, which copies of less than 4
    bytes cannot be: 48 % instead of 61 for 4x512x128x128 in bfloat16.
    """
    gamma = builder.spec.gamma
    narrow = gamma is not None and ITEMSIZE[gamma.dtype] == 2
    if narrow and geometry.statistic == "row" and geometry.size >= _LARGE:
        return builder.pack("gamma", "float32")
    return builder.vector("gamma")


def _block_channels(layout: Layout, itemsize: int) -> int:
    """Channels to take together so that rows of small images start at multiples of 8 bytes."""
    x = layout.x
    if layout.inner >= 512 or x.channel != layout.inner:
        return 1
    block = 1
    while (
        block < _MOST_CHANNELS
        and (block * layout.inner * itemsize) % 8
        and layout.channels % (2 * block) == 0
    ):
        block *= 2
    return block
