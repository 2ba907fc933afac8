"""Is it right? Named cases, float64 truth and derived budgets, for tests, check and bench."""

from normgrad.verify.budget import Expected, expected
from normgrad.verify.cases import CASES, DTYPES, Case, select
from normgrad.verify.measure import Measurement, measure
from normgrad.verify.problem import HostArray, Problem, make_problem
from normgrad.verify.run import call, judge, run_backend

__all__ = [
    "CASES",
    "DTYPES",
    "Case",
    "Expected",
    "HostArray",
    "Measurement",
    "Problem",
    "call",
    "expected",
    "judge",
    "make_problem",
    "measure",
    "run_backend",
    "select",
]
