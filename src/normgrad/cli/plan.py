"""``normgrad plan``: the launches that compute a request on a GPU, without one."""

import argparse
import dataclasses

from normgrad.backends.base import unusable
from normgrad.backends.cuda.device import KNOWN, Device, device_of
from normgrad.backends.cuda.program import Program
from normgrad.backends.cuda.strategies import make_program, too_many
from normgrad.bench import suites
from normgrad.dtypes import FLOATS, compute_dtype
from normgrad.errors import BackendError, OptionError
from normgrad.geometry import geometry_of
from normgrad.plan import arithmetic
from normgrad.spec import Op, Spec, TensorSpec, dense_like
from normgrad.validate import validate, validate_data
from normgrad.verify.cases import Case
from normgrad.verify.problem import request, wanted_dtypes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    ops = [op.value for op in Op]
    parser.add_argument("--op", choices=ops, required=True, help="whose gradient")
    parser.add_argument("--shape", required=True, help="as 64x256x56x56")
    parser.add_argument("--dtype", choices=list(FLOATS), default="bfloat16", help="of the data")
    parser.add_argument(
        "--layout", choices=suites.LAYOUTS, default=suites.LAYOUTS[0], help="of the data"
    )
    parser.add_argument("--groups", type=int, help=f"of group norm ({suites.GROUPS})")
    parser.add_argument("--normalized", type=int, help="how many last axes of layer norm (1)")
    parser.add_argument("--mask", help="wanted results as bits, as 100 for the input gradient")
    parser.add_argument("--inference", action="store_true", help="of batch norm")
    parser.add_argument(
        "--statistics-dtype",
        choices=list(FLOATS),
        help="of statistics and weight (float32, or float64 for such data)",
    )
    parser.add_argument("--device", choices=list(KNOWN), help="default: the GPU here, or an H200")


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    workload = _workload(args)
    case = dataclasses.replace(workload.case, training=not args.inference)
    device = KNOWN[args.device] if args.device else device_here()
    program = program_of(spec_of(case, args.dtype, args.statistics_dtype), device)
    mode = " inference" if args.inference else ""
    print(f"{workload.name}{mode} on {device.name}: {program}")
    return 0


def _workload(args: argparse.Namespace) -> suites.Workload:
    op = Op(args.op)
    sizes = (args.groups, args.normalized, args.mask)
    found = suites.asked(op, args.shape, (args.dtype,), (args.layout,), *sizes)
    if len(found) != 1:
        raise OptionError("--shape", "must be one shape", args.shape)
    if args.inference and op is not Op.BATCH_NORM:
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
    tensors = {"dy": data, "x": data}
    bare = request(case, tensors, {})
    validate_data(bare)
    geometry = geometry_of(bare)
    parameters = bare.normalized_shape or (geometry.parameters,)
    statistics = TensorSpec.contiguous((geometry.statistics,), small)
    tensors |= {"mean": statistics, "rstd": statistics}
    tensors["gamma"] = TensorSpec.contiguous(parameters, small)
    if case.op is Op.BATCH_NORM_ELEMT:
        sums = TensorSpec.contiguous(parameters, wide)
        counter = TensorSpec.contiguous((case.ranks,), "int32")
        tensors |= {"sum_dy": sums, "sum_dy_xmu": sums, "counter": counter}
    spec = request(case, tensors, wanted_dtypes(case, dtype, small))
    return spec if spec.dx is None else spec.with_tensors({"dx": dense_like(spec.x)})
