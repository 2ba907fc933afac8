"""Runs a program's kernels in Triton's interpreter, on host memory. For tests without a GPU."""

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from normgrad.arrays import host_memory
from normgrad.backends.cuda.plan.program import (
    AREAS,
    NUMBER,
    SLOTS,
    Fill,
    Launch,
    Program,
    Ref,
    Step,
)
from normgrad.backends.cuda.run.exchange_areas import ExchangeAreas, using_areas
from normgrad.backends.cuda.run.launch import constants_of, data_aligned, kernel_of
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.spec import Spec

_SIZES = {**ITEMSIZE, "uint64": 8}


def interpret(
    program: Program,
    spec: Spec,
    addresses: Sequence[int | None],
    workspace: int | None,
    areas: ExchangeAreas | None,
) -> None:
    """Run every step; kernels whose blocks wait for each other run phase by phase.

    Their words are those of ``areas``, if there are any.
    """
    steps: Sequence[Step] = program.steps
    bases: list[int | None] = [*addresses, workspace]
    other = program.unaligned
    if other is not None and not data_aligned(program, bases):
        memory = np.empty(other.workspace_bytes, np.uint8)  # as `launch` does
        interpret(other, spec, addresses, memory.ctypes.data, areas)
        return
    if areas is not None and program.words:
        steps = using_areas(program)
        bases += areas.next_area(program.words)
    for step in steps:
        if isinstance(step, Fill):
            _memory(step.target, bases, step.nbytes)[...] = step.value
            continue
        constants = constants_of(step)
        phases: tuple[int | None, ...] = (None,)
        if "PHASE" in constants:
            phases = (3,)
            if dict(step.arguments)["arrivals"]:  # words before it
                phases = (1, 3, 2) if constants.get("TOTALS_COLUMNS") else (1, 2)
            if constants["JOINS_AT_END"]:
                phases += (4,)
        for phase in phases:
            if phase is not None:
                constants["PHASE"] = phase
            _launch(step, constants, program, spec, bases)


def _launch(
    step: Launch,
    constants: dict[str, Any],
    program: Program,
    spec: Spec,
    bases: Sequence[int | None],
) -> None:
    arguments: dict[str, Any] = {}
    for name, value in step.arguments:
        if isinstance(value, Ref):
            arguments[name] = _tensor(value, program, spec, bases)
        elif value is not None:
            arguments[name] = value
    with _nothing_in_vain():
        kernel_of(step.kernel)[step.grid](**arguments, **constants)


@contextlib.contextmanager
def _nothing_in_vain() -> Iterator[None]:
    """Half of what Triton 3.6's interpreter does has no effect: a launch without it.

    For every sum and product of integers it computes whether they overflow, and drops the answer
    (it asserts only under `debug`). At every call of a device function it looks through the whole
    language for what to replace, though this launch has done so.
    """
    from triton.runtime import interpreter

    builder, patch = interpreter.interpreter_builder, interpreter._patch_lang
    options, seen = builder.options, set()

    def once(function: Callable[..., Any]) -> Any:
        module = function.__globals__["__name__"]  # which names the parts of the language it uses
        if module in seen:
            return interpreter._LangPatchScope()
        seen.add(module)
        return patch(function)

    builder.options = dataclasses.replace(options, sanitize_overflow=options.debug)
    interpreter._patch_lang = once
    try:
        yield
    finally:
        builder.options, interpreter._patch_lang = options, patch


def _memory(ref: Ref, bases: Sequence[int | None], nbytes: int) -> Any:
    base = bases[SLOTS[ref.role]]
    assert base is not None
    view: Any = (ctypes.c_uint8 * nbytes).from_address(base + ref.offset)
    return np.frombuffer(view, np.uint8)


def _tensor(ref: Ref, program: Program, spec: Spec, bases: Sequence[int | None]) -> Any:
    import torch

    start = 0
    if ref.dtype == NUMBER:
        return bases[SLOTS[ref.role]]
    if ref.role == "":
        memory = _memory(ref, bases, program.workspace_bytes - ref.offset)
    elif ref.role in AREAS:
        memory = _memory(ref, bases, 8 * program.words)
    else:
        tensor = spec.present(ref.role)
        low, high = host_memory.byte_range(tensor)
        memory = _memory(ref._replace(offset=low), bases, high - low)
        start = -low // _SIZES[ref.dtype]
    memory = memory[: memory.size // _SIZES[ref.dtype] * _SIZES[ref.dtype]]
    return torch.from_numpy(memory).view(getattr(torch, ref.dtype))[start:]
