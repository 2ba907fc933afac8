"""Reads the options of a public function: plain values out, or an error that names the option."""

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from normgrad.core.dtypes import FLOATS
from normgrad.core.errors import DtypeError, OptionError

# Every result is wanted: of most operators, and of the sums.
ALL = (True, True, True)
ALL_SUMS = (True, True, True, True)
BOTH = (True, True)


def flag(name: str, value: Any) -> bool:
    """True or False, of Python or of NumPy; a 0 or a "no" is more likely a mistake."""
    if is_bool(value):
        return bool(value)
    raise OptionError(name, "must be True or False", described(value))


def mask(value: Any, length: int, most: int | None = None) -> tuple[bool, ...]:
    """Which results are wanted, of so many or of all that fused calls have."""
    try:
        bits: tuple[Any, ...] = tuple(value)
    except TypeError:
        bits = ()
    for bit in bits:
        if bit is not True and bit is not False:  # NumPy's, or none at all
            bits = tuple(bool(bit) for bit in bits if is_bool(bit))
            break
    if len(bits) not in (length, most or length):
        raise OptionError("output_mask", f"must be {length} booleans", described(value))
    return bits


def described(value: Any) -> str:
    """A value for a message: an array by its type and shape, anything else as Python shows it."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if dtype is not None and shape is not None and not isinstance(value, type):
        kind = type(value).__name__
        return f"a {kind} of shape {tuple(shape)} and type {str(dtype).removeprefix('torch.')}"
    text = " ".join(repr(value).split())  # a model's has a line for each of its parts
    return text if len(text) <= 100 else f"{text[:97]}..."


def is_bool(value: Any) -> bool:
    """Whether it is one of Python or of NumPy, whose class has the same name."""
    return type(value).__name__ == "bool"


def number(name: str, value: Any) -> float:
    """A real number; text is none."""
    if type(value) is float:
        return value
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is torch's
        pass
    raise OptionError(name, "must be a number", described(value))


def step_at_1(array: Any) -> float:
    """The distance from 1 to the next number of an array's type, torch's default for some eps."""
    return _step_of(getattr(array, "dtype", None))


@functools.cache
def _step_of(dtype: Any) -> float:
    name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    # An array of another type is refused later, with its name.
    return 2 * FLOATS[name].unit_roundoff if name in FLOATS else 0.0


def integer(name: str, value: Any) -> int:
    """A whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(name, "must be an integer", described(value)) from None


def sizes(name: str, value: Any) -> tuple[int, ...]:
    """One size or several."""
    if value.__class__ is tuple and len(value) == 1 and value[0].__class__ is int:
        return value  # the usual
    try:
        if hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0:
            return (operator.index(value),)
        return tuple([operator.index(size) for size in value])
    except TypeError:
        rule = "must be an integer or a sequence of integers"
        raise OptionError(name, rule, described(value)) from None


def dtype_name(name: str, value: Any) -> str:
    """A floating-point type, given as a name or as a type of NumPy, torch, JAX or ml_dtypes."""
    own = getattr(value, "name", None) or getattr(value, "__name__", None) or value
    text = str(own).removeprefix("torch.")
    if text not in FLOATS:
        raise DtypeError(name, f"must be one of {', '.join(FLOATS)}", described(value))
    return text


def choice(
    name: str,
    value: Any,
    allowed: tuple[str, ...],
    *,
    none: bool = False,
    also: Mapping[str, Sequence[str]] = {},
) -> Any:
    """One of a few words, or None where that is one too; ``also`` is what else people call them."""
    if (none and value is None) or (isinstance(value, str) and value in allowed):
        return value
    words = [repr(word) for word in allowed]
    listed = f"None or one of {', '.join(words)}" if none else " or ".join(words)
    end = _meant(value, allowed, also) if isinstance(value, str) else ""
    raise OptionError(name, f"must be {listed}", described(value) + end)


def _meant(text: str, allowed: tuple[str, ...], also: Mapping[str, Sequence[str]]) -> str:
    import difflib

    words = {word: own for own in allowed for word in (own, *also.get(own, ()))}
    close = difflib.get_close_matches(text.lower(), words, 1)
    return f": did you mean {words[close[0]]!r}?" if close else ""
