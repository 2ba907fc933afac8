"""``torch.nn``'s normalization modules with our kernels.

Each is a subclass of torch's: constructor, parameters, buffers and state dict are inherited.
"""

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

import normgrad.torch.forward_ops  # noqa: F401  (defines the operators)
from normgrad.torch.activations import NO_ACTIVATION, After
from normgrad.torch.forward import check_vectors
from normgrad.torch.library import shortcut, statistics_dtype

Tensor = torch.Tensor


def _check_enough(input: Tensor, channels: int) -> None:
    # No channels, no elements: then the other sizes say how many values one would have.
    values = input.numel() if channels else math.prod((input.shape[0], *input.shape[2:]))
    if values == (channels or 1):
        msg = f"Expected more than 1 value per channel when training, got input size {input.shape}"
        raise ValueError(msg)


def check_eps(eps: float, of_batch: bool) -> None:
    """A batch's variance may be 0, a running one is given."""
    if eps < 0.0 or (of_batch and eps == 0.0):
        rule = "above 0 where a batch has its own statistics" if of_batch else "at least 0"
        msg = f"eps must be {rule}, got {eps}"
        raise ValueError(msg)


def batch_norm(
    module: _BatchNorm, input: Tensor, after: After = NO_ACTIVATION, shortcut: Tensor | None = None
) -> Tensor:
    """The forward pass of every batch norm module, without synchronization."""
    module._check_input_dim(input)
    buffers: tuple[Tensor | None, Tensor | None] = (module.running_mean, module.running_var)
    # Not by ==, which asks Tensor.__eq__: 12 to 19 of 43 us of a small inference.
    of_batch = module.training or (buffers[0] is None and buffers[1] is None)
    if module.training and not module.track_running_stats:
        buffers = (None, None)
    if of_batch:
        _check_enough(input, input.shape[1])
    check_eps(module.eps, of_batch)
    counted = module.training and module.track_running_stats
    tracked = module.num_batches_tracked if counted else None
    # Before the operator: a checkpoint that recomputes the layer stops where it has what it needs.
    if tracked is not None:
        tracked.add_(1)
    momentum = module.momentum
    if momentum is None:  # a plain average over all batches so far
        momentum = 0.0 if tracked is None else 1.0 / float(tracked)
    settings = (module.weight, module.bias, *buffers, of_batch, momentum, module.eps)
    y: Tensor
    if shortcut is not None:
        y = torch.ops.normgrad.batch_norm_add.default(input, shortcut, *settings, *after)[0]
    elif after[0] is None:
        y = torch.ops.normgrad.batch_norm.default(input, *settings)[0]
    else:
        y = torch.ops.normgrad.batch_norm.default(input, *settings, *after)[0]
    return y


class Ours:
    """What our modules have beside torch's: types for editors, and words for a compiler."""

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor:
            """Torch's module says that it takes and returns anything."""
            raise NotImplementedError

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by ``torch.jit.script``, whose own words would be about lines of this file."""
        msg = (
            f"torch.jit.script cannot compile normgrad.torch.{type(self).__name__}: call "
            "normgrad.torch.revert(model) before, or use torch.jit.trace or torch.export"
        )
        raise NotImplementedError(msg)


class BatchNorm1d(Ours, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.BatchNorm1d(3)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over all axes but the channels'."""
        return batch_norm(self, input)


