"""Plans that keep a slab on chip between its sums and its gradient: three trips to memory."""

import math
from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.forms import tiles_for_slope
from normgrad.backends.cuda.plan.joins import joint_parameters, parameters_of
from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.plane_blocks import (
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
from normgrad.backends.cuda.plan.tuned import planes as tuned
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry


@dataclass(frozen=True, slots=True)
class _Ring:
    """Tiles that come by bulk copies."""

    spans: int  # planes that a tile touches, at most; 0: a slab is one run
    equal_rows: bool  # all rows of a plane are of one length,
    rows_fill_tile: bool  # that of a tile
    full_tiles: int  # so many tiles are full in every block
    head: int  # bytes of the barriers and zeros
    tile: int  # bytes of a tile

    def nbytes(self, depth: int) -> int:
        """Of the whole ring."""
        return self.head + 2 * depth * self.tile


_NO_RING = _Ring(spans=0, equal_rows=False, rows_fill_tile=False, full_tiles=0, head=0, tile=0)


def _bulk_pays(tiles: Tiles, itemsize: int, group: bool) -> bool:
    """Whether bulk copies are faster than those of 16 bytes, which need no barriers."""
    rounds = tiles.team.rounds
    if group:
        return tiles.block.warps == tuned.BULK_WARPS or rounds <= tuned.BULK_ROUNDS
    large = tiles.block.registers > tuned.BULK_REGISTERS
    return itemsize == 4 and large and rounds >= tuned.BULK_LEAST_ROUNDS


def _ring(tiles: Tiles, itemsize: int, planes: int, run: int, step: int) -> _Ring:
    """How tiles lie in the ring; none where a warp has too few threads to ask for one."""
    rows, team = planes * tiles.pieces, tiles.team
    equal_rows = tiles.piece * tiles.pieces == run
    # Tiles start at multiples of this, in their planes.
    start = math.gcd(team.share, tiles.rows, tiles.pieces)
    most = (tiles.pieces - start + tiles.rows - 1) // tiles.pieces + 1
    spans = 0 if equal_rows and step == run else most
    if spans > THREADS:
        return _NO_RING
    least = min(team.share, rows - (team.team - 1) * team.share)
    return _Ring(
        spans=spans,
        equal_rows=equal_rows,
        rows_fill_tile=tiles.piece == tiles.cols,
        full_tiles=least // tiles.rows if equal_rows else 0,
        head=head_bytes(tiles.depth),
        tile=tiles.rows * tiles.cols * itemsize,
    )


def _planes_of(
    builder: Builder, geometry: Geometry, layout: Layout, device: Device
) -> Planes | None:
    """What there is to do; None where asynchronous copies cannot do it."""
    if builder.compute != "float32" or not layout.same_strides or not device.copies_ahead:
        return None
    if layout.shortcut is not None or builder.spec.mask is not None:
        return None
    group = geometry.statistic == "row"
    x = layout.x
    itemsizes = {ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[x.ref.dtype]}
    itemsize = max(itemsizes)
    together = 1 if group else block_channels(layout, itemsize)
    run = layout.inner * together
    align = alignment(itemsize, run, x.outer, x.channel * together)
    window = layout.window if together == 1 and run >= tuned.SHORT else 0
    if align * itemsize == 8 and run < tuned.LONG:
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
    bulk = data.bulk and not tiles.plane and _bulk_pays(tiles, data.itemsize, group)
    ring = _ring(tiles, data.itemsize, data.planes, data.run, step) if bulk else _NO_RING
    bulk = ring is not _NO_RING
    if forward and not tiles.plane:  # what is known to be full needs no masks
        ring = replace(_ring(tiles, data.itemsize, data.planes, data.run, step), spans=0)
    team = tiles.team
    solo = team.team == 1
    copies = tuned.WORD_COPIES if together == 1 and team.team >= tuned.LARGE_TEAM else 1
    counters = tuned.SM_COUNTERS if _spreads_blocks(tiles, device) else 0
    count = data.slabs * copies * team.team * together
    rows = data.planes * tiles.pieces
    wants = group and builder.wants_parameters
    partials = builder.scratch(2 * data.slabs * rows, "float32") if wants else None
    slab_step = x.channel * (geometry.channels if group else together)
    samples_follow = group and x.outer == slab_step * geometry.groups
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
        "apart": geometry.groups if group and not samples_follow else None,
        "outer_step": (x.outer if group and not samples_follow else slab_step) // align,
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
        "REGISTER_TILES": tiles.held,
        "PRELOAD_STATISTICS": tiles.block.ahead,
        "REQUEST_AFTER_PUBLISH": _requests_after_publish(tiles, group, bulk=bulk),
        "ROWS": tiles.rows,
        "COLS": tiles.cols,
        "VECTOR": 16 // data.itemsize,
        "WARPS": tiles.block.warps,
        "COPIES": copies,
        "TEAM": max(power_of_two(team.team), threads // together),
        "SOLO": solo,
        "ALIGN": align,
        "WIDE": reach >= WIDE,
        "SM_COUNTERS": counters,
        "BULK": bulk,
        "SPANS": ring.spans,
        "EQUAL_ROWS": ring.equal_rows,
        "ROWS_FILL_TILE": ring.rows_fill_tile,
        "FULL_TILES": min(ring.full_tiles, tiles.chunks),
        "HEAD": ring.head,
        "TILE": ring.tile,
        "WINDOW": data.window,
        **joint_parameters(
            parameters_of(geometry, layout), tiles.pieces, tiles.block.warps, joins=wants
        ),
        "PHASE": 0,
    }
    builder.launch_teams(
        "planes.plane_slabs",
        (team.team * team.teams,),
        arguments,
        constants,
        words=0 if solo else count,
        joins=wants,
        counters=team.teams + counters if counters else 0,
        starts_early=device.starts_early,
        warps=tiles.block.warps,
        registers=tiles.block.registers,
        ring=ring.nbytes(tiles.depth) if bulk else 0,
    )


def _requests_after_publish(tiles: Tiles, group: bool, *, bulk: bool) -> bool:
    """Whether the next slab is asked for only when the sums of this one are published.

    Batch norm does by bulk copies, where all tiles of a share fit in shared memory (``chunks <=
    depth``); group norm where there are no bulk copies.
    """
    if tiles.team.team == 1:
        return False
    return not bulk if group else bulk and tiles.chunks <= tiles.depth


def _spreads_blocks(tiles: Tiles, device: Device) -> bool:
    """Whether the two blocks of a multiprocessor had better be of different teams."""
    team = tiles.team
    per = ceil_div(team.team * team.teams, device.multiprocessors)
    ahead = tiles.depth + tiles.held - tiles.chunks
    return team.teams == per == 2 and tuned.LITTLE_AHEAD * ahead < tiles.chunks
