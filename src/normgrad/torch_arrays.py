"""torch tensors as callers' arrays. Imported once a tensor was seen, so torch is loaded."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import increment_version

from normgrad import hostmem, kept
from normgrad.errors import ArrayTypeError, DeviceError
from normgrad.plan import Plan
from normgrad.spec import ROLES, Spec, TensorSpec

from .arrays import View

_NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
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


def _prepared(array: torch.Tensor) -> int:
    """The address of a new tensor; larger ones on the host ask for huge pages, as NumPy's do."""
    address = array.data_ptr()
    if array.nbytes >= hostmem.HUGE and array.is_cpu:
        hostmem.ask_huge_pages(address, array.nbytes)
    return address


def _in_kept(shape: Any, strides: Any, dtype: torch.dtype, nbytes: int) -> torch.Tensor:
    """A large tensor on the host."""
    storage = torch.frombuffer(kept.take(nbytes), dtype=dtype).untyped_storage()
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, 0, shape, strides)


class TorchKind:
    """Dense torch tensors on the CPU or an NVIDIA GPU."""

    def view(self, array: torch.Tensor, name: str) -> View:
        """In place."""
        if array.layout is not torch.strided:
            raise ArrayTypeError(name, "must be a dense tensor", f"layout {array.layout}")
        if array.is_neg():
            array = array.resolve_neg()
        where = "cpu" if array.is_cpu else _place(array, name)
        dtype = _NAMES.get(array.dtype) or str(array.dtype).removeprefix("torch.")
        tensor = _new(TensorSpec, (tuple(array.shape), array.stride(), dtype))
        return _new(View, (tensor, array.data_ptr(), where, array))

    def result_view(self, array: torch.Tensor, name: str) -> View:
        """Any dense tensor can be written, under the rules of torch's own ``out=``."""
        if array.is_neg():
            raise ArrayTypeError(name, "must be a plain tensor", "a negated view")
        if array.requires_grad and torch.is_grad_enabled():
            rule = "must not require grad where grad is enabled"
            raise ArrayTypeError(name, rule, "a tensor that does")
        return self.view(array, name)

    def written(self, array: torch.Tensor) -> None:
        """Autograd learns of it: a graph that saved the old values must not use them."""
        if not array.is_inference():
            increment_version(array)

    def empty(self, tensor: TensorSpec, device: str, like: Any) -> tuple[torch.Tensor, int]:
        """A tensor with the strides asked for."""
        dtype = _TYPES[tensor.dtype]
        nbytes = tensor.size * dtype.itemsize
        if device == "cpu" and nbytes >= kept.LEAST:
            array = _in_kept(tensor.shape, tensor.strides, dtype, nbytes)
            return array, array.data_ptr()
        if (
            isinstance(like, torch.Tensor)
            and like.stride() == tensor.strides
            and _NAMES.get(like.dtype) == tensor.dtype
        ):
            array = torch.empty_like(like)  # a third faster
            if array.stride() == tensor.strides and array.shape == tensor.shape:
                return array, _prepared(array)
        array = torch.empty_strided(
            tensor.shape, tensor.strides, dtype=dtype, device=_device(device)
        )
        return array, _prepared(array)

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
        stream: int = torch._C._cuda_getCurrentRawStream(int(device[5:]))
        return stream


