"""What a C library is asked: a case with numbers, or a call whose status is known."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normgrad.arrays import host_memory
from normgrad.verify.cases import Case
from normgrad.verify.clib.beside import Beside
from normgrad.verify.clib.memory import nan_like
from normgrad.verify.foreign import Outcome, blank_outcome
from normgrad.verify.measure import measure
from normgrad.verify.problem import HostArray, Problem
from normgrad.verify.run import judge


@dataclass(frozen=True, slots=True)
class Job:
    """A case, or the ``call`` of a status check; ``variant`` names what is special about it.

    ``operator`` is the interface's name of what is called.
    """

    blank: Outcome
    case: Case | None = None
    dtype: str = "float32"
    variant: str = ""
    call: str = ""
    operator: str = ""


def numeric(case: Case, dtype: str, who: str, variant: str = "", operator: str = "") -> Job:
    """A case to be computed."""
    blank = blank_outcome(case, dtype, who)
    if variant:
        kind = blank.kind if case.mask else "strides"
        blank = replace(blank, case=f"{case.id}, {variant}", kind=kind)
    return Job(blank, case, dtype, variant, operator=operator)


def status(op: str, call: str, who: str, operator: str = "") -> Job:
    """A call that must be answered with a certain status."""
    blank = Outcome(op, call, "statuses", "-", who, "FAIL")
    return Job(blank, call=call, operator=operator)


def named(job: Job, name: str) -> Job:
    """The job of an operator that shares its mathematics with another."""
    return replace(job, blank=replace(job.blank, case=f"{name}, {job.blank.case}"))


def answered(blank: Outcome, got: int, want: int, note: str = "") -> Outcome:
    """The outcome of a status check; a note is something else that was wrong."""
    if got != want:
        return replace(blank, share=float("inf"), detail=f"returned {got}, should be {want}")
    if note:
        return replace(blank, share=float("inf"), detail=f"returned {got}, but {note}")
    return replace(blank, verdict="PASS", detail=f"returned {got}")


def arrays_of(problem: Problem) -> dict[str, HostArray]:
    """Operands and results, the latter full of NaN."""
    spec = problem.spec
    return problem.given | {role: nan_like(spec.present(role)) for role in problem.wanted}


def concluded(
    job: Job,
    problem: Problem,
    more: dict[str, Beside],
    runs: list[dict[str, Any]],
    stray: list[str],
    changed: list[str],
) -> Outcome:
    """The outcome of runs that are to be right, alike, and inside their memory."""
    same = all(
        np.array_equal(run[role].view(np.uint8), runs[0][role].view(np.uint8))
        for run in runs
        for role in (*problem.measured, *more)
    )
    results = {
        role: host_memory.widen(runs[-1][role], problem.spec.present(role).dtype)
        for role in problem.measured
    }
    seen = same if len(runs) > 1 else None
    measured = judge(problem, results)
    for role, one in more.items():
        got = host_memory.widen(runs[-1][role], one.tensor.dtype)
        measured.append(measure(role, got, one.want, one.budget, one.tensor.dtype))
    found = replace(job.blank.judged(measured), deterministic=seen)
    faults = [f"it wrote outside {role}" for role in stray]
    faults += [
        f"it changed its operand {role}"
        if role in problem.given
        else f"it wrote to {role}, which nobody asked for"
        for role in changed
    ]
    if not same:
        faults.append(f"different bits in {len(runs)} runs")
    if not faults:
        return found
    return replace(found, verdict="FAIL", detail="; ".join([*faults, found.detail]))
