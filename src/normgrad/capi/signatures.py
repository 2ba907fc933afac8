"""The functions of the C headers, read from the headers.

Those in this folder declare the runtime; those of the operators are made of their tables.
"""

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from normgrad.capi.operator_headers import operator_headers
from normgrad.infiniop.operators import OPERATORS

FOLDER: Final = Path(__file__).parent
INCLUDE: Final = FOLDER / "include"
SOURCES: Final = FOLDER / "csrc"
MODULE: Final = "_normgrad_capi"  # the extension through which library and interpreter meet

_DECLARATION = re.compile(r"^((?:const )?\w+\*?) (\w+)\(([^;{}]*)\);", re.MULTILINE)
_PARAMETER = re.compile(r"(.*?)\s*(\w+)$")

# Types that stand for objects of the Python interfaces, with the kind that handles carry.
HANDLES: Final = {
    "aclTensor*": "TENSOR",
    "aclBoolArray*": "BOOL_ARRAY",
    "aclIntArray*": "INT_ARRAY",
    "aclFloatArray*": "FLOAT_ARRAY",
    "aclScalar*": "SCALAR",
    "aclTensorList*": "TENSOR_LIST",
    "aclScalarList*": "SCALAR_LIST",
    "aclOpExecutor*": "EXECUTOR",
    "aclrtStream": "STREAM",
    "aclrtContext": "CONTEXT",
    "aclrtEvent": "EVENT",
    "infinirtStream_t": "RT_STREAM",
    "infinirtEvent_t": "RT_EVENT",
    "infiniopTensorDescriptor_t": "TENSOR_DESCRIPTOR",
    "infiniopHandle_t": "HANDLE",
    **{one.descriptor: "DESCRIPTOR" for one in OPERATORS},
}
# Callers may read the beginning of these, so they are memory and not numbers.
FACES: Final = ("infiniopHandle_t", *(one.descriptor for one in OPERATORS))
_NUMBERS: Final = (
    *("int", "int32_t", "uint32_t", "int64_t", "uint64_t", "size_t", "ptrdiff_t"),
    *("double", "float", "char"),
)
# A bool travels as its byte: cffi refuses others than 0 and 1, in C any but 0 is true.
_BOOL: Final = ("bool", "uint8_t")


class Parameter(NamedTuple):
    """One parameter, with its C type as the header has it."""

    type: str
    name: str

    @property
    def plain(self) -> str:
        """The type without ``const``."""
        return self.type.replace("const ", "").replace(" const", "")

    @property
    def handle(self) -> str | None:
        """The kind of object it stands for. infiniop's stream is a plain pointer there."""
        return "RT_STREAM" if self == ("void*", "stream") else HANDLES.get(self.plain)

    @property
    def is_result(self) -> bool:
        """Whether the function writes through it."""
        if self.type.startswith("const ") or not self.type.endswith("*"):
            return False
        return self.type not in ("void*", "char*") and self.type not in HANDLES

    @property
    def bridge(self) -> str:
        """The type on Python's side: addresses are integers, enumerations ints."""
        if self.handle or self.plain == "void*":
            return "uintptr_t"
        target = self.plain.removesuffix("*")
        if target == _BOOL[0]:
            return self.type.replace(*_BOOL)
        if target == self.plain:
            return self.plain if self.plain in _NUMBERS else "int"
        if target in HANDLES or target == "void*":
            return "uintptr_t*"
        if target == "int64_t*" or target in _NUMBERS:
            return self.type
        return "int*"


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a header."""

    result: str
    name: str
    parameters: tuple[Parameter, ...]

    @property
    def is_stage_two(self) -> bool:
        """Whether it is an operator's second stage."""
        return self.name + "GetWorkspaceSize" in _names()

    @property
    def bridge_result(self) -> str:
        """The type that Python's side returns."""
        if self.result == "const char*":
            return self.result
        if self.result == "size_t":
            return self.result
        return "uintptr_t" if self.result in HANDLES else "int"


@functools.cache
def functions() -> tuple[Function, ...]:
    """Every function, in the order of the headers."""
    found = []
    for text in headers().values():
        for result, name, listed in _DECLARATION.findall(text):
            words = " ".join(listed.split())
            parameters = [] if words == "void" else words.split(", ")
            found.append(Function(result, name, tuple(_parameter(text) for text in parameters)))
    return tuple(found)


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.fullmatch(text)
    assert match is not None, text
    return Parameter(match[1], match[2])


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(function.name for function in functions())


@functools.cache
def headers() -> dict[str, str]:
    """The text of each header by its place, sorted."""
    written = {
        path.relative_to(INCLUDE).as_posix(): path.read_text(encoding="utf-8")
        for path in INCLUDE.rglob("*.h")
    }
    return dict(sorted((written | operator_headers()).items()))


def write_headers(folder: Path) -> None:
    """All of them below a folder."""
    for place, text in headers().items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def operators() -> tuple[str, ...]:
    """The operators of two stages; a place in this list is an operator's number."""
    return tuple(function.name for function in functions() if function.is_stage_two)


@functools.cache
def digest() -> str:
    """A number for all that a library is built from: another one must be built anew."""
    hashed = hashlib.sha256()
    for place, text in headers().items():
        hashed.update(f"{place}\n{text}".encode())
    for file in [*sorted(SOURCES.glob("*.[ch]")), Path(__file__)]:
        hashed.update(file.read_bytes())
    hashed.update((FOLDER / "generate.py").read_bytes())
    return hashed.hexdigest()[:16]
