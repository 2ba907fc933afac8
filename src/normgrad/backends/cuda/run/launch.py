"""Compiles and launches the steps of a program on a GPU; `interpret` runs them without one."""

import ctypes
import enum
import functools
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normgrad.backends.cuda.device import device_of
from normgrad.backends.cuda.plan.program import (
    DATA_SLOTS,
    NUMBER,
    SLOTS,
    Fill,
    Launch,
    Program,
    Ref,
)
from normgrad.backends.cuda.plan.tiles import WIDE, ceil_div
from normgrad.backends.cuda.run import exchange_areas

_POINTERS = {
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "uint8": "*u8",
    "int32": "*i32",
    "int64": "*i64",
    "uint64": "*u64",
    NUMBER: "i32",
}


class Aligned(enum.Enum):
    """What starts at multiples of 16 bytes, as the workspace always does."""

    NONE = enum.auto()
    DATA = enum.auto()  # data are, some small vector is not
    ALL = enum.auto()


@functools.cache
def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter, on the host."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def kernel_of(name: str) -> Any:
    """The kernel function of this name."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"normgrad.backends.cuda.schedules.{module}"), function)


def run_program(program: Program, index: int, bases: Sequence[int | None], stream: int) -> None:
    """Launch every step; ``bases`` are the roles' addresses, then the workspace."""
    bits, aligned = 0, Aligned.ALL
    for slot in program.slots:
        bits |= bases[slot]  # type: ignore[operator]  # what a step touches has an address
    if bits & 15:
        program, bases, aligned, _memory = _at_odd_addresses(program, index, bases, stream)
    in_areas = stream == 0 and keeps_words(program)
    prepared = program.prepared.get((index, aligned, in_areas))
    if prepared is None:
        steps = exchange_areas.using_areas(program) if in_areas else program.steps
        prepared = [_prepare(step, index, aligned) for step in steps]
        program.prepared[index, aligned, in_areas] = prepared
    if not in_areas:
        for step in prepared:
            step.run(bases, stream)
        return
    areas = exchange_areas.areas_of(index)
    try:
        bases = [*bases, *areas.next_area(program.words)]
        for step in prepared:
            step.run(bases, stream)
    except BaseException:
        areas.forget()
        raise


def data_aligned(program: Program, bases: Sequence[int | None]) -> bool:
    """Whether the data start at multiples of 16 bytes.

    Vectors need not: a slice of a batch has a slice of its statistics, and should have the bits
    that the whole batch has there.
    """
    return not any((bases[slot] or 0) & 15 for slot in program.slots if slot in DATA_SLOTS)


def keeps_words(program: Program) -> bool:
    """Whether its words stay from call to call on the default stream."""
    return 0 < program.words <= exchange_areas.MOST


def _at_odd_addresses(
    program: Program, index: int, bases: Sequence[int | None], stream: int
) -> tuple[Program, Sequence[int | None], Aligned, Any]:
    """What to run where something starts at no multiple of 16 bytes, and on what.

    If the workspace cannot be the caller's there is a new one, to be held until all is launched:
    rare enough not to be planned for.
    """
    aligned = Aligned.DATA if data_aligned(program, bases) else Aligned.NONE
    other = program.unaligned if aligned is Aligned.NONE else None
    if other is None and not (bases[-1] or 0) & 15:
        return program, bases, aligned, None
    import torch

    program = other or program
    place = torch.cuda.default_stream(index)
    if stream:
        place = torch.cuda.ExternalStream(stream, index)
    with torch.cuda.stream(place):
        memory = torch.empty(program.workspace_bytes, dtype=torch.uint8, device=place.device)
    return program, [*bases[:-1], memory.data_ptr()], aligned, memory


class Ready(NamedTuple):
    """A step that is compiled."""

    run: Callable[[Sequence[Any], int], None]
    # What it calls, but for fills: launch(*grid, stream, *fixed, *arguments), the addresses of
    # the last for each Ref.
    launch: Any = None
    grid: tuple[int, int, int] = (0, 0, 0)
    fixed: tuple[Any, ...] = ()
    arguments: tuple[Any, ...] = ()


def _prepare(step: Launch | Fill, index: int, aligned: Aligned) -> Ready:
    return _prepare_fill(step) if isinstance(step, Fill) else _prepare_kernel(step, index, aligned)


def _prepare_fill(step: Fill) -> Ready:
    slot, offset = SLOTS[step.target.role], step.target.offset
    value, nbytes = step.value, step.nbytes
    fill = _memset()

    def run(bases: Sequence[int], stream: int) -> None:
        status = fill(bases[slot] + offset, value, nbytes, stream)
        if status:
            msg = f"cuMemsetD8Async failed with CUDA error {status}"
            raise RuntimeError(msg)

    return Ready(run)


@functools.cache
def _memset() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuMemsetD8Async
    function.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
    return function


def signature_of(step: Launch) -> dict[str, str]:
    """The types of a kernel's arguments; what is constant or None is a constexpr."""
    double = dict(step.constants).get("COMPUTE") == "float64"
    types = {}
    for name, value in step.arguments:
        if isinstance(value, Ref):
            types[name] = _POINTERS[value.dtype]
        elif isinstance(value, float):
            types[name] = "fp64" if double else "fp32"
        elif isinstance(value, int):
            types[name] = "i32" if -(1 << 31) <= value < WIDE else "i64"
    return types


def constants_of(step: Launch) -> dict[str, Any]:
    """Compile-time values, with types as Triton's own."""
    import triton.language as tl

    from normgrad.backends.cuda.formulas import formula_named

    constants = dict(step.constants)
    if "COMPUTE" in constants:
        constants["COMPUTE"] = getattr(tl, constants["COMPUTE"])
    if "FORMULA" in constants:
        constants["FORMULA"] = formula_named(constants["FORMULA"])
    return constants | {name: None for name, value in step.arguments if value is None}


