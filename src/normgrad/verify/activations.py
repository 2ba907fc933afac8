"""How far from the truth an activation and its slope may be, in units of u.

``z`` comes with an error of its own, ``in_z``. An activation makes at most its steepest slope of
it, and its slope at most its sharpest bend; at a kink the slope may be that of either side.
"""

from dataclasses import dataclass
from typing import Any, Final

from normgrad.backends.reference.activations import ACTIVATIONS
from normgrad.backends.reference.backend import before_activation, slope, weights
from normgrad.core.dtypes import FLOATS
from normgrad.core.geometry import Geometry
from normgrad.core.operators import SWISH
from normgrad.core.plan import arithmetic
from normgrad.core.spec import Spec

Array = Any


@dataclass(frozen=True, slots=True)
class Bound:
    """Of one activation: its steepest slope, the sharpest bend of it, and where it has kinks.

    ``roundings`` are those of the value besides, relative to |z|: an exponential, a sum, two
    products and a division, or a polynomial; ``of_slope`` those of the slope, which is about 1.
    """

    steepest: float
    bend: float = 0.0
    roundings: float = 1.0
    of_slope: float = 0.0
    kinks: tuple[tuple[float, float], ...] = ()  # where, and how far apart both sides are


# sigmoid * (1 + z * (1 - sigmoid)): an argument of an exponential is off by |z| u, which the
# exponential itself outweighs: |z| exp(-|z|) < .37.
_BOUNDS: Final = {
    "relu": Bound(1.0, kinks=((0.0, 1.0),)),
    "relu6": Bound(1.0, kinks=((0.0, 1.0), (6.0, 1.0))),
    "leaky_relu": Bound(1.0, of_slope=1.0, kinks=((0.0, 1.0),)),
    "silu": Bound(1.1, 0.5, 8.0, 12.0),
    # Silu's, and t = scale * z, where both are rounded: off by 2 u |t|. |t sigmoid'(t)| < .23 and
    # |t slope'(t)| < .31 of that are less than a rounding each.
    "swish": Bound(1.1, 0.5, 9.0, 13.0),
    "gelu": Bound(1.13, 0.85, 8.0, 16.0),
    "gelu_tanh": Bound(1.13, 0.85, 8.0, 16.0),
    "hardswish": Bound(1.5, 1.0 / 3.0, 4.0, 4.0, kinks=((-3.0, 0.5), (3.0, 0.5))),
}


def near(spec: Spec, z: Array, in_z: Array, kink: float) -> Array:
    """1 where z may lie on the other side of a kink, or be rounded to it."""
    unit = FLOATS[arithmetic(spec)].unit_roundoff * 2
    data = FLOATS[spec.x.dtype]
    zone = in_z * unit + data.smallest + abs(kink) * 2 * data.unit_roundoff
    return (abs(z - kink) <= zone) * 1.0


def value(spec: Spec, z: Array, in_z: Array) -> Array:
    """The error of an output."""
    if spec.activation is None:
        return in_z
    bound = _BOUNDS[spec.activation]
    own = abs(spec.negative_slope) if spec.activation == "leaky_relu" else 0.0
    steepest = max(bound.steepest, own)
    return steepest * in_z + bound.roundings * abs(z)


def gradient(
    spec: Spec, geometry: Geometry, operands: dict[str, Array], derived: float
) -> tuple[Array, Array]:
    """What of dy goes through an activation, without its sign, and the error of that."""
    dy = abs(operands["dy"])
    if spec.activation is None or not geometry.size:
        return dy, 0.0 * dy
    mean, rstd = operands.get("mean", 0.0), operands["rstd"]
    if spec.rstd_is == "variance":
        rstd = 1.0 / (rstd + spec.eps) ** 0.5
    gamma = weights(operands.get("gamma", 1.0), geometry) + spec.weight_offset
    z = before_activation(operands, operands["x"], mean, rstd, gamma, geometry)
    through = slope(spec, geometry, operands, z)
    if "mask" in operands:
        return dy * through, 0.0 * dy
    bound = _BOUNDS[spec.activation]
    beta = abs(weights(operands.get("beta", 0.0), geometry))
    in_z = (4 + derived) * abs((operands["x"] - mean) * rstd * gamma) + 2 * beta + 2 * abs(z)
    # Swish's slope is one of scale * z.
    bend = bound.bend * (abs(spec.negative_slope) if spec.activation == SWISH else 1.0)
    in_slope = bend * in_z + bound.of_slope * (1.0 + 0.0 * z)
    unit = FLOATS[arithmetic(spec)].unit_roundoff
    for kink, gap in bound.kinks:
        apart = max(gap, abs(1.0 - spec.negative_slope)) if kink == 0.0 else gap
        in_slope = in_slope + near(spec, z, in_z, kink) * (apart / unit)
    return dy * abs(through), dy * (in_slope + abs(through))


assert set(_BOUNDS) == set(ACTIVATIONS)
