"""The common path of all public functions: arrays to views, a cached plan, results.

What depends on shapes, types and options alone is worked out once in ``_prepare``; a call that was
seen before reads its arrays, makes its results and hands addresses to the backend.
"""

import contextlib
import functools
import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from normgrad import backends
from normgrad.arrays.kinds import Array, View, elsewhere, kind_of
from normgrad.arrays.overlap import check_updates, results_needing_copies
from normgrad.calls.results import (
    SLOTS,
    Call,
    check_types,
    given_views,
    into_given,
    into_new,
    new_result,
)
from normgrad.core import options as read
from normgrad.core.operators import DATA, OPERATORS, RESULTS, ROLES, SLOT, Op
from normgrad.core.plan import make_plan
from normgrad.core.spec import Spec, TensorSpec
from normgrad.core.validate import public_names, validate_operands

if TYPE_CHECKING:
    from normgrad.calls.cached_calls import CachedCall

_MAX_KEYS = 4096
_VARIANTS_PER_KEY = 16  # cached calls of one key: other strides, types, shapes of small operands

_ALL_WANTED: Final = (read.ALL, read.ALL_SUMS, read.BOTH)

_Absent: Final = type(None)
_is_nested: Final = attrgetter("is_nested")

Tensors = tuple[TensorSpec | None, ...]
Named = tuple[tuple[str, TensorSpec], ...]


def compute(
    op: Op,
    arrays: tuple[Array | None, ...],
    unread: tuple[tuple[str, Array | None], ...],
    settings: tuple[Any, ...],
    mask: Sequence[bool],
    param_grad_dtype: Any,
    out: Sequence[Array | None] | None,
    backend: str | None,
) -> tuple[Array | None, ...]:
    """Results in the order of the operator's, as many as ``mask`` has.

    ``arrays`` are in the order of ``spec.ROLES``. The mask may leave out the results that only
    fused calls have.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_dynamo_compiling():
        # Dynamo would trace all of this, and Numba.
        from normgrad.calls.graph_break import compute_outside

        apart: tuple[Array | None, ...] = compute_outside(
            op, arrays, unread, settings, mask, param_grad_dtype, out, backend
        )
        return apart
    seen, present = _cache_key(op, arrays, unread, settings, mask, param_grad_dtype, backend, out)
    try:
        entries = _cached_calls.get(seen, ())
    except TypeError:  # an option or a shape that is none
        entries, seen = (), None
    if entries and any(map(_is_nested, present)):  # torch's guards would end the process
        entries = ()
    for known in entries:
        if known.same(*present):
            if known.updates and not known.updates.apart(arrays):
                break
            results = known.call(arrays, out)
            if results is not None:
                if known.updates:
                    known.updates.tell(arrays)
                return results
            seen = None  # no need to know it twice
            break
    names = public_names(op, "variance" if "variance" in settings else "invstd")
    views = _views(op, arrays, names)
    tensors = tuple([None if view is None else view.tensor for view in views])
    device = _device(views, names)
    unread_specs = _unread_specs(unread, device, names)
    wanted = read.mask(mask, len(OPERATORS[op].gives), len(RESULTS[op]))
    given = None if out is None else given_views(op, out, wanted, device, names)
    operator = OPERATORS[op]
    call = _prepare(
        op,
        tensors,
        unread_specs,
        settings,
        wanted,
        None if given is None else tuple([(role, view.tensor) for role, view in given.items()]),
        None if param_grad_dtype is None else read.dtype_name("param_grad_dtype", param_grad_dtype),
        device,
        backends.chosen(backend),
    )
    if seen is not None:
        _cache_call(seen, call, arrays, present, out)
    like = arrays[1]
    kind = kind_of(like, "input")
    addresses = [None if view is None else view.address for view in views]
    addresses += [None] * (len(ROLES) - len(addresses))
    if operator.updates:
        check_updates(operator.updates, _by_role(views), given or {}, names)
    if given is None or out is None:
        results = into_new(call, kind, addresses, like, device)
        _tell_updates(op, arrays)
        return results
    copied = results_needing_copies(given, _by_role(views), names)
    into_given(call, kind, addresses, given, copied, dict(zip(RESULTS[op], out, strict=False)))
    _tell_updates(op, arrays)
    return tuple(out)


# Calls on plain torch tensors that were seen before, by what can be read off quickest.
_cached_calls: "dict[Any, tuple[CachedCall, ...]]" = {}


def _cache_call(
    seen: Any,
    call: Call,
    arrays: tuple[Array | None, ...],
    present: Sequence[Any],
    out: Sequence[Array | None] | None,
) -> None:
    """Know a call on plain tensors, whose numbers are what lies at their addresses."""
    if all(_is_plain(array.__class__) and not array.is_neg() for array in present):
        from normgrad.calls.cached_calls import CachedCall

        slots = SLOTS[call.plan.spec.op]
        entry = CachedCall(call.plan, call.results, slots, arrays, present, out)
        if seen not in _cached_calls:
            _make_room()
        _cached_calls[seen] = (entry, *_cached_calls.get(seen, ())[: _VARIANTS_PER_KEY - 1])


def _make_room() -> None:
    """Forget the oldest; what is still called comes back with its next call."""
    while len(_cached_calls) >= _MAX_KEYS:
        with contextlib.suppress(KeyError, RuntimeError, StopIteration):  # another thread was here
            del _cached_calls[next(iter(_cached_calls))]


def _views(op: Op, arrays: tuple[Array | None, ...], names: Mapping[str, str]) -> list[View | None]:
    """The operands, each of which may be of another kind; data are never optional."""
    operator = OPERATORS[op]
    views: list[View | None] = []
    for slot, array in enumerate(arrays):
        role = ROLES[slot]
        if array is None and role not in operator.data_in:
            views.append(None)
            continue
        name = names.get(role, role)
        kind = kind_of(array, name)
        read = kind.result_view if role in operator.updates else kind.view
        views.append(read(array, name))
    return views


def _by_role(views: Sequence[View | None]) -> dict[str, View]:
    return {role: view for role, view in zip(ROLES, views, strict=False) if view is not None}


def _tell_updates(op: Op, arrays: Sequence[Array | None]) -> None:
    """Take note of operands that were written in place."""
    for role in OPERATORS[op].updates:
        slot = SLOT[role]
        if slot < len(arrays) and arrays[slot] is not None:
            kind_of(arrays[slot], role).written(arrays[slot])


def _device(views: Sequence[View | None], names: Mapping[str, str]) -> str:
    """Where all of them are."""
    x = views[1]
    assert x is not None
    device = x.device
    for slot, view in enumerate(views):
        if view is not None and view.device != device:
            raise elsewhere(names.get(ROLES[slot], ROLES[slot]), view, device)
    return device


def _cache_key(
    op: Op,
    arrays: tuple[Array | None, ...],
    unread: tuple[tuple[str, Array | None], ...],
    settings: tuple[Any, ...],
    mask: Any,
    param_grad_dtype: Any,
    backend: Any,
    out: Any,
) -> tuple[Any, Sequence[Any]]:
    """What tells most calls apart, if it can be hashed, and the arrays; None where nothing does."""
    if mask.__class__ is not tuple and mask.__class__ is not list:
        return None, ()
    if unread:
        arrays += tuple([array for _, array in unread])
    count = None
    if out is not None:
        if out.__class__ is not list and not isinstance(out, tuple):
            return None, ()
        arrays += tuple(out)
        count = len(out)  # or they might be taken for arrays that are not read
    kinds = tuple(map(type, arrays))
    present = [one for one in arrays if one is not None] if _Absent in kinds else arrays
    # Of mask too the types, if it is not a default: a 1 equals True and is an error.
    bits = mask if any(mask is one for one in _ALL_WANTED) else (*mask, *map(type, mask))
    try:
        shape = getattr(arrays[1], "shape", None)
    except RuntimeError:  # a nested tensor, which has none; it is refused later
        return None, ()
    # By its address: to hash an enumeration's member is a call in Python.
    return (id(op), settings, param_grad_dtype, backend, bits, kinds, count, shape), present


@functools.cache
def _is_plain(cls: type) -> bool:
    """Whether instances are torch's own tensors; a subclass may be a fake or a wrapper."""
    torch = sys.modules.get("torch")
    return torch is not None and cls in (torch.Tensor, torch.nn.Parameter)


