"""The four functions of an operator, made of its row in the table."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from normgrad import device as devices
from normgrad.arrays.host_memory import byte_range
from normgrad.core import options
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.errors import ArgumentError, BackendError, OptionError
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, Spec, TensorSpec
from normgrad.core.strides import without_idle_strides
from normgrad.core.validate import validate
from normgrad.device.chain import Chain
from normgrad.device.failures import is_null, not_null, whole
from normgrad.device.launch import Arrangement, Span, check_place
from normgrad.infiniop.constants import infiniDevice_t
from normgrad.infiniop.descriptors import (
    destroy,
    infiniopHandle_t,
    infiniopTensorDescriptor_t,
    living,
)
from normgrad.infiniop.docstrings import docstrings
from normgrad.infiniop.memory import check_range
from normgrad.infiniop.runtime import core_device, stream_number
from normgrad.infiniop.status import (
    BAD_PARAM,
    BAD_SHAPE,
    BAD_STRIDES,
    SMALL_WORKSPACE,
    SUCCESS,
    UNSUPPORTED_DEVICE,
    Status,
    fail,
    reports,
    status_only,
)
from normgrad.infiniop.table import Operator


class Planned(NamedTuple):
    """A plan, and the tensors in the order of the functions, as it sees them."""

    arrangement: Arrangement
    tensors: tuple[TensorSpec | None, ...]


class OperatorDescriptor:
    """A plan for any number of computations with different data."""

    __slots__ = (
        "alive",
        "arrangement",
        "device",
        "device_id",
        "itemsizes",
        "ranges",
        "workspace_bytes",
    )
    operator: Operator

    def __init__(self, device: int, device_id: int, planned: Planned) -> None:
        self.device = device
        self.device_id = device_id
        self.arrangement, tensors = planned
        self.workspace_bytes = self.arrangement.workspace_bytes
        self.itemsizes = tuple(0 if one is None else ITEMSIZE[one.dtype] for one in tensors)
        self.ranges = tuple((0, 0) if one is None else byte_range(one) for one in tensors)
        self.alive = True


DescriptorAnswer = tuple[Status, OperatorDescriptor | None]
SizeAnswer = tuple[Status, int]


class Functions(NamedTuple):
    """Of one operator: the class of its descriptor, and what is called."""

    descriptor: type[OperatorDescriptor]
    create: Callable[..., DescriptorAnswer]
    workspace_size: Callable[[OperatorDescriptor | None], SizeAnswer]
    compute: Callable[..., Status]
    destroy: Callable[[OperatorDescriptor | None], Status]


def _no_descriptor(status: Status) -> DescriptorAnswer:
    return status, None


def _no_size(status: Status) -> SizeAnswer:
    return status, 0


def functions(operator: Operator) -> Functions:
    """Everything that the interface has of an operator."""
    tensors, numbers = operator.tensors, operator.numbers
    made: type[OperatorDescriptor] = type(
        operator.descriptor, (OperatorDescriptor,), {"__slots__": (), "operator": operator}
    )
    made.__module__, made.__doc__ = "normgrad.infiniop", OperatorDescriptor.__doc__
    wanted = ("handle", *(f"{one.name}_desc" for one in tensors), *(one.name for one in numbers))
    create_signature = _signature(wanted)
    names = tuple(one.name for one in tensors)
    run_signature = _signature(("desc", "workspace", "workspace_size", *names, "stream"))

    def create(*args: Any, **kwargs: Any) -> DescriptorAnswer:
        return _create(operator, made, create_signature.bind(*args, **kwargs).args)

    def workspace_size(desc: OperatorDescriptor | None) -> SizeAnswer:
        return SUCCESS, living(desc, "desc", made).workspace_bytes

    def compute(*args: Any, **kwargs: Any) -> Status:
        if kwargs or len(args) != len(names) + 4:
            args = run_signature.bind(*args, **kwargs).args
        desc, workspace, size, *pointers, stream = args
        return _compute(living(desc, "desc", made), pointers, workspace, size, stream)

    def end(desc: OperatorDescriptor | None) -> Status:
        return destroy(desc, "desc", made)

    name = operator.name
    creator = f"infiniopCreate{name}Descriptor"
    texts = docstrings(operator, creator)
    _name(create, creator, texts[0])
    _name(workspace_size, f"infiniopGet{name}WorkspaceSize", texts[1])
    _name(compute, f"infiniop{name}", texts[2])
    _name(end, f"infiniopDestroy{name}Descriptor", texts[3])
    found = Functions(
        made,
        reports(_no_descriptor)(create),
        reports(_no_size)(workspace_size),
        status_only(compute),
        status_only(end),
    )
    found.create.__signature__ = create_signature  # type: ignore[attr-defined]
    found.compute.__signature__ = run_signature  # type: ignore[attr-defined]
    return found


def _signature(names: tuple[str, ...]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


def _name(function: Callable[..., Any], name: str, text: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "normgrad.infiniop"
    function.__doc__ = text


def _create(
    operator: Operator, made: type[OperatorDescriptor], args: tuple[Any, ...]
) -> DescriptorAnswer:
    handle, *given = args
    living(handle, "handle", infiniopHandle_t)
    tensors = []
    for one, desc in zip(operator.tensors, given, strict=False):
        left_out = not one.required and is_null(desc)
        name = f"{one.name}_desc"
        found = None if left_out else living(desc, name, infiniopTensorDescriptor_t).tensor
        tensors.append(found)
    if handle.device not in tuple(infiniDevice_t):
        fail(UNSUPPORTED_DEVICE, f"handle must be of CPU or NVIDIA, got device {handle.device}")
    numbers = []
    for number, value in zip(operator.numbers, given[len(tensors) :], strict=True):
        try:
            numbers.append(options.number(number.name, value))
        except OptionError as error:
            fail(BAD_PARAM, str(error))
    where = core_device(handle.device, handle.device_id)
    planned = _decide(operator, tuple(tensors), tuple(numbers), where)
    return SUCCESS, made(handle.device, handle.device_id, planned)


@functools.lru_cache(maxsize=4096)
def _decide(
    operator: Operator,
    tensors: tuple[TensorSpec | None, ...],
    numbers: tuple[float, ...],
    where: str,
) -> Planned:
    """Types, shapes, strides: in this order."""
    given = {
        one.name: tensor
        for one, tensor in zip(operator.tensors, tensors, strict=True)
        if tensor is not None
    }
    for rule in operator.rules:
        rule(given)
    dense = {
        name: TensorSpec.contiguous(tensor.shape, tensor.dtype) for name, tensor in given.items()
    }
    try:  # shapes alone: strides have a status of their own
        validate(_request(operator, dense, numbers, where))
    except OptionError as error:
        fail(BAD_PARAM, error.render(operator.names))
    except ArgumentError as error:
        fail(BAD_SHAPE, error.render(operator.names))
    for rule in operator.stride_rules:
        rule(given)
    # Axes of size 1 may have any stride; the plan sees those of a contiguous tensor.
    exact = {
        name: dense[name] if _dense(tensor) else without_idle_strides(tensor)
        for name, tensor in given.items()
    }
    try:
        spec = _request(operator, exact, numbers, where)
        if operator.chain is None:
            arrangement = Arrangement(make_plan(spec), operator.names)
        else:
            steps, copies = operator.chain(exact, spec)
            arrangement = Chain(steps, operator.names, copies)
    except ArgumentError as error:  # with dense tensors there was none: the strides are to blame
        fail(BAD_STRIDES, error.render(operator.names))
    except BackendError as error:
        fail(UNSUPPORTED_DEVICE, str(error))
    return Planned(arrangement, tuple([exact.get(one.name) for one in operator.tensors]))


def _dense(tensor: TensorSpec) -> bool:
    expected = TensorSpec.contiguous(tensor.shape, tensor.dtype).strides
    return tensor.size == 0 or all(
        size == 1 or step == right
        for size, step, right in zip(tensor.shape, tensor.strides, expected, strict=True)
    )


def _request(
    operator: Operator, tensors: dict[str, TensorSpec], numbers: tuple[float, ...], where: str
) -> Spec:
    fields: dict[str, Any] = {one.role: tensors.get(one.name) for one in operator.tensors}
    fields |= {one.role: value for one, value in zip(operator.numbers, numbers, strict=True)}
    operator.adapt(tensors, fields)
    return Spec(op=operator.op, **fields, device=where)


def _compute(
    found: OperatorDescriptor, pointers: list[Any], workspace: Any, size: Any, stream: Any
) -> Status:
    where = core_device(found.device, found.device_id)
    spans = _spans(found, pointers, where)
    scratch = _scratch(found.workspace_bytes, workspace, size, where)
    number = stream_number(stream)
    try:
        launch = found.arrangement.bind(spans)
    except ArgumentError as error:
        fail(BAD_PARAM, error.render(found.operator.names))
    memory = devices.memory_of(where)
    if launch.workspace_bytes <= found.workspace_bytes:
        launch.run(memory, scratch or None, number)
        return SUCCESS
    # A result lies over an operand: the caller's workspace has no room for the detour.
    owner, own = memory.allocate(launch.workspace_bytes)
    launch.run(memory, own, number)
    memory.synchronize(number)
    del owner
    return SUCCESS


def _spans(found: OperatorDescriptor, pointers: list[Any], where: str) -> list[Span | None]:
    """Where the tensors lie, in the order of ``ROLES``."""
    spans: list[Span | None] = [None] * len(ROLES)
    operator = found.operator
    places = zip(
        operator.tensors, operator.slots, pointers, found.ranges, found.itemsizes, strict=True
    )
    for one, slot, pointer, (low, high), itemsize in places:
        if not itemsize:  # left out
            continue
        if low == high:  # empty: there may be no memory at all
            spans[slot] = Span(0, 0, 0)
            continue
        address = not_null(BAD_PARAM, one.name, pointer)
        span = Span(address, address + low, address + high)
        check_place(BAD_PARAM, one.name, span, itemsize)
        check_range(one.name, span.low, span.high, where)
        spans[slot] = span
    return spans


def _scratch(needed: int, workspace: Any, workspace_size: Any, where: str) -> int:
    """The address of a workspace that has the bytes it needs; 0 for none."""
    address = 0 if is_null(workspace) else whole(BAD_PARAM, "workspace", workspace)
    size = whole(BAD_PARAM, "workspace_size", workspace_size)
    if size < needed:
        fail(SMALL_WORKSPACE, f"workspace_size must be at least {needed}, got {size}")
    if needed:
        if not address:
            fail(BAD_PARAM, f"workspace must not be null for {needed} bytes")
        place = Span(address, address, address + needed)
        check_place(BAD_PARAM, "workspace", place, 1)
        check_range("workspace", place.low, place.high, where)
    return address
