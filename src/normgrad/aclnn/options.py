"""Arguments that are no tensors, as C would have converted them."""

import operator
from collections.abc import Callable
from typing import Any, Final

from normgrad.aclnn.status import INVALID, StatusError, fail
from normgrad.aclnn.tensors import aclBoolArray, aclIntArray, living
from normgrad.core import options
from normgrad.core.errors import OptionError
from normgrad.device.failures import described, is_null, whole


def truth(name: str, value: Any) -> bool:
    """A boolean, or an integer that stands for one."""
    try:
        return bool(operator.index(value))
    except TypeError:
        if options.is_bool(value):  # NumPy's, which is no integer
            return bool(value)
        fail(INVALID, f"{name} must be a boolean, got {value!r}")


def number(name: str, value: Any) -> float:
    """A double."""
    try:
        return options.number(name, value)
    except OptionError as error:
        fail(INVALID, str(error))


def integer(name: str, value: Any) -> int:
    """An int64."""
    number = whole(INVALID, name, value)
    if not -(2**63) <= number < 2**63:
        fail(INVALID, f"{name} must be an int64, got {number}")
    return number


def is_set(value: Any) -> bool:
    """Whether a boolean is true; what is none is not, and is refused by `truth`."""
    try:
        return truth("", value)
    except StatusError:
        return False


def _int32(name: str, value: Any) -> int:
    number = whole(INVALID, name, value)
    if not -(2**31) <= number < 2**31:
        fail(INVALID, f"{name} must be an int32, got {number}")
    return number


def _text(name: str, value: Any) -> str | None:
    if is_null(value):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        fail(INVALID, f"{name} must be text, got {described(value)}")
    return value


# What reads an argument, by the kind of its parameter.
READERS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "mask": lambda name, value: living(value, name, aclBoolArray).values,
    "sizes": lambda name, value: living(value, name, aclIntArray).values,
    "bool": truth,
    "int": integer,
    "int32": _int32,
    "double": number,
    "text": _text,
}
