"""Every function of the headers, from C's arguments to the interface's function and back."""

from collections.abc import Callable
from typing import Any, Final

from normgrad import aclnn, infiniop
from normgrad.aclnn import status as acl
from normgrad.capi.bridge import arrays, operators
from normgrad.capi.bridge.handles import Handles
from normgrad.capi.generate import bridged
from normgrad.capi.signatures import FACES, HANDLES, Function, Parameter
from normgrad.core.errors import tell
from normgrad.device import memory, messages
from normgrad.infiniop import status as infini
from normgrad.infiniop.operators import OPERATORS

External = Callable[..., Any]

# What a failure of this side itself returns: inside, and for want of memory.
_FAILED: Final[dict[str, tuple[int, int]]] = {
    "aclError": acl.RUNTIME_CODES,
    "aclnnStatus": acl.OPERATOR_CODES,
    "infiniStatus_t": infini.CODES,
}
# What a null pointer for a result returns.
_NULL: Final[dict[str, int]] = {
    "aclError": acl.BAD_PARAM,
    "aclnnStatus": acl.NULLPTR,
    "infiniStatus_t": infini.NULL_POINTER,
}
# infiniop's operators call a null pointer what they call every other argument.
_BAD_PARAM: Final = {
    name
    for one in OPERATORS
    for name in (f"infiniopCreate{one.name}Descriptor", f"infiniopGet{one.name}WorkspaceSize")
}
_TEXT: Final = "aclrtGetSocName"  # returns a string, and no status
# Functions after which a stream may have no context any more.
_ENDS_CONTEXTS: Final = ("aclrtDestroyContext", "aclrtResetDevice")
# Functions of which one result is enough: as in the vendor's library, the others may be null.
_ONE_IS_ENOUGH: Final = ("infinirtGetDevice",)


def fill(handles: Handles) -> None:
    """Define every function that the table will point to."""
    ffi = handles.ffi
    for function in bridged():
        inside, no_memory = _FAILED.get(function.result, (0, 0))
        call = _checked(_external(handles, function), function, ffi)
        if operators.plans(function):
            call = operators.until_exit(handles, call)
        if function.name == _TEXT:
            inside = ffi.NULL
        ffi.def_extern(
            name=f"py_{function.name}",
            error=inside,
            onerror=_reporter(function.name, inside, no_memory),
        )(call)
    ffi.def_extern(name="py_recent", error=1, onerror=lambda *_: 1)(_recent(handles))


def _external(handles: Handles, function: Function) -> External:
    interface = infiniop if function.name.startswith("infini") else aclnn
    target = getattr(interface, function.name)
    if function.name == _TEXT:
        return _text(handles, target)
    for special in (arrays.external, operators.external):
        call = special(handles, function, target, null_result)
        if call is not None:
            return call
    return _plain(handles, function, target)


def _plain(handles: Handles, function: Function, target: Callable[..., Any]) -> External:
    """Handles become objects, results go through their pointers, ended handles are forgotten."""
    null = handles.ffi.NULL
    inputs = []
    outputs = []
    for place, parameter in enumerate(function.parameters):
        if parameter.is_result:
            outputs.append((place, parameter.name, _writer(handles, parameter.plain)))
        else:
            inputs.append((place, _reader(handles, parameter)))
    end = _ender(handles, function)
    least = 1 if function.name in _ONE_IS_ENOUGH else len(outputs)
    ends_contexts = function.name in _ENDS_CONTEXTS

    def call(*args: Any) -> int:
        missing = [name for place, name, _ in outputs if args[place] == null]
        if len(outputs) - len(missing) < least:
            return null_result(function, missing[0])
        values = [args[place] if read is None else read(args[place]) for place, read in inputs]
        answer = target(*values)
        status = answer[0] if outputs else answer
        if status == 0:
            for (place, _, write), value in zip(
                outputs, answer[1:] if outputs else (), strict=True
            ):
                if args[place] != null:
                    write(args[place], value)
            if end is not None and args[0]:
                end(args[0])
            if ends_contexts:
                handles.end_orphans()
        return int(status)

    return call


def _reader(handles: Handles, parameter: Parameter) -> Callable[[Any], Any] | None:
    if parameter.plain in FACES:
        return handles.find_face
    if parameter.handle:
        return handles.find
    if parameter.plain == "char*":
        return handles.text
    return None


def _writer(handles: Handles, plain: str) -> Callable[[Any, Any], None]:
    target = plain.removesuffix("*")
    kind = HANDLES.get(target)
    new = handles.new_face if target in FACES else handles.new

    convert = float if target == "float" else int

    def value(pointer: Any, found: Any) -> None:
        pointer[0] = convert(found)

    def handle(pointer: Any, found: Any) -> None:
        assert kind is not None
        number = new(kind, found)
        if not number:
            raise MemoryError(f"too many objects of type {target} are alive")
        pointer[0] = number

    return value if kind is None else handle


def _ender(handles: Handles, function: Function) -> Callable[[int], None] | None:
    if "Destroy" not in function.name:
        return None
    face = function.parameters[0].plain in FACES
    return handles.end_face if face else handles.end


def null_result(function: Function, name: str) -> int:
    """The status for a result that has no place to go."""
    messages.record(f"{function.name}: {name} must not be null")
    if function.name in _BAD_PARAM:
        return int(infini.BAD_PARAM)
    return int(_NULL[function.result])


def _text(handles: Handles, target: Callable[[], str]) -> External:
    kept: dict[str, Any] = {}

    def call() -> Any:
        text = target()  # empty for an unknown product
        if text not in kept:
            kept[text] = handles.ffi.new("char[]", text.encode())
        return kept[text]

    return call


def _recent(handles: Handles) -> External:
    def call(buffer: int, size: int) -> int:
        text = messages.recent().encode("utf-8", "replace")[: size - 1] + b"\0"
        handles.ffi.memmove(handles.ffi.cast("char*", buffer), text, len(text))
        return 0

    return call


def _checked(call: External, function: Function, ffi: Any) -> External:
    """In checked mode a C program sees the sentence of every failure without asking for it."""
    if not memory.checked or function.result == "size_t":  # 0 is an answer, too
        return call

    def telling(*args: Any) -> Any:
        answer = call(*args)
        if function.result in _FAILED:
            if answer:
                _tell(answer)
        elif not (ffi.string(answer) if function.name == _TEXT else answer):
            _tell()
        return answer

    return telling


def _tell(status: int = 0) -> None:
    """The recent sentence on stderr; functions that return a pointer have no status."""
    words = f"status {status}: " if status else ""
    tell(f"{words}{messages.recent()}")


def _reporter(name: str, inside: Any, no_memory: Any) -> Callable[..., Any]:
    def report(kind: Any, error: Any, traceback: Any) -> Any:
        messages.record(f"{name}: {kind.__name__}: {error}")
        status = no_memory if isinstance(error, MemoryError) else inside
        if memory.checked:
            _tell(status if isinstance(status, int) else 0)
        return status

    return report
