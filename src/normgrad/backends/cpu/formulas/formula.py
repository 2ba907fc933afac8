"""What is computed of elements, in the language of the kernels. Where they lie is the schedules'.

A formula is a value that kernels are specialized on, as `Format` is: closures would be compiled
anew in every process. Numba gets the instructions that a method leaves (see `tracing`); without the
compiler it is called. Another operator is a subclass with a few of them; what may follow any of
them is in `activations`.

Kernels hold the factors of an element as a tuple ``v``: mean, dy_factor, beta, x_factor, constant.
Sums know the first three: dy_factor is rstd * gamma. In rows, which have statistics of their own,
``m`` and ``s`` are mean and rstd, ``g`` and ``h`` gamma and beta; ``p`` and ``q`` are the two sums.
"""

from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cpu.formulas.activations import ACTIVATIONS, ZERO
from normgrad.backends.cpu.vectors import (
    any_above,
    as_stored,
    bits_above,
    fma,
    in_float32,
    in_type_of,
    kept,
    kept_where,
)
from normgrad.backends.cpu.vectors.formats import STORED
from normgrad.core.operators import NUMBERED


@dataclass(frozen=True, slots=True)
class Formula:
    """The gradient: ``dx = dy_factor * dy + x_factor * (x - mean) + constant``."""

    # The type that a sum of two tensors is rounded to before it is normalized.
    residual: str | None = None
    activation: str | None = None  # what follows the norm
    dtype: str = ""  # of the data, by which it is decided where a ReLU is open
    # Leaky ReLU's, or swish's scale, in kernels: a number that this value carries.
    negative_slope: Any = None

    def with_slope(self, slope: Any) -> Any:
        """The same with the number of its activation, where that has one."""
        return replace(self, negative_slope=slope) if self.activation in NUMBERED else self

    def before(self, t: Any, dy_factor: Any, beta: Any) -> Any:
        """What the norm gives, in the same bits wherever: of data in 32 bits or less in float32."""
        if self.dtype != "float64":
            t, dy_factor, beta = in_float32(t), in_float32(dy_factor), in_float32(beta)
        return fma(t, dy_factor, beta)

    def after(self, z: Any, like: Any) -> Any:
        """What follows, as wide as others are."""
        if self.activation is not None:
            z = ACTIVATIONS[self.activation].value(z, self.dtype, self.negative_slope)
        return in_type_of(z, like)

    def through(self, d: Any, z: Any) -> Any:
        """The gradient before it."""
        if self.activation is None:
            return d
        return ACTIVATIONS[self.activation].through(d, z, self.dtype, self.negative_slope)

    def joined(self, x: Any, r: Any, v: Any) -> Any:
        """`before` with a shortcut."""
        z = self.before(self.centre(x, v[0]), v[1], v[2])
        return z + (r if self.dtype == "float64" else in_float32(r))

    def opened(self, d: Any, x: Any, r: Any, v: Any) -> Any:
        """The gradient before an activation of a norm and a shortcut."""
        return self.through(d, self.joined(x, r, v))

    def open_bits(self, z: Any) -> Any:
        """Where ReLU is open, a bit for each lane."""
        return bits_above(z, ZERO[self.dtype])

    def kept_where(self, d: Any, bits: Any) -> Any:
        """The gradient before a ReLU that left these bits."""
        return kept_where(d, bits)

    def given(self, rstd: Any) -> Any:
        """The statistic of these data as the gradient will get it, which makes the same of it."""
        if self.activation is None or self.dtype == "float64":
            return rstd
        return in_type_of(in_float32(rstd), rstd)

    def met(self, d: Any, x: Any) -> Any:
        """What the norm meets in elements of both tensors: the second's."""
        return x

    def centre(self, x: Any, mean: Any) -> Any:
        """What of x the statistics leave."""
        return x - mean

    def seen(self, d: Any, t: Any, dy_factor: Any, beta: Any) -> Any:
        """The gradient before what followed the norm, an activation."""
        return d if self.activation is None else self.through(d, self.before(t, dy_factor, beta))

    def reads_both(self) -> bool:
        """Whether dy and x are two tensors; the one that is not read is the other."""
        return True

    def fused(self) -> bool:
        """Whether `seen` reads dy_factor and beta: sums of others do without."""
        return self.activation is not None

    def reads_beta(self) -> bool:
        """Whether what is written depends on beta."""
        return self.fused()

    def own_statistics(self) -> bool:
        """Whether mean and rstd are made of these data: what is summed are distances then."""
        return False

    def part_centre(self, x: Any, mean: Any, part: Any) -> Any:
        """`centre` of the first lanes, of which the others are not there: their dy is 0."""
        return self.centre(x, mean)

    def first(self, d: Any, t: Any) -> Any:
        """An element's share of the two sums."""
        return d, d * t

    def added(self, p: Any, q: Any, d: Any, t: Any) -> Any:
        """Both sums with one more."""
        return p + d, fma(d, t, q)

    def result(
        self, d: Any, t: Any, dy_factor: Any, beta: Any, x_factor: Any, constant: Any
    ) -> Any:
        """What is written."""
        return fma(dy_factor, d, fma(x_factor, t, constant))

    def share(self, p: Any, q: Any, d: Any, x: Any, v: Any) -> Any:
        """Both sums with one more element of dy and x."""
        t = self.centre(x, v[0])
        return self.added(p, q, self.seen(d, t, v[1], v[2]), t)

    def part_share(self, p: Any, q: Any, d: Any, x: Any, v: Any, part: Any) -> Any:
        """The same of the first lanes."""
        t = self.part_centre(x, v[0], part)
        return self.added(p, q, self.seen(d, t, v[1], v[2]), t)

    def element(self, d: Any, x: Any, v: Any) -> Any:
        """What is written of an element of dy and x."""
        t = self.centre(x, v[0])
        return self.result(self.seen(d, t, v[1], v[2]), t, v[1], v[2], v[3], v[4])

    def coefficients(self, factor: Any, rstd: Any, total: Any, sum_dy: Any, sum_xmu: Any) -> Any:
        """x_factor and constant of one statistic or of lanes, from its sums over so many elements.

        ``factor`` is dy_factor; where a statistic belongs to a row rstd alone, as gamma is inside
        the sums.
        """
        return -factor * (rstd * (sum_xmu * rstd / total)), -factor * (sum_dy / total)

    def row_share(
        self, p: Any, q: Any, d: Any, x: Any, m: Any, s: Any, g: Any, h: Any
    ) -> Any:  # fmt: skip
        """`share` where a row has its own mean and rstd and gamma and beta are by column."""
        t = self.centre(self.met(d, x), m)
        return self.added(p, q, self.weighed(self.seen(d, t, s * g, h), g), t)

    def part_row_share(
        self, p: Any, q: Any, d: Any, x: Any, m: Any, s: Any, g: Any, h: Any, part: Any
    ) -> Any:  # fmt: skip
        """The same of the first lanes."""
        t = self.part_centre(self.met(d, x), m, part)
        return self.added(p, q, self.weighed(self.seen(d, t, s * g, h), g), t)

    def row_distance(self, d: Any, x: Any, m: Any) -> Any:
        """`centre` of what the norm meets."""
        return self.centre(self.met(d, x), m)

    def weighed(self, d: Any, g: Any) -> Any:
        """What the sums of a row have of dy."""
        return d * g

    def row_result(
        self, w: Any, t: Any, s: Any, g: Any, h: Any, x_factor: Any, constant: Any
    ) -> Any:
        """`result` there; ``w`` is s times what is seen of dy."""
        return self.result(w, t, g, h, x_factor, constant)

    def row_coefficients(
        self, rstd: Any, sum_g: Any, sum_xmu: Any, inverse: Any, share: Any
    ) -> Any:
        """The same of a row, or of rows in lanes, from two shares of an element."""
        return -rstd * rstd * (sum_xmu * rstd * inverse), -rstd * (sum_g * share)

    def start(self, first: Any) -> Any:
        """From where distances are measured: an element, so that equal ones have none."""
        return first

    def row_start(self, d: Any, x: Any) -> Any:
        """The same in a row, from an element of both tensors."""
        return self.start(self.met(d, x))

    def moments(self, start: Any, p: Any, q: Any, count: Any) -> Any:
        """Mean and squared distances from it, of so many elements' sums."""
        off = p / count
        return start + off, q - p * off

    def lost(self, q: Any, squares: Any) -> Any:
        """Whether they are from so far away that digits are lost: more than 1 of 16 is left."""
        twice = squares + squares
        four = twice + twice
        eight = four + four
        return any_above(q, eight + eight)

    def merged(
        self, mean: Any, squares: Any, other: Any, others: Any, share: Any, weight: Any
    ) -> Any:  # fmt: skip
        """Chan's rule: the others are ``share`` of all, ``weight`` that times those before."""
        apart = other - mean
        return mean + apart * share, (squares + others) + apart * apart * weight


