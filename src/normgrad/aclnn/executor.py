"""The two stages that every operator shares, and the executor between them."""

import functools
import threading
from collections.abc import Container, Sequence
from typing import Any, Final, NamedTuple

from normgrad import device
from normgrad.aclnn import products
from normgrad.aclnn.options import READERS, is_set
from normgrad.aclnn.products import Product
from normgrad.aclnn.request import spec_of
from normgrad.aclnn.rules import Call
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
from normgrad.aclnn.streams import stream_number
from normgrad.aclnn.table import Asked, Page, Parameter
from normgrad.aclnn.tensors import TensorKind, aclBoolArray, aclTensor, living
from normgrad.core.errors import ArgumentError, BackendError, ShapeError
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, SLOT, StatisticKind
from normgrad.core.strides import without_idle_strides
from normgrad.device import constants, memory
from normgrad.device.chain import Chain
from normgrad.device.failures import described, is_null, whole
from normgrad.device.launch import Arrangement, Bound, Placed, Span, check_place
from normgrad.device.memory import OwnershipError

StageOneAnswer = tuple[Status, int, "aclOpExecutor | None"]

_CACHED = 4096
CLAIM: Final = threading.Lock()  # of every executor


class aclOpExecutor:
    """A plan bound to its tensors, for one stage 2 or, if made repeatable, for many."""

    __slots__ = (
        "arrangement",
        "launch",
        "memory",
        "name",
        "placed",
        "repeatable",
        "said",
        "state",
        "tensors",
        "unread",
        "workspace_bytes",
    )

    def __init__(
        self,
        name: str,
        arrangement: Arrangement,
        launch: Bound | None,
        placed: Sequence[Placed | None],
        tensors: tuple[tuple[str, aclTensor], ...],
        unread: tuple[aclTensor, ...],
    ) -> None:
        self.name = name
        self.arrangement = arrangement
        self.launch = launch  # None: addresses are to be looked at in stage 2
        self.placed = placed  # by slots of the core
        self.tensors = tensors
        self.unread = unread
        self.said = self.workspace_bytes = (launch or arrangement).workspace_bytes
        self.memory = device.memory_of(arrangement.plan.spec.device)
        self.repeatable = False
        self.state = "ready"

    def holds(self, tensor: aclTensor) -> bool:
        """Whether stage 1 got a tensor, read or not."""
        return any(tensor is one for _, one in self.tensors) or tensor in self.unread

    def bind(self) -> None:
        """Look at the tensors' addresses again."""
        for name, tensor in self.tensors:
            _check_memory(name, tensor)
        self.launch = _bound(self.arrangement, self.placed)
        self.workspace_bytes = self.launch.workspace_bytes

    def end(self, state: str) -> None:
        """Let go of plan and tensors; what is left says why."""
        self.state = state
        self.tensors = self.unread = self.placed = ()
        self.launch = None
        self.arrangement = None  # type: ignore[assignment]


class Decision(NamedTuple):
    """All that stage 1 finds out without looking at memory."""

    arrangement: Arrangement
    slots: tuple[tuple[int, int, str], ...]  # slot of the core, place in the signature, name
    unread: tuple[int, ...]  # the places of the others
    constants: tuple[tuple[int, float], ...]  # slots of vectors that nobody gave


def no_stage_one(status: Status) -> StageOneAnswer:
    """What a stage 1 that failed returns: nothing is allocated, nothing is held."""
    return status, 0, None


def stage_one(page: Page, values: tuple[Any, ...]) -> StageOneAnswer:
    """Nulls, product, rules, plan, memory: in this order. ``values`` are all the arguments."""
    given = _without_nulls(page, values)
    current = products.SETTINGS
    if current.product.key in page.lacks:
        fail(NO_KERNEL, f"{current.product.title} has no {page.name}")
    # A mask that cannot be used is found before the tensors, everything else after them.
    options = [None if one.kind != "mask" else _read(one, given[at]) for at, one in page.options]
    tensors = [given[place] for place, _ in page.tensors]
    kinds: list[TensorKind | None] = [
        None if value is None else living(value, one.name, aclTensor).kind
        for (_, one), value in zip(page.tensors, tensors, strict=True)
    ]
    for index, (place, one) in enumerate(page.options):
        if one.kind != "mask":
            options[index] = _read(one, given[place])
    decision = _decide(page, current.product, current.saved, tuple(kinds), tuple(options))
    for (_, one), value in zip(page.tensors, tensors, strict=True):
        if value is not None and value.data:  # also one that nobody reads
            _check_memory(one.name, value)
    placed: list[Placed | None] = [None] * len(ROLES)
    for slot, number in decision.constants:
        placed[slot] = constants.place_of(decision.arrangement.plan.spec.device, number)
    used = []
    waiting = False  # for an address
    for slot, place, name in decision.slots:
        tensor = tensors[place]
        placed[slot] = tensor
        used.append((name, tensor))
        if not tensor.data and tensor.low != tensor.high:
            waiting = True
    unread = tuple([tensors[place] for place in decision.unread])
    launch = None if waiting else _bound(decision.arrangement, placed)
    try:
        executor = aclOpExecutor(
            page.name, decision.arrangement, launch, placed, tuple(used), unread
        )
    except (ImportError, RuntimeError, ValueError) as error:  # the device cannot be reached
        fail(Status.ACLNN_ERR_INNER_CREATE_EXECUTOR, f"no executor for {page.name}: {error}")
    return ACL_SUCCESS, executor.workspace_bytes, executor


def _read(parameter: Parameter, value: Any) -> Any:
    return READERS[parameter.kind](parameter.name, value)


