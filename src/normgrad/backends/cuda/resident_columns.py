"""Plans for channels-last data: slabs stay on chip, or as much of them as there is room for."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.layout import Layout
from normgrad.backends.cuda.parameters import add_parameters
from normgrad.backends.cuda.program import Argument, Builder
from normgrad.backends.cuda.tiles import (
    THREADS,
    Block,
    alignment,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
)
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry

# Four, two and one of a multiprocessor of an H200.
_BLOCKS = (
    Block(warps=4, chunk_bytes=4 << 10, chunks=6, registers=128),
    Block(warps=8, chunk_bytes=8 << 10, chunks=6, registers=128),
    Block(warps=8, chunk_bytes=8 << 10, chunks=13, registers=255),
)
_ONE_HOT = 32  # elements of a thread where the sums of columns become those of groups
_LEAST_BYTES = 128  # of a row of a tile, unless there are fewer channels
_MOST_BYTES = 512
# The share of the speed of a copy that rows of so many bytes reach.
_SEGMENTS = {64: 0.6, 128: 0.9, 256: 0.96}
_EXCHANGE = 2.5  # microseconds
_POLL = 0.7  # microseconds, for each further set of words
_SPEED = 32e3  # bytes that a multiprocessor copies in a microsecond
_ISSUE = 5e3  # instructions that its warps issue in a microsecond
_LAUNCHES = 5.0  # microseconds that two passes take for more launches
_SLAB, _ELEMENT = 1000, 8  # instructions of a thread for a slab; for an element and trip


@dataclass(frozen=True, slots=True)
class Slabs:
    """The data as this plan sees it."""

    images: int
    rows: int  # of an image
    channels: int
    group: int  # channels of a bin
    itemsize: int
    align: int


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

    @property
    def team(self) -> int:
        """Blocks of a team."""
        return self.parts * self.pieces

    @property
    def depth(self) -> int:
        """Tiles of the ring."""
        room, tiles = self.block.chunks, self.tiles
        if tiles > room:
            return max(3, room // 3)
        whole = room // tiles * tiles  # a multiple needs no division for each tile
        return min(whole if whole > tiles else room, tiles * self.rounds)

    @property
    def fixed(self) -> int:
        """Tiles that stay where not all do."""
        return self.block.chunks - self.depth if self.tiles > self.block.chunks else 0

    @property
    def step(self) -> int:
        """Words of a bin that are polled together."""
        threads = self.block.warps * THREADS
        most = power_of_two(self.block.registers // 16) * threads  # more are spilled
        words = min(power_of_two(self.parts * self.spans), most // self.bins)
        return max(1, threads // self.bins, words)

    def guess(self, itemsize: int, multiprocessors: int) -> float:
        """How long it takes, in microseconds: what a multiprocessor cannot do at the same time."""
        tile = 2 * self.rows * self.cols * itemsize
        trips = 1.5 * self.tiles
        if self.fixed:
            trips += self.tiles - self.fixed - self.depth + 1
        segment = self.cols * self.pieces * itemsize
        memory = self.per * trips * tile / (_SPEED * _SEGMENTS.get(segment, 1.0))
        elements = trips * self.rows * self.cols / (THREADS * self.block.warps)
        work = self.block.warps * (_SLAB + _ELEMENT * elements) / _ISSUE  # of one block
        polls = ceil_div(self.parts * self.spans, self.step)
        wait = _EXCHANGE + _POLL * (polls - 1) if self.team > 1 else 0.0
        busy = max(memory, self.per * work)
        if self.fixed or self.rounds == 1 or self.team > multiprocessors:
            return self.rounds * (busy + wait)  # all wait at the same time
        own = wait + work + (0 if self.depth >= 2 * self.tiles else memory / self.per)
        return self.rounds * max(busy, own) + wait


def cuts(data: Slabs, device: Device) -> Iterator[Cut]:
    """All that can be done."""
    for block in _BLOCKS:
        for width, cols in _widths(data, block):
            yield from _teams(data, device, block, width, cols)


def _widths(data: Slabs, block: Block) -> Iterator[tuple[int, int]]:
    """Columns of a slab and of a tile."""
    vector = 16 // data.itemsize
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


def _teams(data: Slabs, device: Device, block: Block, width: int, cols: int) -> Iterator[Cut]:
    rows = block.chunk_bytes // data.itemsize // cols
    pieces = ceil_div(width, cols)
    bins, spans = _bins(data.group, width, cols)
    if data.group > 1 and bins * cols > _ONE_HOT * THREADS * block.warps:
        return
    # Besides the tiles, what sums across warps need.
    shared = 2 * block.chunks * block.chunk_bytes + 512 + 8 * cols * block.warps
    per = blocks_per_multiprocessor(device, block.warps, block.registers, shared)
    resident = per * device.multiprocessors
    slabs = data.images * ceil_div(data.channels, width)
    tiles = ceil_div(data.rows, rows)
    seen = set()
    for wanted in range(1, min(slabs, resident // pieces) + 1):
        rounds = ceil_div(slabs, wanted)
        teams = ceil_div(slabs, rounds)
        if teams in seen:
            continue
        seen.add(teams)
        parts = min(resident // teams // pieces, tiles)
        share = ceil_div(tiles, parts)
        parts = ceil_div(tiles, share)
        made = Cut(
            block, per, width, cols, rows, parts, pieces, teams, rounds, share, bins, spans
        )  # fmt: skip
        if not made.fixed or made.fixed >= made.depth:  # or they would be read before they come
            yield made


def _bins(group: int, width: int, cols: int) -> tuple[int, int]:
    """Bins that a block's columns can lie in, and pieces that a bin's columns can lie in."""
    if cols % group == 0:
        return cols // group, 1
    bins = power_of_two((cols - 2) // group + 2)
    spans = group // cols if group % cols == 0 else (group - 2) // cols + 2
    return min(bins, power_of_two(width // group)), 1 if width <= cols else spans


def resident_columns(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Channels last; False where the data lie unevenly or two passes are as good."""
    data = slabs_of(builder, geometry, layout, device)
    if data is None:
        return False

    def guess(cut: Cut) -> float:
        return cut.guess(data.itemsize, device.multiprocessors)

    best = min(cuts(data, device), key=guess, default=None)
    size = data.images * data.rows * data.channels * data.itemsize
    two_passes = 5 * size / (_SPEED * device.multiprocessors) + _LAUNCHES
    if best is None or guess(best) > two_passes:
        return False
    add_columns(builder, geometry, layout, device, data, best)
    return True


