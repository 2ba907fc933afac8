"""PyTorch."""
from normgrad.torch import backward_ops, forward_ops