class BatchNorm2d(Ours, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.BatchNorm2d(3)(torch.randn(2, 3, 5, 5)).shape
        torch.Size([2, 3, 5, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over all axes but the channels'."""
        return batch_norm(self, input)


class BatchNorm3d(Ours, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.BatchNorm3d(3)(torch.randn(2, 3, 5, 5, 5)).shape
        torch.Size([2, 3, 5, 5, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over all axes but the channels'."""
        return batch_norm(self, input)


_layer_norm = shortcut("layer_norm")


class LayerNorm(Ours, nn.LayerNorm):
    """``torch.nn.LayerNorm`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.LayerNorm(5)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over the last axes."""
        y: Tensor = _layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)[0]
        return y


_rms_norm = shortcut("rms_norm")


class RMSNorm(Ours, nn.RMSNorm):
    """``torch.nn.RMSNorm`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.RMSNorm(5)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last axes."""
        y: Tensor = _rms_norm(x, self.normalized_shape, self.weight, self.eps)[0]
        return y


class GroupNorm(Ours, nn.GroupNorm):
    """``torch.nn.GroupNorm`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.GroupNorm(2, 4)(torch.randn(2, 4, 5, 5)).shape
        torch.Size([2, 4, 5, 5])
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over each sample's groups of channels."""
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    after: After = NO_ACTIVATION,
) -> Tensor:
    """The forward pass of group norm; not of a module, which torch.fx may be tracing itself."""
    _check_enough(input, num_groups)  # torch's words, also where it does not train
    settings: tuple[Any, ...] = (weight, bias, num_groups, eps)
    if after[0] is not None:
        settings = (*settings, *after)
    y: Tensor = torch.ops.normgrad.group_norm.default(input, *settings)[0]
    return y


def instance_norm(module: _InstanceNorm, input: Tensor) -> Tensor:
    """The forward pass of every instance norm module, on input with a batch axis."""
    running_mean, running_var = module.running_mean, module.running_var
    # Before anything is written: one channel would spread over all buffers.
    check_vectors(input, running_mean=running_mean, running_var=running_var)
    if module.track_running_stats and not module.training:  # as batch norm's inference
        buffers = (_as_read(running_mean, input), _as_read(running_var, input))
        y: Tensor = torch.ops.normgrad.batch_norm.default(
            input, _kept(module.weight), module.bias, *buffers, False, 0.0, module.eps
        )[0]
        return y
    if math.prod(input.shape[2:]) == 1:  # a batch of nothing passes, as in torch
        shape = tuple(input.shape)
        msg = f"Expected more than 1 spatial element when training, got input size {shape}"
        raise ValueError(msg)
    if (running_mean is None) != (running_var is None):
        msg = "running_mean and running_var belong together: one of them is None, the other is not"
        raise ValueError(msg)
    # To torch it is a batch norm, which autocast leaves alone; group norm's data become float32.
    cast = input.is_cuda and torch.is_autocast_enabled("cuda")
    with torch.autocast("cuda", enabled=False) if cast else nullcontext():
        y, mean, _ = torch.ops.normgrad.group_norm.default(
            input, _kept(module.weight), module.bias, input.shape[1] or 1, module.eps
        )  # no channels: one group of none
    if running_mean is not None and input.numel():
        _track_instances(module, input.detach(), mean.detach())
    return y


def _as_read(buffer: Tensor | None, input: Tensor) -> Tensor | None:
    """A buffer for instance norm's inference; torch takes any type there."""
    if buffer is None:
        return None
    dtype = input.dtype if buffer.dtype == input.dtype else statistics_dtype(input.dtype)
    return _kept(buffer, dtype)


def _kept(one: Tensor | None, dtype: torch.dtype | None = None) -> Tensor | None:
    """What backward will read: a copy, as in torch, where training may go on before."""
    if one is None:
        return None
    # A trace has it with and without grad, or torch.jit.trace's check, which makes a second one
    # without, finds that they differ.
    copy = torch.is_grad_enabled() or torch._C._get_tracing_state() is not None
    if dtype is None or dtype == one.dtype:
        return one.clone() if copy else one  # half the time of `to`
    return one.to(dtype)


def _track_instances(module: _InstanceNorm, input: Tensor, mean: Tensor) -> None:
    """The buffers follow the samples' average mean and unbiased variance."""
    # The variance of the data: 1/std does not know what is small beside eps. Not by torch's var:
    # it took 3.0 of 3.3 ms of a forward pass of 8x64x32x32, on a core of an AMD EPYC.
    axes, count = tuple(range(2, input.dim())), math.prod(input.shape[2:])
    # Not in place: under vmap over parameters alone the mean is mapped, the data are not.
    deviations = input - mean.reshape(*mean.shape, *(1 for _ in axes))
    rounded = deviations.sum(axes)  # not 0: what the mean lost when it was rounded, as often
    variance = (deviations.square().sum(axes) - rounded.square() / count) / (count - 1)
    assert module.running_mean is not None
    assert module.running_var is not None
    step = module.momentum or 0.0
    for buffer, values in ((module.running_mean, mean), (module.running_var, variance)):
        # One write, and not of the buffer alone: a FakeTensorMode would let that through.
        buffer.copy_(buffer.lerp(values.mean(0).to(buffer.dtype), step))


def checked_instance_norm(module: _InstanceNorm, input: Tensor) -> Tensor:
    """Torch's forward pass: checks of shapes, and a batch axis where there is none."""
    return _InstanceNorm.forward(module, input)


class _Instances(Ours, _InstanceNorm):
    def forward(self, input: Tensor) -> Tensor:
        return checked_instance_norm(self, input)

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        return instance_norm(self, input)


class InstanceNorm1d(_Instances, nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.InstanceNorm1d(3)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """


class InstanceNorm2d(_Instances, nn.InstanceNorm2d):
    """``torch.nn.InstanceNorm2d`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.InstanceNorm2d(3)(torch.randn(2, 3, 5, 5)).shape
        torch.Size([2, 3, 5, 5])
    """


class InstanceNorm3d(_Instances, nn.InstanceNorm3d):
    """``torch.nn.InstanceNorm3d`` with our kernels; arguments and results are its own.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.InstanceNorm3d(3)(torch.randn(2, 3, 5, 5, 5)).shape
        torch.Size([2, 3, 5, 5, 5])
    """


# To torch.fx each is one call: they look at shapes, which symbolic tracing does not have.
for _name in ("batch_norm", "group_norm", "checked_instance_norm"):
    torch.fx.wrap(_name)
