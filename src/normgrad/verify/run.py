"""Runs a problem through the functional API and reads the results back as float64."""

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import normgrad
from normgrad.arrays import host_memory
from normgrad.arrays.kinds import dense_numpy, numpy_type
from normgrad.core.operators import DATA, OPERATORS
from normgrad.core.spec import TensorSpec, dense_like
from normgrad.core.validate import result_shape
from normgrad.verify.budget import Expected, expected
from normgrad.verify.cases import Case
from normgrad.verify.measure import Measurement, measure
from normgrad.verify.problem import HostArray, Problem

# Operands that are passed by name.
_BY_NAME = {
    "gamma": "weight",
    "beta": "bias",
    "running_mean": "running_mean",
    "running_var": "running_var",
}

# Operands of fused calls alone.
_FUSED = {"residual": "residual", "dsum": "grad_sum", "shortcut": "shortcut", "mask": "mask"}

Results = dict[str, np.ndarray[Any, Any]]


def judge(problem: Problem, results: Results, truth: Expected | None = None) -> list[Measurement]:
    """Every result of a problem measured against the truth, in the shape that the result has."""
    truth, spec = truth or expected(problem), problem.spec
    measurements = []
    for role in problem.measured:
        if role not in results:  # of others' functions, which give an output alone
            continue
        tensor = spec.present(role)
        want, budget = (
            values[role].reshape(tensor.shape) for values in (truth.values, truth.budgets)
        )
        if role in DATA and spec.operator.axes == "groups":
            want, budget = (
                np.moveaxis(values, 1, problem.case.channel_axis) for values in (want, budget)
            )
        measurements.append(measure(role, results[role], want, budget, tensor.dtype))
    return measurements


def run_backend(problem: Problem, backend: str | None) -> Results:
    """Results by role, from NumPy arrays or torch tensors. Outputs start as NaN."""
    device = _torch_device(problem, backend)
    operands = operand_arrays(problem, device)
    out = tuple(
        to_array(_poisoned(problem, role), device) if role in problem.wanted else None
        for role in problem.case.results
    )
    call(problem, operands, out, backend)
    return {
        role: host_memory.widen(from_array(array, device), problem.result_dtypes[role])
        for role, array in zip(problem.case.results, out, strict=True)
        if array is not None
    } | read_updates(problem, operands, device)


def operand_arrays(problem: Problem, device: str | None) -> dict[str, Any]:
    """The operands of a call; those that it writes are copies."""
    updated = problem.spec.updated
    return {
        role: to_array(_copied(host) if role in updated else host, device)
        for role, host in problem.given.items()
    }


def read_updates(problem: Problem, operands: dict[str, Any], device: str | None) -> Results:
    """The operands that a call has written, by role."""
    return {
        role: host_memory.widen(from_array(operands[role], device), problem.operands[role].dtype)
        for role in problem.spec.updated
    }


def _copied(host: HostArray) -> HostArray:
    """The same vector elsewhere, with the same gaps."""
    step = host.tensor.strides[0]
    storage = np.zeros(host.array.size * step, host.array.dtype)
    storage[::step] = host.array
    return HostArray(storage[::step], host.dtype)


def _torch_device(problem: Problem, backend: str | None) -> str | None:
    """Where torch tensors are needed: on a GPU, and for bfloat16 instead of ml_dtypes."""
    if backend == "cuda":
        from normgrad.backends.cuda.run.launch import interpreting

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
    if len(problem.case.results) == 1 and out is not None:
        out = out[0]
    function = getattr(normgrad, name)
    return functools.partial(function, *arguments, **options, out=out, backend=backend)


def invocation(case: Case, operands: dict[str, Any]) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Name, positional and keyword arguments of the public function for a case."""
    operator = OPERATORS[case.op]
    taken = ("dy", "x", *operator.statistics, "variances", "sum_dy", "sum_dy_xmu", "counter")
    roles = [role for role in taken if role in operator.takes]
    arguments = [operands[role] for role in roles]
    options: dict[str, Any] = {}
    for role, name in _BY_NAME.items():
        if role in operator.takes:
            options[name] = operands.get(role)
    if operator.statistics and case.statistic == "variance":
        options |= {"variance": operands["rstd"], "eps": case.eps}
        arguments[roles.index("rstd")] = None
    if operator.forward:
        if "eps" in operator.settings and not operator.statistics:
            options["eps"] = case.eps
        if case.running:
            options["momentum"] = case.momentum
    elif operator.sums != "given":
        options["output_mask"] = case.wanted
    if operator.axes == "rows":
        arguments.append(case.normalized_shape)
    elif "channel_axis" in operator.settings:
        options["channel_axis"] = case.channel_axis
    if operator.axes == "groups":
        arguments.append(case.num_groups)
    if "training" in operator.settings:
        options["training"] = case.training
    if case.activation is not None:
        options |= {"activation": case.activation, "negative_slope": case.negative_slope}
    options |= {name: operands[role] for role, name in _FUSED.items() if role in operands}
    if case.weight_offset:
        options["weight_offset"] = case.weight_offset
    return case.op, tuple(arguments), options


def _poisoned(problem: Problem, role: str) -> HostArray:
    """A result full of NaN, laid out as x is."""
    dtype = problem.result_dtypes[role]
    if role in DATA:
        like = dense_like(problem.operands["x"].tensor)
        tensor = TensorSpec(like.shape, like.strides, dtype)
    else:
        tensor = TensorSpec.contiguous(result_shape(problem.spec, role), dtype)
    array = dense_numpy(tensor, host_memory.STORAGE[dtype])
    blank = np.full(tensor.shape, 0xA5 if dtype == "uint8" else np.nan)
    array[...] = host_memory.narrow(blank, dtype)
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
    low, high = host_memory.byte_range(tensor)
    storage = host_memory.STORAGE[host.dtype]
    if any(step < 0 for step in tensor.strides):  # torch knows no negative strides
        return to_torch(HostArray(host.array.copy(), host.dtype), device)
    start = host.array.__array_interface__["data"][0]
    count = (high - low) // storage.itemsize
    flat = host_memory.view(start, TensorSpec((count,), (1,), host.dtype)).copy()
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
