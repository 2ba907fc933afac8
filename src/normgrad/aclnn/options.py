"""Arguments that are no tensors, as C would have converted them."""

import operator
from typing import Any

from normgrad import options
from normgrad.aclnn.status import INVALID, fail
from normgrad.device.failures import whole
from normgrad.errors import OptionError


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
