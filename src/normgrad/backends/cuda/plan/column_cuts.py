"""How channels-last slabs are cut into tiles and shared by blocks, and how long that would take."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.tiles import (
    DRIVER_BYTES,
    THREADS,
    Block,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
    rounds_of_teams,
)
from normgrad.backends.cuda.plan.tuned import columns as tuned

_ALL_REGISTERS = 255  # that a thread can have
_VECTOR = 16  # bytes of the largest copy
_SECTOR, _LINE = 32, 128  # bytes of memory that are written at once, and cached


@dataclass(frozen=True, slots=True)
class Slabs:
    """The data as this plan sees it."""

    images: int
    rows: int  # of an image
    channels: int
    group: int  # channels of a bin
    itemsize: int
    align: int
    tensors: int = 2  # that are read: x and dy, or x
    slopes: int = 0  # tiles fewer in registers, as the gradient goes through an activation
    shortcut: bool = False  # read when y is written, or its gradient written with dx
    mask: bool = False  # a bit of each element is written, or read

    @property
    def plain(self) -> bool:
        """Whether there is nothing besides, which streams do not take."""
        return not self.shortcut and not self.mask

    @property
    def besides(self) -> float:
        """Trips to memory more."""
        return self.shortcut + self.mask / (8 * self.itemsize)


@dataclass(frozen=True, slots=True)
class Cut:
    """How slabs are cut into tiles, and tiles shared by blocks."""

    block: Block
    per: int  # blocks of a multiprocessor
    width: int  # columns of a slab
    cols: int  # of a tile
    rows: int
    parts: int  # blocks of a team, one below the other
    pieces: int  # side by side
    teams: int
    rounds: int
    tiles: int  # of a block's share
    bins: int  # of a block, up to a power of two
    spans: int  # words of a part for one bin
    ends: int  # slabs begin and end at multiples of these bytes; 0: at rows
    itemsize: int
    whole: bool  # whether groups have whole vectors of 16 bytes
    polled: int = 0  # words of a bin that are polled together, if that is settled
    tensors: int = 2
    besides: float = 0  # trips to memory more

    @property
    def team(self) -> int:
        """Blocks of a team."""
        return self.parts * self.pieces

    @property
    def has_prefetch_room(self) -> bool:
        """Whether it is for small teams of batch norm."""
        return self.block.most == tuned.PREFETCH_TILES

    @property
    def fine(self) -> bool:
        """Whether one block a multiprocessor has many small tiles."""
        return (self.block.warps, self.block.chunk_bytes) == (tuned.FINE_WARPS, tuned.FINE_BYTES)

    @property
    def streams(self) -> bool:
        """Whether some of the tiles are read twice."""
        return self.tiles > self.block.capacity

    @property
    def depth(self) -> int:
        """Tiles in shared memory that make room for others."""
        room = self.block.chunks
        return tuned.STREAM_DEPTH if self.streams else min(room, self.tiles * self.rounds)

    @property
    def beside(self) -> int:
        """Tiles of a shortcut in shared memory."""
        return min(self.block.beside, self.tiles)

    @property
    def fixed(self) -> int:
        """Tiles that stay in shared memory where not all do."""
        return self.block.chunks - self.depth if self.streams else 0

    @property
    def held(self) -> int:
        """Tiles that move on to registers; nothing comes during the wait of the only round."""
        if self.streams:
            return self.block.held
        waits = self.rounds > 1 and self.team > 1
        ahead = min(self.block.held, self.tiles) if waits else 0
        return max(ahead, self.tiles - self.block.chunks)

    @property
    def requests_after_publish(self) -> bool:
        """Whether the next slab is asked for only when the sums of this one are published."""
        room, spills = self.block.chunks, self.itemsize == 4 and self.fine
        part = room < self.tiles < room + self.held
        return part and self.per == 1 and 1 < self.team <= tuned.SMALL_TEAM and not spills

    @property
    def l2_tiles(self) -> int:
        """Tiles of the next slab that the L2 cache fetches during the wait."""
        if self.streams:
            return tuned.L2_TILES_IN_STREAMS if self.whole and self.rounds > 1 else 0
        full = self.fine and self.tiles == self.block.chunks + self.held
        if not full or self.rounds == 1 or self.team == 1:
            return 0
        return (
            tuned.L2_TILES_IN_TWO_STEPS
            if self.totals_columns and self.itemsize == 4
            else tuned.L2_TILES
        )

    @property
    def rereads_fit_l2(self) -> bool:
        """Whether what is read twice is still in the L2 cache."""
        again = self.tiles - self.block.chunks - self.held + 1
        again *= 2 * self.team * self.rows * self.cols * self.itemsize
        wide = self.width * self.itemsize == tuned.REREAD_ROW_BYTES and self.ends % _LINE == 0
        alone = self.teams == self.pieces == self.per == 1 and self.rounds > 1
        return self.streams and wide and alone and again <= tuned.REREAD_BYTES

    @property
    def words(self) -> int:
        """Words that a block reads if everybody reads all of its own bins."""
        return self.parts * self.spans * self.bins

    @property
    def two_step_exchange(self) -> bool:
        """Whether everybody would read very many words; measured in batch norm alone."""
        return self.bins == self.cols and self.words >= tuned.MANY_WORDS * self.per

    @property
    def totals_columns(self) -> int:
        """Columns that a block adds up for its team; 0 where it adds up all of its own bins."""
        few = self.parts <= tuned.LARGE_TEAM and self.words < tuned.MOST_WORDS * self.per
        return (
            0
            if few or not self.two_step_exchange
            else power_of_two(ceil_div(self.cols, self.parts))
        )

    @property
    def step(self) -> int:
        """Words of a bin that are polled together."""
        if self.polled:
            return self.polled
        threads = self.block.warps * THREADS
        bins = self.totals_columns or self.bins
        # What held tiles leave; more words are spilled.
        registers = self.block.registers - self.held * self.block.chunk_bytes // (2 * threads)
        most = power_of_two(registers // 16 + 1) // 2 * threads
        words = min(power_of_two(self.parts * self.spans), most // bins)
        return max(1, threads // bins, words)

    @property
    def partial_sector_bytes(self) -> int:
        """What the ends of a slab cost in each row, in bytes of memory traffic."""
        if self.ends % _SECTOR:
            return tuned.IN_SECTOR if self.rounds > 1 else tuned.IN_SECTOR_AT_ONCE
        inside = self.ends % _LINE and self.rounds > 1 and self.pieces == 1
        return tuned.IN_LINE[self.itemsize] if inside else 0

    def estimated_us(self, multiprocessors: int, *, narrow: bool = False) -> float:
        """How long it takes, in microseconds; ``narrow`` where copies are of less than 16 bytes."""
        speed = tuned.NARROW_SPEED if narrow and self.itemsize == 2 else tuned.SPEED
        tile = self.tensors * self.rows * self.cols * self.itemsize
        blocks = self.team * self.teams
        trips = (1 + (1 + self.besides) / self.tensors) * self.tiles
        free_tiles = self.block.chunks + self.held - self.tiles
        fits_l2 = self.rereads_fit_l2
        if self.streams:
            trips, free_tiles = trips if fits_l2 else trips + 1 - free_tiles, 1
        memory = blocks * trips * tile / multiprocessors / speed
        memory *= 1 + self.partial_sector_bytes / (self.width * self.itemsize)
        if 3 * (self.block.chunks + self.held) < self.tiles:
            memory *= tuned.MOSTLY_STREAMED
        wait = self.per * (
            tuned.ACROSS_WARPS_US * self.block.warps * self.cols + tuned.TILE_US * self.tiles
        )
        if self.team > 1:
            wait += (
                tuned.TWO_STEPS_US
                if self.two_step_exchange
                else tuned.EXCHANGE_US / self.per + tuned.WORD_US * self.words
            )
            wait += tuned.TEAM_DOUBLED_US * math.log2(self.team)
            wait -= tuned.PREFETCH_GAIN_US if self.has_prefetch_room else 0
        if fits_l2:
            wait += tuned.REREAD_US
        if self.l2_tiles and not self.streams:
            wait *= tuned.WAIT_WITH_L2
        if self.rounds == 1:
            beside = tuned.SHARED_US * (self.per - 1) if self.words < tuned.FEW_WORDS else 0
            return tuned.START_US + memory + wait - beside
        if self.team == self.per == 1:
            wait += tuned.LONELY_BLOCK_US
        arrive = min(free_tiles, self.held) * self.per * tile / speed
        return tuned.START_US + self.rounds * (memory + max(tuned.LEAST_WAIT * wait, wait - arrive))


def _blocks(data: Slabs) -> tuple[Block, ...]:
    """To choose from: four on a multiprocessor of an H200, two, or one of three kinds."""
    if data.tensors == 1:
        return tuned.OF_ONE_TENSOR_AND_SHORTCUT if data.shortcut else tuned.OF_ONE_TENSOR
    large = tuned.LARGE
    fine = replace(tuned.FINE, held=tuned.FINE_HELD[data.itemsize])
    if data.slopes:
        fewer = tuned.FINE_FEWER_WITH_SLOPES[data.itemsize]
        fine = fine.holding(fine.held - fewer - data.slopes)
        large = large.holding(large.held - data.slopes + 1)
    prefetch = replace(tuned.PREFETCH, held=tuned.PREFETCH_HELD[data.itemsize])
    kinds = (tuned.FOUR, tuned.TWO, large, fine)
    return (*kinds, prefetch) if data.group == 1 else kinds


def cuts(data: Slabs, device: Device) -> Iterator[Cut]:
    """All that can be done."""
    for block in _blocks(data):
        for width, cols in _widths(data):
            yield from _teams(data, device, block, width, cols)


def _widths(data: Slabs) -> Iterator[tuple[int, int]]:
    """Columns of a slab and of a tile."""
    vector = 8 if data.mask else _VECTOR // data.itemsize  # whole bytes of a mask
    cols = max(vector, min(power_of_two(data.channels), tuned.LEAST_ROW_BYTES // data.itemsize))
    most = max(cols, min(power_of_two(data.channels), tuned.MOST_ROW_BYTES // data.itemsize))
    while cols <= most:
        if data.group == 1:
            yield cols, cols
        else:
            groups = data.channels // data.group
            for side in range(1, groups + 1):
                width = data.channels // side
                if groups % side == 0 and width % data.align == 0 and 2 * width > cols:
                    yield width, cols
        cols *= 2


def _teams(data: Slabs, device: Device, most: Block, width: int, cols: int) -> Iterator[Cut]:
    rows = most.chunk_bytes // data.itemsize // cols
    pieces = ceil_div(width, cols)
    bins, spans = _bins(data.group, width, cols)
    if data.group > 1 and bins * cols > tuned.ONE_HOT * THREADS * most.warps:
        return
    besides = _besides(data.group, most.warps, cols, bins) + most.beside * most.chunk_bytes
    block = _fitting(device, most, besides, data.tensors)
    if block is None:
        return
    per = _per(device, block, besides, data.tensors)
    resident = per * device.multiprocessors
    slabs = data.images * ceil_div(data.channels, width)
    tiles = ceil_div(data.rows, rows)
    ends = math.gcd(width, data.channels) * data.itemsize if width < data.channels else 0
    whole = data.group > 1 and data.group * data.itemsize % _VECTOR == 0
    seen = set()
    for wanted in range(1, min(slabs, resident // pieces) + 1):
        teams, rounds = rounds_of_teams(slabs, wanted)
        if teams in seen:
            continue
        seen.add(teams)
        parts = min(resident // teams // pieces, tiles)
        share = ceil_div(tiles, parts)
        parts = ceil_div(tiles, share)
        made = Cut(
            block, per, width, cols, rows, parts, pieces, teams, rounds, share, bins, spans, ends,
            data.itemsize, whole, tensors=data.tensors, besides=data.besides,
        )  # fmt: skip
        if made.streams and (data.tensors == 1 or not data.plain):
            continue
        if made.streams:
            made = _stretched(made, data, device, besides)
        # Tiles that stay would be read before they come.
        late = made.streams and made.fixed + made.held < made.depth
        small = made.parts <= tuned.SMALL_TEAM and made.tiles >= block.chunks
        if not late and not (made.streams and block.most) and (small or not made.has_prefetch_room):
            yield made


def _stretched(made: Cut, data: Slabs, device: Device, besides: int) -> Cut:
    """The same with as much more as there is room for in streams, if some is still read twice."""
    if made.block.registers < _ALL_REGISTERS or data.align * data.itemsize < _VECTOR:
        return made  # copies of less than 16 bytes take registers
    more_held = (made.whole and made.bins > 1) or (data.itemsize == 4 and data.group == 1)
    held = tuned.STREAM_HELD[data.itemsize][more_held]
    block = replace(made.block, held=held - data.slopes)
    more = replace(block, chunks=block.chunks + 1)
    if data.group > 1 and _per(device, more, besides):
        block = more
    return replace(made, block=block) if made.tiles > block.capacity else made


def _besides(group: int, warps: int, cols: int, bins: int) -> int:
    """Bytes of shared memory beside the tiles, at most: in streams just these.

    The sums of each warp's columns; then the larger of three factors for each column and what it
    takes to add up two sums of each bin across warps.
    """
    lanes = bins if group > 1 else min(THREADS, bins)
    nbytes = 8 * cols * warps + max(12 * cols, 8 * lanes * warps)
    return ceil_div(nbytes, 128) * 128


def _fitting(device: Device, block: Block, besides: int, tensors: int) -> Block | None:
    """The block with as many of its tiles as there is room for, if that is enough.

    Those that have a share of their own were measured with all tiles.
    """
    room = (device.shared_bytes - DRIVER_BYTES - besides) // (tensors * block.chunk_bytes)
    if room >= block.chunks:
        return block
    return None if room < tuned.LEAST_TILES or block.most else replace(block, chunks=room)


def _per(device: Device, block: Block, besides: int, tensors: int = 2) -> int:
    """Blocks of a multiprocessor."""
    shared = tensors * block.chunks * block.chunk_bytes + besides
    return blocks_per_multiprocessor(device, block.warps, block.registers, shared)


def _bins(group: int, width: int, cols: int) -> tuple[int, int]:
    """Bins that a block's columns can lie in, and pieces that a bin's columns can lie in."""
    if cols % group == 0:
        return cols // group, 1
    bins = power_of_two((cols - 2) // group + 2)
    spans = group // cols if group % cols == 0 else (group - 2) // cols + 2
    return min(bins, power_of_two(width // group)), 1 if width <= cols else spans


def choose(data: Slabs, device: Device) -> Cut | None:
    """The cut that takes least; None where two passes take less."""
    narrow = data.align * data.itemsize < _VECTOR

    def estimate(cut: Cut) -> float:
        return round(cut.estimated_us(device.multiprocessors, narrow=narrow), 1)

    size = data.images * data.rows * data.channels * data.itemsize
    best = min(cuts(data, device), key=lambda cut: (estimate(cut), cut.team), default=None)
    two_passes = (2 * data.tensors + 1 + data.besides) * size / (
        tuned.TWO_PASSES_SPEED * device.multiprocessors
    ) + tuned.TWO_PASSES_US
    return best if best is not None and estimate(best) <= two_passes else None


def settle(data: Slabs, device: Device, images: int) -> Cut | None:
    """The cut for so many images, for as many as there are: a sample's sums are made alike."""
    best = choose(replace(data, images=images), device)
    if best is None:
        return None
    slabs = data.images * ceil_div(data.channels, best.width)
    teams, rounds = rounds_of_teams(slabs, best.per * device.multiprocessors // best.team)
    # As many words as there are registers for in several rounds, in which tiles are held.
    polled = replace(best, rounds=max(2, best.rounds)).step
    return replace(best, teams=teams, rounds=rounds, polled=polled)
