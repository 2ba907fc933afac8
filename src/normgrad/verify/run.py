"""Runs a problem through the functional API and reads the results back as float64."""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

from normgrad import functional, hostmem
from normgrad.arrays import dense_numpy, numpy_type
from normgrad.spec import RESULTS, Op, TensorSpec, dense_like
from normgrad.validate import result_shape
from normgrad.verify.budget import Expected, expected
from normgrad.verify.cases import Case
from normgrad.verify.measure import Measurement, measure
from normgrad.verify.problem import HostArray, Problem

Results = dict[str, np.ndarray[Any, Any]]


def judge(problem: Problem, results: Results, truth: Expected | None = None) -> list[Measurement]:
    """Every result of a problem measured against the truth, in the shape that the result has."""
    truth, spec = truth or expected(problem), problem.spec
    measurements = []
    for role in problem.wanted:
        tensor = spec.present(role)
        want, budget = (
            values[role].reshape(tensor.shape) for values in (truth.values, truth.budgets)
        )
        if role == "dx" and spec.op is Op.GROUP_NORM:
            want, budget = (
                np.moveaxis(values, 1, problem.case.channel_axis) for values in (want, budget)
            )
        measurements.append(measure(role, results[role], want, budget, tensor.dtype))
    return measurements


def run_backend(problem: Problem, backend: str | None) -> Results:
    """Results by role, from NumPy arrays or torch tensors. Outputs start as NaN."""
    device = _torch_device(problem, backend)
    operands = {role: to_array(host, device) for role, host in problem.given.items()}
    out = tuple(
        to_array(_poisoned(problem, role), device) if role in problem.wanted else None
        for role in RESULTS[problem.case.op]
    )
    call(problem, operands, out, backend)
    return {
        role: hostmem.widen(from_array(array, device), problem.result_dtypes[role])
        for role, array in zip(RESULTS[problem.case.op], out, strict=True)
        if array is not None
    }


def _torch_device(problem: Problem, backend: str | None) -> str | None:
    """Where torch tensors are needed: on a GPU, and for bfloat16 instead of ml_dtypes."""
    if backend == "cuda":
        from normgrad.backends.cuda.launch import interpreting

        if not interpreting():  # on host memory
            return "cuda"
    types = {host.dtype for host in problem.operands.values()} | set(problem.result_dtypes.values())
    instead = find_spec("ml_dtypes") is None and find_spec("torch") is not None
    return "cpu" if "bfloat16" in types and instead else None


def call(problem: Problem, operands: dict[str, Any], out: Any, backend: str | None) -> Any:
    """The public function of the problem's operator on arrays of any kind."""
    return bound_call(problem, operands, out, backend)()


def bound_call(
    problem: Problem, operands: dict[str, Any], out: Any, backend: str | None
) -> Callable[[], Any]:
    """The same, to be called again and again: the arguments are put together once."""
    name, arguments, options = invocation(problem.case, operands)
    if problem.case.op is Op.BATCH_NORM_ELEMT and out is not None:
        out = out[0]
    function = getattr(functional, name)
    return functools.partial(function, *arguments, **options, out=out, backend=backend)


def invocation(case: Case, operands: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Name, positional and keyword arguments of the public function for a case."""
    dy, x = operands["dy"], operands["x"]
    mean, rstd, gamma = operands["mean"], operands["rstd"], operands.get("gamma")
    name = f"{case.op}_backward"
    options: dict[str, Any] = {"output_mask": case.wanted, "channel_axis": case.channel_axis}
    if case.op is Op.BATCH_NORM:
        running = operands.get("running_mean"), operands.get("running_var")
        saved = operands.get("save_mean"), operands.get("save_invstd")
        pair = (*running, mean, rstd) if case.training else (mean, rstd, *saved)
        options |= {"training": case.training, "eps": case.eps, "save_invstd_is": case.statistic}
        return name, (dy, x, gamma, *pair), options
    if case.op is Op.BATCH_NORM_REDUCE:
        return name, (dy, x, mean, rstd, gamma), options
    if case.op is Op.BATCH_NORM_ELEMT:
        sums = (operands["sum_dy"], operands["sum_dy_xmu"], operands["counter"])
        return name, (dy, x, mean, rstd, gamma, *sums), {"channel_axis": case.channel_axis}
    if case.op is Op.LAYER_NORM:
        normalized = case.normalized_shape
        masked = {"output_mask": case.wanted}
        return name, (dy, x, normalized, mean, rstd, gamma), masked
    return name, (dy, x, mean, rstd, gamma), options | {"num_groups": case.num_groups}


def _poisoned(problem: Problem, role: str) -> HostArray:
    """A result full of NaN, laid out as x is."""
    dtype = problem.result_dtypes[role]
    if role == "dx":
        like = dense_like(problem.operands["x"].tensor)
        tensor = TensorSpec(like.shape, like.strides, dtype)
    else:
        tensor = TensorSpec.contiguous(result_shape(problem.spec, role), dtype)
    array = dense_numpy(tensor, hostmem.STORAGE[dtype])
    array[...] = hostmem.narrow(np.full(tensor.shape, np.nan), dtype)
    return HostArray(array, dtype)


def to_array(host: HostArray, device: str | None) -> Any:
    """NumPy's array, bfloat16 as ml_dtypes has it; on a device, a torch tensor."""
    if device is not None:
        return to_torch(host, device)
    return host.array.view(numpy_type(host.dtype))


def from_array(array: Any, device: str | None) -> Any:
    """The numbers in NumPy; bfloat16 as its bits."""
    if device is not None:
        return from_torch(array)
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def to_torch(host: HostArray, device: str) -> Any:
    """A tensor with the same strides, where torch has such."""
    import torch

    tensor = host.tensor
    low, high = hostmem.byte_range(tensor)
    storage = hostmem.STORAGE[host.dtype]
    if any(step < 0 for step in tensor.strides):  # torch knows no negative strides
        return to_torch(HostArray(host.array.copy(), host.dtype), device)
    start = host.array.__array_interface__["data"][0]
    count = (high - low) // storage.itemsize
    flat = hostmem.view(start, TensorSpec((count,), (1,), host.dtype)).copy()
    signed = flat.view(np.int16) if host.dtype == "bfloat16" else flat
    moved = torch.from_numpy(signed).to(device)
    if host.dtype == "bfloat16":
        moved = moved.view(torch.bfloat16)
    return moved.as_strided(tensor.shape, tensor.strides)


def from_torch(array: Any) -> Any:
    """A tensor's numbers in NumPy; bfloat16 as its bits."""
    import torch

    array = array.detach().resolve_conj().resolve_neg()  # NumPy knows memory alone
    if array.dtype is torch.bfloat16:
        return array.contiguous().view(torch.int16).cpu().numpy().view(np.uint16)
    return array.cpu().numpy()