def _divisible(ref: Ref, aligned: Aligned) -> bool:
    slot = SLOTS[ref.role]
    known = aligned is Aligned.ALL or (aligned is Aligned.DATA and slot in DATA_SLOTS)
    return (known or slot >= SLOTS[""]) and ref.dtype != NUMBER and ref.offset % 16 == 0


def compile_step(step: Launch, capability: int, aligned: Aligned = Aligned.ALL) -> Any:
    """A compiled kernel for a GPU of this capability; needs no GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource

    kernel = kernel_of(step.kernel)
    types = signature_of(step)
    names = kernel.arg_names
    signature = {name: types.get(name, "constexpr") for name in names}
    given = dict(step.arguments)
    attributes = {
        (position,): [["tt.divisibility", 16]]
        for position, name in enumerate(names)
        if isinstance(ref := given.get(name), Ref) and _divisible(ref, aligned)
    }
    options: dict[str, Any] = {
        "num_warps": step.warps,
        "launch_cooperative_grid": step.cooperative,
        "launch_pdl": step.early,
    }
    if step.registers:
        options["maxnreg"] = step.registers
    form = GluonASTSource if kernel.is_gluon() else ASTSource
    source = form(kernel, signature, constants_of(step), attributes)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options=options)
    if step.ring:
        _add_shared(compiled, target, step.ring)
    return compiled


def _add_shared(compiled: Any, target: Any, nbytes: int) -> None:
    """Shared memory behind what the compiler counts, at a multiple of 128 bytes."""
    from triton.compiler.compiler import make_backend

    try:
        shared = ceil_div(compiled.metadata.shared, 128) * 128 + nbytes
        compiled.metadata = compiled.metadata._replace(shared=shared)
        compiled.packed_metadata = make_backend(target).pack_metadata(compiled.metadata)
    except (AttributeError, TypeError, ValueError) as error:
        import triton

        msg = (
            f"normgrad's cuda backend does not support Triton {triton.__version__}, whose compiled "
            f"kernels are otherwise ({error}): pip install 'triton==3.6.*'"
        )
        raise RuntimeError(msg) from error


# What compiles and launches the kernels beside Triton's documented names.
_PARTS = {
    "triton": ("constexpr_function",),
    "triton.compiler": ("ASTSource",),
    "triton.compiler.compiler": ("make_backend",),
    "triton.backends.compiler": ("GPUTarget",),
    "triton.language.extra.cuda": ("gdc_wait", "gdc_launch_dependents"),
    "triton.experimental.gluon": ("jit", "language"),
    "triton.experimental.gluon._runtime": ("GluonASTSource",),
    "triton.experimental.gluon.language.nvidia.ampere": ("async_copy",),
}


@functools.cache
def unsupported_triton() -> str | None:
    """Why this Triton cannot compile the kernels, or None."""
    import triton

    for module, names in _PARTS.items():
        try:
            found = importlib.import_module(module)
        except ImportError:
            found = None
        lacking = [name for name in names if not hasattr(found, name)]
        if lacking:
            return (
                f"it does not support Triton {triton.__version__}, which has no "
                f"{module}.{lacking[0]}: pip install 'triton==3.6.*'"
            )
    return None


@functools.cache
def _launcher_is_known() -> bool:
    """Whether this is the Triton whose way to a launch we have read."""
    import triton

    return bool(triton.__version__.startswith("3.6."))


class _Arguments(NamedTuple):
    """What Triton makes a launcher from: the arguments of a kernel and their types."""

    signature: dict[str, str]
    constants: dict[str, Any]


def _prepare_kernel(step: Launch, index: int, aligned: Aligned) -> Ready:
    compiled = compile_step(step, device_of(index).capability, aligned)
    names = kernel_of(step.kernel).arg_names
    values = dict(step.arguments) | constants_of(step)
    if _launcher_is_known():
        # Constants are part of the code; a launcher that is not told of them takes 1 us less.
        types = signature_of(step)
        names = [name for name in names if name in types]
        compiled.src = _Arguments({name: types[name] for name in names}, {})
    arguments = tuple(values[name] for name in names)
    launch = compiled.run
    fixed: tuple[Any, ...] = (compiled.function, compiled.packed_metadata, None, None, None)
    if _launcher_is_known() and launch.global_scratch_size == launch.profile_scratch_size == 0:
        # What Triton's launcher calls itself, without its scratch memory: 1.4 us less of 7.6.
        modes = (launch.launch_cooperative_grid, launch.launch_pdl, None, None)
        launch, fixed = launch.launch, (compiled.function, *modes, *fixed[1:])
    run = _runner(launch, step.grid, fixed, arguments)
    return Ready(run, launch, step.grid, fixed, arguments)


def _runner(
    launch: Any, grid: tuple[int, int, int], fixed: tuple[Any, ...], arguments: tuple[Any, ...]
) -> Callable[[Sequence[Any], int], None]:
    x, y, z = grid
    refs = [(at, value) for at, value in enumerate(arguments) if isinstance(value, Ref)]
    whole = [(at, SLOTS[ref.role]) for at, ref in refs if not ref.offset]
    pieces = [(at, SLOTS[ref.role], ref.offset) for at, ref in refs if ref.offset]

    def run(bases: Sequence[Any], stream: int) -> None:
        given = list(arguments)
        for at, slot in whole:
            given[at] = bases[slot]
        for at, slot, offset in pieces:
            given[at] = bases[slot] + offset
        launch(x, y, z, stream, *fixed, *given)

    return run
