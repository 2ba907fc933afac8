"""The two stages and the descriptor: where C takes over what Python has planned."""

import itertools
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from normgrad.aclnn.executor import aclOpExecutor
from normgrad.aclnn.status import Status
from normgrad.arrays.host_memory import byte_range
from normgrad.capi.bridge.handles import Handles
from normgrad.capi.generate import COMPUTE
from normgrad.capi.signatures import Function, operators
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.plan import Plan
from normgrad.core.spec import ROLES
from normgrad.device import memory, messages
from normgrad.device.chain import Chain
from normgrad.device.launch import Arrangement
from normgrad.infiniop.operators import OPERATORS

_STAGE_ONE: Final = "GetWorkspaceSize"
_MOVE: Final = re.compile("[aA]clSet(Input|Output)?TensorAddr")
# The operator that a function makes descriptors of, by its name.
_CREATE: Final = {f"infiniopCreate{one.name}Descriptor": one for one in OPERATORS}


def external(
    handles: Handles,
    function: Function,
    target: Callable[..., Any],
    null_result: Callable[[Function, str], int],
) -> Callable[..., Any] | None:
    """The call for C, if the function is one of these."""
    name = function.name
    if name in operators():
        return _stage_two(handles, target)
    if name.removesuffix(_STAGE_ONE) in operators():
        return _stage_one(handles, function, target, null_result)
    if _MOVE.fullmatch(name):
        return _move(handles, target)
    if name == "aclSetAclOpExecutorRepeatable":
        return _change(handles, target, handles.lib.handle_repeatable)
    if name == "aclDestroyAclOpExecutor":
        return _change(handles, target, handles.lib.handle_end)
    return _descriptor(handles, function, target, null_result) if name in _CREATE else None


def plans(function: Function) -> bool:
    """Whether a call may need the compiler: to plan, or for a result that lies over an operand."""
    name = function.name
    return name.removesuffix(_STAGE_ONE) in operators() or name in (*_CREATE, *COMPUTE)


