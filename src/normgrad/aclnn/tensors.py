"""aclTensor, aclBoolArray, aclIntArray: made, asked and destroyed."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from normgrad.aclnn.constants import ACL_FORMAT_ND, aclDataType, aclFormat
from normgrad.aclnn.dtypes import DTYPE_BYTES, DTYPE_NAMES, dtype_name
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
from normgrad.arrays import host_memory
from normgrad.arrays.kinds import Array, kind_of
from normgrad.core.errors import DtypeError, ReadOnlyError
from normgrad.core.spec import TensorSpec, row_major
from normgrad.device.failures import INTEGERS, alive, integers, is_null, items, whole

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
        self.offset = offset
        self.storage = storage
        self.alive = True
        # 0 where it is not known: no operator takes such a type.
        self.itemsize = DTYPE_BYTES.get(kind.dtype, 0)
        self.lie(data, owner)

    def lie(self, data: int, owner: object) -> None:
        """Be over this memory. Without an owner it belongs to an allocation."""
        self.data = data
        self.owner = owner
        self.address = self.low = self.high = 0  # nothing of an empty tensor lies anywhere
        if self.kind.tensor.size:
            self.address = data + self.offset * self.itemsize
            low, high = host_memory.element_range(self.kind.tensor)
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
    """A tensor over memory of the device. Nothing is looked at before an operator gets it.

    An element lies at ``data + (offset + sum(index * stride)) * itemsize``.

    Args:
        viewDims: The sizes.
        viewDimsNum: How many there are, 0 to 4096.
        dataType: A value of ``aclDataType``; operators refuse those that they do not take.
        strides: In elements, as many as sizes; null for contiguous.
        offset: The first element of the view, in elements from ``data``.
        format: A value of ``aclFormat``: what the axes mean.
        storageDims: The sizes of the storage, which ``aclGetStorageShape`` tells.
        storageDimsNum: How many there are.
        data: The address; null for an empty tensor, and where it comes before stage 2, by
            ``aclSetTensorAddr``.

    Returns:
        An ``aclTensor``, or None where an argument cannot be used.

    Example:
        >>> made = aclnn.aclCreateTensor(
        ...     (2, 3), 2, aclnn.ACL_FLOAT, None, 0, aclnn.ACL_FORMAT_ND, (2, 3), 2, 4096
        ... )
        >>> made
        aclTensor(shape=(2, 3), strides=(3, 1), float32, address=0x1000)
    """
    shape = _integers("viewDims", viewDims, viewDimsNum)
    if any(size < 0 for size in shape):
        fail(INVALID, f"viewDims must not be negative, got {shape}")
    # An empty tensor may have sizes whose strides no int64 holds; nobody steps by them.
    steps = tuple([min(step, _INT64_MAX) for step in row_major(shape)])
    if not is_null(strides):
        steps = _integers("strides", strides, len(shape))
    storage = _integers("storageDims", storageDims, storageDimsNum)
    if not isinstance(dataType, INTEGERS):
        fail(INVALID, f"dataType must be a value of aclDataType, got {dataType!r}")
    if not isinstance(format, INTEGERS):
        fail(INVALID, f"format must be a value of aclFormat, got {format!r}")
    start = whole(INVALID, "offset", offset)
    address = 0 if is_null(data) else whole(INVALID, "data", data)
    code = int(dataType)
    spec = TensorSpec(shape, steps, DTYPE_NAMES.get(code, dtype_name(code)))
    kind = TensorKind(spec, code, int(format), tensor_device(), True)
    return aclTensor(kind, address, start, storage, None)


def tensor(array: Array, format: int = ACL_FORMAT_ND) -> aclTensor:
    """A tensor straight over a NumPy array or torch tensor, which it keeps alive.

    Nothing is copied: results are written into the array, and one that could only be read as a
    copy is refused.

    Args:
        array: Of any strides.
        format: A value of ``aclFormat``.

    Returns:
        An ``aclTensor``.

    Raises:
        NormgradError: What the functional API raises, as for a type that ``aclDataType`` lacks.

    Example:
        >>> aclnn.aclGetViewShape(aclnn.tensor(np.zeros((2, 3))))
        (<Status.ACL_SUCCESS: 0>, (2, 3), 2)
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
    """Booleans, copied, as an operator's ``outputMask``.

    Args:
        value: The booleans.
        size: How many of them to copy, 0 to 4096.

    Returns:
        An ``aclBoolArray``, or None where there are none to copy.

    Example:
        >>> aclnn.aclCreateBoolArray([True, True, False], 3).values
        (True, True, False)
    """
    return aclBoolArray(tuple([bool(item) for item in elements("value", value, size)]))


@reports(*OPERATOR_CODES, _no_integers)
def aclCreateIntArray(value: Sequence[int] | None, size: int) -> aclIntArray | None:
    """Integers, copied, as layer norm's ``normalizedShape``.

    Args:
        value: The integers.
        size: How many of them to copy, 0 to 4096.

    Returns:
        An ``aclIntArray``, or None where there are none to copy.

    Example:
        >>> aclnn.aclCreateIntArray([4, 8], 2).values
        (4, 8)
    """
    return aclIntArray(_integers("value", value, size))


@operator_status
def aclDestroyTensor(tensor: aclTensor | None) -> Status:
    """End a tensor; its memory stays.

    Args:
        tensor: Of ``aclCreateTensor`` or ``tensor``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> made = aclnn.tensor(np.zeros(3))
        >>> [int(aclnn.aclDestroyTensor(made)) for _ in range(2)]
        [0, 161002]
    """
    return destroy(tensor, "tensor", aclTensor)


