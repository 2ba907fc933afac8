"""GPU memory by way of torch. Imported only where a CUDA device is asked for."""

import ctypes
from typing import Any

import numpy as np
import torch

from normgrad.arrays import host_memory
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.spec import TensorSpec, device_index
from normgrad.device import HOST_SOURCE, HOST_TARGET, no_room


class CudaEvent:
    """torch's, with its time."""

    def __init__(self, memory: "CudaMemory") -> None:
        self._memory = memory
        self.event = torch.cuda.Event(enable_timing=True)

    def record(self, stream: int) -> None:
        """On the stream."""
        self.event.record(self._memory.stream(stream))

    def finished(self) -> bool:
        """Asked of the event."""
        return bool(self.event.query())

    def wait(self) -> None:
        """The host waits."""
        self.event.synchronize()

    def hold(self, stream: int) -> None:
        """The stream waits, the host does not."""
        self._memory.stream(stream).wait_event(self.event)

    def milliseconds_since(self, start: "CudaEvent") -> float:
        """By the GPU's clock."""
        return float(start.event.elapsed_time(self.event))


class CudaMemory:
    """The memory of one GPU."""

    def __init__(self, device: str) -> None:
        index = device_index(device)
        if index >= torch.cuda.device_count():
            msg = f"there is no device {device}: torch sees {torch.cuda.device_count()} GPUs"
            raise RuntimeError(msg)
        self.device = f"cuda:{index}"
        self._index = index

    def allocate(self, nbytes: int) -> tuple[object, int]:
        """From torch's allocator, whose blocks start at multiples of 512 bytes."""
        try:
            memory = torch.empty(max(nbytes, 1), dtype=torch.uint8, device=self.device)
        except (torch.OutOfMemoryError, TypeError) as error:  # or more bytes than torch counts
            raise no_room(nbytes, self.device) from error
        return memory, memory.data_ptr()

    def copy(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        """Copy on the stream; host memory is never pinned, so such a copy waits by itself."""
        to = _host(target, nbytes) if kind in HOST_TARGET else self._bytes(target, nbytes)
        by = _host(source, nbytes) if kind in HOST_SOURCE else self._bytes(source, nbytes)
        with torch.cuda.device(self._index), torch.cuda.stream(self.stream(stream)):
            to.copy_(by)

    def fill(self, target: int, value: int, nbytes: int, stream: int) -> None:
        """Fill on the stream."""
        with torch.cuda.device(self._index), torch.cuda.stream(self.stream(stream)):
            self._bytes(target, nbytes).fill_(value & 0xFF)

    def copy_view(
        self,
        target: int,
        target_tensor: TensorSpec,
        source: int,
        source_tensor: TensorSpec,
        stream: int,
    ) -> None:
        """As torch tensors. torch has no negative strides: such axes are read backwards."""
        backwards = [axis for axis, step in enumerate(target_tensor.strides) if step < 0]
        with torch.cuda.device(self._index), torch.cuda.stream(self.stream(stream)):
            by = self._tensor(source, source_tensor)
            self._tensor(target, target_tensor).copy_(by.flip(backwards) if backwards else by)

    def new_stream(self) -> tuple[object, int]:
        """A stream of its own."""
        stream = torch.cuda.Stream(device=self._index)
        return stream, int(stream.cuda_stream)

    def new_event(self) -> CudaEvent:
        """One that no stream has recorded yet."""
        return CudaEvent(self)

    def room(self) -> tuple[int, int]:
        """What the driver says."""
        free, total = torch.cuda.mem_get_info(self._index)
        return int(free), int(total)

    def synchronize(self, stream: int | None) -> None:
        """Wait for one stream (0 is the default stream), or for the device."""
        if stream is None:
            torch.cuda.synchronize(self._index)
        else:
            self.stream(stream).synchronize()

    def finished(self, stream: int) -> bool:
        """Asked of the stream."""
        return bool(self.stream(stream).query())

    def stream(self, stream: int) -> Any:
        """Torch's object for a stream's number; 0 is the default stream."""
        if stream == 0:
            return torch.cuda.default_stream(self._index)
        return torch.cuda.ExternalStream(stream, device=self._index)

    def _bytes(self, address: int, nbytes: int) -> Any:
        return self._from_interface(address, (nbytes,), (1,), "|u1")

    def _tensor(self, address: int, tensor: TensorSpec) -> Any:
        """The bits of a tensor as integers, so that every type travels alike."""
        itemsize = ITEMSIZE[tensor.dtype]
        low, _ = host_memory.byte_range(tensor)
        strides = tuple(abs(step) * itemsize for step in tensor.strides)
        return self._from_interface(address + low, tensor.shape, strides, f"<i{itemsize}")

    def _from_interface(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], typestr: str
    ) -> Any:
        interface = {
            "data": (address, False),
            "shape": shape,
            "strides": strides,
            "typestr": typestr,
            "version": 2,
        }
        holder = type("_Raw", (), {"__cuda_array_interface__": interface})()
        return torch.as_tensor(holder, device=self.device)


def _host(address: int, nbytes: int) -> Any:
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    return torch.from_numpy(np.frombuffer(memory, np.uint8))
