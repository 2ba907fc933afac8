"""The others, by the name that ``--peers`` takes. Each is imported only when it is asked for."""

import importlib
from typing import TYPE_CHECKING, Final

from normgrad.core.errors import OptionError

if TYPE_CHECKING:
    from normgrad.bench.contender import Peer

_MODULES: Final = {
    "torch": "torch_eager",
    "cudnn": "cudnn",
    "compile": "torch_compile",
    "liger": "liger",
    "flaggems": "flaggems",
    "jax": "jax_jit",
}
NAMES: Final = tuple(_MODULES)


def get(name: str) -> "Peer":
    """The peer of this name."""
    if name not in _MODULES:
        raise OptionError("peers", f"must be among {', '.join(NAMES)}", name)
    peer: Peer = importlib.import_module(f"normgrad.bench.peers.{_MODULES[name]}").PEER
    return peer