def _without_nulls(page: Page, values: tuple[Any, ...]) -> list[Any]:
    """The arguments, with None for null and for results that nothing asks for.

    161001 for the first that must not be null.
    """
    given = list(values)
    for place, one in page.pointers:
        value = given[place]
        # The type first: asking each of nine tensors whether it is null takes 1 us.
        if type(value) is aclTensor or not is_null(value):
            continue
        given[place] = None
        if one.required and not one.when:
            fail(NULLPTR, f"{one.name} must not be null")
    for place, one, asked in page.asked:
        if not _wants(given, asked):
            given[place] = None
        elif given[place] is None:
            fail(NULLPTR, f"{one.name} must not be null where {one.when} is true")
    return given


def _wants(given: list[Any], asked: Asked) -> bool:
    """Whether a result is asked for. What cannot be read asks for nothing: it is refused later."""
    value = given[asked.place]
    if asked.bit is None:
        return is_set(value)
    bits = value.values if type(value) is aclBoolArray and value.alive else ()
    return asked.bit < len(bits) and bool(bits[asked.bit])


@functools.lru_cache(maxsize=_CACHED)
def _decide(
    page: Page,
    product: Product,
    saved: StatisticKind,
    kinds: tuple[TensorKind | None, ...],
    options: tuple[Any, ...],
) -> Decision:
    given = {
        one.name: kind._replace(tensor=without_idle_strides(kind.tensor))
        for (_, one), kind in zip(page.tensors, kinds, strict=True)
        if kind is not None
    }
    named = {one.name: value for (_, one), value in zip(page.options, options, strict=True)}
    call = Call(product, saved, given, named, page.shape_error)
    for rule in page.checks:
        rule(call)
    spec, request = spec_of(page, call)
    names = request.names
    try:
        if request.steps:
            arrangement: Arrangement = Chain(request.steps, names, request.copies)
        else:
            arrangement = Arrangement(make_plan(spec), names)
    except ArgumentError as error:
        shape = isinstance(error, ShapeError)
        fail(page.shape_error if shape else INVALID, error.render(names))
    except BackendError as error:
        fail(NO_KERNEL, f"{page.name}: {error}")
    touched, written = request.touched(spec)
    _check_places(given, spec.device, names["x"], {names[role] for role in written})
    slots = [(SLOT[role], page.places[names[role]], names[role]) for role in touched]
    numbers = tuple([(SLOT[role], value) for role, value in request.constants.items()])
    read = {name for _, _, name in slots}
    unread = tuple([page.places[name] for name in given if name not in read])
    return Decision(arrangement, tuple(slots), unread, numbers)


def _bound(arrangement: Arrangement, placed: Sequence[Placed | None]) -> Bound:
    try:
        return arrangement.bind(placed)
    except ArgumentError as error:
        fail(INVALID, error.render(arrangement.names))


def _check_places(
    given: dict[str, TensorKind], where: str, model: str, written: Container[str]
) -> None:
    for name, kind in given.items():
        if kind.device != where:
            fail(INVALID, f"{name} must be on the device of {model}, {where}, got {kind.device}")
        if name in written and not kind.writable:
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
    check_usable(executor)
    if executor.name != name:
        fail(INVALID, f"executor must be one of {name}, got one of {executor.name}")
    if executor.launch is None:
        executor.bind()
    size = whole(INVALID, "workspaceSize", workspaceSize)
    base = 0 if is_null(workspace) else whole(INVALID, "workspace", workspace)
    if size > 0 and not base:
        fail(NULLPTR, f"workspace must not be null for workspaceSize {size}")
    if size < executor.workspace_bytes:
        moved = executor.workspace_bytes != executor.said
        why = "now that a result lies over an operand" if moved else "as stage 1 said"
        rule = f"workspaceSize must be at least {executor.workspace_bytes}, {why}"
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
    with CLAIM:  # of two threads with one executor only one may run
        check_usable(executor)
        launch: Bound = executor.launch
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


def check_usable(executor: Any) -> aclOpExecutor:
    """The executor, if it may still run; else 561103."""
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
def aclnnInit(configPath: str | None = None) -> Status:
    """Start the operators, which need no start; any number of times, with or without ``aclInit``.

    Args:
        configPath: The file is not read.

    Returns:
        0.

    Example:
        >>> aclnn.aclnnInit(None)
        <Status.ACL_SUCCESS: 0>
    """
    return ACL_SUCCESS


@operator_status
def aclnnFinalize() -> Status:
    """End the operators, which need no end; any number of times.

    Returns:
        0.

    Example:
        >>> aclnn.aclnnFinalize()
        <Status.ACL_SUCCESS: 0>
    """
    return ACL_SUCCESS


@operator_status
def aclSetAclOpExecutorRepeatable(executor: aclOpExecutor | None) -> Status:
    """Keep an executor after its stage 2; to be called before the first.

    Args:
        executor: Of a stage 1.

    Returns:
        0; 561103 for null and for a spent executor.

    Example:
        >>> aclnn.aclSetAclOpExecutorRepeatable(None)
        <Status.ACLNN_ERR_INNER_NULLPTR: 561103>
    """
    check_usable(executor).repeatable = True
    return ACL_SUCCESS


@operator_status
def aclDestroyAclOpExecutor(executor: aclOpExecutor | None) -> Status:
    """End an executor that was made repeatable, or that never ran.

    Args:
        executor: Of a stage 1.

    Returns:
        0; 561103 for null and for a spent executor.

    Example:
        >>> aclnn.aclDestroyAclOpExecutor(None)
        <Status.ACLNN_ERR_INNER_NULLPTR: 561103>
    """
    with CLAIM:
        check_usable(executor).end("destroyed")
    return ACL_SUCCESS
