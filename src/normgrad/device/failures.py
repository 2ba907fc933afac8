"""How functions that return a status fail: with a sentence, and never with an exception."""

import functools
import operator
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

import numpy as np

from normgrad.device import messages

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
AnyStatus = TypeVar("AnyStatus", bound=IntEnum)

INTEGERS: Final = (int, np.integer)  # what may be an address; an array is a buffer
# No shape or mask is longer: a count beyond it is garbage, and must not be followed.
LONGEST: Final = 4096


class StatusError(Exception):
    """A status on its way out, with its sentence."""

    def __init__(self, status: Any, sentence: str) -> None:
        self.status = status
        self.sentence = sentence
        super().__init__(status, sentence)


def fail(status: IntEnum, sentence: str) -> NoReturn:
    """Leave the function with a status."""
    raise StatusError(status, sentence)


def reports(
    inner: AnyStatus, out_of_memory: AnyStatus, answer: Callable[[AnyStatus], Returned]
) -> Callable[[Callable[Arguments, Returned]], Callable[Arguments, Returned]]:
    """Turn every exception into a status and a sentence; ``answer`` adds empty results to it."""

    def decorate(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
        name = function.__name__

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Returned:
            try:
                return function(*args, **kwargs)
            except StatusError as failed:
                status, sentence = failed.status, failed.sentence
            except MemoryError as error:
                status, sentence = out_of_memory, f"not enough memory: {error}"
            except Exception as error:
                status, sentence = inner, f"{type(error).__name__}: {error}"
            messages.record(f"{name}: {sentence}")
            return answer(status)

        return call

    return decorate


def is_null(pointer: Any) -> bool:
    """Whether what stands for a pointer, to memory or to an object of ours, is null: None or 0."""
    return pointer is None or (isinstance(pointer, INTEGERS) and pointer == 0)


def whole(status: IntEnum, name: str, value: Any) -> int:
    """An integer, or the status."""
    try:
        return operator.index(value)
    except TypeError:
        fail(status, f"{name} must be an integer, got {value!r}")


def byte_count(status: IntEnum, name: str, value: Any) -> int:
    """A number of bytes, or the status."""
    if not isinstance(value, INTEGERS) or value < 0:
        fail(status, f"{name} must be a number of bytes, got {value!r}")
    return int(value)


def not_null(status: IntEnum, name: str, pointer: Any) -> int:
    """An address that is not null, or the status."""
    if is_null(pointer):
        fail(status, f"{name} must not be null")
    return whole(status, name, pointer)


def one_of(status: IntEnum, name: str, value: Any, choices: type[IntEnum]) -> int:
    """A value of an enumeration, or the status."""
    if not isinstance(value, INTEGERS) or value not in tuple(choices):
        fail(status, f"{name} must be a value of {choices.__name__}, got {value!r}")
    return int(value)


def length(status: IntEnum, name: str, count: Any) -> int:
    """How many elements an array has, or the status for a number that no array has."""
    number = whole(status, name, count)
    if not 0 <= number <= LONGEST:
        fail(status, f"{name} must be 0 to {LONGEST}, got {number}")
    return number


def items(
    status: IntEnum, null: IntEnum, name: str, values: Any, count: Any, counted: str
) -> tuple[Any, ...]:
    """The first elements of an array, as many as ``counted`` says; ``null`` for no array at all."""
    number = length(status, counted, count)
    if number == 0:
        return ()
    if is_null(values):
        fail(null, f"{name} must not be null for {number} elements")
    try:
        found = tuple(values)
    except TypeError:
        fail(status, f"{name} must be an array, got {described(values)}")
    if number > len(found):
        fail(status, f"{name} must have {number} elements, got {len(found)}")
    return found[:number]


def integers(
    status: IntEnum, null: IntEnum, name: str, values: Any, count: Any, counted: str
) -> tuple[int, ...]:
    """The same of integers."""
    found = items(status, null, name, values, count, counted)
    return tuple([whole(status, name, item) for item in found])


def described(value: Any) -> str:
    """What stands where an object of ours should: an address as such, all else by its type."""
    if isinstance(value, INTEGERS):
        return f"address {int(value):#x}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def alive(status: IntEnum, handle: Any, name: str, cls: type[Any]) -> Any:
    """The handle, if it is one of a class and was not destroyed; else the status."""
    if type(handle) is not cls:
        fail(status, f"{name} must be an {cls.__name__}, got {described(handle)}")
    if not handle.alive:
        fail(status, f"{name} must be alive, got an {cls.__name__} that was destroyed")
    return handle
