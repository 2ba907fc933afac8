"""What the kernels compute: the arithmetic of each operator, element by element.

A schedule says where data lie meanwhile and calls these functions; it names no operator. Nothing
here adds up along an axis or knows a layout, so that every schedule can call it, of Triton or of
Gluon.
"""

import functools
import re
from dataclasses import dataclass, replace
from typing import Any

import triton
import triton.language as tl

from normgrad.backends.cuda import activations
from normgrad.backends.cuda.activations import Activation
from normgrad.core.dtypes import FLOATS


@triton.jit
def centred(x, mean):
    """What dy is multiplied by in the second sum, but for the deviation."""
    return x - mean


@triton.jit
def terms(d, t):
    """What the two sums add up; ``t`` is what `centred` gave, or that over the deviation."""
    return d, d * t


@triton.jit
def coefficients(mean_d, mean_dt, factor):
    """The factor of `centred` and the constant in dx, from the means of the two terms."""
    return mean_dt * -factor, mean_d * -factor


@triton.jit
def element(d, t, dy_factor, x_factor, constant):
    """Dx."""
    return d * dy_factor + (t * x_factor + constant)


@triton.jit
def uncentred(x, mean):
    """The same where the data have no mean: root mean squares."""
    return x


@triton.jit
def element_of_one_sum(d, t, dy_factor, x_factor, constant):
    """Dx without the first sum, which the constant is made of."""
    return d * dy_factor + t * x_factor


@triton.jit
def pivot(count, x, before):
    """What distances are taken from: the first element."""
    return tl.where(count == 0, x, before)


@triton.jit
def no_pivot(count, x, before):
    """The same of root mean squares: 0, that is."""
    return before


@triton.jit
def normalized(t, dy_factor, beta):
    """Y of what `centred` gave; ``dy_factor`` is gamma over the deviation."""
    return t * dy_factor + beta


@triton.jit
def gradient_seen(d, t, dy_factor, x_factor, constant):
    """What of dy goes through an activation, without any sums."""
    return d


@dataclass(frozen=True, repr=False)
class Formula:
    """The functions of one operator, as a compile-time value of the kernels.

    Gradients have terms and coefficients; what has a pivot makes statistics, and y of them.
    """

    name: str
    centred: Any
    element: Any
    terms: Any = None
    coefficients: Any = None
    pivot: Any = None
    weight_offset: float = 0.0  # what is added to gamma
    activation: Activation | None = None
    negative_slope: float = 0.0
    data: str = "float64"  # the type whose numbers z is rounded to
    biased: bool = False  # the running variance is updated by the biased one

    @property
    def acts(self) -> bool:
        """Whether an activation follows."""
        return self.activation is not None

    @property
    def act(self) -> Any:
        """What an activation makes of z: a function of z and this formula."""
        return self.activation.value if self.activation else None

    @property
    def slope(self) -> Any:
        """Its slope there."""
        return self.activation.slope if self.activation else None

    @property
    def closed(self) -> float:
        """The largest z that is rounded to 0, or less: ties go to the even number, 0."""
        return FLOATS[self.data].smallest / 2

    @property
    def six(self) -> float:
        """The smallest z that is rounded to 6, or more: 6 is even, and numbers there 8 u apart."""
        return 6.0 - 4.0 * FLOATS[self.data].unit_roundoff

    @property
    def forward(self) -> bool:
        """Whether it makes y."""
        return self.pivot is not None

    @property
    def sums(self) -> bool:
        """Whether it subtracts sums, or is multiplied by gamma without any."""
        return self.terms is not None

    @property
    def has_mean(self) -> bool:
        """Whether the data have a mean."""
        return self.centred is centred

    def __repr__(self) -> str:
        return self.name  # a part of compiled functions' names

    @property
    def cache_key(self) -> str:
        """What Triton's cache tells kernels of different formulas apart by."""
        functions = (
            *(self.centred, self.element, self.terms, self.coefficients, self.pivot),
            *(self.act, self.slope),
        )
        return "-".join([self.name, *(one.cache_key for one in functions if one is not None)])


_FORMULAS = {
    one.name: one
    for one in (
        Formula("gradient", centred, element, terms, coefficients),
        Formula("gradient_of_rms", uncentred, element_of_one_sum, terms, coefficients),
        Formula("slope", centred, gradient_seen),
        Formula("norm", centred, normalized, pivot=pivot),
        Formula("rms_norm", uncentred, normalized, pivot=no_pivot),
    )
}


@functools.cache
def formula_named(text: str) -> Formula:
    """The formula of a plan: a name, what is added to gamma if that is not 0, an activation.

    An activation stands there with the type of the data and, if it has one, its number:
    ``norm leaky_relu:bfloat16:0.01``. ``biased`` says how the running variance is updated.
    """
    name, *words = text.split(" ")
    made = replace(_FORMULAS[name], name=re.sub(r"\W", "_", text.replace("-", "minus")))
    for word in words:
        first, *details = word.split(":")
        if details:
            slope = float(details[1]) if len(details) > 1 else 0.0
            one = activations.ACTIVATIONS[first]
            made = replace(made, activation=one, data=details[0], negative_slope=slope)
        elif first == "biased":
            made = replace(made, biased=True)
        else:
            made = replace(made, weight_offset=float(first))
    return made
