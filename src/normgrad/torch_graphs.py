"""The functional API inside torch.compile: a break in the graph, around all of a call."""

from typing import Any, Final

import torch

from normgrad.dispatch import compute

compute_outside: Final[Any] = torch.compiler.disable(compute)
