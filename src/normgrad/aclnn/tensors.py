"""aclTensor, aclBoolArray, aclIntArray: made, asked and destroyed."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from normgrad import hostmem
from normgrad.aclnn.constants import ACL_FORMAT_ND, DTYPE_BYTES, DTYPE_NAMES, aclDataType, aclFormat
from normgrad.aclnn.runtime import tensor_device
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    INVALID,
    NULLPTR,
    OPERATOR_CODES,
    Status,
    fail,
    operator_status,
    reports,
)
from normgrad.arrays import Array, kind_of
from normgrad.device.failures import INTEGERS, alive, integers, is_null, items, whole
from normgrad.errors import DtypeError, ReadOnlyError
from normgrad.spec import TensorSpec, row_major

_INT64_MAX: Final = 2**63 - 1
_DTYPE_OF_NAME = {name: aclDataType(value) for value, name in DTYPE_NAMES.items()}


class TensorKind(NamedTuple):
    """All of a tensor but its memory: what rules and plans depend on."""

    tensor: TensorSpec
    dtype: int
    format: int
    device: str
    writable: bool


class aclTensor:
    """A strided view of device memory, or of a caller's array that it keeps alive."""

    __slots__ = (
        "address",
        "alive",
        "data",
        "high",
        "itemsize",
        "kind",
        "low",
        "offset",
        "owner",
        "storage",
    )

    def __init__(
        self, kind: TensorKind, data: int, offset: int, storage: tuple[int, ...], owner: object
    ) -> None:
        self.kind = kind
        self.data = data
        self.offset = offset
        self.storage = storage
        self.owner = owner  # None: the memory belongs to an allocation
        self.alive = True
        self.itemsize = DTYPE_BYTES[kind.dtype]
        self.address = self.low = self.high = 0  # nothing of an empty tensor lies anywhere
        if kind.tensor.size:
            self.address = data + offset * self.itemsize
            low, high = hostmem.element_range(kind.tensor)
            self.low = self.address + low * self.itemsize
            self.high = self.address + high * self.itemsize

    def __repr__(self) -> str:
        shape, strides, dtype = self.kind.tensor
        return f"aclTensor(shape={shape}, strides={strides}, {dtype}, address={self.address:#x})"


class aclBoolArray:
    """Booleans, copied from the caller."""

    __slots__ = ("alive", "values")

    def __init__(self, values: tuple[bool, ...]) -> None:
        self.values = values
        self.alive = True


class aclIntArray:
    """Integers, copied from the caller."""

    __slots__ = ("alive", "values")

    def __init__(self, values: tuple[int, ...]) -> None:
        self.values = values
        self.alive = True


ShapeAnswer = tuple[Status, tuple[int, ...], int]
ValueAnswer = tuple[Status, int | None]


def _no_tensor(status: Status) -> aclTensor | None:
    return None


def _no_bools(status: Status) -> aclBoolArray | None:
    return None


def _no_integers(status: Status) -> aclIntArray | None:
    return None


def _no_shape(status: Status) -> ShapeAnswer:
    return status, (), 0


def _no_value(status: Status) -> ValueAnswer:
    return status, None


@reports(*OPERATOR_CODES, _no_tensor)
def aclCreateTensor(
    viewDims: Sequence[int] | None,
    viewDimsNum: int,
    dataType: int,
    strides: Sequence[int] | None,
    offset: int,
    format: int,
    storageDims: Sequence[int] | None,
    storageDimsNum: int,
    data: int | None,
) -> aclTensor | None:
    """A tensor over device memory at ``data``; None where an argument cannot be used."""
    shape = _integers("viewDims", viewDims, viewDimsNum)
    if any(size < 0 for size in shape):
        fail(INVALID, f"viewDims must not be negative, got {shape}")
    # An empty tensor may have sizes whose strides no int64 holds; nobody steps by them.
    steps = tuple([min(step, _INT64_MAX) for step in row_major(shape)])
    if not is_null(strides):
        steps = _integers("strides", strides, len(shape))
    storage = _integers("storageDims", storageDims, storageDimsNum)
    if not isinstance(dataType, INTEGERS) or dataType not in DTYPE_BYTES:
        fail(INVALID, f"dataType must be a value of aclDataType, got {dataType!r}")
    if not isinstance(format, INTEGERS):
        fail(INVALID, f"format must be a value of aclFormat, got {format!r}")
    start = whole(INVALID, "offset", offset)
    address = 0 if is_null(data) else whole(INVALID, "data", data)
    spec = TensorSpec(shape, steps, DTYPE_NAMES[int(dataType)])
    kind = TensorKind(spec, int(dataType), int(format), tensor_device(), True)
    return aclTensor(kind, address, start, storage, None)


