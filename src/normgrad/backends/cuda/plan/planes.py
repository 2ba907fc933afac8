"""Plans that keep a slab on chip between its sums and its gradient: three trips to memory."""

import math
from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.forms import tiles_for_slope
from normgrad.backends.cuda.plan.joins import joint_parameters, parameters_of
from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.plane_blocks import (
    SHORT,
    Planes,
    Tiles,
    block_channels,
    cut_slabs,
    head_bytes,
)
from normgrad.backends.cuda.plan.program import Argument, Builder
from normgrad.backends.cuda.plan.tiles import (
    THREADS,
    WIDE,
    alignment,
    ceil_div,
    magic,
    power_of_two,
)
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry

# Words of each block, where that many blocks would read the same one: 3 points for
# 256x64x112x112 and 20x6x65536 in bfloat16, nothing or less for teams up to 80.
_COPIES, _CROWD = 8, 96
_SEATS = 256  # counters for multiprocessors
# Elements from which on planes at multiples of 8 bytes are better in windows: 32x256x30x30 in
# bfloat16 takes 25.8 us so and 22.8 by copies of 8 bytes, 16x512x1500 31.0 and 32.1.
_LONG = 1024


@dataclass(frozen=True, slots=True)
class _Ring:
    """Tiles that come by bulk copies."""

    spans: int  # planes that a tile touches, at most; 0: a slab is one run
    exact: bool  # all rows of a plane are of one length,
    even: bool  # that of a tile
    full: int  # so many tiles are full in every block
    head: int  # bytes of the barriers and zeros
    tile: int  # bytes of a tile

    def nbytes(self, depth: int) -> int:
        """Of the whole ring."""
        return self.head + 2 * depth * self.tile


_NO_RING = _Ring(spans=0, exact=False, even=False, full=0, head=0, tile=0)


def _pays(tiles: Tiles, itemsize: int, group: bool) -> bool:
    """Whether bulk copies are faster than those of 16 bytes, which need no barrier for each tile.

    On an H200: group norm with blocks of 8 warps (bfloat16 64x256x56x56 86.8 us instead of 87.7,
    1x512x512x512 212 and 215, float32 438 and 451) and in one round or two (2x320x64x64 10.3 and
    12.1), else 3 % less to 7 % more (4x512x128x128 59.0 and 56.4). Batch norm with one block a
    multiprocessor: float32 2x64x128x128x128 830 and 916; other blocks 2 % less to 14 % more.
    """
    if group:
        return tiles.block.warps == 8 or tiles.team.rounds <= 2
    return itemsize == 4 and tiles.block.registers > 128 and tiles.team.rounds >= 16


def _ring(tiles: Tiles, itemsize: int, planes: int, run: int, step: int) -> _Ring:
    """How tiles lie in the ring; none where a warp has too few threads to ask for one."""
    rows, team = planes * tiles.pieces, tiles.team
    exact = tiles.piece * tiles.pieces == run
    # Tiles start at multiples of this, in their planes.
    start = math.gcd(team.share, tiles.rows, tiles.pieces)
    most = (tiles.pieces - start + tiles.rows - 1) // tiles.pieces + 1
    spans = 0 if exact and step == run else most
    if spans > THREADS:
        return _NO_RING
    least = min(team.share, rows - (team.team - 1) * team.share)
    return _Ring(
        spans=spans,
        exact=exact,
        even=tiles.piece == tiles.cols,
        full=least // tiles.rows if exact else 0,
        head=head_bytes(tiles.depth),
        tile=tiles.rows * tiles.cols * itemsize,
    )


def _planes_of(
    builder: Builder, geometry: Geometry, layout: Layout, device: Device
) -> Planes | None:
    """What there is to do; None where asynchronous copies cannot do it."""
    if builder.compute != "float32" or not layout.same_strides or not device.copies_ahead:
        return None
    group = geometry.statistic == "row"
    x = layout.x
    itemsizes = {ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[x.ref.dtype]}
    itemsize = max(itemsizes)
    together = 1 if group else block_channels(layout, itemsize)
    run = layout.inner * together
    align = alignment(itemsize, run, x.outer, x.channel * together)
    window = layout.window if together == 1 and run >= SHORT else 0
    if align * itemsize == 8 and run < _LONG:
        window = 0
    if not window and align * min(itemsizes) < 4:  # the least that an asynchronous copy takes
        return None
    return Planes(
        group=group,
        together=together,
        planes=geometry.channels if group else layout.outer,
        slabs=geometry.statistics if group else layout.channels // together,
        run=run,
        span=layout.span if window else run,
        align=align,
        window=window,
        itemsize=itemsize,
        # A bulk copy takes multiples of 16 bytes, from and to.
        bulk=device.capability >= 90
        and len(itemsizes) == 1
        and align * itemsize == 16
        and not builder.spec.operator.forward,
        tensors=len(builder.spec.operator.data_in),
        slopes=tiles_for_slope(builder.spec),
    )


