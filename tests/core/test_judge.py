"""The judge: an honest float32 kernel passes everywhere, a wrong one is caught, and by whom."""

import functools

import judged_kernels as kernels
import numpy as np
import pytest

from normgrad import verify
from normgrad.core.operators import OPERATORS, Op

BACKWARD = tuple(op for op in Op if not OPERATORS[op].forward)
CASES = tuple(case for case in verify.CASES if case.op in BACKWARD and not case.fused)
LARGE_EPS = tuple(case.name for case in CASES if case.eps > 1e-5)
# How many (case, type) pairs must catch each mistake, and some that must be among them.
CAUGHT = {
    "all-zero": (
        780,
        ["batch_norm_backward/nchw", "layer_norm_backward/rows", "group_norm_backward/nchw"],
    ),
    "no-mean-term": (
        480,
        [
            "batch_norm_backward/nchw",
            "layer_norm_backward/ragged",
            "batch_norm_elemt_backward/nchw",
        ],
    ),
    "no-slope-term": (470, ["batch_norm_backward/nchw", "group_norm_backward/group-of-10"]),
    "swapped-count": (260, ["batch_norm_backward/nchw", "group_norm_backward/channels-last"]),
    "stale-statistic": (
        680,
        ["batch_norm_backward/nchw", "layer_norm_backward/rows", "batch_norm_reduce_backward/nchw"],
    ),
    "own-mean": (
        430,
        ["batch_norm_backward/foreign-statistics", "layer_norm_backward/foreign-statistics"],
    ),
    "weight-outside": (200, ["group_norm_backward/nchw", "layer_norm_backward/rows"]),
    "no-weight": (
        500,
        ["batch_norm_backward/nchw", "batch_norm_backward/inference", "layer_norm_backward/rows"],
    ),
    "unused-first-rank": (
        115,
        ["batch_norm_elemt_backward/nchw", "batch_norm_elemt_backward/one-rank"],
    ),
    "second-term-only": (475, ["batch_norm_elemt_backward/nchw", "batch_norm_backward/nchw"]),
    "inference-corrected": (
        40,
        ["batch_norm_backward/inference", "batch_norm_backward/inference-channels-last"],
    ),
    "no-eps": (22, ["batch_norm_backward/inference", *LARGE_EPS]),
    "usual-eps": (8, [*LARGE_EPS]),
    "dropped-tail": (
        640,
        [
            "batch_norm_backward/nchw",
            "layer_norm_backward/many-rows",
            "batch_norm_reduce_backward/sliced",
        ],
    ),
    "late-subtraction": (
        70,
        ["batch_norm_backward/far-from-zero", "group_norm_backward/far-from-zero"],
    ),
    "sixteen-bit-sums": (320, ["batch_norm_backward/long-batch", "layer_norm_backward/many-rows"]),
    "sixteen-bit-xhat": (260, ["batch_norm_backward/nchw", "layer_norm_backward/ragged"]),
    "off-by-one-element": (
        420,
        ["batch_norm_backward/nchw", "layer_norm_backward/rows", "group_norm_backward/nchw"],
    ),
    "other-statistics": (
        100,
        ["batch_norm_backward/running-statistics-too", "batch_norm_backward/saved-statistics-too"],
    ),
    "one-vector-type": (
        40,
        [
            *(
                f"{op}/float32-statistics-own-weight"
                for op in BACKWARD
                if op is not Op.BATCH_NORM_REDUCE_BACKWARD
            ),
            "batch_norm_elemt_backward/nchw",
            "batch_norm_elemt_backward/sums-and-counts-of-other-types",
        ],
    ),
    "dense-vectors": (20, [f"{op}/vectors-with-gaps" for op in BACKWARD]),
    "strides-of-x": (20, ["layer_norm_backward/mixed-rows", *(f"{op}/mixed" for op in BACKWARD)]),
    "fixed-sizes": (
        20,
        [
            "batch_norm_backward/ragged-long",
            "batch_norm_backward/many-channels",
            "group_norm_backward/ragged-long",
        ],
    ),
    "null-weight": (4, ["group_norm_backward/no-weight-channels-last"]),
}


@functools.cache
def known(case, dtype):
    """A problem and its truth: making both takes twice as long as running and judging a kernel."""
    problem = verify.make_problem(case, dtype)
    return problem, verify.expected(problem)


def failures(wrong, cases=CASES):
    found = []
    for case in cases:
        for dtype in verify.DTYPES:
            problem, truth = known(case, dtype)
            measured = verify.judge(problem, kernels.run(problem, wrong), truth)
            if not all(one.ok for one in measured):
                found.append(f"{case.name} {dtype}")
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_an_honest_kernel_passes_every_case(seed):
    """The budget can be met with plain float32 sums: it asks for nothing special."""
    for case in CASES:
        for dtype in verify.DTYPES:
            problem = verify.make_problem(case, dtype, seed)
            for measured in verify.judge(problem, kernels.run(problem)):
                assert measured.ok, (case.name, dtype, measured)


