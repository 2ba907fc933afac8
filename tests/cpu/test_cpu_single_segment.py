"""Slabs of one short segment, eight at a time: instance norm, and batch norm of one sample."""

import itertools

import numpy as np
import pytest

from normgrad import functional, verify
from normgrad.backends.cpu.plan import tuned
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

pytest.importorskip("numba")
MASKS = [mask for mask in itertools.product((False, True), repeat=3) if any(mask)]
BIAS = (False, False, True)  # its sums need no x: slabs as others


def instances(*shape, **options):
    return verify.Case(
        id="lone", op=Op.GROUP_NORM_BACKWARD, shape=shape, num_groups=shape[1], **options
    )


def phase_of(case, dtype):
    return make_plan(spec_of(case, dtype), "cpu").config.phases[0].split()[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("weight", [True, False], ids=["weight", "no-weight"])
@pytest.mark.parametrize(
    "shape",
    [(40, 3, 7, 7), (16, 64, 8, 8), (5, 13, 11, 11), (2, 70, 4, 9)],
    ids=["three-of-eight", "whole-eights", "ragged", "tasks-across-samples"],
)
def test_instances(shape, weight, dtype):
    for mask in MASKS:
        case = instances(*shape, mask=mask, weight=weight)
        problem = verify.make_problem(case, dtype, 0)
        for measured in verify.judge(problem, verify.run_backend(problem, "cpu")):
            assert measured.ok, (mask, measured)
        assert phase_of(case, dtype) == ("slabs" if mask == BIAS else "single_segment_slabs")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 50, 7, 7), (1, 2048, 4, 4), (1, 3, 1)], ids=str)
def test_one_sample(shape, dtype):
    cases = [
        verify.Case(id="lone", op=Op.BATCH_NORM_BACKWARD, shape=shape, mask=mask) for mask in MASKS
    ]
    cases.append(verify.Case(id="lone", op=Op.BATCH_NORM_REDUCE_BACKWARD, shape=shape))
    cases.append(
        verify.Case(id="inference", op=Op.BATCH_NORM_BACKWARD, shape=shape, training=False)
    )
    for case in cases:
        problem = verify.make_problem(case, dtype, 0)
        for measured in verify.judge(problem, verify.run_backend(problem, "cpu")):
            assert measured.ok, (case, measured)


@pytest.mark.parametrize("pixels", [33, 64, 256])
def test_large_batches_have_the_same_bits(pixels, monkeypatch, forget_plans):
    """They are taken a slab at a time."""
    monkeypatch.setattr(tuned, "STREAM_BYTES", 100_000)
    forget_plans()
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((40, 10, pixels), np.float32) for _ in range(2))
    mean, rstd = (rng.random((40, 10), np.float32) for _ in range(2))
    gamma = rng.random(10, np.float32)
    assert phase_of(instances(40, 10, pixels), "float32") == "slabs"
    assert phase_of(instances(3, 10, pixels), "float32") == "single_segment_slabs"

    def gradient(some):
        return functional.group_norm_backward(
            dy[some], x[some], mean[some], rstd[some], 10, weight=gamma, backend="cpu"
        ).grad_input

    whole = gradient(slice(0, 40))
    for some in (slice(0, 1), slice(7, 10), slice(37, 40)):
        np.testing.assert_array_equal(gradient(some), whole[some])


def test_in_bounds_without_the_compiler(stay_in_bounds):
    """Two tasks and more, that end within a sample and within eight slabs."""
    shapes = ((3, 11, 6, 6), (2, 3, 33), (1, 9, 5, 7))
    cases = [("group_norm_backward", {"shape": shape, "num_groups": shape[1]}) for shape in shapes]
    cases += [("batch_norm_backward", {"shape": shape}) for shape in ((1, 13, 3, 3), (1, 20, 17))]
    stay_in_bounds({"SOME_TASKS": 2}, "single_segment_slabs", cases)
