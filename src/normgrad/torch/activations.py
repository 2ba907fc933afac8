"""Activations behind a norm in torch's own operators, and which of them a module is."""

from collections.abc import Callable, Hashable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from normgrad.calls.fused import NEGATIVE_SLOPE
from normgrad.torch.library import Tensor

After = tuple[str | None, float]  # an activation by name, and its negative slope
NO_ACTIVATION: Final[After] = (None, NEGATIVE_SLOPE)
_TORCHS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": functional.relu,
    "relu6": functional.relu6,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda z: functional.gelu(z, approximate="tanh"),
    "hardswish": functional.hardswish,
}


def told(after: After) -> str:
    """As a module's text has it."""
    slope = f", negative_slope={after[1]}" if after[0] == "leaky_relu" else ""
    return f"activation={after[0]}{slope}"


def activated(z: Tensor, activation: str | None, slope: float) -> Tensor:
    """``activation(z)`` by torch."""
    if activation is None:
        return z
    if activation == "leaky_relu":
        return functional.leaky_relu(z, slope)
    return _TORCHS[activation](z)


def _named(name: str) -> Callable[[Any], After]:
    after = (name, NEGATIVE_SLOPE)
    return lambda module: after


# Their own classes alone: another may compute something else.
_OF_MODULES: Final[dict[type, Callable[[Any], After]]] = {
    nn.ReLU: _named("relu"),
    nn.ReLU6: _named("relu6"),
    nn.LeakyReLU: lambda module: ("leaky_relu", module.negative_slope),
    nn.SiLU: _named("silu"),
    nn.GELU: lambda module: (
        "gelu" if module.approximate == "none" else "gelu_tanh",
        NEGATIVE_SLOPE,
    ),
    nn.Hardswish: _named("hardswish"),
}
_OF_FUNCTIONS: Final[dict[Any, After]] = {
    functional.relu: ("relu", NEGATIVE_SLOPE),
    torch.relu: ("relu", NEGATIVE_SLOPE),
    functional.relu6: ("relu6", NEGATIVE_SLOPE),
    functional.leaky_relu: ("leaky_relu", NEGATIVE_SLOPE),
    functional.silu: ("silu", NEGATIVE_SLOPE),
    functional.gelu: ("gelu", NEGATIVE_SLOPE),
    functional.hardswish: ("hardswish", NEGATIVE_SLOPE),
}


def activation_of(one: Any) -> After | None:
    """What a module or function of torch's is, if it is an activation that a norm takes in."""
    read = _OF_MODULES.get(type(one))
    if read is not None:
        return read(one)
    known = isinstance(one, Hashable) and not isinstance(one, nn.Module)
    return _OF_FUNCTIONS.get(one) if known else None
