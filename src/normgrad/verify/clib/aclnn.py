"""``libopapi_nn.so`` with aclnn's four backward operators, and the runtime beside it."""

import contextlib
import ctypes
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normgrad.aclnn import products
from normgrad.aclnn.constants import (
    ACL_MEM_MALLOC_HUGE_FIRST,
    ACL_MEMCPY_DEVICE_TO_HOST,
    ACL_MEMCPY_HOST_TO_DEVICE,
    DTYPE_NAMES,
)
from normgrad.aclnn.status import ACL_SUCCESS
from normgrad.spec import Op
from normgrad.verify.cases import Case, select
from normgrad.verify.clib import aclnn_status
from normgrad.verify.clib.aclnn_call import Argument, arguments_of
from normgrad.verify.clib.job import Job, arrays_of, concluded, numeric, status
from normgrad.verify.clib.memory import Placed, strided
from normgrad.verify.foreign import Outcome
from normgrad.verify.problem import HostArray, Problem, make_problem

NAMES = {
    Op.BATCH_NORM: products.BATCH_NORM,
    Op.BATCH_NORM_ELEMT: products.ELEMT,
    Op.LAYER_NORM: products.LAYER_NORM,
    Op.GROUP_NORM: products.GROUP_NORM,
}
_DTYPES = {name: code for code, name in DTYPE_NAMES.items()}
_TYPES = ("float16", "bfloat16", "float32")
_BESIDE = ("libascendcl.so", "libnnopbase.so")
_GAPS, _OFFSET = "results with gaps", "tensors at an offset"
_UNWANTED = "unwanted results given"
_MASKS = ((True, False, False), (False, True, True))  # each result is left out once


def jobs(who: str) -> list[Job]:
    """Every case that the four operators can express, special memory, and the statuses."""
    made = [
        numeric(case, dtype, who)
        for op in NAMES
        for case in select(op)
        if _expressible(case)
        for dtype in _TYPES
    ]
    made += [
        numeric(select(op)[0], dtype, who, variant)
        for op in NAMES
        for variant in (_GAPS, _OFFSET)
        for dtype in _TYPES
    ]
    made += [
        numeric(case, dtype, who, _UNWANTED)
        for op in NAMES
        for case in select(op)
        if case.mask in _MASKS and case.layout == "contiguous"
        for dtype in _TYPES
    ]
    return made + [status(op, call, who) for op in NAMES for call in aclnn_status.calls(op)]


def _expressible(case: Case) -> bool:
    """Statistics as 1/sqrt(var + eps), channels at axis 1 or tagged NHWC, no negative strides.

    Group norm's gamma has the type of the statistics.
    """
    last = case.op is Op.BATCH_NORM and len(case.shape) == 4 and case.channel_axis == 3
    usual = case.training is False or case.statistic == "invstd"
    alike = case.op is not Op.GROUP_NORM or not case.own_weight
    placed = case.layout != "flipped" and (case.channel_axis == 1 or last)
    return usual and alike and placed


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
        name = NAMES[Op(job.blank.op)]
        try:
            self.function(name)
        except AttributeError:
            detail = f"not offered: the library has no {name}"
            return dataclasses.replace(job.blank, verdict="NONE", detail=detail)
        try:
            if job.case is None:
                return aclnn_status.check(self, Op(job.blank.op), job.call, job.blank)
            return self._numeric(job, make_problem(job.case, job.dtype, seed))
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
            else:
                kinds = {"bool": ctypes.c_bool, "int": ctypes.c_int64, "double": ctypes.c_double}
                values.append(kinds[one.kind](value))
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

    def compute(self, op: Op, values: list[Any]) -> None:
        """Both stages."""
        size, executor = ctypes.c_uint64(), ctypes.c_void_p()
        name = NAMES[op]
        plan = (*values, ctypes.byref(size), ctypes.byref(executor))
        self._must(f"{name}GetWorkspaceSize", *plan)
        workspace = self.malloc(size.value) if size.value else None
        self._must(name, ctypes.c_void_p(workspace), size, executor, self.stream)
        self._must("aclrtSynchronizeStream", self.stream)
        if workspace is not None:
            self.free(workspace)

    def _numeric(self, job: Job, problem: Problem) -> Outcome:
        hosts = arrays_of(problem)
        if job.variant == _GAPS:
            hosts |= {role: strided(hosts[role], 3) for role in problem.wanted}
        if job.variant == _UNWANTED:
            unmasked = dataclasses.replace(problem.case, mask=())
            hosts = arrays_of(make_problem(unmasked, job.dtype)) | hosts
        arguments = arguments_of(problem.case, hosts)
        placed = self.place(arguments)
        roles = {one.name: one.role for one in arguments if one.name in placed}
        results = {role: placed[name] for name, role in roles.items() if role in problem.wanted}
        runs = []
        for turn in range(3):
            for memory in results.values() if turn else ():
                memory.refill()
            at_offset = job.variant == _OFFSET
            with self.prepared(arguments, placed, at_offset=at_offset) as values:
                self.compute(problem.case.op, values)
            runs.append({role: memory.read() for role, memory in results.items()})
        stray = [roles[name] for name, memory in placed.items() if memory.stray()]
        others = [name for name, role in roles.items() if role not in problem.wanted]
        changed = [roles[name] for name in others if placed[name].touched()]
        for memory in placed.values():
            memory.free()
        return concluded(job, problem, runs, stray, changed)