def resident_planes(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Channels first; False where the slabs do not fit or the data lie unevenly."""
    data = _planes_of(builder, geometry, layout, device)
    if data is None:
        return False
    tiles = cut_slabs(device, data)
    if tiles is None:
        return False
    _add_planes(builder, geometry, layout, device, data, tiles)
    return True


def _add_planes(
    builder: Builder,
    geometry: Geometry,
    layout: Layout,
    device: Device,
    data: Planes,
    tiles: Tiles,
) -> None:
    """The launch."""
    spec, x = builder.spec, layout.x
    group, together, align = data.group, data.together, data.align
    step = x.channel if group else x.outer
    forward = spec.operator.forward
    bulk = data.bulk and not tiles.plane and _pays(tiles, data.itemsize, group)
    ring = _ring(tiles, data.itemsize, data.planes, data.run, step) if bulk else _NO_RING
    bulk = ring is not _NO_RING
    if forward and not tiles.plane:  # what is known to be full needs no masks
        ring = replace(_ring(tiles, data.itemsize, data.planes, data.run, step), spans=0)
    team = tiles.team
    solo = team.team == 1
    copies = _COPIES if together == 1 and team.team >= _CROWD else 1
    seats = _SEATS if _seated(tiles, device) else 0
    count = data.slabs * copies * team.team * together
    rows = data.planes * tiles.pieces
    wants = group and builder.wants_parameters
    partials = builder.scratch(2 * data.slabs * rows, "float32") if wants else None
    slab_step = x.channel * (geometry.channels if group else together)
    even = group and x.outer == slab_step * geometry.groups
    arguments: dict[str, Argument] = {
        **layout.operands(builder, results=True),
        **builder.running(),
        "partials": partials,
        "slabs": data.slabs,
        "rows": rows,
        "share": team.share,
        "pieces": tiles.pieces,
        "magic": magic(tiles.pieces),
        "piece": tiles.piece // (data.window or align),
        "run": data.run // align,
        "team": team.team,
        "teams": team.teams,
        "split": geometry.groups if group else None,
        "plane_step": step // align,
        "apart": geometry.groups if group and not even else None,
        "outer_step": (x.outer if group and not even else slab_step) // align,
        "inner_step": slab_step // align,
        "count": float(geometry.count),
        "eps": spec.eps,
    }
    reach = data.planes * step + data.span
    threads = tiles.block.warps * THREADS
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "GROUP": group,
        "EACH": geometry.samples > 1,
        "VARIANCE": spec.rstd_is == "variance" if forward else builder.given_variance,
        "BLOCK_CHANNELS": together,
        "PIXELS": layout.inner if together > 1 else 1,
        "PLANE": tiles.plane,
        "CHUNKS": tiles.chunks,
        "DEPTH": tiles.depth,
        "HELD": tiles.held,
        "AHEAD": tiles.block.ahead,
        "LATE": _late(tiles, group, bulk=bulk),
        "ROWS": tiles.rows,
        "COLS": tiles.cols,
        "VECTOR": 16 // data.itemsize,
        "WARPS": tiles.block.warps,
        "COPIES": copies,
        "TEAM": max(power_of_two(team.team), threads // together),
        "SOLO": solo,
        "ALIGN": align,
        "WIDE": reach >= WIDE,
        "SEATS": seats,
        "BULK": bulk,
        "SPANS": ring.spans,
        "EXACT": ring.exact,
        "EVEN": ring.even,
        "FULL": min(ring.full, tiles.chunks),
        "HEAD": ring.head,
        "TILE": ring.tile,
        "WINDOW": data.window,
        **joint_parameters(
            parameters_of(geometry, layout), tiles.pieces, tiles.block.warps, meets=wants
        ),
        "PHASE": 0,
    }
    builder.launch_teams(
        "planes.plane_slabs",
        (team.team * team.teams,),
        arguments,
        constants,
        words=0 if solo else count,
        meets=wants,
        seats=team.teams + seats if seats else 0,
        starts_early=device.starts_early,
        warps=tiles.block.warps,
        registers=tiles.block.registers,
        ring=ring.nbytes(tiles.depth) if bulk else 0,
    )


def _late(tiles: Tiles, group: bool, *, bulk: bool) -> bool:
    """Whether the next slab is asked for only when the sums of this one are published.

    Whoever asks early takes bandwidth from partners that it then waits for. Batch norm by bulk
    copies takes 650 us instead of 674 (256x64x112x112), unless more tiles than there is room for
    leave no registers for it (2x64x128x128x128: 1043 instead of 834); group norm without them up to
    2 % less. Others gain nothing or lose, most 1 to 5 %.
    """
    if tiles.team.team == 1:
        return False
    return not bulk if group else bulk and tiles.chunks <= tiles.depth


def _seated(tiles: Tiles, device: Device) -> bool:
    """Whether the two blocks of a multiprocessor had better be of different teams.

    A cooperative launch on an H200 puts both blocks of up to 20 multiprocessors into one team.
    Two teams over the whole device suffer if little of the next slab arrives during the wait:
    2x64x128x128x128 in bfloat16 takes 402 us, 428 to 442 by numbers. Others lose the 2 to 4 us
    that it takes to find a seat.
    """
    team = tiles.team
    per = ceil_div(team.team * team.teams, device.multiprocessors)
    ahead = tiles.depth + tiles.held - tiles.chunks
    return team.teams == per == 2 and 3 * ahead < tiles.chunks
