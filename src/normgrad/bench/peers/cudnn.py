"""cuDNN's batch norm backward, through torch."""

from typing import Any

import torch

from normgrad.bench.contender import NotOffered, Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.core.operators import OPERATORS, Op


class Cudnn:
    """What torch uses for batch norm in training where it thinks cuDNN the better one."""

    name = "cudnn"

    def unavailable(self, device: str) -> str | None:
        """It needs a GPU and the library."""
        if device == "cpu":
            return "it needs an NVIDIA GPU"
        built: Any = torch.backends.cudnn
        return None if built.is_available() else "torch was built without it"

    def prepare(self, problem: DeviceProblem) -> Runner:
        """All three gradients of training; the reserve comes from a forward pass."""
        case, operands = problem.workload.case, problem.operands
        if case.op is not Op.BATCH_NORM_BACKWARD or not case.training or not all(case.wanted):
            raise NotOffered("cuDNN has batch norm in training, all three gradients, alone")
        if OPERATORS[case.op].forward or not OPERATORS[case.op].centred:
            raise NotOffered("only backward operators with a mean are called")
        dy, x, mean, rstd = (operands[role] for role in ("dy", "x", "mean", "rstd"))
        gamma = operands.get("gamma")
        if gamma is None:
            raise NotOffered("it is called with a weight alone")
        beta = torch.zeros_like(gamma)
        forward = torch.ops.aten.cudnn_batch_norm(x, gamma, beta, None, None, True, 0.1, case.eps)
        reserve = forward[3]
        return Runner(
            lambda: torch.ops.aten.cudnn_batch_norm_backward(
                x, dy, gamma, None, None, mean, rstd, case.eps, reserve
            ),
            lambda arrays: by_role(problem, arrays),
        )


PEER = Cudnn()
