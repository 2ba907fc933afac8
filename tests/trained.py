"""PyTorch's answer to what the examples of training steps print."""

import math


def expected(norms=("batch_norm", "layer_norm", "group_norm"), dtype="float64", eps=1e-5):
    """Each printed line's numbers, by what stands before the colon."""
    import torch
    from torch.nn import functional

    index = torch.arange(4 * 6 * 5, dtype=torch.float32).reshape(4, 6, 5)
    x = (1 + 3 * torch.sin(torch.tensor(0.7) * index)).to(getattr(torch, dtype))
    target = torch.cos(torch.tensor(0.3) * index).to(x.dtype)
    forward = {
        "batch_norm": lambda w, b: functional.relu(
            functional.batch_norm(x, None, None, w, b, True, 0.1, eps)
        ),
        "layer_norm": lambda w, b: functional.gelu(functional.layer_norm(x, (5,), w, b, eps)),
        "group_norm": lambda w, b: functional.silu(functional.group_norm(x, 3, w, b, eps)),
    }
    lines = {}
    for name in norms:
        width = 5 if name == "layer_norm" else 6
        weight = torch.ones(width, dtype=x.dtype, requires_grad=True)
        bias = torch.zeros(width, dtype=x.dtype, requires_grad=True)
        optimizer = torch.optim.SGD([weight, bias], lr=0.5)
        for step in range(5):
            loss = 0.5 * torch.mean((forward[name](weight, bias) - target) ** 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lines[f"{name} loss {step}"] = [loss.item()]
        lines[f"{name} weight"] = weight.tolist()
        lines[f"{name} bias"] = bias.tolist()
    return lines


def compare(printed, want):
    """To rounding: five steps of float32."""
    found = dict(line.split(": ") for line in printed.splitlines())
    assert found.keys() == want.keys()
    for name, numbers in want.items():
        got = [float(word) for word in found[name].split()]
        assert len(got) == len(numbers)
        for one, other in zip(got, numbers, strict=True):
            assert math.isclose(one, other, rel_tol=2e-6, abs_tol=1e-6), (name, got, numbers)
