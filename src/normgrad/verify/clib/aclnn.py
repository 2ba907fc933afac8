"""``libopapi_nn.so`` with aclnn's operators, and the runtime beside it."""

import contextlib
import ctypes
import dataclasses
import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normgrad.aclnn.constants import (
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
)
from normgrad.aclnn.dtypes import DTYPE_NAMES
from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.products import SETTINGS
from normgrad.aclnn.status import ACL_SUCCESS
from normgrad.aclnn.table import Page
from normgrad.core.operators import SWISH, Op
from normgrad.verify.cases import select
from normgrad.verify.clib import aclnn_status
from normgrad.verify.clib.aclnn_call import (
    Argument,
    arguments_of,
    as_page,
    expressible,
    result_dtype,
)
from normgrad.verify.clib.beside import beside
from normgrad.verify.clib.job import Job, arrays_of, concluded, named, numeric, status
from normgrad.verify.clib.memory import Placed, nan_like, strided
from normgrad.verify.foreign import Outcome
from normgrad.verify.problem import HostArray, Problem, make_problem

_DTYPES = {name: code for code, name in DTYPE_NAMES.items()}
_PAGES = {page.name: page for page in PAGES}
_NUMBERS: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int": ctypes.c_int64,
    "int32": ctypes.c_int32,
    "double": ctypes.c_double,
}
_TYPES = ("float16", "bfloat16", "float32")
_BESIDE = ("libascendcl.so", "libnnopbase.so")
_GAPS, _OFFSET = "results with gaps", "tensors at an offset"
_UNWANTED = "unwanted results given"
_MASKS = ((True, False, False), (False, True, True))  # each result is left out once


def jobs(who: str) -> list[Job]:
    """Every case that the operators can express, special memory, and the statuses."""
    made: list[Job] = []
    seen: set[Op] = set()
    for page in PAGES:
        listed = [*_numeric(page, who), *_statuses(page, who)]
        if page.op in seen:  # the same mathematics under another name
            listed = [named(job, page.name) for job in listed]
        seen.add(page.op)
        made += listed
    return made


def _numeric(page: Page, who: str) -> list[Job]:
    name, product = page.name, SETTINGS.product
    if product.key in page.lacks:
        return []
    types = [one for one in _TYPES if _DTYPES[one] in product.floats]
    cases = [
        case
        for case in map(functools.partial(as_page, page, product), select(page.op))
        if expressible(page, case, product)
    ]
    listed = cases + [
        dataclasses.replace(case, id=f"scaled-{case.id}", activation=SWISH, negative_slope=1.75)
        for case in cases
        if _has_scale(page) and case.layout == "contiguous" and not case.mask
    ]
    made = [numeric(case, dtype, who, "", name) for case in listed for dtype in types]
    made += [
        numeric(cases[0], dtype, who, variant, name)
        for variant in (_GAPS, _OFFSET)
        for dtype in types
        if cases
    ]
    if any(one.kind == "mask" for one in page.parameters):
        made += [
            numeric(case, dtype, who, _UNWANTED, name)
            for case in cases
            if case.mask in _MASKS and case.layout == "contiguous"
            for dtype in types
        ]
    return made


def _has_scale(page: Page) -> bool:
    return any(one.name == "swishScale" for one in page.parameters)


def _statuses(page: Page, who: str) -> list[Job]:
    return [status(page.op, call, who, page.name) for call in aclnn_status.calls(page)]