def until_exit(handles: Handles, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, which fails where the compiler has been taken down already."""

    def guarded(*args: Any) -> Any:
        if handles.lib.program_ending():
            raise RuntimeError("the program is ending: nothing is planned or compiled any more")
        return call(*args)

    return guarded


def _stage_one(
    handles: Handles,
    function: Function,
    target: Callable[..., Any],
    null_result: Callable[[Function, str], int],
) -> Callable[..., int]:
    null = handles.ffi.NULL
    find = handles.find
    op = operators().index(function.name.removesuffix(_STAGE_ONE))
    readers = [
        find if parameter.handle else handles.text if parameter.plain == "char*" else None
        for parameter in function.parameters[:-2]
    ]

    def call(*args: Any) -> int:
        *given, size, result = args
        if null in (size, result):
            return null_result(function, "workspaceSize" if size == null else "executor")
        values = [
            item if read is None else read(item) for item, read in zip(given, readers, strict=True)
        ]
        status, nbytes, executor = target(*values)
        if status != 0:
            return int(status)
        payload = Payload(_launch(handles, op, executor.arrangement), [])
        _tell(handles, payload, executor)
        handle = handles.new("EXECUTOR", executor, op, payload)
        if not handle:
            rule = "too many executors are alive: each needs its stage 2 or its destruction"
            messages.record(f"{function.name}: {rule}")
            return int(Status.ACLNN_ERR_INNER_CREATE_EXECUTOR)
        size[0] = nbytes
        result[0] = handle
        return 0

    return call


def _launch(handles: Handles, op: int, arrangement: Arrangement) -> Any:
    """What C needs to run a plan; without an entry C asks Python."""
    launch = handles.ffi.new("struct normgrad_launch*")
    launch.op = op
    launch.workspace_bytes = arrangement.workspace_bytes
    return launch


_ENTRY: Final = "int32_t(*)(int64_t*, int64_t*, int64_t, int64_t)"


def _offer(handles: Handles, launch: Any, plan: Plan) -> Any:
    """What the compiled plan takes besides its addresses, and its entry; null where it has none."""
    compiled = None if memory.checked else plan.compiled()
    if compiled is None:
        return handles.ffi.NULL
    launch.block = handles.ffi.cast("int64_t*", compiled.block)
    launch.helpers = compiled.helpers
    launch.sync_bytes = compiled.sync_bytes
    return handles.ffi.cast(_ENTRY, compiled.entry)


class Payload(NamedTuple):
    """What C reads of an executor, and what that lives by.

    A part for each plan is made once: a thread may still be in one when addresses move.
    """

    launch: Any
    parts: list[tuple[Any, Plan]]


def _tell(handles: Handles, payload: Payload, executor: aclOpExecutor) -> None:
    """C may run what has all its addresses and needs no detour."""
    launch, bound = payload.launch, executor.launch
    launch.entry = handles.ffi.NULL
    parts = () if bound is None else bound.plans()
    if bound is None or not parts:
        return
    if not payload.parts:
        new = (handles.ffi.new("struct normgrad_launch*") for _ in parts[1:])
        payload.parts.extend(zip([launch, *new], (part.plan for part in parts), strict=True))
    made = [each for each, _ in payload.parts]
    launch.in_a_row = any(part.scratch for part in parts)
    entries = []
    for each, part in zip(made, parts, strict=True):
        entries.append(_offer(handles, each, part.plan))
        each.addresses = [address or 0 for address in part.addresses]
        each.workspace_bytes = bound.workspace_bytes  # of all: C tests for it once
        each.offset = part.offset
        each.scratch = [0] * len(ROLES)
        for slot, offset in part.scratch:
            each.scratch[slot] = offset + 1
    if handles.ffi.NULL in entries:
        return
    for one, other in itertools.pairwise(made):
        one.next = other
    for each, entry in reversed(list(zip(made, entries, strict=True))):
        each.entry = entry  # the first one last: with it C runs them


def _move(handles: Handles, target: Callable[..., Any]) -> Callable[..., int]:
    def call(pointer: int, index: int, tensor: int, address: int) -> int:
        status = target(handles.find(pointer), index, handles.find(tensor), address)
        payload = handles.payload(pointer)
        if status == 0 and payload is not None:
            payload[0].entry = handles.ffi.NULL  # Python looks at the addresses first
        return int(status)

    return call


def _stage_two(handles: Handles, target: Callable[..., Any]) -> Callable[..., int]:
    lib = handles.lib
    is_executor = handles.kinds["EXECUTOR"]

    def call(workspace: int, size: int, pointer: int, stream: int) -> int:
        # Only one call may have a single-use executor, here as in C. Whatever else lives behind a
        # handle must not be entered: nobody would leave it.
        inside = lib.handle_kind(pointer) == is_executor and lib.handle_begin(pointer)
        executor = (handles.find if inside else handles.dead)(pointer)
        waiting = inside and executor.launch is None  # for the addresses
        status = target(workspace, size, executor, handles.find(stream))
        payload = handles.payload(pointer)
        if waiting and status == 0 and executor.state == "ready" and payload is not None:
            _tell(handles, payload, executor)
        if inside:
            (lib.handle_cancel if executor.state == "ready" else lib.handle_finish)(pointer)
        return int(status)

    return call


def _change(
    handles: Handles, target: Callable[..., Any], change: Callable[[int], int]
) -> Callable[..., int]:
    is_executor = handles.kinds["EXECUTOR"]

    def call(pointer: int) -> int:
        executor = handles.find(pointer)  # before it ends: another thread may drop it then
        alive = handles.lib.handle_kind(pointer) == is_executor and change(pointer)
        return int(target(executor if alive else handles.dead(pointer)))

    return call


def _descriptor(
    handles: Handles,
    function: Function,
    target: Callable[..., Any],
    null_result: Callable[[Function, str], int],
) -> Callable[..., int]:
    operator = _CREATE[function.name]
    number = OPERATORS.index(operator)
    tensors = len(operator.tensors)

    def call(handle: int, result: Any, *rest: Any) -> int:
        if result == handles.ffi.NULL:
            return null_result(function, function.parameters[1].name)
        given = [handles.find(tensor) for tensor in rest[:tensors]]
        status, found = target(handles.find_face(handle), *given, *rest[tensors:])
        if status == 0:
            payload = _reusable(handles, number, found.arrangement)
            face = handles.new_face("DESCRIPTOR", found, payload)
            if not face:
                raise MemoryError("too many descriptors are alive")
            result[0] = face
        return int(status)

    return call


def _reusable(handles: Handles, number: int, arrangement: Arrangement) -> tuple[Any, Plan]:
    """A launch without addresses, and what they must be tested for; with the plan it lives by."""
    plan = arrangement.plan
    launch = _launch(handles, number, arrangement)
    if not isinstance(arrangement, Chain):
        launch.entry = _offer(handles, launch, plan)
    for place, role in enumerate(ROLES):
        tensor = plan.spec.tensor(role)
        if tensor is not None:
            launch.low[place], launch.high[place] = byte_range(tensor)
            launch.itemsize[place] = ITEMSIZE[tensor.dtype]
    launch.meetings = len(arrangement.meetings)
    for place, (one, two, same_view) in enumerate(arrangement.meetings):
        meeting = launch.meeting[place]
        meeting.result, meeting.other, meeting.same_view = one, two, same_view
    return launch, plan
