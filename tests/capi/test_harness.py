"""A Python harness that declares operators which the library lacks, as InfiniCore's does."""

import ctypes
import re
import subprocess
import sys
import textwrap

import pytest

from .conftest import HERE, SRC

PAGE = HERE.parents[1] / "docs" / "reference" / "infiniop.md"
HARNESS = """
import contextlib, ctypes, sys

class OpRegister:
    registry = []

    @classmethod
    def operator(cls, op):
        cls.registry.append(op)
        return op

    @classmethod
    def register_lib(cls, lib):
LOOP

def declared(name):
    @OpRegister.operator
    def op(lib):
        for function in (f"infiniopCreate{name}Descriptor", f"infiniop{name}"):
            getattr(lib, function).restype = ctypes.c_int32
            getattr(lib, function).argtypes = [ctypes.c_void_p] * ARGUMENTS[name]

ARGUMENTS = {"Add": 7, "BatchNormBackward": 12, "CausalSoftmax": 5}
for name in ARGUMENTS:
    declared(name)
lib = ctypes.CDLL(sys.argv[1])
OpRegister.register_lib(lib)
assert len(lib.infiniopBatchNormBackward.argtypes) == 12
print(lib.infiniopBatchNormBackward(*[None] * 12))
"""
OWN_LOOP = "for op in cls.registry:\n    op(lib)\n"


def shown():
    """The lines that the page shows, without their indentation."""
    (lines,) = re.findall(r"\n\n((?:    .*\n)+)", PAGE.read_text().split("knows more operators")[1])
    return textwrap.dedent(lines)


def run(capi, loop):
    program = HARNESS.replace("LOOP", textwrap.indent(loop, " " * 8))
    command = [sys.executable, "-c", program, str(capi.prefix / "lib" / "libinfiniop.so")]
    environment = {"PYTHONPATH": str(SRC)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_the_lines_of_the_page_leave_out_what_the_library_lacks(capi):
    lines = shown()
    assert len(lines.splitlines()) == 3
    assert "AttributeError" in run(capi, OWN_LOOP).stderr
    done = run(capi, lines)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_functions_that_the_library_lacks_are_attribute_errors(capi):
    library = ctypes.CDLL(str(capi.prefix / "lib" / "libinfiniop.so"))
    with pytest.raises(AttributeError):
        _ = library.infiniopAdd
