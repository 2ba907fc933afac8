"""Python's side of the C libraries, in this process: where something runs out, and where another
thread comes between. The programs of ``test_programs`` meet neither reliably."""

import errno
import io
import subprocess
import sys
from unittest.mock import MagicMock

import numpy as np
import pytest

from normgrad import aclnn
from normgrad.aclnn import products, runtime
from normgrad.backends.cpu.threads import pool
from normgrad.capi import generate
from normgrad.capi.bridge import functions
from normgrad.capi.bridge.handles import Handles
from normgrad.capi.signatures import HANDLES, SOURCES
from normgrad.device import memory

from .conftest import missing


class Bridge:
    """The functions that C would call. It stands for cffi, whose other half needs a program."""

    def __init__(self):
        self.calls = {}

    def def_extern(self, name, error, onerror):
        def keep(call):
            self.calls[name.removeprefix("py_")] = (call, error, onerror)

        return keep

    def __call__(self, name, *arguments):
        """As cffi does it: what an exception means is what ``onerror`` returns."""
        call, error, onerror = self.calls[name]
        try:
            return call(*arguments)
        except Exception as failed:
            answer = onerror(type(failed), failed, None)
            return error if answer is None else answer


class UsedUp(Bridge):
    """Over handles that are used up."""

    NULL = None

    def __init__(self):
        super().__init__()
        handles = MagicMock()
        handles.ffi = self
        handles.kinds = {kind: place for place, kind in enumerate(HANDLES.values(), 1)}
        handles.new.return_value = 0
        functions.fill(handles)

    def unpack(self, values, count):
        return values[:count]

    def new(self, kind, text):
        return text

    def string(self, text):
        return text


LAST = [
    ("aclCreateTensor", ([2], 1, 0, None, 0, 2, [2], 1, 4096)),
    ("aclCreateBoolArray", ([True], 1)),
    ("aclCreateIntArray", ([1], 1)),
]


@pytest.mark.parametrize(("name", "arguments"), LAST)
def test_the_last_handle_is_used_up(name, arguments):
    assert UsedUp()(name, *arguments) == 0
    kind = name.replace("Create", "")
    assert f"{name}: MemoryError: too many objects of type {kind}* are alive" == (
        aclnn.aclGetRecentErrMsg()
    )


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("aclrtSetDevice", (77,), "status 107001: aclrtSetDevice: deviceId must be"),
        ("aclCreateTensor", ([-1], 1, 0, None, 0, 2, [2], 1, 0), "aclCreateTensor: viewDims must"),
        ("aclCreateIntArray", (None, 2), "aclCreateIntArray: value must not be null"),
        *((*last, f"{last[0]}: MemoryError: too many objects") for last in LAST),
        ("infinirtStreamCreate", ([0],), "status 1: infinirtStreamCreate: MemoryError: too many"),
        ("aclrtGetSocName", (), "aclrtGetSocName: ValueError: product must be one of"),
    ],
)
def test_checked_mode_tells_every_failure(monkeypatch, capsys, checked, name, arguments, words):
    monkeypatch.setattr(memory, "checked", checked)
    monkeypatch.setattr(products, "SETTINGS", products._Settings())
    monkeypatch.setenv("NORMGRAD_PRODUCT", "a-toaster")
    UsedUp()(name, *arguments)
    told = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"normgrad: {words}") for line in told] == [True] * checked, told


class Unwritable(io.StringIO):
    """As /dev/full, or a pipe without a reader."""

    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Unwritable()], ids=["none", "closed", "full"])
def test_checked_mode_without_a_stderr(monkeypatch, capsys, stream):
    """The status is the function's own, and no line goes elsewhere."""
    monkeypatch.setattr(memory, "checked", True)
    monkeypatch.setattr(sys, "stderr", stream)
    assert UsedUp()("aclrtSetDevice", 77) == 107001
    monkeypatch.setenv("NORMGRAD_NUM_THREADS", "zero")
    pool._complain.cache_clear()
    assert pool.thread_count() >= 1  # it complains, too
    assert capsys.readouterr().out == ""


class Registry:
    """C's own handles. ``meanwhile`` is what another thread does once, after a call of that name:
    the caller has let go of the GIL, and gets it back later."""

    def __init__(self, library):
        self.library = library
        self.meanwhile = {}

    def __getattr__(self, name):
        if name.startswith("NORMGRAD_"):
            return getattr(self.library, name)

        def call(*arguments):
            answer = getattr(self.library.normgrad_host, name)(*arguments)
            self.meanwhile.pop(name, lambda: None)()
            return answer

        return call


