"""The judge of forward operators: an honest float32 kernel passes, wrong ones are caught."""

import functools

import judged_forward as kernels
import pytest

from normgrad import verify
from normgrad.core.operators import OPERATORS

CASES = tuple(case for case in verify.CASES if OPERATORS[case.op].forward and not case.fused)
# How many (case, type) pairs must catch each mistake, and some that must be among them.
CAUGHT = {
    "all-zero": (1040, ["batch_norm/nchw", "layer_norm/rows", "rms_norm/rows"]),
    "no-mean": (700, ["batch_norm/nchw", "group_norm/nchw", "layer_norm/rows"]),
    "squares-minus-square": (
        460,
        ["batch_norm/mean-10000-deviations", "layer_norm/mean-10000-deviations-long"],
    ),
    "unbiased": (750, ["batch_norm/nchw", "layer_norm/rows", "batch_norm_stats/nchw"]),
    "late-subtraction": (120, ["batch_norm/mean-10000-deviations", "group_norm/far-from-zero"]),
    "no-bias": (600, ["batch_norm/bias-alone", "layer_norm/rows"]),
    "no-weight": (690, ["batch_norm/weight-alone", "rms_norm/rows"]),
    "no-eps": (300, [f"{op}/large-eps" for op in ("batch_norm", "layer_norm", "rms_norm")]),
    "no-offset": (8, ["rms_norm/weight-offset", "rms_norm/weight-offset-alone"]),
    "stale-statistic": (800, ["batch_norm/nchw", "layer_norm/rows"]),
    "sixteen-bit-sums": (390, ["batch_norm/long-batch", "layer_norm/ragged"]),
    "dropped-tail": (480, ["batch_norm/nchw", "group_norm/nchw"]),
    "biased-running": (30, ["batch_norm/running-statistics", "batch_norm/running-momentum-1"]),
    "swapped-momentum": (36, ["batch_norm/running-statistics", "batch_norm/running-long"]),
    "running-untouched": (32, ["batch_norm/running-with-gaps"]),
    "equal-ranks": (36, ["batch_norm_gather_stats/ranks"]),
    "means-alike": (36, ["batch_norm_gather_stats/ranks"]),
    "constant-off": (40, ["batch_norm/constant-long", "layer_norm/constant-long"]),
}


@functools.cache
def known(case, dtype):
    problem = verify.make_problem(case, dtype)
    return problem, verify.expected(problem)


@pytest.mark.parametrize("seed", [0, 1])
def test_an_honest_kernel_passes_every_case(seed):
    for case in CASES:
        for dtype in verify.DTYPES:
            problem = verify.make_problem(case, dtype, seed)
            for measured in verify.judge(problem, kernels.run(problem)):
                assert measured.ok, (case.name, dtype, measured)


@pytest.mark.parametrize("wrong", CAUGHT)
def test_a_wrong_kernel_is_caught(wrong):
    least, named = CAUGHT[wrong]
    found = []
    for case in CASES:
        for dtype in verify.DTYPES:
            problem, truth = known(case, dtype)
            measured = verify.judge(problem, kernels.run(problem, wrong), truth)
            if not all(one.ok for one in measured):
                found.append(f"{case.name} {dtype}")
    print(f"{wrong}: caught by {len(found)} of {len(CASES) * len(verify.DTYPES)}")
    assert len(found) >= least
    assert set(named) <= {name.partition(" ")[0] for name in found}
