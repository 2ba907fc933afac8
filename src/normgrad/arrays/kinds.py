"""The callers' arrays: NumPy, torch, and whatever speaks DLPack.

Each kind says how to see an array as (tensor, address), how to make one, and how to copy.
"""

import functools
import sys
from typing import Any, NamedTuple, Protocol

import numpy as np

from normgrad.arrays import dlpack, host_memory
from normgrad.calls import result_pool
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.errors import ArrayTypeError, DeviceError, DtypeError, ReadOnlyError
from normgrad.core.spec import TensorSpec

Array = Any


class View(NamedTuple):
    """An array as the core sees it; ``owner`` keeps the memory alive."""

    tensor: TensorSpec
    address: int
    device: str
    owner: object


class Kind(Protocol):
    """A family of arrays."""

    def view(self, array: Array, name: str) -> View:
        """See an operand; copies only where its memory cannot be read in place."""

    def result_view(self, array: Array, name: str) -> View:
        """See an array that is to be written, or say why it cannot be.

        ``ReadOnlyError`` comes last: ``view`` sees such an array in place.
        """

    def empty(self, tensor: TensorSpec, device: str, like: Array) -> tuple[Array, int]:
        """A new array of the kind of ``like``, and its address."""

    def finish(self, array: Array, like: Array) -> Array:
        """What the caller gets for an array made by ``empty``, once it is written."""

    def scratch(self, nbytes: int, device: str) -> tuple[object, int]:
        """Memory for the backend: what owns it, and its address."""

    def copy(self, target: Array, source: Array) -> None:
        """Write one array into another of the same shape and kind."""

    def written(self, array: Array) -> None:
        """Take note that a caller's array has new values."""

    def stream(self, device: str) -> int:
        """The caller's current stream."""


def kind_of(array: Array, name: str) -> Kind:
    """The family of an array."""
    cls: type = type(array)
    kind = _kind_of_type(cls)
    if kind is None:
        rule = "must be a NumPy array, a torch tensor or an array that speaks DLPack"
        raise ArrayTypeError(name, rule, f"a {type(array).__name__}")
    return kind


@functools.cache
def _kind_of_type(cls: type) -> Kind | None:
    if issubclass(cls, np.ma.MaskedArray):  # its mask would be lost without a word
        return None
    if issubclass(cls, np.ndarray):
        return NumpyKind()
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(cls, torch.Tensor):
        from normgrad.arrays.torch_tensors import TorchKind

        return TorchKind()
    if hasattr(cls, "__dlpack__") and hasattr(cls, "__dlpack_device__"):
        return DlpackKind()
    return None


@functools.cache
def _numpy_dtype(dtype: "np.dtype[Any]") -> str:
    return str(dtype.name) if dtype.isnative else str(dtype)


