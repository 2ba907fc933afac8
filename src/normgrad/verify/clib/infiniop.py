"""``libinfiniop.so``: the batch norm backward of infiniop."""

import contextlib
import ctypes
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from normgrad.infiniop.constants import INFINIRT_MEMCPY_D2H, INFINIRT_MEMCPY_H2D
from normgrad.infiniop.descriptors import DTYPE_NAMES
from normgrad.infiniop.status import SUCCESS
from normgrad.spec import Op, TensorSpec
from normgrad.verify.cases import Case, select
from normgrad.verify.clib import infiniop_status
from normgrad.verify.clib.infiniop_status import ROLES
from normgrad.verify.clib.job import Job, arrays_of, concluded, numeric, status
from normgrad.verify.clib.memory import HostRuntime, Placed, Runtime, strided
from normgrad.verify.foreign import Outcome
from normgrad.verify.problem import Problem, make_problem

_DTYPES = {name: code for code, name in DTYPE_NAMES.items()}
_TYPES = ("float16", "bfloat16", "float32")
_VARIANTS = ("vectors with gaps", "grad_input over grad_output", "grad_input over input")


def jobs(who: str) -> list[Job]:
    """The training cases that (N, C, L) can hold, special memory, and the statuses."""
    made = [
        numeric(_as_infiniop(case), dtype, who)
        for case in select(Op.BATCH_NORM)
        if _expressible(case)
        for dtype in _TYPES
    ]
    plain = Case(id="nchw", op=Op.BATCH_NORM, shape=(4, 6, 35))
    made += [
        numeric(_as_infiniop(plain), dtype, who, variant)
        for variant in _VARIANTS
        for dtype in _TYPES
    ]
    return made + [status(Op.BATCH_NORM, call, who) for call in infiniop_status.CALLS]


def _expressible(case: Case) -> bool:
    plain = case.layout == case.vectors == "contiguous" and case.channel_axis == 1
    usual = case.weight and case.training and case.statistic == "invstd" and not case.mask
    alone = case.statistics_dtype is None and not case.both_statistics
    return plain and usual and alone and 0 not in case.shape


def _as_infiniop(case: Case) -> Case:
    """The second statistic is a variance, and there is no eps."""
    shape = (case.shape[0], case.shape[1], math.prod(case.shape[2:]))
    return dataclasses.replace(case, shape=shape, statistic="variance", eps=0.0)


class InfinirtMemory:
    """infinirt's allocation and copies."""

    def __init__(self, function: Callable[[str], Any]) -> None:
        self._malloc, self._free = function("infinirtMalloc"), function("infinirtFree")
        self._copy = function("infinirtMemcpy")
        for one in (self._malloc, self._free, self._copy):
            one.restype = ctypes.c_int
        self._malloc.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t)
        self._free.argtypes = (ctypes.c_void_p,)
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def malloc(self, nbytes: int) -> int:
        """Device memory."""
        address = ctypes.c_void_p()
        _must("infinirtMalloc", self._malloc(ctypes.byref(address), nbytes))
        return int(address.value or 0)

    def free(self, address: int) -> None:
        """Give it back."""
        _must("infinirtFree", self._free(address))

    def upload(self, address: int, data: bytes) -> None:
        """Host to device."""
        _must("infinirtMemcpy", self._copy(address, data, len(data), INFINIRT_MEMCPY_H2D))

    def download(self, address: int, nbytes: int) -> bytes:
        """Device to host."""
        target = ctypes.create_string_buffer(max(nbytes, 1))
        _must("infinirtMemcpy", self._copy(target, address, nbytes, INFINIRT_MEMCPY_D2H))
        return target.raw[:nbytes]


def _must(call: str, code: int) -> None:
    if code != SUCCESS:
        msg = f"{call} returned {code}"
        raise RuntimeError(msg)


