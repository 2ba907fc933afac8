"""What infiniop's functions must answer to wrong calls, made of an operator's row in the table."""

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from normgrad.core.operators import DATA
from normgrad.core.spec import TensorSpec
from normgrad.infiniop.status import (
    BAD_DTYPE,
    BAD_PARAM,
    BAD_SHAPE,
    BAD_STRIDES,
    NULL_POINTER,
    SMALL_WORKSPACE,
    SUCCESS,
)
from normgrad.infiniop.table import SHAPES, Operator, Tensor
from normgrad.verify.clib.job import answered
from normgrad.verify.clib.memory import Placed, nan_like
from normgrad.verify.foreign import Outcome

if TYPE_CHECKING:
    from normgrad.verify.clib.infiniop import Infiniop

Check = Callable[["Infiniop", Outcome], Outcome]
Changes = dict[str, TensorSpec | None]


def _usual(operator: Operator) -> dict[str, TensorSpec]:
    return {
        one.name: TensorSpec.contiguous(SHAPES[one.shape][1], "float32") for one in operator.tensors
    }


def _numbers(operator: Operator) -> list[float]:
    return [one.example for one in operator.numbers]


def _create_with(
    operator: Operator, changes: Changes, want: int, *, handle: bool = True, target: bool = True
) -> Check:
    """A status check of the create function, which must leave the target alone if it fails."""

    def check(library: "Infiniop", blank: Outcome) -> Outcome:
        tensors = {**_usual(operator), **changes}
        described = [
            None if tensor is None else library.descriptor(tensor) for tensor in tensors.values()
        ]
        marker = 0x5A5A
        made = ctypes.c_void_p(marker)
        functions = library.of(operator)
        code = functions.create(
            library.handle if handle else None,
            ctypes.addressof(made) if target else None,
            *described,
            *_numbers(operator),
        )
        for one in described:
            if one is not None:
                library.forget(one)
        if code == SUCCESS and made.value != marker:
            functions.destroy(made)
        note = "" if code == SUCCESS or made.value == marker else "the target was written"
        return answered(blank, code, want, note)

    return check


def _compute(operator: Operator, *, missing: str | None = None, short: bool = False) -> Check:
    """A compute call without a pointer, a descriptor ("desc") or its workspace: nothing changes."""

    def check(library: "Infiniop", blank: Outcome) -> Outcome:
        tensors = _usual(operator)
        placed = {
            name: Placed(library.runtime, nan_like(tensor)) for name, tensor in tensors.items()
        }
        functions = library.of(operator)
        with library.planned(operator, list(tensors.values()), _numbers(operator)) as made:
            needed = ctypes.c_size_t()
            functions.workspace_size(made, ctypes.addressof(needed))
            size = 0 if short else needed.value
            workspace = library.runtime.malloc(size) if size else None
            addresses = [None if name == missing else placed[name].address for name in tensors]
            desc = None if missing == "desc" else made
            code = functions.compute(desc, workspace, size, *addresses, None)
            if workspace is not None:
                library.runtime.free(workspace)
        want = BAD_PARAM
        if short:  # without need of a workspace none can be too small
            want = SMALL_WORKSPACE if needed.value else SUCCESS
        written = [name for name, memory in placed.items() if memory.touched()]
        for memory in placed.values():
            memory.free()
        note = f"it wrote to {', '.join(written)}" if code != SUCCESS and written else ""
        return answered(blank, code, want, note)

    return check


def _size_nowhere(operator: Operator) -> Check:
    def check(library: "Infiniop", blank: Outcome) -> Outcome:
        tensors = list(_usual(operator).values())
        with library.planned(operator, tensors, _numbers(operator)) as made:
            code = int(library.of(operator).workspace_size(made, None))
        return answered(blank, code, BAD_PARAM)

    return check


def _simple(call: Callable[["Infiniop"], int], want: int) -> Check:
    return lambda library, blank: answered(blank, call(library), want)


