"""The host's processors at memory speed, through Numba. Read docs/contributors/cpu.md."""

from normgrad.backends.cpu.backend import BACKEND

__all__ = ["BACKEND"]
