"""Somebody else's implementation under the same judge: right, deterministic, operands untouched."""

import importlib
import inspect
import math
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np

import normgrad
from normgrad.arrays import host_memory
from normgrad.core.errors import OptionError
from normgrad.core.operators import DATA, OPERATORS
from normgrad.core.spec import Op
from normgrad.core.validate import result_shape
from normgrad.forward import Normalized, Statistics
from normgrad.functional import Gradients
from normgrad.verify.budget import expected
from normgrad.verify.cases import Case
from normgrad.verify.measure import Measurement
from normgrad.verify.problem import Problem, make_problem
from normgrad.verify.run import (
    Results,
    from_array,
    invocation,
    judge,
    operand_arrays,
    read_updates,
)

_HERE: Final = str(Path(__file__).parents[1]) + os.sep
Verdict = Literal["PASS", "FAIL", "NONE"]
# Options whose absence from a signature only matters when a case needs another value.
_DEFAULTS = {
    "weight": None,
    "bias": None,
    "running_mean": None,
    "running_var": None,
    "training": True,
    "channel_axis": 1,
}
_MEMBERS = {"y": "output", "mean": "mean", "rstd": "rstd"}


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
    torch_share: float | None = None  # of torch's own operator in the same case, where asked for

    def judged(self, measured: Sequence[Measurement], allowance: float = 1.0) -> "Outcome":
        """The same case with its results measured: the worst element decides.

        ``allowance`` is how many times the bound is still right.
        """
        worst = max(measured, key=lambda one: one.share, default=None)
        if worst is None:
            return replace(self, verdict="PASS", detail="nothing to compute")
        return replace(
            self,
            verdict="PASS" if worst.share <= allowance else "FAIL",
            share=worst.share,
            ulps=worst.ulps,
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
    other = OPERATORS[case.op].statistics and case.statistic == "variance"
    return "modes" if other or not case.training else "shapes"


def blank_outcome(case: Case, dtype: str, who: str) -> Outcome:
    """A case that has not run: a failure until it has."""
    return Outcome(case.op, case.id, kind_of_case(case), dtype, who, "FAIL")


def examine(
    implementation: Implementation,
    case: Case,
    dtype: str,
    seed: int = 0,
    repeats: int = 3,
    allowance: float = 1.0,
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
            return replace(blank, verdict="NONE", detail=str(answer))
        except Exception as error:  # whatever it raises is its result
            text = (str(error).strip().splitlines() or [""])[0][:300]
            detail = f"{type(error).__name__}: {text}{_place(error)}"
            return replace(blank, share=math.inf, detail=detail)
        changed = [
            role
            for role, host in problem.given.items()
            if host.array.tobytes() != before[role].tobytes()
        ]
        if changed:
            return replace(blank, share=math.inf, detail=f"it changed its operand {changed[0]}")
        found = blank.judged(judge(problem, results, truth), allowance)
        if turn == 0 or found.share > worst.share:
            worst = found
        first = first or results
        same = same and all(results[role].tobytes() == first[role].tobytes() for role in first)
    if not same and worst.verdict == "PASS":
        detail = f"different bits in {repeats} runs on the same operands; {worst.detail}"
        worst = replace(worst, verdict="FAIL", detail=detail)
    return replace(worst, deterministic=same if repeats > 1 else None)


def _place(error: Exception) -> str:
    """File and line of somebody else's code that raised, or nothing where it was ours."""
    places = traceback.extract_tb(error.__traceback__)
    theirs = [one for one in places if not one.filename.startswith((_HERE, "<"))]
    return f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""


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
            raise NotOffered(f"no function {case.op}")
        operands = operand_arrays(problem, self.device)
        _, arguments, options = invocation(case, operands)
        options = _accepted(function, options)
        _check_signature(function, case.op, arguments, options)
        returned = function(*arguments, **options)
        listed = returned if isinstance(returned, (tuple, list)) else (returned,)
        roles = case.results
        if isinstance(listed, Gradients):
            listed = listed[: len(roles)]
        elif isinstance(listed, Normalized):
            listed = members(listed, roles)
        elif isinstance(listed, Statistics):
            listed = listed[: len(roles)]
        elif OPERATORS[case.op].forward and len(listed) == 1:  # an output without its statistics
            roles = roles[:1]
        if len(listed) != len(roles):
            msg = f"it returned {len(listed)} results, {case.op} has {len(roles)}"
            raise TypeError(msg)
        updated = read_updates(problem, operands, self.device)
        for role, array in operands.items():
            if role in updated:
                continue
            host = problem.given[role]
            if from_array(array, self.device).tobytes() != host.array.tobytes():
                msg = f"it changed its operand {role}"
                raise ValueError(msg)
        named = dict(zip(roles, listed, strict=True))
        for role, array in named.items():
            if OPERATORS[case.op].forward:  # statistics are not asked for by a mask
                break
            if role not in problem.wanted and array is not None:
                msg = f"it returned {role}, which output_mask leaves out: it should be None"
                raise TypeError(msg)
        wanted = [role for role in roles if role in problem.wanted]
        return {role: self._values(problem, role, named[role]) for role in wanted} | updated

    def _values(self, problem: Problem, role: str, array: Any) -> Any:
        if array is None:
            msg = f"it returned None for {role}, which is wanted"
            raise TypeError(msg)
        given = array if self.device else np.asarray(array)
        found = from_array(given, self.device)
        dtype = str(given.dtype).removeprefix("torch.")
        shape = problem.case.shape if role in DATA else result_shape(problem.spec, role)
        if tuple(found.shape) != shape:
            msg = f"{role} has shape {tuple(found.shape)}, should be {shape}"
            raise TypeError(msg)
        # Part of the contract, as the shape is: numbers that were never rounded pass too easily.
        if dtype != problem.result_dtypes[role]:
            msg = f"{role} is of type {dtype}, should be {problem.result_dtypes[role]}"
            raise TypeError(msg)
        return host_memory.widen(found, dtype)


def members(normalized: Normalized[Any], roles: Sequence[str]) -> list[Any]:
    """The results of these roles."""
    return [getattr(normalized, _MEMBERS[role]) for role in roles]


def _check_signature(
    function: Callable[..., Any], op: Op, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """A call that cannot fit fails every case in the same words, which name the order."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # compiled ones often have none to read
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        ours = inspect.signature(getattr(normgrad, op)).parameters.values()
        named = [one.name for one in ours if one.kind is one.POSITIONAL_OR_KEYWORD]
        order = ", ".join(named[: len(arguments)])
        msg = (
            f"{error}: it is called as {op}({order}, *, weight, ...), its signature is {signature}"
        )
        raise TypeError(msg) from None


def _accepted(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
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
        elif name not in _DEFAULTS or value is not _DEFAULTS[name]:
            raise NotOffered(f"it has no option {name}")
    return {name: value for name, value in options.items() if name in parameters}


def _instead_of_a_file(target: str) -> str:
    """What was typed in the place of a module, and what to type."""
    name, colon, function = target.partition(":")
    file = Path(name)
    if not file.is_file():
        return f"{name}: there is no such file"
    where = "" if file.parent == Path() else f", with {file.parent} on PYTHONPATH"
    return f"a file: write {file.stem}{colon}{function}{where}"


def load(target: str, ops: Sequence[Op] | None, arrays: str) -> FunctionImplementation:
    """``MODULE`` with functions named as ours, or ``MODULE:FUNCTION`` for one operator."""
    module_name, _, function_name = target.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise OptionError("--impl", "must be MODULE[:FUNCTION]", _instead_of_a_file(target))
    if "" not in sys.path:  # this folder: `python -m` looks there, a console script does not
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever its code raises, or a script that exits
        rule = "must name a module that can be imported (from this folder or PYTHONPATH)"
        reason = f"{module_name!r}: {type(error).__name__}: {error}"
        raise OptionError("--impl", rule, reason) from error
    if not function_name:
        named = {each: getattr(module, each, None) for each in Op}
        functions = {each: found for each, found in named.items() if callable(found)}
        if not functions:
            rule = f"must be a module with functions named {Op.LAYER_NORM_BACKWARD} and so on"
            raise OptionError("--impl", rule, module_name)
        asked = {each: functions[each] for each in ops or functions if each in functions}
        if not asked:
            rule = f"must be an operator that {target} has: {', '.join(functions)}"
            raise OptionError("--op", rule, ", ".join(ops or ()))
        return FunctionImplementation(target, asked, arrays)
    function: Any = module
    for part in function_name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise OptionError("--impl", f"must name a function of {module_name}", function_name)
    known = [each for each in Op if each == function_name]
    if ops and (len(ops) == 1 or not known):
        known = list(ops)
    if len(known) != 1:
        rule = "must be given and be one: the function's name does not say which operator it is"
        raise OptionError("--op", rule, function_name)
    return FunctionImplementation(target, {known[0]: function}, arrays)