def slabs_of(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> Slabs | None:
    """What there is to do; None where asynchronous copies cannot do it."""
    x = layout.x
    if builder.compute != "float32" or not layout.same_strides or not device.copies_ahead:
        return None
    itemsizes = {ITEMSIZE[layout.dy.ref.dtype], ITEMSIZE[x.ref.dtype]}
    itemsize = max(itemsizes)
    align = alignment(itemsize, layout.channels, x.outer, x.inner)
    # The least that an asynchronous copy takes; rows of a tile that 32-bit offsets reach.
    if align * min(itemsizes) < 4 or layout.channels * itemsize < 16 or x.inner >= 1 << 21:
        return None
    group = geometry.channels if geometry.statistic == "row" else 1
    return Slabs(layout.outer, layout.inner, layout.channels, group, itemsize, align)


def add_columns(
    builder: Builder, geometry: Geometry, layout: Layout, device: Device, data: Slabs, cut: Cut
) -> None:
    """The launches of one cut."""
    spec = builder.spec
    group = geometry.statistic == "row"
    x, dx = layout.x, layout.dx
    assert dx is not None
    split = ceil_div(data.channels, cut.width)
    slabs = data.images * split
    bins = cut.width // data.group
    solo = cut.team == 1 and not cut.fixed
    count = slabs * cut.parts * cut.spans * bins
    words = None if solo else builder.scratch(count, "uint64")
    early = words is not None and device.starts_early
    wants = group and (spec.dgamma is not None or spec.dbeta is not None)
    sums = 2 * data.images * data.channels * cut.parts
    partials = builder.scratch(sums, "float32") if wants else None
    arguments: dict[str, Argument] = {
        "dy": layout.dy.ref,
        "x": x.ref,
        "dx": dx.ref,
        "mean": builder.vector("mean"),
        "rstd": builder.vector("rstd"),
        "gamma": builder.vector("gamma"),
        "dgamma": None if group else builder.result("dgamma"),
        "dbeta": None if group else builder.result("dbeta"),
        "partials": partials,
        "words": words,
        "slabs": slabs,
        "rows": data.rows,
        "share": cut.tiles * cut.rows,
        "parts": cut.parts,
        "pieces": cut.pieces,
        "width": cut.width // data.align,
        "bins": bins,
        "team": cut.team,
        "teams": cut.teams,
        "split": split,
        "images": data.images,
        "channels": data.channels // data.align,
        "row_step": x.inner // data.align,
        "outer_step": x.outer // data.align,
        "count": float(geometry.count),
        "eps": spec.eps,
    }
    constants: dict[str, Any] = {
        "GROUP": group,
        "GROUP_SIZE": data.group,
        "VARIANCE": spec.rstd_is == "variance",
        "DEPTH": cut.depth,
        "ROWS": cut.rows,
        "COLS": cut.cols,
        "BINS": cut.bins,
        "SPANS": cut.spans,
        "STEP": cut.step,
        "VECTOR": 16 // data.itemsize,
        "WARPS": cut.block.warps,
        "ALIGN": data.align,
        "EARLY": early,
        "PHASE": 0,
    }
    if cut.fixed:
        kernel = "column_streams.column_streams"
        arguments["stream"] = cut.tiles - cut.fixed
        constants |= {"FIXED": cut.fixed, "FETCH": 0}
    else:
        kernel = "columns.column_slabs"
        constants |= {"CHUNKS": cut.tiles, "SOLO": solo}
    if words is not None:  # directly before the launch, which must meet no unfinished copy
        builder.clear(words, count, early=early)
    builder.launch(
        kernel,
        (cut.team * cut.teams,),
        arguments,
        constants,
        warps=cut.block.warps,
        registers=cut.block.registers,
        cooperative=not solo,
        early=early,
    )
    if partials is not None:
        add_parameters(builder, geometry, layout, partials, cut.parts, early=device.starts_early)