@functools.lru_cache(maxsize=_MAX_KEYS)
def _prepare(
    op: Op,
    tensors: Tensors,
    unread: Named,
    settings: tuple[Any, ...],
    wanted: tuple[bool, ...],
    given: Named | None,
    param_grad_dtype: str | None,
    device: str,
    backend: str | None,
) -> Call:
    """Everything about a call that depends on shapes, types and options alone."""
    operands = {
        role: tensor for role, tensor in zip(ROLES, tensors, strict=False) if tensor is not None
    }
    # Settings left out at the end keep the request's defaults: callers that always have 1/std.
    operator = OPERATORS[op]
    arguments: dict[str, Any] = dict(zip(operator.settings, settings, strict=False))
    rank = len(operands["x"].shape)
    axis: int | None = arguments.get("channel_axis")
    # An axis that does not exist stays as it is, for the rule that rejects it.
    if axis is not None and -rank <= axis < rank:
        arguments["channel_axis"] = axis = axis % rank
    moved = axis if operator.axes == "groups" else None
    if moved is not None and 0 <= moved < rank and rank > 1:
        arguments["channel_axis"] = 1
    arguments |= {role: _sample_major(role, tensor, moved) for role, tensor in operands.items()}
    bare = Spec(op=op, unread=unread, device=device, **arguments)
    validate_operands(bare)
    roles = [role for role, want in zip(RESULTS[op], wanted, strict=False) if want]
    if given is None:
        results = {role: new_result(bare, operands, role, param_grad_dtype) for role in roles}
    else:
        results = dict(given)
        check_types(bare, results, param_grad_dtype)
    plan = make_plan(_with_results(bare, results.items(), moved), backend)
    return Call(plan, tuple(results.get(role) for role in RESULTS[op][: len(wanted)]), moved)


def _with_results(
    spec: Spec, results: Iterable[tuple[str, TensorSpec]], channel_axis: int | None
) -> Spec:
    return spec.with_tensors(
        {role: _sample_major(role, tensor, channel_axis) for role, tensor in results}
    )


def _sample_major(role: str, tensor: TensorSpec, channel_axis: int | None) -> TensorSpec:
    """Group norm's data with the channels at axis 1; all else as it is."""
    rank = len(tensor.shape)
    if channel_axis is None or role not in DATA or rank < 2:
        return tensor
    return tensor.move_axis(channel_axis, 1) if 0 <= channel_axis < rank else tensor


def _unread_specs(
    unread: tuple[tuple[str, Array | None], ...], device: str, names: Mapping[str, str]
) -> Named:
    """The operands that are validated and not read."""
    unread_specs = []
    for role, array in unread:
        if array is not None:
            name = names.get(role, role)
            view = kind_of(array, name).view(array, name)
            if view.device != device:
                raise elsewhere(name, view, device)
            unread_specs.append((role, view.tensor))
    return tuple(unread_specs)
