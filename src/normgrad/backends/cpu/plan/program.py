"""From a request to a parameter block: partition, phases and workspace.

The partition depends on the request alone, never on the number of threads: same bits everywhere.
"""

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from normgrad.arrays.host_memory import aligned
from normgrad.backends.cpu import jit, tasks
from normgrad.backends.cpu.formulas import Formula, formula_of
from normgrad.backends.cpu.plan import ceil_div, slots, tuned
from normgrad.backends.cpu.plan.layout import (
    Arrangement,
    arrange,
    copy_axes,
    crossed,
    distinct,
    merged,
    through_a_copy,
)
from normgrad.backends.cpu.plan.row_blocks import channels_last, evenly_and_folded
from normgrad.backends.cpu.plan.rows import groups_are_rows, rows, runs
from normgrad.backends.cpu.plan.shortcuts import Shortcut, has_shortcut
from normgrad.backends.cpu.plan.slabs import channels_first, strip_of
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
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry, reshaped_strides
from normgrad.core.spec import DATA, SLOT, Spec, TensorSpec

_VECTORS = {
    "mean": slots.MEAN,
    "rstd": slots.RSTD,
    "gamma": slots.GAMMA,
    "sum_dy": slots.SUM_DY_VECTOR,
    "sum_dy_xmu": slots.SUM_XMU_VECTOR,
    "counter": slots.COUNTER,
    "dgamma": slots.DGAMMA,
    "dbeta": slots.DBETA,
    "beta": slots.BETA,
    "running_mean": slots.RUNNING_MEAN,
    "running_var": slots.RUNNING_VAR,
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
        self.shortcut = Shortcut(spec, geometry, compute) if has_shortcut(spec) else None
        spec = self.shortcut.inner if self.shortcut else spec
        self.spec = spec
        # Without data there is nothing to do for samples or rows, of which there may be billions.
        self.geometry = geometry if geometry.size else replace(geometry, outer=0)
        self.statistics = geometry.statistics
        self.needs = Requirements(spec)
        self.form = self.needs.form
        self.arrangement: Arrangement = arrange(spec, geometry, compute, self.needs.data)
        self.flat: Format = F64 if compute == "float64" else F32
        self.format = FORMATS[self.arrangement.dtype, self.flat.wide]
        self.order = self.arrangement.order
        if groups_are_rows(self):
            self.order = "rows"
        if self.needs.out and self._result_layout_changes_partition():
            self.arrangement = through_a_copy(self.arrangement, self.needs.out, geometry)
        # Of parameters' sums: rows have gradients that those have no share in.
        self.sum_flat, self.sum_format = self.flat, self.format
        if self._needs_wide_sums():
            self.sum_flat, self.sum_format = F64, F32_WIDE
            if self.order != "rows" or spec.dx is None:
                self.flat, self.format = F64, F32_WIDE
        self.params: list[Any] = [0] * slots.COPIES
        self.phases: list[tuple[str, int]] = []
        self.after: list[tuple[int, tuple[Any, ...]]] = []  # copies of results, by which task
        self.workspace = 0
        self.copied: list[str] = []

    def _result_layout_changes_partition(self) -> bool:
        """Whether gaps of dx or y would change how sums are cut: it has no say in their bits.

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

    def _needs_wide_sums(self) -> bool:
        """Whether float32 data add up to parameter gradients of very many terms each.

        The bits of a sample's gradient may not depend on the batch size, unless the operator sums
        over the batch.
        """
        geometry, spec = self.geometry, self.spec
        if spec.operator.forward or set(spec.wanted) <= set(DATA):
            return False
        if self.arrangement.dtype != "float32":
            return False
        if geometry.statistic == "row" and self.order != "rows":
            return geometry.inner >= tuned.MANY_PIXELS
        if spec.dx is not None and self.needs.correction == slots.NO_CORRECTION:
            return False
        return geometry.size // max(geometry.parameters * geometry.samples, 1) >= tuned.MANY_TERMS

    def build(self) -> tuple[Config, int]:
        """Everything, in the order in which it runs."""
        self._sizes()
        if self.shortcut:
            self.shortcut.prepare(self)
        for role, slot in _VECTORS.items():
            self._vector(role, slot)
        if self.shortcut and not self.shortcut.forward:
            self.shortcut.phases(self)
        for role in self.needs.data:
            self._data(role)
        if self.spec.variances is not None:
            self._gather(self.spec.variances)
        elif self.spec.operator.forward and not self.geometry.size:
            self.phase("statistics_of_nothing", 1, argument=self.statistics)
        elif self.needs.correction == slots.GIVEN_CORRECTION and self.geometry.size:
            self.params[slots.AT_COUNT] = self.reserve(8)
            self.phase("add_counts", 1)
        # Without data sums are 0, of as many parameters as there are.
        sums = self.geometry.parameters and set(self.spec.wanted) - {"dx"}
        made = self.spec.wanted and (
            self.geometry.size or (sums and not self.spec.operator.forward)
        )
        if self.needs.data and made:
            {
                "channels-first": channels_first,
                "channels-last": channels_last,
                "rows": rows,
            }[self.order](self)
        if self.shortcut and self.shortcut.forward:
            self.shortcut.phases(self)
        if self.shortcut:
            self.shortcut.results(self)
        for copy, task in self.after:
            self._copy_phase(copy, task)
        # What a formula does not read is the other.
        if not self.needs.x:
            self.params[slots.X : slots.X + 6] = self.params[slots.DY : slots.DY + 6]
        elif self.needs.data and not {"dy", "residual"} & set(self.needs.data):
            self.params[slots.DY : slots.DY + 6] = self.params[slots.X : slots.X + 6]
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

    def _gather(self, variances: TensorSpec) -> None:
        """Statistics of ranks are read as they lie, one at a time."""
        for slot, role, tensor in ((slots.X, "x", self.spec.x), (slots.DY, "variances", variances)):
            by_rank, by_channel = (step * ITEMSIZE[tensor.dtype] for step in tensor.strides)
            self.params[slot : slot + 5] = [-1 - SLOT[role], by_rank, 0, by_channel, 0]
            self.params[slot + slots.DATA_CODE] = CODES[tensor.dtype]
        self.phase("gather_statistics", self.geometry.channels)

    def reserve(self, nbytes: int) -> int:
        """A place in the workspace, at a multiple of a cache line."""
        place = self.workspace
        self.workspace += aligned(max(nbytes, 1))
        return place

    def phase(
        self, name: str, count: int, *formats: Format | Formula | bool, argument: int = 0
    ) -> None:
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
        params[slots.SETS] = geometry.samples
        params[slots.OWN_GROUPS] = geometry.groups if geometry.samples > 1 else 0
        params[slots.COUNT] = geometry.count
        params[slots.BY_ROW] = int(geometry.statistic == "row")
        params[slots.SUM_DY] = int(needs.sum_dy)
        params[slots.SUM_XMU] = int(needs.sum_xmu)
        params[slots.CORRECTION] = needs.correction
        alone = needs.correction == slots.OWN_CORRECTION and geometry.count == 1
        params[slots.ALONE] = int(alone and spec.operator.centred and not needs.own)
        params[slots.WRITE_DX] = int(needs.out is not None)
        params[slots.FROM_VARIANCE] = int(spec.rstd_is == "variance")
        params[slots.FROM_INVSTD] = int(spec.variances_are == "invstd")
        params[slots.BIASED] = int(spec.biased)
        for slot, number in (
            (slots.EPS, spec.eps),
            (slots.WEIGHT_OFFSET, spec.weight_offset),
            (slots.MOMENTUM, spec.momentum),
            (slots.NEGATIVE_SLOPE, spec.negative_slope),
        ):
            (params[slot],) = struct.unpack("q", struct.pack("d", number))

    def stream(self, length: int) -> None:
        """Write dx past the cache where it is large, and not in pieces of lines."""
        large = self.large()
        outs = {self.needs.out, *self.spec.wanted} & set(slots.DATA)
        in_place = self.needs.out is not None and not outs & set(self.arrangement.copied)
        nbytes = length * self.format.itemsize
        whole = nbytes % 64 == 0 or nbytes >= tuned.STREAM_SEGMENT
        self.params[slots.STREAM_DX] = int(large and in_place and whole)

    def large(self) -> bool:
        """Whether x, dy and dx are too large for results to be found in a cache."""
        return 3 * self.geometry.size * self.format.itemsize > tuned.STREAM_BYTES

    def far(self) -> bool:
        """Whether x and dy are too large to be near."""
        return 2 * self.geometry.size * self.format.itemsize > tuned.NEAR_BYTES

    def _place(self, role: str) -> int:
        """Where a tensor is: in the workspace, or where the caller gave it."""
        own = self.shortcut.places.get(role) if self.shortcut else None
        return -1 - SLOT[role] if own is None else own

    def _data(self, role: str) -> None:
        tensor = self.spec.present(role)
        slot = slots.DATA[role]
        self.params[slot] = self._place(role)
        if role in self.arrangement.copied:
            tensor = distinct(self.spec, self.geometry, self.arrangement.order, tensor)
            place = self.reserve(tensor.size * self.format.itemsize)
            axes = copy_axes(self.spec, self.arrangement.order, tensor)
            self.copy(role, tensor, axes, place, self.format.name)
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
        self.params[slot] = self._place(role)
        if strides is None:
            is_result, updated = role in self.spec.results, role in self.spec.updated
            dtype = dtype if is_result or updated else "float64"
            place = self.reserve(tensor.size * ITEMSIZE[dtype])
            self.copy(role, tensor, merged(tensor), place, dtype)
            if updated:
                self.copy(role, tensor, merged(tensor), place, dtype, is_result=True)
            self.params[slot] = place
            strides = (1,)
        self.params[slot + slots.CODE] = CODES[dtype]
        self.params[slot + slots.STRIDE] = strides[0] * ITEMSIZE[dtype]
        self.params[slot + slots.LENGTH] = tensor.size

    def copy(
        self,
        role: str,
        tensor: TensorSpec,
        axes: list[tuple[int, int, int]],
        place: int,
        dtype: str,
        *,
        is_result: bool = False,
        given: int | None = None,
    ) -> None:
        """Describe a copy into the workspace before, or out of it after, everything else."""
        at = len(self.params)
        where = self._place(role) if given is None else given
        there = (where, CODES[tensor.dtype], ITEMSIZE[tensor.dtype])
        here = (place, CODES[dtype], ITEMSIZE[dtype])
        is_result = is_result or role in self.spec.results
        source, target = (here, there) if is_result else (there, here)
        # Long runs are cut: without gaps a tensor is a single one, and there are other threads.
        squares = crossed(axes) if tensor.dtype == dtype else None
        axes = squares or axes
        across = axes[-2][0] if squares else 1
        length = max(axes[-1][0], 1)
        piece = tuned.TASK_ELEMENTS // 2 // across
        if squares:
            piece = max(ceil_div(piece, 4 * tuned.SQUARE), 1) * 4 * tuned.SQUARE
        piece = min(length, piece)
        count = tensor.size // (length * across) * ceil_div(length, piece)
        per_task = max(tuned.TASK_ELEMENTS // 2 // (piece * across), 1)
        block = [*source[:2], *target[:2], len(axes), count, per_task, piece]
        for size, outside, inside in axes:
            steps = (outside * there[2], inside * here[2])
            block += [size, *(reversed(steps) if is_result else steps)]
        block += [0] * (slots.PER_COPY - len(block))
        self.params += block
        self.copied.append(role)
        task = ("transposes", _BITS[there[2]]) if squares else ("copies",)
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
            if not self.params[slots.JOIN_COLUMNS]:
                self.params[slots.JOIN_COLUMNS] = tuned.JOINED_COLUMNS
            chunks = ceil_div(self.geometry.parameters, self.params[slots.JOIN_COLUMNS])
            self.phase("join_samples", self.geometry.samples * chunks)


class Requirements:
    """Which sums and which data a request needs: what the mask leaves out is not computed."""

    def __init__(self, spec: Spec) -> None:
        operator = spec.operator
        wanted = [role for role in operator.data_out if spec.tensor(role) is not None]
        self.out = next((role for role in wanted if role != "sum"), None)
        constant = self.out is not None and not spec.training
        self.form = formula_of(spec, constant=constant)
        self.own = self.form.own_statistics()
        self.correction = slots.NO_CORRECTION
        elemt = operator.sums == "given"
        if elemt and not operator.forward:
            self.correction = slots.GIVEN_CORRECTION
        elif self.own or (not operator.forward and self.out and spec.training):
            self.correction = slots.OWN_CORRECTION
        results = set(spec.wanted)
        own = self.correction == slots.OWN_CORRECTION and (self.own or operator.axes != "rows")
        weighs = bool(results & {"dgamma", "sum_dy_xmu"})
        weighs = weighs or (self.form.fused() and bool(results & {"dbeta", "sum_dy"}))
        self.sum_xmu = own or (weighs and not elemt)
        self.sum_dy = self.sum_xmu or (bool(results & {"dbeta", "sum_dy"}) and not elemt)
        self.x = (
            self.sum_xmu
            or self.correction != slots.NO_CORRECTION
            or self.form.fused()
            or operator.forward
        )
        unread = {role for role, read in (("x", self.x), ("dsum", self.out)) if not read}
        self.sources = tuple(
            role for role in spec.data_in if role in slots.DATA and role not in unread
        )
        self.data = (*self.sources, *(role for role in wanted if role in slots.DATA))
        if spec.variances is not None:
            self.data = ()  # of ranks: there are no elements


def program(spec: Spec, geometry: Geometry, compute: str) -> tuple[Config, int]:
    """The settings of a request and the bytes of workspace that it needs."""
    return Program(spec, geometry, compute).build()
