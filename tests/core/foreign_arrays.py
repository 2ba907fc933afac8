"""Arrays that are not plain ones. Most stand in for JAX: a library we know nothing of, reachable
through DLPack alone.
"""

import types

import numpy as np
import torch

from normgrad.arrays import dlpack, host_memory
from normgrad.core.spec import TensorSpec


class Foreign:
    """Immutable memory behind ``__dlpack__``; bfloat16 too, which NumPy's own DLPack lacks."""

    def __init__(self, tensor: TensorSpec, address: int, owner: object) -> None:
        self.tensor, self.address, self.owner = tensor, address, owner
        self.reads = 0

    @classmethod
    def of(cls, values, dtype):
        array = np.ascontiguousarray(host_memory.narrow(np.asarray(values, np.float64), dtype))
        tensor = TensorSpec.contiguous(array.shape, dtype)
        return cls(tensor, array.__array_interface__["data"][0], array)

    @property
    def values(self):
        return host_memory.widen(host_memory.view(self.address, self.tensor), self.tensor.dtype)

    def __dlpack_device__(self):
        return (dlpack.CPU, 0)

    def __dlpack__(self, *, stream=None, max_version=None):
        self.reads += 1
        exporter = dlpack.Exporter(self.tensor, self.address, self.owner)
        return exporter.__dlpack__()

    def __array_namespace__(self, api_version=None):
        return types.SimpleNamespace(from_dlpack=from_dlpack)


class Old(Foreign):
    """A producer from before DLPack 1.0, whose library is found by its module."""

    __array_namespace__ = None

    def __dlpack__(self, stream=None):
        return super().__dlpack__()


del Old.__array_namespace__


class Writable:
    """Memory that says through DLPack 1.0 that it may be written."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (dlpack.CPU, 0)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)


class Copying(Writable):
    """Memory that is copied on its way out; ``honest`` says so when it is asked not to."""

    def __init__(self, array, *, honest):
        super().__init__(array)
        self.honest = honest

    def __dlpack__(self, *, copy=None, **options):
        if copy is False and self.honest:
            msg = "cannot do without a copy"
            raise BufferError(msg)
        return self.array.__dlpack__(copy=True, **options)


class Wrapped(torch.Tensor):
    """A subclass of somebody's, with nothing of its own."""


def from_dlpack(array):
    """What the imagined library makes of any producer."""
    tensor, address, owner, _ = dlpack.read(array, "array")
    return Foreign(tensor, address, owner)
