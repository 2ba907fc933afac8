"""Reads the options of a public function: plain values out, or an error that names the option."""

import operator
from typing import Any

from normgrad.dtypes import FLOATS
from normgrad.errors import DtypeError, OptionError

# Every result is wanted: of most operators, and of the sums.
ALL = (True, True, True)
ALL_SUMS = (True, True, True, True)


def flag(name: str, value: Any) -> bool:
    """True or False, of Python or of NumPy; a 0 or a "no" is more likely a mistake."""
    if is_bool(value):
        return bool(value)
    raise OptionError(name, "must be True or False", repr(value))


def mask(value: Any, length: int) -> tuple[bool, ...]:
    """Which results are wanted."""
    try:
        bits: tuple[Any, ...] = tuple(value)
    except TypeError:
        bits = ()
    for bit in bits:
        if bit is not True and bit is not False:  # NumPy's, or none at all
            bits = tuple(bool(bit) for bit in bits if is_bool(bit))
            break
    if len(bits) != length:
        raise OptionError("output_mask", f"must be {length} booleans", repr(value))
    return bits


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
    raise OptionError(name, "must be a number", repr(value))


def integer(name: str, value: Any) -> int:
    """A whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise OptionError(name, "must be an integer", repr(value)) from None


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
        raise OptionError(name, rule, repr(value)) from None


def dtype_name(name: str, value: Any) -> str:
    """A floating-point type, given as a name or as a type of NumPy, torch, JAX or ml_dtypes."""
    own = getattr(value, "name", None) or getattr(value, "__name__", None) or value
    text = str(own).removeprefix("torch.")
    if text not in FLOATS:
        raise DtypeError(name, f"must be one of {', '.join(FLOATS)}", repr(value))
    return text


def choice(name: str, value: Any, allowed: tuple[str, ...], *, none: bool = False) -> Any:
    """One of a few words, or None where that is one too."""
    if (none and value is None) or (isinstance(value, str) and value in allowed):
        return value
    words = [repr(word) for word in allowed]
    listed = f"None or one of {', '.join(words)}" if none else " or ".join(words)
    raise OptionError(name, f"must be {listed}", repr(value))