class Infiniop:
    """The library, loaded, with a handle for the CPU."""

    def __init__(self, path: Path) -> None:
        beside = path.resolve().parent / "libinfinirt.so"
        self.libraries = []
        if beside.exists():
            self.libraries.append(ctypes.CDLL(str(beside), ctypes.RTLD_GLOBAL))
        self.libraries.insert(0, ctypes.CDLL(str(path.resolve()), ctypes.RTLD_GLOBAL))
        with contextlib.suppress(AttributeError):
            _must("infinirtInit", self.function("infinirtInit")())
        self.runtime: Runtime = HostRuntime()
        with contextlib.suppress(AttributeError):
            self.runtime = InfinirtMemory(self.function)
        self.handle = ctypes.c_void_p()
        self.create_handle = self.function("infiniopCreateHandle")
        self.create_handle.argtypes = (ctypes.c_void_p,)
        _must("infiniopCreateHandle", self.create_handle(ctypes.addressof(self.handle)))
        self.describe = self.function("infiniopCreateTensorDescriptor")
        self.create = self.function("infiniopCreateBatchNormBackwardDescriptor")
        self.create.argtypes = (ctypes.c_void_p,) * 10
        self.workspace_size = self.function("infiniopGetBatchNormBackwardWorkspaceSize")
        self.workspace_size.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self.compute = self.function("infiniopBatchNormBackward")
        pointers = (ctypes.c_void_p,) * 9
        self.compute.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, *pointers)
        self.destroy = self.function("infiniopDestroyBatchNormBackwardDescriptor")
        self.destroy.argtypes = (ctypes.c_void_p,)
        self.forget = self.function("infiniopDestroyTensorDescriptor")
        self.forget.argtypes = (ctypes.c_void_p,)

    def function(self, name: str) -> Any:
        """A symbol of either library."""
        for library in self.libraries:
            with contextlib.suppress(AttributeError):
                return getattr(library, name)
        msg = f"the library has no function {name}"
        raise AttributeError(msg)

    def run(self, job: Job, seed: int) -> Outcome:
        """One job; an exception is a failure with its words."""
        try:
            if job.case is None:
                return infiniop_status.CALLS[job.call](self, job.blank)
            return self._numeric(job, make_problem(job.case, job.dtype, seed))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            return dataclasses.replace(job.blank, share=math.inf, detail=text)

    def descriptor(self, tensor: TensorSpec) -> ctypes.c_void_p:
        """A tensor descriptor."""
        made = ctypes.c_void_p()
        rank = len(tensor.shape)
        shape = (ctypes.c_size_t * max(rank, 1))(*tensor.shape)
        strides = (ctypes.c_ssize_t * max(rank, 1))(*tensor.strides)
        code = _DTYPES[tensor.dtype]
        arguments = (ctypes.byref(made), ctypes.c_size_t(rank), shape, strides, code)
        _must("infiniopCreateTensorDescriptor", self.describe(*arguments))
        return made

    @contextlib.contextmanager
    def operator(self, tensors: list[TensorSpec]) -> Iterator[ctypes.c_void_p]:
        """An operator descriptor; the tensors' own are destroyed before it is used."""
        described = [self.descriptor(tensor) for tensor in tensors]
        made = ctypes.c_void_p()
        code = self.create(self.handle, ctypes.addressof(made), *described)
        for one in described:
            self.forget(one)
        _must("infiniopCreateBatchNormBackwardDescriptor", code)
        try:
            yield made
        finally:
            _must("infiniopDestroyBatchNormBackwardDescriptor", self.destroy(made))

    def _numeric(self, job: Job, problem: Problem) -> Outcome:
        hosts = arrays_of(problem)
        if job.variant == "vectors with gaps":
            names = ("dgamma", "dbeta", "gamma", "mean", "rstd")
            hosts |= {role: strided(hosts[role], 3) for role in names}
        shared = {"grad_input over grad_output": "dy", "grad_input over input": "x"}
        over = shared.get(job.variant)
        placed = {
            role: Placed(self.runtime, hosts[role]) for role in ROLES if not (over and role == "dx")
        }
        if over:
            placed["dx"] = placed[over]
        turns = 3 if not over else 1
        runs = []
        with self.operator([hosts[role].tensor for role in ROLES]) as operator:
            needed = ctypes.c_size_t()
            _must("GetWorkspaceSize", self.workspace_size(operator, ctypes.addressof(needed)))
            workspace = self.runtime.malloc(needed.value) if needed.value else None
            for turn in range(turns):
                for role in ROLES[:3] if turn else ():
                    placed[role].refill()
                code = self.compute(
                    operator,
                    workspace,
                    needed.value,
                    *(placed[role].address for role in ROLES),
                    None,
                )
                _must("infiniopBatchNormBackward", code)
                runs.append({role: placed[role].read() for role in ROLES[:3]})
            if workspace is not None:
                self.runtime.free(workspace)
        stray = [role for role, one in placed.items() if one.stray()]
        changed = [role for role in ROLES[3:] if role != over and placed[role].touched()]
        for role in set(placed) - ({"dx"} if over else set()):
            placed[role].free()
        return concluded(job, problem, runs, stray, changed)
