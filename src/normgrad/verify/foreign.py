"""Somebody else's implementation under the same judge: right, deterministic, operands untouched."""

import importlib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from normgrad import hostmem
from normgrad.errors import OptionError
from normgrad.spec import RESULTS, Op
from normgrad.validate import result_shape
from normgrad.verify.budget import expected
from normgrad.verify.cases import Case
from normgrad.verify.measure import Measurement
from normgrad.verify.problem import Problem, make_problem
from normgrad.verify.run import Results, from_array, invocation, judge, to_array

Verdict = Literal["PASS", "FAIL", "NONE"]
# Options whose absence from a signature only matters when a case needs another value.
_DEFAULTS = {
    "training": True,
    "save_invstd_is": "invstd",
    "channel_axis": 1,
}


class NotOffered(Exception):  # noqa: N818 - it is an answer, not a fault
    """The implementation has no such operator, type, layout or mask; the text says which."""


class Implementation(Protocol):
    """Something that computes a problem."""

    name: str

    def run(self, problem: Problem) -> Results:
        """Float64 results by role; raises ``NotOffered`` where it has none."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """One case of one implementation. ``share`` is the worst error over its budget."""

    op: str
    case: str
    kind: str
    dtype: str
    who: str
    verdict: Verdict
    share: float = 0.0
    ulps: float = 0.0
    deterministic: bool | None = None  # None: nothing ran twice
    detail: str = ""

    def judged(self, measured: Sequence[Measurement]) -> "Outcome":
        """The same case with its results measured: the worst element decides."""
        worst = max(measured, key=lambda one: one.share, default=None)
        if worst is None:
            return replace(self, verdict="PASS", detail="nothing to compute")
        return replace(
            self,
            verdict="PASS" if worst.ok else "FAIL",
            share=worst.share,
            ulps=max(one.ulps for one in measured),
            detail=str(worst),
        )

    def as_json(self) -> dict[str, object]:
        """Every field; JSON has no infinity, so that becomes null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def kind_of_case(case: Case) -> str:
    """What a case is about, in one word."""
    if case.mask:
        return "masks"
    if 0 in case.shape:
        return "empty"
    if case.poison is not None:
        return "inf and nan"
    if case.layout != "contiguous" or case.vectors != "contiguous" or case.channel_axis != 1:
        return "strides"
    of_another_type = case.statistics_dtype or case.sums_dtype
    if of_another_type or case.both_statistics or not (case.own_statistics and case.weight):
        return "statistics"
    return "modes" if not case.training or case.statistic == "variance" else "shapes"


def blank_outcome(case: Case, dtype: str, who: str) -> Outcome:
    """A case that has not run: a failure until it has."""
    return Outcome(case.op, case.id, kind_of_case(case), dtype, who, "FAIL")


def examine(
    implementation: Implementation, case: Case, dtype: str, seed: int = 0, repeats: int = 3
) -> Outcome:
    """Run a case some times: every run must be right, and all must give the same bits."""
    problem = make_problem(case, dtype, seed)
    blank = blank_outcome(case, dtype, implementation.name)
    before = {role: host.array.copy() for role, host in problem.given.items()}
    truth = expected(problem)
    first: Results = {}
    worst, same = blank, True
    for turn in range(repeats):
        try:
            results = implementation.run(problem)
        except NotOffered as answer:
            return replace(blank, verdict="NONE", detail=f"not offered: {answer}")
        except Exception as error:  # whatever it raises is its result
            text = (str(error).strip().splitlines() or [""])[0][:300]
            return replace(blank, share=math.inf, detail=f"{type(error).__name__}: {text}")
        changed = [
            role
            for role, host in problem.given.items()
            if host.array.tobytes() != before[role].tobytes()
        ]
        if changed:
            return replace(blank, share=math.inf, detail=f"it changed its operand {changed[0]}")
        found = blank.judged(judge(problem, results, truth))
        if turn == 0 or found.share > worst.share:
            worst = found
        first = first or results
        same = same and all(
            results[role].tobytes() == first[role].tobytes() for role in problem.wanted
        )
    if not same and worst.verdict == "PASS":
        detail = f"other bits in {repeats} runs on the same operands; {worst.detail}"
        worst = replace(worst, verdict="FAIL", detail=detail)
    return replace(worst, deterministic=same if repeats > 1 else None)


