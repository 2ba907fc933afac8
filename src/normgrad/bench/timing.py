"""How long it takes: GPU events over a flushed L2, interleaved calls on the CPU."""

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], Any]
_cuda: Any = torch.cuda  # its events have no types

# Larger than any L2 (60 MB on an H200); written between runs, as a training step would.
_FLUSH_BYTES = 256 << 20
# A copy of this size is far beyond every cache.
_COPY_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}
_NEAR_BYTES = 64 << 20  # of the copies around a row on the CPU
_NEAR_COPIES = 5
_HOST_CALLS = 30


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds; ``spread`` is the interquartile range over the median."""

    median_ms: float
    best_ms: float
    spread: float
    runs: int


def summary(samples: Sequence[float]) -> Timing:
    """Samples in milliseconds."""
    median, best = statistics.median(samples), min(samples)
    if len(samples) < 4:
        return Timing(median, best, (max(samples) - best) / median, len(samples))
    low, _, high = statistics.quantiles(samples, n=4)
    return Timing(median, best, (high - low) / median, len(samples))


class CpuTimer:
    """Wall clock on this process's threads."""

    def __init__(self, repeats: int, seconds: float) -> None:
        self.repeats, self.seconds = repeats, seconds
        self._buffers: tuple[torch.Tensor, torch.Tensor] | None = None

    def copy_gbps(self) -> float:
        """Bytes read and written by torch's own parallel copy, in GB/s; the best of three medians.

        Other work on the machine can only slow a copy down, and a slow copy would flatter us.
        """
        source = torch.ones(_COPY_BYTES["cpu"], dtype=torch.uint8)
        target = torch.zeros_like(source)
        rounds = CpuTimer(7, 1.0)
        calls: dict[str, Call] = {"copy": lambda: target.copy_(source)}
        best = min(rounds.time(calls)["copy"].median_ms for _ in range(3))
        return 2 * source.numel() / best / 1e6

    def near_copies(self) -> list[float]:
        """GB/s of a few copies, now: a shared machine is another one a minute later."""
        if self._buffers is None:
            source = torch.ones(_NEAR_BYTES, dtype=torch.uint8)
            self._buffers = source, torch.zeros_like(source)
        source, target = self._buffers
        found = []
        for _ in range(_NEAR_COPIES):
            before = time.perf_counter()
            target.copy_(source)
            found.append(2 * _NEAR_BYTES / (time.perf_counter() - before) / 1e9)
        return found

    def time(self, calls: Mapping[str, Call]) -> dict[str, Timing]:
        """One call of each in turn, again and again: a slow minute hits all of them alike."""
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call()
        start = time.perf_counter()
        for turn in range(self.repeats):
            for name, call in calls.items():
                before = time.perf_counter()
                result = call()
                samples[name].append((time.perf_counter() - before) * 1e3)
                del result  # freed outside the clock
            if turn >= 2 and time.perf_counter() - start > self.seconds * len(calls):
                break
        return {name: summary(times) for name, times in samples.items()}

    def host_us(self, call: Call) -> float:
        """Time of a call; for the part that is not work, hand in a call with hardly any work."""
        times = []
        for _ in range(_HOST_CALLS):
            before = time.perf_counter()
            call()
            times.append((time.perf_counter() - before) * 1e6)
        return statistics.median(times)

    def memory_peak(self, call: Call) -> int | None:
        """How far the resident memory rises during a call (Linux)."""
        status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
        try:
            call()
            gc.collect()
            reset.write_text("5", encoding="ascii")
            before = _status_bytes(status, "VmRSS")
            result = call()
            peak = _status_bytes(status, "VmHWM")
            del result
        except (OSError, KeyError):
            return None
        return max(peak - before, 0)


def _status_bytes(path: Path, field: str) -> int:
    for line in path.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) << 10
    raise KeyError(field)


class CudaTimer:
    """Events around each call. The host is kept ahead: its time is measured apart."""

    def __init__(self, device: str, repeats: int, seconds: float) -> None:
        self.device, self.repeats, self.seconds = device, repeats, seconds
        self.flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device=device)
        self.cycles_per_us = _cycles_per_us()

    def near_copies(self) -> list[float]:
        """None: nobody else uses the memory of a GPU."""
        return []

    def copy_gbps(self) -> float:
        """Bytes read and written by a device copy, in GB/s."""
        source = torch.ones(_COPY_BYTES["cuda"], dtype=torch.uint8, device=self.device)
        target = torch.zeros_like(source)
        timing = self.time({"copy": lambda: target.copy_(source)})["copy"]
        return 2 * source.numel() / timing.median_ms / 1e6

    def time(self, calls: Mapping[str, Call]) -> dict[str, Timing]:
        """Each call alone between two events, the L2 written over before it."""
        return {name: self._time(call) for name, call in calls.items()}

    def _time(self, call: Call) -> Timing:
        for _ in range(3):
            call()
        # While the GPU sleeps the host queues the whole call, so no gap between its kernels
        # is the host's.
        wait_us = 2 * self.host_times({"": call}, rounds=1)[""] + 50
        samples: list[float] = []
        start = time.perf_counter()
        while len(samples) < self.repeats:
            pairs = []
            for _ in range(min(10, self.repeats - len(samples))):
                _cuda._sleep(int(wait_us * self.cycles_per_us))
                self.flush.zero_()
                before, after = (_cuda.Event(enable_timing=True) for _ in range(2))
                before.record()
                call()
                after.record()
                pairs.append((before, after))
            _cuda.synchronize()
            samples += [before.elapsed_time(after) for before, after in pairs]
            if time.perf_counter() - start > self.seconds:
                break
        return summary(samples)

    def host_times(self, calls: Mapping[str, Call], rounds: int = 3) -> dict[str, float]:
        """Microseconds to issue a call without waiting for it; the best of rounds that take turns.

        In turns, since what else the machine does lasts longer than a round.
        """
        best = dict.fromkeys(calls, math.inf)
        for _ in range(rounds):
            for name, call in calls.items():
                _cuda.synchronize()
                before = time.perf_counter()
                for _ in range(_HOST_CALLS):
                    call()
                took = (time.perf_counter() - before) / _HOST_CALLS * 1e6
                best[name] = min(best[name], took)
        _cuda.synchronize()
        return best

    def memory_peak(self, call: Call) -> int | None:
        """How far torch's allocator rises during a call."""
        _cuda.synchronize()
        _cuda.reset_peak_memory_stats()
        before = _cuda.memory_allocated()
        call()
        _cuda.synchronize()
        return int(_cuda.max_memory_allocated() - before)


def _cycles_per_us() -> float:
    """The clock that ``_sleep`` counts, measured; a fixed guess where it cannot be."""
    before, after = (_cuda.Event(enable_timing=True) for _ in range(2))
    _cuda._sleep(100_000)
    _cuda.synchronize()
    before.record()
    _cuda._sleep(2_000_000)
    after.record()
    _cuda.synchronize()
    milliseconds = before.elapsed_time(after)
    return 2_000_000 / (milliseconds * 1e3) if milliseconds > 0 else 2000.0


Timer = CpuTimer | CudaTimer


def timer(device: str, repeats: int, seconds: float) -> Timer:
    """The timer for a device."""
    if device == "cpu":
        return CpuTimer(repeats, seconds)
    return CudaTimer(device, repeats, seconds)
