"""The float64 truth at full size, in slices that fit, and who is right by it.

Every element of every result is checked, on the device where it lies.
"""

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from normgrad.arrays.torch_tensors import TorchKind
from normgrad.bench.problems import DeviceProblem
from normgrad.core.dtypes import FLOATS
from normgrad.core.geometry import Geometry
from normgrad.core.operators import DATA, STATISTICS
from normgrad.core.spec import Spec
from normgrad.verify.budget import expected_of
from normgrad.verify.measure import Measurement, measure
from normgrad.verify.summary import share_text

Tensor = torch.Tensor
Results = dict[str, Tensor]

# Elements of a slice in float64: some twenty temporaries of this size live at once. 2 MB each
# stay in a CPU's cache; 256 MB each keep a GPU busy.
_SLICE = {"cpu": 1 << 18, "cuda": 1 << 25}

# What a peer may miss our budget by and still be timed. Ours gets 1. A peer may sum in any
# order and round in between; its parameter gradients may even be added up in 16 bits, which
# shows in the budget but is the same mathematics: they pass within 5 % in the root of squares.
PEER_ALLOWANCE = 16.0
PEER_RELATIVE = 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """Values and budgets by role, in canonical shapes."""

    values: Results
    budgets: Results


def truth(problem: DeviceProblem) -> Truth:
    """Every wanted result of a problem."""
    spec, geometry = problem.spec, problem.geometry
    canonical = problem.canonical
    device = problem.device
    values: Results = {}
    budgets: Results = {}
    for role in spec.wanted:
        shape = spec.present(role).shape if role == "mask" else geometry.shape_of(role)
        values[role] = torch.empty(shape, dtype=torch.float64, device=device)
        budgets[role] = torch.empty_like(values[role])
    for axis, part, wanted in _slices(spec, geometry, _SLICE[device.partition(":")[0]]):
        index = tuple(part if place == axis else slice(None) for place in range(4))
        operands = {
            role: array.to(torch.float64)
            if role in ("counter", "mask") or array.shape[axis] == 1
            else array[index].to(torch.float64)
            for role, array in canonical.items()
        }
        names = ("outer", "groups", "channels", "inner")
        size = part.stop - part.start
        piece = dataclasses.replace(geometry, **{names[axis]: size})
        found = expected_of(_only(spec, wanted), piece, operands)
        for role in wanted:
            # A broadcast axis of a result has one slice that is all of it.
            place = ... if role == "mask" or values[role].shape[axis] == 1 else index
            values[role][place] = found.values[role]
            budgets[role][place] = found.budgets[role]
    return Truth(values, budgets)


def _slices(
    spec: Spec, geometry: Geometry, limit: int
) -> Iterator[tuple[int, slice, tuple[str, ...]]]:
    """Axis, range and the results that such a slice has complete."""
    if spec.mask is not None:  # whose bits cannot be cut anywhere
        yield 0, slice(0, geometry.outer), spec.wanted
        return
    if geometry.statistic == "channel":
        plans = [(2, spec.wanted)]
    elif geometry.groups > 1:
        plans = [(1, spec.wanted)]
    else:  # layer norm: rows have their data and statistics, columns their parameter gradients
        by_row = (*DATA, *STATISTICS)
        plans = [
            (0, tuple(role for role in spec.wanted if role in by_row)),
            (2, tuple(role for role in spec.wanted if role not in by_row)),
        ]
    for axis, wanted in plans:
        if not wanted:
            continue
        extent = geometry.shape[axis]
        step = max(1, limit // max(geometry.size // extent, 1))
        for start in range(0, extent, step):
            yield axis, slice(start, min(start + step, extent)), wanted


def _only(spec: Spec, wanted: tuple[str, ...]) -> Spec:
    return spec.with_tensors({role: None for role in spec.wanted if role not in wanted})


def judge(problem: DeviceProblem, known: Truth, results: Results) -> list[Measurement]:
    """The worst element of every wanted result."""
    measured = []
    for role, want in known.values.items():
        if role == "mask" and results.get(role) is None:  # others keep the output in its place
            continue
        got = results[role]
        dtype = TorchKind().view(got, role).tensor.dtype
        shape = want.shape
        wide = got.detach().reshape(shape).to(torch.float64)
        budget = _budget(problem, known, role, dtype)
        places = _worst(wide, want, budget)
        few = [array.reshape(-1)[places].cpu() for array in (wide, want, budget)]
        found = measure(role, few[0], few[1], few[2], dtype)
        worst = places[found.index[0]].cpu()
        index = tuple(int(i) for i in torch.unravel_index(worst, got.shape))
        measured.append(dataclasses.replace(found, index=index))
    return measured


def _worst(got: Tensor, want: Tensor, budget: Tensor) -> Tensor:
    """Where the worst element can be: one place or two.

    An infinity may be right, where the type has no more, and must not hide what is not: the worst
    of them is that of the smallest truth.
    """
    share = (got - want).abs_().div_(budget).nan_to_num_(nan=math.inf)
    infinite = got.isinf()
    if not infinite.any():
        return share.argmax().reshape(1)
    others = share.masked_fill_(infinite, -1.0).argmax()
    size = (want * got.sign()).add_(budget).masked_fill_(~infinite, math.inf)
    return torch.stack((others, size.argmin()))


def _budget(problem: DeviceProblem, known: Truth, role: str, dtype: str) -> Tensor:
    """The budget for a result that came in another type than ours."""
    budget = known.budgets[role]
    ours, theirs = FLOATS[problem.result_dtypes[role]], FLOATS[dtype]
    if theirs.unit_roundoff <= ours.unit_roundoff:
        return budget
    return budget + theirs.unit_roundoff * (known.values[role].abs() + budget) + theirs.smallest


def wrong(
    problem: DeviceProblem, known: Truth, results: Results, allowance: float
) -> tuple[str | None, float]:
    """Why results are not right, or None; and the worst share of the budget."""
    for role, want in known.values.items():
        misfit = _misfit(role, results.get(role), want)
        if misfit is not None:
            return misfit, math.inf
    worst_share = 0.0
    reason = None
    for found in judge(problem, known, results):
        worst_share = max(worst_share, found.share)
        if found.share <= allowance:
            continue
        if allowance > 1 and found.role not in DATA:
            want = known.values[found.role]
            error = results[found.role].reshape(want.shape).to(torch.float64) - want
            if float(error.norm()) <= PEER_RELATIVE * float(want.norm()):
                continue
        if reason is None:
            reason = (
                f"{found.role}{list(found.index)} is {found.got:.6g}, should be "
                f"{found.want:.6g}: {share_text(found.share)} times the error bound"
            )
    return reason, worst_share


def _misfit(role: str, got: Any, want: Tensor) -> str | None:
    """Why a result cannot be compared with the truth, or None; any shape of that size will do."""
    if got is None:
        return f"{role} is missing"
    if not isinstance(got, Tensor) or got.layout is not torch.strided:
        return f"{role} is no dense tensor of torch's: {type(got).__name__}"
    dtype = str(got.dtype).removeprefix("torch.")
    if dtype not in FLOATS or got.device != want.device or got.numel() != want.numel():
        found = f"{got.numel()} elements of {dtype} on {got.device}"
        return f"{role} has {found}, should have {want.numel()} of a float type on {want.device}"
    return None


__all__ = ["Truth", "judge", "truth", "wrong"]