def same_as(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A test for tensors that differ from these in nothing but their data."""
    try:
        # What torch.compile guards its graphs with: 0.7 us for nine tensors instead of 4.
        from torch._C._dynamo.guards import TensorGuards

        sizes: Any = [list(one.shape) for one in tensors]
        strides: Any = [list(one.stride()) for one in tensors]
        guards = TensorGuards(
            *tensors,
            dynamic_dims_sizes=sizes,
            dynamic_dims_strides=strides,
        )
        if guards.check(*tensors):
            check: Callable[..., bool] = guards.check
            return check
    except (ImportError, TypeError, RuntimeError, SystemError):  # not an interface of torch's
        pass
    wanted = [_traits(one) for one in tensors]
    return lambda *others: [_traits(one) for one in others] == wanted


def _traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return ()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.is_neg()


def prepared(
    plan: Plan, results: Sequence[TensorSpec | None], slots: Sequence[int], arrays: Sequence[Any]
) -> Callable[..., tuple[Any, ...]]:
    """A call as a function of its operands, for plain tensors laid out as these ``arrays``."""
    launch = _launcher(plan)
    blank = [None] * (len(ROLES) - len(arrays))
    recipes = [
        (slot, *_recipe(tensor, arrays)) if tensor else None
        for slot, tensor in zip(slots, results, strict=True)
    ]

    def call(arrays: tuple[Any, ...], out: None) -> tuple[Any, ...]:
        addresses = [None if array is None else array.data_ptr() for array in arrays]
        addresses += blank
        made: list[Any] = []
        for recipe in recipes:
            if recipe is None:
                made.append(None)
                continue
            slot, source, shape, strides, dtype, huge, large = recipe
            if large:
                array = _in_kept(shape, strides, *large)
            elif dtype is None:
                array = arrays[source].new_empty_strided(shape, strides)
            else:
                array = arrays[source].new_empty_strided(shape, strides, dtype=dtype)
            addresses[slot] = _prepared(array) if huge else array.data_ptr()
            made.append(array)
        launch(addresses, arrays[1])
        return tuple(made)

    return call


def prepared_into(
    plan: Plan, results: Sequence[TensorSpec | None], slots: Sequence[int], arrays: Sequence[Any]
) -> Callable[..., tuple[Any, ...] | None]:
    """The same with given results; a call that needs a closer look does nothing and gives None.

    Such are results that require grad, and memory that may be shared.
    """
    launch, spec = _launcher(plan), plan.spec
    blank = [None] * (len(ROLES) - len(arrays))
    written = [ROLES.index(role) for role in spec.wanted]
    touched = [(ROLES.index(role), *_range(spec, role)) for role in (*spec.operands, *spec.wanted)]

    def call(arrays: tuple[Any, ...], out: Sequence[Any]) -> tuple[Any, ...] | None:
        addresses: list[Any] = [None if array is None else array.data_ptr() for array in arrays]
        addresses += blank
        given = tuple([array for array in out if array is not None])
        for array, slot in zip(given, written, strict=True):
            if array.requires_grad or array.is_inference():
                return None
            addresses[slot] = array.data_ptr()
        spans = [(addresses[slot] + low, addresses[slot] + high) for slot, low, high in touched]
        spans.sort()
        taken = 0
        for start, end in spans:
            if start < taken:
                return None
            taken = end
        launch(addresses, arrays[1])
        increment_version(given)
        return tuple(out)

    return call


def _range(spec: Spec, role: str) -> tuple[int, int]:
    tensor = spec.tensor(role)
    assert tensor is not None
    return hostmem.byte_range(tensor)


def _launcher(plan: Plan) -> Callable[[list[int | None], torch.Tensor], None]:
    """Runs a plan on the caller's stream, with scratch memory on the device of ``like``."""
    device, nbytes, run = plan.spec.device, plan.workspace_bytes, plan.run
    index = None if device == "cpu" else int(device[5:])
    # The CPU backend keeps scratch memory: torch's takes 30 us with cold caches.
    asks = nbytes > 0 and plan.backend.name != "cpu"

    def launch(addresses: list[int | None], like: torch.Tensor) -> None:
        stream = 0 if index is None else torch._C._cuda_getCurrentRawStream(index)
        if asks:
            memory = like.new_empty(nbytes, dtype=torch.uint8)  # lives until the return
            run(addresses, memory.data_ptr(), stream)
        else:
            run(addresses, None, stream)

    return launch


def _recipe(tensor: TensorSpec, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """How to make a result: an operand to ask, shape, strides, type, whether pages are huge.

    Last what `_in_kept` needs besides, if it is for that.

    An operand of the result's own type needs no mention of it: 0.2 us less.
    """
    dtype = _TYPES[tensor.dtype]
    same = [slot for slot, one in enumerate(arrays) if one is not None and one.dtype == dtype]
    source, named = (same[0], None) if same else (1, dtype)
    nbytes = tensor.size * dtype.itemsize
    large = (dtype, nbytes) if arrays[1].is_cpu and nbytes >= kept.LEAST else None
    huge = nbytes >= hostmem.HUGE and large is None
    return source, tensor.shape, tensor.strides, named, huge, large
