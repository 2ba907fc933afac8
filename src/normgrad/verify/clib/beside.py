"""Results that an interface has and the core's operator has not: their truth and their bounds."""

from dataclasses import dataclass, replace
from typing import Any

from normgrad.core.dtypes import FLOATS
from normgrad.core.spec import TensorSpec
from normgrad.verify.budget import expected
from normgrad.verify.problem import Problem

WEIGHT_OF_X = 0.5  # of DeepNorm's sum: half of x and half of x are x, exactly


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """One of them: where it goes, what it is, and how far from that it may be."""

    tensor: TensorSpec
    want: Any
    budget: Any


def beside(operator: str, problem: Problem) -> dict[str, Beside]:
    """By role, for an operator by its name in the interface."""
    if operator == "LayerNorm":
        return _xhat_and_deviation(problem)
    if operator == "aclnnDeepNormGrad" and "dx" in problem.wanted:
        return _gradient_of_x(problem)
    return {}


def _xhat_and_deviation(problem: Problem) -> dict[str, Beside]:
    """What is normalized is the output without parameters; 1 / rstd is off by as much as rstd."""
    plain = {role: one for role, one in problem.operands.items() if role not in ("gamma", "beta")}
    truth = expected(replace(problem, operands=plain))
    shape, info = problem.case.shape, FLOATS[problem.dtype]
    rstd, off = (each["rstd"].reshape(shape[:-1]) for each in (truth.values, truth.budgets))
    # One more division, and its own rounding in the place of rstd's, which is in the budget.
    error = (off / rstd + 2.0 * FLOATS["float32"].unit_roundoff) / rstd
    error = error + info.unit_roundoff / rstd + info.smallest
    return {
        "sum": Beside(
            TensorSpec.contiguous(shape, problem.dtype),
            truth.values["y"].reshape(shape),
            truth.budgets["y"].reshape(shape),
        ),
        "dsum": Beside(TensorSpec.contiguous(shape[:-1], problem.dtype), 1.0 / rstd, error),
    }


def _gradient_of_x(problem: Problem) -> dict[str, Beside]:
    """The sum's, halved: no rounding but where numbers are smallest."""
    truth, tensor = expected(problem), problem.spec.present("dx")
    want, budget = (each["dx"].reshape(tensor.shape) for each in (truth.values, truth.budgets))
    smallest = FLOATS[tensor.dtype].smallest
    of_x = Beside(tensor, WEIGHT_OF_X * want, WEIGHT_OF_X * budget + smallest)
    return {"dshortcut": of_x}
