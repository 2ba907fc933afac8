"""Every named case, on every backend, in every type, under the derived budget."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from normgrad import verify
from normgrad.core.errors import BackendError, DtypeError
from normgrad.core.spec import Op


def run(problem, backend):
    """The backends of the host refuse no case of an operator that they have, with a reason."""
    try:
        return verify.run_backend(problem, backend)
    except BackendError as error:
        if backend in ("reference", "cpu") and "it has no" not in str(error):
            raise
        pytest.skip(str(error))


# Of fused forms these in every type, the others in two: each type is compiled anew.
FULLY = ("relu", "silu", "residual", "each-sample", "shortcut-relu-mask")
PAIRS = [
    pytest.param(case, dtype, id=f"{case.name}-{dtype}")
    for case in verify.CASES
    for dtype in verify.DTYPES
    if not case.fused or case.id in FULLY or dtype in ("float32", "bfloat16")
]


@pytest.mark.parametrize(("case", "dtype"), PAIRS)
def test_within_budget_and_operands_unchanged(case, dtype, backend):
    problem = verify.make_problem(case, dtype)
    before = {role: host.array.tobytes() for role, host in problem.given.items()}
    results = run(problem, backend)
    for measured in verify.judge(problem, results):
        assert measured.ok, measured
    assert before == {role: host.array.tobytes() for role, host in problem.given.items()}


@pytest.mark.parametrize("case", verify.CASES, ids=lambda case: case.name)
def test_same_input_same_bits(case, backend):
    problem = verify.make_problem(case, "float32")
    first, second = (run(problem, backend) for _ in range(2))
    for role, values in first.items():
        np.testing.assert_array_equal(values, second[role])


def test_cases_have_unique_names_and_cover_every_operator():
    names = [case.name for case in verify.CASES]
    assert len(names) == len(set(names))
    assert {case.op for case in verify.CASES} == set(Op)


def test_a_layout_of_another_name_is_refused():
    """It would be the contiguous case once more, under a name that promises something else."""
    case = verify.Case(id="strided", op=Op.LAYER_NORM_BACKWARD, shape=(2, 3), layout="strided")
    with pytest.raises(ValueError, match=r"layout must be one of contiguous, .* got 'strided'"):
        verify.make_problem(case, "float32")


def test_another_seed_gives_other_numbers_and_the_same_seed_the_same():
    case = verify.select("layer_norm_backward", "rows")[0]
    first, again, other = (verify.make_problem(case, "float32", seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.operands["dy"].array, again.operands["dy"].array)
    assert (first.operands["dy"].array != other.operands["dy"].array).any()


def without(*missing):
    return lambda name: None if name in missing else find_spec(name)


@pytest.mark.parametrize("case", verify.select("batch_norm_backward"), ids=lambda case: case.name)
def test_bfloat16_is_checked_without_ml_dtypes_too(case, monkeypatch):
    """By way of torch: the machine with the GPU has no ml_dtypes."""
    monkeypatch.setattr(verify.run, "find_spec", without("ml_dtypes"))
    problem = verify.make_problem(case, "bfloat16")
    for measured in verify.judge(problem, verify.run_backend(problem, "reference")):
        assert measured.ok, measured


def test_what_bfloat16_needs_is_said(monkeypatch):
    """Without torch as well."""
    monkeypatch.setattr(verify.run, "find_spec", without("ml_dtypes", "torch"))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # an import of it raises
    problem = verify.make_problem(verify.select("batch_norm_backward")[0], "bfloat16")
    words = r"without ml_dtypes \(pip install ml_dtypes\), got bfloat16"
    with pytest.raises(DtypeError, match=words):
        verify.run_backend(problem, "reference")
    with pytest.raises(DtypeError, match=words):  # as --impl has them
        verify.run.to_array(problem.operands["x"], None)
