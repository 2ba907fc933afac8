"""``libinfiniop.so``: the operators of infiniop."""

import contextlib
import ctypes
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from normgrad.core.operators import DATA, Op
from normgrad.core.operators import OPERATORS as OPERATORS_OF_CORE
from normgrad.core.spec import TensorSpec
from normgrad.infiniop.constants import INFINIRT_MEMCPY_D2H, INFINIRT_MEMCPY_H2D
from normgrad.infiniop.descriptors import DTYPE_NAMES
from normgrad.infiniop.operators import OPERATORS
from normgrad.infiniop.status import SUCCESS
from normgrad.infiniop.table import Operator
from normgrad.verify.cases import Case, select
from normgrad.verify.clib import infiniop_status
from normgrad.verify.clib.beside import beside
from normgrad.verify.clib.job import Job, arrays_of, concluded, numeric, status
from normgrad.verify.clib.memory import HostRuntime, Placed, Runtime, nan_like, strided
from normgrad.verify.foreign import Outcome
from normgrad.verify.problem import Problem, make_problem

_DTYPES = {name: code for code, name in DTYPE_NAMES.items()}
_TYPES = ("float16", "bfloat16", "float32")
_GAPS = "vectors with gaps"
_OPERATORS = {one.name: one for one in OPERATORS}


def jobs(who: str) -> list[Job]:
    """The cases that each operator can express, special memory, and the statuses."""
    made: list[Job] = []
    for operator in OPERATORS:
        cases = [as_infiniop(operator, one) for one in select(operator.op) if _fits(operator, one)]
        if OPERATORS_OF_CORE[operator.op].axes == "channels":
            cases.append(as_infiniop(operator, Case(id="nchw", op=operator.op, shape=(4, 6, 35))))
        listed = [(case, "") for case in cases]
        listed += [(case, one) for case in cases[-1:] for one in _variants(operator)]
        made += [
            numeric(case, dtype, who, variant, operator.name)
            for case, variant in listed
            for dtype in _TYPES
        ]
        statuses = infiniop_status.calls(operator)
        made += [status(operator.op, call, who, operator.name) for call in statuses]
    return made


def _variants(operator: Operator) -> list[str]:
    """What is special about memory: gaps, and results over data."""
    data = [one for one in operator.tensors if one.role in DATA]
    over = [
        f"{one.name} over {other.name}"
        for one in data
        if one.written
        for other in data
        if not other.written and other.shape == one.shape
    ]
    gaps = any(one.shape == "channels" for one in operator.tensors)
    return [_GAPS, *over] if gaps else over


def _fits(operator: Operator, case: Case) -> bool:
    plain = case.layout == case.vectors == "contiguous" and case.channel_axis == 1
    usual = (
        case.weight and case.bias and case.training and case.statistic == "invstd" and not case.mask
    )
    own = case.statistics_dtype is None and not case.both_statistics
    alone = own and case.statistic == "invstd"
    rows = OPERATORS_OF_CORE[case.op].axes != "rows" or case.normalized == 1
    ranks = OPERATORS_OF_CORE[case.op].axes != "rows" or len(case.shape) in (2, 3)
    fitting = plain and usual and alone and rows and ranks
    added = any(one.role == "residual" for one in operator.tensors)
    fused = case.residual is added and case.activation is None and case.shortcut == "none"
    alike = not case.weight_offset and not case.each_sample
    return fitting and 0 not in case.shape and fused and alike


