"""From a request to a parameter block: partition, phases and workspace.

The partition depends on the request alone, never on the number of threads: same bits everywhere.
"""

import ctypes
import math
import struct
from dataclasses import dataclass, field
from typing import Any

from normgrad.backends.cpu import jit, slots, tasks
from normgrad.backends.cpu.formats import ABSENT, CODES, F32, F64, FORMATS, Format
from normgrad.backends.cpu.layout import Arrangement, arrange, copy_axes, merged
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry, reshaped_strides
from normgrad.spec import ROLES, Op, Spec, TensorSpec

# A task should take about 10 us, so that handing it out (50 ns) is nothing.
TASK_ELEMENTS = 32768
SOME_TASKS = 16
# Fewer slabs than this cannot keep many cores busy: large ones are split.
FEW_SLABS = 32
# Slabs of group norm whose x and dy are so small are written while they are in a cache, if there
# are some: 16x96x28x28 in one group takes 230 us so in float32, 262 otherwise.
NEAR_SLAB = 2 << 20
# A block of rows adds at most this many numbers in float32 before float64 takes over.
BLOCK_ROWS = 128
JOINED_COLUMNS = 64
# Past this size of x, dy and dx together the results will not be found in a cache anyway.
STREAM_BYTES = 12 << 20
STREAM_SEGMENT = 1024
# Segments up to this size come too slowly when they are first read: 8x256x56x56 in float32 2.55 ms,
# 2.33 where the next channel is asked for while one is written. Long runs gain nothing.
ASKED_SEGMENT = 64 << 10
LAST_CACHE = 32 << 20
MOST_TURNS = 6  # of large slabs, three phases each
# Four rows are summed side by side where they have few columns, or all of x and dy fits a cache.
NARROW_COLUMNS = 64
NEAR_BYTES = 4 << 20
# Samples of group norm up to this size are written while they are in a cache, where there are some.
SAMPLE_BYTES = 6 << 20
SOME_SAMPLES = 8
# In L2 four rows of them are written side by side too; from L3 that takes longer than row by row:
# 8x640x32x32 bf16 1.33 ms against 1.24.
SMALL_SAMPLE = 1 << 20
# Dense rows of fewer channels are taken several as one.
FOLD_COLUMNS = 128
# Planes of up to this many bytes are taken several as one, in rows of at least STRIP_ROW, where a
# strip of all samples stays in the cache.
SHORT_PLANE = 256
STRIP_ROW = 512
STRIP_BYTES = 1 << 20
STRIP_SAMPLES = 8

_DATA = {"dy": slots.DY, "x": slots.X, "dx": slots.DX}
_VECTORS = {
    "mean": slots.MEAN,
    "rstd": slots.RSTD,
    "gamma": slots.GAMMA,
    "sum_dy": slots.SUM_DY_VECTOR,
    "sum_dy_xmu": slots.SUM_XMU_VECTOR,
    "counter": slots.COUNTER,
    "dgamma": slots.DGAMMA,
    "dbeta": slots.DBETA,
}


@dataclass(frozen=True, slots=True)
class Config:
    """What the CPU backend decided about a request."""

    order: str
    dtype: str  # of the data as kernels see them
    copied: tuple[str, ...]  # tensors that go through a copy in the workspace
    phases: tuple[str, ...]  # name and number of tasks of each
    streaming: bool  # whether dx is written past the cache
    elements: int
    block: Any = field(repr=False, compare=False)  # the parameters, as an array in memory


def _in_memory(params: list[Any]) -> Any:
    """As the compiled entry reads them; without the compiler the list itself."""
    return (ctypes.c_int64 * len(params))(*params) if jit.ENABLED else params


