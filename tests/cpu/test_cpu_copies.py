"""Tensors in another order than x: copied in squares, in the bits of the same numbers in order."""

import numpy as np
import pytest

from normgrad import functional, verify
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

pytest.importorskip("numba")

# Operator and case: a few squares, exactly one, some that overlap.
SMALL = [
    ("batch_norm_backward", {"shape": (2, 19, 3, 11), "layout": "mixed"}),
    ("group_norm_backward", {"shape": (1, 32, 80), "num_groups": 4, "layout": "mixed"}),
    ("batch_norm_backward", {"shape": (1, 16, 16), "layout": "mixed"}),
]


def channels_last(array):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def test_phases():
    """Short axes have no squares, and what is repeated is no square but a run."""
    for shape, layout, first in (
        ((2, 19, 5, 7), "mixed", "transposes x 1"),
        ((2, 19, 3, 5), "mixed", "copies x 1"),
        ((2, 19, 5, 7), "flipped", "copies x 1"),
    ):
        case = verify.Case(id="copies", op=Op.BATCH_NORM_BACKWARD, shape=shape, layout=layout)
        spec = verify.make_problem(case, "float32", 0).spec
        assert make_plan(spec, "cpu").config.phases[0] == first
    case = verify.Case(id="copies", op=Op.BATCH_NORM_BACKWARD, shape=(8, 256, 56, 56))
    assert "transposes" not in str(make_plan(spec_of(case, "float32"), "cpu").config.phases)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "shape",
    [(3, 37, 21, 5), (2, 64, 64, 64), (64, 512, 7, 7), (1, 20, 333), (2, 16, 16), (1, 70000, 17)],
    ids=str,
)
def test_same_bits(shape, dtype):
    """Orders of dy and dx do not matter: every element comes and goes as it is."""
    rng = np.random.default_rng(5)
    x, dy = (rng.standard_normal(shape).astype(dtype) + 1 for _ in range(2))
    channels = shape[1]
    mean, rstd, weight = (rng.random(channels).astype(np.float32) for _ in range(3))
    for here, there in (
        (np.ascontiguousarray, channels_last),
        (channels_last, np.ascontiguousarray),
    ):
        wanted = None
        for of_dy in (here, there):
            for of_dx in (here, there):
                dx = of_dx(np.full(shape, np.nan, dtype))
                got = functional.batch_norm_backward(
                    of_dy(dy),
                    here(x),
                    mean,
                    rstd,
                    weight=weight,
                    backend="cpu",
                    out=(dx, None, None),
                    output_mask=(True, False, False),
                )
                wanted = dx if wanted is None else wanted
                assert got.grad_input is dx
                np.testing.assert_array_equal(dx, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 8, 31, 32, 33, 200])
def test_a_repeated_gradient(size, dtype):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((3, 17, size)).astype(dtype)
    one = rng.standard_normal((3, 17, 1)).astype(dtype)
    dy = np.broadcast_to(one, x.shape)
    mean, rstd = np.zeros(17, np.float32), np.ones(17, np.float32)
    got, want = (
        functional.batch_norm_backward(each, x, mean, rstd, backend="cpu")
        for each in (dy, dy.copy())
    )
    for mine, theirs in zip(got[:3], want[:3], strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_in_bounds(stay_in_bounds):
    """Without the compiler every access is checked."""
    stay_in_bounds({}, "transposes", SMALL)
