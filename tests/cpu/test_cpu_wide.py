"""Float32 data in float64 arithmetic: sums of very many terms, and mixed with float64 operands."""

from dataclasses import replace

import numpy as np
import pytest

from normgrad import verify
from normgrad.backends.cpu.plan import tuned
from normgrad.core.operators import OPERATORS, Op
from normgrad.core.plan import make_plan

pytest.importorskip("numba")

# Forward passes join their parts in float64 however many there are: see test_cpu_forward.py.
CASES = [
    case
    for case in verify.CASES
    if case.op is not Op.BATCH_NORM_ELEMT_BACKWARD and not OPERATORS[case.op].forward
]
# Of these all but odd ones in part go past the cache, in lines that segments share, or in halves.
STREAMED = [
    verify.Case(id="segments", op=Op.BATCH_NORM_BACKWARD, shape=(9, 5, 24, 40)),
    verify.Case(id="odd-segments", op=Op.BATCH_NORM_BACKWARD, shape=(9, 5, 521)),
    verify.Case(id="strips", op=Op.BATCH_NORM_BACKWARD, shape=(40, 48, 7, 7)),
    verify.Case(
        id="columns", op=Op.BATCH_NORM_BACKWARD, shape=(6, 48, 9, 11), layout="channels-last"
    ),
    verify.Case(id="units", op=Op.BATCH_NORM_BACKWARD, shape=(2, 3, 70000)),
    verify.Case(id="rows", op=Op.LAYER_NORM_BACKWARD, shape=(37, 208)),
    verify.Case(id="odd-rows", op=Op.LAYER_NORM_BACKWARD, shape=(37, 8 * 27)),
    verify.Case(id="dense", op=Op.GROUP_NORM_BACKWARD, shape=(3, 40, 196), num_groups=8),
    verify.Case(id="odd-dense", op=Op.GROUP_NORM_BACKWARD, shape=(3, 40, 67), num_groups=8),
    verify.Case(
        id="samples",
        op=Op.GROUP_NORM_BACKWARD,
        shape=(9, 48, 5, 7),
        num_groups=4,
        layout="channels-last",
    ),
]


@pytest.fixture
def wide(monkeypatch, forget_plans):
    """Whatever the number of terms."""
    monkeypatch.setattr(tuned, "MANY_TERMS", 0)
    monkeypatch.setattr(tuned, "MANY_PIXELS", 0)
    forget_plans()


def results(problem):
    """Of the CPU backend, in float64 arithmetic on float32 data that nobody copied."""
    config = make_plan(problem.spec, "cpu").config
    assert config.compute == "float64"
    assert config.dtype == "float32" or config.copied
    got = verify.run_backend(problem, "cpu")
    for measured in verify.judge(problem, got):
        assert measured.ok, measured
    return got


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_case(case, wide):
    problem = verify.make_problem(case, "float32")
    spec = problem.spec
    # Nothing to add up; or gradients that may not depend on how many there are.
    if set(spec.wanted) <= {"dx"} or (spec.dx is not None and not spec.training):
        compute = make_plan(spec, "cpu").config.compute
        assert compute == ("float64" if case.statistics_dtype == "float64" else "float32")
    else:
        results(problem)


@pytest.mark.parametrize("limit", [0, 1 << 40], ids=["streamed", "near"])
@pytest.mark.parametrize("case", STREAMED, ids=lambda case: case.name)
def test_results_are_float64_rounded_once(case, limit, wide, monkeypatch):
    monkeypatch.setattr(tuned, "STREAM_BYTES", limit)
    problem = verify.make_problem(case, "float32")
    want = verify.expected(problem).values
    if make_plan(problem.spec, "cpu").config.order == "rows":
        del want["dx"]  # which stays what it is: see test_cpu_batch.py
    for role, values in results(problem).items():
        if role not in want:
            continue
        nearest = want[role].astype(np.float32).reshape(values.shape)
        unit = np.spacing(np.abs(nearest).max())  # what cancels has fewer digits in float64 too
        assert (values != nearest).mean() < 1e-3, role
        assert (np.abs(values - nearest) <= unit).all(), role


def test_float64_statistics_leave_float32_data_where_they_are():
    case = verify.Case(
        id="mixed", op=Op.BATCH_NORM_BACKWARD, shape=(5, 6, 7, 8), statistics_dtype="float64"
    )
    problem = verify.make_problem(case, "float32")
    assert make_plan(problem.spec, "cpu").config.copied == ()
    results(problem)


def test_sixteen_bits_are_not_copied_for_it(wide):
    for dtype in ("float16", "bfloat16"):
        problem = verify.make_problem(STREAMED[0], dtype)
        config = make_plan(problem.spec, "cpu").config
        assert (config.compute, config.copied) == ("float32", ())


def test_in_bounds_without_the_compiler(stay_in_bounds):
    changed = {"MANY_TERMS": 0, "STREAM_BYTES": 0}
    for phase, op, shape in (
        ("slabs", "batch_norm_backward", (3, 2, 5, 13)),
        ("side_by_side_planes", "batch_norm_backward", (9, 48, 7, 7)),
        ("slabs", "group_norm_backward", (2, 4, 67)),
        ("rows", "layer_norm_backward", (6, 40)),
    ):
        stay_in_bounds(changed, phase, [(op, {"shape": shape})], first=False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_mixed_data_of_very_many_terms(dtype, wide):
    """What is 16 bits wide is copied to float32; x that nobody reads has no say."""
    case = verify.Case(id="mixed", op=Op.BATCH_NORM_BACKWARD, shape=(5, 6, 7, 8))
    problem = verify.make_problem(case, "float32")
    narrow = problem.spec.x._replace(dtype=dtype)
    config = make_plan(replace(problem.spec, x=narrow), "cpu").config
    assert (config.compute, config.dtype, config.copied) == ("float64", "float32", ("x",))
    spec = replace(problem.spec, x=narrow, dx=None, dgamma=None)
    config = make_plan(spec, "cpu").config
    assert (config.compute, config.copied) == ("float64", ())