def _up(value: int, step: int) -> int:
    return -(-value // step)


class Program:
    """Collects a parameter block."""

    def __init__(self, spec: Spec, geometry: Geometry, compute: str) -> None:
        self.spec = spec
        self.geometry = geometry
        self.flat: Format = F64 if compute == "float64" else F32
        self.needs = Needs(spec)
        self.arrangement: Arrangement = arrange(spec, geometry, compute, self.needs.data)
        self.format = FORMATS[self.arrangement.dtype]
        self.params: list[Any] = [0] * slots.COPIES
        self.phases: list[tuple[str, int]] = []
        self.after: list[int] = []  # copies of results
        self.workspace = 0
        self.copied: list[str] = []

    def build(self) -> tuple[Config, int]:
        """Everything, in the order in which it runs."""
        self._sizes()
        for role in self.needs.data:
            self._data(role)
        for role, slot in _VECTORS.items():
            self._vector(role, slot)
        if self.spec.op is Op.BATCH_NORM_ELEMT:
            self.params[slots.AT_COUNT] = self.reserve(8)
            self.phase("add_counts", 1)
        if self.geometry.size or set(self.spec.wanted) - {"dx"}:
            {
                "channels-first": self._channels_first,
                "channels-last": self._channels_last,
                "rows": self._rows,
            }[self.arrangement.order]()
        for copy in self.after:
            self._copy_phase(copy)
        self.params[slots.PHASES] = len(self.phases)
        config = Config(
            order=self.arrangement.order,
            dtype=self.arrangement.dtype,
            copied=tuple(self.copied),
            phases=tuple(f"{name} x {count}" for name, count in self.phases),
            streaming=bool(self.params[slots.STREAM_DX]),
            elements=self.geometry.size,
            block=_in_memory(self.params),
        )
        return config, self.workspace

    def reserve(self, nbytes: int) -> int:
        """A place in the workspace, at a multiple of a cache line."""
        place = self.workspace
        self.workspace += _up(max(nbytes, 1), 64) * 64
        return place

    def phase(self, name: str, count: int, *formats: Format, argument: int = 0) -> None:
        """One more phase."""
        if count <= 0:
            return
        at = slots.TABLE + len(self.phases) * slots.PER_PHASE
        assert len(self.phases) < slots.MAX_PHASES
        self.params[at : at + 3] = [tasks.address(name, *formats), count, argument]
        self.phases.append((name, count))

    def _sizes(self) -> None:
        geometry, spec, needs, params = self.geometry, self.spec, self.needs, self.params
        params[slots.OUTER] = geometry.outer
        params[slots.GROUPS] = geometry.groups
        params[slots.CHANNELS] = geometry.channels
        params[slots.INNER] = geometry.inner
        params[slots.COLUMNS] = geometry.parameters
        params[slots.COUNT] = geometry.count
        params[slots.BY_ROW] = int(geometry.statistic == "row")
        params[slots.SUM_DY] = int(needs.sum_dy)
        params[slots.SUM_XMU] = int(needs.sum_xmu)
        params[slots.CORRECTION] = needs.correction
        params[slots.WRITE_DX] = int(spec.dx is not None)
        params[slots.FROM_VARIANCE] = int(spec.rstd_is == "variance")
        (params[slots.EPS],) = struct.unpack("q", struct.pack("d", spec.eps))

    def _stream(self, length: int) -> None:
        """Write dx past the cache where it is large, and not in pieces of lines."""
        large = self._large()
        in_place = self.spec.dx is not None and "dx" not in self.arrangement.copied
        nbytes = length * self.format.itemsize
        whole = nbytes % 64 == 0 or nbytes >= STREAM_SEGMENT
        self.params[slots.STREAM_DX] = int(large and in_place and whole)

    def _large(self) -> bool:
        return 3 * self.geometry.size * self.format.itemsize > STREAM_BYTES

    def _far(self) -> bool:
        return 2 * self.geometry.size * self.format.itemsize > NEAR_BYTES

    def _data(self, role: str) -> None:
        tensor = self.spec.tensor(role)
        assert tensor is not None
        slot = _DATA[role]
        self.params[slot] = -1 - ROLES.index(role)
        if role in self.arrangement.copied:
            place = self.reserve(tensor.size * self.format.itemsize)
            axes = copy_axes(self.spec, self.arrangement.order, tensor)
            self._copy(role, tensor, axes, place, self.format.name)
            self.params[slot] = place
        strides = [step * self.format.itemsize for step in self.arrangement.strides[role]]
        self.params[slot + 1 : slot + 5] = strides

    def _vector(self, role: str, slot: int) -> None:
        tensor = self.spec.tensor(role)
        if tensor is None:
            self.params[slot + slots.CODE] = ABSENT
            return
        strides = reshaped_strides(tensor, (tensor.size,))
        dtype = tensor.dtype
        self.params[slot] = -1 - ROLES.index(role)
        if strides is None:
            is_result = role in self.spec.results
            dtype = dtype if is_result else "float64"
            place = self.reserve(tensor.size * ITEMSIZE[dtype])
            self._copy(role, tensor, merged(tensor), place, dtype)
            self.params[slot] = place
            strides = (1,)
        self.params[slot + slots.CODE] = CODES[dtype]
        self.params[slot + slots.STRIDE] = strides[0] * ITEMSIZE[dtype]
        self.params[slot + slots.LENGTH] = tensor.size

    def _copy(
        self,
        role: str,
        tensor: TensorSpec,
        axes: list[tuple[int, int, int]],
        place: int,
        dtype: str,
    ) -> None:
        """Describe a copy into the workspace before, or out of it after, everything else."""
        at = len(self.params)
        there = (-1 - ROLES.index(role), CODES[tensor.dtype], ITEMSIZE[tensor.dtype])
        here = (place, CODES[dtype], ITEMSIZE[dtype])
        is_result = role in self.spec.results
        source, target = (here, there) if is_result else (there, here)
        count = tensor.size // axes[-1][0] if tensor.size else 0
        per_task = max(1, TASK_ELEMENTS // 2 // max(axes[-1][0], 1))
        block = [*source[:2], *target[:2], len(axes), count, per_task, 0]
        for size, outside, inside in axes:
            steps = (outside * there[2], inside * here[2])
            block += [size, *(reversed(steps) if is_result else steps)]
        block += [0] * (slots.PER_COPY - len(block))
        self.params += block
        self.copied.append(role)
        if is_result:
            self.after.append(at)
        else:
            self._copy_phase(at)

    def _copy_phase(self, at: int) -> None:
        rows, per_task = self.params[at + slots.COPY_ROWS], self.params[at + 6]
        self.phase("copies", _up(rows, per_task), argument=at)

    def _channels_first(self) -> None:
        geometry, params, needs = self.geometry, self.params, self.needs
        by_row = geometry.statistic == "row"
        slabs = geometry.statistics
        segments = geometry.channels if by_row else geometry.outer
        elements = segments * geometry.inner
        params[slots.SLABS] = slabs
        params[slots.SEGMENTS] = segments
        # What was just summed is near, all of it in the last cache at least.
        beyond = 2 * geometry.size * self.format.itemsize > LAST_CACHE
        params[slots.FAR] = int(not needs.sum_dy or (beyond and slabs < FEW_SLABS))
        self._stream(geometry.inner)
        if by_row:
            params[slots.AT_SUMS] = self.reserve(2 * geometry.outer * geometry.parameters * 8)
        if not by_row and (strip := self._strip()):
            self._strips(strip)
        elif slabs < self._few(elements) and elements >= 2 * TASK_ELEMENTS:
            piece = TASK_ELEMENTS if geometry.inner >= TASK_ELEMENTS else max(geometry.inner, 1)
            gathered = max(1, TASK_ELEMENTS // piece)
            per_segment = _up(geometry.inner, piece)
            pieces = _up(segments, gathered) * per_segment
            params[slots.PIECES] = pieces
            params[slots.PIECE] = piece
            params[slots.GATHERED] = gathered
            parts = segments * per_segment if by_row else pieces
            params[slots.AT_PARTS] = self.reserve(slabs * parts * 16)
            params[slots.AT_COEFFICIENTS] = self.reserve(slabs * 16)
            together = self._together(slabs, elements)
            params[slots.FAR] &= int(together == slabs)
            for first in range(0, slabs, together):
                last = min(first + together, slabs)
                units = (last - first) * pieces
                if needs.sum_dy:
                    self.phase("units_in", units, self.format, argument=first * pieces)
                self.phase("join_units", last - first, argument=first)
                if self.spec.dx is not None:
                    self.phase("units_out", units, self.format, argument=last * pieces)
        else:
            if by_row and self._without_gaps():
                self._stream(elements)
                params[slots.DENSE] = params[slots.STREAM_DX]
            # Some tasks at least: three of them keep two threads busy for as long as four.
            each = min(TASK_ELEMENTS, geometry.size // SOME_TASKS)
            params[slots.PER_TASK] = max(1, each // max(elements, 1))
            short = geometry.inner * self.format.itemsize <= ASKED_SEGMENT
            params[slots.ASKS] = int(not by_row and short and params[slots.STREAM_DX])
            self.phase("slabs", _up(slabs, params[slots.PER_TASK]), self.format)
        self._join_samples()

    def _few(self, elements: int) -> int:
        """How many slabs are too few to be taken whole: some of group norm's are near anyway."""
        near = 2 * elements * self.format.itemsize <= NEAR_SLAB
        return SOME_SAMPLES if near and self.geometry.statistic == "row" else FEW_SLABS

    def _strip(self) -> int:
        """How many channels of short planes are taken together; 0 where planes are taken alone."""
        geometry = self.geometry
        nbytes = geometry.inner * self.format.itemsize
        dense = all(self.arrangement.strides[role][2] == geometry.inner for role in self.needs.data)
        # Longer planes are worth it where they would be streamed in pieces of lines.
        pieces = self.format.itemsize > 2 and nbytes % 64 and self._large()
        short = 0 < nbytes <= (4 * SHORT_PLANE if pieces else SHORT_PLANE)
        if not dense or not short or geometry.outer < STRIP_SAMPLES:
            return 0
        whole = 64 // math.gcd(64, nbytes)  # channels that fill whole lines together
        strip = whole * _up(STRIP_ROW, whole * nbytes)
        fits = 2 * strip * nbytes * geometry.outer <= STRIP_BYTES
        return strip if fits and geometry.channels >= strip else 0

    def _strips(self, strip: int) -> None:
        geometry, params = self.geometry, self.params
        size = geometry.channels * geometry.inner
        self._stream(strip * geometry.inner)
        params[slots.FAR] = int(self._far())
        params[slots.PER_TASK] = strip
        params[slots.ASKS] = params[slots.STREAM_DX]
        params[slots.BLOCK] = BLOCK_ROWS
        params[slots.AT_COEFFICIENTS] = self.reserve(4 * size * self.flat.itemsize)
        params[slots.AT_PARTS] = self.reserve(2 * size * self.flat.itemsize)
        params[slots.AT_SUMS] = self.reserve(2 * geometry.channels * 8)
        self.phase("strips", _up(geometry.channels, strip), self.format, self.flat)

    def _without_gaps(self) -> bool:
        """Whether the channels of a group are one run of each tensor, none shorter than a line."""
        geometry, needs = self.geometry, self.needs
        return (
            needs.correction != slots.NO_CORRECTION
            and geometry.inner * self.format.itemsize >= 64
            and all(
                self.arrangement.strides[role][2] == geometry.inner or geometry.channels == 1
                for role in needs.data
            )
        )

    def _join_samples(self) -> None:
        """Group norm's parameter gradients."""
        if self.geometry.statistic == "row" and (self.spec.dgamma or self.spec.dbeta):
            if not self.params[slots.CHUNK]:
                self.params[slots.CHUNK] = JOINED_COLUMNS
            columns = self.geometry.parameters
            self.phase("join_samples", _up(columns, self.params[slots.CHUNK]))

    def _channels_last(self) -> None:
        geometry, params, needs = self.geometry, self.params, self.needs
        by_row = geometry.statistic == "row"
        columns = geometry.parameters
        samples = geometry.outer if by_row else 1
        rows = geometry.inner if by_row else geometry.outer * geometry.inner
        params[slots.SAMPLES] = samples
        self._row_steps(rows, by_row)
        folded = 1 if by_row else self._fold(rows, columns)
        rows //= folded
        width = columns * folded
        params[slots.ROWS] = rows
        params[slots.FOLDED] = folded
        self._stream(width)
        params[slots.WIDTH] = width
        narrow = width <= NARROW_COLUMNS
        both_bytes = 2 * geometry.size * self.format.itemsize
        # Data that are near are written by who has summed them.
        params[slots.BACKWARDS] = int(self._far())
        params[slots.SIDE_BY_SIDE] = int(narrow) if self._far() else 2
        if not by_row and not narrow and self._far() and both_bytes <= LAST_CACHE // 2:
            params[slots.SIDE_BY_SIDE] = params[slots.FAR] = 1
        block = self._blocks(samples, rows, width)
        blocks = _up(rows, block)
        chunk = geometry.channels * _up(JOINED_COLUMNS, max(geometry.channels, 1))
        params[slots.CHUNK] = chunk = max(chunk if by_row else JOINED_COLUMNS, 1)
        params[slots.CHUNKS] = _up(columns, chunk)
        params[slots.AT_COEFFICIENTS] = self.reserve(samples * 4 * width * self.flat.itemsize)
        params[slots.AT_SUMS] = self.reserve(samples * 2 * width * 8)
        work = _up(samples * blocks, params[slots.PER_TASK])
        if needs.sum_dy:
            parts = samples * blocks * 2 * width * self.flat.itemsize
            params[slots.AT_PARTS] = self.reserve(parts)
        # Both passes read x and dy; where only one is made there is nothing to find in the cache.
        both = needs.sum_xmu and self.spec.dx is not None
        sample_bytes = 2 * rows * width * self.format.itemsize
        near = sample_bytes <= SAMPLE_BYTES
        if by_row and both and near and samples >= SOME_SAMPLES:
            params[slots.SIDE_BY_SIDE] = 2 if sample_bytes <= SMALL_SAMPLE else 1
            params[slots.FAR] = int(self._far())
            params[slots.ASKS] = int(sample_bytes <= SMALL_SAMPLE)
            self.phase("samples", samples, self.format, self.flat)
            self._join_samples()
            return
        if needs.x:
            self.phase("spread_means", samples, self.flat)
        if needs.sum_dy:
            self.phase("blocks_in", work, self.format, self.flat)
        self.phase("join_blocks", samples * params[slots.CHUNKS], self.flat)
        if self.spec.dx is not None:
            self.phase("blocks_out", work, self.format, self.flat)
        self._join_samples()

    def _together(self, slabs: int, elements: int) -> int:
        """How many large slabs to sum before they are written: those that stay in the last cache.

        All of them where that makes no difference: where they fit, where one does not, where data
        are read once. For 20x6x65536 in float32 4.4 ms become 3.8, 4.0 with three quarters of the
        cache.
        """
        both = self.needs.sum_dy and self.spec.dx is not None
        each = 2 * elements * self.format.itemsize
        some = max(LAST_CACHE // 2 // max(each, 1), _up(slabs, MOST_TURNS))
        stays = some * each <= LAST_CACHE
        return some if both and stays and slabs * each > LAST_CACHE else slabs

    def _row_steps(self, rows: int, by_row: bool) -> None:
        """Rows of batch norm are one run where every tensor steps evenly over all of them."""
        outer, inner = self.geometry.outer, self.geometry.inner
        params = self.params
        evenly = all(
            strides[0] == inner * strides[3] or outer == 1 or inner == 1
            for strides in self.arrangement.strides.values()
        )
        params[slots.RUN] = max(rows if evenly or by_row else inner, 1)
        for role in self.needs.data:
            slot = _DATA[role]
            if by_row:
                params[slot + slots.BY_SAMPLE] = params[slot + slots.BY_OUTER]
                params[slot + slots.BY_OUTER] = 0
            elif evenly and inner == 1:
                params[slot + slots.BY_INNER] = params[slot + slots.BY_OUTER]

    def _fold(self, rows: int, columns: int) -> int:
        """How many rows of few channels are taken as one: vectors want 16 columns."""
        params = self.params
        if not 0 < columns < FOLD_COLUMNS or params[slots.RUN] != rows:
            return 1
        steps = [_DATA[role] + slots.BY_INNER for role in self.needs.data]
        if any(params[step] != columns * self.format.itemsize for step in steps):
            return 1
        most = (32 if columns < 8 else 16) if columns % 16 else 256 // columns
        counts = (count for count in (32, 16, 8, 4, 2) if count <= most and rows % count == 0)
        folded = next(counts, 1)
        for step in steps:
            params[step] *= folded
        params[slots.RUN] = max(rows // folded, 1)
        return folded

    def _blocks(self, samples: int, rows: int, columns: int) -> int:
        """Rows of a block: enough blocks for many cores, and few enough to join quickly."""
        # Joining a block costs what two of its rows cost.
        least = 16 if samples * rows < 256 else 32
        block = min(BLOCK_ROWS, max(least, _up(samples * rows, 64)))
        block = _up(block, 4) * 4
        self.params[slots.BLOCK] = block
        self.params[slots.BLOCKS] = _up(rows, block)
        each = min(TASK_ELEMENTS, self.geometry.size // SOME_TASKS)
        self.params[slots.PER_TASK] = max(1, each // max(block * columns, 1))
        return block

    def _rows(self) -> None:
        geometry, params = self.geometry, self.params
        rows, columns = geometry.outer, geometry.channels
        params[slots.ROWS] = rows
        params[slots.SAMPLES] = 1
        params[slots.WIDTH] = columns
        self._stream(columns)
        block = self._blocks(1, rows, columns)
        blocks = _up(rows, block)
        gamma_slot = len(params)
        gamma = self.spec.gamma
        if (
            gamma is not None
            and gamma.dtype == self.flat.name
            and params[slots.GAMMA + slots.STRIDE] == self.flat.itemsize
        ):
            params.append(params[slots.GAMMA])
        else:
            params.append(self.reserve(columns * self.flat.itemsize))
            if self.spec.dx is not None:
                self.phase("spread_gamma", 1, self.flat, argument=gamma_slot)
        if self.needs.sum_dy:
            params[slots.AT_PARTS] = self.reserve(blocks * 2 * columns * self.flat.itemsize)
            params[slots.AT_SUMS] = self.reserve(columns * 8)
        work = _up(blocks, params[slots.PER_TASK])
        params[slots.AT_COEFFICIENTS] = self.reserve(work * 4 * 4 * 8)  # four rows' at a time
        self.phase("rows", work, self.format, self.flat, argument=gamma_slot)
        if self.needs.sum_dy:
            params[slots.CHUNK] = JOINED_COLUMNS
            self.phase("join_rows", _up(columns, JOINED_COLUMNS), self.flat)


class Needs:
    """Which sums and which data a request needs: what the mask leaves out is not computed."""

    def __init__(self, spec: Spec) -> None:
        self.correction = slots.NO_CORRECTION
        if spec.op is Op.BATCH_NORM_ELEMT:
            self.correction = slots.GIVEN_CORRECTION
        elif spec.dx is not None and spec.training:
            self.correction = slots.OWN_CORRECTION
        wanted = set(spec.wanted)
        own = self.correction == slots.OWN_CORRECTION and spec.op is not Op.LAYER_NORM
        elemt = spec.op is Op.BATCH_NORM_ELEMT
        self.sum_xmu = own or (bool(wanted & {"dgamma", "sum_dy_xmu"}) and not elemt)
        self.sum_dy = self.sum_xmu or (bool(wanted & {"dbeta", "sum_dy"}) and not elemt)
        self.x = self.sum_xmu or self.correction != slots.NO_CORRECTION
        self.data = tuple(
            role
            for role, needed in (("dy", True), ("x", self.x), ("dx", spec.dx is not None))
            if needed
        )


def program(spec: Spec, geometry: Geometry, compute: str) -> tuple[Config, int]:
    """The settings of a request and the bytes of workspace that it needs."""
    return Program(spec, geometry, compute).build()
