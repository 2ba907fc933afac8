"""``normgrad plan``: the launches that compute a request on a GPU, without one."""

import argparse
import dataclasses
import math
import textwrap
from collections.abc import Iterator
from typing import Final

from normgrad.backends.base import unusable
from normgrad.backends.cuda.device import KNOWN, Device, device_of
from normgrad.backends.cuda.plan.program import Fill, Program
from normgrad.backends.cuda.plan.strategies import make_program, too_many
from normgrad.bench import suites
from normgrad.cli import terminal, words
from normgrad.core.dtypes import FLOATS, compute_dtype
from normgrad.core.errors import BackendError, OptionError
from normgrad.core.geometry import geometry_of
from normgrad.core.operators import OPERATORS
from normgrad.core.plan import arithmetic
from normgrad.core.spec import Op, Spec, TensorSpec, dense_like
from normgrad.core.validate import validate, validate_data
from normgrad.verify.cases import Case
from normgrad.verify.problem import request, wanted_dtypes

EXAMPLES: Final = (
    "normgrad plan --op layer_norm_backward --shape 16384x4096",
    "normgrad plan --op batch_norm_backward --shape 64x256x56x56 --layout channels-last -v",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    types = ", ".join(FLOATS)
    parser.add_argument("--op", type=words.operator, required=True, help=f"of {', '.join(Op)}")
    parser.add_argument("--shape", required=True, help="as 64x256x56x56")
    parser.add_argument(
        "--dtype", type=words.dtype, default="bfloat16", help=f"of the data: {types} (bfloat16)"
    )
    parser.add_argument(
        "--layout",
        type=words.layout,
        default=suites.LAYOUTS[0],
        help=f"of the data: {' or '.join(suites.LAYOUTS)} ({suites.LAYOUTS[0]})",
    )
    parser.add_argument("--groups", type=int, help=f"of group norm ({suites.GROUPS})")
    parser.add_argument("--normalized", type=int, help="how many last axes of layer norm (1)")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="the constants of the kernels, too"
    )
    parser.add_argument("--mask", help="wanted results as bits, as 100 for the input gradient")
    parser.add_argument("--inference", action="store_true", help="of batch norm")
    parser.add_argument(
        "--statistics-dtype",
        type=words.dtype,
        help="of statistics and weight (float32, or float64 for such data)",
    )
    parser.add_argument(
        "--device",
        type=words.one_of(list(KNOWN)),
        help=f"of {', '.join(KNOWN)}; default: the GPU here, or an H200",
    )


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    workload = _workload(args)
    case = dataclasses.replace(workload.case, training=not args.inference)
    device = KNOWN[args.device] if args.device else device_here()
    program = program_of(spec_of(case, args.dtype, args.statistics_dtype), device)
    mode = " inference" if args.inference else ""
    terminal.say(f"{workload.name}{mode} on {device.name}")
    for line in _described(program, verbose=args.verbose):
        terminal.say(line)
    return 0


def _described(program: Program, *, verbose: bool) -> Iterator[str]:
    """The steps in words; ``verbose`` adds the constants that each kernel is compiled with."""
    scratch = _size(program.workspace_bytes)
    yield f"{program.strategy}; scratch memory: {scratch}"
    for place, step in enumerate(program.steps, 1):
        if isinstance(step, Fill):
            yield f"{place}. {step}"
            continue
        blocks = math.prod(step.grid)
        yield f"{place}. {step.kernel}: {_many(blocks, 'block')} of {32 * step.warps} threads"
        notes = [f"at most {step.registers} registers a thread"] if step.registers else []
        notes += [f"{_size(step.ring)} of shared memory for copies"] if step.ring else []
        notes += ["all blocks run at once and wait for each other"] if step.cooperative else []
        notes += ["may start before the launch before it has ended"] if step.early else []
        for note in notes:
            yield f"   {note}"
        if verbose and step.constants:
            sizes = ", ".join(f"{name}={value}" for name, value in step.constants)
            yield from textwrap.wrap(sizes, 80, initial_indent="   ", subsequent_indent="   ")
    if not verbose:
        yield "-v adds the constants that each kernel is compiled with"


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _size(count: int) -> str:
    """Bytes in words."""
    if count < 10_000:
        return f"{count} bytes"
    return f"{count / 1000:.0f} KB" if count < 10_000_000 else f"{count / 1e6:.0f} MB"


def _workload(args: argparse.Namespace) -> suites.Workload:
    op = Op(args.op)
    sizes = (args.groups, args.normalized, args.mask)
    found = suites.asked(op, (args.shape,), (args.dtype,), (args.layout,), *sizes)
    if len(found) != 1:
        raise OptionError("--shape", "must be one shape", args.shape)
    if args.inference and op is not Op.BATCH_NORM_BACKWARD:
        raise OptionError("--inference", f"must be left out with --op {op}", args.inference)
    return found[0]


def program_of(spec: Spec, device: Device) -> Program:
    """The kernel plan of a valid request on a device that may be elsewhere."""
    validate(spec)
    geometry = geometry_of(spec)
    reason = too_many(geometry)
    if reason is not None:
        raise BackendError(f"{spec.op} on {device.name}", {"cuda": reason})
    return make_program(spec, geometry, arithmetic(spec), device)


def device_here() -> Device:
    """The first GPU of this machine, or an H200."""
    if unusable("torch") is None:
        import torch

        if torch.cuda.is_available():
            return device_of(0)
    return KNOWN["h200"]


def spec_of(case: Case, dtype: str, statistics_dtype: str | None = None) -> Spec:
    """The request that a case makes of data of this type, with results as a call makes them.

    Statistics, weight and its gradients are float32 (float64 for such data) if not said otherwise.
    """
    wide = compute_dtype((dtype,))
    small = statistics_dtype or wide
    data = TensorSpec.contiguous(case.shape, dtype)
    if case.layout == "channels-last":
        stored = (case.shape[0], *case.shape[2:], case.shape[1])
        data = TensorSpec.contiguous(stored, dtype).move_axis(len(stored) - 1, 1)
    operator = OPERATORS[case.op]
    tensors = dict.fromkeys(operator.data_in, data)
    bare = request(case, tensors, {})
    validate_data(bare)
    geometry = geometry_of(bare)
    parameters = bare.normalized_shape or (geometry.parameters,)
    statistics = TensorSpec.contiguous((geometry.statistics,), small)
    vector, sums = (TensorSpec.contiguous(parameters, one) for one in (small, wide))
    ranks = case.shape[0] if case.op is Op.BATCH_NORM_GATHER_STATS else case.ranks
    small_ones = {
        **dict.fromkeys(("mean", "rstd"), statistics),
        **dict.fromkeys(("gamma", "beta"), vector),
        **dict.fromkeys(("sum_dy", "sum_dy_xmu"), sums),
        "counter": TensorSpec.contiguous((ranks,), "int32"),
    }
    if not operator.forward and case.activation is None:
        del small_ones["beta"]  # which no gradient reads
    tensors |= {role: one for role, one in small_ones.items() if role in operator.takes}
    spec = request(case, tensors, wanted_dtypes(case, dtype, small))
    written = {role: dense_like(spec.x) for role in ("dx", "y") if spec.tensor(role) is not None}
    return spec.with_tensors(written)