@pytest.mark.parametrize("wrong", kernels.WRONG)
def test_a_wrong_kernel_is_caught(wrong):
    least, named = CAUGHT[wrong]
    found = failures(wrong)
    print(f"{wrong}: caught by {len(found)} of {len(CASES) * len(verify.DTYPES)}")
    assert len(found) >= least
    cases = {name.partition(" ")[0] for name in found}
    assert set(named) <= cases


@pytest.mark.parametrize("wrong", ["no-eps", "usual-eps"])
def test_an_ignored_eps_is_caught_in_every_type(wrong):
    """Most libraries have no float64, where even the usual eps would show."""
    cases = [case for case in CASES if case.name in LARGE_EPS]
    assert failures(wrong, cases) == [
        f"{name} {dtype}" for name in LARGE_EPS for dtype in verify.DTYPES
    ]


def test_an_all_zero_gradient_fails_wherever_the_truth_is_not_zero():
    """No budget grows so large with the size of a sum that nothing at all would pass."""
    for case in CASES:
        for dtype in verify.DTYPES:
            problem, truth = known(case, dtype)
            for one in verify.judge(problem, kernels.run(problem, "all-zero"), truth):
                want = truth.values[one.role]
                exact = "one-element" in case.id and one.role == "dx" and case.training
                if want.size and np.abs(want).max() > 0 and not exact:
                    assert not one.ok, (case.name, dtype, one)


def judged(got, want, budget=0.5, dtype="float32"):
    return verify.measure(
        "dx", np.array(got), np.array(want), np.full(np.shape(want), budget), dtype
    )


def test_the_worst_element_is_reported():
    found = judged([[1.0, 2.0], [3.0, 9.0]], [[1.0, 2.1], [3.0, 5.0]])
    assert (found.index, found.got, found.want, found.share, found.ok) == (
        (1, 1),
        9.0,
        5.0,
        8.0,
        False,
    )
    assert judged([1.4], [1.0]).ok
    assert judged([np.nan], [1.0]).share == np.inf


@pytest.mark.parametrize(
    ("name", "role", "index"),
    [
        ("batch_norm_backward/nchw", "dx", (2, 5, 1, 6)),
        ("batch_norm_backward/nchw", "dgamma", (4,)),
        ("batch_norm_backward/nhwc-axis", "dx", (3, 4, 6, 5)),
        ("batch_norm_reduce_backward/nchw", "sum_dy_xmu", (3,)),
        ("layer_norm_backward/two-normalized", "dbeta", (2, 4)),
        ("group_norm_backward/nhwc-axis", "dx", (3, 4, 6, 1)),
        ("group_norm_backward/channels-last", "dx", (1, 17, 3, 2)),
    ],
)
def test_the_element_is_named_by_its_place_in_the_result(name, role, index):
    (case,) = verify.select(*name.split("/"))
    problem = verify.make_problem(case, "float32")
    results = verify.run_backend(problem, "reference")
    results[role][index] += 100.0
    (found,) = (one for one in verify.judge(problem, results) if one.role == role)
    assert (found.index, found.got) == (index, results[role][index])
    assert found.want == pytest.approx(found.got - 100.0, abs=1e-3)


def test_units_in_the_last_place():
    step = 2.0**-23
    assert judged([1 + 3 * step], [1.0]).ulps == 3.0
    assert judged([1 + 3 * 2.0**-7], [1.0], dtype="bfloat16").ulps == 3.0


@pytest.mark.parametrize(
    ("got", "want", "ok"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.nan, True),  # which of the two depends on the order of operations
        (np.nan, np.inf, True),
        (np.inf, np.inf, True),
        (-np.inf, np.inf, False),
        (0.0, np.nan, False),
        (0.0, np.inf, False),
        (np.nan, 0.0, False),
        (np.inf, 0.0, False),
        (np.inf, 70000.0, True),  # beyond float16
        (-np.inf, 70000.0, False),
        (np.nan, 70000.0, False),
        (65504.0, 70000.0, False),
        (np.inf, 65519.9, True),  # the budget reaches the edge
        (65504.0, 65519.9, True),
    ],
)
def test_numbers_that_are_not_finite(got, want, ok):
    assert judged([got], [want], budget=16.0, dtype="float16").ok == ok


def test_without_a_finite_budget_nothing_passes():
    assert not judged([1.0], [1.0], budget=np.inf).ok
    assert not judged([1.0], [1.0], budget=np.nan).ok


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["batch_norm_backward", "batch_norm_reduce_backward"])
def test_sums_of_no_terms_may_have_any_statistics(name, bad):
    """Those of an empty batch are nan, and 0 is its right answer."""
    case = verify.Case(id="empty", op=Op(name), shape=(0, 4, 3))
    problem = verify.make_problem(case, "float32")
    for role in ("mean", "rstd"):
        problem.operands[role].array[...] = bad
    for measured in verify.judge(problem, verify.run_backend(problem, "reference")):
        assert measured.ok, measured


def test_nothing_to_compare_is_right():
    assert judged(np.empty((0, 3)), np.empty((0, 3))).ok


def test_all_cases_are_selected_by_default():
    assert verify.select() == verify.select(None) == verify.CASES
