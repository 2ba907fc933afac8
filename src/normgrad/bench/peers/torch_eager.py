"""torch's own backward operators, called without autograd around them."""

import math
from typing import Any

import torch

from normgrad.bench.contender import NotOffered, Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.spec import Op

aten = torch.ops.aten


class TorchEager:
    """The kernels behind ``loss.backward()``."""

    name = "torch"

    def unavailable(self, device: str) -> str | None:
        """It made the data: it is there."""
        return None

    def prepare(self, problem: DeviceProblem) -> Runner:
        """The native operator with the types that its forward would have saved."""
        call = _call(problem)
        return Runner(call, lambda arrays: by_role(problem, arrays))


def _call(problem: DeviceProblem) -> Any:
    case, operands = problem.workload.case, problem.operands
    dy, x, mean, rstd, gamma = (operands[role] for role in ("dy", "x", "mean", "rstd", "gamma"))
    mask = list(case.wanted)
    if case.op is Op.BATCH_NORM:
        pair = (None, None, mean, rstd) if case.training else (mean, rstd, None, None)
        return lambda: aten.native_batch_norm_backward(
            dy, x, gamma, *pair, case.training, case.eps, mask
        )
    if case.op is Op.LAYER_NORM:
        tail = list(case.shape[len(case.shape) - case.normalized :])
        beta = torch.zeros_like(gamma)
        return lambda: aten.native_layer_norm_backward(dy, x, tail, mean, rstd, gamma, beta, mask)
    if case.op is Op.GROUP_NORM:
        # The CUDA kernel reads statistics in gamma's type; the values are the same.
        mean, rstd = mean.to(gamma.dtype), rstd.to(gamma.dtype)
        samples, channels, positions = case.shape[0], case.shape[1], math.prod(case.shape[2:])
        return lambda: aten.native_group_norm_backward(
            dy, x, mean, rstd, gamma, samples, channels, positions, case.num_groups, mask
        )
    if problem.device == "cpu":
        raise NotOffered("torch has no CPU kernel for it")
    if case.op is Op.BATCH_NORM_ELEMT:
        sums = (operands["sum_dy"], operands["sum_dy_xmu"], operands["counter"])
        return lambda: aten.batch_norm_backward_elemt(dy, x, mean, rstd, gamma, *sums)
    wants_sums = case.wanted[0] or case.wanted[1]
    return lambda: aten.batch_norm_backward_reduce(
        dy, x, mean, rstd, gamma, wants_sums, case.wanted[2], case.wanted[3]
    )


PEER = TorchEager()
