"""Plans that keep a slab on chip between its sums and its gradient: three trips to memory."""

import math
from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.layout import Layout
from normgrad.backends.cuda.parameters import joint_parameters
from normgrad.backends.cuda.program import Argument, Builder
from normgrad.backends.cuda.tiles import (
    THREADS,
    Block,
    Team,
    alignment,
    blocks_per_multiprocessor,
    ceil_div,
    cut,
    magic,
    power_of_two,
    share_out,
)
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry

_MOST_CHANNELS = 16  # channels of one plane: a warp exchanges words of that many
_LEAST_BYTES = 256  # of a plane, if there are channels enough: shorter ones are read slower
# Words of each block, where that many blocks would read the same one: 3 points for
# 256x64x112x112 and 20x6x65536 in bfloat16, nothing or less for teams up to 80.
_COPIES, _CROWD = 8, 96
_ALONE = Block(warps=8, chunk_bytes=8 << 10, chunks=7, registers=128)  # a slab in one block
_FEW = Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=2, most=6)
_ALONE_BYTES = 104 << 10  # of a slab in one block of two on a multiprocessor
_FULL = 0.9  # of a line, at least
_SEATS = 256  # counters for multiprocessors
_SHORT = 512  # elements of a channel in an image: less is small
# Elements from which on planes at multiples of 8 bytes are better in windows: 32x256x30x30 in
# bfloat16 takes 25.8 us so and 22.8 by copies of 8 bytes, 16x512x1500 31.0 and 32.1.
_LONG = 1024
_WHOLE = Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=255, held=9)


def _blocks(group: bool, itemsize: int, multiprocessors: int) -> tuple[tuple[Block, int], ...]:
    """Blocks to choose from and the largest team for each: the first that can.

    One block for a slab has nobody to wait for. Else many small ones overlap best: while some wait
    for their partners, others copy. But a team of more blocks than there are multiprocessors waits
    longer than it wins: 256x64x112x112 in bfloat16 reads 71 % with small blocks, 78 with large.

    Tiles held in registers make room for what arrives during the wait, or for two teams where
    there was room for one: 2x64x128x128x128 in bfloat16 reads 65 % without, 93 with three.
    Statistics a round ahead win 0 to 5 points in float32 and 1 in small blocks of batch norm; other
    blocks have no registers left for them: -8 to 1.
    """
    most = multiprocessors
    large = Block(warps=8, chunk_bytes=8 << 10, chunks=7, registers=128, held=3)
    if group:  # rows of 1024 16-bit elements for each warp
        small = Block(warps=4, chunk_bytes=8 << 10, chunks=3, registers=128, held=2, most=4)
        # One block a multiprocessor in float32: 1x256x512x512 takes 222 us instead of 234,
        # 1x320x512x512 267 instead of 288, 2x256x400x400 252 instead of 265.
        middle: tuple[Block, ...] = (_WHOLE,)
        if itemsize == 2:
            large = replace(large, held=4)
            middle = large, _WHOLE
    elif itemsize == 4:
        small = Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=3)
        # Tiles of one vector a thread take few registers for their sums, so that more are held:
        # 2x64x128x128x128 reads 87 % instead of 84. 36 of them spill. Slabs that fit in shared
        # memory prefer larger tiles: 256x64x112x112 reads 86 % instead of 83.
        fine = Block(warps=8, chunk_bytes=4 << 10, chunks=27, registers=255, held=22, most=33)
        # Two teams of blocks, two on a multiprocessor, are better than either: 8x32x512x512 takes
        # 205 us instead of 227, 150x32x112x112 189 instead of 220. With room to spare: in three
        # teams of 10 tiles 2x32x96x96x96 takes 187 us, in two of 7 175.
        middle = replace(large, most=9), replace(_WHOLE, most=_WHOLE.chunks), fine
    else:
        small = Block(
            warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=2, most=6, ahead=True
        )
        # With 9 tiles and 3 teams 256x64x112x112 reads 77 %, with 8 and 2 teams 87.
        large = replace(large, most=8)
        middle = large, _WHOLE
    found = (small, most), *((one, most) for one in middle), (large, 32 * most)
    # Blocks alone: four on a multiprocessor where slabs are small, 16x1280x16x16 in bfloat16 reads
    # 45 % instead of 40, batch norm 1x4096x32x32 takes 16.8 us instead of 26.7. With two tiles held
    # 64x256x56x56 reads 84.6 instead of 83.6.
    alone = ((_FEW, 1), (replace(_ALONE, held=2), 1))
    if not group:
        alone = ((replace(_FEW, ahead=True), 1), (_ALONE, 1))
    found = *alone, *found
    if itemsize == 4:
        return tuple((replace(block, ahead=True), blocks) for block, blocks in found)
    return found


