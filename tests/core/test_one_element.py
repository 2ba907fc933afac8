"""A statistic of one element: where that is its mean, the gradient of the input is 0, exactly.

What dy adds and what the mean of dy takes away are the same number, of any size.
"""

import numpy as np
import pytest

from normgrad import verify
from normgrad.arrays import host_memory
from normgrad.backends import get
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, Op, Spec, TensorSpec

OPERATORS = (Op.BATCH_NORM_BACKWARD, Op.LAYER_NORM_BACKWARD, Op.GROUP_NORM_BACKWARD)
# A few, and as many as kernels take side by side, with some left over.
SHAPES = {
    Op.BATCH_NORM_BACKWARD: [(1, 5), (1, 333, 1)],
    Op.LAYER_NORM_BACKWARD: [(6, 1), (1030, 1, 1)],
    Op.GROUP_NORM_BACKWARD: [(2, 5, 1), (70, 37)],
}
CASES = [
    verify.Case(id="x".join(map(str, shape)), op=op, shape=shape, num_groups=groups)
    for op in OPERATORS
    for shape in SHAPES[op]
    for groups in [shape[1] if op is Op.GROUP_NORM_BACKWARD else 1]
]
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# "backend" instead of "host_backend" has the GPU's kernels as well.
@pytest.mark.parametrize("dtype", verify.DTYPES)
@EVERY_CASE
def test_the_mean_itself_has_no_gradient(case, dtype, host_backend):
    problem = verify.make_problem(case, dtype)
    results = verify.run_backend(problem, host_backend)
    assert not results["dx"].any()
    for measured in verify.judge(problem, results):
        assert measured.ok, measured


@EVERY_CASE
def test_another_mean_has_its_gradient(case, host_backend):
    other = verify.Case(
        id=case.id, op=case.op, shape=case.shape, num_groups=case.num_groups, own_statistics=False
    )
    problem = verify.make_problem(other, "float32")
    results = verify.run_backend(problem, host_backend)
    assert results["dx"].all()
    for measured in verify.judge(problem, results):
        assert measured.ok, measured


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("role", ["dy", "x"])
@EVERY_CASE
def test_what_is_no_number_stays_none(case, role, value, host_backend):
    problem = verify.make_problem(case, "float32")
    problem.operands[role].array.flat[3] = value
    dx = verify.run_backend(problem, host_backend)["dx"].ravel()
    # An infinite x lies infinitely far from its mean: an infinite gradient.
    assert np.isinf(dx[3]) if (role, value) == ("x", np.inf) else np.isnan(dx[3])
    assert not np.delete(dx, 3).any()


def test_inference_has_the_gradient_of_a_constant(host_backend):
    case = verify.Case(id="inference", op=Op.BATCH_NORM_BACKWARD, shape=(1, 5), training=False)
    problem = verify.make_problem(case, "float32")
    for measured in verify.judge(problem, verify.run_backend(problem, host_backend)):
        assert measured.ok, measured


@pytest.mark.parametrize("count", [40, 1100000])  # eight at a time; larger than the caches
def test_groups_with_gaps_in_the_sizes_of_another_shape(count, host_backend):
    """As the published interface has them: the CPU's kernels take these one after another."""
    data = TensorSpec((count,), (2,), "float32")
    flat = TensorSpec.contiguous((count,), "float32")
    spec = Spec(
        op=Op.GROUP_NORM_BACKWARD,
        dy=data,
        x=data,
        mean=flat,
        rstd=flat,
        gamma=flat,
        dx=flat,
        num_groups=count,
        extents=(1, count, 1),
    )
    rng = np.random.default_rng(1)
    dy, x = rng.standard_normal((2, count, 2), dtype=np.float32)
    rstd, gamma = rng.random((2, count), dtype=np.float32)
    mean, dx = x[:, 0].copy(), np.full(count, np.nan, np.float32)
    arrays = {"dy": dy, "x": x, "mean": mean, "rstd": rstd, "gamma": gamma, "dx": dx}
    plan = make_plan(spec, host_backend)
    owner, scratch = host_memory.aligned_bytes(plan.workspace_bytes)
    plan.run([arrays[role].ctypes.data if role in arrays else None for role in ROLES], scratch)
    del owner
    assert plan.backend is get(host_backend)
    assert not dx.any()
