"""Blocks that keep planes of a slab on chip, and how slabs are cut into their tiles."""

from dataclasses import dataclass, replace

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.tiles import (
    DRIVER_BYTES,
    THREADS,
    Block,
    Team,
    blocks_per_multiprocessor,
    ceil_div,
    cut,
    power_of_two,
    share_out,
)

_MOST_CHANNELS = 16  # channels of one plane: a warp exchanges words of that many
_LEAST_BYTES = 256  # of a plane, if there are channels enough: shorter ones are read slower
_ALONE = Block(warps=8, chunk_bytes=8 << 10, chunks=7, registers=128)  # a slab in one block
_FEW = Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=2, most=6)
_ALONE_BYTES = 104 << 10  # of a slab in one block of two on a multiprocessor
_FULL = 0.9  # of a line, at least
SHORT = 512  # elements of a channel in an image: less is small
# Times the tiles of x where there are none of dy: forward 128x256x56x56 in bfloat16 takes 114.8 us
# so as batch norm, 121.3 with as many, 256x64x112x112 234 and 260; as group norm 119.8 and 114.2.
_MORE = 2
_WHOLE = Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=255, held=9)


@dataclass(frozen=True, slots=True)
class Planes:
    """Channels-first data as slabs of planes."""

    group: bool
    together: int  # channels that form one plane
    planes: int  # of a slab
    slabs: int
    run: int  # elements of a plane
    span: int  # of its window, if there is one
    align: int
    window: int  # planes start anywhere in vectors of so many elements; else 0
    itemsize: int
    bulk: bool  # whether bulk copies can take them
    tensors: int  # that a tile is of: x and dy, or x
    slopes: int = 0  # tiles fewer in registers, as the gradient goes through an activation


@dataclass(frozen=True, slots=True)
class Tiles:
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
    room = device.shared_bytes // per - DRIVER_BYTES - _sums_bytes(chunk_bytes // itemsize)
    chunks = max(2, room // (2 * chunk_bytes))
    registers = min(255, device.registers // (per * warps * THREADS))
    return Block(warps, chunk_bytes, chunks, registers, held=held, most=chunks, ahead=True)


def _filled(run: int, cols: int) -> float:
    """What a line of whole planes has of these columns."""
    return cols // run * run / cols


def _sums_bytes(cols: int) -> int:
    """Shared memory besides the tiles: columns change places so that channels are added up."""
    return 512 + 4 * cols


def head_bytes(depth: int) -> int:
    """Bytes of a barrier for each tile of a ring, and of 16 zeros."""
    return ceil_div(8 * depth + 16, 128) * 128


def cut_slabs(device: Device, data: Planes) -> Tiles | None:
    """Tiles for the first block whose team is small enough."""
    group, together, run, itemsize = data.group, data.together, data.span, data.itemsize
    lines = _flat_blocks(device, itemsize, run, together)
    flat = not group and (together > 1 or _wasteful(run, lines[0][0].chunk_bytes // itemsize))
    blocks = lines if flat else _blocks(group, itemsize, device.multiprocessors)
    if data.window and (group or itemsize == 4):  # else 8 to 24 bytes are spilled
        blocks = tuple((one.holding(max(0, one.held - 1)), most) for one, most in blocks)
    if data.slopes:
        blocks = tuple((_with_slopes(one, data, flat=flat), most) for one, most in blocks)
    if data.tensors == 1:
        if data.window:  # registers go to masks
            blocks = tuple((one.holding(0), most) for one, most in blocks)
        more = tuple((block.of_one_tensor(_MORE), most) for block, most in blocks)
        blocks = (*blocks, *more) if group else more
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
            vector = data.window or data.align
            piece = ceil_div(ceil_div(run, pieces), vector) * vector
            cols = max(64, power_of_two(piece))
            pieces = ceil_div(run, piece)
        else:
            cols = cut(run, 1024)
            pieces, piece = ceil_div(run, cols), cols
        if cols > elements:
            continue
        tile_rows = elements // cols * abreast
        shared = data.tensors * block.chunks * block.chunk_bytes + (
            _sums_bytes(cols) if flat else 512
        )
        if data.bulk:
            shared += head_bytes(block.chunks)
        per = blocks_per_multiprocessor(device, block.warps, block.registers, shared)
        resident = per * device.multiprocessors
        most = block.capacity * tile_rows
        rows = data.planes * pieces
        if ceil_div(rows, most) > most_blocks:
            continue
        at_once = resident if group else min(resident, most_blocks * data.slabs)
        team = share_out(rows, most, tile_rows, data.slabs, at_once, alike=group)
        if team is None or rows * pieces >= 1 << 32:  # see `magic`
            continue
        chunks = ceil_div(team.share, tile_rows)
        depth = min(block.chunks, chunks * team.rounds)
        # Nothing comes after the only round.
        held = min(block.held, chunks) if team.rounds > 1 else max(0, chunks - depth)
        height, plane = elements // cols, run if flat else 0
        return Tiles(block, team, height, cols, pieces, piece, chunks, depth, held, plane)
    return None


def _with_slopes(block: Block, data: Planes, *, flat: bool) -> Block:
    """The same with registers for an activation."""
    block = replace(block, ahead=False)
    fewer = data.slopes if data.group and block.warps == 8 else data.slopes - 1
    return block if flat else block.holding(max(0, block.held - fewer))


def _wasteful(run: int, line: int) -> bool:
    """Whether short planes fill a line of several better than rows of their own."""
    cols = cut(run, 1024)
    return run < SHORT and _filled(run, line) > 1.05 * run / (ceil_div(run, cols) * cols)


def block_channels(layout: Layout, itemsize: int) -> int:
    """Channels to take together so that planes of small images start at multiples of 16 bytes."""
    if layout.inner >= SHORT or layout.x.channel != layout.inner:
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
