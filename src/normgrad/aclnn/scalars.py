"""aclScalar, and the numbers of C: float16 there and back, the size of a type."""

import ctypes
from typing import Any

import numpy as np

from normgrad.aclnn.dtypes import DTYPE_BYTES, dtype_name
from normgrad.aclnn.status import INVALID, OPERATOR_CODES, Status, fail, operator_status, reports
from normgrad.aclnn.tensors import destroy
from normgrad.device.failures import INTEGERS, is_null, not_null
from normgrad.device.memory import OwnershipError, host_address


class aclScalar:
    """One number of a type: its bytes, copied from the caller. None of our operators takes one."""

    __slots__ = ("alive", "dtype", "value")

    def __init__(self, value: bytes, dtype: int) -> None:
        self.value = value
        self.dtype = dtype
        self.alive = True


def _no_scalar(status: Status) -> aclScalar | None:
    return None


@reports(*OPERATOR_CODES, _no_scalar)
def aclCreateScalar(value: Any, dataType: int) -> aclScalar | None:
    """A scalar of the number at ``value``, which is copied. No operator of ours takes one.

    Args:
        value: An address or a buffer, as a NumPy array of one element.
        dataType: A value of ``aclDataType`` whose elements are whole bytes.

    Returns:
        An ``aclScalar``, or None where an argument cannot be used.

    Example:
        >>> two = aclnn.aclCreateScalar(np.array([2.0], np.float32), aclnn.ACL_FLOAT)
        >>> aclnn.aclDestroyScalar(two)
        <Status.ACL_SUCCESS: 0>
    """
    if not isinstance(dataType, INTEGERS) or dataType not in DTYPE_BYTES:
        got = dtype_name(dataType) if isinstance(dataType, INTEGERS) else repr(dataType)
        fail(INVALID, f"dataType must be a type whose elements are whole bytes, got {got}")
    nbytes = DTYPE_BYTES[dataType]
    if is_null(value) or isinstance(value, INTEGERS):
        address = not_null(INVALID, "value", value)
    else:
        try:
            address = host_address("value", value, nbytes, written=False)
        except OwnershipError as error:
            fail(INVALID, str(error))
    return aclScalar(ctypes.string_at(address, nbytes), int(dataType))


@operator_status
def aclDestroyScalar(scalar: aclScalar | None) -> Status:
    """End a scalar.

    Args:
        scalar: Of ``aclCreateScalar``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> two = aclnn.aclCreateScalar(np.array([2.0], np.float32), aclnn.ACL_FLOAT)
        >>> aclnn.aclDestroyScalar(two)
        <Status.ACL_SUCCESS: 0>
    """
    return destroy(scalar, "scalar", aclScalar)


def aclFloatToFloat16(value: float) -> int:
    """The bits of the float16 that is nearest to a number; ties go to the even one.

    Args:
        value: Rounded to float32 first, as C does.

    Returns:
        0 to 65535.

    Raises:
        TypeError: It is no number.

    Example:
        >>> hex(aclnn.aclFloatToFloat16(1.0))
        '0x3c00'
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return int(np.float32(value).astype(np.float16).view(np.uint16))


def aclFloat16ToFloat(value: int) -> float:
    """The number that a float16 is, exactly.

    Args:
        value: Its bits, 0 to 65535.

    Returns:
        The number.

    Raises:
        OverflowError: ``value`` is beyond these bits.

    Example:
        >>> aclnn.aclFloat16ToFloat(0x3C00)
        1.0
    """
    return float(np.uint16(value).view(np.float16))


def aclDataTypeSize(dataType: int) -> int:
    """The bytes of an element.

    Args:
        dataType: A value of ``aclDataType``.

    Returns:
        The number; 0 for an unknown type, and for one whose elements are not whole bytes.

    Example:
        >>> aclnn.aclDataTypeSize(aclnn.ACL_BF16)
        2
    """
    return DTYPE_BYTES.get(dataType, 0)
