"""What may follow a norm, of numbers in lanes: each activation, and the gradient before it.

``z`` is what the norm gives. ReLU and its kind are decided on z rounded to the type of the data:
what that makes of z is told by where the halves between its numbers lie.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from normgrad.backends.cpu.formulas.functions import normal, sigmoid
from normgrad.backends.cpu.vectors import FLUSHES_BF16, at_most, in_type_of

# The largest numbers that are rounded to 0, and the smallest that are rounded to 6.
ZERO: Final = {
    "float16": 2.0**-25,
    "bfloat16": 2.0**-126 - 2.0**-149 if FLUSHES_BF16 else 2.0**-134,
    "float32": 0.0,
    "float64": 0.0,
}
# Twice the argument of gelu's tanh is _TANH * (z + _CUBE * z ** 3).
_TANH: Final = 2.0 * math.sqrt(2.0 / math.pi)
_CUBE: Final = 0.044715
_SIX: Final = {"float16": 6 - 2.0**-9, "bfloat16": 6 - 2.0**-6, "float32": 6.0, "float64": 6.0}


class Activation(NamedTuple):
    """``value(z, dtype, s)``, and ``through(d, z, dtype, s)``: the gradient d times the slope.

    ``dtype`` is the data's type, s the negative slope of leaky ReLU, the scale of swish.
    """

    value: Callable[[Any, str, Any], Any]
    through: Callable[[Any, Any, str, Any], Any]


def smooth(value: Callable[[Any], Any], slope: Callable[[Any], Any]) -> Activation:
    """Of z alone."""
    return Activation(
        lambda z, dtype, s: value(z), lambda d, z, dtype, s: d * in_type_of(slope(z), d)
    )


def _relu6_through(d: Any, z: Any, dtype: str, s: Any) -> Any:
    below = at_most(-z, -_SIX[dtype], 0.0, d)
    return at_most(z, ZERO[dtype], 0.0, below)


def _relu6(z: Any, dtype: str, s: Any) -> Any:
    return at_most(z, ZERO[dtype], 0.0, at_most(-z, -_SIX[dtype], 6.0, z))


def _silu_slope(z: Any) -> Any:
    share, slope = sigmoid(z)
    return share + z * slope


def _scaled(z: Any, s: Any) -> Any:
    """What swish's sigmoid gets. Beyond 1000 that is 0 or 1: nothing is to overflow."""
    t = z * s
    return at_most(-t, -1000.0, 1000.0, at_most(t, -1000.0, -1000.0, t))


def _swish_through(d: Any, z: Any, dtype: str, s: Any) -> Any:
    t = _scaled(z, s)
    share, slope = sigmoid(t)
    return d * in_type_of(share + t * slope, d)


def _gelu_slope(z: Any) -> Any:
    share, density = normal(z)
    return share + z * density


def _square(z: Any) -> Any:
    """Of z, or where the other factor is 0 or 1 anyway."""
    square = z * z
    return at_most(square, 1000.0, square, 1000.0)


def _gelu_tanh(z: Any) -> tuple[Any, Any]:
    """``(1 + tanh(u)) / 2``, which is the sigmoid of 2 u, and its slope by 2 u."""
    return sigmoid(z * (_TANH + _TANH * _CUBE * _square(z)))


def _gelu_tanh_slope(z: Any) -> Any:
    share, slope = _gelu_tanh(z)
    return share + z * slope * (_TANH + 3 * _TANH * _CUBE * _square(z))


def _hardswish(z: Any) -> Any:
    above = at_most(z, -3.0, 0.0, z + 3.0)
    return z * at_most(-above, -6.0, 6.0, above) * (1.0 / 6.0)


def _hardswish_slope(z: Any) -> Any:
    slope = at_most(-z, -3.0, 1.0, z * (1.0 / 3.0) + 0.5)
    return at_most(z, -3.0, 0.0, slope)


ACTIVATIONS: Final[dict[str, Activation]] = {
    "relu": Activation(
        lambda z, dtype, s: at_most(z, ZERO[dtype], 0.0, z),
        lambda d, z, dtype, s: at_most(z, ZERO[dtype], 0.0, d),
    ),
    "relu6": Activation(_relu6, _relu6_through),
    "leaky_relu": Activation(
        lambda z, dtype, s: at_most(z, ZERO[dtype], z * s, z),
        lambda d, z, dtype, s: at_most(z, ZERO[dtype], d * s, d),
    ),
    "silu": smooth(lambda z: z * sigmoid(z)[0], _silu_slope),
    "swish": Activation(lambda z, dtype, s: z * sigmoid(_scaled(z, s))[0], _swish_through),
    "gelu": smooth(lambda z: z * normal(z)[0], _gelu_slope),
    "gelu_tanh": smooth(lambda z: z * _gelu_tanh(z)[0], _gelu_tanh_slope),
    "hardswish": smooth(_hardswish, _hardswish_slope),
}
