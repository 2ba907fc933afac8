"""The four functions of BatchNormBackward."""

import functools
from typing import Any, Final

from normgrad import device as devices
from normgrad.device.failures import is_null, not_null, whole
from normgrad.device.launch import Arrangement, Span, check_place
from normgrad.dtypes import ITEMSIZE
from normgrad.errors import ArgumentError, BackendError
from normgrad.hostmem import byte_range
from normgrad.infiniop.constants import infiniDevice_t
from normgrad.infiniop.descriptors import (
    destroy,
    infiniopHandle_t,
    infiniopTensorDescriptor_t,
    living,
)
from normgrad.infiniop.runtime import check_range, core_device, stream_number
from normgrad.infiniop.status import (
    BAD_DTYPE,
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
from normgrad.plan import make_plan
from normgrad.spec import ROLES, SLOT, Op, Spec, TensorSpec
from normgrad.strides import without_idle_strides
from normgrad.validate import validate

DTYPES: Final = ("float16", "float32", "bfloat16")
# The eight tensors in the order of the functions, with the core's roles.
TENSORS: Final = {
    "grad_input": "dx",
    "grad_weight": "dgamma",
    "grad_bias": "dbeta",
    "input": "x",
    "grad_output": "dy",
    "weight": "gamma",
    "running_mean": "mean",
    "running_var": "rstd",
}
BIG: Final = ("grad_input", "input", "grad_output")
_NAMES: Final = {role: name for name, role in TENSORS.items()}
_ORDER: Final = tuple(TENSORS)
_SLOTS: Final = tuple(SLOT[role] for role in TENSORS.values())


class infiniopBatchNormBackwardDescriptor_t:
    """A plan for any number of computations with different data."""

    __slots__ = (
        "alive",
        "arrangement",
        "device",
        "device_id",
        "itemsize",
        "ranges",
        "workspace_bytes",
    )

    def __init__(self, device: int, device_id: int, arrangement: Arrangement) -> None:
        self.device = device
        self.device_id = device_id
        self.arrangement = arrangement
        self.workspace_bytes = arrangement.workspace_bytes
        spec = arrangement.plan.spec
        self.itemsize = ITEMSIZE[spec.x.dtype]  # all eight tensors have one type
        self.ranges = tuple(byte_range(spec.present(role)) for role in TENSORS.values())
        self.alive = True


DescriptorAnswer = tuple[Status, infiniopBatchNormBackwardDescriptor_t | None]


def _no_descriptor(status: Status) -> DescriptorAnswer:
    return status, None


def _no_size(status: Status) -> tuple[Status, int]:
    return status, 0


@reports(_no_descriptor)
def infiniopCreateBatchNormBackwardDescriptor(
    handle: infiniopHandle_t | None,
    grad_input_desc: infiniopTensorDescriptor_t | None,
    grad_weight_desc: infiniopTensorDescriptor_t | None,
    grad_bias_desc: infiniopTensorDescriptor_t | None,
    input_desc: infiniopTensorDescriptor_t | None,
    grad_output_desc: infiniopTensorDescriptor_t | None,
    weight_desc: infiniopTensorDescriptor_t | None,
    running_mean_desc: infiniopTensorDescriptor_t | None,
    running_var_desc: infiniopTensorDescriptor_t | None,
) -> DescriptorAnswer:
    """Status, and the operator's descriptor; the tensors' may be destroyed right after."""
    given = (
        grad_input_desc,
        grad_weight_desc,
        grad_bias_desc,
        input_desc,
        grad_output_desc,
        weight_desc,
        running_mean_desc,
        running_var_desc,
    )
    living(handle, "handle", infiniopHandle_t)
    assert handle is not None
    tensors = tuple(
        [
            living(desc, f"{name}_desc", infiniopTensorDescriptor_t).tensor
            for name, desc in zip(_ORDER, given, strict=True)
        ]
    )
    if handle.device not in tuple(infiniDevice_t):
        fail(UNSUPPORTED_DEVICE, f"handle must be of CPU or NVIDIA, got device {handle.device}")
    arrangement = _decide(tensors, core_device(handle.device, handle.device_id))
    made = infiniopBatchNormBackwardDescriptor_t(handle.device, handle.device_id, arrangement)
    return SUCCESS, made


@functools.lru_cache(maxsize=4096)
def _decide(tensors: tuple[TensorSpec, ...], where: str) -> Arrangement:
    """Types, shapes, strides: in this order."""
    named = dict(zip(_ORDER, tensors, strict=True))
    for name, tensor in named.items():
        if tensor.dtype not in DTYPES:
            fail(BAD_DTYPE, f"{name} must be of type {', '.join(DTYPES)}, got {tensor.dtype}")
    for name, tensor in named.items():
        if tensor.dtype != named["input"].dtype:
            rule = f"must have the type of input, {named['input'].dtype}"
            fail(BAD_DTYPE, f"{name} {rule}, got {tensor.dtype}")
    for name in BIG:
        shape = named[name].shape
        if len(shape) != 3:
            fail(BAD_SHAPE, f"{name} must have the 3 axes (N, C, L), got shape {shape}")
    dense = {
        name: TensorSpec.contiguous(tensor.shape, tensor.dtype) for name, tensor in named.items()
    }
    try:
        validate(_request(dense, where))  # shapes alone: strides have a status of their own
    except ArgumentError as error:
        fail(BAD_SHAPE, error.render(_NAMES))
    for name in BIG:
        if not _is_contiguous(named[name]):
            rule = f"must be contiguous, with strides {dense[name].strides}"
            fail(BAD_STRIDES, f"{name} {rule}, got {named[name].strides}")
    # Axes of size 1 may have any stride; the plan sees the ones of a contiguous tensor.
    exact = {name: without_idle_strides(tensor) for name, tensor in named.items()}
    exact |= {name: dense[name] for name in BIG}
    try:
        plan = make_plan(_request(exact, where))
    except ArgumentError as error:  # with dense tensors there was none: the strides are to blame
        fail(BAD_STRIDES, error.render(_NAMES))
    except BackendError as error:
        fail(UNSUPPORTED_DEVICE, str(error))
    return Arrangement(plan, _NAMES)


def _request(tensors: dict[str, TensorSpec], where: str) -> Spec:
    """Batch statistics in running_mean and running_var, and no eps anywhere."""
    arguments: dict[str, Any] = {role: tensors[name] for name, role in TENSORS.items()}
    return Spec(op=Op.BATCH_NORM, **arguments, rstd_is="variance", eps=0.0, device=where)


def _is_contiguous(tensor: TensorSpec) -> bool:
    expected = TensorSpec.contiguous(tensor.shape, tensor.dtype).strides
    return tensor.size == 0 or all(
        size == 1 or step == right
        for size, step, right in zip(tensor.shape, tensor.strides, expected, strict=True)
    )


@reports(_no_size)
def infiniopGetBatchNormBackwardWorkspaceSize(
    desc: infiniopBatchNormBackwardDescriptor_t | None,
) -> tuple[Status, int]:
    """Status, and the bytes of workspace that each computation needs."""
    found: infiniopBatchNormBackwardDescriptor_t = _descriptor(desc)
    return SUCCESS, found.workspace_bytes


@status_only
def infiniopBatchNormBackward(
    desc: infiniopBatchNormBackwardDescriptor_t | None,
    workspace: int | None,
    workspace_size: int,
    grad_input: int | None,
    grad_weight: int | None,
    grad_bias: int | None,
    input: int | None,
    grad_output: int | None,
    weight: int | None,
    running_mean: int | None,
    running_var: int | None,
    stream: Any,
) -> Status:
    """Compute all three gradients."""
    found = _descriptor(desc)
    where = core_device(found.device, found.device_id)
    given = (
        grad_input,
        grad_weight,
        grad_bias,
        input,
        grad_output,
        weight,
        running_mean,
        running_var,
    )
    spans = _spans(found, given, where)
    scratch = _scratch(found.workspace_bytes, workspace, workspace_size, where)
    number = stream_number(stream)
    try:
        launch = found.arrangement.bind(spans)
    except ArgumentError as error:
        fail(BAD_PARAM, error.render(_NAMES))
    memory = devices.memory_of(where)
    if not launch.moves:
        launch.run(memory, scratch or None, number)
        return SUCCESS
    # A result lies over an operand: the caller's workspace has no room for the detour.
    owner, own = memory.allocate(launch.workspace_bytes)
    launch.run(memory, own, number)
    memory.synchronize(number)
    del owner
    return SUCCESS


def _spans(
    found: infiniopBatchNormBackwardDescriptor_t, given: tuple[int | None, ...], where: str
) -> list[Span | None]:
    """Where the eight tensors lie, in the order of ``ROLES``."""
    spans: list[Span | None] = [None] * len(ROLES)
    for name, slot, pointer, (low, high) in zip(_ORDER, _SLOTS, given, found.ranges, strict=True):
        if low == high:  # empty: there may be no memory at all
            spans[slot] = Span(0, 0, 0)
            continue
        address = not_null(BAD_PARAM, name, pointer)
        span = Span(address, address + low, address + high)
        check_place(BAD_PARAM, name, span, found.itemsize)
        check_range(name, span.low, span.high, where)
        spans[slot] = span
    return spans


def _scratch(needed: int, workspace: int | None, workspace_size: int, where: str) -> int:
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


@status_only
def infiniopDestroyBatchNormBackwardDescriptor(
    desc: infiniopBatchNormBackwardDescriptor_t | None,
) -> Status:
    """End a descriptor. Null is success."""
    return destroy(desc, "desc", infiniopBatchNormBackwardDescriptor_t)


def _descriptor(desc: Any) -> infiniopBatchNormBackwardDescriptor_t:
    found: infiniopBatchNormBackwardDescriptor_t = living(
        desc, "desc", infiniopBatchNormBackwardDescriptor_t
    )
    return found
