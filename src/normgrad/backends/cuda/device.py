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
    threads: int  # of a multiprocessor, at once

    @property
    def copies_ahead(self) -> bool:
        """Whether copies to shared memory go on beside the arithmetic."""
        return self.capability >= 80

    @property
    def starts_early(self) -> bool:
        """Whether a launch can start before the one before it is done."""
        return self.capability >= 90


H200 = Device("NVIDIA H200", 90, 132, 65536, 228 << 10, 2048)
# GPUs whose plans can be printed and tested where there is none.
KNOWN = {
    "b200": Device("NVIDIA B200", 100, 148, 65536, 228 << 10, 2048),
    "h200": H200,
    "h100": Device("NVIDIA H100", 90, 132, 65536, 228 << 10, 2048),
    "a100": Device("NVIDIA A100", 80, 108, 65536, 164 << 10, 2048),
    "rtx5090": Device("NVIDIA GeForce RTX 5090", 120, 170, 65536, 100 << 10, 1536),
    "rtx4090": Device("NVIDIA GeForce RTX 4090", 89, 128, 65536, 100 << 10, 1536),
    "rtx3060": Device("NVIDIA GeForce RTX 3060", 86, 28, 65536, 100 << 10, 1536),
    "t4": Device("Tesla T4", 75, 40, 65536, 64 << 10, 1024),
}
# The interpreter runs blocks one after another: a small device exercises teams and loops.
INTERPRETER = Device("Triton's interpreter", 90, 4, 65536, 228 << 10, 2048)


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
        # Not to be told from the capability: 12.0 has 1536, 10.0 and 9.0 have 2048.
        threads=found.max_threads_per_multi_processor,
    )