def _flat_blocks(
    device: Device, itemsize: int, run: int, together: int
) -> tuple[tuple[Block, int], ...]:
    """The same for tiles of one line of whole planes, if the first one's lines are of use.

    Two blocks of 8 warps a multiprocessor, a vector of 16 bytes for each thread, and as much as
    there is room for: 64 images of 784 bytes lie in one block, 256 in four. In float32 such a team
    is better made of four small blocks a multiprocessor (256x256x14x14 reads 78 % instead of 75),
    or where channels are taken together of two with longer lines (256x512x13x13 81 instead of 79,
    256x2048x7x7 86). Planes of more than 4 KB have one block a multiprocessor with two vectors a
    thread (256x64x21x21 in bfloat16: 43 %; 16 warps 42).

    Blocks alone hold tiles too where they have several rounds: 64x1024x14x14 reads 61 % instead of
    59 in bfloat16, 77 instead of 74 in float32.
    """
    held = 5 if itemsize == 4 else 2
    if itemsize * run > 4 << 10:
        one = _flat_block(device, itemsize, 8, 8 << 10, 1, held=4)
        team = one
    else:
        one = team = _flat_block(device, itemsize, 8, 4 << 10, 2, held=held)
        if itemsize == 4:
            warps, per = (8, 2) if together > 1 else (4, 4)
            team = _flat_block(device, itemsize, warps, warps << 10, per, held=2)
    most = device.multiprocessors
    return (one, 1), (team, most), (team, 32 * most)


