"""Layer norm of whole rows that come by bulk copies: sets of rows, and how far ahead they come."""

from dataclasses import dataclass
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.parameters import joint_sums
from normgrad.backends.cuda.program import Builder
from normgrad.backends.cuda.row_teams_plan import Data, row_arguments
from normgrad.backends.cuda.tiles import (
    THREADS,
    alignment,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
)
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry

# Bytes of x and dy that a multiprocessor is to have under way. An H200 takes for 8192x5120 in
# bfloat16 78.9, 69.4, 70.7 us with 40, 60, 80 KB, for 16384x4096 109.9, 105.3, 105.2 with 48, 64,
# 96, for 8192x8192 106.6, 111.1, 112.0 with 64, 96, 128: what is asked for too early is written
# late, when nothing is left to read.
_UNDER_WAY = 64 << 10
_MOST = 40  # elements of a thread in a row: its sums and weights take three registers for each
_MANY_ROWS = 1 << 30
_NOTED = 2048  # rows of a block whose statistics are fetched at once
# Columns, by the bytes of an element, that come better straight to registers (in float32 65536x512
# takes 103.5 us so and 107 from a ring, 8192x8192 198.7 and 201.8; 65536x384 86 and 82), or have
# not been tried.
_SHORTEST = {2: 256, 4: 384}
_STRAIGHT = {2: (), 4: (512, 8192)}
_LONGEST = 8192


@dataclass(frozen=True, slots=True)
class Sets:
    """Blocks of ``warps``, ``per`` a multiprocessor, that take ``rows`` rows at a time."""

    rows: int
    vector: int  # columns of a thread side by side
    chunks: int  # tiles of a row, a vector for each thread
    warps: int
    per: int
    depth: int  # sets that there is room for
    noted: int  # rows whose statistics there is room for
    itemsize: int

    @property
    def registers(self) -> int:
        """Of a thread, so that ``per`` blocks run at once."""
        return min(255, 65536 // (self.per * self.warps * THREADS))

    @property
    def chunk(self) -> int:
        """Columns of a tile."""
        return self.warps * THREADS * self.vector

    @property
    def head(self) -> int:
        """Bytes of the barriers, one for each set there is room for."""
        return ceil_div(8 * self.depth, 128) * 128

    @property
    def slot(self) -> int:
        """Bytes of a set: x and dy."""
        return self.rows * 2 * self.chunk * self.chunks * self.itemsize

    @property
    def ring(self) -> int:
        """Bytes of shared memory, with mean and rstd of many rows."""
        return self.head + self.depth * self.slot + 8 * self.noted


def choose_sets(builder: Builder, geometry: Geometry, device: Device, data: Data) -> Sets | None:
    """None where rows cannot come so, or come better otherwise."""
    rows, cols = geometry.outer, geometry.channels
    dy, x = data["dy"], data["x"]
    if device.capability < 90 or builder.compute != "float32" or data["dx"] is None:
        return None
    if dy is None or x is None or rows >= _MANY_ROWS:
        return None
    itemsize = ITEMSIZE[x[0].dtype]
    whole = all(step * itemsize % 16 == 0 for step in (cols, dy[1], x[1]))
    if dy[0].dtype != x[0].dtype or not whole:
        return None
    if not _SHORTEST[itemsize] <= cols <= _LONGEST or cols in _STRAIGHT[itemsize]:
        return None
    sets = _cut(rows, cols, itemsize, device.multiprocessors)
    if sets is None:
        return None
    shared = sets.ring + (8 << 10)
    fits = blocks_per_multiprocessor(device, sets.warps, sets.registers, shared) >= sets.per
    return sets if fits else None


def _cut(rows: int, cols: int, itemsize: int, multiprocessors: int) -> Sets | None:
    """Tiles that cover a row exactly.

    Long rows have one block of 8 warps a multiprocessor, shorter ones two of 4 or four of 2: in
    bfloat16 65536x512 takes 75, 56, 59 us with 8, 4, 2 warps, 65536x256 39 and 35 with 4 and 2.
    Vectors of 8 bytes are a little better than of 16 (8192x8192 104.8 us against 107.1), and cut
    more rows.
    """
    blocks = [(8, 1), (4, 2), (2, 4)][(cols <= 1024) + (cols <= 384) :]
    for warps, per in blocks:
        each = cols // (warps * THREADS)
        for vector in (8 // itemsize, 4 // itemsize):
            if cols % (warps * THREADS * vector) == 0 and each <= _MOST:
                height = min(_together(each), power_of_two(rows))
                room = _UNDER_WAY / (per * height * 2 * cols * itemsize)
                depth = max(2, min(8, round(room)))
                share = ceil_div(rows, height * per * multiprocessors) * height
                noted = min(max(power_of_two(share), warps * THREADS), _NOTED)
                return Sets(height, vector, each // vector, warps, per, depth, noted, itemsize)
    return None


def _together(each: int) -> int:
    """Rows of a set, of which a thread has so many elements each.

    65536x512 in bfloat16 takes 63.6 us with 16 of a thread in a set, 56.3 with 32; 16384x2048 takes
    55.0 with 16, 56.2 with 32.
    """
    most = (32 if each <= 4 else 24) // each
    return 1 << max(most, 1).bit_length() - 1


def ring_rows(builder: Builder, geometry: Geometry, device: Device, data: Data, sets: Sets) -> int:
    """Launch; returns how many programs."""
    rows, cols = geometry.outer, geometry.channels
    wants = builder.wants_parameters
    steps = {role: one[1] for role, one in data.items() if one is not None}
    align = alignment(sets.itemsize, cols, *steps.values())
    programs = min(ceil_div(rows, sets.rows), sets.per * device.multiprocessors)
    arguments = {
        **row_arguments(builder, geometry, data, align),
        "mean": builder.vector("mean"),
        "rstd": builder.vector("rstd"),
        "partials": builder.scratch(2 * programs * cols, "float32") if wants else None,
        "programs": programs,
    }
    constants: dict[str, Any] = {
        "ROWS": sets.rows,
        "CHUNK": sets.chunk,
        "CHUNKS": sets.chunks,
        "VECTOR": sets.vector,
        "DEPTH": sets.depth,
        "HEAD": sets.head,
        "SLOT": sets.slot,
        "PACKED": cols == steps["dy"] == steps["x"],
        "EVEN": rows % sets.rows == 0,
        "NOTED": sets.noted,
        "AGAIN": rows > programs * sets.noted,
        "ALIGN": align,
        "WARPS": sets.warps,
        **joint_sums(programs, cols, programs, sets.warps, meets=wants),
        "PHASE": 0,
    }
    builder.launch_teams(
        "row_ring.layer_ring",
        (programs,),
        arguments,
        constants,
        words=0,
        meets=wants,
        starts_early=device.starts_early,
        warps=sets.warps,
        registers=sets.registers,
        aligned=True,
        ring=sets.ring,
    )
    return programs
