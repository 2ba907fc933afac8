"""torch tensors as callers' arrays. Imported once a tensor was seen, so torch is loaded."""

import functools
from typing import Any

import torch
from torch.autograd.graph import increment_version

from normgrad.arrays import host_memory
from normgrad.arrays.kinds import View, misaligned
from normgrad.calls import result_pool
from normgrad.core.errors import ArrayTypeError, DeviceError, ReadOnlyError
from normgrad.core.spec import TensorSpec, device_index
from normgrad.core.strides import without_idle_strides

_NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
}
TYPES = {name: dtype for dtype, name in _NAMES.items()}
# A named tuple made without its own __new__: 0.1 us less, ten times in a call.
_new = tuple.__new__
_places: dict[torch.device, str] = {}  # GPUs seen so far, by the core's name for them


def _place(array: torch.Tensor, name: str) -> str:
    device = array.device
    if device not in _places:
        if device.type != "cuda":
            raise DeviceError(name, "must be on the CPU or an NVIDIA GPU", f"device {device}")
        _places[device] = f"cuda:{device.index}"
    return _places[device]


@functools.cache
def _device(name: str) -> torch.device:
    """A device by name; torch would parse the name on every call."""
    return torch.device(name)


def _address(array: torch.Tensor, name: str) -> int:
    """Where the data are; wrappers, fakes and tensors whose storage was freed have none."""
    try:
        # By the storage's device first: torch warns where somebody asks a fake for its address.
        nowhere = array.untyped_storage().device.type == "meta"
        address = 0 if nowhere else array.data_ptr()
    except RuntimeError:
        address = 0
    if address == 0 and array.numel():
        rule = (
            "must have data in memory (torch.ops.normgrad has operators for torch.func, "
            "torch.compile and fake tensors; of a DTensor pass to_local())"
        )
        raise ArrayTypeError(name, rule, f"a {type(array).__name__} without")
    return address


def address_of(array: torch.Tensor) -> int:
    """The address of a new tensor; larger ones on the host ask for huge pages, as NumPy's do."""
    address = _address(array, "a new result")  # a mode may have made a fake
    if array.nbytes >= host_memory.HUGE and array.is_cpu:
        host_memory.ask_huge_pages(address, array.nbytes)
    return address


def in_pooled(shape: Any, strides: Any, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """A large tensor on the host."""
    # In place: a tensor of its own, not a view of one. With cold caches every operator counts,
    # about 20 us each.
    count = nbytes // dtype.itemsize
    flat = torch.frombuffer(result_pool.acquire(nbytes), dtype=dtype, count=count)
    return flat.as_strided_(shape, strides)


class TorchKind:
    """Dense torch tensors on the CPU or an NVIDIA GPU."""

    def view(self, array: torch.Tensor, name: str) -> View:
        """In place."""
        if torch._C._get_tracing_state() is not None:
            # Sizes are tensors there: `step *= size` would change strides that are listed already.
            rule = "must be outside of torch.jit.trace (which takes the modules of normgrad.torch)"
            raise ArrayTypeError(name, rule, f"a {type(array).__name__} inside")
        if array.layout is not torch.strided or array.is_nested:
            got = "a nested tensor" if array.is_nested else f"layout {array.layout}"
            raise ArrayTypeError(name, "must be a dense tensor", got)
        if array.is_neg():
            array = array.resolve_neg()
        where = "cpu" if array.is_cpu else _place(array, name)
        dtype = _NAMES.get(array.dtype) or str(array.dtype).removeprefix("torch.")
        address = _address(array, name)
        if address % array.element_size():  # kernels rely on it
            array = array.clone()
            address = array.data_ptr()
        tensor = _new(TensorSpec, (tuple(array.shape), array.stride(), dtype))
        return _new(View, (without_idle_strides(tensor), address, where, array))

    def result_view(self, array: torch.Tensor, name: str) -> View:
        """Any dense tensor can be written, under the rules of torch's own ``out=``."""
        if array.is_neg():
            raise ArrayTypeError(
                name, "must be a plain tensor", "a negated view (pass resolve_neg())"
            )
        view = self.view(array, name)
        if view.owner is not array:
            raise misaligned(name, _address(array, name))
        if array.requires_grad and torch.is_grad_enabled():
            rule = "must not require grad where grad is enabled"
            raise ReadOnlyError(name, rule, "a tensor that does")
        return view

    def written(self, array: torch.Tensor) -> None:
        """Autograd learns of it: a graph that saved the old values must not use them."""
        if not array.is_inference():
            increment_version(array)

    def empty(self, tensor: TensorSpec, device: str, like: Any) -> tuple[torch.Tensor, int]:
        """A plain tensor with the strides asked for."""
        dtype = TYPES[tensor.dtype]
        nbytes = tensor.size * dtype.itemsize
        if device == "cpu" and nbytes >= result_pool.LEAST:
            array = in_pooled(tensor.shape, tensor.strides, dtype, nbytes)
            return array, array.data_ptr()
        if (
            like.__class__ in (torch.Tensor, torch.nn.Parameter)  # a subclass would make its own
            and like.stride() == tensor.strides
            and _NAMES.get(like.dtype) == tensor.dtype
        ):
            array = torch.empty_like(like)  # a third faster
            if array.stride() == tensor.strides and array.shape == tensor.shape:
                return array, address_of(array)
        array = torch.empty_strided(
            tensor.shape, tensor.strides, dtype=dtype, device=_device(device)
        )
        return array, address_of(array)

    def finish(self, array: torch.Tensor, like: Any) -> torch.Tensor:
        """The tensor itself."""
        return array

    def scratch(self, nbytes: int, device: str) -> tuple[object, int]:
        """From torch's allocator, whose blocks start at multiples of 64 bytes or more."""
        memory = torch.empty(nbytes, dtype=torch.uint8, device=_device(device))
        return memory, memory.data_ptr()

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """By torch itself."""
        with torch.no_grad():
            target.copy_(source)

    def stream(self, device: str) -> int:
        """The caller's current stream on the tensors' device."""
        if device == "cpu":
            return 0
        # Five times faster than torch.cuda.current_stream, which makes an object.
        stream: int = torch._C._cuda_getCurrentRawStream(device_index(device))
        return stream
