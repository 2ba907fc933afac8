"""The host's processors at memory speed, through Numba. How it works: docs/cpu.md."""

from normgrad.backends.cpu.backend import BACKEND

__all__ = ["BACKEND"]
