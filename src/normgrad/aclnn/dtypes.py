"""What types and formats are called, and how large an element is."""

from typing import Final

from normgrad.aclnn.constants import aclDataType, aclFormat

# Name and bytes of the types whose elements are whole bytes; the core computes with the first six.
_TYPES: Final = (
    (aclDataType.ACL_FLOAT, "float32", 4),
    (aclDataType.ACL_FLOAT16, "float16", 2),
    (aclDataType.ACL_BF16, "bfloat16", 2),
    (aclDataType.ACL_DOUBLE, "float64", 8),
    (aclDataType.ACL_INT32, "int32", 4),
    (aclDataType.ACL_INT64, "int64", 8),
    (aclDataType.ACL_INT8, "int8", 1),
    (aclDataType.ACL_UINT8, "uint8", 1),
    (aclDataType.ACL_INT16, "int16", 2),
    (aclDataType.ACL_UINT16, "uint16", 2),
    (aclDataType.ACL_UINT32, "uint32", 4),
    (aclDataType.ACL_UINT64, "uint64", 8),
    (aclDataType.ACL_BOOL, "bool", 1),
    (aclDataType.ACL_COMPLEX32, "complex32", 4),
    (aclDataType.ACL_COMPLEX64, "complex64", 8),
    (aclDataType.ACL_COMPLEX128, "complex128", 16),
    (aclDataType.ACL_HIFLOAT8, "hifloat8", 1),
    (aclDataType.ACL_FLOAT8_E5M2, "float8_e5m2", 1),
    (aclDataType.ACL_FLOAT8_E4M3FN, "float8_e4m3fn", 1),
    (aclDataType.ACL_FLOAT8_E8M0, "float8_e8m0fnu", 1),
)
DTYPE_NAMES: Final[dict[int, str]] = {value: name for value, name, _ in _TYPES}
DTYPE_BYTES: Final[dict[int, int]] = {value: nbytes for value, _, nbytes in _TYPES}
_DTYPES: Final[dict[int, str]] = {member.value: member.name for member in aclDataType}
_FORMATS: Final[dict[int, str]] = {member.value: member.name for member in aclFormat}


def dtype_name(value: int) -> str:
    """A type as the header calls it."""
    return _DTYPES.get(value, f"data type {value}")


def format_name(value: int) -> str:
    """A format as the header calls it."""
    return _FORMATS.get(value, f"format {value}")
