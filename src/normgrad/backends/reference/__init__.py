"""The judge: NumPy in float64, on host memory."""

from normgrad.backends.reference.backend import BACKEND

__all__ = ["BACKEND"]
