"""Rounding into each type, once and to nearest even, against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgrad.arrays import host_memory
from normgrad.core.dtypes import FLOATS

BITS = {"float16": (11, -14), "bfloat16": (8, -126), "float32": (24, -126)}


def rounded(value: float, dtype: str) -> Fraction | str:
    """The nearest number of the type, ties to even, by integers alone."""
    digits, least = BITS[dtype]
    exact = Fraction(value)
    if exact == 0:
        return exact
    exponent = least
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - digits + 1)
    count = round(exact / step)  # Python rounds fractions half to even
    result = count * step
    return "inf" if abs(result) > Fraction(FLOATS[dtype].largest) else result


def narrowed(value: float, dtype: str) -> float:
    return float(host_memory.widen(host_memory.narrow(np.array([value]), dtype), dtype)[0])


def check(value: float, dtype: str) -> None:
    got, want = narrowed(value, dtype), rounded(value, dtype)
    if want == "inf":
        assert np.isinf(got)
        assert np.sign(got) == np.sign(value)
    else:
        assert Fraction(got) == want, (value, got, float(want))
        assert np.signbit(got) == np.signbit(value)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
NEAR = st.builds(
    lambda sign, exponent, digits: sign * np.ldexp(1 + digits * 2.0**-52, exponent),
    st.sampled_from([-1.0, 1.0]),
    st.integers(-152, 129),
    st.integers(0, 2**52 - 1),
)


@pytest.mark.parametrize("dtype", BITS)
@given(value=FINITE | NEAR)
@settings(max_examples=400)
def test_any_number(dtype, value):
    check(value, dtype)


@pytest.mark.parametrize("dtype", BITS)
@given(data=st.data())
@settings(max_examples=400)
def test_ties_and_their_neighbours(dtype, data):
    """Halfway between two numbers of the type, and one float64 step to either side of that."""
    digits, least = BITS[dtype]
    exponent = data.draw(st.integers(least - digits, 15 if dtype == "float16" else 127))
    step = np.ldexp(1.0, max(exponent, least) - digits + 1)
    count = data.draw(st.integers(0, 2**digits))
    tie = (count + 0.5) * step
    for value in (tie, np.nextafter(tie, 0), np.nextafter(tie, np.inf)):
        check(float(value), dtype)
        check(-float(value), dtype)


def test_what_two_roundings_would_get_wrong():
    """1 + 2**-8 is a tie of bfloat16; a little more than it is no tie, but is one as float32."""
    value = 1 + 2.0**-8 + 2.0**-40
    assert narrowed(value, "bfloat16") == 1 + 2.0**-7
    assert narrowed(float(np.float32(value)), "bfloat16") == 1.0


@pytest.mark.parametrize("dtype", [*BITS, "float64"])
def test_special_numbers(dtype):
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0])
    got = host_memory.widen(host_memory.narrow(values, dtype), dtype)
    assert np.isnan(got[:2]).all()
    np.testing.assert_array_equal(got[2:4], [np.inf, -np.inf])
    np.testing.assert_array_equal(np.signbit(got[4:]), [False, True])


@pytest.mark.parametrize("dtype", BITS)
def test_the_ends_of_the_range(dtype):
    info = FLOATS[dtype]
    digits, _ = BITS[dtype]
    half = info.largest + np.ldexp(1.0, int(np.log2(info.largest)) - digits)  # a tie with infinity
    for value in (info.largest, half, np.nextafter(half, 0), 2 * info.largest, 1e308):
        check(float(value), dtype)
    for value in (
        info.smallest,
        info.smallest / 2,
        info.smallest * 0.75,
        info.smallest / 4,
        5e-324,
    ):
        check(float(value), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_number_of_a_narrow_type_survives(dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    stored = bits.view(host_memory.STORAGE[dtype])
    values = host_memory.widen(stored, dtype)
    again = np.asarray(host_memory.narrow(values, dtype)).view(np.uint16)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(again[number], bits[number])


def test_the_table_of_types_is_that_of_numpy():
    for name in ("float16", "float32", "float64"):
        info, own = np.finfo(name), FLOATS[name]
        assert own.largest == float(info.max)
        assert own.smallest == float(info.smallest_subnormal)
        assert own.unit_roundoff == float(info.eps) / 2
        assert own.itemsize == np.dtype(name).itemsize
