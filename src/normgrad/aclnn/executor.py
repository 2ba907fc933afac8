"""The two stages that every operator shares, and the executor between them."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from normgrad import device
from normgrad.aclnn import products
from normgrad.aclnn.products import Product
from normgrad.aclnn.rules import Call, Page
from normgrad.aclnn.runtime import stream_number
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    INVALID,
    NO_KERNEL,
    NULLPTR,
    RUNTIME,
    SPENT,
    Status,
    StatusError,
    fail,
    operator_status,
)
from normgrad.aclnn.tensors import TensorKind, aclBoolArray, aclTensor, living
from normgrad.device import memory
from normgrad.device.failures import described, is_null, whole
from normgrad.device.launch import Arrangement, Launch, Placed, Span, check_place
from normgrad.device.memory import OwnershipError
from normgrad.errors import ArgumentError, BackendError
from normgrad.plan import make_plan
from normgrad.spec import ROLES, SLOT, StatisticKind
from normgrad.strides import without_idle_strides

StageOneAnswer = tuple[Status, int, "aclOpExecutor | None"]

NO_MASK: Final = object()  # an operator without outputMask
_CACHED = 4096
_CLAIM = threading.Lock()


class aclOpExecutor:
    """A plan bound to its tensors, for one stage 2 or, if made repeatable, for many."""

    __slots__ = ("launch", "memory", "name", "repeatable", "state", "tensors", "workspace_bytes")

    def __init__(
        self, name: str, launch: Launch, tensors: tuple[tuple[str, aclTensor], ...]
    ) -> None:
        self.name = name
        self.launch = launch
        self.tensors = tensors
        self.workspace_bytes = launch.workspace_bytes
        self.memory = device.memory_of(launch.plan.spec.device)
        self.repeatable = False
        self.state = "ready"

    def end(self, state: str) -> None:
        """Let go of plan and tensors; what is left says why."""
        self.state = state
        self.tensors = ()
        self.launch = None  # type: ignore[assignment]


class Decision(NamedTuple):
    """All that stage 1 finds out without looking at memory."""

    arrangement: Arrangement
    slots: tuple[tuple[int, int, str], ...]  # slot of the core, place in the signature, name


def no_stage_one(status: Status) -> StageOneAnswer:
    """What a stage 1 that failed returns: nothing is allocated, nothing is held."""
    return status, 0, None


def stage_one(
    page: Page,
    tensors: tuple[Any, ...],
    options: Callable[[], tuple[Any, ...]] = tuple,
    mask: Any = NO_MASK,
) -> StageOneAnswer:
    """Nulls, product, rules, plan, memory: in this order. ``options`` may break a rule."""
    tensors = _nulls_as_none(page, tensors)
    bits = _bits(mask)
    if mask is not NO_MASK:
        tensors = _requested(page, tensors, bits)
    current = products.SETTINGS
    if page.name not in current.product.operators:
        fail(NO_KERNEL, f"{current.product.title} has no {page.name}")
    if mask is not NO_MASK:
        living(mask, "outputMask", aclBoolArray)
    kinds: list[TensorKind | None] = [
        None if value is None else living(value, name, aclTensor).kind
        for name, value in zip(page.tensors, tensors, strict=True)
    ]
    decision = _decide(page, current.product, current.saved, tuple(kinds), bits, options())
    for name, value in zip(page.tensors, tensors, strict=True):
        if value is not None:  # also one that nobody reads
            _check_memory(name, value)
    placed: list[Placed | None] = [None] * len(ROLES)
    used = []
    for slot, place, name in decision.slots:
        tensor = tensors[place]
        placed[slot] = tensor
        used.append((name, tensor))
    try:
        launch = decision.arrangement.bind(placed)
    except ArgumentError as error:
        fail(INVALID, error.render(decision.arrangement.names))
    try:
        executor = aclOpExecutor(page.name, launch, tuple(used))
    except (ImportError, RuntimeError, ValueError) as error:  # the device cannot be reached
        fail(Status.ACLNN_ERR_INNER_CREATE_EXECUTOR, f"no executor for {page.name}: {error}")
    return ACL_SUCCESS, executor.workspace_bytes, executor


def _nulls_as_none(page: Page, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors, with None for null; 161001 for the first that must not be."""
    # The type first: asking each of nine tensors whether it is null takes 1 us.
    kept = tuple(
        [value if type(value) is aclTensor or not is_null(value) else None for value in tensors]
    )
    for name, value in zip(page.tensors, kept, strict=True):
        if value is None and name in page.required:
            fail(NULLPTR, f"{name} must not be null")
    return kept


def _requested(page: Page, tensors: tuple[Any, ...], bits: tuple[bool, ...]) -> tuple[Any, ...]:
    """The tensors without the outputs that are masked off; the others must not be null."""
    first = len(tensors) - len(page.outputs)  # outputs are the last arguments
    kept = list(tensors)
    for place, name in enumerate(page.outputs):
        if place >= len(bits) or not bits[place]:
            kept[first + place] = None
        elif kept[first + place] is None:
            fail(NULLPTR, f"{name} must not be null where outputMask[{place}] is true")
    return tuple(kept)


def _bits(mask: Any) -> tuple[bool, ...]:
    if mask is NO_MASK:
        return ()
    if is_null(mask):
        fail(NULLPTR, "outputMask must not be null")
    # One that cannot be read asks for nothing; it is refused after the product.
    return mask.values if type(mask) is aclBoolArray and mask.alive else ()


