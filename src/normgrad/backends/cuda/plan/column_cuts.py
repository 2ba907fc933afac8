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
    deal,
    power_of_two,
)

_ALL_REGISTERS = 255  # that a thread can have
_VECTOR = 16  # bytes of the largest copy
_ONE_HOT = 32  # elements of a thread where the sums of columns become those of groups
_LEAST_BYTES = 128  # of a row of a tile, unless there are fewer channels
_MOST_BYTES = 512
_FEWEST = 4  # tiles in shared memory: a ring of three, and one that stays
# Words for a block, over the blocks of a multiprocessor: so many in large teams, or the most in
# others, take two steps. One step for 33 parts of 64 columns is 5 % faster, for 66 2 %, for 131 2 %
# slower; for 131 of 32 the same as two, but two leave time for more to be fetched (below).
_MANY_WORDS, _MOST_WORDS, _CROWD = 1800, 4300, 96
# Microseconds on an H200, fitted to 511 measured cuts of 20 shapes and types (5 % off on the
# average; the least guess is 0 to 2.5 points behind the best of them).
_START = 10.5  # the launches, the first tiles, the last
_EXCHANGE = 2.8  # of one block of a multiprocessor; others have something to do meanwhile
_WORD = 0.3e-3  # for each word that a block reads
_TWO_STEPS = 4.65  # instead of both where there are many words, whatever the block
# In each of several rounds of a block that has neither partners nor others on its multiprocessor:
# nothing is read while it ends its sums. Group norm 512x14x14 in bfloat16, 512 samples: guessed 106
# us without, seen 138; by four blocks of a multiprocessor 100.
_ALONE = 1.5
_PARTNERS = 0.24  # each time that a team is twice as large: the last block is later
_ACROSS = 1.3e-3  # for each column and warp of a multiprocessor: sums across warps
_TILE = 0.049  # for each tile of a multiprocessor: barriers
# Less for each further block of a multiprocessor, where there is one round and few words to read:
# group norm 4x1280x32x32 takes 19.5 us instead of 22.1, but batch norm 32x512x14x14 17.0 instead of
# 14.6, where a block would read 4224 words.
_BESIDE, _FEW_WORDS = 0.3, 2000
_LEAST = 0.62  # what is left of all this however many tiles arrive meanwhile
# Batch norm with blocks that have room for more tiles than their share of at most 17, and up to 16
# partners, waits so much less in each round: 256x2048x7x7 in float32 reads 80.3 instead of 79.0 %,
# 64x1024x14x14 in bfloat16 59.3 instead of 56.6.
_ROOMY, _FRIENDS, _LESS = 17, 16, 0.7
_FINE = 48  # tiles of a share, at most, where they are small ones
_FINE_WARPS, _FINE_BYTES = 8, 4 << 10  # of a block and a tile of that kind
_SPEED = 36.0e3  # bytes of a multiprocessor in a microsecond
# The same for 16-bit data whose rows are no multiples of 16 bytes: smaller copies. 64x100x56x56
# takes 97 us, in two passes (which fold rows) 62; 64x10x112x112 40 and 30, 128x60x28x28 21 and 24.
_NARROW_SPEED = 24.0e3
# Streams of the whole device in rows of 256 bytes find what they read again in the L2
# cache, if it is no more than this. Batch norm 131072x256 takes 67 us in two such rounds, 71 in
# four of whole slabs in rows of 128 bytes; in float32 129 and 137. Smaller teams and shorter rows
# gain less than they lose.
_NEAR, _WIDE_ROWS, _AGAIN = 26e6, 256, 0.5
# Tiles of the next slab that the L2 cache is to fetch during the wait, where there is no room for
# any; so many in two steps of float32. Batch norm 256x512x28x28 in float32 takes 386 us so instead
# of 405 (with 8 of them 399, with 24 421), in bfloat16 194 instead of 201 (with 16 195);
# 64x512x28x28 in float32 91 instead of 95. And what is left of the wait then.
_FETCHED, _FETCHED_IN_TWO_STEPS, _HIDDEN = 8, 16, 0.85
# The same in streams, of groups of whole vectors: group norm 1x512x512x512 takes 256 us so instead
# of 260 (with 8 of them 266), in float32 513 instead of 522. Others, and batch norm, lose 1 %.
_FETCHED_IN_STREAMS = 3
# What a row of a slab costs besides its own bytes, where slabs lie side by side and end inside of a
# sector of memory, which is then written in part, twice; or batch norm's inside of a line. Less in
# one round, in which neighbours are written at about the same time. Group norm 4x960x128x128 takes
# 173 us in slabs of 240 bytes and 127 of 480, batch norm 64x728x37x37 202 and in two passes 166.
_SECTOR, _IN_SECTOR, _IN_SECTOR_AT_ONCE = 32, 80, 15
_LINE, _IN_LINE = 128, {2: 35, 4: 16}  # by the size of an element
_TWO_PASSES_SPEED = 33.4e3
_TWO_PASSES = 22.0  # what two passes take beside their traffic: 14 to 37
# Where less than a third stays on chip, streams take 5 to 17 % longer than this says: batch norm
# 256x256x56x56 in bfloat16 reads 56 % that way and 61 in two passes, 64x64x112x112 58 and 55 (in
# float32 58 and 59).
_LONG = 1.14


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

    @property
    def team(self) -> int:
        """Blocks of a team."""
        return self.parts * self.pieces

    @property
    def roomy(self) -> bool:
        """Whether it is for small teams of batch norm."""
        return self.block.most == _ROOMY

    @property
    def fine(self) -> bool:
        """Whether one block a multiprocessor has many small tiles."""
        return (self.block.warps, self.block.chunk_bytes) == (_FINE_WARPS, _FINE_BYTES)

    @property
    def streams(self) -> bool:
        """Whether some of the tiles are read twice."""
        return self.tiles > self.block.capacity

    @property
    def depth(self) -> int:
        """Tiles in shared memory that make room for others."""
        room = self.block.chunks
        # Of 13 tiles 3, 4, 5 and 6 give 257, 260, 263 and 267 us for group norm 1x512x512x512.
        return 3 if self.streams else min(room, self.tiles * self.rounds)

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
    def late(self) -> bool:
        """Whether the next slab is asked for only when the sums of this one are published.

        Whoever asks early takes bandwidth from partners that it then waits for. Batch norm
        256x2048x7x7 in float32 takes 88 us instead of 91, group norm 64x256x56x56 in bfloat16 88
        instead of 90; but with two blocks of a multiprocessor or large teams 1 to 6 % more, and in
        float32 with tiles of 4 KB, where it spills.
        """
        room, spills = self.block.chunks, self.itemsize == 4 and self.fine
        part = room < self.tiles < room + self.held
        return part and self.per == 1 and 1 < self.team <= _FRIENDS and not spills

    @property
    def fetched(self) -> int:
        """Tiles of the next slab that the L2 cache fetches during the wait."""
        if self.streams:
            return _FETCHED_IN_STREAMS if self.whole and self.rounds > 1 else 0
        full = self.fine and self.tiles == self.block.chunks + self.held
        if not full or self.rounds == 1 or self.team == 1:
            return 0
        return _FETCHED_IN_TWO_STEPS if self.own and self.itemsize == 4 else _FETCHED

    @property
    def near(self) -> bool:
        """Whether what is read twice is still in the L2 cache."""
        again = self.tiles - self.block.chunks - self.held + 1
        again *= 2 * self.team * self.rows * self.cols * self.itemsize
        wide = self.width * self.itemsize == _WIDE_ROWS and self.ends % _LINE == 0
        alone = self.teams == self.pieces == self.per == 1 and self.rounds > 1
        return self.streams and wide and alone and again <= _NEAR

    @property
    def words(self) -> int:
        """Words that a block reads if everybody reads all of its own bins."""
        return self.parts * self.spans * self.bins

    @property
    def many(self) -> bool:
        """Whether everybody would read very many words; measured in batch norm alone."""
        return self.bins == self.cols and self.words >= _MANY_WORDS * self.per

    @property
    def own(self) -> int:
        """Columns that a block adds up for its team; 0 where it adds up all of its own bins."""
        few = self.parts <= _CROWD and self.words < _MOST_WORDS * self.per
        return 0 if few or not self.many else power_of_two(ceil_div(self.cols, self.parts))

    @property
    def step(self) -> int:
        """Words of a bin that are polled together."""
        if self.polled:
            return self.polled
        threads = self.block.warps * THREADS
        bins = self.own or self.bins
        # What held tiles leave; more words are spilled.
        registers = self.block.registers - self.held * self.block.chunk_bytes // (2 * threads)
        most = power_of_two(registers // 16 + 1) // 2 * threads
        words = min(power_of_two(self.parts * self.spans), most // bins)
        return max(1, threads // bins, words)

    @property
    def edges(self) -> int:
        """What the ends of a slab cost in each row, in bytes of memory traffic."""
        if self.ends % _SECTOR:
            return _IN_SECTOR if self.rounds > 1 else _IN_SECTOR_AT_ONCE
        inside = self.ends % _LINE and self.rounds > 1 and self.pieces == 1
        return _IN_LINE[self.itemsize] if inside else 0

    def guess(self, multiprocessors: int, *, narrow: bool = False) -> float:
        """How long it takes, in microseconds; ``narrow`` where copies are of less than 16 bytes."""
        speed = _NARROW_SPEED if narrow and self.itemsize == 2 else _SPEED
        tile = self.tensors * self.rows * self.cols * self.itemsize
        blocks = self.team * self.teams
        trips, spare = (
            (1 + 1 / self.tensors) * self.tiles,
            self.block.chunks + self.held - self.tiles,
        )
        near = self.near
        if self.streams:
            trips, spare = trips if near else trips + 1 - spare, 1
        memory = blocks * trips * tile / multiprocessors / speed
        memory *= 1 + self.edges / (self.width * self.itemsize)
        if 3 * (self.block.chunks + self.held) < self.tiles:
            memory *= _LONG
        wait = self.per * (_ACROSS * self.block.warps * self.cols + _TILE * self.tiles)
        if self.team > 1:
            wait += _TWO_STEPS if self.many else _EXCHANGE / self.per + _WORD * self.words
            wait += _PARTNERS * math.log2(self.team)
            wait -= _LESS if self.roomy else 0
        if near:
            wait += _AGAIN
        if self.fetched and not self.streams:
            wait *= _HIDDEN
        if self.rounds == 1:
            beside = _BESIDE * (self.per - 1) if self.words < _FEW_WORDS else 0
            return _START + memory + wait - beside
        if self.team == self.per == 1:
            wait += _ALONE
        arrive = min(spare, self.held) * self.per * tile / speed
        return _START + self.rounds * (memory + max(_LEAST * wait, wait - arrive))


def _blocks(data: Slabs) -> tuple[Block, ...]:
    """To choose from: four on a multiprocessor of an H200, two, or one.

    The fourth has tiles of one vector a thread, whose sums take few registers: slabs of 51 MB fit.
    It does not stream (5 to 7 points behind). With more tiles held it spills, in 16 bits and with
    fewer than 48 of them with 21. The last is for small teams of batch norm.
    """
    held = 21 if data.itemsize == 4 else 20
    roomy = Block(8, 8 << 10, 13, _ALL_REGISTERS, held=10 if data.itemsize == 4 else 9, most=_ROOMY)
    if data.tensors == 1:
        return (
            Block(warps=4, chunk_bytes=4 << 10, chunks=12, registers=128, held=2),
            Block(warps=8, chunk_bytes=8 << 10, chunks=12, registers=128, held=2),
            Block(warps=8, chunk_bytes=8 << 10, chunks=26, registers=_ALL_REGISTERS, held=4),
        )
    fine = Block(_FINE_WARPS, _FINE_BYTES, 27, _ALL_REGISTERS, held=held, most=_FINE)
    large = Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=_ALL_REGISTERS, held=8)
    if data.slopes:
        # Three numbers more of each column: 56 bytes are spilled for ReLU in 16 bits, 144 for SiLU.
        fine = fine.holding(held - (2 if data.itemsize == 4 else 5) - data.slopes)
        large = large.holding(large.held - data.slopes + 1)
    return (
        Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128, held=2),
        Block(warps=8, chunk_bytes=8 << 10, chunks=6, registers=128, held=2),
        large,
        fine,
        *((roomy,) if data.group == 1 else ()),
    )


def cuts(data: Slabs, device: Device) -> Iterator[Cut]:
    """All that can be done."""
    for block in _blocks(data):
        for width, cols in _widths(data):
            yield from _teams(data, device, block, width, cols)


def _widths(data: Slabs) -> Iterator[tuple[int, int]]:
    """Columns of a slab and of a tile."""
    vector = _VECTOR // data.itemsize
    cols = max(vector, min(power_of_two(data.channels), _LEAST_BYTES // data.itemsize))
    most = max(cols, min(power_of_two(data.channels), _MOST_BYTES // data.itemsize))
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
    if data.group > 1 and bins * cols > _ONE_HOT * THREADS * most.warps:
        return
    besides = _besides(data.group, most.warps, cols, bins)
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
        teams, rounds = deal(slabs, wanted)
        if teams in seen:
            continue
        seen.add(teams)
        parts = min(resident // teams // pieces, tiles)
        share = ceil_div(tiles, parts)
        parts = ceil_div(tiles, share)
        made = Cut(
            block, per, width, cols, rows, parts, pieces, teams, rounds, share, bins, spans, ends,
            data.itemsize, whole, tensors=data.tensors,
        )  # fmt: skip
        if made.streams and data.tensors == 1:
            continue
        if made.streams:
            made = _stretched(made, data, device, besides)
        # Tiles that stay would be read before they come.
        late = made.streams and made.fixed + made.held < made.depth
        small = made.parts <= _FRIENDS and made.tiles >= block.chunks
        if not late and not (made.streams and block.most) and (small or not made.roomy):
            yield made


def _stretched(made: Cut, data: Slabs, device: Device, besides: int) -> Cut:
    """The same with as much more as there is room for in streams, if some is still read twice.

    Each tile that stays is 1 % of group norm 1x512x512x512. One more that is held is spilled, and
    8 bytes of spills cost 4 %.
    """
    if made.block.registers < _ALL_REGISTERS or data.align * data.itemsize < _VECTOR:
        return made  # copies of less than 16 bytes take registers
    few = made.whole and made.bins > 1  # registers; one group in a block takes more of them
    held = {2: 10 if few else 9, 4: 11 if few or data.group == 1 else 9}
    block = replace(made.block, held=held[data.itemsize] - data.slopes)
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
    return None if room < _FEWEST or block.most else replace(block, chunks=room)


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

    def guess(cut: Cut) -> float:
        return round(cut.guess(device.multiprocessors, narrow=narrow), 1)

    size = data.images * data.rows * data.channels * data.itemsize
    best = min(cuts(data, device), key=lambda cut: (guess(cut), cut.team), default=None)
    two_passes = (2 * data.tensors + 1) * size / (
        _TWO_PASSES_SPEED * device.multiprocessors
    ) + _TWO_PASSES
    return best if best is not None and guess(best) <= two_passes else None


def settle(data: Slabs, device: Device, images: int) -> Cut | None:
    """The cut for so many images, for as many as there are: a sample's sums are made alike."""
    best = choose(replace(data, images=images), device)
    if best is None:
        return None
    slabs = data.images * ceil_div(data.channels, best.width)
    teams, rounds = deal(slabs, best.per * device.multiprocessors // best.team)
    # As many words as there are registers for in several rounds, in which tiles are held.
    polled = replace(best, rounds=max(2, best.rounds)).step
    return replace(best, teams=teams, rounds=rounds, polled=polled)
