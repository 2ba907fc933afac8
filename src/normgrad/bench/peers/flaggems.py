"""FlagGems' layer, group and batch norm."""

import importlib.util
import math

from normgrad.backends.base import broken
from normgrad.bench.contender import NotOffered, Runner, by_role
from normgrad.bench.problems import DeviceProblem
from normgrad.core.operators import OPERATORS, Op

_NEEDS = ("flag_gems", "yaml", "sqlalchemy", "packaging")


class FlagGems:
    """Triton operators for torch, called directly."""

    name = "flaggems"

    def unavailable(self, device: str) -> str | None:
        """The package with what it imports, and a GPU for its kernels."""
        if device == "cpu":
            return "its kernels need a GPU"
        missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            return f"{', '.join(missing)} not installed"
        return broken("flag_gems")

    def prepare(self, problem: DeviceProblem) -> Runner:
        """The functions that it registers for aten's backward operators."""
        case, operands = problem.workload.case, problem.operands
        if OPERATORS[case.op].forward or not OPERATORS[case.op].centred:
            raise NotOffered("only backward operators with a mean are called")
        dy, x, mean, rstd = (operands[role] for role in ("dy", "x", "mean", "rstd"))
        gamma = operands.get("gamma")
        if gamma is None:
            raise NotOffered("it is called with a weight alone")
        mask = list(case.wanted)
        if case.op is Op.LAYER_NORM_BACKWARD:
            from flag_gems.ops.layernorm import layer_norm_backward

            # It takes the first axis for the rows.
            tail = case.normalized_shape
            dy, x = dy.reshape(-1, math.prod(tail)), x.reshape(-1, math.prod(tail))
            mean, rstd = mean.reshape(-1), rstd.reshape(-1)
            return Runner(
                lambda: layer_norm_backward(dy, x, tail, mean, rstd, gamma, gamma, mask),
                lambda arrays: by_role(problem, arrays),
            )
        if case.op is Op.GROUP_NORM_BACKWARD:
            from flag_gems.ops.groupnorm import group_norm_backward

            sizes = (case.shape[0], case.shape[1], math.prod(case.shape[2:]), case.num_groups)
            return Runner(
                lambda: group_norm_backward(dy, x, mean, rstd, gamma, *sizes, mask),
                lambda arrays: by_role(problem, arrays),
            )
        if case.op is Op.BATCH_NORM_BACKWARD and case.training and case.wanted[0]:
            from flag_gems.ops.batch_norm import batch_norm_backward

            return Runner(
                lambda: batch_norm_backward(
                    dy, x, gamma, None, None, mean, rstd, True, case.eps, mask
                ),
                lambda arrays: by_role(problem, arrays),
            )
        raise NotOffered("FlagGems has layer, group and training batch norm alone")


PEER = FlagGems()
