"""Steps of models that inductor compiles, and which operators of ours their programs call."""

import re

import pytest
import torch

COMPILES = [
    pytest.mark.usefixtures("nothing_from_disk", "fresh_compiler"),
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning",  # torch's own, in inductor
        "ignore::normgrad.torch.NothingTakenWarning",  # compiled calls are not counted
    ),
]


def step(model, x):
    """Results of a step: output, and gradients of the input and the parameters."""
    model.zero_grad()
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    y = model(x)
    (y * torch.arange(y.numel()).reshape(y.shape).sin()).sum().backward()
    return [y.detach(), x.grad, *(one.grad for one in model.parameters() if one.grad is not None)]


def compiled_step(model, x, **options):
    """Results of a compiled step; for each of its two passes the calls, name and activation."""
    from torch._inductor.utils import run_and_get_code  # loads all of inductor

    run = torch.compile(model, fullgraph=True, **options)
    results, programs = run_and_get_code(lambda: step(run, x))
    return results, [calls(one) for one in programs]


def calls(program):
    """The operators of ours that a program calls: name, and activation or None."""
    found = re.findall(r"torch\.ops\.normgrad\.(\w+)\.default\((.*)", program)
    words = ((name, re.findall(r"'(\w+)'", arguments)) for name, arguments in found)
    return [(name, quoted[0] if quoted else None) for name, quoted in words]
