"""Liger Kernel's layer, group and RMS norm."""

import math

import torch

from normgrad.backends.base import missing
from normgrad.bench.contender import NotOffered, Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.core.operators import OPERATORS, Op


class Liger:
    """Triton kernels for language models, called below their autograd functions."""

    name = "liger"

    def unavailable(self, device: str) -> str | None:
        """The package, and a GPU for its kernels."""
        if device == "cpu":
            return "its kernels need a GPU"
        return missing("liger_kernel", "liger-kernel")

    def prepare(self, problem: DeviceProblem) -> Runner:
        """The backward functions, with what their forwards would have saved."""
        case, operands = problem.workload.case, problem.operands
        if OPERATORS[case.op].forward:
            return _forward(problem)
        dy, x, rstd = (operands[role] for role in ("dy", "x", "rstd"))
        mean = operands.get("mean", rstd)
        gamma = operands.get("gamma")
        if gamma is None:
            raise NotOffered("it is called with a weight alone")
        beta = torch.zeros_like(gamma)
        if case.layout != "contiguous":
            raise NotOffered("Liger takes contiguous data alone")
        if case.op is Op.LAYER_NORM_BACKWARD:
            from liger_kernel.ops.layer_norm import layer_norm_backward

            cols = math.prod(case.normalized_shape)
            dy, x = dy.reshape(-1, cols), x.reshape(-1, cols)
            mean, rstd = mean.reshape(-1), rstd.reshape(-1)
            gamma, beta = gamma.reshape(-1), beta.reshape(-1)
            wants = {"needs_dw": case.wanted[1], "needs_db": case.wanted[2]}
            return Runner(
                lambda: layer_norm_backward(dy, x, gamma, beta, mean, rstd, **wants),
                lambda arrays: by_role(problem, arrays),
            )
        if case.op is Op.RMS_NORM_BACKWARD:
            from liger_kernel.ops.rms_norm import rms_norm_backward
            from liger_kernel.ops.utils import calculate_settings

            cols = math.prod(case.normalized_shape)
            return Runner(
                # The sizes of its blocks as its own forward picks them; dy is left as it is.
                lambda: rms_norm_backward(
                    dy.reshape(-1, cols),
                    x.reshape(-1, cols),
                    gamma.reshape(-1),
                    rstd.reshape(-1),
                    0.0,
                    0,
                    *calculate_settings(cols),
                    False,
                    None,
                ),
                lambda arrays: by_role(problem, arrays),
            )
        if case.op is Op.GROUP_NORM_BACKWARD:
            from liger_kernel.ops.group_norm import group_norm_backward

            # Its forward saves the statistics in the data's type.
            mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
            sizes = (case.shape[1], case.num_groups)
            return Runner(
                lambda: group_norm_backward(dy, x, gamma, beta, mean, rstd, *sizes),
                lambda arrays: by_role(problem, arrays),
            )
        raise NotOffered("Liger has layer, group and RMS norm alone")


def _forward(problem: DeviceProblem) -> Runner:
    case, operands = problem.workload.case, problem.operands
    x, gamma, beta = (operands.get(role) for role in ("x", "gamma", "beta"))
    if gamma is None or x is None:
        raise NotOffered("it is called with a weight alone")
    weight = gamma.reshape(-1)
    bias = torch.zeros_like(weight) if beta is None else beta.reshape(-1)
    if case.layout != "contiguous" or not all(case.wanted):
        raise NotOffered("Liger takes contiguous data alone and gives all results")
    cols = math.prod(case.normalized_shape)
    if case.op is Op.LAYER_NORM:
        from liger_kernel.ops.layer_norm import layer_norm_forward

        flat = x.reshape(-1, cols)
        return Runner(
            lambda: layer_norm_forward(flat, weight, bias, case.eps),
            lambda found: by_role(problem, (found[0], found[2], found[3])),
        )
    if case.op is Op.RMS_NORM:
        from liger_kernel.ops.rms_norm import rms_norm_forward

        flat = x.reshape(-1, cols)
        return Runner(
            lambda: rms_norm_forward(flat, weight, case.eps, 0.0, "llama", None),
            lambda found: by_role(problem, (found[0], found[2])),
        )
    if case.op is Op.GROUP_NORM:
        from liger_kernel.ops.group_norm import group_norm_forward

        sizes = (case.shape[1], case.num_groups)
        return Runner(
            lambda: group_norm_forward(x, *sizes, weight, bias, case.eps),
            lambda found: by_role(problem, (found[0], found[2], found[3])),
        )
    raise NotOffered("Liger has layer, group and RMS norm alone")


PEER = Liger()