def tensor(array: Array, format: int = ACL_FORMAT_ND) -> aclTensor:
    """A tensor straight over a NumPy array or torch tensor, which it keeps alive.

    Nothing is copied: results are written into the array, and one that could only be read as a
    copy is refused. Raises what the functional API raises.
    """
    kind = kind_of(array, "array")
    try:
        view = kind.result_view(array, "array")
        writable = True
    except ReadOnlyError:
        view = kind.view(array, "array")
        writable = False
    name = view.tensor.dtype
    if name not in _DTYPE_OF_NAME:
        raise DtypeError("array", "must be of a type that aclDataType has", name)
    seen = TensorKind(view.tensor, int(_DTYPE_OF_NAME[name]), int(format), view.device, writable)
    return aclTensor(seen, view.address, 0, view.tensor.shape, (array, view.owner))


@reports(*OPERATOR_CODES, _no_bools)
def aclCreateBoolArray(value: Sequence[bool] | None, size: int) -> aclBoolArray | None:
    """The first ``size`` booleans, copied; None where there are none to copy."""
    return aclBoolArray(tuple([bool(item) for item in _items("value", value, size)]))


@reports(*OPERATOR_CODES, _no_integers)
def aclCreateIntArray(value: Sequence[int] | None, size: int) -> aclIntArray | None:
    """The first ``size`` integers, copied; None where there are none to copy."""
    return aclIntArray(_integers("value", value, size))


@operator_status
def aclDestroyTensor(tensor: aclTensor | None) -> Status:
    """End a tensor; its memory stays. Null is success."""
    return _destroy(tensor, "tensor", aclTensor)


@operator_status
def aclDestroyBoolArray(array: aclBoolArray | None) -> Status:
    """End an array. Null is success."""
    return _destroy(array, "array", aclBoolArray)


@operator_status
def aclDestroyIntArray(array: aclIntArray | None) -> Status:
    """End an array. Null is success."""
    return _destroy(array, "array", aclIntArray)


def _destroy(handle: Any, name: str, cls: type[Any]) -> Status:
    if not is_null(handle):
        living(handle, name, cls).alive = False
    return ACL_SUCCESS


def living(handle: Any, name: str, cls: type[Any]) -> Any:
    """The handle, if it is one of a class and was not destroyed; else 161002."""
    return alive(INVALID, handle, name, cls)


@reports(*OPERATOR_CODES, _no_shape)
def aclGetViewShape(tensor: aclTensor | None) -> ShapeAnswer:
    """Status, sizes, and how many there are."""
    shape = _asked(tensor).kind.tensor.shape
    return ACL_SUCCESS, shape, len(shape)


@reports(*OPERATOR_CODES, _no_shape)
def aclGetViewStrides(tensor: aclTensor | None) -> ShapeAnswer:
    """Status, strides in elements, and how many there are."""
    strides = _asked(tensor).kind.tensor.strides
    return ACL_SUCCESS, strides, len(strides)


@reports(*OPERATOR_CODES, _no_shape)
def aclGetStorageShape(tensor: aclTensor | None) -> ShapeAnswer:
    """Status, sizes of the storage, and how many there are."""
    storage = _asked(tensor).storage
    return ACL_SUCCESS, storage, len(storage)


@reports(*OPERATOR_CODES, _no_value)
def aclGetViewOffset(tensor: aclTensor | None) -> ValueAnswer:
    """Status, and the view's first element counted from the data pointer."""
    return ACL_SUCCESS, _asked(tensor).offset


@reports(*OPERATOR_CODES, _no_value)
def aclGetFormat(tensor: aclTensor | None) -> ValueAnswer:
    """Status, and the format."""
    value = _asked(tensor).kind.format
    return ACL_SUCCESS, aclFormat(value) if value in tuple(aclFormat) else value


@reports(*OPERATOR_CODES, _no_value)
def aclGetDataType(tensor: aclTensor | None) -> ValueAnswer:
    """Status, and the type of the elements."""
    return ACL_SUCCESS, aclDataType(_asked(tensor).kind.dtype)


def _asked(tensor: aclTensor | None) -> aclTensor:
    if is_null(tensor):
        fail(NULLPTR, "tensor must not be null")
    asked: aclTensor = living(tensor, "tensor", aclTensor)
    return asked


def _items(name: str, values: Any, count: int) -> tuple[Any, ...]:
    return items(INVALID, NULLPTR, name, values, count, f"the number of {name}")


def _integers(name: str, values: Any, count: int) -> tuple[int, ...]:
    return integers(INVALID, NULLPTR, name, values, count, f"the number of {name}")