@functools.cache
def calls(operator: Operator) -> dict[str, Check]:
    """The checks by name."""
    create, size = functools.partial(_create_with, operator), (None, None)
    made: dict[str, Check] = {
        "create": create({}, SUCCESS),
        "create: null handle": create({}, BAD_PARAM, handle=False),
        "create: null target": create({}, BAD_PARAM, target=False),
        "create handle: null": _simple(
            lambda library: int(library.create_handle(None)), NULL_POINTER
        ),
        "workspace size: null": _simple(
            lambda library: int(library.of(operator).workspace_size(*size)), BAD_PARAM
        ),
        "destroy: null": _simple(lambda library: int(library.of(operator).destroy(None)), SUCCESS),
        "workspace size: null target": _size_nowhere(operator),
        "compute: null descriptor": _compute(operator, missing="desc"),
        "compute: workspace too small": _compute(operator, short=True),
        **_order(operator),
        **_of_rules(operator),
    }
    for one in operator.tensors:
        made |= _of_tensor(operator, one)
    return made


def _order(operator: Operator) -> dict[str, Check]:
    """Nulls, types, shapes, strides."""
    usual = _usual(operator)
    data = next(one.name for one in operator.tensors if one.role == "x")
    (weight,) = [one.name for one in operator.tensors if one.role == "gamma"]
    short = _shorter(usual[weight])
    gaps = _with_gaps(usual[data])
    create = functools.partial(_create_with, operator)
    wrong = usual[weight]._replace(dtype="float64")
    return {
        f"create: null {data}, {weight} of type F64": create(
            {data: None, weight: wrong}, BAD_PARAM
        ),
        f"create: {weight} too short and of type F64": create(
            {weight: short._replace(dtype="float64")}, BAD_DTYPE
        ),
        f"create: {weight} too short, {data} not contiguous": create(
            {weight: short, data: gaps}, BAD_SHAPE
        ),
    }


def _of_rules(operator: Operator) -> dict[str, Check]:
    """Types that no operator takes, axes, and strides of what is no data."""
    usual = _usual(operator)
    create = functools.partial(_create_with, operator)
    integers: Changes = {name: one._replace(dtype="int32") for name, one in usual.items()}
    made = {"create: all of type I32": create(integers, BAD_DTYPE)}
    rank = {"data": 4, "rows": 9}[next(one.shape for one in operator.tensors if one.role == "x")]
    many = TensorSpec.contiguous((1,) * (rank - 2) + (3, 4), "float32")
    more: Changes = {one.name: many for one in operator.tensors if one.role in DATA}
    made[f"create: data of {rank} axes"] = create(more, BAD_SHAPE)
    for one in operator.tensors:
        tensor = usual[one.name]
        if one.role in DATA:
            continue
        flat = TensorSpec.contiguous((1, *tensor.shape), "float32")
        made[f"create: {one.name} of two axes"] = create({one.name: flat}, BAD_SHAPE)
        by_channel = one.shape == "channels"
        gaps = SUCCESS if by_channel or not operator.stride_rules else BAD_STRIDES
        made[f"create: {one.name} with gaps"] = create({one.name: _with_gaps(tensor)}, gaps)
    return made


def _shorter(tensor: TensorSpec) -> TensorSpec:
    return TensorSpec.contiguous((*tensor.shape[:-1], tensor.shape[-1] - 1), tensor.dtype)


def _with_gaps(tensor: TensorSpec) -> TensorSpec:
    return tensor._replace(strides=tuple(2 * step for step in tensor.strides))


def _of_tensor(operator: Operator, one: Tensor) -> dict[str, Check]:
    tensor, word = _usual(operator)[one.name], one.name
    create = functools.partial(_create_with, operator)
    double, half = tensor._replace(dtype="float64"), tensor._replace(dtype="float16")
    null = BAD_PARAM if one.required else SUCCESS
    made = {
        f"create: null {word}": create({word: None}, null),
        f"compute: null {word}": _compute(operator, missing=word),
        f"create: {word} of type F64": create({word: double}, BAD_DTYPE),
        f"create: {word} alone of type F16": create({word: half}, BAD_DTYPE),
    }
    if one.role not in DATA:
        return made | {f"create: {word} too short": create({word: _shorter(tensor)}, BAD_SHAPE)}
    flat = TensorSpec.contiguous((24,), "float32")
    other = TensorSpec.contiguous((*tensor.shape[:-1], tensor.shape[-1] + 1), "float32")
    made |= {
        f"create: {word} of one axis": create({word: flat}, BAD_SHAPE),
        f"create: {word} of another shape": create({word: other}, BAD_SHAPE),
    }
    if operator.stride_rules:
        gaps = create({word: _with_gaps(tensor)}, BAD_STRIDES)
        made[f"create: {word} not contiguous"] = gaps
    return made
