"""Results of a call on arrays: which may be given, what new ones are, and who fills them."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from normgrad.arrays.kinds import Array, Kind, View, elsewhere, kind_of
from normgrad.arrays.overlap import through_copies
from normgrad.core.dtypes import compute_dtype
from normgrad.core.errors import ArrayTypeError, DtypeError, OptionError
from normgrad.core.operators import DATA, STATISTICS
from normgrad.core.plan import Plan
from normgrad.core.spec import RESULTS, SLOT, Op, Spec, TensorSpec, dense_like, result_dtype
from normgrad.core.validate import public_names, result_shape

# Where the address of each result goes.
SLOTS: Final = {op: tuple(SLOT[role] for role in roles) for op, roles in RESULTS.items()}


class Call(NamedTuple):
    """What a call needs besides its arrays: the plan, and each result as the caller sees it."""

    plan: Plan
    results: tuple[TensorSpec | None, ...]  # as many as the mask has
    channel_axis: int | None  # group norm's, whose plan has the channels at axis 1


def given_views(
    op: Op,
    out: Sequence[Array | None],
    wanted: tuple[bool, ...],
    device: str,
    names: Mapping[str, str],
) -> dict[str, View]:
    """The preallocated results that are wanted, by role."""
    roles = RESULTS[op][: len(wanted)]
    if not isinstance(out, (tuple, list)) or len(out) != len(roles):
        rule = f"must be a tuple of {len(roles)}: {', '.join(names.get(r, r) for r in roles)}"
        got = f"{len(out)} of them" if isinstance(out, (tuple, list)) else type(out).__name__
        raise ArrayTypeError("out", rule, got)
    views = {}
    for role, array, want in zip(roles, out, wanted, strict=True):
        # The element stage has one result, and `out` is that very array.
        name = f"out's {names.get(role, role)}" if len(roles) > 1 else "out"
        if want != (array is not None):
            rule = f"must be {'an array' if want else 'None'}, as output_mask says"
            raise OptionError(name, rule, "None" if array is None else f"a {type(array).__name__}")
        if array is None:
            continue
        view = views[role] = kind_of(array, name).result_view(array, name)
        if view.device != device:
            raise elsewhere(name, view, device)
    return views


def new_result(
    spec: Spec, operands: Mapping[str, TensorSpec], role: str, param_grad_dtype: str | None
) -> TensorSpec:
    """The layout and type of one that is not given."""
    if role in DATA:
        return dense_like(operands["x"])
    parameters = param_grad_dtype or (spec.gamma or spec.x).dtype
    compute = compute_dtype(tuple(tensor.dtype for tensor in operands.values()))
    dtype = result_dtype(role, spec.x.dtype, parameters, compute)
    return TensorSpec.contiguous(result_shape(spec, role), dtype)


def check_types(spec: Spec, results: Mapping[str, TensorSpec], wished: str | None) -> None:
    """Given ones: data as x, sums and statistics float32 or float64, others as gamma or wished."""
    for role, tensor in results.items():
        if role in DATA:
            allowed: tuple[str, ...] = (spec.x.dtype,)
        elif role == "mask":
            allowed = ("uint8",)
        elif role in ("sum_dy", "sum_dy_xmu", *STATISTICS):
            allowed = ("float32", "float64")
        elif wished is not None:
            allowed = (wished,)
        else:
            allowed = tuple(dict.fromkeys(((spec.gamma or spec.x).dtype, "float32")))
        if tensor.dtype not in allowed:
            rule = f"must be of type {' or '.join(allowed)}"
            raise DtypeError(role, rule, tensor.dtype, public_names(spec.op, spec.rstd_is))


def into_new(
    call: Call, kind: Kind, addresses: list[int | None], like: Array, device: str
) -> tuple[Array | None, ...]:
    """Compute a call into new arrays like ``like``."""
    made: list[Array | None] = []
    for slot, tensor in zip(SLOTS[call.plan.spec.op], call.results, strict=False):
        if tensor is None:
            made.append(None)
        else:
            array, addresses[slot] = kind.empty(tensor, device, like)
            made.append(array)
    _launch(call.plan, kind, addresses)
    return tuple([None if array is None else kind.finish(array, like) for array in made])


def into_given(
    call: Call,
    kind: Kind,
    addresses: list[int | None],
    given: Mapping[str, View],
    needing_copies: set[str],
    out: Mapping[str, Array],
) -> None:
    """Compute a call into given arrays, those in ``needing_copies`` in new memory first."""
    for role, view in given.items():
        addresses[SLOT[role]] = view.address
    plan = call.plan
    fresh = {}
    if needing_copies:
        # Results that lie over operands are computed into new memory first.
        plan, moved = through_copies(plan, needing_copies)
        for role, tensor in moved.items():
            array = out[role]
            axis = call.channel_axis if role in DATA else None
            seen = tensor if axis is None else tensor.move_axis(1, axis)  # as the caller sees it
            fresh[role], address = kind_of(array, role).empty(seen, plan.spec.device, array)
            addresses[SLOT[role]] = address
    _launch(plan, kind, addresses)
    for role, array in fresh.items():
        kind_of(out[role], role).copy(out[role], array)
    for role in given:
        kind_of(out[role], role).written(out[role])


def _launch(plan: Plan, kind: Kind, addresses: list[int | None]) -> None:
    device = plan.spec.device
    if plan.workspace_bytes:
        owner, workspace = kind.scratch(plan.workspace_bytes, device)
        plan.run(addresses, workspace, kind.stream(device))
        del owner  # the scratch memory lived until here
    else:
        plan.run(addresses, None, kind.stream(device))
