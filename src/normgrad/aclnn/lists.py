"""Lists of tensors and of scalars, arrays of floats: what none of our operators takes."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from normgrad.aclnn.options import number
from normgrad.aclnn.scalars import aclScalar
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    NULLPTR,
    OPERATOR_CODES,
    Status,
    fail,
    operator_status,
    reports,
)
from normgrad.aclnn.tensors import (
    aclBoolArray,
    aclIntArray,
    aclTensor,
    destroy,
    elements,
    living,
)
from normgrad.device.failures import is_null

Member = TypeVar("Member", aclTensor, aclScalar)


class aclTensorList:
    """Tensors, some of which may be null; they end with the list."""

    __slots__ = ("alive", "members")

    def __init__(self, members: tuple[aclTensor | None, ...]) -> None:
        self.members = members
        self.alive = True


class aclScalarList:
    """Scalars; they end with the list."""

    __slots__ = ("alive", "members")

    def __init__(self, members: tuple[aclScalar | None, ...]) -> None:
        self.members = members
        self.alive = True


class aclFloatArray:
    """Floats, copied from the caller."""

    __slots__ = ("alive", "values")

    def __init__(self, values: tuple[float, ...]) -> None:
        self.values = values
        self.alive = True


SizeAnswer = tuple[Status, int]


def _no_tensors(status: Status) -> aclTensorList | None:
    return None


def _no_scalars(status: Status) -> aclScalarList | None:
    return None


def _no_floats(status: Status) -> aclFloatArray | None:
    return None


def _no_size(status: Status) -> SizeAnswer:
    return status, 0


@reports(*OPERATOR_CODES, _no_tensors)
def aclCreateTensorList(
    value: Sequence[aclTensor | None] | None, size: int
) -> aclTensorList | None:
    """A list of tensors, which belong to it from now on: they end with it.

    Args:
        value: The tensors; null ones may be among them.
        size: How many of them, 0 to 4096.

    Returns:
        An ``aclTensorList``, or None where an argument cannot be used.

    Example:
        >>> both = aclnn.aclCreateTensorList([aclnn.tensor(np.zeros(3)), None], 2)
        >>> aclnn.aclGetTensorListSize(both)
        (<Status.ACL_SUCCESS: 0>, 2)
    """
    return aclTensorList(_members(value, size, aclTensor))


@reports(*OPERATOR_CODES, _no_scalars)
def aclCreateScalarList(
    value: Sequence[aclScalar | None] | None, size: int
) -> aclScalarList | None:
    """A list of scalars, which belong to it from now on: they end with it.

    Args:
        value: The scalars.
        size: How many of them, 0 to 4096.

    Returns:
        An ``aclScalarList``, or None where an argument cannot be used.

    Example:
        >>> one = aclnn.aclCreateScalar(np.array([1.0]), aclnn.ACL_DOUBLE)
        >>> aclnn.aclDestroyScalarList(aclnn.aclCreateScalarList([one], 1))
        <Status.ACL_SUCCESS: 0>
        >>> int(aclnn.aclDestroyScalar(one))  # it has ended with its list
        161002
    """
    return aclScalarList(_members(value, size, aclScalar))


def _members(value: Any, size: int, cls: type[Member]) -> tuple[Member | None, ...]:
    return tuple(
        [
            None if is_null(item) else living(item, f"value[{place}]", cls)
            for place, item in enumerate(elements("value", value, size))
        ]
    )


@reports(*OPERATOR_CODES, _no_floats)
def aclCreateFloatArray(value: Sequence[float] | None, size: int) -> aclFloatArray | None:
    """Floats, copied and rounded to float32.

    Args:
        value: The numbers.
        size: How many of them to copy, 0 to 4096.

    Returns:
        An ``aclFloatArray``, or None where there are none to copy.

    Example:
        >>> aclnn.aclCreateFloatArray([0.5, 2], 2).values
        (0.5, 2.0)
    """
    with np.errstate(over="ignore"):
        found = [
            float(np.float32(number("value", item))) for item in elements("value", value, size)
        ]
    return aclFloatArray(tuple(found))


@operator_status
def aclDestroyFloatArray(array: aclFloatArray | None) -> Status:
    """End an array.

    Args:
        array: Of ``aclCreateFloatArray``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> aclnn.aclDestroyFloatArray(aclnn.aclCreateFloatArray([0.5], 1))
        <Status.ACL_SUCCESS: 0>
    """
    return destroy(array, "array", aclFloatArray)


@operator_status
def aclDestroyTensorList(array: aclTensorList | None) -> Status:
    """End a list and its tensors; their memory stays.

    Args:
        array: Of ``aclCreateTensorList``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> aclnn.aclDestroyTensorList(aclnn.aclCreateTensorList([None], 1))
        <Status.ACL_SUCCESS: 0>
    """
    return _destroy(array, aclTensorList)


@operator_status
def aclDestroyScalarList(array: aclScalarList | None) -> Status:
    """End a list and its scalars.

    Args:
        array: Of ``aclCreateScalarList``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> aclnn.aclDestroyScalarList(aclnn.aclCreateScalarList([], 0))
        <Status.ACL_SUCCESS: 0>
    """
    return _destroy(array, aclScalarList)


def _destroy(array: Any, cls: type[Any]) -> Status:
    if not is_null(array):
        ended = living(array, "array", cls)
        ended.alive = False
        for member in ended.members:
            if member is not None:
                member.alive = False
    return ACL_SUCCESS


@reports(*OPERATOR_CODES, _no_size)
def aclGetTensorListSize(tensorList: aclTensorList | None) -> SizeAnswer:
    """How many tensors are in a list.

    Args:
        tensorList: The list.

    Returns:
        0 and the number; 161001 and 0 for null, 161002 for a destroyed list.

    Example:
        >>> aclnn.aclGetTensorListSize(aclnn.aclCreateTensorList([None], 1))
        (<Status.ACL_SUCCESS: 0>, 1)
    """
    return ACL_SUCCESS, len(_asked(tensorList, "tensorList", aclTensorList).members)


@reports(*OPERATOR_CODES, _no_size)
def aclGetScalarListSize(scalarList: aclScalarList | None) -> SizeAnswer:
    """How many scalars are in a list.

    Args:
        scalarList: The list.

    Returns:
        0 and the number; 161001 and 0 for null, 161002 for a destroyed list.

    Example:
        >>> aclnn.aclGetScalarListSize(aclnn.aclCreateScalarList([], 0))
        (<Status.ACL_SUCCESS: 0>, 0)
    """
    return ACL_SUCCESS, len(_asked(scalarList, "scalarList", aclScalarList).members)


@reports(*OPERATOR_CODES, _no_size)
def aclGetBoolArraySize(array: aclBoolArray | None) -> SizeAnswer:
    """How many booleans are in an array.

    Args:
        array: Of ``aclCreateBoolArray``.

    Returns:
        0 and the number; 161001 and 0 for null, 161002 for a destroyed array.

    Example:
        >>> aclnn.aclGetBoolArraySize(aclnn.aclCreateBoolArray([True] * 3, 3))
        (<Status.ACL_SUCCESS: 0>, 3)
    """
    return ACL_SUCCESS, len(_asked(array, "array", aclBoolArray).values)


@reports(*OPERATOR_CODES, _no_size)
def aclGetIntArraySize(array: aclIntArray | None) -> SizeAnswer:
    """How many integers are in an array.

    Args:
        array: Of ``aclCreateIntArray``.

    Returns:
        0 and the number; 161001 and 0 for null, 161002 for a destroyed array.

    Example:
        >>> aclnn.aclGetIntArraySize(aclnn.aclCreateIntArray([4, 8], 2))
        (<Status.ACL_SUCCESS: 0>, 2)
    """
    return ACL_SUCCESS, len(_asked(array, "array", aclIntArray).values)


@reports(*OPERATOR_CODES, _no_size)
def aclGetFloatArraySize(array: aclFloatArray | None) -> SizeAnswer:
    """How many floats are in an array.

    Args:
        array: Of ``aclCreateFloatArray``.

    Returns:
        0 and the number; 161001 and 0 for null, 161002 for a destroyed array.

    Example:
        >>> aclnn.aclGetFloatArraySize(aclnn.aclCreateFloatArray([0.5], 1))
        (<Status.ACL_SUCCESS: 0>, 1)
    """
    return ACL_SUCCESS, len(_asked(array, "array", aclFloatArray).values)


def _asked(handle: Any, name: str, cls: type[Any]) -> Any:
    if is_null(handle):
        fail(NULLPTR, f"{name} must not be null")
    return living(handle, name, cls)
