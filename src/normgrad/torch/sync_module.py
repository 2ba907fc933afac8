"""``SyncBatchNorm``: batch norm over the batch of all ranks."""

from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

import normgrad.torch.sync_ops  # noqa: F401  (defines the operators)
from normgrad.calls.fused import NEGATIVE_SLOPE, after_norm
from normgrad.calls.signatures import explained
from normgrad.core.errors import ArrayTypeError
from normgrad.core.options import described
from normgrad.torch.activations import NO_ACTIVATION, After, activated, told
from normgrad.torch.forward import check_vectors
from normgrad.torch.modules import Ours, batch_norm, check_eps
from normgrad.torch.statistics import Joined

Tensor = torch.Tensor
Model = TypeVar("Model", bound=nn.Module)


class SyncBatchNorm(Ours, _BatchNorm):
    """``torch.nn.SyncBatchNorm``, on the CPU too: its arguments, state dict, results and errors.

    Not a subclass of torch's: DistributedDataParallel refuses that one on the CPU. Where
    ``torch.distributed`` does not run it is a plain batch norm.

    Args:
        num_features: The number of channels.
        eps: What is added to the variance.
        momentum: How far the running statistics move; None means their plain average.
        affine: Whether it has a weight and a bias.
        track_running_stats: Whether it has running statistics.
        process_group: The ranks that share statistics; None means all.
        device: Of parameters and buffers.
        dtype: Of parameters and buffers.
        activation: What follows in the same node: None, "relu", "relu6", "leaky_relu", "silu",
            "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        bias: What newer versions of torch take.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.SyncBatchNorm(3)(torch.randn(2, 3, 5, 5)).shape
        torch.Size([2, 3, 5, 5])
    """

    after: After = NO_ACTIVATION

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        negative_slope: float = NEGATIVE_SLOPE,
        **bias: bool,  # newer versions of torch take ``bias``
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, **bias
        )
        self.process_group = process_group
        if activation is not None:
            self.after = after_norm(activation, negative_slope)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            msg = f"expected at least 2D input (got {input.dim()}D input)"
            raise ValueError(msg)
        if input.shape[1] == 0:
            msg = "SyncBatchNorm number of input channels should be non-zero"
            raise ValueError(msg)

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
            """As ``forward``."""
            raise NotImplementedError

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalize by the statistics of all ranks' batches together; add, activate.

        A sum is an operator of its own, and so is what follows it.
        """
        if shortcut is None:
            return sync_batch_norm(self, input, self.after)
        return activated(sync_batch_norm(self, input) + shortcut, *self.after)

    def extra_repr(self) -> str:
        """The arguments."""
        after = "" if self.after[0] is None else f", {told(self.after)}"
        return f"{_BatchNorm.extra_repr(self)}{after}"

    def _track(self, joined: Joined) -> None:
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        # Without a momentum a plain average over all batches so far; the device knows how many.
        batches = self.num_batches_tracked if self.momentum is None else None
        if self.running_mean is not None and self.running_var is not None:
            torch.ops.normgrad.sync_batch_norm_track.default(
                self.running_mean, self.running_var, *joined, self.momentum or 0.0, batches
            )


def sync_batch_norm(module: SyncBatchNorm, input: Tensor, after: After = NO_ACTIVATION) -> Tensor:
    """The forward pass."""
    group = _group_to_join(module.process_group) if module.training else None
    if group is None:
        return batch_norm(module, input, after)
    module._check_input_dim(input)
    check_vectors(input, running_mean=module.running_mean, running_var=module.running_var)
    check_eps(module.eps, of_batch=True)
    y, mean, _, variance, count = torch.ops.normgrad.sync_batch_norm.default(
        input, module.weight, module.bias, module.eps, group, *after
    )
    # The collective is behind us: from here on nothing can fail on one rank alone.
    if module.track_running_stats:
        module._track(Joined(mean, variance, count))
    output: Tensor = y
    return output


torch.fx.wrap("sync_batch_norm")  # to torch.fx one call, as those of the other modules


def _group_to_join(group: Any) -> str | None:
    """The name of the process group; None where there is nobody to synchronize with."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    group = dist.group.WORLD if group is None else group
    if group is None or dist.get_world_size(group) < 2:
        return None
    name: str = group.group_name
    return name


def check_module(model: object) -> None:
    """Refuse what has no modules."""
    if not isinstance(model, nn.Module):
        raise ArrayTypeError("model", "must be a torch.nn.Module", described(model))


@explained
def convert_sync_batchnorm(model: Model, process_group: Any = None) -> Model:
    """Turn every batch norm of a model into a ``SyncBatchNorm``, in place.

    Parameters, buffers, hooks and the modules themselves stay the objects that they were.

    Args:
        model: A model, or one batch norm module, which may be a subclass of torch's.
        process_group: The ranks that share statistics; None means all.

    Returns:
        The model itself.

    Raises:
        ArrayTypeError: ``model`` is no ``torch.nn.Module``.
        ValueError: A module cannot change its class: lazy, parametrized or sharded. Nothing was
            changed.

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8))
        >>> type(normgrad.torch.convert_sync_batchnorm(model)[1])
        <class 'normgrad.torch.sync_module.SyncBatchNorm'>
    """
    check_module(model)
    found = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    for module in found:
        refusal = _needs_its_class(module)
        if refusal is not None:
            msg = f"a {type(module).__name__} {refusal}"
            raise ValueError(msg)
    for module in found:
        object.__setattr__(module, "__class__", SyncBatchNorm)
        module.process_group = process_group
    return model


def _needs_its_class(module: _BatchNorm) -> str | None:
    """Why the class of a module cannot be changed: what it does besides would be lost."""
    if isinstance(module, LazyModuleMixin):
        return "that has seen no data has no parameters: call the model once before"
    if parametrize.is_parametrized(module):
        return "gets its parameters from its class: remove the parametrizations before"
    if any(base.__module__.startswith("torch.distributed.") for base in type(module).__mro__):
        return "is sharded or replicated by its class: convert the model before that"
    if module._modules:
        names = ", ".join(module._modules)
        return f"holds {names}, which its own class calls: put a plain batch norm and those apart"
    return None