class Interrupted(Bridge):
    """Over handles of C, between whose calls something may happen."""

    def __init__(self, ffi, library):
        super().__init__()
        self.ffi = ffi
        self.registry = Registry(library)
        self.handles = Handles(self, self.registry)
        functions.fill(self.handles)

    def __getattr__(self, name):
        return getattr(self.ffi, name)

    def made(self, name, *arguments):
        """What a function writes through its pointer; its status must be 0."""
        result = self.ffi.new("uintptr_t*")
        assert self(name, result, *arguments) == 0, aclnn.aclGetRecentErrMsg()
        return result[0]


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """registry.c with what it needs, and what reads it."""
    if reason := missing():
        pytest.skip(reason)
    import cffi

    path = tmp_path_factory.mktemp("registry") / "registry.so"
    parts = [str(SOURCES / name) for name in ("registry.c", "exit.c")]
    line = ["gcc", "-shared", "-fPIC", "-pthread", *parts, "-o", str(path)]
    subprocess.run(line, check=True)
    ffi = cffi.FFI()
    structs = generate.bridge_cdef().partition("uint64_t handle_new(")[0]
    members = [f"{kind} (*{name})({given});" for kind, name, given in generate._host_functions()]
    host = f"struct normgrad_host {{ {' '.join(members)} }};"
    ffi.cdef(f"{structs} {host} extern struct normgrad_host normgrad_host;")
    return ffi, ffi.dlopen(str(path))


@pytest.fixture
def bridge(registry, monkeypatch):
    monkeypatch.setattr(runtime, "_PROCESS", runtime._Process())
    monkeypatch.setattr(runtime, "_THREAD", runtime._Thread())
    made = Interrupted(*registry)
    yield made
    made.handles.collect()
    assert made.handles.objects == {}  # a handle that nobody has any more is a leak


def test_an_ended_executor_is_collected_before_its_caller_goes_on(bridge):
    x = aclnn.tensor(np.ones((2, 3, 4), np.float32))
    none = aclnn.aclCreateBoolArray([False] * 3, 3)
    status, _, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        x, x, *[None] * 5, True, 1e-5, none, None, None, None
    )
    assert status == 0
    pointer = bridge.handles.new("EXECUTOR", executor, 1)
    bridge.registry.meanwhile["handle_end"] = bridge.handles.collect
    assert bridge("aclDestroyAclOpExecutor", pointer) == 0, aclnn.aclGetRecentErrMsg()
    assert executor.state == "destroyed"
    assert bridge("aclDestroyAclOpExecutor", pointer) == 561103


def test_two_threads_collect_at_once(bridge):
    first, second = (bridge("aclCreateIntArray", bridge.new("int64_t[]", [1]), 1) for _ in "12")
    assert bridge("aclDestroyIntArray", first) == 0

    def other():
        assert bridge("aclDestroyIntArray", second) == 0
        bridge.handles.collect()

    bridge.registry.meanwhile["handles_retired"] = other
    bridge.handles.collect()
    assert bridge.handles.objects == {}


def test_two_threads_ask_for_one_context(bridge):
    assert bridge("aclrtSetDevice", 0) == 0
    seen = []
    bridge.registry.meanwhile["handle_new"] = lambda: seen.append(
        bridge.made("aclrtGetCurrentContext")
    )
    assert bridge.made("aclrtGetCurrentContext") == seen[0]
    bridge.handles.collect()
    assert bridge.made("aclrtGetCurrentContext") == seen[0]
    assert bridge("aclrtDestroyContext", seen[0]) == 0


def test_the_handle_of_a_context_ends_with_its_device(bridge):
    for _ in range(3):
        assert bridge("aclrtSetDevice", 0) == 0
        context = bridge.made("aclrtGetCurrentContext")
        assert bridge("aclrtResetDevice", 0) == 0
        assert bridge("aclrtSetCurrentContext", context) == 107002
    bridge.handles.collect()
    assert len(bridge.handles.objects) == 1
    assert bridge("aclrtSetDevice", 0) == 0
    assert bridge("aclrtDestroyContext", bridge.made("aclrtGetCurrentContext")) == 0


@pytest.mark.parametrize("what", ["handle", "descriptor"])
def test_no_memory_for_callers_to_read_is_no_handle(bridge, what):
    """As where all 65536 are in use."""
    handle = bridge.made("infiniopCreateHandle")
    sizes = {3: [1, 2, 4], 1: [2]}
    big, small = (
        bridge.made(
            "infiniopCreateTensorDescriptor",
            rank,
            bridge.new("size_t[]", sizes[rank]),
            bridge.NULL,
            13,
        )
        for rank in sizes
    )
    alive = set(bridge.handles.objects)
    bridge.registry.face_new = lambda *_: 0
    result = bridge.new("uintptr_t*", 7)
    if what == "handle":
        status = bridge("infiniopCreateHandle", result)
    else:
        tensors = (big, small, small, big, big, small, small, small)
        name = "infiniopCreateBatchNormBackwardDescriptor"
        status = bridge(name, handle, result, *tensors)
    assert (status, result[0]) == (1, 7)
    bridge.handles.collect()
    assert set(bridge.handles.objects) == alive
    for tensor in (big, small):
        assert bridge("infiniopDestroyTensorDescriptor", tensor) == 0
    assert bridge("infiniopDestroyHandle", handle) == 0


@pytest.mark.parametrize("label", range(0, 64, 3))
def test_a_made_up_executor_is_561103(bridge, label):
    pointer = 0x4E << 56 | bridge.handles.kinds["EXECUTOR"] << 50 | label << 44 | 1
    for name in ("aclDestroyAclOpExecutor", "aclSetAclOpExecutorRepeatable"):
        assert bridge(name, pointer) == 561103
    assert bridge("aclnnLayerNormBackward", 0, 0, pointer, 0) == 561103
