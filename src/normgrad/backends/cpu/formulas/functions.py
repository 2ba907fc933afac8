"""Exponentials and the like of vectors, from additions and products alone: no library's.

What they lose is counted in `verify/activations.py`; constants are for float32 and float64.
"""

from typing import Any, Final

from normgrad.backends.cpu.vectors import absolute, at_most, fma, times_power

_LOG2_E: Final = 1.4426950408889634
# Adding it rounds to whole numbers, as it has no other digits.
_ROUNDS: Final = (12582912.0, 6755399441055744.0)
# log(2) in two parts, of which the first has so few digits that its multiples are exact.
_LOG_2: Final = ((0.693359375, -2.12194440e-4), (0.693145751953125, 1.42860682030941723212e-6))
# Below and above is 0 or infinity.
_RANGE: Final = ((-104.0, 89.0), (-746.0, 710.0))

# The polynomials below are interpolations at Chebyshev's points, the highest power first.
# (e^r - 1 - r) / r^2 for r up to log(2) / 2: wrong by 2e-10 and 2e-19 of e^r.
_EXP: Final = (
    (0.0001989118, 0.0013933821, 0.0083333105, 0.041666463, 0.16666667, 0.5),
    (
        2.091483135138041e-09,
        2.5105419192016337e-08,
        2.7557273295539724e-07,
        2.75572549134867e-06,
        2.4801587325822283e-05,
        0.00019841269875205077,
        0.001388888888888367,
        0.008333333333326025,
        0.04166666666666667,
        0.1666666666666667,
        0.5,
    ),
)
# Mills' ratio times x + 4, for x up to 16 and 40, by (x - 4) / (x + 4): wrong by 3e-8 and 2e-17.
_MILLS: Final = (
    (
        -0.00032616826,
        0.0004488103,
        0.0039187875,
        -0.008813102,
        -0.018855827,
        0.15141408,
        -0.46754596,
        0.97040784,
        -1.5237707,
        1.8932191,
    ),
    (
        -2.504278100072593e-09,
        -2.5449689529723054e-11,
        3.503396065688261e-08,
        3.720435461946099e-08,
        -1.913738708205787e-07,
        -3.875740664956201e-07,
        6.606046000981803e-07,
        2.556939661121923e-06,
        -1.5666193588407984e-06,
        -1.4836765810327453e-05,
        1.7920658392698971e-06,
        8.809348292914504e-05,
        -4.78225422485959e-06,
        -0.0005792688203351963,
        0.00033424446676699103,
        0.004087855618711533,
        -0.00872229526111558,
        -0.018900450857296344,
        0.15139176231183882,
        -0.4675409629984748,
        0.9704095548675995,
        -1.5237709108199822,
        1.8932190633084853,
    ),
)
_MILLS_ENDS: Final = (16.0, 40.0)


def is_wide(values: Any) -> bool:
    """Whether lanes are float64."""
    kind = getattr(values, "kind", None)
    return bool(kind.wide) if kind is not None else values.dtype.itemsize == 8


def polynomial(x: Any, factors: tuple[float, ...]) -> Any:
    """Of x, the highest power first."""
    result = fma(x, factors[0], factors[1])
    for factor in factors[2:]:
        result = fma(x, result, factor)
    return result


def exp(x: Any) -> Any:
    """E to the power of x, within one unit of its last place."""
    high = _RANGE[is_wide(x)][1]
    return exp_below(at_most(-x, -high, high, x))


def exp_below(x: Any) -> Any:
    """The same where it does not overflow."""
    wide = is_wide(x)
    low = _RANGE[wide][0]
    x = at_most(x, low, low, x)
    whole = fma(x, _LOG2_E, _ROUNDS[wide]) - _ROUNDS[wide]
    most, rest = _LOG_2[wide]
    r = fma(whole, -rest, fma(whole, -most, x))
    return times_power(fma(r * r, polynomial(r, _EXP[wide]), r) + 1.0, whole)


def sigmoid(z: Any) -> tuple[Any, Any]:
    """``1 / (1 + exp(-z))`` and its slope; of large numbers neither overflows nor cancels."""
    below = exp_below(-absolute(z))
    share = 1.0 / (1.0 + below)
    other = below * share
    return at_most(z, 0.0, other, share), other * share


def normal(z: Any) -> tuple[Any, Any]:
    """The share of a normal distribution below z, and its density there.

    The share beyond |z| is the density times Mills' ratio: small ones keep their digits.
    """
    wide = is_wide(z)
    density = exp_below(z * z * -0.5) * 0.3989422804014327
    far = absolute(z)
    far = at_most(far, _MILLS_ENDS[wide], far, _MILLS_ENDS[wide])
    inverse = 1.0 / (far + 4.0)
    beyond = density * (polynomial((far - 4.0) * inverse, _MILLS[wide]) * inverse)
    return at_most(z, 0.0, beyond, 1.0 - beyond), density
