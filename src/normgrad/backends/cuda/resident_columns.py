"""Plans for channels-last data: as much as there is room for stays on chip, the rest in the cache."""

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

_BLOCKS = (
    Block(warps=8, chunk_bytes=8 << 10, chunks=6, registers=128),
    Block(warps=8, chunk_bytes=8 << 10, chunks=12, registers=255),
)
_MOST_WORDS = 32  # of a thread, in one wait
_LEAST_BYTES = 128  # of a row of a tile, unless there are fewer channels
_MOST_COLS = 512
# The share of the speed of a copy that rows of so many bytes reach.
_SEGMENTS = {64: 0.6, 128: 0.83, 256: 0.94}
_CACHE = 256 << 10  # bytes of the L2 cache that a multiprocessor's tiles may count on
_EXCHANGE = 3.0  # microseconds
_SPEED = 32e3  # bytes that a multiprocessor copies in a microsecond


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
    share: int  # rows of a block
    fixed: int
    depth: int
    stream: int
    kept: int
    seconds: float  # a guess, in microseconds

    @property
    def team(self) -> int:
        """Blocks of a team."""
        return self.parts * self.pieces


def cuts(data: Slabs, device: Device) -> Iterator[Cut]:
    """All that can be done."""
    for block in _BLOCKS:
        for width, cols in _widths(data, block):
            yield from _teams(data, device, block, width, cols)


def _widths(data: Slabs, block: Block) -> Iterator[tuple[int, int]]:
    """Columns of a slab and of a tile."""
    vector = 16 // data.itemsize
    most = min(_MOST_COLS, block.chunk_bytes // data.itemsize)
    least = _LEAST_BYTES // data.itemsize
    cols = max(vector, min(power_of_two(data.channels), least))
    while cols <= min(most, power_of_two(data.channels)) or cols == vector:
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
    shared = 2 * block.chunks * block.chunk_bytes + 4096 + 4 * cols * block.warps
    per = blocks_per_multiprocessor(device, block.warps, block.registers, shared)
    resident = per * device.multiprocessors
    pieces = ceil_div(width, cols)
    slabs = data.images * ceil_div(data.channels, width)
    tiles = ceil_div(data.rows, rows)
    if pieces > resident:
        return
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
        if not _words_fit(data, block, width, parts, pieces):
            continue
        if share <= block.chunks:
            fixed, depth = 0, min(block.chunks, share * rounds)
            stream = kept = share
        else:
            depth = max(3, block.chunks // 3)
            fixed = block.chunks - depth
            stream, kept = share - fixed, depth - 1
        bytes_ = 2 * rows * cols * data.itemsize
        missing = share - fixed - kept - _CACHE // per // bytes_
        trips = 1.5 * share + max(0, missing)
        speed = _SPEED / per * _SEGMENTS.get(cols * pieces * data.itemsize, 1.0)
        # The wait is hidden as far as there is room for tiles of the next slab.
        spare = min(1.0, (block.chunks - share) / share) if fixed == 0 else 0.0
        wait = _EXCHANGE * (1 - spare if rounds > 1 else 1)
        seconds = rounds * (trips * bytes_ / speed + wait)
        yield Cut(
            block, per, width, cols, rows, parts, pieces, teams, share * rows,
            fixed, depth, stream, kept, seconds,
        )  # fmt: skip


def _words_fit(data: Slabs, block: Block, width: int, parts: int, pieces: int) -> bool:
    """Whether an owner can hold its words."""
    own = power_of_two(ceil_div(width // data.group, parts * pieces))
    words = power_of_two(parts) * own * power_of_two(data.group)
    return words <= _MOST_WORDS * THREADS * block.warps


def resident_columns(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Channels last; False where the data lie unevenly or too little fits."""
    data = slabs_of(builder, geometry, layout, device)
    if data is None:
        return False
    best = min(cuts(data, device), key=lambda cut: cut.seconds, default=None)
    if best is None:
        return False
    add_columns(builder, geometry, layout, data, best)
    return True


def slabs_of(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> Slabs | None:
    """What there is to do; None where asynchronous copies cannot do it."""
    x = layout.x
    if builder.compute != "float32" or not layout.same_strides or device.capability < 80:
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
    builder: Builder, geometry: Geometry, layout: Layout, data: Slabs, cut: Cut
) -> None:
    """The launches of one cut."""
    spec = builder.spec
    group = geometry.statistic == "row"
    x, dx = layout.x, layout.dx
    assert dx is not None
    split = ceil_div(data.channels, cut.width)
    slabs = data.images * split
    bins = cut.width // data.group
    sums = slabs * cut.parts * cut.width
    words = builder.scratch(sums + slabs * bins, "uint64")
    builder.fill(words, sums + slabs * bins, 0xFF)
    wants = group and (spec.dgamma is not None or spec.dbeta is not None)
    partials = builder.scratch(2 * data.images * data.channels, "float32") if wants else None
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
        "totals": words._replace(offset=words.offset + 8 * sums),
        "slabs": slabs,
        "rows": data.rows,
        "share": cut.share,
        "stream": cut.stream,
        "kept": cut.kept,
        "parts": cut.parts,
        "pieces": cut.pieces,
        "width": cut.width // data.align,
        "bins": bins,
        "group_size": data.group,
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
    threads = cut.block.warps * THREADS
    own = power_of_two(ceil_div(bins, cut.team))
    group_tile = power_of_two(data.group)
    constants: dict[str, Any] = {
        "GROUP": group,
        "VARIANCE": spec.rstd_is == "variance",
        "FIXED": cut.fixed,
        "DEPTH": cut.depth,
        "ROWS": cut.rows,
        "COLS": cut.cols,
        "PARTS": max(power_of_two(cut.parts), threads // (own * group_tile)),
        "OWN": own,
        "GROUP_TILE": group_tile,
        "VECTOR": 16 // data.itemsize,
        "WARPS": cut.block.warps,
        "ALIGN": data.align,
        "EVICT": "evict_first",
        "PHASE": 0,
    }
    builder.launch(
        "columns.column_slabs",
        (cut.team * cut.teams,),
        arguments,
        constants,
        warps=cut.block.warps,
        registers=cut.block.registers,
        cooperative=True,
    )
    if partials is not None:
        add_parameters(builder, geometry, layout, partials, 1)
