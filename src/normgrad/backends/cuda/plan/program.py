"""A kernel plan: the launches that compute a request, without a single address.

Made by pure functions from the request and the device's properties, so that it can be printed and
tested on a machine without a GPU.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from normgrad.backends.cuda.plan.forms import formula_of
from normgrad.backends.cuda.plan.tiles import WIDE, ceil_div, power_of_two
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import channels_at_the_end, joined_axes, reshaped_strides
from normgrad.core.spec import DATA, ROLES, Spec, TensorSpec, row_major

if TYPE_CHECKING:
    from normgrad.backends.cuda.run.launch import Aligned, Ready

_ITEMSIZE = {**ITEMSIZE, "uint64": 8}
_ALIGNMENT = 256  # of every piece of the workspace
NUMBER = "number"
_COPIED = 1024  # elements of a program that copies
_TILE = 64  # a side of what a program transposes
_SHORT = 8  # of axes that are not worth it
# Where a role's address stands: after all roles the workspace, then what `next_area` gives.
AREAS = ("sum_words", "previous_words", "previous_count")
SLOTS = {role: index for index, role in enumerate((*ROLES, "", *AREAS))}
DATA_SLOTS = {SLOTS[role] for role in DATA}


class Ref(NamedTuple):
    """Memory: a role's tensor, or a piece of the workspace (role ""); or a NUMBER of each call."""

    role: str
    offset: int  # in bytes
    dtype: str


