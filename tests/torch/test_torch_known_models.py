"""Models that users know, tiny: as near to float64 as torch's, and twenty steps with its losses.

They come from torchvision, timm, diffusers and transformers; without those there is nothing to run.
"""

import copy
import sys
from pathlib import Path

import pytest
import torch

import normgrad.torch as ours

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import known_models

STEPS = 20
# Norms that their models wrote in Python: ``convert`` takes these, ``enable`` does not see them.
WRITTEN = ("llama",)


@pytest.fixture(params=known_models.NAMES)
def known(request):
    torch.manual_seed(0)
    try:
        return request.param, known_models.make(request.param)
    except ImportError as error:
        pytest.skip(str(error))


def _results(model, example, x, target):
    """Output, loss and gradients."""
    model = copy.deepcopy(model)
    told = model(x)
    loss = example.loss(told, target)
    loss.backward()
    grads = [one.grad for one in model.parameters() if one.grad is not None]
    return [told.detach(), loss.detach(), *grads]


def _judged(example):
    """Data, what is exact for them, and how far torch is from it."""
    torch.manual_seed(1)
    x, target = example.data()
    wide = x.double() if x.is_floating_point() else x
    exact = _results(copy.deepcopy(example.model).double(), example, wide, target)
    return x, target, exact, _apart(_results(example.model, example, x, target), exact)


def _apart(results, exact):
    """Of all results together, each relative to its size."""
    pairs = [(one.double(), other) for one, other in zip(results, exact, strict=True)]
    return max(((one - other).norm() / (other.norm() + 1e-9)).item() for one, other in pairs[:2]), (
        sum((one - other).square().sum() for one, other in pairs[2:])
        / sum(other.square().sum() for _, other in pairs[2:])
    ).sqrt().item()


@pytest.mark.filterwarnings("ignore:enable")
def test_as_near_to_float64_as_torch(known, fast_backend, disabled):
    name, example = known
    x, target, exact, torchs = _judged(example)
    mine = ours.convert(copy.deepcopy(example.model)) if name in WRITTEN else example.model
    with ours.enable(backend=fast_backend) if name not in WRITTEN else ours.enable():
        got = _results(mine, example, x, target)
    for error, theirs in zip(_apart(got, exact), torchs, strict=True):
        assert error <= 2 * theirs + 1e-6, (error, theirs)
    if name not in WRITTEN:
        assert ours.report().calls("normgrad") > 2
        assert ours.report().calls("torch") == 0, str(ours.report())


# How many norms are part of a node, of how many. What is left has no activation or sum beside it,
# or a branch between; of a Llama's layer the sum before the first norm is another layer's.
FUSED = {
    "resnet50": (49, 53),
    "efficientnet_b0": (42, 49),
    "convnext_tiny": (0, 23),
    "sd_unet": (17, 33),
    "sd_vae": (22, 24),
    "llama": (2, 5),
    "gpt2": (0, 5),
}


def test_fused_as_near_to_float64_as_torch(known, nodes_made, fast_backend):
    name, example = known
    x, target, exact, torchs = _judged(example)
    classes, text = [type(one) for one in example.model.modules()], repr(example.model)
    state = [*example.model.state_dict()]
    found = ours.fuse(example.model)
    assert (sum(bool(one.node) for one in found), len(found)) == FUSED[name]
    assert repr(example.model) == text
    assert [*example.model.state_dict()] == state
    got = _results(example.model, example, x, target)
    assert len(nodes_made) >= FUSED[name][0]
    for error, theirs in zip(_apart(got, exact), torchs, strict=True):
        assert error <= 2 * theirs + 1e-6, (error, theirs)
    ours.unfuse(example.model)
    assert [type(one) for one in example.model.modules()] == classes
    found = ours.fuse(ours.convert(example.model))
    assert (sum(bool(one.node) for one in found), len(found)) == FUSED[name]
    ours.revert(ours.unfuse(example.model))
    assert [type(one) for one in example.model.modules()] == classes


@pytest.mark.filterwarnings("ignore:enable")
def test_losses_of_twenty_steps(known, fast_backend, disabled):
    _, example = known

    def losses(model):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        found = []
        for _ in range(STEPS):
            x, target = example.data()
            optimizer.zero_grad()
            loss = example.loss(model(x), target)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return torch.tensor(found, dtype=torch.float64)

    torchs = losses(copy.deepcopy(example.model))
    other = copy.deepcopy(example.model)
    with torch.no_grad():  # what a rounding error at the start does
        for one in other.parameters():
            one.mul_(1 + torch.finfo(one.dtype).eps * torch.randn_like(one))
    drift = (losses(other) - torchs).abs().cummax(0).values
    with ours.enable(backend=fast_backend):
        mine = losses(ours.convert(copy.deepcopy(example.model)))
    with ours.enable(backend=fast_backend):
        enabled = losses(copy.deepcopy(example.model))
    for one in (mine, enabled):
        worst = ((one - torchs).abs() / (1e-5 * torchs.abs() + 10 * drift)).max().item()
        assert worst <= 1, f"{worst:.3g} times what rounding explains"


def test_convert_takes_every_norm_and_revert_gives_it_back(known, caplog):
    _, example = known
    before = [type(one) for one in example.model.modules()]
    with caplog.at_level("INFO", "normgrad.torch"):
        ours.convert(example.model)
    assert "left alone" not in caplog.text
    # Not timm's NormMlpClassifierHead, which holds one.
    norms = [
        one
        for one in example.model.modules()
        if "Norm" in type(one).__name__ and not hasattr(one, "fc")
    ]
    assert norms
    assert all(isinstance(one, ours.modules.Ours) for one in norms)
    ours.revert(example.model)
    assert [type(one) for one in example.model.modules()] == before
