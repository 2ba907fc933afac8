"""The DLPack protocol read and spoken with ctypes.

NumPy's own ``from_dlpack`` knows no bfloat16; this does, and it copies nothing.
"""

import ctypes
import math
from typing import Any, Final

from normgrad.core.errors import ArrayTypeError
from normgrad.core.spec import TensorSpec
from normgrad.core.strides import without_idle_strides

CPU: Final = 1
CUDA: Final = 2
# Pinned host memory (3 for CUDA, 11 for ROCm) is host memory to us.
HOST: Final = (CPU, 3, 11)

_CODES = {
    (2, 16): "float16",
    (4, 16): "bfloat16",
    (2, 32): "float32",
    (2, 64): "float64",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
}
_CODE_NAMES = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
_READ_ONLY = 1
_COPIED = 2


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [
        ("tensor", _Tensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_is_valid_raw = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_get_pointer_raw = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))


def device_of(array: Any, name: str) -> tuple[int, int]:
    """DLPack's device type and number."""
    try:
        device_type, device_id = array.__dlpack_device__()
        return int(device_type), int(device_id)
    except Exception as error:
        raise _unreadable(array, name, error) from error


def read(array: Any, name: str, *, own: bool = False) -> tuple[TensorSpec, int, object, bool]:
    """A view of a producer's array on the CPU; with ``own`` of its own memory, not of a copy.

    Returns the tensor, the address of its first element, what keeps the memory alive, and whether
    what is written there reaches the producer's array.
    """
    newest: dict[str, Any] = {"max_version": (1, 0)}
    try:
        capsule = _capsule(array, *([newest | {"copy": False}] if own else []), newest, {})
    except Exception as error:
        if own and isinstance(error, BufferError):
            rule = "must be memory that its producer lends without a copy"
            raise ArrayTypeError(name, rule, _says(array, error)) from error
        raise _unreadable(array, name, error) from error
    writable = False
    if _is_valid(capsule, b"dltensor_versioned"):
        address = _get_pointer(capsule, b"dltensor_versioned")
        managed = _ManagedVersioned.from_address(address)
        if managed.major != 1:  # whose fields may lie elsewhere
            version = f"version {managed.major}.{managed.minor}"
            raise ArrayTypeError(name, "must be lent by DLPack 1.0, as was asked for", version)
        tensor, writable = managed.tensor, not managed.flags & (_READ_ONLY | _COPIED)
    elif _is_valid(capsule, b"dltensor"):
        tensor = _Managed.from_address(_get_pointer(capsule, b"dltensor")).tensor
    else:
        raise ArrayTypeError(name, "must give an unused DLPack capsule", type(capsule).__name__)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if not tensor.data and math.prod(shape):
        got = f"a {type(array).__name__} of shape {shape} without"
        raise ArrayTypeError(name, "must have data in memory", got)
    dtype = _dtype_name(tensor.dtype)
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.ndim))
        view = without_idle_strides(TensorSpec(shape, strides, dtype))
    else:
        view = TensorSpec.contiguous(shape, dtype)
    # The capsule still owns the memory: nobody consumed it, so its destructor frees it.
    return view, (tensor.data or 0) + tensor.byte_offset, capsule, writable


def _capsule(array: Any, *options: dict[str, Any]) -> Any:
    """By the first options that the producer knows: older ones have fewer."""
    for known in options[:-1]:
        try:
            return array.__dlpack__(**known)
        except TypeError:
            continue
    return array.__dlpack__(**options[-1])


def _unreadable(array: Any, name: str, error: Exception) -> ArrayTypeError:
    return ArrayTypeError(name, "must be readable through DLPack", _says(array, error))


def _says(array: Any, error: Exception) -> str:
    return f"a {type(array).__name__} that says {type(error).__name__}: {error}"


def _dtype_name(dtype: Any) -> str:
    name = _CODES.get((dtype.code, dtype.bits))
    name = name or f"{_CODE_NAMES.get(dtype.code, 'type')}{dtype.bits}"
    return name if dtype.lanes == 1 else f"{name}x{dtype.lanes}"  # an element is several numbers


_live: dict[int, tuple[object, ...]] = {}  # what exported tensors own, by address of the struct


def _delete(address: int) -> None:
    _live.pop(address, None)


def _destroy_capsule(capsule: int) -> None:
    # A consumer renames the capsule and calls the deleter itself; else the memory is still ours.
    if _is_valid_raw(capsule, b"dltensor"):
        _live.pop(_get_pointer_raw(capsule, b"dltensor"), None)


_Callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DELETER = _Callback(_delete)
_DESTRUCTOR = _Callback(_destroy_capsule)


class Exporter:
    """Host memory that any library's ``from_dlpack`` can take over."""

    def __init__(self, tensor: TensorSpec, address: int, owner: object) -> None:
        self._tensor = tensor
        self._address = address
        self._owner = owner

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return (CPU, 0)

    def __dlpack__(self, **_: object) -> object:
        """A capsule of the old kind, which every consumer takes."""
        rank = len(self._tensor.shape)
        shape = (ctypes.c_int64 * max(rank, 1))(*self._tensor.shape)
        strides = (ctypes.c_int64 * max(rank, 1))(*self._tensor.strides)
        code, bits = next(key for key, name in _CODES.items() if name == self._tensor.dtype)
        managed = _Managed()
        managed.tensor.data = self._address
        managed.tensor.device = _Device(CPU, 0)
        managed.tensor.ndim = rank
        managed.tensor.dtype = _DataType(code, bits, 1)
        managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        managed.tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        managed.deleter = ctypes.cast(_DELETER, ctypes.c_void_p).value
        address = ctypes.addressof(managed)
        _live[address] = (managed, shape, strides, self._owner)
        destructor = ctypes.cast(_DESTRUCTOR, ctypes.c_void_p).value
        return _new_capsule(address, b"dltensor", destructor)
