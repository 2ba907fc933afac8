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
    cut_into_teams,
    power_of_two,
)
from normgrad.backends.cuda.plan.tuned import planes as tuned

_MOST_CHANNELS = 16  # channels of one plane: a warp exchanges words of that many


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
    """Blocks to choose from and the largest team for each: the first that can."""
    large = tuned.LARGE
    middle: tuple[Block, ...] = (tuned.WHOLE,)
    alone = (tuned.SMALL, tuned.ALONE_OF_GROUPS) if group else (tuned.SMALL_AHEAD, tuned.ALONE)
    if group:
        small = tuned.SMALL_OF_GROUPS
        large = replace(large, held=tuned.LARGE_OF_GROUPS_HELD[itemsize])
        middle = middle if itemsize == 4 else (large, *middle)
    elif itemsize == 4:
        small, middle = tuned.SMALL_FLOAT32, (tuned.TWO_FLOAT32, tuned.WHOLE_FLOAT32, tuned.FINE)
    else:
        large = replace(large, most=tuned.LARGE_MOST)
        small, middle = tuned.SMALL_AHEAD, (large, *middle)
    found = (
        *((block, 1) for block in alone),
        *((block, multiprocessors) for block in (small, *middle)),
        (large, tuned.MOST_TEAMS * multiprocessors),
    )
    if itemsize == 4:
        return tuple((replace(block, ahead=True), blocks) for block, blocks in found)
    return found


def _flat_blocks(
    device: Device, itemsize: int, run: int, together: int
) -> tuple[tuple[Block, int], ...]:
    """The same for tiles of one line of whole planes, if the first one's lines are of use."""
    if itemsize * run > tuned.LARGE_PLANE_BYTES:
        one = team = _flat_block(device, itemsize, *tuned.LINE_OF_LARGE)
    else:
        one = team = _flat_block(device, itemsize, *tuned.LINE[itemsize])
        if itemsize == 4:
            sizes = tuned.LINE_TOGETHER if together > 1 else tuned.LINE_SMALL
            team = _flat_block(device, itemsize, *sizes)
    most = device.multiprocessors
    return (one, 1), (team, most), (team, tuned.MOST_TEAMS * most)


def _flat_block(
    device: Device, itemsize: int, warps: int, chunk_bytes: int, per: int, held: int
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
        more = tuple(
            (block.of_one_tensor(tuned.MORE_OF_ONE_TENSOR), most) for block, most in blocks
        )
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
            cols = cut(run, tuned.MOST_COLUMNS)
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
        team = cut_into_teams(rows, most, tile_rows, data.slabs, at_once, batch_independent=group)
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
    cols = cut(run, tuned.MOST_COLUMNS)
    return run < tuned.SHORT and _filled(run, line) > tuned.BETTER_FILLED * run / (
        ceil_div(run, cols) * cols
    )


def block_channels(layout: Layout, itemsize: int) -> int:
    """Channels to take together so that planes of small images start at multiples of 16 bytes."""
    if layout.inner >= tuned.SHORT or layout.x.channel != layout.inner:
        return 1
    block, size = 1, layout.inner * itemsize
    while (
        (block * size % 16 or block * size < tuned.LEAST_BYTES)
        and 2 * block <= _MOST_CHANNELS
        and layout.channels % (2 * block) == 0
    ):
        block *= 2
    # In float32 whole sectors of 32 bytes, if lines of 8 KB have little room left.
    many = 2 * layout.outer * block * size > tuned.ONE_BLOCK_BYTES
    if (
        itemsize == 4
        and many
        and block > 1
        and block * size % 32
        and 2 * block <= _MOST_CHANNELS
        and layout.channels % (2 * block) == 0
        and _filled(2 * block * layout.inner, 2048) > tuned.FILLED
    ):
        block *= 2
    return block
