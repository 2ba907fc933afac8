"""What may follow a norm: each activation and its slope, for arrays of NumPy or of torch.

``z`` is what the norm gives. ReLU and its kind are decided on ``seen``, z rounded to the type of
the data, as in a program whose norm and activation are two operators.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from normgrad.arrays import host_memory

Array = Any


class Activation(NamedTuple):
    """``value(z, seen, s)`` and ``slope(z, seen, s)``.

    s is the negative slope of leaky ReLU, the scale of swish.
    """

    value: Callable[[Array, Array, float], Array]
    slope: Callable[[Array, Array, float], Array]


def _of(z: Array) -> Any:
    """The library of an array."""
    if isinstance(z, (np.ndarray, np.generic)):
        return np
    import torch

    return torch


def _from(z: Array, below: Array, low: float, first: float, second: float = 1.0) -> Array:
    """``first`` where ``below`` is at most ``low``, else ``second``, NaN too."""
    library = _of(z)
    return library.where(below <= low, first * library.ones_like(z), second * library.ones_like(z))


def _sigmoid(z: Array) -> Array:
    return 1.0 / (1.0 + _of(z).exp(-z))


_ERFC: Final = np.frompyfunc(math.erfc, 1, 1)


def _normal(z: Array) -> Array:
    """The share of a normal distribution below z; from the near end, where a sum would cancel."""
    library = _of(z)
    if library is not np:
        return 0.5 * library.erfc(z * -math.sqrt(0.5))
    return 0.5 * np.asarray(_ERFC(z * -math.sqrt(0.5)), np.float64)


def _tanh_of_gelu(z: Array) -> Array:
    return _of(z).tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3))


def _gelu_slope(z: Array) -> Array:
    density = _of(z).exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return _normal(z) + z * density


def _gelu_tanh_slope(z: Array) -> Array:
    tanh = _tanh_of_gelu(z)
    inner = math.sqrt(2.0 / math.pi) * (1.0 + 3 * 0.044715 * z * z)
    return 0.5 * (1.0 + tanh) + 0.5 * z * (1.0 - tanh * tanh) * inner


def _silu_slope(z: Array) -> Array:
    sigmoid = _sigmoid(z)
    return sigmoid * (1.0 + z * (1.0 - sigmoid))


def _swish_slope(z: Array, s: float) -> Array:
    sigmoid = _sigmoid(s * z)
    return sigmoid * (1.0 + s * z * (1.0 - sigmoid))


def _hardswish_slope(z: Array) -> Array:
    library = _of(z)
    inside = library.where(z < 3.0, z / 3.0 + 0.5, library.ones_like(z))
    return library.where(z <= -3.0, library.zeros_like(z), inside)


def _relu6(z: Array, seen: Array) -> Array:
    library = _of(z)
    capped = library.where(seen >= 6.0, 6.0 * library.ones_like(z), z)
    return library.where(seen <= 0.0, library.zeros_like(z), capped)


ACTIVATIONS: Final[dict[str, Activation]] = {
    "relu": Activation(
        lambda z, seen, s: _of(z).where(seen <= 0.0, _of(z).zeros_like(z), z),
        lambda z, seen, s: _from(z, seen, 0.0, 0.0),
    ),
    "relu6": Activation(
        lambda z, seen, s: _relu6(z, seen),
        lambda z, seen, s: _from(z, seen, 0.0, 0.0) * _from(z, -seen, -6.0, 0.0),
    ),
    "leaky_relu": Activation(
        lambda z, seen, s: _of(z).where(seen <= 0.0, s * z, z),
        lambda z, seen, s: _from(z, seen, 0.0, s),
    ),
    "silu": Activation(lambda z, seen, s: z * _sigmoid(z), lambda z, seen, s: _silu_slope(z)),
    "swish": Activation(
        lambda z, seen, s: z * _sigmoid(s * z), lambda z, seen, s: _swish_slope(z, s)
    ),
    "gelu": Activation(lambda z, seen, s: z * _normal(z), lambda z, seen, s: _gelu_slope(z)),
    "gelu_tanh": Activation(
        lambda z, seen, s: 0.5 * z * (1.0 + _tanh_of_gelu(z)),
        lambda z, seen, s: _gelu_tanh_slope(z),
    ),
    "hardswish": Activation(
        lambda z, seen, s: z * _of(z).clip(z + 3.0, 0.0, 6.0) / 6.0,
        lambda z, seen, s: _hardswish_slope(z),
    ),
}


def rounded(z: Array, dtype: str) -> Array:
    """The nearest numbers of a type."""
    if _of(z) is np:
        return host_memory.widen(host_memory.narrow(z, dtype), dtype)
    library = _of(z)
    return z.to(getattr(library, dtype)).to(library.float64)


def packed(opened: Array) -> Array:
    """A bit for each element of the last axis, eight in a byte, the first one lowest."""
    library, shape = _of(opened), opened.shape[:-1]
    absent = [library.zeros_like(opened[..., :1])] * (-opened.shape[-1] % 8)
    powers = 2.0 ** np.arange(8)
    if library is not np:
        powers = opened.new_tensor(powers)
    bits = library.concatenate([opened, *absent], -1)
    return (bits.reshape(*shape, -1, 8) * powers).sum(-1)


def unpacked(mask: Array, length: int) -> Array:
    """The bits of as many elements."""
    powers = 2.0 ** np.arange(8)
    if _of(mask) is not np:
        powers = mask.new_tensor(powers)
    bits = mask.reshape(*mask.shape, 1) // powers % 2.0
    return bits.reshape(*mask.shape[:-1], -1)[..., :length]