def as_infiniop(operator: Operator, case: Case) -> Case:
    """Batch norm's second statistic is a variance, there is no eps, and data have 3 axes."""
    shape = (case.shape[0], case.shape[1], math.prod(case.shape[2:]))
    if operator.op is Op.BATCH_NORM:
        return dataclasses.replace(case, shape=shape, running=True, biased=True)
    if operator.op is not Op.BATCH_NORM_BACKWARD:
        return case
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
        self.forget = self.function("infiniopDestroyTensorDescriptor")
        self.forget.argtypes = (ctypes.c_void_p,)
        self._found: dict[str, Functions] = {}

    def of(self, operator: Operator) -> "Functions":
        """An operator's functions; AttributeError where the library has none."""
        if operator.name not in self._found:
            self._found[operator.name] = Functions(self, operator)
        return self._found[operator.name]

    def function(self, name: str) -> Any:
        """A symbol of either library."""
        for library in self.libraries:
            with contextlib.suppress(AttributeError):
                return getattr(library, name)
        msg = f"the library has no function {name}"
        raise AttributeError(msg)

    def run(self, job: Job, seed: int) -> Outcome:
        """One job; an exception is a failure with its words."""
        operator = _OPERATORS[job.operator]
        try:
            self.of(operator)
        except AttributeError:
            detail = f"not offered: the library has no infiniop{operator.name}"
            return dataclasses.replace(job.blank, verdict="NONE", detail=detail)
        try:
            if job.case is None:
                return infiniop_status.calls(operator)[job.call](self, job.blank)
            return self._numeric(operator, job, make_problem(job.case, job.dtype, seed))
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
    def planned(
        self, operator: Operator, tensors: Sequence[TensorSpec], numbers: Sequence[float]
    ) -> Iterator[ctypes.c_void_p]:
        """An operator descriptor; the tensors' own are destroyed before it is used."""
        functions = self.of(operator)
        described = [self.descriptor(tensor) for tensor in tensors]
        made = ctypes.c_void_p()
        code = functions.create(self.handle, ctypes.addressof(made), *described, *numbers)
        for one in described:
            self.forget(one)
        _must(f"infiniopCreate{operator.name}Descriptor", code)
        try:
            yield made
        finally:
            _must(f"infiniopDestroy{operator.name}Descriptor", functions.destroy(made))

    def _numeric(self, operator: Operator, job: Job, problem: Problem) -> Outcome:
        more = beside(operator.name, problem)
        hosts = arrays_of(problem) | {role: nan_like(one.tensor) for role, one in more.items()}
        roles = [one.role for one in operator.tensors]
        results = [one.role for one in operator.tensors if one.written]
        if job.variant == _GAPS:
            narrow = [one.role for one in operator.tensors if one.shape == "channels"]
            hosts |= {role: strided(hosts[role], 3) for role in narrow}
        over, _, under = job.variant.partition(" over ")
        by_name = {one.name: one.role for one in operator.tensors}
        over, under = by_name.get(over, ""), by_name.get(under, "")
        placed = {role: Placed(self.runtime, hosts[role]) for role in roles if role != over}
        if over:
            placed[over] = placed[under]
        turns = 3 if not over else 1
        runs = []
        functions = self.of(operator)
        numbers = [getattr(problem.case, one.role) for one in operator.numbers]
        with self.planned(operator, [hosts[role].tensor for role in roles], numbers) as desc:
            needed = ctypes.c_size_t()
            _must("GetWorkspaceSize", functions.workspace_size(desc, ctypes.addressof(needed)))
            workspace = self.runtime.malloc(needed.value) if needed.value else None
            for turn in range(turns):
                for role in results if turn else ():
                    placed[role].refill()
                addresses = [placed[role].address for role in roles]
                code = functions.compute(desc, workspace, needed.value, *addresses, None)
                _must(f"infiniop{operator.name}", code)
                runs.append({role: placed[role].read() for role in results})
            if workspace is not None:
                self.runtime.free(workspace)
        stray = [role for role, one in placed.items() if one.stray()]
        changed = [
            role for role in roles if role not in (*results, under) and placed[role].touched()
        ]
        for role in set(placed) - {over}:
            placed[role].free()
        given = problem.result_dtypes
        wanted = {role: given[role] for role in results if role in given}
        problem = dataclasses.replace(problem, result_dtypes=wanted)
        return concluded(job, problem, more, runs, stray, changed)


class Functions:
    """The four functions of an operator, with their arguments' types."""

    def __init__(self, library: Infiniop, operator: Operator) -> None:
        name, pointer = operator.name, ctypes.c_void_p
        tensors = (pointer,) * len(operator.tensors)
        self.create = library.function(f"infiniopCreate{name}Descriptor")
        numbers = (ctypes.c_float,) * len(operator.numbers)
        self.create.argtypes = (pointer, pointer, *tensors, *numbers)
        self.workspace_size = library.function(f"infiniopGet{name}WorkspaceSize")
        self.workspace_size.argtypes = (pointer, pointer)
        self.compute = library.function(f"infiniop{name}")
        self.compute.argtypes = (pointer, pointer, ctypes.c_size_t, *tensors, pointer)
        self.destroy = library.function(f"infiniopDestroy{name}Descriptor")
        self.destroy.argtypes = (pointer,)