@functools.lru_cache(maxsize=4096)
def _in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    """Byte strides counted in elements; None where one is no multiple of the element."""
    if itemsize == 0 or any(step % itemsize for step in strides):
        return None
    return tuple(step // itemsize for step in strides)


def misaligned(name: str, address: int) -> ArrayTypeError:
    """Of a result between the places where its elements could be."""
    return ArrayTypeError(
        name, "must be aligned to its elements", f"address {address:#x} (pass a copy)"
    )


def elsewhere(name: str, view: View, device: str) -> DeviceError:
    """Of an array that is not where ``input`` is."""
    return DeviceError(name, f"must be on input's device, {device}", view.device)


class NumpyKind:
    """NumPy arrays; bfloat16 is ml_dtypes'."""

    def view(self, array: Array, name: str) -> View:
        """In place, except for memory that is not aligned to its elements."""
        strides = _in_elements(array.strides, array.itemsize)
        if strides is None or not array.flags.aligned:
            array = np.array(array, order="C", subok=False)
            strides = _in_elements(array.strides, array.itemsize) or (0,) * array.ndim
        tensor = TensorSpec(array.shape, strides, _numpy_dtype(array.dtype))
        return View(tensor, array.__array_interface__["data"][0], "cpu", array)

    def result_view(self, array: Array, name: str) -> View:
        """Writable and aligned arrays only."""
        if _in_elements(array.strides, array.itemsize) is None:
            rule = "must step by whole elements"
            raise ArrayTypeError(name, rule, f"strides {array.strides} in bytes (pass a copy)")
        if not array.flags.aligned:
            raise misaligned(name, array.__array_interface__["data"][0])
        if not array.flags.writeable:
            raise ReadOnlyError(name, "must be writable", "a read-only array")
        return self.view(array, name)

    def empty(self, tensor: TensorSpec, device: str, like: Array) -> tuple[Array, int]:
        """A dense NumPy array with the strides asked for."""
        array = dense_numpy(tensor, numpy_type(tensor.dtype))
        return array, array.__array_interface__["data"][0]

    def finish(self, array: Array, like: Array) -> Array:
        """The array itself."""
        return array

    def scratch(self, nbytes: int, device: str) -> tuple[object, int]:
        """Bytes at an address that is a multiple of 64, a cache line."""
        return host_memory.aligned_bytes(nbytes)

    def copy(self, target: Array, source: Array) -> None:
        """NumPy's own copy."""
        target[...] = source

    def written(self, array: Array) -> None:
        """NumPy keeps no record."""

    def stream(self, device: str) -> int:
        """The host has none."""
        return 0


def numpy_type(dtype: str) -> "np.dtype[Any]":
    """The type of a NumPy array, which for bfloat16 is that of ml_dtypes."""
    if dtype != "bfloat16":
        return host_memory.STORAGE[dtype]
    try:
        import ml_dtypes
    except ImportError as error:
        rule = "must be a type of NumPy's own without ml_dtypes (pip install ml_dtypes)"
        raise DtypeError("dtype", rule, dtype) from error
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def dense_numpy(tensor: TensorSpec, dtype: "np.dtype[Any]") -> Array:
    """An uninitialized array whose axes lie in memory in the order of the strides asked for."""
    order = _slowest_first(tensor.strides)
    shape = tensor.shape if order is None else tuple([tensor.shape[axis] for axis in order])
    nbytes = tensor.size * dtype.itemsize
    memory = result_pool.acquire(nbytes) if nbytes >= result_pool.LEAST else None
    array: Array = np.ndarray(shape, dtype, memory)
    return array if order is None else array.transpose(np.argsort(order))


@functools.lru_cache(maxsize=4096)
def _slowest_first(strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes by falling stride; None where that is their own order."""
    order = tuple(sorted(range(len(strides)), key=lambda axis: (-strides[axis], axis)))
    return None if order == tuple(range(len(strides))) else order


class DlpackKind(NumpyKind):
    """Any other producer of host memory, and of GPU memory by way of torch.

    Results are made in memory of ours and handed over through the producer's ``from_dlpack``.
    """

    def view(self, array: Array, name: str) -> View:
        """In place."""
        device_type, device_id = dlpack.device_of(array, name)
        if device_type == dlpack.CUDA:
            try:
                import torch
            except ImportError as error:
                rule = "must be on the CPU where torch is not installed"
                raise DeviceError(name, rule, "an array on an NVIDIA GPU") from error
            tensor = torch.utils.dlpack.from_dlpack(array)
            return kind_of(tensor, name).view(tensor, name)
        if device_type not in dlpack.HOST:
            rule = "must be on the CPU or an NVIDIA GPU"
            raise DeviceError(name, rule, f"DLPack device type {device_type}, number {device_id}")
        tensor_spec, address, owner, _ = dlpack.read(array, name)
        if address % ITEMSIZE.get(tensor_spec.dtype, 1):  # kernels rely on it
            there = host_memory.view(address, tensor_spec)
            aligned = dense_numpy(tensor_spec, there.dtype)
            aligned[...] = there
            strides = tuple([step // there.itemsize for step in aligned.strides])
            tensor_spec = tensor_spec._replace(strides=strides)
            address, owner = aligned.__array_interface__["data"][0], aligned
        return View(tensor_spec, address, "cpu", owner)

    def result_view(self, array: Array, name: str) -> View:
        """Memory of the producer's own, of which it says that it may be written."""
        view = self.view(array, name)
        tensor, address, owner, writable = dlpack.read(array, name, own=True)
        if address % ITEMSIZE.get(tensor.dtype, 1):
            raise misaligned(name, address)
        if not writable:
            rule = "must be writable (its producer does not say so through DLPack 1.0)"
            raise ReadOnlyError(name, rule, f"a {type(array).__name__}")
        return View(tensor, address, "cpu", owner) if view.device == "cpu" else view

    def empty(self, tensor: TensorSpec, device: str, like: Array) -> tuple[Array, int]:
        """Memory of ours for now."""
        if device != "cpu":
            from normgrad.arrays.torch_tensors import TorchKind

            return TorchKind().empty(tensor, device, like)
        array = dense_numpy(tensor, host_memory.STORAGE[tensor.dtype])
        address = array.__array_interface__["data"][0]
        _consumer(like)  # a producer that takes nothing back is an error before any work
        return dlpack.Exporter(tensor, address, array), address

    def finish(self, array: Array, like: Array) -> Array:
        """The producer's own kind of array over it."""
        return _consumer(like)(array)

    def scratch(self, nbytes: int, device: str) -> tuple[object, int]:
        """As the results."""
        if device != "cpu":
            from normgrad.arrays.torch_tensors import TorchKind

            return TorchKind().scratch(nbytes, device)
        return super().scratch(nbytes, device)

    def copy(self, target: Array, source: Array) -> None:
        """Through views of both."""
        to, by = self.result_view(target, "out"), self.view(source, "result")
        if to.device != "cpu":
            from normgrad.arrays.torch_tensors import TorchKind

            tensors: tuple[Any, Any] = (to.owner, by.owner)
            TorchKind().copy(*tensors)
            return
        host_memory.view(to.address, to.tensor)[...] = host_memory.view(by.address, by.tensor)

    def stream(self, device: str) -> int:
        """That of torch, which sees the same device."""
        if device != "cpu":
            from normgrad.arrays.torch_tensors import TorchKind

            return TorchKind().stream(device)
        return 0


def _consumer(array: Array) -> Any:
    """The ``from_dlpack`` of the library that an array came from."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack
    module = sys.modules.get(type(array).__module__.partition(".")[0])
    consumer = getattr(module, "from_dlpack", None)
    if consumer is None:
        rule = "must come from a library with from_dlpack, so that results can go back to it"
        raise ArrayTypeError("input", rule, f"a {type(array).__name__}; pass numpy.from_dlpack(it)")
    return consumer