@dataclass(frozen=True, slots=True)
class ConstantStatistics(Formula):
    """The gradient where the statistics do not depend on the data."""

    def reads_both(self) -> bool:
        """Dy alone, but for an activation."""
        return self.fused()

    def result(
        self, d: Any, t: Any, dy_factor: Any, beta: Any, x_factor: Any, constant: Any
    ) -> Any:
        """Batch norm in inference."""
        return dy_factor * d


@dataclass(frozen=True, slots=True)
class RootMeanSquareGradient(Formula):
    """``dx = dy_factor * dy + x_factor * x``: without a mean there is one sum."""

    def centre(self, x: Any, mean: Any) -> Any:
        """All of it."""
        return x

    def added(self, p: Any, q: Any, d: Any, t: Any) -> Any:
        """The second sum alone."""
        return p, fma(d, t, q)

    def result(
        self, d: Any, t: Any, dy_factor: Any, beta: Any, x_factor: Any, constant: Any
    ) -> Any:
        """Without the constant."""
        return fma(dy_factor, d, x_factor * t)


@dataclass(frozen=True, slots=True)
class GivenStatistics(Formula):
    """The norm itself, ``y = (x - mean) * dy_factor + beta``: a far mean goes before all else.

    In the place of dy it has a residual, which is added before.
    """

    def reads_both(self) -> bool:
        """X alone, or the residual too."""
        return self.residual is not None

    def met(self, d: Any, x: Any) -> Any:
        """Their sum, rounded: it is handed out and read by the gradient."""
        if self.residual is None:
            return x
        return as_stored(STORED[self.residual], x + d)

    def seen(self, d: Any, t: Any, dy_factor: Any, beta: Any) -> Any:
        """There is no dy: sums are of distances."""
        return t

    def fused(self) -> bool:
        """Nor do they know what follows."""
        return False

    def weighed(self, d: Any, g: Any) -> Any:
        """As they are."""
        return d

    def part_centre(self, x: Any, mean: Any, part: Any) -> Any:
        """What is not there has no distance."""
        return kept(self.centre(x, mean), part)

    def reads_beta(self) -> bool:
        """It does."""
        return True

    def result(
        self, d: Any, t: Any, dy_factor: Any, beta: Any, x_factor: Any, constant: Any
    ) -> Any:
        """In this order."""
        if self.activation is None:
            return fma(t, dy_factor, beta)
        return self.after(self.before(t, dy_factor, beta), t)

    def row_result(
        self, w: Any, t: Any, s: Any, g: Any, h: Any, x_factor: Any, constant: Any
    ) -> Any:
        """The same with rstd and gamma apart."""
        return self.result(w, t, s * g, h, x_factor, constant)


@dataclass(frozen=True, slots=True)
class Norm(GivenStatistics):
    """The norm with statistics of these data."""

    def own_statistics(self) -> bool:
        """Yes."""
        return True


@dataclass(frozen=True, slots=True)
class RootMeanSquare(Norm):
    """``y = x * dy_factor``: distances are from 0."""

    def centre(self, x: Any, mean: Any) -> Any:
        """All of it."""
        return x

    def start(self, first: Any) -> Any:
        """Not from an element."""
        return 0.0

    def moments(self, start: Any, p: Any, q: Any, count: Any) -> Any:
        """The squares are what they are."""
        return start, q

    def lost(self, q: Any, squares: Any) -> Any:
        """Nothing was taken away."""
        return False
