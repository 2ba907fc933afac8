"""Calls on plain torch tensors that were seen before: what is left to do for each."""

import functools
import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import add, and_, is_, le
from typing import Any, NamedTuple

import torch

from normgrad.arrays import host_memory
from normgrad.arrays.kinds import View
from normgrad.arrays.overlap import results_needing_copies
from normgrad.arrays.torch_tensors import TYPES, address_of, in_pooled
from normgrad.calls import result_pool
from normgrad.calls.generated_call import CallSource, Fallbacks, Given, Result
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.plan import Plan
from normgrad.core.spec import ROLES, SLOT, Spec, TensorSpec, device_index
from normgrad.core.validate import public_names


def same_as(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A test for tensors that differ from these in nothing but their data.

    It tells apart what requires grad and what does not; not tensors of inference mode.
    """
    places = {id(one): place for place, one in reversed(list(enumerate(tensors)))}
    if len(places) < len(tensors):  # dx over x, say; torch's guards take no tensor twice
        each, alone = [places[id(one)] for one in tensors], sorted(places.values())
        same = same_as([tensors[place] for place in alone])
        return lambda *others: (
            all(map(is_, others, [others[place] for place in each]))
            and same(*[others[place] for place in alone])
        )
    try:
        check = _guards(tensors)
        if check(*tensors) and _guards_see_grad():
            return check
    except (ImportError, TypeError, RuntimeError, SystemError):  # not an interface of torch's
        pass
    wanted = [_traits(one) for one in tensors]
    return lambda *others: [_traits(one) for one in others] == wanted


def _guards(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """What torch.compile guards its graphs with: 0.7 us for nine tensors instead of 4."""
    from torch._C._dynamo.guards import TensorGuards

    sizes: Any = [list(one.shape) for one in tensors]
    strides: Any = [list(one.stride()) for one in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    check: Callable[..., bool] = guards.check
    return check


@functools.cache
def _guards_see_grad() -> bool:
    with torch.inference_mode(mode=False):
        plain = torch.empty(1, device="cpu")
        return not _guards([plain])(plain.detach().requires_grad_())


def _traits(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return ()
    own = tensor.dtype, tensor.device, tensor.is_neg(), tensor.requires_grad
    return tensor.shape, tensor.stride(), *own


class CachedCall:
    """A call that was seen before: a test for its tensors, and the rest of it."""

    __slots__ = ("call", "same", "updates")

    def __init__(
        self,
        plan: Plan,
        results: Sequence[TensorSpec | None],
        slots: Sequence[int],
        arrays: Sequence[Any],
        present: Sequence[torch.Tensor],
        out: Sequence[Any] | None,
    ) -> None:
        self.same = same_as(present)
        self.updates = _Updates.of(plan.spec, arrays)
        # Gives None where a call needs a closer look.
        self.call: Callable[..., tuple[Any, ...] | None]
        launch = _launcher(plan)
        wanted = list(zip(slots, results, strict=False))
        if out is None:
            recipes = [_recipe(slot, one, arrays) if one else None for slot, one in wanted]
            self.call = _into_new(launch, recipes, len(arrays))
            self._write(plan, arrays, [recipe and _made(recipe, arrays) for recipe in recipes])
        elif any(one is not None and one.requires_grad for one in out):
            self.call = _closer_look
        else:
            given = Given(_apart(plan.spec), torch._C._increment_version)
            self.call = _into_given(plan, launch, given)
            alone = [Result(slot) if one else None for slot, one in wanted]
            self._write(plan, arrays, alone, given)

    def _write(
        self,
        plan: Plan,
        arrays: Sequence[Any],
        results: Sequence[Result | None],
        given: Given | None = None,
    ) -> None:
        """Have the call written out, once it was run."""
        write = getattr(plan.backend, "generate_call", None)
        if write is None or plan.workspace_bytes > _STAYING:
            return
        general = self.call
        fallbacks = Fallbacks(general, _empty(arrays[1].device.type), _gone)
        source = partial(
            CallSource, [array is not None for array in arrays], results, fallbacks, given
        )

        def first(arrays: tuple[Any, ...], out: Sequence[Any] | None) -> tuple[Any, ...] | None:
            made = general(arrays, out)
            if made is not None:
                self.call = write(plan, source, _staying) or self.call
            return made

        self.call = first


class _Updates(NamedTuple):
    """Operands that a call writes in place, by their slots, and how many bytes each spans."""

    spans: tuple[tuple[int, int], ...]
    data: int  # bytes that x spans

    @classmethod
    def of(cls, spec: Spec, arrays: Sequence[Any]) -> "_Updates | None":
        """Those of a request; None where it has none."""
        slots = [SLOT[role] for role in spec.operator.updates if spec.tensor(role) is not None]
        if not slots:
            return None
        spans = [(slot, _span(spec.present(ROLES[slot]))) for slot in slots]
        return cls(tuple(spans), _span(spec.x))

    def apart(self, arrays: Sequence[Any]) -> bool:
        """Whether none lies over x or over the one before; new results are apart from all."""
        taken = [(arrays[1].data_ptr(), self.data)]
        for slot, span in self.spans:
            start = arrays[slot].data_ptr()
            if arrays[slot].requires_grad:
                return False
            for other, length in taken:
                if start < other + length and other < start + span:
                    return False
            taken.append((start, span))
        return True

    def tell(self, arrays: Sequence[Any]) -> None:
        """Autograd learns what was written."""
        written = [arrays[slot] for slot, _ in self.spans]
        torch._C._increment_version([one for one in written if not one.is_inference()])


def _span(tensor: TensorSpec) -> int:
    return host_memory.byte_range(tensor)[1]


_Launch = Callable[[list[int | None], torch.Tensor], None]


def _into_new(
    launch: _Launch,
    recipes: Sequence["_Recipe | None"],
    operands: int,
) -> Callable[..., tuple[Any, ...] | None]:
    """A call as a function of its operands, for plain tensors laid out as those of the recipes."""
    blank = [None] * (len(ROLES) - operands)

    def call(arrays: tuple[Any, ...], out: None) -> tuple[Any, ...] | None:
        addresses = [None if array is None else array.data_ptr() for array in arrays]
        if 0 in addresses and _gone(arrays):
            return None
        addresses += blank
        made: list[Any] = []
        for recipe in recipes:
            if recipe is None:
                made.append(None)
                continue
            slot, source, shape, strides, dtype, huge, large = recipe
            if large:
                array = in_pooled(shape, strides, *large)
            elif dtype is None:
                array = arrays[source].new_empty_strided(shape, strides)
            else:
                array = arrays[source].new_empty_strided(shape, strides, dtype=dtype)
            plain = type(array) is torch.Tensor  # else a fake, of a mode that is on
            addresses[slot] = address_of(array) if huge or not plain else array.data_ptr()
            made.append(array)
        launch(addresses, arrays[1])
        return tuple(made)

    return call


def _gone(arrays: Sequence[Any]) -> bool:
    """Whether one has a shape and no memory: nothing else tells that its storage was freed."""
    return any(one is not None and one.data_ptr() == 0 and one.numel() for one in arrays)


def _closer_look(arrays: tuple[Any, ...], out: Sequence[Any]) -> None:
    """A result that requires grad: whether that is an error depends on the mode."""


def _into_given(plan: Plan, launch: _Launch, given: Given) -> Callable[..., tuple[Any, ...] | None]:
    """The same with given results."""
    results = [SLOT[role] for role in plan.spec.wanted]
    blank = [None] * len(ROLES)

    def call(arrays: tuple[Any, ...], out: Sequence[Any]) -> tuple[Any, ...] | None:
        addresses: list[Any] = [None if array is None else array.data_ptr() for array in arrays]
        addresses += blank[len(arrays) :]
        written = tuple([array for array in out if array is not None])
        for array, slot in zip(written, results, strict=True):
            addresses[slot] = array.data_ptr()
        if not given.apart(tuple([one for one in addresses if one is not None])):
            return None
        launch(addresses, arrays[1])
        given.tell(written)
        return tuple(out)

    return call


def _apart(spec: Spec) -> Callable[[tuple[int, ...]], bool]:
    """Whether results at these addresses can be written where they are."""
    present = {*spec.operands, *spec.wanted}
    tensors: dict[str, TensorSpec] = {role: spec.present(role) for role in ROLES if role in present}
    # From an address on: torch has no strides below 0.
    sizes = [host_memory.byte_range(tensor)[1] for tensor in tensors.values()]
    between = [ITEMSIZE[tensor.dtype] - 1 for tensor in tensors.values()]  # bits of no element

    def apart(addresses: tuple[int, ...]) -> bool:
        if any(map(and_, addresses, between)):
            return False
        if 0 in addresses and any(
            size and not at for at, size in zip(addresses, sizes, strict=True)
        ):
            return False  # a storage was freed
        # None begins before as many have ended: 1.2 us of a call at new addresses.
        starts, ends = sorted(addresses), sorted(map(add, addresses, sizes))
        if all(map(le, ends, starts[1:])):
            return True
        places = zip(tensors.items(), addresses, strict=True)
        views = {role: View(tensor, at, spec.device, None) for (role, tensor), at in places}
        results = {role: views.pop(role) for role in spec.wanted}
        return not results_needing_copies(results, views, public_names(spec.op, spec.rstd_is))

    return apart


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


def _launcher(plan: Plan) -> _Launch:
    """Runs a plan on the caller's stream, with scratch memory on the device of ``like``."""
    device, nbytes, run = plan.spec.device, plan.workspace_bytes, plan.run
    index = None if device == "cpu" else device_index(device)
    # The CPU backend keeps scratch memory: torch's takes 30 us with cold caches.
    needs_none = nbytes == 0 or plan.backend.name == "cpu"

    def launch(addresses: list[int | None], like: torch.Tensor) -> None:
        stream = 0 if index is None else torch._C._cuda_getCurrentRawStream(index)
        if needs_none:
            run(addresses, None, stream)
        elif index is not None and stream == 0 and nbytes <= _STAYING:
            run(addresses, _staying(index, nbytes), stream)
        else:
            memory = like.new_empty(nbytes, dtype=torch.uint8)  # lives until the return
            run(addresses, memory.data_ptr(), stream)

    return launch


@functools.cache
def _empty(device: str) -> Callable[..., torch.Tensor]:
    """Makes a tensor on the current device of this kind, from its shape, strides and type.

    The one that torch.compile's programs call, where there is one: half the time of torch's own.
    """
    plain = partial(_plain_empty, device)
    try:
        import torch._C._dynamo.guards as quick

        make: Callable[..., torch.Tensor] = getattr(quick, f"_empty_strided_{device}")
        wanted, got = (one((2, 3), (1, 2), torch.float32) for one in (plain, make))
        keys = torch._C._dispatch_keys
        alike = (_traits(got), keys(got)) == (_traits(wanted), keys(wanted))
    except (ImportError, AttributeError, TypeError, RuntimeError):  # not an interface of torch's
        return plain
    return make if alike else plain


def _plain_empty(
    device: str, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


class _Recipe(NamedTuple):
    """How to make a result."""

    slot: int
    source: int  # an operand to ask
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype | None  # None: the operand's own, which needs no mention: 0.2 us less
    huge: bool  # whether it asks for huge pages
    large: tuple[torch.dtype, int] | None  # what `in_pooled` needs besides, if it is for that


def _made(recipe: _Recipe, arrays: Sequence[Any]) -> Result:
    """How a written call makes a result.

    A large one on the host has a function of its own, or the bytes that ask for huge pages.
    """
    slot, source, shape, strides, dtype, huge, large = recipe
    kind = dtype or arrays[source].dtype
    if large:
        return Result(slot, shape, strides, kind, partial(in_pooled, shape, strides, *large))
    nbytes = math.prod(shape) * kind.itemsize if huge and arrays[1].is_cpu else 0
    return Result(slot, shape, strides, kind, huge=nbytes)


def _recipe(slot: int, tensor: TensorSpec, arrays: Sequence[Any]) -> _Recipe:
    """How to make a result like this."""
    dtype = TYPES[tensor.dtype]
    same = [at for at, one in enumerate(arrays) if one is not None and one.dtype == dtype]
    source, named = (same[0], None) if same else (1, dtype)
    nbytes = tensor.size * dtype.itemsize
    large = (dtype, nbytes) if arrays[1].is_cpu and nbytes >= result_pool.LEAST else None
    huge = nbytes >= host_memory.HUGE and large is None
    return _Recipe(slot, source, tensor.shape, tensor.strides, named, huge, large)
