"""The CUDA backend."""

from normgrad.backends.cuda.backend import BACKEND

__all__ = ["BACKEND"]
