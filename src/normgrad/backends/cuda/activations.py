"""What may follow a norm on the GPU: each activation and its slope, functions of z and a formula.

A formula has the negative slope of leaky ReLU or the scale of swish, and the numbers that decide
ReLU and its kind, whose z counts as rounded to the type of the data: a threshold says the same as
rounding, and is free.

Both passes get z from `before_activation`, in the same bits: a fused product and sum that is
written as one, since the compiler makes one of ``t * dy_factor + beta`` where it likes, of parts
that both passes have alike: a difference, and the product of gamma and the reciprocal deviation.
"""

from dataclasses import dataclass
from typing import Any, Final

import triton
import triton.language as tl

from normgrad.backends.cuda.pieces.common import INTERPRETED


@triton.jit
def before_activation(t, dy_factor, beta):
    """What the norm gives; ``dy_factor`` is gamma over the deviation, ``t`` is from `centred`."""
    return tl.fma(t, dy_factor, beta)


@triton.jit
def through(FORMULA: tl.constexpr, d, t, dy_factor, beta, shortcut=None):
    """What of dy goes through the activation: what a gradient formula sees of it."""
    if FORMULA.acts:
        z = before_activation(t, dy_factor, beta)
        if shortcut is not None:
            z += shortcut
        d *= FORMULA.slope(z, FORMULA)
    return d


@triton.jit
def output(FORMULA: tl.constexpr, t, dy_factor, beta, shortcut=None):
    """Y."""
    if FORMULA.acts or shortcut is not None:
        z = before_activation(t, dy_factor, beta)
        if shortcut is not None:
            z += shortcut
        y = z
        if FORMULA.acts:
            y = FORMULA.act(z, FORMULA)
    else:
        y = FORMULA.element(t, dy_factor, beta)
    return y


@triton.constexpr_function
def _choosing(limit):
    """PTX of `choose`."""
    return f"{{ .reg .pred below; setp.le.f32 below, $1, {limit}; selp.f32 $0, $2, $3, below; }}"


@triton.jit
def choose(z, limit: tl.constexpr, below, other):
    """The first where z is at most a number, else the other, as where z is NaN.

    In PTX, where a comparison stays with its use: the compiler makes all comparisons of a tile
    first, more predicates than there are, and spills (16 to 380 bytes a thread of held planes).
    """
    if INTERPRETED or z.dtype != tl.float32:
        # A number gets the type of z beside it, not float32.
        chosen = tl.where(z <= limit, tl.where(z <= limit, below, z), other)
    else:
        chosen = tl.inline_asm_elementwise(
            _choosing(limit), "=r,r,r,r", [z, below, other],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
    return chosen


@triton.jit
def _relu(z, FORMULA: tl.constexpr):
    return choose(z, FORMULA.closed, 0.0, z)


@triton.jit
def _relu_slope(z, FORMULA: tl.constexpr):
    return choose(z, FORMULA.closed, 0.0, 1.0)


@triton.jit
def _relu6(z, FORMULA: tl.constexpr):
    return choose(z, FORMULA.closed, 0.0, choose(-z, -FORMULA.six, 6.0, z))


@triton.jit
def _relu6_slope(z, FORMULA: tl.constexpr):
    return choose(z, FORMULA.closed, 0.0, choose(-z, -FORMULA.six, 0.0, 1.0))


@triton.jit
def _leaky_relu(z, FORMULA: tl.constexpr):
    return choose(z, FORMULA.closed, z * FORMULA.negative_slope, z)


@triton.jit
def _leaky_relu_slope(z, FORMULA: tl.constexpr):
    return choose(z, FORMULA.closed, FORMULA.negative_slope, 1.0)


@triton.jit
def reciprocal(number):
    """1 over a number; in float32 by one instruction, good to a unit in the last place.

    What is beyond 2**126 gives 0, which is as near as sums of exponentials want it.
    """
    if INTERPRETED or number.dtype != tl.float32:
        one_over = 1.0 / number
    else:
        one_over = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [number], dtype=tl.float32, is_pure=True, pack=1
        )
    return one_over


@triton.jit
def exponential(number):
    """E to a number; in float32 by one instruction, good to two units and the number's rounding."""
    fast: tl.constexpr = number.dtype == tl.float32
    return tl.exp2(number * 1.4426950408889634) if fast else tl.exp(number)


