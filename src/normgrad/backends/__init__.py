"""Who can compute, in which order they are asked, and where a new one is listed."""

import functools
import importlib
from typing import Any, Final

from normgrad.backends.base import Backend
from normgrad.core import options

__all__ = ["ALSO", "NAMES", "Backend", "chosen", "get", "preference"]

NAMES: Final = ("reference", "cpu", "cuda")
# What people call them.
ALSO: Final = {
    "reference": ("ref", "numpy"),
    "cpu": ("numba", "host"),
    "cuda": ("gpu", "nvidia", "triton"),
}


def chosen(backend: Any) -> str | None:
    """The option ``backend`` of a public function: a name, or None for the best."""
    name: str | None = options.choice("backend", backend, NAMES, none=True, also=ALSO)
    return name


@functools.cache
def get(name: str) -> Backend:
    """The backend of this name; its module is imported on first use."""
    module = importlib.import_module(f"normgrad.backends.{name}")
    backend: Backend = module.BACKEND
    return backend


def preference(device: str) -> tuple[str, ...]:
    """Which backends to ask for arrays on a device, best first."""
    return ("cuda",) if device.startswith("cuda") else ("cpu", "reference")