@functools.lru_cache(maxsize=_CACHED)
def _decide(
    page: Page,
    product: Product,
    saved: StatisticKind,
    kinds: tuple[TensorKind | None, ...],
    bits: tuple[bool, ...],
    options: tuple[Any, ...],
) -> Decision:
    given = {
        name: kind._replace(tensor=without_idle_strides(kind.tensor))
        for name, kind in zip(page.tensors, kinds, strict=True)
        if kind is not None
    }
    call = Call(product, saved, given, bits, options)
    for rule in page.rules:
        rule(call)
    spec, names = page.request(call)
    try:
        plan = make_plan(spec)
    except ArgumentError as error:
        fail(INVALID, error.render(names))
    except BackendError as error:
        fail(NO_KERNEL, f"{page.name}: {error}")
    _check_places(page, given, spec.device)
    slots = []
    for role in (*spec.operands, *spec.wanted):
        name = names[role]
        slots.append((SLOT[role], page.tensors.index(name), name))
    return Decision(Arrangement(plan, names), tuple(slots))


def _check_places(page: Page, given: dict[str, TensorKind], where: str) -> None:
    for name, kind in given.items():
        if kind.device != where:
            fail(INVALID, f"{name} must be on the device of input, {where}, got {kind.device}")
        if name in page.outputs and not kind.writable:
            fail(INVALID, f"{name} must be writable, got a read-only array")


def _check_memory(name: str, tensor: aclTensor) -> None:
    if tensor.low == tensor.high:  # empty: there may be no memory at all
        return
    if not tensor.data:
        fail(NULLPTR, f"{name}'s data must not be null for shape {tensor.kind.tensor.shape}")
    check_place(INVALID, name, tensor, tensor.itemsize)
    if memory.checked and tensor.owner is None:
        try:
            memory.DEVICE.require(tensor.low, tensor.high, tensor.kind.device)
        except OwnershipError as fault:
            fail(INVALID, f"{name} must lie in live device memory: {fault}")


def stage_two(name: str, workspace: Any, workspaceSize: Any, executor: Any, stream: Any) -> Status:
    """Check the executor and the workspace, then compute."""
    if is_null(executor):
        fail(NULLPTR, "executor must not be null")
    _check_usable(executor)
    if executor.name != name:
        fail(INVALID, f"executor must be one of {name}, got one of {executor.name}")
    size = whole(INVALID, "workspaceSize", workspaceSize)
    base = 0 if is_null(workspace) else whole(INVALID, "workspace", workspace)
    if size > 0 and not base:
        fail(NULLPTR, f"workspace must not be null for workspaceSize {size}")
    if size < executor.workspace_bytes:
        rule = f"workspaceSize must be at least {executor.workspace_bytes}, as stage 1 said"
        fail(INVALID, f"{rule}, got {size}")
    if executor.workspace_bytes:
        place = Span(base, base, base + executor.workspace_bytes)
        check_place(INVALID, "workspace", place, 1)
    try:
        number = stream_number(stream)
    except StatusError as failed:
        fail(RUNTIME, failed.sentence)
    if memory.checked:
        _check_again(executor, base)
    with _CLAIM:  # of two threads with one executor only one may run
        _check_usable(executor)
        launch: Launch = executor.launch
        held = executor.tensors  # callers' arrays live until the work is done
        if not executor.repeatable:
            executor.end("spent")
    try:
        launch.run(executor.memory, base or None, number)
    except RuntimeError as error:
        if executor.memory.device == "cpu":
            raise
        fail(RUNTIME, f"{executor.memory.device} failed: {error}")
    finally:
        del held
    return ACL_SUCCESS


def _check_usable(executor: Any) -> aclOpExecutor:
    if is_null(executor):  # stage 2 has a status of its own for it
        fail(SPENT, "executor must not be null")
    if type(executor) is not aclOpExecutor:
        fail(SPENT, f"executor must come from stage 1, got {described(executor)}")
    if executor.state != "ready":
        fail(SPENT, f"executor of {executor.name} must not be used again: it is {executor.state}")
    usable: aclOpExecutor = executor
    return usable


def _check_again(executor: aclOpExecutor, workspace: int) -> None:
    """What held in stage 1 may have been freed or destroyed since."""
    try:
        for name, tensor in executor.tensors:
            if not tensor.alive:
                fail(RUNTIME, f"{name} must live until stage 2 returns, got a destroyed aclTensor")
            if tensor.owner is None and tensor.low != tensor.high:
                memory.DEVICE.require(tensor.low, tensor.high, tensor.kind.device)
        name = "workspace"
        if executor.workspace_bytes:
            end = workspace + executor.workspace_bytes
            memory.DEVICE.require(workspace, end, executor.memory.device)
    except OwnershipError as fault:
        fail(RUNTIME, f"{name} must lie in live device memory: {fault}")


@operator_status
def aclSetAclOpExecutorRepeatable(executor: aclOpExecutor | None) -> Status:
    """Keep an executor after its stage 2; to be called before the first."""
    _check_usable(executor).repeatable = True
    return ACL_SUCCESS


@operator_status
def aclDestroyAclOpExecutor(executor: aclOpExecutor | None) -> Status:
    """End an executor, run or not."""
    with _CLAIM:
        _check_usable(executor).end("destroyed")
    return ACL_SUCCESS
