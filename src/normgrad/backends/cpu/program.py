"""From a request to a parameter block: partition, phases and workspace.

The partition depends on the request alone, never on the number of threads: same bits everywhere.
"""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from normgrad.backends.cpu import jit, sizes, slots, tasks
from normgrad.backends.cpu.blocks_plan import channels_last, evenly_and_folded
from normgrad.backends.cpu.layout import Arrangement, arrange, copy_axes, merged, through_a_copy
from normgrad.backends.cpu.rows_plan import groups_are_rows, rows, runs
from normgrad.backends.cpu.sizes import ceil_div
from normgrad.backends.cpu.slabs_plan import channels_first, strip_of
from normgrad.backends.cpu.vectors.formats import (
    ABSENT,
    CODES,
    F32,
    F32_WIDE,
    F64,
    FORMATS,
    I16,
    Format,
)
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry, reshaped_strides
from normgrad.hostmem import aligned
from normgrad.spec import DATA, SLOT, Op, Spec, TensorSpec

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
_BITS = {2: I16, 4: F32, 8: F64}  # of elements that only move


@dataclass(frozen=True, slots=True)
class Config:
    """What the CPU backend decided about a request."""

    order: str
    dtype: str  # of the data as kernels see them
    compute: str  # what sums are made in
    copied: tuple[str, ...]  # tensors that go through a copy in the workspace
    phases: tuple[str, ...]  # name and number of tasks of each
    streaming: bool  # whether dx is written past the cache
    elements: int
    block: Any = field(repr=False, compare=False)  # the parameters, as an array in memory


def _in_memory(params: list[Any]) -> Any:
    """As the compiled entry reads them; without the compiler the list itself."""
    return (ctypes.c_int64 * len(params))(*params) if jit.ENABLED else params