class Aclnn:
    """The libraries, loaded and initialized, with a stream."""

    def __init__(self, path: Path) -> None:
        self.libraries = []
        folder = path.resolve().parent
        for name in _BESIDE:
            with_path = folder / name
            if with_path.exists():
                self.libraries.append(ctypes.CDLL(str(with_path), ctypes.RTLD_GLOBAL))
            else:  # the loader may know where it is
                with contextlib.suppress(OSError):
                    self.libraries.append(ctypes.CDLL(name, ctypes.RTLD_GLOBAL))
        self.libraries.insert(0, ctypes.CDLL(str(path.resolve()), ctypes.RTLD_GLOBAL))
        self.stream = ctypes.c_void_p()
        self._must("aclInit", None)
        self._must("aclrtSetDevice", ctypes.c_int32(0))
        self._must("aclrtCreateStream", ctypes.byref(self.stream))

    def function(self, name: str, restype: Any = ctypes.c_int) -> Any:
        """A symbol of any of the libraries."""
        for library in self.libraries:
            with contextlib.suppress(AttributeError):
                found = getattr(library, name)
                found.restype = restype
                return found
        msg = f"the libraries have no function {name}"
        raise AttributeError(msg)

    def _must(self, name: str, *arguments: Any) -> None:
        code = self.function(name)(*arguments)
        if code != ACL_SUCCESS:
            msg = f"{name} returned {code}: {self.message()}"
            raise RuntimeError(msg)

    def message(self) -> str:
        """The sentence for the last failure."""
        with contextlib.suppress(AttributeError):
            text = self.function("aclGetRecentErrMsg", ctypes.c_char_p)()
            return (text or b"").decode(errors="replace").strip()
        return ""

    def malloc(self, nbytes: int) -> int:
        """Device memory."""
        address = ctypes.c_void_p()
        policy = ctypes.c_int(ACL_MEM_MALLOC_HUGE_FIRST)
        self._must("aclrtMalloc", ctypes.byref(address), ctypes.c_size_t(nbytes), policy)
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """Give it back."""
        self._must("aclrtFree", ctypes.c_void_p(address))

    def upload(self, address: int, data: bytes) -> None:
        """Host to device."""
        size = ctypes.c_size_t(len(data))
        kind = ctypes.c_int(ACL_MEMCPY_HOST_TO_DEVICE)
        self._must("aclrtMemcpy", ctypes.c_void_p(address), size, data, size, kind)

    def download(self, address: int, nbytes: int) -> bytes:
        """Device to host, after the stream has finished."""
        self._must("aclrtSynchronizeStream", self.stream)
        target = ctypes.create_string_buffer(max(nbytes, 1))
        size = ctypes.c_size_t(nbytes)
        kind = ctypes.c_int(ACL_MEMCPY_DEVICE_TO_HOST)
        self._must("aclrtMemcpy", target, size, ctypes.c_void_p(address), size, kind)
        return target.raw[:nbytes]

    def run(self, job: Job, seed: int) -> Outcome:
        """One job; an exception is a failure with its words."""
        page = _PAGES[job.operator]
        try:
            self.function(page.name)
        except AttributeError:
            detail = f"not offered: the library has no {page.name}"
            return dataclasses.replace(job.blank, verdict="NONE", detail=detail)
        try:
            if job.case is None:
                return aclnn_status.check(self, page, job.call, job.blank)
            problem = make_problem(job.case, job.dtype, seed)
            dtypes = {
                role: result_dtype(page, role, problem, usual)
                for role, usual in problem.result_dtypes.items()
            }
            problem = dataclasses.replace(problem, result_dtypes=dtypes)
            return self._numeric(page, job, problem)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return dataclasses.replace(job.blank, share=math.inf, detail=text)

    def tensor(
        self, host: HostArray, placed: Placed, form: int, dtype: int | None, at_offset: bool
    ) -> Any:
        """An aclTensor over placed memory, by the address of its elements or of the allocation."""
        shape, strides = host.tensor.shape, host.tensor.strides
        rank = len(shape)
        dims = (ctypes.c_int64 * max(rank, 1))(*shape)
        steps = (ctypes.c_int64 * max(rank, 1))(*strides)
        itemsize = max(host.array.itemsize, 1)
        begin, length = placed.address, placed.size
        if at_offset:
            begin, length = placed.base, placed.total
        storage = (ctypes.c_int64 * 1)(length // itemsize)
        create = self.function("aclCreateTensor", ctypes.c_void_p)
        code = _DTYPES[host.dtype] if dtype is None else dtype
        return ctypes.c_void_p(
            create(
                dims,
                ctypes.c_uint64(rank),
                ctypes.c_int(code),
                steps,
                ctypes.c_int64((placed.address - begin) // itemsize),
                ctypes.c_int(form),
                storage,
                ctypes.c_uint64(1),
                ctypes.c_void_p(begin),
            )
        )

    @contextlib.contextmanager
    def prepared(
        self, arguments: list[Argument], placed: dict[str, Placed], *, at_offset: bool = False
    ) -> Iterator[list[Any]]:
        """C values for arguments; tensors and arrays are destroyed afterwards."""
        values: list[Any] = []
        made: list[tuple[str, Any]] = []
        for one in arguments:
            value: Any = one.value
            if value is None:
                values.append(ctypes.c_void_p())
            elif one.kind == "tensor":
                memory = placed[one.name]
                values.append(self.tensor(value, memory, one.form, one.dtype, at_offset))
                made.append(("aclDestroyTensor", values[-1]))
            elif one.kind == "mask":
                bits = (ctypes.c_bool * max(len(value), 1))(*value)
                create = self.function("aclCreateBoolArray", ctypes.c_void_p)
                values.append(ctypes.c_void_p(create(bits, ctypes.c_uint64(len(value)))))
                made.append(("aclDestroyBoolArray", values[-1]))
            elif one.kind == "sizes":
                sizes = (ctypes.c_int64 * max(len(value), 1))(*value)
                create = self.function("aclCreateIntArray", ctypes.c_void_p)
                values.append(ctypes.c_void_p(create(sizes, ctypes.c_uint64(len(value)))))
                made.append(("aclDestroyIntArray", values[-1]))
            elif one.kind == "text":
                values.append(ctypes.c_char_p(value.encode()))
            else:
                values.append(_NUMBERS[one.kind](value))
        try:
            yield values
        finally:
            for name, value in made:
                self.function(name)(value)

    def place(self, arguments: list[Argument]) -> dict[str, Placed]:
        """Memory for every tensor."""
        return {
            one.name: Placed(self, one.value)
            for one in arguments
            if one.kind == "tensor" and one.value is not None
        }

    def compute(self, name: str, values: list[Any]) -> None:
        """Both stages."""
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        plan = (*values, ctypes.byref(size), ctypes.byref(executor))
        self._must(f"{name}GetWorkspaceSize", *plan)
        workspace = self.malloc(size.value) if size.value else None
        self._must(name, ctypes.c_void_p(workspace), size, executor, self.stream)
        self._must("aclrtSynchronizeStream", self.stream)
        if workspace is not None:
            self.free(workspace)

    def _numeric(self, page: Page, job: Job, problem: Problem) -> Outcome:
        more = beside(page.name, problem)
        hosts = arrays_of(problem) | {role: nan_like(one.tensor) for role, one in more.items()}
        if job.variant == _GAPS:
            hosts |= {role: strided(hosts[role], 3) for role in problem.wanted}
        if job.variant == _UNWANTED:
            unmasked = dataclasses.replace(problem.case, mask=())
            hosts = arrays_of(make_problem(unmasked, job.dtype)) | hosts
        arguments = arguments_of(page, problem.case, hosts)
        placed = self.place(arguments)
        roles = {one.name: one.writes or one.role for one in arguments if one.name in placed}
        measured = (*problem.measured, *more)
        results = {role: placed[name] for name, role in roles.items() if role in measured}
        runs = []
        for turn in range(3):
            for memory in results.values() if turn else ():
                memory.refill()
            at_offset = job.variant == _OFFSET
            with self.prepared(arguments, placed, at_offset=at_offset) as values:
                self.compute(page.name, values)
            runs.append({role: memory.read() for role, memory in results.items()})
        stray = [roles[name] for name, memory in placed.items() if memory.stray()]
        others = [name for name, role in roles.items() if role not in measured]
        changed = [roles[name] for name in others if placed[name].touched()]
        for memory in placed.values():
            memory.free()
        return concluded(job, problem, more, runs, stray, changed)
