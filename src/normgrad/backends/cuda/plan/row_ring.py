"""Layer norm of whole rows that come by bulk copies: sets of rows, and how far ahead they come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.joins import joint_sums
from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.row_data import RowData, row_arguments
from normgrad.backends.cuda.plan.tiles import (
    THREADS,
    alignment,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
)
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry

# Bytes of x and dy that a multiprocessor is to have under way. An H200 takes for 8192x5120 in
# bfloat16 78.9, 69.4, 70.7 us with 40, 60, 80 KB, for 16384x4096 109.9, 105.3, 105.2 with 48, 64,
# 96, for 8192x8192 106.6, 111.1, 112.0 with 64, 96, 128: what is asked for too early is written
# late, when nothing is left to read.
_UNDER_WAY = 64 << 10
# Of short rows: 131072x128 in float32 takes 62, 55.6, 56.7 us with 40, 48, 64 KB.
_LESS_UNDER_WAY = 48 << 10
_MOST = 40  # elements of a thread in a row: its sums and weights take three registers for each
MANY_ROWS = 1 << 30
_NOTED = 2048  # rows of a block whose statistics are fetched at once
_SHORT = 511  # columns, at most, of rows that lie in a warp
_EACH = 12  # elements of a thread in those, as far as a warp goes; or twice as many
_EVEN = (256, 384)  # of 16 bits: better across a block (21.7 against 22.3 us for 32768x256)
# Columns of float32 that come better straight to registers: 262144x64 takes 55.3 us so and 57.1
# from a ring, 65536x256 56.2 and 57.3, 65536x512 102.9 and 104.8, 8192x8192 198.7 and 201.8.
_STRAIGHT = (64, 256, 512, 8192)
_LONGEST = 8192
_LONGEST_FORWARD = 16384
_MOST_FORWARD = 64  # elements of a thread in a row, which take three registers each
_FORWARD_BLOCKS: tuple[tuple[int, int], ...] = ()
# Warps and blocks of a multiprocessor for short rows of 16 bits, forward: layer norm of 65536x768
# in bfloat16 on an H200 takes 55.3 us so, 69.2 in the blocks of gradients, 70.9 in registers;
# 16384x1024 22.3, 30.0, 23.9.
SHORT_FORWARD = (1 << 10, 4 << 10)  # bytes of a row, from and below
_SHORT_FORWARD_BLOCKS = ((4, 4),)

Shape = tuple[int, int, int, int]  # threads of a row, vector, warps, blocks of a multiprocessor


@dataclass(frozen=True, slots=True)
class Sets:
    """Blocks of ``warps``, ``per`` a multiprocessor, that take ``rows`` rows at a time."""

    cols: int  # of a row
    rows: int
    vector: int  # columns of a thread side by side
    lanes: int  # threads of a row; all of a block, or a warp's or fewer
    warps: int
    per: int
    depth: int  # sets that there is room for
    noted: int  # rows whose statistics there is room for
    itemsize: int
    tensors: int = 2  # that come: x and dy, or x
    shifted: bool = False  # sets start anywhere, not at multiples of 16 bytes
    ragged: bool = False  # the last one ends there

    @property
    def registers(self) -> int:
        """Of a thread, so that ``per`` blocks run at once."""
        return min(255, 65536 // (self.per * self.warps * THREADS))

    @property
    def stacked(self) -> bool:
        """Whether rows lie in a warp or a part of one."""
        return self.lanes <= THREADS

    @property
    def chunk(self) -> int:
        """Columns of a tile: a vector for each thread of a row."""
        return self.lanes * self.vector

    @property
    def chunks(self) -> int:
        """Tiles of a row."""
        return ceil_div(self.cols, self.chunk)

    @property
    def head(self) -> int:
        """Bytes of the barriers, one for each set there is room for."""
        return ceil_div(8 * self.depth, 128) * 128

    @property
    def slot(self) -> int:
        """Bytes of a set."""
        size = self.rows * self.cols * self.itemsize
        whole = ceil_div(size, 16) * 16
        return self.tensors * (whole + 16 if self.shifted else whole if self.ragged else size)

    @property
    def ring(self) -> int:
        """Bytes of shared memory, with mean and rstd of many rows."""
        return self.head + self.depth * self.slot + 8 * self.noted


def choose_sets(builder: Builder, geometry: Geometry, device: Device, data: RowData) -> Sets | None:
    """None where rows cannot come so, or come better otherwise."""
    rows, cols = geometry.outer, geometry.channels
    x = data["x"]
    dy = data["dy"] or x
    if dy is None or x is None:
        return None
    forward = builder.spec.operator.forward
    acts = builder.spec.activation is not None
    if data["dx"] is None and builder.spec.dgamma is None and not forward and not acts:
        return None  # dbeta needs no x, which is read here
    if not takes_bulk(builder, device, dy[0], x[0]) or rows >= MANY_ROWS:
        return None
    itemsize = ITEMSIZE[x[0].dtype]
    longest = _LONGEST_FORWARD if forward else _LONGEST
    if cols > longest or (itemsize == 4 and cols in _STRAIGHT and not forward):
        return None
    packed = cols == dy[1] == x[1]
    sets = _cut(rows, cols, itemsize, device.multiprocessors, packed=packed, tensors=2 - forward)
    if sets is None:
        return None
    # Bulk copies are of whole multiples of 16 bytes: around sets of rows, or single rows.
    if packed:
        sets = placed(sets, rows, sets.rows)
    elif any(size * itemsize % 16 for size in (cols, dy[1], x[1])):
        return None
    return sets if sets_fit(sets, device) else None


def placed(sets: Sets, rows: int, *apart: int) -> Sets:
    """The same for so many packed rows, with sets that start so many rows apart."""
    size = sets.cols * sets.itemsize
    shifted = any(one * size % 16 for one in apart)
    return replace(sets, shifted=shifted, ragged=rows * size % 16 > 0)


def takes_bulk(builder: Builder, device: Device, dy: Ref, x: Ref) -> bool:
    """Whether bulk copies can bring these data."""
    return device.capability >= 90 and builder.compute == "float32" and dy.dtype == x.dtype


def sets_fit(sets: Sets, device: Device) -> bool:
    """Whether as many blocks run at once as are meant to."""
    shared = sets.ring + (8 << 10)
    return blocks_per_multiprocessor(device, sets.warps, sets.registers, shared) >= sets.per


def _cut(
    rows: int, cols: int, itemsize: int, multiprocessors: int, *, packed: bool, tensors: int
) -> Sets | None:
    """Short rows in a part of a warp, others across a block; None where vectors do not cut them.

    A request for each of many short rows would take too long, so those must be packed.
    """
    if cols <= _SHORT and packed and not (itemsize == 2 and cols in _EVEN):
        shape: Shape | None = in_a_warp(cols, itemsize)
    else:
        shape = _across(cols, itemsize, forward=tensors == 1)
    if shape is None:
        return None
    height = rows_of_a_set(shape, cols, rows)
    share = ceil_div(rows, height * shape[3] * multiprocessors) * height
    return sets_of(shape, height, share, cols, itemsize, tensors)


def rows_of_a_set(shape: Shape, cols: int, rows: int) -> int:
    """As many as lie in the warps of a block; of longer ones as a thread has elements for."""
    lanes, vector, warps, _ = shape
    if lanes <= THREADS:
        return warps * THREADS // lanes
    return min(_together(ceil_div(cols, lanes * vector) * vector), power_of_two(rows))


def sets_of(shape: Shape, height: int, share: int, cols: int, itemsize: int, tensors: int) -> Sets:
    """Sets of ``height`` rows, of blocks that have so many rows in all."""
    lanes, vector, warps, per = shape
    ahead = _LESS_UNDER_WAY if lanes <= THREADS else _UNDER_WAY
    room = ahead / (per * height * tensors * cols * itemsize)
    depth = max(2, min(8, round(room)))
    noted = min(max(power_of_two(share), warps * THREADS), _NOTED) if tensors == 2 else 0
    return Sets(cols, height, vector, lanes, warps, per, depth, noted, itemsize, tensors)


def _vectors(cols: int, itemsize: int) -> list[int]:
    """Elements that every row is a multiple of: 8 bytes of them, 4, 2."""
    row = cols * itemsize
    return [size // itemsize for size in (8, 4, 2) if size >= itemsize and not row % size]


def in_a_warp(cols: int, itemsize: int) -> Shape:
    """Threads of a warp share a row: no barrier for its sums.

    In bfloat16 65536x300 takes 40 us, 62 by the other kernel, 50176x192 23 and 30, 262144x32 21 and
    27; in float32 65536x300 66 and 94. More warps or blocks take 0 to 10 % longer. Twice the
    threads are a little better where they cut a row exactly (50176x192 24.0 instead of 25.3 us),
    else worse (65536x200 35.5 instead of 29.2).
    """
    vector = _vectors(cols, itemsize)[0]
    most = min(power_of_two(ceil_div(cols, _EACH)), THREADS)
    less = max(most // 2, 1)
    exact = _waste(cols, most * vector) == 0
    better = _waste(cols, most * vector) < _waste(cols, less * vector) or cols > _SHORT
    return most if exact or better else less, vector, 4, 2


def _across(cols: int, itemsize: int, *, forward: bool) -> Shape | None:
    """All threads of a block share a row.

    Long rows have one block of 8 warps a multiprocessor, shorter ones two of 4 or four of 2: in
    bfloat16 65536x512 takes 75, 56, 59 us with 8, 4, 2 warps, 65536x256 39 and 35 with 4 and 2,
    16384x2000 59.3 and 57.3 with 8 and 4. Vectors of 8 bytes are a little better than of 16
    (8192x8192 104.8 us against 107.1), and cut more rows. Exact cuts are better than others, and an
    eighth of a row for nothing does not show: 16384x1920 takes 55.9 us with 2 warps, 54.1 with 4.
    """
    blocks = [(8, 1), (4, 2)]
    if forward and _FORWARD_BLOCKS:
        return cut_across(cols, itemsize, _FORWARD_BLOCKS, _MOST_FORWARD)
    if forward and itemsize == 2 and SHORT_FORWARD[0] <= cols * itemsize < SHORT_FORWARD[1]:
        return cut_across(cols, itemsize, _SHORT_FORWARD_BLOCKS, _MOST_FORWARD)
    if cols > _LONGEST:
        return cut_across(cols, itemsize, blocks[:1], _MOST_FORWARD)
    if cols <= 1024:
        blocks = [(4, 2), (2, 4)][cols <= 384 :]
    elif cols <= 2048 and itemsize == 2:
        blocks.reverse()
    return cut_across(cols, itemsize, blocks, _MOST)


def cut_across(
    cols: int, itemsize: int, blocks: Sequence[tuple[int, int]], most: int
) -> Shape | None:
    """The first of some blocks, (warps, how many a multiprocessor), that cuts rows best.

    A thread has so many elements of a row at most. Single elements of 16 bits come last: group norm
    256x512x14x14 takes 55.6 us by them, 51.3 by pairs.
    """
    tried = [
        (warps * THREADS, vector, warps, per)
        for warps, per in blocks
        for vector in _vectors(cols, itemsize)
        if ceil_div(cols, warps * THREADS * vector) * vector <= most
    ]

    def rank(shape: Shape) -> tuple[int, bool]:
        waste = _waste(cols, shape[0] * shape[1])
        return waste if waste * 8 > cols else min(waste, 1), shape[1] * itemsize < 4

    return min(tried, key=rank, default=None)


def _waste(cols: int, chunk: int) -> int:
    """Columns that are not there in the last of some tiles."""
    return -cols % chunk


def _together(each: int) -> int:
    """Rows of a set, of which a thread has so many elements each.

    65536x512 in bfloat16 takes 63.6 us with 16 of a thread in a set, 56.3 with 32; 16384x2048 takes
    55.0 with 16, 56.2 with 32.
    """
    most = (32 if each <= 4 else 24) // each
    return 1 << max(most, 1).bit_length() - 1


def ring_rows(
    builder: Builder, geometry: Geometry, device: Device, data: RowData, sets: Sets
) -> int:
    """Launch; returns how many programs."""
    rows, cols = geometry.outer, geometry.channels
    programs = min(ceil_div(rows, sets.rows), sets.per * device.multiprocessors)
    steps = {role: one[1] for role, one in data.items() if one is not None}
    constants: dict[str, Any] = {
        "PIXELS": 1,
        "SAMPLES": 1,
        "PACKED": cols == steps.get("dy", cols) == steps["x"],
        "EVEN": rows % sets.rows == 0,
        "AGAIN": 0 < sets.noted < ceil_div(rows, programs),
    }
    sizes: dict[str, int | None] = {"rows": rows, "groups": None, "parts": programs}
    launch_ring(builder, device, data, sets, sizes, constants, programs, cols)
    return programs


def launch_ring(
    builder: Builder,
    device: Device,
    data: RowData,
    sets: Sets,
    sizes: dict[str, int | None],  # rows, groups and parts
    constants: dict[str, Any],
    programs: int,
    total: int,  # columns or channels
) -> None:
    """So many programs, which join the sums of each column or channel."""
    wants = builder.wants_parameters
    forward = builder.spec.operator.forward
    statistic = builder.result if forward else builder.vector
    steps = {role: one[1] for role, one in data.items() if one is not None}
    align = alignment(sets.itemsize, sets.cols, *steps.values())
    assert sizes["parts"] is not None
    parts = sizes["parts"] * constants["SAMPLES"]
    arguments: dict[str, Argument] = {
        **row_arguments(builder, data, align),
        **sizes,
        "cols": sets.cols // align,
        "mean": statistic("mean"),
        "rstd": statistic("rstd"),
        "beta": builder.vector("beta"),
        "eps": builder.spec.eps if forward else None,
        "partials": builder.scratch(2 * parts * total, "float32") if wants else None,
    }
    constants |= {
        "FORMULA": builder.formula,
        "VARIANCE": forward and builder.spec.rstd_is == "variance",
        "ROWS": sets.rows,
        "COLS": sets.cols,
        "CHUNK": sets.chunk,
        "CHUNKS": sets.chunks,
        "STACKED": sets.stacked,
        "VECTOR": sets.vector,
        "DEPTH": sets.depth,
        "HEAD": sets.head,
        "SLOT": sets.slot,
        "SHIFTED": sets.shifted,
        "RAGGED": sets.ragged,
        "NOTED": sets.noted,
        "ALIGN": align,
        "WARPS": sets.warps,
        **joint_sums(parts, total, programs, sets.warps, meets=wants),
        "PHASE": 0,
    }
    builder.launch_teams(
        "row_ring.whole_rows",
        (programs,),
        arguments,
        constants,
        words=0,
        meets=wants,
        starts_early=device.starts_early,
        warps=sets.warps,
        registers=sets.registers,
        ring=sets.ring,
    )
