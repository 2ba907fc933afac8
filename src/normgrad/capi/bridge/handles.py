"""Numbers that C holds, and the Python objects behind them."""

from typing import Any

from normgrad.aclnn.events import aclrtEvent
from normgrad.aclnn.executor import aclOpExecutor
from normgrad.aclnn.lists import aclFloatArray, aclScalarList, aclTensorList
from normgrad.aclnn.runtime import aclrtContext
from normgrad.aclnn.scalars import aclScalar
from normgrad.aclnn.streams import aclrtStream
from normgrad.aclnn.tensors import aclBoolArray, aclIntArray, aclTensor
from normgrad.capi.signatures import HANDLES, operators
from normgrad.infiniop.descriptors import infiniopTensorDescriptor_t
from normgrad.infiniop.events import infinirtEvent_t
from normgrad.infiniop.runtime import infinirtStream_t

_ROOM = 64
_LONGEST_TEXT = 4096


class UnknownPointer(int):
    """What C passed as one of our objects and is none; a CUDA stream may be one."""


class Handles:
    """The objects of one library.

    Each call into it lets go of the GIL: what the call has ended, another thread may have dropped
    before the next line is reached.
    """

    def __init__(self, ffi: Any, lib: Any) -> None:
        self.ffi = ffi
        self.lib = lib
        self.kinds = {kind: getattr(lib, f"NORMGRAD_{kind}") for kind in HANDLES.values()}
        self.objects: dict[int, Any] = {}
        self._owners: dict[int, Any] = {}  # what C reads while a call is inside
        self.members: dict[int, tuple[int, ...]] = {}  # of a list: handles that end with it
        self._contexts: dict[aclrtContext, int] = {}
        self._tombs = {number: _tomb(kind) for kind, number in self.kinds.items()}
        names = enumerate(operators())
        self._executor_tombs = {label: _executor_tomb(name) for label, name in names}

    def new(self, kind: str, found: Any, label: int = 0, payload: Any = None) -> int:
        """A handle for an object; 0 when there is no room for another."""
        self.collect()
        if kind == "CONTEXT" and (known := self._contexts.get(found)):
            return known
        pointer = self.ffi.NULL if payload is None else payload[0]
        handle: int = self.lib.handle_new(self.kinds[kind], label, pointer)
        if handle:
            self.objects[handle] = found
            if payload is not None:
                self._owners[handle] = payload
            if kind == "CONTEXT":
                return self._only(found, handle)
        return handle

    def _only(self, context: aclrtContext, handle: int) -> int:
        """A context has one handle: this one, or that of a thread which came first."""
        for other, its in self._contexts.copy().items():
            if not other.alive:  # no handle says which one aclrtResetDevice has ended
                self.end(its)
        first = self._contexts.setdefault(context, handle)
        if first != handle:
            del self.objects[handle]
            self.end(handle)
        return first

    def new_face(self, kind: str, found: Any, payload: Any = None) -> int:
        """The same as memory that callers may read: its address."""
        handle = self.new(kind, found, payload=payload)
        face: int = handle and self.lib.face_new(handle, found.device, found.device_id)
        if not face:
            self.end(handle)
        return face

    def find(self, pointer: int) -> Any:
        """The object behind a handle; None for null, a dead one of its kind for a stale handle."""
        found = self.objects.get(pointer)
        return found if found is not None or not pointer else self.dead(pointer)

    def text(self, pointer: Any) -> str | None:
        """What a C string says, as far as a name goes; None for null."""
        if not pointer:
            return None
        found: bytes = self.ffi.string(pointer, _LONGEST_TEXT)
        return found.decode("utf-8", "replace")

    def payload(self, pointer: int) -> Any:
        """What C reads of an object, with its owner; None for an object that has none."""
        return self._owners.get(pointer)

    def find_face(self, pointer: int) -> Any:
        """The object behind memory that callers may read."""
        found = self.objects.get(self.lib.face_handle(pointer))
        return found if found is not None or not pointer else UnknownPointer(pointer)

    def dead(self, pointer: int) -> Any:
        """What stands for an object that is gone."""
        kind = self.lib.handle_kind(pointer)
        if kind == self.kinds["EXECUTOR"]:
            tomb = self._executor_tombs.get(self.lib.handle_label(pointer))
        else:
            tomb = self._tombs.get(kind)
        return tomb or UnknownPointer(pointer)

    def end(self, pointer: int) -> None:
        """Forget a handle, once no call is inside."""
        self.lib.handle_end(pointer)

    def end_orphans(self) -> None:
        """Forget the streams whose context has ended, so that C computes on none of them."""
        for handle, found in self.objects.copy().items():
            if type(found) is aclrtStream and found.orphaned:
                self.end(handle)

    def end_face(self, pointer: int) -> None:
        """Forget a handle with memory."""
        self.lib.handle_end(self.lib.face_handle(pointer))
        self.lib.face_end(pointer)

    def collect(self) -> None:
        """Drop the objects of handles that C has ended."""
        retired = self.ffi.new("uint64_t[]", _ROOM)  # this thread's own: others are here as well
        count = self.lib.handles_retired(retired, _ROOM)
        for handle in self.ffi.unpack(retired, count):
            found = self.objects.pop(handle, None)
            self._owners.pop(handle, None)
            self._contexts.pop(found, None)


def _tomb(kind: str) -> Any:
    made: dict[str, Any] = {
        "TENSOR": aclTensor.__new__(aclTensor),
        "BOOL_ARRAY": aclBoolArray(()),
        "INT_ARRAY": aclIntArray(()),
        "FLOAT_ARRAY": aclFloatArray(()),
        "EVENT": aclrtEvent.__new__(aclrtEvent),
        "RT_EVENT": infinirtEvent_t.__new__(infinirtEvent_t),
        "SCALAR": aclScalar(b"", 0),
        "TENSOR_LIST": aclTensorList(()),
        "SCALAR_LIST": aclScalarList(()),
        "STREAM": aclrtStream(None, 0),
        "CONTEXT": aclrtContext(0),
        "RT_STREAM": infinirtStream_t("cpu", None, 0),
        "TENSOR_DESCRIPTOR": infiniopTensorDescriptor_t.__new__(infiniopTensorDescriptor_t),
    }
    tomb = made.get(kind)
    if tomb is not None:
        tomb.alive = False
    return tomb


def _executor_tomb(name: str) -> aclOpExecutor:
    tomb = aclOpExecutor.__new__(aclOpExecutor)
    tomb.name = name
    tomb.end("spent or destroyed")
    return tomb
