"""A shortcut behind batch norm: which phases come after the norm's, or before the gradient's.

The norm itself makes its statistics, and the phase of the shortcut writes. The gradient goes
through the activation first, into ``grad_shortcut``, which the norm's takes for that of its output.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from normgrad.backends.cpu.formulas import Formula
from normgrad.backends.cpu.plan import ceil_div, tuned
from normgrad.backends.cpu.plan.layout import Order, copy_axes, dense, fits, merged
from normgrad.backends.cpu.vectors.formats import F32, F64, FORMATS
from normgrad.core.dtypes import ITEMSIZE, compute_dtype
from normgrad.core.geometry import Geometry, reshaped_strides
from normgrad.core.operators import STATISTICS
from normgrad.core.spec import SLOT, Spec, TensorSpec, row_major
from normgrad.core.validate import mask_shape

if TYPE_CHECKING:
    from normgrad.backends.cpu.plan.program import Program

# Those whose gradient is that of the output, or 0: it is a number of the data's type.
_EXACT = (None, "relu", "relu6")


class Shortcut:
    """What a request with a shortcut has besides its ``inner`` one, which has none."""

    def __init__(self, spec: Spec, geometry: Geometry, compute: str) -> None:
        self.spec, self.geometry = spec, geometry
        self.forward = spec.operator.forward
        self.masked = spec.mask is not None
        self.order: Order = "channels-last" if len(mask_shape(spec)) == 2 else "channels-first"
        read = ("x", "shortcut") if self.forward or not self.masked else ()
        self.roles = read if self.forward else ("dy", *read)
        out = "y" if self.forward else "dshortcut"
        self.out = out if spec.tensor(out) is not None else ""
        tensors = [spec.present(role) for role in (*self.roles, out) if spec.tensor(role)]
        types = {tensor.dtype for tensor in tensors}
        exact = self.forward or self.masked or spec.activation in _EXACT
        narrow = len(types) == 1 and (exact or not types & {"float16", "bfloat16"})
        self.dtype = types.pop() if narrow else compute
        wide = self.dtype == "float64"
        self.format, self.flat = FORMATS[self.dtype, wide], F64 if wide else F32
        self.places: dict[str, int] = {}
        self.inner = self._without()

    def _without(self) -> Spec:
        """The norm, or its gradient, alone."""
        spec = replace(self.spec, activation=None, shortcut=None, mask=None, dshortcut=None, y=None)
        if not self.forward:
            tensor = self._dense()
            if self.out and self._in_place(self.out):
                tensor = self.spec.present(self.out)
            return replace(spec, dy=tensor)
        # Statistics are read again: in the workspace, whatever callers want of them.
        dtype = compute_dtype((self.spec.x.dtype,))
        own = TensorSpec.contiguous((self.geometry.channels,), dtype)
        return spec.with_tensors(dict.fromkeys(set(STATISTICS) & set(spec.results), own))

    def _dense(self) -> TensorSpec:
        """A tensor of the data's shape without gaps, in this order and type."""
        last, axis = len(self.spec.x.shape) - 1, self.spec.channel_axis
        if self.order == "channels-first":
            return TensorSpec.contiguous(self.spec.x.shape, self.dtype)
        shape = self.spec.x.move_axis(axis, last).shape
        return TensorSpec.contiguous(shape, self.dtype).move_axis(last, axis)

    def _strides(self, role: str) -> tuple[int, ...] | None:
        """Of a tensor as it is, in the order of the axes of the geometry; None: it is copied."""
        tensor = self.spec.present(role)
        found = reshaped_strides(tensor, self.geometry.shape)
        if tensor.dtype != self.dtype or found is None:
            return None
        return found if fits(self.order, found, self.geometry) else None

    def _in_place(self, role: str) -> bool:
        return self._strides(role) is not None

    def prepare(self, program: "Program") -> None:
        """Where the inner request finds what is not where callers gave it."""
        if not self.forward:
            if not (self.out and self._in_place(self.out)):
                self.places["dy"] = program.reserve(self.geometry.size * self.format.itemsize)
            else:
                self.places["dy"] = -1 - SLOT[self.out]
            return
        for role in STATISTICS:
            if role in self.spec.results:
                tensor = self.inner.present(role)
                self.places[role] = program.reserve(tensor.size * ITEMSIZE[tensor.dtype])

    def phases(self, program: "Program") -> None:
        """The phase that writes, or that comes before all others."""
        geometry, params, size = self.geometry, program.params, self.format.itemsize
        if not geometry.size:
            return
        out = self._output(program)
        blocks = {role: self._input(program, role) for role in self.roles}
        any_read = next(iter(blocks.values()))
        last = self.order == "channels-last"
        length = geometry.channels if last else geometry.inner
        if self._one_run([*blocks.values(), out], length):
            length = geometry.size
        # Whole bytes of a mask; of rows with factors by column all of one.
        piece = min(length, tuned.TASK_ELEMENTS)
        piece = length if last and length == geometry.channels else piece
        runs = geometry.size // length * ceil_div(length, piece)
        per_task = max(1, min(tuned.TASK_ELEMENTS, geometry.size // tuned.SOME_TASKS) // piece)
        factors = program.reserve(3 * geometry.channels * self.flat.itemsize) if last else 0
        large = 3 * geometry.size * size > tuned.STREAM_BYTES
        at = len(params)
        for role in ("dy", "x", "shortcut"):
            params += blocks.get(role, any_read)
        params += [*out, *self._mask(), runs, per_task, piece, factors, int(large), length]
        form = Formula(activation=self.spec.activation, dtype=self.spec.x.dtype)
        if last and (self.forward or not self.masked):
            program.phase("shortcut_factors", 1, self.flat, argument=at)
        options = last, self.forward, self.masked
        tasks = ceil_div(runs, per_task)
        program.phase("with_shortcut", tasks, form, self.format, self.flat, *options, argument=at)

    def _one_run(self, blocks: list[list[int]], length: int) -> bool:
        """Whether a mask of all there is is taken as one run, without gaps and factors."""
        steps = self._block(0, None)[1:]
        dense = all(block[1:] == steps for block in blocks)
        return not self.forward and self.masked and dense and length % 8 == 0

    def results(self, program: "Program") -> None:
        """Statistics, and a gradient, as callers want them."""
        for role in STATISTICS if self.forward else ("dy",):
            place, wanted = self.places.get(role, -1), role if self.forward else self.out
            given = self.spec.tensor(wanted) if wanted else None
            if given is not None and place >= 0:
                axes = merged(given) if self.forward else copy_axes(self.spec, self.order, given)
                dtype, there = self.inner.present(role).dtype, -1 - SLOT[wanted]
                program.copy(wanted, given, axes, place, dtype, given=there)

    def _input(self, program: "Program", role: str) -> list[int]:
        strides, place = self._strides(role), -1 - SLOT[role]
        if strides is None:
            tensor = self.spec.present(role)
            place = program.reserve(tensor.size * self.format.itemsize)
            axes = copy_axes(self.spec, self.order, tensor)
            program.copy(role, tensor, axes, place, self.dtype, given=-1 - SLOT[role])
        return self._block(place, strides)

    def _output(self, program: "Program") -> list[int]:
        if not self.forward:
            in_place = self.out and self._in_place(self.out)
            return self._block(self.places["dy"], self._strides(self.out) if in_place else None)
        return self._input(program, "y")

    def _block(self, place: int, strides: tuple[int, ...] | None) -> list[int]:
        outer, _, channel, inner = strides or dense(self.order, self.geometry)
        return [place, *(step * self.format.itemsize for step in (outer, channel, inner))]

    def _mask(self) -> list[int]:
        """Its place, strides of (outer, channel, inner), and from byte to byte."""
        if self.spec.mask is None:
            return [0] * 5
        strides = self.spec.mask.strides or row_major(mask_shape(self.spec))
        place = -1 - SLOT["mask"]
        if self.order == "channels-first":
            return [place, strides[0], strides[1], 0, strides[2]]
        return [place, strides[0] * self.geometry.inner, 0, strides[0], strides[1]]


def has_shortcut(spec: Spec) -> bool:
    """Whether there is one, or a mask in its place."""
    return spec.shortcut is not None or (spec.mask is not None and not spec.operator.forward)
