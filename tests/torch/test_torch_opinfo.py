"""PyTorch's own samples for its normalizations, with ``enable()`` on and off."""

import warnings

import pytest
import torch

import normgrad.torch as ours

NAMES = (
    "nn.functional.layer_norm",
    "nn.functional.group_norm",
    "nn.functional.batch_norm",
    "nn.functional.instance_norm",
    "native_layer_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
)


@pytest.fixture(scope="module")
def infos():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {info.name: info for info in op_db if not info.variant_test_name}


def _tensors(sample):
    return [
        one
        for one in (sample.input, *sample.args, *sample.kwargs.values())
        if isinstance(one, torch.Tensor) and one.requires_grad
    ]


def _gradients(info, sample):
    """Gradients of the first result along a fixed random direction."""
    leaves = _tensors(sample)
    result = info(sample.input, *sample.args, **sample.kwargs)
    result = result[0] if isinstance(result, tuple) else result
    if not result.requires_grad:
        return []
    generator = torch.Generator().manual_seed(2)
    direction = torch.randn(result.shape, generator=generator, dtype=torch.float64)
    return torch.autograd.grad(result, leaves, direction.to(result.dtype), allow_unused=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_samples(name, dtype, infos, fast_backend):
    info = infos[name]
    ours.report(reset=True)
    wants, gots = [], []
    for store in (wants, gots):
        torch.manual_seed(0)
        samples = info.sample_inputs("cpu", dtype, requires_grad=True)
        if store is wants:
            store.extend(_gradients(info, sample) for sample in samples)
        else:
            with ours.enable(backend=fast_backend):
                store.extend(_gradients(info, sample) for sample in samples)
    report = ours.report(reset=True)
    assert report.calls("normgrad") > 0
    # What our functions refuse torch computes, and the report says so.
    left = [line for line in str(report).splitlines() if " torch " in line]
    assert all("must have elements" in line or "must be finite" in line for line in left), left
    # Torch rounds statistics of bfloat16 data to bfloat16 and sums what it made of them.
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.1}[dtype]
    for got, want in zip(gots, wants, strict=True):
        for one, other in zip(got, want, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                scale = max(other.abs().max().item(), 1.0) if other.numel() else 1.0
                torch.testing.assert_close(
                    one, other, rtol=tolerance, atol=tolerance * scale, equal_nan=True
                )