class FunctionImplementation:
    """Python functions with the signatures of the functional API, on arrays of one library."""

    def __init__(self, name: str, functions: dict[Op, Callable[..., Any]], arrays: str) -> None:
        self.name, self.functions = name, functions
        library, _, device = arrays.partition(":")
        self.device = (device or "cpu") if library == "torch" else None

    def run(self, problem: Problem) -> Results:
        """Hand over fresh arrays, read what comes back."""
        case = problem.case
        function = self.functions.get(case.op)
        if function is None:
            raise NotOffered(f"no function {case.op}_backward")
        operands = {role: to_array(host, self.device) for role, host in problem.given.items()}
        _, arguments, options = invocation(case, operands)
        returned = function(*arguments, **_accepted(function, options, case))
        listed = returned if isinstance(returned, (tuple, list)) else (returned,)
        roles = RESULTS[case.op]
        if len(listed) != len(roles):
            msg = f"it returned {len(listed)} results, {case.op} has {len(roles)}"
            raise TypeError(msg)
        for role, array in operands.items():
            host = problem.given[role]
            if from_array(array, self.device).tobytes() != host.array.tobytes():
                msg = f"it changed its operand {role}"
                raise ValueError(msg)
        named = dict(zip(roles, listed, strict=True))
        for role, array in named.items():
            if role not in problem.wanted and array is not None:
                msg = f"it returned {role}, which output_mask leaves out: it should be None"
                raise TypeError(msg)
        return {role: self._values(problem, role, named[role]) for role in problem.wanted}

    def _values(self, problem: Problem, role: str, array: Any) -> Any:
        if array is None:
            msg = f"it returned None for {role}, which is wanted"
            raise TypeError(msg)
        given = array if self.device else np.asarray(array)
        found = from_array(given, self.device)
        dtype = str(given.dtype).removeprefix("torch.")
        shape = problem.case.shape if role == "dx" else result_shape(problem.spec, role)
        if tuple(found.shape) != shape:
            msg = f"{role} has shape {tuple(found.shape)}, should be {shape}"
            raise TypeError(msg)
        # Part of the contract, as the shape is: numbers that were never rounded pass too easily.
        if dtype != problem.result_dtypes[role]:
            msg = f"{role} is of type {dtype}, should be {problem.result_dtypes[role]}"
            raise TypeError(msg)
        return hostmem.widen(found, dtype)


def _accepted(function: Callable[..., Any], options: dict[str, Any], case: Case) -> dict[str, Any]:
    """The options that the function has; one that it lacks must be at its default."""
    try:
        parameters = inspect.signature(function).parameters
    except (ValueError, TypeError):  # compiled ones often have none to read
        return options
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return options
    for name, value in options.items():
        if name in parameters:
            continue
        if name == "output_mask":
            if not all(value):
                raise NotOffered("it has no option output_mask")
        elif name == "eps":
            if not case.training or case.statistic == "variance":
                raise NotOffered("it has no option eps")
        elif name not in _DEFAULTS or value != _DEFAULTS[name]:
            raise NotOffered(f"it has no option {name}")
    return {name: value for name, value in options.items() if name in parameters}


def load(target: str, op: str | None, arrays: str) -> FunctionImplementation:
    """``MODULE`` with functions named as ours, or ``MODULE:FUNCTION`` for one operator."""
    module_name, _, function_name = target.partition(":")
    if "" not in sys.path:  # this folder: `python -m` looks there, a console script does not
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever its code raises, or a script that exits
        rule = "must name a module that can be imported (from this folder or PYTHONPATH)"
        reason = f"{module_name!r}: {type(error).__name__}: {error}"
        raise OptionError("--impl", rule, reason) from error
    if not function_name:
        named = {each: getattr(module, f"{each}_backward", None) for each in Op}
        functions = {each: found for each, found in named.items() if callable(found)}
        if not functions:
            rule = f"must be a module with functions named {Op.LAYER_NORM}_backward and so on"
            raise OptionError("--impl", rule, module_name)
        if op is not None and op not in functions:
            listed = ", ".join(functions)
            raise OptionError("--op", f"must be an operator that {target} has: {listed}", op)
        return FunctionImplementation(target, functions, arrays)
    function: Any = module
    for part in function_name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise OptionError("--impl", f"must name a function of {module_name}", function_name)
    known = op or next((each for each in Op if f"{each}_backward" == function_name), None)
    if known is None:
        rule = "must be given: the function's name does not say which operator it is"
        raise OptionError("--op", rule, function_name)
    return FunctionImplementation(target, {Op(known): function}, arrays)
