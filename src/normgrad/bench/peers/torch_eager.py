"""torch's own operators, called without autograd around them where there is one."""

import functools
import math
from typing import Any

import torch

from normgrad.bench.contender import NotOffered, Runner, by_role
from normgrad.bench.peers.eager_pieces import around_backward, around_forward, refuse
from normgrad.bench.problems import DeviceProblem
from normgrad.core.operators import OPERATORS, Op

aten = torch.ops.aten


class TorchEager:
    """The kernels behind ``model(input)`` and ``loss.backward()``."""

    name = "torch"

    def unavailable(self, device: str) -> str | None:
        """It made the data: it is there."""
        return None

    def prepare(self, problem: DeviceProblem) -> Runner:
        """The native operator with the types that its forward would have saved."""
        forward = OPERATORS[problem.workload.case.op].forward
        refuse(problem.workload.case)
        norm = _forward(problem) if forward else _call(problem)
        if problem.workload.case.fused:
            around = around_forward if forward else around_backward
            call = around(problem, norm)
        else:
            data = problem.operands["x" if forward else "dy"]
            call = functools.partial(norm, data)
        return Runner(call, lambda arrays: by_role(problem, arrays))


def _forward(problem: DeviceProblem) -> Any:
    case, operands = problem.workload.case, problem.operands
    gamma, beta = operands.get("gamma"), operands.get("beta")
    if not all(case.wanted):
        raise NotOffered("torch leaves out no result of a forward pass")
    if case.op is Op.BATCH_NORM:
        # As its modules call it: cuDNN where torch thinks it the better one.
        settings = (None, None, True, 0.1, case.eps, True)
        return lambda x: aten._batch_norm_impl_index(x, gamma, beta, *settings)[:3]
    if case.op is Op.LAYER_NORM:
        tail = list(case.normalized_shape)
        return lambda x: aten.native_layer_norm(x, tail, gamma, beta, case.eps)
    if case.op is Op.RMS_NORM:
        tail = list(case.normalized_shape)
        return lambda x: aten._fused_rms_norm(x, tail, gamma, case.eps)
    if case.op is Op.GROUP_NORM:
        sizes = (case.shape[0], case.shape[1], math.prod(case.shape[2:]), case.num_groups)
        # As its function calls it: on the GPU channels first.
        form = _last(operands["x"]) if problem.device == "cpu" else torch.contiguous_format
        return lambda x: aten.native_group_norm(
            x.contiguous(memory_format=form if _lies(x, form) else torch.contiguous_format),
            gamma,
            beta,
            *sizes,
            case.eps,
        )
    if problem.device == "cpu":
        raise NotOffered("torch has no CPU kernel for it")
    if case.op is Op.BATCH_NORM_ELEMT:
        mean, rstd = operands["mean"], operands["rstd"]
        return lambda x: aten.batch_norm_elemt(x, gamma, beta, mean, rstd, case.eps)
    raise NotOffered("torch gives 1/sqrt(variance + eps), not the variance")


def _call(problem: DeviceProblem) -> Any:
    case, operands = problem.workload.case, problem.operands
    x, rstd = operands["x"], operands["rstd"]
    mean = operands.get("mean", rstd)
    gamma = operands.get("gamma")
    mask = list(case.wanted[: len(OPERATORS[case.op].gives)])
    if case.training and case.statistic == "variance":
        raise NotOffered("torch has saved 1/sqrt(variance + eps) alone")
    bare = gamma is None and case.op in (Op.LAYER_NORM_BACKWARD, Op.GROUP_NORM_BACKWARD)
    if bare and (case.wanted[1] or case.wanted[2]):
        raise NotOffered("torch has no parameter gradients without a weight")
    # What the forward pass saves: on the GPU float32 whatever the data's type, except that
    # group norm's kernel reads the type of its data. The values stay the same.
    if problem.device != "cpu":
        saved = (
            x.dtype
            if case.op is Op.GROUP_NORM_BACKWARD
            else torch.promote_types(x.dtype, torch.float32)
        )
        mean, rstd = mean.to(saved), rstd.to(saved)
    if case.op is Op.BATCH_NORM_BACKWARD:
        pair = (None, None, mean, rstd) if case.training else (mean, rstd, None, None)
        return lambda dy: aten.native_batch_norm_backward(
            dy, x, gamma, *pair, case.training, case.eps, mask
        )
    if case.op is Op.RMS_NORM_BACKWARD:
        shape = list(case.normalized_shape)
        if problem.device == "cpu":
            return _rms_norm_in_pieces(problem, shape)
        return lambda dy: aten._fused_rms_norm_backward(dy, x, shape, rstd, gamma, mask)
    if case.op is Op.LAYER_NORM_BACKWARD:
        tail = list(case.normalized_shape)
        beta = None if gamma is None else torch.zeros_like(gamma)
        return lambda dy: aten.native_layer_norm_backward(
            dy, x, tail, mean, rstd, gamma, beta, mask
        )
    if case.op is Op.GROUP_NORM_BACKWARD:
        samples, channels, positions = case.shape[0], case.shape[1], math.prod(case.shape[2:])
        sizes = (samples, channels, positions, case.num_groups)
        # As autograd calls it: the kernel reads dense data alone, on the GPU channels first.
        form = torch.contiguous_format
        if problem.device == "cpu" and x.is_contiguous(memory_format=_last(x)):
            form = _last(x)
            if form is not torch.contiguous_format and not case.wanted[0]:
                raise NotOffered("without grad_input torch 2.13 ends the process here")
        return lambda dy: aten.native_group_norm_backward(
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
    if case.op is Op.BATCH_NORM_ELEMT_BACKWARD:
        sums = (operands["sum_dy"], operands["sum_dy_xmu"], operands["counter"])
        return lambda dy: aten.batch_norm_backward_elemt(dy, x, mean, rstd, gamma, *sums)
    wants_sums = case.wanted[0] or case.wanted[1]
    return lambda dy: aten.batch_norm_backward_reduce(
        dy, x, mean, rstd, gamma, wants_sums, case.wanted[2], case.wanted[3]
    )


def _rms_norm_in_pieces(problem: DeviceProblem, shape: list[int]) -> Any:
    """Autograd's backward pass: on the CPU torch has no operator for it."""
    case = problem.workload.case
    if case.weight_offset:
        raise NotOffered("torch's weight has no offset")
    x, gamma = problem.operands["x"].detach(), problem.operands.get("gamma")
    gamma = None if gamma is None else gamma.detach()
    if gamma is None and case.wanted[1]:
        raise NotOffered("torch has no parameter gradients without a weight")
    pairs = zip(("x", "gamma"), (x, gamma), case.wanted, strict=True)
    leaves = {
        role: one.requires_grad_() for role, one, wanted in pairs if wanted and one is not None
    }
    y = torch.rms_norm(x, shape, gamma, case.eps)

    def call(dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = torch.autograd.grad(y, tuple(leaves.values()), dy, retain_graph=True)
        named = dict(zip(leaves, grads, strict=True))
        return named.get("x"), named.get("gamma")

    return call


def _lies(x: torch.Tensor, form: torch.memory_format) -> bool:
    return x.is_contiguous(memory_format=form)


def _last(x: torch.Tensor) -> torch.memory_format:
    """Channels-last for the rank of x, where torch has a word for it."""
    words = {4: torch.channels_last, 5: torch.channels_last_3d}
    return words.get(x.ndim, torch.contiguous_format)


PEER = TorchEager()
