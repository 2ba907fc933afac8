"""How far a result is from the truth, as a share of its budget and in units in the last place."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normgrad.core.dtypes import FLOATS, FloatInfo

Values = NDArray[np.float64]
_BYTE = FloatInfo(1, 2.0**-9, 1.0, 255.0)  # of a mask


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

    def __str__(self) -> str:
        """Which element, and what it should be."""
        where = f"{self.role}{list(self.index)}"
        return f"{where} is {self.got:.9g}, should be {self.want:.9g}"


def measure(role: str, got: Any, want: Any, budget: Any, dtype: str) -> Measurement:
    """Compare float64 values of one result with the truth, element by element.

    Where the truth is not finite, or too large for the type, the result must not be finite
    either, and infinities must agree in sign; inf or nan depends on the order of operations.
    """
    got, want, budget = (np.asarray(array, np.float64) for array in (got, want, budget))
    got = got.reshape(want.shape)
    if want.size == 0:
        return Measurement(role, 0.0, 0.0, (), 0.0, 0.0)
    info = FLOATS.get(dtype, _BYTE)
    with np.errstate(all="ignore"):
        error = np.abs(got - want)
        # Without a finite budget there is nothing to be within.
        share = np.where(np.isfinite(budget), error / budget, np.inf)
        # Beyond the largest number plus half a step the type has only infinity.
        ceiling = info.largest + info.unit_roundoff * _binade(np.float64(info.largest))
        may_overflow = np.abs(want) + budget >= ceiling
        right_infinity = np.isinf(got) & (np.sign(got) == np.sign(want)) & may_overflow
        unbounded = ~np.isfinite(want)
        clash = np.isinf(got) & np.isinf(want) & (np.sign(got) != np.sign(want))
        share = np.where(right_infinity, 0.0, share)
        share = np.where(unbounded, np.where(np.isfinite(got) | clash, np.inf, 0.0), share)
        share = np.where(np.isnan(share), np.inf, share)
    worst = np.unravel_index(int(np.argmax(share)), want.shape)
    return Measurement(
        role,
        float(share[worst]),
        _ulps(float(error[worst]), float(want[worst]), info),
        tuple(int(axis) for axis in worst),
        float(got[worst]),
        float(want[worst]),
    )


def _ulps(error: float, want: float, info: FloatInfo) -> float:
    """An error in units of the truth's last place; nan where the truth is 0 and has none."""
    if error == 0 or not np.isfinite(error):
        return 0.0
    if want == 0:
        return float("nan")
    return error / max(2 * info.unit_roundoff * float(_binade(want)), info.smallest)


def _binade(values: Any) -> Any:
    """The power of two at or below each magnitude."""
    _, exponent = np.frexp(np.abs(values))
    return np.ldexp(1.0, exponent - 1)
