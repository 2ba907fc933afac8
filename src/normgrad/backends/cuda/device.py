"""What the plans need to know of a GPU."""

import functools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the planner sees it."""

    name: str
    capability: int  # 90 for compute capability 9.0
    multiprocessors: int
    registers: int  # of a multiprocessor
    shared_bytes: int  # of a multiprocessor

    @property
    def copies_ahead(self) -> bool:
        """Whether copies to shared memory go on beside the arithmetic."""
        return self.capability >= 80

    @property
    def threads(self) -> int:
        """Of a multiprocessor, at once."""
        return {75: 1024}.get(self.capability, 2048 if self.capability % 10 in (0, 3) else 1536)

    @property
    def starts_early(self) -> bool:
        """Whether a launch can start before the one before it is done."""
        return self.capability >= 90


H200 = Device("NVIDIA H200", 90, 132, 65536, 228 << 10)
# GPUs whose plans can be printed and tested where there is none.
KNOWN = {
    "h200": H200,
    "h100": Device("NVIDIA H100", 90, 132, 65536, 228 << 10),
    "a100": Device("NVIDIA A100", 80, 108, 65536, 164 << 10),
    "rtx4090": Device("NVIDIA GeForce RTX 4090", 89, 128, 65536, 100 << 10),
    "rtx3060": Device("NVIDIA GeForce RTX 3060", 86, 28, 65536, 100 << 10),
    "t4": Device("Tesla T4", 75, 40, 65536, 64 << 10),
}
# The interpreter runs blocks one after another: a small device exercises teams and loops.
INTERPRETER = Device("Triton's interpreter", 90, 4, 65536, 228 << 10)


@functools.cache
def device_of(index: int) -> Device:
    """The GPU of this number, from torch."""
    import torch

    found = torch.cuda.get_device_properties(index)
    return Device(
        name=found.name,
        capability=found.major * 10 + found.minor,
        multiprocessors=found.multi_processor_count,
        registers=getattr(found, "regs_per_multiprocessor", 65536),
        shared_bytes=getattr(found, "shared_memory_per_multiprocessor", 100 << 10),
    )
