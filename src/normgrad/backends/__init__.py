"""Who can compute, in which order they are asked, and where a new one is listed."""

import functools
import importlib
from typing import Final

from normgrad.backends.base import Backend

__all__ = ["NAMES", "Backend", "get", "preference"]

NAMES: Final = ("reference", "cpu", "cuda")


@functools.cache
def get(name: str) -> Backend:
    """The backend of this name; its module is imported on first use."""
    module = importlib.import_module(f"normgrad.backends.{name}")
    backend: Backend = module.BACKEND
    return backend


def preference(device: str) -> tuple[str, ...]:
    """Which backends to ask for arrays on a device, best first."""
    return ("cuda",) if device.startswith("cuda") else ("cpu", "reference")
