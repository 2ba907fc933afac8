"""The functional API inside torch.compile: a break in the graph, around all of a call."""

from typing import Any, Final

import torch

from normgrad.calls.dispatch import compute

# With fullgraph=True a break is an error, and this a part of its message.
_REASON = "only torch.ops.normgrad and the modules of normgrad.torch stay in a whole graph"
compute_outside: Final[Any] = torch.compiler.disable(compute, reason=_REASON)