class Program:
    """Collects a parameter block."""

    def __init__(self, spec: Spec, geometry: Geometry, compute: str) -> None:
        self.spec = spec
        # Without data there is nothing to do for samples or rows, of which there may be billions.
        self.geometry = geometry if geometry.size else replace(geometry, outer=0)
        self.needs = Needs(spec)
        self.arrangement: Arrangement = arrange(spec, geometry, compute, self.needs.data)
        self.flat: Format = F64 if compute == "float64" else F32
        self.format = FORMATS[self.arrangement.dtype, self.flat.wide]
        self.order = self.arrangement.order
        if groups_are_rows(self):
            self.order = "rows"
        if self._dx_would_cut_otherwise():
            self.arrangement = through_a_copy(self.arrangement, "dx", geometry)
        # Of parameters' sums: rows have gradients that those have no share in.
        self.sum_flat, self.sum_format = self.flat, self.format
        if self._many_terms():
            self.sum_flat, self.sum_format = F64, F32_WIDE
            if self.order != "rows" or spec.dx is None:
                self.flat, self.format = F64, F32_WIDE
        self.params: list[Any] = [0] * slots.COPIES
        self.phases: list[tuple[str, int]] = []
        self.after: list[tuple[int, tuple[Any, ...]]] = []  # copies of results, by which task
        self.workspace = 0
        self.copied: list[str] = []

    def _dx_would_cut_otherwise(self) -> bool:
        """Whether gaps of dx would change how sums are cut: it has no say in their bits.

        It may be in the place of another, without gaps, as that lies over an operand.
        """
        if self.order != "rows" and not self.needs.sum_dy:
            return False  # there are none
        cut: Callable[[Program, tuple[str, ...]], object] = {
            "channels-first": strip_of,
            "channels-last": evenly_and_folded,
            "rows": runs,
        }[self.order]
        return cut(self, self.needs.data) != cut(self, self.needs.sources)

    def _many_terms(self) -> bool:
        """Whether float32 data add up to parameter gradients of very many terms each.

        What a gradient is may not depend on the batch around it, where it does not by its formula.
        """
        geometry, spec = self.geometry, self.spec
        if self.arrangement.dtype != "float32" or set(spec.wanted) <= set(DATA):
            return False
        if geometry.statistic == "row" and self.order != "rows":
            return geometry.inner >= sizes.MANY_PIXELS
        if spec.dx is not None and self.needs.correction == slots.NO_CORRECTION:
            return False
        return geometry.size // max(geometry.parameters, 1) >= sizes.MANY_TERMS

    def build(self) -> tuple[Config, int]:
        """Everything, in the order in which it runs."""
        self._sizes()
        for role in self.needs.data:
            self._data(role)
        for role, slot in _VECTORS.items():
            self._vector(role, slot)
        if self.spec.op is Op.BATCH_NORM_ELEMT and self.geometry.size:
            self.params[slots.AT_COUNT] = self.reserve(8)
            self.phase("add_counts", 1)
        # Without data sums are 0, of as many parameters as there are.
        if self.geometry.size or (self.geometry.parameters and set(self.spec.wanted) - {"dx"}):
            {
                "channels-first": channels_first,
                "channels-last": channels_last,
                "rows": rows,
            }[self.order](self)
        for copy, task in self.after:
            self._copy_phase(copy, task)
        self.params[slots.PHASES] = len(self.phases)
        config = Config(
            order=self.order,
            dtype=self.arrangement.dtype,
            compute=self.sum_flat.name,
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
        self.workspace += aligned(max(nbytes, 1))
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

    def stream(self, length: int) -> None:
        """Write dx past the cache where it is large, and not in pieces of lines."""
        large = self.large()
        in_place = self.spec.dx is not None and "dx" not in self.arrangement.copied
        nbytes = length * self.format.itemsize
        whole = nbytes % 64 == 0 or nbytes >= sizes.STREAM_SEGMENT
        self.params[slots.STREAM_DX] = int(large and in_place and whole)

    def large(self) -> bool:
        """Whether x, dy and dx are too large for results to be found in a cache."""
        return 3 * self.geometry.size * self.format.itemsize > sizes.STREAM_BYTES

    def far(self) -> bool:
        """Whether x and dy are too large to be near."""
        return 2 * self.geometry.size * self.format.itemsize > sizes.NEAR_BYTES

    def _data(self, role: str) -> None:
        tensor = self.spec.present(role)
        slot = slots.DATA[role]
        self.params[slot] = -1 - SLOT[role]
        if role in self.arrangement.copied:
            place = self.reserve(tensor.size * self.format.itemsize)
            axes = copy_axes(self.spec, self.arrangement.order, tensor)
            self._copy(role, tensor, axes, place, self.format.name)
            self.params[slot] = place
        strides = [step * self.format.itemsize for step in self.arrangement.strides[role]]
        self.params[slot + 1 : slot + 5] = strides

    def _vector(self, role: str, slot: int) -> None:
        tensor = self.spec.tensor(role)
        # Without data no operand has a say in a sum of 0: 0 * nan would be nan.
        if tensor is None or (role in self.spec.operands and not self.geometry.size):
            self.params[slot + slots.CODE] = ABSENT
            return
        strides = reshaped_strides(tensor, (tensor.size,))
        dtype = tensor.dtype
        self.params[slot] = -1 - SLOT[role]
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
        there = (-1 - SLOT[role], CODES[tensor.dtype], ITEMSIZE[tensor.dtype])
        here = (place, CODES[dtype], ITEMSIZE[dtype])
        is_result = role in self.spec.results
        source, target = (here, there) if is_result else (there, here)
        # Long runs are cut: without gaps a tensor is a single one, and there are other threads.
        crossed = _crossed(axes) if tensor.dtype == dtype else None
        axes = crossed or axes
        across = axes[-2][0] if crossed else 1
        length = max(axes[-1][0], 1)
        piece = sizes.TASK_ELEMENTS // 2 // across
        if crossed:
            piece = max(ceil_div(piece, 4 * sizes.SQUARE), 1) * 4 * sizes.SQUARE
        piece = min(length, piece)
        count = tensor.size // (length * across) * ceil_div(length, piece)
        per_task = max(sizes.TASK_ELEMENTS // 2 // (piece * across), 1)
        block = [*source[:2], *target[:2], len(axes), count, per_task, piece]
        for size, outside, inside in axes:
            steps = (outside * there[2], inside * here[2])
            block += [size, *(reversed(steps) if is_result else steps)]
        block += [0] * (slots.PER_COPY - len(block))
        self.params += block
        self.copied.append(role)
        task = ("transposes", _BITS[there[2]]) if crossed else ("copies",)
        if is_result:
            self.after.append((at, task))
        else:
            self._copy_phase(at, task)

    def _copy_phase(self, at: int, task: tuple[Any, ...]) -> None:
        per_task = self.params[at + slots.COPY_RUNS_PER_TASK]
        count = ceil_div(self.params[at + slots.COPY_RUNS], per_task)
        name, *formats = task
        self.phase(name, count, *formats, argument=at)

    def join_samples(self) -> None:
        """Group norm's parameter gradients."""
        if self.geometry.statistic == "row" and (self.spec.dgamma or self.spec.dbeta):
            if not self.params[slots.CHUNK]:
                self.params[slots.CHUNK] = sizes.JOINED_COLUMNS
            columns = self.geometry.parameters
            self.phase("join_samples", ceil_div(columns, self.params[slots.CHUNK]))


def _crossed(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]] | None:
    """Axes with the one that is dense in the tensor beside the last, which is so in its copy.

    None where they are the same one, or too short for squares, or where a run repeats an element.
    """
    *outer, last = axes
    across = next((axis for axis in outer if axis[1] == 1), None)
    if across is None or last[1] in {0, 1} or min(across[0], last[0]) < sizes.SQUARE:
        return None
    outer.remove(across)
    return [*outer, across, last]


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
        self.sources = tuple(role for role in self.data if role != "dx")


def program(spec: Spec, geometry: Geometry, compute: str) -> tuple[Config, int]:
    """The settings of a request and the bytes of workspace that it needs."""
    return Program(spec, geometry, compute).build()
