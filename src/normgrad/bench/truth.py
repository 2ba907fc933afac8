"""The float64 truth at full size, in slices that fit, and who is right by it.

Every element of every result is checked, on the device where it lies.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from normgrad.bench.problems import DeviceProblem
from normgrad.dtypes import FLOATS
from normgrad.geometry import Geometry
from normgrad.spec import Spec
from normgrad.torch_arrays import TorchKind
from normgrad.verify.budget import expected_of
from normgrad.verify.measure import Measurement, measure

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
        shape = geometry.shape_of(role)
        values[role] = torch.empty(shape, dtype=torch.float64, device=device)
        budgets[role] = torch.empty_like(values[role])
    for axis, part, wanted in _slices(spec, geometry, _SLICE[device.partition(":")[0]]):
        index = tuple(part if place == axis else slice(None) for place in range(4))
        operands = {
            role: array.to(torch.float64)
            if role == "counter" or array.shape[axis] == 1
            else array[index].to(torch.float64)
            for role, array in canonical.items()
        }
        names = ("outer", "groups", "channels", "inner")
        size = part.stop - part.start
        piece = dataclasses.replace(geometry, **{names[axis]: size})
        found = expected_of(_only(spec, wanted), piece, operands)
        for role in wanted:
            # A broadcast axis of a result has one slice that is all of it.
            place = index if values[role].shape[axis] != 1 else ...
            values[role][place] = found.values[role]
            budgets[role][place] = found.budgets[role]
    return Truth(values, budgets)


def _slices(
    spec: Spec, geometry: Geometry, limit: int
) -> Iterator[tuple[int, slice, tuple[str, ...]]]:
    """Axis, range and the results that such a slice has complete."""
    if geometry.statistic == "channel":
        plans = [(2, spec.wanted)]
    elif geometry.groups > 1:
        plans = [(1, spec.wanted)]
    else:  # layer norm: rows have their dx, columns their parameter gradients
        plans = [
            (0, tuple(role for role in spec.wanted if role == "dx")),
            (2, tuple(role for role in spec.wanted if role != "dx")),
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
        got = results.get(role)
        if got is None:
            measured.append(Measurement(role, float("inf"), 0.0, (), float("nan"), float("nan")))
            continue
        dtype = TorchKind().view(got, role).tensor.dtype
        shape = want.shape
        wide = got.detach().reshape(shape).to(torch.float64)
        budget = _budget(problem, known, role, dtype)
        share = (wide - want).abs_().div_(budget).nan_to_num_(nan=float("inf"))
        worst = int(share.argmax())
        one = [float(array.reshape(-1)[worst]) for array in (wide, want, budget)]
        found = measure(role, one[0], one[1], one[2], dtype)
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape))
        measured.append(dataclasses.replace(found, index=index))
    return measured


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
    worst_share = 0.0
    reason = None
    for found in judge(problem, known, results):
        worst_share = max(worst_share, found.share)
        if found.share <= allowance:
            continue
        if allowance > 1 and found.role != "dx" and found.role in results:
            want = known.values[found.role]
            error = results[found.role].reshape(want.shape).to(torch.float64) - want
            if float(error.norm()) <= PEER_RELATIVE * float(want.norm()):
                continue
        if reason is None:
            reason = (
                f"{found.role}{list(found.index)} is {found.got:.6g}, should be "
                f"{found.want:.6g}: {found.share:.3g} times the budget"
            )
    return reason, worst_share


__all__ = ["Truth", "judge", "truth", "wrong"]
