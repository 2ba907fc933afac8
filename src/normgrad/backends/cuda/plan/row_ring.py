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
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry

MANY_ROWS = 1 << 30  # kernels count rows in 32 bits

Shape = tuple[int, int, int, int]  # threads of a row, vector, warps, blocks of a multiprocessor


@dataclass(frozen=True, slots=True)
class RowSets:
    """Blocks of ``warps``, ``per`` a multiprocessor, that take ``rows`` rows at a time."""

    cols: int  # of a row
    rows: int
    vector: int  # columns of a thread side by side
    lanes: int  # threads of a row; all of a block, or a warp's or fewer
    warps: int
    per: int
    depth: int  # sets that there is room for
    statistics_rows: int  # rows whose statistics there is room for
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
        return self.head + self.depth * self.slot + 8 * self.statistics_rows


def choose_sets(
    builder: Builder, geometry: Geometry, device: Device, data: RowData
) -> RowSets | None:
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
    longest = tuned.RING_LONGEST_FORWARD if forward else tuned.RING_LONGEST
    if cols > longest or (itemsize == 4 and cols in tuned.WIDTHS_WITHOUT_RING and not forward):
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


def placed(sets: RowSets, rows: int, *apart: int) -> RowSets:
    """The same for so many packed rows, with sets that start so many rows apart."""
    size = sets.cols * sets.itemsize
    shifted = any(one * size % 16 for one in apart)
    return replace(sets, shifted=shifted, ragged=rows * size % 16 > 0)


def takes_bulk(builder: Builder, device: Device, dy: Ref, x: Ref) -> bool:
    """Whether bulk copies can bring these data."""
    return device.capability >= 90 and builder.compute == "float32" and dy.dtype == x.dtype


def sets_fit(sets: RowSets, device: Device) -> bool:
    """Whether as many blocks run at once as are meant to."""
    shared = sets.ring + (8 << 10)
    return blocks_per_multiprocessor(device, sets.warps, sets.registers, shared) >= sets.per


def _cut(
    rows: int, cols: int, itemsize: int, multiprocessors: int, *, packed: bool, tensors: int
) -> RowSets | None:
    """Short rows in a part of a warp, others across a block; None where vectors do not cut them.

    A request for each of many short rows would take too long, so those must be packed.
    """
    if (
        cols <= tuned.WARP_COLUMNS
        and packed
        and not (itemsize == 2 and cols in tuned.WIDTHS_ACROSS_BLOCK)
    ):
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


def sets_of(
    shape: Shape, height: int, share: int, cols: int, itemsize: int, tensors: int
) -> RowSets:
    """Sets of ``height`` rows, of blocks that have so many rows in all."""
    lanes, vector, warps, per = shape
    ahead = tuned.SHORT_RING_BYTES if lanes <= THREADS else tuned.RING_BYTES
    room = ahead / (per * height * tensors * cols * itemsize)
    depth = max(2, min(tuned.MOST_SETS, round(room)))
    statistics_rows = (
        min(max(power_of_two(share), warps * THREADS), tuned.STATISTICS_ROWS) if tensors == 2 else 0
    )
    return RowSets(
        cols, height, vector, lanes, warps, per, depth, statistics_rows, itemsize, tensors
    )


def _vectors(cols: int, itemsize: int) -> list[int]:
    """Elements that every row is a multiple of: 8 bytes of them, 4, 2."""
    row = cols * itemsize
    return [size // itemsize for size in (8, 4, 2) if size >= itemsize and not row % size]


def in_a_warp(cols: int, itemsize: int) -> Shape:
    """Threads of a warp share a row: no barrier for its sums."""
    vector = _vectors(cols, itemsize)[0]
    most = min(power_of_two(ceil_div(cols, tuned.WARP_ELEMENTS)), THREADS)
    less = max(most // 2, 1)
    exact = _waste(cols, most * vector) == 0
    better = _waste(cols, most * vector) < _waste(cols, less * vector) or cols > tuned.WARP_COLUMNS
    return most if exact or better else less, vector, *tuned.WARP_BLOCK


def _across(cols: int, itemsize: int, *, forward: bool) -> Shape | None:
    """All threads of a block share a row: the longer the row, the more of them."""
    large, middle, small = tuned.BLOCKS
    if forward and is_short_forward(cols, itemsize):
        return cut_across(cols, itemsize, tuned.SHORT_FORWARD_BLOCKS, tuned.RING_ELEMENTS_FORWARD)
    if cols > tuned.RING_LONGEST:
        return cut_across(cols, itemsize, [large], tuned.RING_ELEMENTS_FORWARD)
    blocks = [large, middle]
    if cols <= tuned.FEW_WARPS_COLUMNS:
        blocks = [middle, small][cols <= tuned.TWO_WARPS_COLUMNS :]
    elif cols <= tuned.FEW_WARPS_COLUMNS_16 and itemsize == 2:
        blocks.reverse()
    return cut_across(cols, itemsize, blocks, tuned.RING_ELEMENTS)


def is_short_forward(cols: int, itemsize: int) -> bool:
    """Whether y of such rows has blocks of its own."""
    low, high = tuned.SHORT_FORWARD_BYTES
    return itemsize == 2 and low <= cols * itemsize < high


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
        return waste if waste * tuned.UNSEEN_WASTE > cols else min(waste, 1), shape[
            1
        ] * itemsize < 4

    return min(tried, key=rank, default=None)


def _waste(cols: int, chunk: int) -> int:
    """Columns that are not there in the last of some tiles."""
    return -cols % chunk


def _together(each: int) -> int:
    """Rows of a set, of which a thread has so many elements each."""
    most = (tuned.SET_ELEMENTS if each <= 4 else tuned.SET_ELEMENTS_OF_MORE) // each
    return 1 << max(most, 1).bit_length() - 1


def ring_rows(
    builder: Builder, geometry: Geometry, device: Device, data: RowData, sets: RowSets
) -> int:
    """Launch; returns how many programs."""
    rows, cols = geometry.outer, geometry.channels
    programs = min(ceil_div(rows, sets.rows), sets.per * device.multiprocessors)
    steps = {role: one[1] for role, one in data.items() if one is not None}
    constants: dict[str, Any] = {
        "PIXELS": 1,
        "SAMPLES": 1,
        "PACKED": cols == steps.get("dy", cols) == steps["x"],
        "FULL_SETS": rows % sets.rows == 0,
        "AGAIN": 0 < sets.statistics_rows < ceil_div(rows, programs),
    }
    sizes: dict[str, int | None] = {"rows": rows, "groups": None, "parts": programs}
    launch_ring(builder, device, data, sets, sizes, constants, programs, cols)
    return programs


def launch_ring(
    builder: Builder,
    device: Device,
    data: RowData,
    sets: RowSets,
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
        "STATISTICS_ROWS": sets.statistics_rows,
        "ALIGN": align,
        "WARPS": sets.warps,
        **joint_sums(parts, total, programs, sets.warps, joins=wants),
        "PHASE": 0,
    }
    builder.launch_teams(
        "row_ring.whole_rows",
        (programs,),
        arguments,
        constants,
        words=0,
        joins=wants,
        starts_early=device.starts_early,
        warps=sets.warps,
        registers=sets.registers,
        ring=sets.ring,
    )
