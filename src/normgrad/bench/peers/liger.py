"""Liger Kernel's layer and group norm."""

import math

import torch

from normgrad.backends.base import missing
from normgrad.bench.contender import NotOffered, Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.spec import Op


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
        dy, x, mean, rstd = (operands[role] for role in ("dy", "x", "mean", "rstd"))
        gamma = operands.get("gamma")
        if gamma is None:
            raise NotOffered("it is called with a weight alone")
        beta = torch.zeros_like(gamma)
        if case.layout != "contiguous":
            raise NotOffered("Liger takes contiguous data alone")
        if case.op is Op.LAYER_NORM:
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
        if case.op is Op.GROUP_NORM:
            from liger_kernel.ops.group_norm import group_norm_backward

            # Its forward saves the statistics in the data's type.
            mean, rstd = mean.to(x.dtype), rstd.to(x.dtype)
            sizes = (case.shape[1], case.num_groups)
            return Runner(
                lambda: group_norm_backward(dy, x, gamma, beta, mean, rstd, *sizes),
                lambda arrays: by_role(problem, arrays),
            )
        raise NotOffered("Liger has layer and group norm alone")


PEER = Liger()
