"""Python's side of the C libraries, without C: what a caller hears where something runs out."""

from unittest.mock import MagicMock

import pytest

from normgrad import aclnn
from normgrad.aclnn import products
from normgrad.capi.bridge import functions
from normgrad.capi.signatures import HANDLES
from normgrad.device import memory


class Bridge:
    """The functions that C would call, over handles that are used up."""

    NULL = None

    def __init__(self):
        self.calls = {}
        handles = MagicMock()
        handles.ffi = self
        handles.kinds = {kind: place for place, kind in enumerate(HANDLES.values(), 1)}
        handles.new.return_value = 0
        functions.fill(handles)

    def def_extern(self, name, error, onerror):
        def keep(call):
            self.calls[name.removeprefix("py_")] = (call, error, onerror)

        return keep

    def unpack(self, values, count):
        return values[:count]

    def new(self, kind, text):
        return text

    def string(self, text):
        return text

    def __call__(self, name, *arguments):
        """As cffi does it: what an exception means is what ``onerror`` returns."""
        call, error, onerror = self.calls[name]
        try:
            return call(*arguments)
        except Exception as failed:
            answer = onerror(type(failed), failed, None)
            return error if answer is None else answer


LAST = [
    ("aclCreateTensor", ([2], 1, 0, None, 0, 2, [2], 1, 4096)),
    ("aclCreateBoolArray", ([True], 1)),
    ("aclCreateIntArray", ([1], 1)),
]


@pytest.mark.parametrize(("name", "arguments"), LAST)
def test_the_last_handle_is_used_up(name, arguments):
    assert Bridge()(name, *arguments) == 0
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
    monkeypatch.setattr(products, "_settings", products._Settings())
    monkeypatch.setenv("NORMGRAD_PRODUCT", "a-toaster")
    Bridge()(name, *arguments)
    told = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"normgrad: {words}") for line in told] == [True] * checked, told