def _flat_block(
    device: Device, itemsize: int, warps: int, chunk_bytes: int, per: int, *, held: int
) -> Block:
    """One of ``per`` blocks of a multiprocessor, with as many tiles as it has room for."""
    room = device.shared_bytes // per - 1024 - _sums_bytes(chunk_bytes // itemsize)
    chunks = max(2, room // (2 * chunk_bytes))
    registers = min(255, device.registers // (per * warps * THREADS))
    return Block(warps, chunk_bytes, chunks, registers, held=held, most=chunks, ahead=True)


def _filled(run: int, cols: int) -> float:
    """What a line of whole planes has of these columns."""
    return cols // run * run / cols


def _sums_bytes(cols: int) -> int:
    """Shared memory besides the tiles: columns change places so that channels are added up."""
    return 512 + 4 * cols


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How slabs are cut into rows, and rows shared by blocks."""

    block: Block
    team: Team
    rows: int  # of a tile
    cols: int
    pieces: int  # rows of a plane
    piece: int  # elements of a row
    chunks: int  # tiles of a block
    depth: int  # those in shared memory
    held: int  # tiles that move on to registers
    plane: int = 0  # elements of a plane, if a line of a tile has several


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


def _pays(tiles: _Tiles, itemsize: int, group: bool) -> bool:
    """Whether bulk copies are faster than those of 16 bytes, which need no barrier for each tile.

    On an H200: group norm with blocks of 8 warps (bfloat16 64x256x56x56 86.8 us instead of 87.7,
    1x512x512x512 212 and 215, float32 438 and 451) and in one round or two (2x320x64x64 10.3 and
    12.1), else 3 % less to 7 % more (4x512x128x128 59.0 and 56.4). Batch norm with one block a
    multiprocessor: float32 2x64x128x128x128 830 and 916; other blocks 2 % less to 14 % more.
    """
    if group:
        return tiles.block.warps == 8 or tiles.team.rounds <= 2
    return itemsize == 4 and tiles.block.registers > 128 and tiles.team.rounds >= 16


def _ring(tiles: _Tiles, itemsize: int, planes: int, run: int, step: int) -> _Ring | None:
    """How tiles lie in the ring; None where a warp has too few threads to ask for one."""
    rows, team = planes * tiles.pieces, tiles.team
    exact = tiles.piece * tiles.pieces == run
    # Tiles start at multiples of this, in their planes.
    start = math.gcd(team.share, tiles.rows, tiles.pieces)
    most = (tiles.pieces - start + tiles.rows - 1) // tiles.pieces + 1
    spans = 0 if exact and step == run else most
    if spans > THREADS:
        return None
    least = min(team.share, rows - (team.team - 1) * team.share)
    return _Ring(
        spans=spans,
        exact=exact,
        even=tiles.piece == tiles.cols,
        full=least // tiles.rows if exact else 0,
        head=_head(tiles.depth),
        tile=tiles.rows * tiles.cols * itemsize,
    )


def _head(depth: int) -> int:
    """Bytes of a barrier for each tile of a ring, and of 16 zeros."""
    return ceil_div(8 * depth + 16, 128) * 128


def resident_planes(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Channels first; False where the slabs do not fit or the data lie unevenly."""
    spec = builder.spec
    group = geometry.statistic == "row"
    if builder.compute != "float32" or not layout.same_strides or not device.copies_ahead:
        return False
    x = layout.x
    itemsizes = {ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[x.ref.dtype]}
    together = 1 if group else _block_channels(layout, max(itemsizes))
    run = layout.inner * together
    align = alignment(max(itemsizes), run, x.outer, x.channel * together)
    itemsize = max(itemsizes)
    window = layout.window if together == 1 and run >= _SHORT else 0
    if align * itemsize == 8 and run < _LONG:
        window = 0
    if not window and align * min(itemsizes) < 4:  # the least that an asynchronous copy takes
        return False
    planes = geometry.channels if group else layout.outer
    slabs = geometry.statistics if group else layout.channels // together
    # A bulk copy takes multiples of 16 bytes, from and to.
    bulk = device.capability >= 90 and len(itemsizes) == 1 and align * itemsize == 16
    span = layout.span if window else run
    tiles = _cut(
        device, itemsize, span, window or align, planes, slabs, group, together, bulk, window > 0
    )
    if tiles is None:
        return False
    step = x.channel if group else x.outer
    bulk = bulk and not tiles.plane and _pays(tiles, itemsize, group)
    ring = _ring(tiles, itemsize, planes, run, step) if bulk else None
    team = tiles.team
    solo = team.team == 1
    copies = _COPIES if together == 1 and team.team >= _CROWD else 1
    seats = _SEATS if _seated(tiles, device) else 0
    count = slabs * copies * team.team * together
    rows = planes * tiles.pieces
    wants = group and builder.wants_parameters
    partials = builder.scratch(2 * slabs * rows, "float32") if wants else None
    slab_step = x.channel * (geometry.channels if group else together)
    even = group and x.outer == slab_step * geometry.groups
    arguments: dict[str, Argument] = {
        **layout.operands(builder, results=True),
        "partials": partials,
        "slabs": slabs,
        "rows": rows,
        "share": team.share,
        "pieces": tiles.pieces,
        "magic": magic(tiles.pieces),
        "piece": tiles.piece // (window or align),
        "run": run // align,
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
    reach = planes * step + span
    threads = tiles.block.warps * THREADS
    constants: dict[str, Any] = {
        "GROUP": group,
        "VARIANCE": spec.rstd_is == "variance",
        "BLOCK_CHANNELS": together,
        "PIXELS": layout.inner if together > 1 else 1,
        "PLANE": tiles.plane,
        "CHUNKS": tiles.chunks,
        "DEPTH": tiles.depth,
        "HELD": tiles.held,
        "AHEAD": tiles.block.ahead,
        "ROWS": tiles.rows,
        "COLS": tiles.cols,
        "VECTOR": 16 // max(itemsizes),
        "WARPS": tiles.block.warps,
        "COPIES": copies,
        "TEAM": max(power_of_two(team.team), threads // together),
        "SOLO": solo,
        "ALIGN": align,
        "WIDE": reach >= 1 << 31,
        "SEATS": seats,
        "BULK": ring is not None,
        "SPANS": ring.spans if ring else 0,
        "EXACT": ring is not None and ring.exact,
        "EVEN": ring is not None and ring.even,
        "FULL": min(ring.full, tiles.chunks) if ring else 0,
        "HEAD": ring.head if ring else 0,
        "TILE": ring.tile if ring else 0,
        "WINDOW": window,
        **joint_parameters(layout, tiles.pieces, tiles.block.warps, meets=wants),
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
        aligned=True,
        ring=ring.nbytes(tiles.depth) if ring else 0,
    )
    return True


def _seated(tiles: _Tiles, device: Device) -> bool:
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


def _cut(
    device: Device,
    itemsize: int,
    run: int,
    align: int,
    planes: int,
    slabs: int,
    group: bool,
    together: int,
    bulk: bool,
    windows: bool,
) -> _Tiles | None:
    """Tiles for the first block whose team is small enough."""
    lines = _flat_blocks(device, itemsize, run, together)
    flat = not group and (together > 1 or _wasteful(run, lines[0][0].chunk_bytes // itemsize))
    blocks = lines if flat else _blocks(group, itemsize, device.multiprocessors)
    if windows and (group or itemsize == 4):  # else 8 to 24 bytes are spilled
        blocks = tuple((replace(one, held=max(0, one.held - 1)), most) for one, most in blocks)
    for block, most_blocks in blocks:
        elements = block.chunk_bytes // itemsize
        abreast = 1
        if flat:
            cols, abreast = elements, elements // run
            pieces, piece = 1, run
        elif group:
            # Each warp adds up rows of its own, the fewer the better: 32 or 16 elements a lane.
            most = max(64, min(elements // block.warps, power_of_two(run)))
            pieces = ceil_div(run, most)
            piece = ceil_div(ceil_div(run, pieces), align) * align
            cols = max(64, power_of_two(piece))
            pieces = ceil_div(run, piece)
        else:
            cols = cut(run, 1024)
            pieces, piece = ceil_div(run, cols), cols
        if cols > elements:
            continue
        tile_rows = elements // cols * abreast
        shared = 2 * block.chunks * block.chunk_bytes + (_sums_bytes(cols) if flat else 512)
        if bulk:
            shared += _head(block.chunks)
        per = blocks_per_multiprocessor(device, block.warps, block.registers, shared)
        resident = per * device.multiprocessors
        most = block.capacity * tile_rows
        if ceil_div(planes * pieces, most) > most_blocks:
            continue
        team = share_out(
            planes * pieces, most, tile_rows, slabs, min(resident, most_blocks * slabs)
        )
        if team is None or planes * pieces * pieces >= 1 << 32:  # see `magic`
            continue
        chunks = ceil_div(team.share, tile_rows)
        depth = min(block.chunks, chunks * team.rounds)
        # Nothing comes after the only round.
        held = min(block.held, chunks) if team.rounds > 1 else max(0, chunks - depth)
        rows, plane = elements // cols, run if flat else 0
        return _Tiles(block, team, rows, cols, pieces, piece, chunks, depth, held, plane)
    return None


def _wasteful(run: int, line: int) -> bool:
    """Whether short planes fill a line of several better than rows of their own."""
    cols = cut(run, 1024)
    return run < _SHORT and _filled(run, line) > 1.05 * run / (ceil_div(run, cols) * cols)


def _block_channels(layout: Layout, itemsize: int) -> int:
    """Channels to take together so that planes of small images start at multiples of 16 bytes."""
    if layout.inner >= _SHORT or layout.x.channel != layout.inner:
        return 1
    block, size = 1, layout.inner * itemsize
    while (
        (block * size % 16 or block * size < _LEAST_BYTES)
        and 2 * block <= _MOST_CHANNELS
        and layout.channels % (2 * block) == 0
    ):
        block *= 2
    # In float32 whole sectors of 32 bytes, if lines of 8 KB have little room left: 256x2048x7x7
    # reads 86 % with 8 channels, 82 with 4. Not where 4 lie in one block, or for 16 bits (69, 72).
    many = 2 * layout.outer * block * size > _ALONE_BYTES
    if (
        itemsize == 4
        and many
        and block > 1
        and block * size % 32
        and 2 * block <= _MOST_CHANNELS
        and layout.channels % (2 * block) == 0
        and _filled(2 * block * layout.inner, 2048) > _FULL
    ):
        block *= 2
    return block
