"""How far a result is from the truth, as a share of its budget and in units in the last place."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrad.dtypes import FLOATS

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The worst element of one result. A share up to 1 is right."""

    role: str
    share: float
    ulps: float
    index: tuple[int, ...]
    got: float
    want: float

    @property
    def ok(self) -> bool:
        """Within the budget everywhere."""
        return self.share <= 1.0


def measure(role: str, got: Any, want: Any, budget: Any, dtype: str) -> Measurement:
    """Compare float64 values of one result with the truth, element by element.

    Where the truth is not finite, or too large for the type, the result must not be finite
    either, and infinities must agree in sign; inf or nan depends on the order of operations.
    """
    got, want, budget = (np.asarray(array, np.float64) for array in (got, want, budget))
    got = got.reshape(want.shape)
    if want.size == 0:
        return Measurement(role, 0.0, 0.0, (), 0.0, 0.0)
    info = FLOATS[dtype]
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        share = error / budget
        # Beyond the largest number plus half a step the type has only infinity.
        ceiling = info.largest * (1 + info.unit_roundoff)
        overflow = ~np.isfinite(want) | (np.abs(want) >= ceiling)
        may_overflow = np.abs(want) + budget >= ceiling
        agree = np.isnan(got) | np.isnan(want) | (np.sign(got) == np.sign(want))
        share = np.where(~np.isfinite(got) & (overflow | may_overflow) & agree, 0.0, share)
        share = np.where(overflow & np.isfinite(got) & ~may_overflow, np.inf, share)
        share = np.where(~np.isfinite(want) & np.isfinite(got), np.inf, share)
        share = np.where(np.isnan(share), np.inf, share)
        step = np.maximum(2 * info.unit_roundoff * _binade(want), info.smallest)
        ulps = np.where(np.isfinite(error), error / step, 0.0)
    worst = np.unravel_index(int(np.argmax(share)), want.shape)
    return Measurement(
        role,
        float(share[worst]),
        float(ulps.max()),
        tuple(int(axis) for axis in worst),
        float(got[worst]),
        float(want[worst]),
    )


def _binade(values: Values) -> Values:
    """The power of two at or below each magnitude."""
    _, exponent = np.frexp(np.abs(values))
    powers: Values = np.ldexp(1.0, exponent - 1)
    return powers
