"""Fifty training steps by torch and by us: the same losses but for rounding."""

import copy

import pytest
import torch
from models import MODELS, train

import normgrad.torch

STEPS = 50


def _agree(ours, torchs):
    # Rounding errors grow with the steps: float32 begins at 1e-7 and gains about two digits in 50.
    assert torchs[0] != pytest.approx(
        torchs[-1], rel=1e-3
    )  # something was learned, or at least moved
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(torchs), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(
        torch.tensor(ours[:5]), torch.tensor(torchs[:5]), rtol=2e-5, atol=2e-5
    )


@pytest.fixture
def pair(request):
    torch.manual_seed(0)
    model, shape = MODELS[request.param]()
    return model, copy.deepcopy(model), shape


@pytest.mark.parametrize("pair", MODELS, indirect=True)
def test_converted_modules(pair):
    model, twin, shape = pair
    _agree(train(normgrad.torch.convert(model), shape, STEPS), train(twin, shape, STEPS))


@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels-last"])
@pytest.mark.parametrize("pair", MODELS, indirect=True)
def test_enabled(pair, channels_last, fast_backend):
    model, twin, shape = pair
    if channels_last and len(shape) != 4:
        pytest.skip("only images can be channels-last")
    normgrad.torch.report(reset=True)
    with normgrad.torch.enable(backend=fast_backend):
        ours = train(model, shape, STEPS, channels_last=channels_last)
    report = normgrad.torch.report(reset=True)
    assert report.calls("normgrad") >= 2 * STEPS
    assert report.calls("torch") == 0, str(report)
    _agree(ours, train(twin, shape, STEPS, channels_last=channels_last))