Argument = Ref | int | float | None


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch."""

    kernel: str  # module.function under `schedules`
    grid: tuple[int, int, int]
    arguments: tuple[tuple[str, Argument], ...]
    constants: tuple[tuple[str, Any], ...]
    warps: int = 4
    registers: int | None = None  # per thread, at most
    cooperative: bool = False  # all blocks must be resident: they wait for each other
    early: bool = False  # may start before the launch before it is done, and waits inside
    ring: int = 0  # bytes of shared memory behind the compiler's own, for copies in PTX

    @property
    def refs(self) -> list[Ref]:
        """What memory it touches."""
        return [value for _, value in self.arguments if isinstance(value, Ref)]

    def __str__(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in self.constants)
        limit = f", {self.registers} registers" if self.registers else ""
        mode = (", cooperative" if self.cooperative else "") + (", early" if self.early else "")
        mode += f", {self.ring} bytes of ring" if self.ring else ""
        blocks = "x".join(str(size) for size in self.grid)
        return f"{self.kernel}[{blocks}] {self.warps} warps{limit}{mode} ({sizes})"


@dataclass(frozen=True, slots=True)
class Fill:
    """Set bytes of the workspace or of a result."""

    target: Ref
    nbytes: int
    value: int

    @property
    def refs(self) -> list[Ref]:
        """What memory it touches."""
        return [self.target]

    def __str__(self) -> str:
        return f"fill {self.nbytes} bytes with {self.value:#x}"


Step = Launch | Fill


@dataclass(frozen=True, slots=True)
class Program:
    """The steps, and the scratch memory they need."""

    strategy: str
    steps: tuple[Step, ...]
    workspace_bytes: int
    # What runs where data start at no multiple of 16 bytes, if that is another program.
    unaligned: "Program | None" = None
    words: int = 0  # that blocks of one of the steps exchange; another step clears them before
    # Compiled kernels by device, alignment and whether words lie in areas: by the first run.
    prepared: "dict[tuple[int, Aligned, bool], list[Ready]]" = field(
        default_factory=dict, compare=False, repr=False
    )
    slots: tuple[int, ...] = field(init=False, compare=False, repr=False)  # that steps touch

    def __post_init__(self) -> None:
        refs = [ref for step in self.steps for ref in step.refs]
        slots = tuple(sorted({SLOTS[ref.role] for ref in refs}))
        object.__setattr__(self, "slots", slots)

    def __str__(self) -> str:
        lines = [f"{self.strategy}, workspace {self.workspace_bytes} bytes"]
        return "\n".join([*lines, *(f"  {step}" for step in self.steps)])


class Builder:
    """Collects steps; knows where each role's data are by then."""

    def __init__(self, spec: Spec, compute: str) -> None:
        self.spec = spec
        self.compute = compute
        self.formula = formula_of(spec)
        self.steps: list[Step] = []
        self.used = 0
        self.words = 0
        self._after: list[Step] = []
        self._deviations: Ref | None = None

    @property
    def numbers(self) -> int:
        """What a partial sum consists of: two sums, or see `moments`."""
        return 4 if self.spec.operator.forward else 2

    @property
    def slopes(self) -> bool:
        """Whether gradients go through an activation."""
        return self.spec.activation is not None and not self.spec.operator.forward

    def running(self) -> dict[str, Argument]:
        """Running statistics, as kernels that update them take them."""
        roles = {"mean": "running_mean", "variance": "running_var"}
        updates = self.spec.x.size > 0  # without data they stay
        old = {
            f"old_{name}": self.vector(role) if updates else None for name, role in roles.items()
        }
        new = {
            f"new_{name}": self.result(role) if updates else None for name, role in roles.items()
        }
        return {
            **old,
            **new,
            "momentum": self.spec.momentum if self.spec.operator.forward else None,
        }

    def bits(self) -> Ref | None:
        """The mask, which forward operators write."""
        return self.result("mask") if self.spec.operator.forward else self.vector("mask")

    @property
    def wants_parameters(self) -> bool:
        """Whether the gradient of a parameter is wanted."""
        return self.spec.dgamma is not None or self.spec.dbeta is not None

    def scratch(self, count: int, dtype: str) -> Ref:
        """A piece of the workspace."""
        ref = Ref("", self.used, dtype)
        self.used += ceil_div(count * _ITEMSIZE[dtype], _ALIGNMENT) * _ALIGNMENT
        return ref

    def launch(
        self,
        kernel: str,
        grid: tuple[int, ...],
        arguments: dict[str, Argument],
        constants: dict[str, Any],
        **options: Any,
    ) -> None:
        """Add a kernel launch."""
        x, y, z, *_ = (*grid, 1, 1)
        self.steps.append(
            Launch(kernel, (x, y, z), tuple(arguments.items()), tuple(constants.items()), **options)
        )

    def fill(self, target: Ref, count: int, value: int) -> None:
        """Set ``count`` elements' bytes."""
        self.steps.append(Fill(target, count * _ITEMSIZE[target.dtype], value))

    def launch_teams(
        self,
        kernel: str,
        grid: tuple[int, ...],
        arguments: dict[str, Argument],
        constants: dict[str, Any],
        *,
        words: int,
        joins: bool,
        starts_early: bool,
        counters: int = 0,
        **options: Any,
    ) -> None:
        """A launch whose blocks wait for each other's words or, if it ``joins``, for everybody.

        The words, after them one that counts arrivals and the ``counters``, are cleared directly
        before it, where the launch may overtake nothing else, unless `exchange_areas`
        stand in for them.
        """
        total = words + joins + counters
        target = self.scratch(total, "uint64") if total else None
        early = total > 0 and starts_early
        if target is not None:
            self._clear(target, total, early=early)
            self.words = total
        arguments |= {"sum_words": target, "previous_words": target, "previous_count": 0}
        arguments["arrivals"] = words
        options = {"cooperative": total > 0, "early": early} | options
        self.launch(kernel, grid, arguments, constants | {"EARLY": early}, **options)

    def _clear(self, words: Ref, count: int, *, early: bool) -> None:
        """Set all bits of words, beside the start of the next launch if that is ``early``."""
        if not early:
            self.fill(words, count, 0xFF)
            return
        block = 1024
        self.launch(
            "copy.clear_words",
            (ceil_div(count, block),),
            {"words": words, "count": count},
            {"BLOCK": block},
        )

    def vector(self, role: str) -> Ref | None:
        """A small operand as a dense vector, copied if it is not one."""
        tensor = self.spec.tensor(role)
        if tensor is None:
            return None
        ref = Ref(role, 0, tensor.dtype) if is_dense(tensor) else self.pack(role)
        return self._inverted(ref, tensor.size) if role == "rstd" else ref

    @property
    def given_variance(self) -> bool:
        """Whether kernels get a variance in the place of rstd: those that read channels do."""
        return self.spec.rstd_is == "variance" and self.spec.operator.axes == "channels"

    def _inverted(self, ref: Ref, count: int) -> Ref:
        """Reciprocal deviations, made of variances where kernels do not take those."""
        if self.spec.rstd_is != "variance" or self.given_variance:
            return ref
        if self._deviations is None:
            self._deviations = self.scratch(count, self.compute)
            arguments: dict[str, Argument] = {
                "source": ref,
                "target": self._deviations,
                "count": count,
                "eps": self.spec.eps,
            }
            constants = {"COMPUTE": self.compute, "BLOCK": _COPIED}
            self.launch("copy.deviations", (ceil_div(count, _COPIED),), arguments, constants)
        return self._deviations

    def pack(self, role: str, dtype: str | None = None, *, channels_last: bool = False) -> Ref:
        """A dense copy of an operand in the workspace, of another type if need be."""
        tensor = self._in_order(role, channels_last)
        ref = self.scratch(tensor.size, dtype or tensor.dtype)
        dense = row_major(tensor.shape)
        self.steps.append(
            copy_of(Ref(role, 0, tensor.dtype), ref, tensor.shape, tensor.strides, dense)
        )
        return ref

    def pack_view(self, role: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Ref:
        """A dense copy of these elements of an operand."""
        dtype = self.spec.present(role).dtype
        ref = self.scratch(math.prod(shape), dtype)
        self.steps.append(copy_of(Ref(role, 0, dtype), ref, shape, strides, row_major(shape)))
        return ref

    def result(self, role: str) -> Ref | None:
        """Where to write a result as a dense row-major tensor; copied to its place at the end."""
        tensor = self.spec.tensor(role)
        if tensor is None:
            return None
        if is_dense(tensor):
            return Ref(role, 0, tensor.dtype)
        return self.staging_result(role)

    def staging_result(self, role: str, *, channels_last: bool = False) -> Ref:
        """A dense stand-in for a result."""
        tensor = self._in_order(role, channels_last)
        ref = self.scratch(tensor.size, tensor.dtype)
        dense = row_major(tensor.shape)
        self._after.append(
            copy_of(ref, Ref(role, 0, tensor.dtype), tensor.shape, dense, tensor.strides)
        )
        return ref

    def _in_order(self, role: str, channels_last: bool) -> TensorSpec:
        tensor = self.spec.present(role)
        return channels_at_the_end(self.spec, tensor) if channels_last else tensor

    def move(self, role: str) -> Ref:
        """Data at a multiple of 16 bytes: copied there before all, or from there at the end."""
        tensor = self.spec.present(role)
        axes = zip(tensor.strides, tensor.shape, strict=True)
        # As memory lies; what is repeated once.
        steps, sizes = zip((0, 1), *sorted(axes, reverse=True), strict=True)
        sizes = tuple(size if step else 1 for step, size in zip(steps, sizes, strict=True))
        last = sum((size - 1) * step for step, size in zip(steps, sizes, strict=True))
        ref, own = self.scratch(last + 1, tensor.dtype), Ref(role, 0, tensor.dtype)
        if role in self.spec.results:
            self._after.append(copy_of(ref, own, sizes, steps, steps))
        else:
            self.steps.append(copy_of(own, ref, sizes, steps, steps))
        return ref

    def finish(self, strategy: str) -> Program:
        """The program."""
        return Program(strategy, (*self.steps, *self._after), self.used, words=self.words)


def is_dense(tensor: TensorSpec) -> bool:
    """Whether the elements lie one after another in row-major order."""
    return tensor.size <= 1 or reshaped_strides(tensor, (tensor.size,)) == (1,)


def copy_of(
    source: Ref,
    target: Ref,
    shape: tuple[int, ...],
    reads: tuple[int, ...],
    writes: tuple[int, ...],
) -> Launch:
    """A copy from strides to strides."""
    axes = joined_axes(shape, reads, writes) or [(1, 1, 1)]
    crossed = _transposed_copy(source, target, axes)
    if crossed is not None:
        return crossed
    *outer, (cols, col_read, col_write) = axes
    if not outer and col_read == col_write == 1:
        given: tuple[tuple[str, Argument], ...]
        given = ("source", source), ("target", target), ("count", cols)
        sizes = ("WIDE", cols + _COPIED >= WIDE), ("BLOCK", _COPIED)
        return Launch("copy.flat_copy", (ceil_div(cols, _COPIED), 1, 1), given, sizes)
    rows = math.prod(size for size, _, _ in outer)
    width = min(power_of_two(cols), _COPIED)
    height = _COPIED // width
    blocks = ceil_div(cols, width)
    arguments: dict[str, Argument] = {
        "source": source,
        "target": target,
        "rows": rows,
        "blocks": blocks,
        "cols": cols,
        "col_read": col_read,
        "col_write": col_write,
    }
    arguments |= _outer_axes(outer, 7)
    constants = {
        "AXES": len(outer),
        "UNIT_READ": col_read == 1,
        "UNIT_WRITE": col_write == 1,
        "WIDE": max(rows + height, cols + width) >= WIDE,
        "ROWS": height,
        "COLS": width,
    }
    grid = (ceil_div(rows, height) * blocks, 1, 1)
    return Launch("copy.strided_copy", grid, tuple(arguments.items()), tuple(constants.items()))


def _outer_axes(axes: list[tuple[int, int, int]], room: int) -> dict[str, Argument]:
    """Axes as arguments of a kernel with room for so many."""
    padded = [(1, 0, 0)] * (room - len(axes)) + axes
    columns = zip("nst", zip(*padded, strict=True), strict=True)
    return {f"{letter}{axis}": one for letter, given in columns for axis, one in enumerate(given)}


def _transposed_copy(source: Ref, target: Ref, axes: list[tuple[int, int, int]]) -> Launch | None:
    """The copy where one axis is dense in the source and another, both long, in the target."""
    *outer, (along, along_read, along_write) = axes
    inward = along_write == 1 and along_read != 1
    # Its stride there, in the source or in the target.
    across = next((one for one in outer if one[1 if inward else 2] == 1), None)
    if across is None or 1 not in (along_read, along_write) or min(across[0], along) < _SHORT:
        return None
    outer.remove(across)
    read, write = (along_read, across[2]) if inward else (across[1], along_write)
    widest = 16 // min(_ITEMSIZE[source.dtype], _ITEMSIZE[target.dtype])
    strides = [read, write, *(step for _, *steps in outer for step in steps)]
    align = math.gcd(widest, *strides)
    blocks = ceil_div(across[0], _TILE), ceil_div(along, _TILE)
    arguments: dict[str, Argument] = {
        "source": source,
        "target": target,
        "across": across[0],
        "along": along,
        "blocks_across": blocks[0],
        "blocks_along": blocks[1],
        "read": read // align,
        "write": write // align,
    }
    arguments |= _outer_axes([(size, one // align, two // align) for size, one, two in outer], 6)
    wide = max(across[0], along) + _TILE >= WIDE
    constants = {"AXES": len(outer), "INWARD": inward, "ALIGN": align, "WIDE": wide, "TILE": _TILE}
    grid = (math.prod(size for size, _, _ in outer) * math.prod(blocks), 1, 1)
    return Launch("copy.transposed_copy", grid, tuple(arguments.items()), tuple(constants.items()))