@operator_status
def aclDestroyBoolArray(array: aclBoolArray | None) -> Status:
    """End an array.

    Args:
        array: Of ``aclCreateBoolArray``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> aclnn.aclDestroyBoolArray(aclnn.aclCreateBoolArray([True], 1))
        <Status.ACL_SUCCESS: 0>
    """
    return destroy(array, "array", aclBoolArray)


@operator_status
def aclDestroyIntArray(array: aclIntArray | None) -> Status:
    """End an array.

    Args:
        array: Of ``aclCreateIntArray``; null is success.

    Returns:
        0; 161002 for one that was destroyed before.

    Example:
        >>> aclnn.aclDestroyIntArray(aclnn.aclCreateIntArray([4], 1))
        <Status.ACL_SUCCESS: 0>
    """
    return destroy(array, "array", aclIntArray)


def destroy(handle: Any, name: str, cls: type[Any]) -> Status:
    """End an object of ours once; null is success."""
    if not is_null(handle):
        living(handle, name, cls).alive = False
    return ACL_SUCCESS


def living(handle: Any, name: str, cls: type[Any]) -> Any:
    """The handle, if it is one of a class and was not destroyed; else 161002."""
    return alive(INVALID, handle, name, cls)


@reports(*OPERATOR_CODES, _no_shape)
def aclGetViewShape(tensor: aclTensor | None) -> ShapeAnswer:
    """The sizes of a tensor.

    Args:
        tensor: The tensor.

    Returns:
        0, the sizes, and how many there are; 161001 for null, 161002 for a destroyed tensor.

    Example:
        >>> aclnn.aclGetViewShape(aclnn.tensor(np.zeros((2, 3))))
        (<Status.ACL_SUCCESS: 0>, (2, 3), 2)
    """
    shape = _asked(tensor).kind.tensor.shape
    return ACL_SUCCESS, shape, len(shape)


@reports(*OPERATOR_CODES, _no_shape)
def aclGetViewStrides(tensor: aclTensor | None) -> ShapeAnswer:
    """The strides of a tensor, in elements.

    Args:
        tensor: The tensor.

    Returns:
        0, the strides, and how many there are; 161001 for null, 161002 for a destroyed tensor.

    Example:
        >>> aclnn.aclGetViewStrides(aclnn.tensor(np.zeros((2, 3))))
        (<Status.ACL_SUCCESS: 0>, (3, 1), 2)
    """
    strides = _asked(tensor).kind.tensor.strides
    return ACL_SUCCESS, strides, len(strides)


@reports(*OPERATOR_CODES, _no_shape)
def aclGetStorageShape(tensor: aclTensor | None) -> ShapeAnswer:
    """The sizes of a tensor's storage, as they were given.

    Args:
        tensor: The tensor.

    Returns:
        0, the sizes, and how many there are; 161001 for null, 161002 for a destroyed tensor.

    Example:
        >>> aclnn.aclGetStorageShape(aclnn.tensor(np.zeros((2, 3))))
        (<Status.ACL_SUCCESS: 0>, (2, 3), 2)
    """
    storage = _asked(tensor).storage
    return ACL_SUCCESS, storage, len(storage)


@reports(*OPERATOR_CODES, _no_value)
def aclGetViewOffset(tensor: aclTensor | None) -> ValueAnswer:
    """The first element of a tensor's view, in elements from its data pointer.

    Args:
        tensor: The tensor.

    Returns:
        0 and the offset; 161001 and None for null, 161002 for a destroyed tensor.

    Example:
        >>> aclnn.aclGetViewOffset(aclnn.tensor(np.zeros((2, 3))))
        (<Status.ACL_SUCCESS: 0>, 0)
    """
    return ACL_SUCCESS, _asked(tensor).offset


@reports(*OPERATOR_CODES, _no_value)
def aclGetFormat(tensor: aclTensor | None) -> ValueAnswer:
    """The format of a tensor.

    Args:
        tensor: The tensor.

    Returns:
        0 and the format, a plain number where ``aclFormat`` has no name for it; 161001 and None for
        null, 161002 for a destroyed tensor.

    Example:
        >>> aclnn.aclGetFormat(aclnn.tensor(np.zeros(3)))
        (<Status.ACL_SUCCESS: 0>, <aclFormat.ACL_FORMAT_ND: 2>)
    """
    value = _asked(tensor).kind.format
    return ACL_SUCCESS, aclFormat(value) if value in tuple(aclFormat) else value


@reports(*OPERATOR_CODES, _no_value)
def aclGetDataType(tensor: aclTensor | None) -> ValueAnswer:
    """The type of a tensor's elements.

    Args:
        tensor: The tensor.

    Returns:
        0 and the type, a plain number where ``aclDataType`` has no name for it; 161001 and None for
        null, 161002 for a destroyed tensor.

    Example:
        >>> aclnn.aclGetDataType(aclnn.tensor(np.zeros(3)))
        (<Status.ACL_SUCCESS: 0>, <aclDataType.ACL_DOUBLE: 11>)
    """
    value = _asked(tensor).kind.dtype
    return ACL_SUCCESS, aclDataType(value) if value in tuple(aclDataType) else value


def _asked(tensor: aclTensor | None) -> aclTensor:
    if is_null(tensor):
        fail(NULLPTR, "tensor must not be null")
    asked: aclTensor = living(tensor, "tensor", aclTensor)
    return asked


def elements(name: str, values: Any, count: int) -> tuple[Any, ...]:
    """The first ``count`` of an array; 161001 for null, 161002 for fewer."""
    return items(INVALID, NULLPTR, name, values, count, f"the number of {name}")


def _integers(name: str, values: Any, count: int) -> tuple[int, ...]:
    return integers(INVALID, NULLPTR, name, values, count, f"the number of {name}")
