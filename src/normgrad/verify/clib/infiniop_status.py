"""What infiniop's functions must answer to wrong calls."""

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

from normgrad.infiniop.batch_norm import TENSORS
from normgrad.infiniop.status import (
    BAD_DTYPE,
    BAD_PARAM,
    BAD_SHAPE,
    BAD_STRIDES,
    NULL_POINTER,
    SMALL_WORKSPACE,
    SUCCESS,
)
from normgrad.spec import TensorSpec
from normgrad.verify.clib.job import answered
from normgrad.verify.clib.memory import Placed, nan_like
from normgrad.verify.foreign import Outcome

if TYPE_CHECKING:
    from normgrad.verify.clib.infiniop import Infiniop

# The order of the descriptors and of the data pointers; the first three are results.
WORDS, ROLES = tuple(TENSORS), tuple(TENSORS.values())
Check = Callable[["Infiniop", Outcome], Outcome]


def _usual() -> dict[str, TensorSpec]:
    big = TensorSpec.contiguous((2, 3, 4), "float32")
    vector = TensorSpec.contiguous((3,), "float32")
    return {role: big if role in ("dx", "x", "dy") else vector for role in ROLES}


def _create_with(
    changes: dict[str, TensorSpec | None], want: int, *, handle: bool = True, target: bool = True
) -> Check:
    """A status check of the create function, which must leave the target alone if it fails."""

    def check(library: "Infiniop", blank: Outcome) -> Outcome:
        tensors = {**_usual(), **changes}
        described = {
            role: None if tensor is None else library.descriptor(tensor)
            for role, tensor in tensors.items()
        }
        marker = 0x5A5A
        made = ctypes.c_void_p(marker)
        code = library.create(
            library.handle if handle else None,
            ctypes.addressof(made) if target else None,
            *(described[role] for role in ROLES),
        )
        for one in described.values():
            if one is not None:
                library.forget(one)
        if code == SUCCESS and made.value != marker:
            library.destroy(made)
        note = "" if code == SUCCESS or made.value == marker else "the target was written"
        return answered(blank, code, want, note)

    return check


def _compute(*, missing: str | None = None, short: bool = False) -> Check:
    """A compute call without a pointer, a descriptor ("desc") or its workspace: nothing changes."""

    def check(library: "Infiniop", blank: Outcome) -> Outcome:
        tensors = _usual()
        placed = {role: Placed(library.runtime, nan_like(tensors[role])) for role in ROLES}
        with library.operator([tensors[role] for role in ROLES]) as operator:
            needed = ctypes.c_size_t()
            library.workspace_size(operator, ctypes.addressof(needed))
            size = 0 if short else needed.value
            workspace = library.runtime.malloc(size) if size else None
            addresses = [None if role == missing else placed[role].address for role in ROLES]
            desc = None if missing == "desc" else operator
            code = library.compute(desc, workspace, size, *addresses, None)
            if workspace is not None:
                library.runtime.free(workspace)
        want = BAD_PARAM
        if short:  # without need of a workspace none can be too small
            want = SMALL_WORKSPACE if needed.value else SUCCESS
        words = zip(placed.values(), WORDS, strict=True)
        written = [word for memory, word in words if memory.touched()]
        for memory in placed.values():
            memory.free()
        note = f"it wrote to {', '.join(written)}" if code != SUCCESS and written else ""
        return answered(blank, code, want, note)

    return check


def _size_nowhere(library: "Infiniop", blank: Outcome) -> Outcome:
    tensors = _usual()
    with library.operator([tensors[role] for role in ROLES]) as operator:
        code = int(library.workspace_size(operator, None))
    return answered(blank, code, BAD_PARAM)


def _simple(call: Callable[["Infiniop"], int], want: int) -> Check:
    return lambda library, blank: answered(blank, call(library), want)


def _calls() -> dict[str, Check]:
    usual = _usual()
    short = TensorSpec.contiguous((2,), "float32")
    made: dict[str, Check] = {
        "create": _create_with({}, SUCCESS),
        "create: null handle": _create_with({}, BAD_PARAM, handle=False),
        "create: null target": _create_with({}, BAD_PARAM, target=False),
        "create handle: null": _simple(
            lambda library: int(library.create_handle(None)), NULL_POINTER
        ),
        "workspace size: null": _simple(
            lambda library: int(library.workspace_size(None, None)), BAD_PARAM
        ),
        "destroy: null": _simple(lambda library: int(library.destroy(None)), SUCCESS),
        "workspace size: null target": _size_nowhere,
        "compute: null descriptor": _compute(missing="desc"),
        "compute: workspace too small": _compute(short=True),
        # The order of the checks: nulls, types, shapes, strides.
        "create: null input, weight of type F64": _create_with(
            {"x": None, "gamma": usual["gamma"]._replace(dtype="float64")}, BAD_PARAM
        ),
        "create: weight too short and of type F64": _create_with(
            {"gamma": short._replace(dtype="float64")}, BAD_DTYPE
        ),
        "create: weight too short, input not contiguous": _create_with(
            {"gamma": short, "x": TensorSpec((2, 3, 4), (24, 8, 2), "float32")}, BAD_SHAPE
        ),
    }
    for role, word in zip(ROLES, WORDS, strict=True):
        tensor = usual[role]
        made[f"create: null {word}"] = _create_with({role: None}, BAD_PARAM)
        made[f"compute: null {word}"] = _compute(missing=role)
        double = tensor._replace(dtype="float64")
        made[f"create: {word} of type F64"] = _create_with({role: double}, BAD_DTYPE)
        half = tensor._replace(dtype="float16")
        made[f"create: {word} alone of type F16"] = _create_with({role: half}, BAD_DTYPE)
        if len(tensor.shape) == 1:
            made[f"create: {word} too short"] = _create_with({role: short}, BAD_SHAPE)
        else:
            flat = TensorSpec.contiguous((2, 12), "float32")
            gaps = TensorSpec(tensor.shape, (24, 8, 2), "float32")
            other = TensorSpec.contiguous((2, 3, 5), "float32")
            made[f"create: {word} of two axes"] = _create_with({role: flat}, BAD_SHAPE)
            made[f"create: {word} of another shape"] = _create_with({role: other}, BAD_SHAPE)
            made[f"create: {word} not contiguous"] = _create_with({role: gaps}, BAD_STRIDES)
    return made


CALLS = _calls()
