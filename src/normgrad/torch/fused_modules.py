"""Norms with what is around them as one module; parameters and state dicts are torch's."""

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from normgrad.core import options
from normgrad.core.operators import ACTIVATIONS
from normgrad.torch import modules
from normgrad.torch.activations import After, told
from normgrad.torch.library import shortcut as shortcut_to

Tensor = torch.Tensor
_SLOPE: Final = 0.01  # torch's, of leaky ReLU


def _after(activation: str, negative_slope: float) -> After:
    options.choice("activation", activation, ACTIVATIONS)
    return activation, options.number("negative_slope", negative_slope)


class BatchNormAct2d(modules.Ours, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d``, a shortcut if one is given, and an activation, in one node.

    Its call is ``activation(norm(input) + shortcut)``. What the backward pass needs of the
    activation is computed again, or read from a bit for each element; nothing else is kept.

    Args:
        num_features: The number of channels.
        activation: "relu", "relu6", "leaky_relu", "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        options: The other arguments of ``torch.nn.BatchNorm2d``.

    Example:
        >>> import torch, normgrad.torch
        >>> norm = normgrad.torch.BatchNormAct2d(3)
        >>> norm(torch.randn(2, 3, 5, 5), torch.randn(2, 3, 5, 5)).shape
        torch.Size([2, 3, 5, 5])
    """

    def __init__(
        self,
        num_features: int,
        activation: str = "relu",
        negative_slope: float = _SLOPE,
        **options: Any,
    ) -> None:
        super().__init__(num_features, **options)
        self.after = _after(activation, negative_slope)

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
            """As ``forward``."""
            raise NotImplementedError

    def forward(self, input: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalize over all axes but the channels', add, activate."""
        return modules.batch_norm(self, input, self.after, shortcut)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{nn.BatchNorm2d.extra_repr(self)}, {told(self.after)}"


class GroupNormAct(modules.Ours, nn.GroupNorm):
    """``torch.nn.GroupNorm`` and an activation, in one node.

    Args:
        num_groups: How many groups the channels form.
        num_channels: The number of channels.
        activation: "relu", "relu6", "leaky_relu", "silu", "gelu", "gelu_tanh" or "hardswish".
        negative_slope: That of "leaky_relu".
        options: The other arguments of ``torch.nn.GroupNorm``.

    Example:
        >>> import torch, normgrad.torch
        >>> normgrad.torch.GroupNormAct(2, 4)(torch.randn(2, 4, 5, 5)).shape
        torch.Size([2, 4, 5, 5])
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        activation: str = "silu",
        negative_slope: float = _SLOPE,
        **options: Any,
    ) -> None:
        super().__init__(num_groups, num_channels, **options)
        self.after = _after(activation, negative_slope)

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over each sample's groups of channels, activate."""
        settings = (self.weight, self.bias, self.eps, self.after)
        return modules.group_norm(input, self.num_groups, *settings)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, {told(self.after)}"


_add_layer_norm = shortcut_to("add_layer_norm")
_add_rms_norm = shortcut_to("add_rms_norm")


class AddLayerNorm(modules.Ours, nn.LayerNorm):
    """A sum and its layer norm in one node; the constructor is ``torch.nn.LayerNorm``'s.

    Its call gives ``(norm(input + residual), input + residual)``. The sum goes on as the next
    residual, and the gradient that comes back along it is taken in by the norm's backward pass.

    Example:
        >>> import torch, normgrad.torch
        >>> norm = normgrad.torch.AddLayerNorm(4)
        >>> y, residual = norm(torch.ones(2, 4), torch.ones(2, 4))
        >>> residual[0]
        tensor([2., 2., 2., 2.], grad_fn=<SelectBackward0>)
    """

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            """As ``forward``."""
            raise NotImplementedError

    def forward(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Add, and normalize the sum over the last axes."""
        settings = (self.normalized_shape, self.weight, self.bias, self.eps)
        y, added, *_ = _add_layer_norm(input, residual, *settings)
        return y, added


class AddRMSNorm(modules.Ours, nn.RMSNorm):
    """A sum and its RMS norm in one node; the constructor is ``torch.nn.RMSNorm``'s.

    Its call gives ``(norm(input + residual), input + residual)``, as ``AddLayerNorm``'s.

    Example:
        >>> import torch, normgrad.torch
        >>> norm = normgrad.torch.AddRMSNorm(4)
        >>> y, residual = norm(torch.ones(2, 4), torch.ones(2, 4))
        >>> y.shape, residual.shape
        (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    if TYPE_CHECKING:

        def __call__(self, input: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            """As ``forward``."""
            raise NotImplementedError

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Add, and normalize the sum over the last axes."""
        settings = (self.normalized_shape, self.weight, self.eps)
        y, added, _ = _add_rms_norm(x, residual, *settings)
        return y, added


torch.fx.wrap("_add_layer_norm")
torch.fx.wrap("_add_rms_norm")
