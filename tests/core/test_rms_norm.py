"""Root mean square norm: the formula without a mean, against written-out sums and torch."""

import numpy as np
import pytest

import normgrad as ng

BACKENDS = ("reference", "cpu")


def rows(dtype=np.float64):
    rng = np.random.default_rng(5)
    x = 100 + 3 * rng.standard_normal((7, 33))
    dy, weight = rng.standard_normal((7, 33)), 1 + rng.standard_normal(33)
    rstd = 1 / np.sqrt(np.mean(x * x, -1) + 1e-6)
    return tuple(array.astype(dtype) for array in (dy, x, rstd, weight))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_gradients_are_those_of_the_sums_written_out(backend, offset):
    dy, x, rstd, weight = rows()
    found = ng.rms_norm_backward(
        dy, x, rstd, 33, weight=weight, weight_offset=offset, backend=backend
    )
    xhat, g = x * rstd[:, None], dy * (weight + offset)
    want = rstd[:, None] * (g - xhat * np.mean(g * xhat, -1, keepdims=True))
    np.testing.assert_allclose(found.grad_input, want, rtol=0, atol=1e-13)
    np.testing.assert_allclose(found.grad_weight, (dy * xhat).sum(0), rtol=0, atol=1e-12)
    assert found.grad_bias is None
    assert found.grad_shortcut is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_agrees(backend):
    torch = pytest.importorskip("torch")
    dy, x, _, weight = (torch.from_numpy(array) for array in rows())
    x.requires_grad_()
    weight.requires_grad_()
    torch.nn.functional.rms_norm(x, (33,), weight).backward(dy)
    mean_square = (x.detach() ** 2).mean(-1)
    found = ng.rms_norm_backward(
        dy, x.detach(), None, 33, variance=mean_square, weight=weight.detach(), backend=backend
    )
    torch.testing.assert_close(found.grad_input, x.grad, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.grad_weight, weight.grad, rtol=0, atol=1e-12)


def test_eps_is_by_default_the_step_of_the_type_at_1():
    dy, x, _, _ = rows(np.float32)
    still = np.zeros(7, np.float32)
    by_default = ng.rms_norm_backward(dy, x, None, 33, variance=still, backend="reference")
    by_name = ng.rms_norm_backward(
        dy, x, None, 33, variance=still, eps=float(np.finfo(np.float32).eps), backend="reference"
    )
    np.testing.assert_array_equal(by_default.grad_input, by_name.grad_input)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rstd": None}, r"rstd or variance= with eps= must be given \(one element for each row"),
        ({"weight_offset": float("inf")}, "weight_offset must be finite, got inf"),
        ({"weight_offset": "1"}, "weight_offset must be a number"),
        ({"output_mask": (True,) * 3}, "output_mask must be 2 booleans"),
        ({"mean": np.zeros(7)}, "has no argument 'mean'"),
        ({"gamma": None}, "did you mean weight?"),
    ],
)
def test_wrong_arguments_are_named(change, words):
    dy, x, rstd, weight = rows()
    arguments = {"rstd": rstd, "normalized_shape": 33, "weight": weight} | change
    with pytest.raises(ng.NormgradError, match=words):
        ng.rms_norm_backward(dy, x, **arguments)
