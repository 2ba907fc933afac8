"""Fifty training steps by torch and by us: the same losses but for rounding."""

import copy
import sys

import pytest
import torch
import train_cifar_like
from example_models import NAMES, make

import normgrad.torch

STEPS = 50


def train(model, shape, *, channels_last=False):
    """Losses of plain gradient descent on fixed random data."""
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    losses = []
    if channels_last:
        model.to(memory_format=torch.channels_last)
    for _ in range(STEPS):
        x = torch.randn(shape, generator=generator).to(dtype)
        if channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        target = torch.randint(0, 10, shape[:1], generator=generator)
        loss = torch.nn.functional.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses, dtype=torch.float64)


def agree(ours, twin, shape, **options):
    """Within what one rounding error at the start does to torch's own losses."""
    other = copy.deepcopy(twin)
    unit = torch.finfo(next(twin.parameters()).dtype).eps
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + unit * torch.randn_like(parameter))
    torchs = train(twin, shape, **options)
    assert (torchs[1:] - torchs[0]).abs().max() > 0.05  # training went somewhere
    drift = (train(other, shape, **options) - torchs).abs().cummax(0).values
    worst = ((ours - torchs).abs() / (64 * unit + 10 * drift)).max().item()
    assert worst <= 1, f"{worst:.3g} times what rounding explains"


@pytest.fixture(params=[torch.float64, torch.float32], ids=str)
def dtype(request):
    return request.param


@pytest.fixture
def pair(request, dtype):
    torch.manual_seed(0)
    example = make(request.param)
    model = example.model.to(dtype)
    return model, copy.deepcopy(model), example.shape


@pytest.mark.parametrize("pair", NAMES, indirect=True)
def test_converted_modules(pair):
    model, twin, shape = pair
    agree(train(normgrad.torch.convert(model), shape), twin, shape)


@pytest.mark.parametrize(
    ("pair", "channels_last"),
    [(name, False) for name in NAMES] + [(name, True) for name in NAMES if name != "transformer"],
    indirect=["pair"],
)
def test_enabled(pair, channels_last, fast_backend):
    model, twin, shape = pair
    normgrad.torch.report(reset=True)
    with normgrad.torch.enable(backend=fast_backend):
        ours = train(model, shape, channels_last=channels_last)
    report = normgrad.torch.report(reset=True)
    assert report.calls("normgrad") >= 2 * STEPS
    assert report.calls("torch") == 0, str(report)
    agree(ours, twin, shape, channels_last=channels_last)


@pytest.mark.parametrize("option", ["--steps", "--batch", "--width"])
@pytest.mark.parametrize("number", ["0", "-1"])
def test_the_example_refuses_to_train_on_nothing(option, number, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train_cifar_like.py", option, number])
    with pytest.raises(SystemExit) as left:
        train_cifar_like.main()
    assert left.value.code == 2
    words = f"argument {option}: must be a number, at least 1, got '{number}'"
    assert words in capsys.readouterr().err


def test_the_example_tells_its_steps_in_a_pipe_too(capsys):
    progress = train_cifar_like.Progress(21)
    for step in range(21):
        progress.step(f"loss {step}")
        if step == 19:
            assert capsys.readouterr().out == "20/21 loss 19\n"
    assert capsys.readouterr().out == "21/21 loss 20\n"
