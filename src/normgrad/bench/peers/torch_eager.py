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
    dy, x, mean, rstd = (operands[role] for role in ("dy", "x", "mean", "rstd"))
    gamma = operands.get("gamma")
    mask = list(case.wanted)
    if case.training and case.statistic == "variance":
        raise NotOffered("torch has saved 1/sqrt(variance + eps) alone")
    bare = gamma is None and case.op in (Op.LAYER_NORM, Op.GROUP_NORM)
    if bare and (case.wanted[1] or case.wanted[2]):
        raise NotOffered("torch has no parameter gradients without a weight")
    # What the forward pass saves: on the GPU float32 whatever the data's type, except that
    # group norm's kernel reads the type of its data. The values stay the same.
    if problem.device != "cpu":
        saved = x.dtype if case.op is Op.GROUP_NORM else torch.promote_types(x.dtype, torch.float32)
        mean, rstd = mean.to(saved), rstd.to(saved)
    if case.op is Op.BATCH_NORM:
        pair = (None, None, mean, rstd) if case.training else (mean, rstd, None, None)
        return lambda: aten.native_batch_norm_backward(
            dy, x, gamma, *pair, case.training, case.eps, mask
        )
    if case.op is Op.LAYER_NORM:
        tail = list(case.normalized_shape)
        beta = None if gamma is None else torch.zeros_like(gamma)
        return lambda: aten.native_layer_norm_backward(dy, x, tail, mean, rstd, gamma, beta, mask)
    if case.op is Op.GROUP_NORM:
        samples, channels, positions = case.shape[0], case.shape[1], math.prod(case.shape[2:])
        sizes = (samples, channels, positions, case.num_groups)
        # As autograd calls it: the kernel reads dense data alone, on the GPU channels first.
        form = torch.contiguous_format
        if problem.device == "cpu" and x.is_contiguous(memory_format=_last(x)):
            form = _last(x)
            if form is not torch.contiguous_format and not case.wanted[0]:
                raise NotOffered("without grad_input torch 2.13 ends the process here")
        return lambda: aten.native_group_norm_backward(
            dy.contiguous(memory_format=form),
            x.contiguous(memory_format=form),
            mean,
            rstd,
            gamma,
            *sizes,
            mask,
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


def _last(x: torch.Tensor) -> torch.memory_format:
    """Channels-last for the rank of x, where torch has a word for it."""
    words = {4: torch.channels_last, 5: torch.channels_last_3d}
    return words.get(x.ndim, torch.contiguous_format)


PEER = TorchEager()
