"""Operands that repeat along the axis that kernels want contiguous: a row of them is copied."""

import numpy as np
import pytest

import normgrad as ng
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op, Spec, TensorSpec

F32 = "float32"
SIDE = 1 << 16


def number(*shape):
    """One number expanded to a shape."""
    return TensorSpec(shape, (0,) * len(shape), F32)


VECTOR = TensorSpec.contiguous((SIDE,), F32)
WIDE = number(SIDE, SIDE)  # 16 GiB
IMAGE = number(64, 64, 1024, 1024)
LAST = TensorSpec((64, 64, 1024, 1024), (1 << 26, 1, 1 << 16, 64), F32)
SAMPLES = TensorSpec.contiguous((64, 8), F32)
CHANNELS = TensorSpec.contiguous((64,), F32)
LAYER = {"op": Op.LAYER_NORM_BACKWARD, "normalized_shape": (SIDE,), "mean": VECTOR, "rstd": VECTOR}
GROUP = {"op": Op.GROUP_NORM_BACKWARD, "num_groups": 8, "mean": SAMPLES, "rstd": SAMPLES}
BATCH = {"op": Op.BATCH_NORM_BACKWARD, "mean": CHANNELS, "rstd": CHANNELS}


@pytest.mark.parametrize(
    "request_",
    [
        Spec(dy=WIDE, x=TensorSpec.contiguous((SIDE, SIDE), F32), dgamma=VECTOR, **LAYER),
        Spec(dy=WIDE, x=WIDE, dgamma=VECTOR, **LAYER),
        Spec(dy=IMAGE, x=LAST, dgamma=CHANNELS, **GROUP),
        Spec(dy=IMAGE, x=LAST, dgamma=CHANNELS, **BATCH),
        Spec(dy=IMAGE, x=LAST, dx=LAST, **BATCH),
    ],
)
def test_a_number_expanded_to_gigabytes_takes_a_row(request_):
    # Sums of blocks of rows, a quarter of a gigabyte; the copies took 16 GiB each.
    assert make_plan(request_, "cpu").workspace_bytes < 1 << 30


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("mixed", [False, True])
def test_expanded_operands_are_read_as_dense_ones(last, mixed):
    rng = np.random.default_rng(4)
    shape = (6, 20, 5, 9)
    x = rng.standard_normal(shape).astype(np.float32)
    if last:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    ones = np.float16 if mixed else np.float32
    mean, rstd = (rng.random(20).astype(np.float32) for _ in range(2))
    of_groups = [rng.random((6, 4)).astype(np.float32) for _ in range(2)]
    of_rows = [rng.random((6, 20, 1, 1)).astype(np.float32) for _ in range(2)]
    for some in ((1, 1, 1, 1), (6, 1, 1, 1), (1, 20, 1, 1), (1, 1, 5, 9), (6, 20, 1, 1)):
        dy = np.broadcast_to(rng.standard_normal(some).astype(ones), shape)
        for call in (
            lambda dy, **o: ng.batch_norm_backward(dy, x, mean, rstd, backend="cpu", **o),
            lambda dy, **o: ng.group_norm_backward(dy, x, *of_groups, 4, backend="cpu", **o),
            lambda dy, **o: ng.layer_norm_backward(dy, x, *of_rows, (5, 9), backend="cpu", **o),
        ):
            for one, other in zip(call(dy)[:3], call(dy.copy())[:3], strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)