@triton.jit
def sigmoid(z):
    """1 / (1 + exp(-z)): off by at most three units in the last place of 1."""
    return reciprocal(1.0 + exponential(-z))


@triton.jit
def _silu(z, FORMULA: tl.constexpr):
    return z * sigmoid(z)


@triton.jit
def _silu_slope(z, FORMULA: tl.constexpr):
    share = sigmoid(z)
    return share * (1.0 + z * (1.0 - share))


@triton.jit
def _scaled(z, FORMULA: tl.constexpr):
    """What swish's sigmoid gets. Beyond 1000 that is 0 or 1: nothing is to overflow."""
    t = z * FORMULA.negative_slope
    return choose(-t, -1000.0, 1000.0, choose(t, -1000.0, -1000.0, t))


@triton.jit
def _swish(z, FORMULA: tl.constexpr):
    return z * sigmoid(_scaled(z, FORMULA))


@triton.jit
def _swish_slope(z, FORMULA: tl.constexpr):
    t = _scaled(z, FORMULA)
    share = sigmoid(t)
    return share * (1.0 + t * (1.0 - share))


@triton.jit
def _normal(z):
    """The share of a normal distribution below z, and exp(-z * z / 2), which is a part of it.

    In float32 the share beyond abs(z) is a polynomial of t = 1 / (1 + .28 abs(z)) times that,
    fitted here for the least error: 1e-8 of 1, a sixth of a unit in the last place.
    """
    density = exponential(z * z * -0.5)
    if z.dtype == tl.float32:
        t = reciprocal(1.0 + 0.28 * tl.abs(z))
        beyond = t * -0.105808479 + 0.389874972
        beyond = beyond * t - 0.236995015
        beyond = beyond * t + 0.268911384
        beyond = beyond * t + 0.067496267
        beyond = beyond * t + 0.116520855
        beyond *= t * density
        below = choose(z, 0.0, beyond, 1.0 - beyond)
    else:
        below = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476))
    return below, density


@triton.jit
def _gelu(z, FORMULA: tl.constexpr):
    below, _ = _normal(z)
    return z * below


@triton.jit
def _gelu_slope(z, FORMULA: tl.constexpr):
    below, density = _normal(z)
    return below + z * density * 0.3989422804014327


@triton.jit
def _gelu_tanh(z, FORMULA: tl.constexpr):
    # (1 + tanh(a)) / 2 is the sigmoid of 2 a, without the sum that cancels.
    return z * sigmoid(z * (1.5957691216057308 + 0.07135481627260025 * (z * z)))


@triton.jit
def _gelu_tanh_slope(z, FORMULA: tl.constexpr):
    share = sigmoid(z * (1.5957691216057308 + 0.07135481627260025 * (z * z)))
    # Beyond 16 the share is 0 or 1: no cube of z is to overflow.
    near = choose(-tl.abs(z), -16.0, 16.0, z)
    inner = 1.5957691216057308 + 0.21406444881780076 * (near * near)
    return share + near * share * (1.0 - share) * inner


@triton.jit
def _hardswish(z, FORMULA: tl.constexpr):
    return z * choose(z, -3.0, 0.0, choose(-z, -3.0, 6.0, z + 3.0)) * 0.16666666666666666


@triton.jit
def _hardswish_slope(z, FORMULA: tl.constexpr):
    inside = choose(z, -3.0, 0.0, z * 0.3333333333333333 + 0.5)
    return choose(z, 3.0, inside, 1.0)


@dataclass(frozen=True)
class Activation:
    """Two functions of (z, formula)."""

    value: Any
    slope: Any


ACTIVATIONS: Final = {
    "relu": Activation(_relu, _relu_slope),
    "relu6": Activation(_relu6, _relu6_slope),
    "leaky_relu": Activation(_leaky_relu, _leaky_relu_slope),
    "silu": Activation(_silu, _silu_slope),
    "swish": Activation(_swish, _swish_slope),
    "gelu": Activation(_gelu, _gelu_slope),
    "gelu_tanh": Activation(_gelu_tanh, _gelu_tanh_slope),
    "hardswish": Activation(_hardswish, _hardswish_slope),
}
