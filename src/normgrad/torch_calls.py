"""Calls on plain torch tensors that were seen before: what is left to do for each."""

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from normgrad import hostmem, kept
from normgrad.plan import Plan
from normgrad.spec import ROLES, Spec, TensorSpec
from normgrad.torch_arrays import TYPES, address_of, in_kept


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


class Known:
    """A call that was seen before: a test for its tensors, and the rest of it."""

    __slots__ = ("call", "same")

    def __init__(
        self,
        plan: Plan,
        results: Sequence[TensorSpec | None],
        slots: Sequence[int],
        arrays: Sequence[Any],
        present: Sequence[torch.Tensor],
        *,
        into: bool,
    ) -> None:
        self.same = same_as(present)
        # Gives None where a call needs a closer look.
        self.call: Callable[..., tuple[Any, ...] | None]
        self.call = _into_given(plan, arrays) if into else self._new(plan, results, slots, arrays)

    def _new(
        self,
        plan: Plan,
        results: Sequence[TensorSpec | None],
        slots: Sequence[int],
        arrays: Sequence[Any],
    ) -> Callable[..., tuple[Any, ...]]:
        recipes = [
            (slot, *_recipe(tensor, arrays)) if tensor else None
            for slot, tensor in zip(slots, results, strict=True)
        ]
        launch = _launcher(plan)
        general = _into_new(launch, recipes, len(arrays))
        write = getattr(plan.backend, "written", None)
        if write is None or plan.workspace_bytes > _STAYING:
            return general
        operands = [array is not None for array in arrays]
        short = [recipe and _like(recipe, arrays) for recipe in recipes]

        def first(arrays: tuple[Any, ...], out: None) -> tuple[Any, ...]:
            made = general(arrays, out)
            written = write(plan, operands, short, _staying, launch)
            if written is not None:
                self.call = written
            return made

        return first


def _into_new(
    launch: Callable[[list[int | None], torch.Tensor], None],
    recipes: Sequence[tuple[Any, ...] | None],
    operands: int,
) -> Callable[..., tuple[Any, ...]]:
    """A call as a function of its operands, for plain tensors laid out as those of the recipes."""
    blank = [None] * (len(ROLES) - operands)

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
                array = in_kept(shape, strides, *large)
            elif dtype is None:
                array = arrays[source].new_empty_strided(shape, strides)
            else:
                array = arrays[source].new_empty_strided(shape, strides, dtype=dtype)
            addresses[slot] = address_of(array) if huge else array.data_ptr()
            made.append(array)
        launch(addresses, arrays[1])
        return tuple(made)

    return call


def _into_given(plan: Plan, arrays: Sequence[Any]) -> Callable[..., tuple[Any, ...] | None]:
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


class _Scratch(threading.local):
    """A thread's scratch memory for calls on the default stream, which follow each other."""

    def __init__(self) -> None:
        self.by_device: dict[int, torch.Tensor] = {}


_scratch = _Scratch()
_STAYING = 32 << 20  # bytes of it, at most


def _staying(index: int, nbytes: int) -> int:
    """Scratch memory that is there already: asking torch for it takes 2 to 4 us of a call.

    A stream other than the default one may be captured in a graph, which is replayed beside
    whatever its owner likes: its scratch memory belongs to the call.
    """
    memory = _scratch.by_device.get(index)
    if memory is None or memory.nbytes < nbytes:
        place = torch.cuda.default_stream(index)
        with torch.cuda.stream(place):
            size = 1 << max(20, (nbytes - 1).bit_length())
            memory = torch.empty(size, dtype=torch.uint8, device=place.device)
        _scratch.by_device[index] = memory
    return memory.data_ptr()


def _launcher(plan: Plan) -> Callable[[list[int | None], torch.Tensor], None]:
    """Runs a plan on the caller's stream, with scratch memory on the device of ``like``."""
    device, nbytes, run = plan.spec.device, plan.workspace_bytes, plan.run
    index = None if device == "cpu" else int(device[5:])
    # The CPU backend keeps scratch memory: torch's takes 30 us with cold caches.
    none = nbytes == 0 or plan.backend.name == "cpu"

    def launch(addresses: list[int | None], like: torch.Tensor) -> None:
        stream = 0 if index is None else torch._C._cuda_getCurrentRawStream(index)
        if none:
            run(addresses, None, stream)
        elif index is not None and stream == 0 and nbytes <= _STAYING:
            run(addresses, _staying(index, nbytes), stream)
        else:
            memory = like.new_empty(nbytes, dtype=torch.uint8)  # lives until the return
            run(addresses, memory.data_ptr(), stream)

    return launch


def _like(recipe: tuple[Any, ...], arrays: Sequence[Any]) -> tuple[Any, ...]:
    """A recipe without shape where some operand is just like the result: 0.1 us less.

    A large result on the host has a function that makes it, or the bytes that ask for huge pages.
    """
    slot, source, shape, strides, dtype, huge, large = recipe
    kind = dtype or arrays[source].dtype
    if large:
        return slot, source, shape, strides, dtype, partial(in_kept, shape, strides, *large)
    if huge and arrays[1].is_cpu:
        nbytes = math.prod(shape) * kind.itemsize
        return slot, source, shape, strides, dtype, None, nbytes
    for number, one in enumerate(arrays):
        if one is None or (one.shape, one.dtype) != (shape, kind):
            continue
        if torch.empty_like(one, device="meta").stride() == strides:
            return slot, number, None, strides, None
    return slot, source, shape, strides, dtype


def _recipe(tensor: TensorSpec, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """How to make a result: an operand to ask, shape, strides, type, whether pages are huge.

    Last what `in_kept` needs besides, if it is for that.

    An operand of the result's own type needs no mention of it: 0.2 us less.
    """
    dtype = TYPES[tensor.dtype]
    same = [slot for slot, one in enumerate(arrays) if one is not None and one.dtype == dtype]
    source, named = (same[0], None) if same else (1, dtype)
    nbytes = tensor.size * dtype.itemsize
    large = (dtype, nbytes) if arrays[1].is_cpu and nbytes >= kept.LEAST else None
    huge = nbytes >= hostmem.HUGE and large is None
    return source, tensor.shape, tensor.strides, named, huge, large
