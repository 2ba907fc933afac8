"""Measures one row after another: check first, then time, ours and the peers on the same data."""

import contextlib
import dataclasses
import functools
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import torch

from normgrad.bench import contender, problems, timing, truth
from normgrad.bench.contender import NotOffered, Peer, Runner
from normgrad.bench.problems import DeviceProblem
from normgrad.bench.record import Row
from normgrad.bench.suites import Workload
from normgrad.core.errors import NormgradError
from normgrad.core.operators import OPERATORS


class DeviceLostError(NormgradError):
    """The GPU reported a fault: nothing after it can be measured in this process."""


class TooSlow(Exception):  # noqa: N818 - an answer: it is named in the row
    """A contender did not come back in its time."""


@dataclasses.dataclass(slots=True)
class Session:
    """One run on one device."""

    backend: str | None  # None: the peers alone
    device: str
    peers: list[Peer]
    timer: timing.Timer
    copy_gbps: float
    seconds_per_contender: float = 30.0
    seed: int = 0
    time_wrong_peers: bool = False
    seconds_per_peer: float = 0.0  # to prepare all its rows; 0: no limit
    spent: dict[str, float] = dataclasses.field(default_factory=dict)
    doing: Callable[[str], object] = str  # hears what is being done

    def measure(self, workload: Workload) -> Row:
        """A row: whatever fails is named in it."""
        row = Row.of(workload, self.backend or "none")
        row.floor_ms = workload.streams * workload.data_bytes / self.copy_gbps / 1e6
        try:
            self._measure(workload, row)
        except NormgradError:
            raise
        except torch.OutOfMemoryError as error:
            row.set_fault("failed", f"out of memory: {str(error).splitlines()[0]}")
        except Exception as error:  # hours of other rows must not be lost for one
            row.set_fault("failed", f"{type(error).__name__}: {str(error)[:300]}")
            row.verified = False
            self._settle(workload.name)
        self._release()
        return row

    def _measure(self, workload: Workload, row: Row) -> None:
        self.doing("making data")
        problem = problems.make(workload, self.device, self.seed)
        known = truth.truth(problem)
        self.doing(f"compiling and checking {self.backend}")
        runners = self._ours(problem, known, row)
        first = {}
        if "out" in runners:
            first = {role: array.clone() for role, array in runners["out"].results().items()}
        sums = _sums(problem)
        for peer in self.peers:
            self.doing(f"preparing and checking {peer.name}")
            runner = self._admit(peer, problem, known, row)
            changed = [role for role, now in _sums(problem).items() if now != sums[role]]
            if changed:  # others would be judged by numbers that the truth does not know
                row.set_fault("wrong", f"it changed its operand {changed[0]}", peer.name)
                for role, array in problems.make(workload, self.device, self.seed).operands.items():
                    problem.operands[role].copy_(array)
            elif runner is not None:
                runners[peer.name] = runner
        del known
        self.doing("measuring")
        copies = self.timer.near_copies()
        timed = self.timer.time({name: runner.run for name, runner in runners.items()})
        copies += self.timer.near_copies()
        row.load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        row.copy_gbps = statistics.median(copies) if copies else None
        for peer in self.peers:
            if peer.name in timed:
                times = row.wrong_peers if peer.name in row.peer_faults else row.peers
                times[peer.name] = timed[peer.name].median_ms
                row.peer_spread[peer.name] = timed[peer.name].spread
                row.peer_best_ms[peer.name] = timed[peer.name].best_ms
                row.peer_memory[peer.name] = self.timer.memory_peak(runners[peer.name].run)
        if "out" in runners:
            row.median_ms, row.spread = timed["out"].median_ms, timed["out"].spread
            row.best_ms = timed["out"].best_ms
            row.alloc_ms, row.alloc_spread = timed["alloc"].median_ms, timed["alloc"].spread
            row.floor_share = row.floor_ms / row.median_ms
            row.gbps = workload.streams * workload.data_bytes / row.median_ms / 1e6
            row.memory_peak = self.timer.memory_peak(runners["alloc"].run)
            row.same_bits = all(
                torch.equal(_bits(array), _bits(first[role]))
                for role, array in runners["out"].results().items()
            )
        self._host_times(workload, runners, row)

    def _ours(self, problem: DeviceProblem, known: truth.Truth, row: Row) -> dict[str, Runner]:
        """Both policies, once their results are right."""
        if self.backend is None:
            return {}
        runners = {}
        for name, reuse in (("out", True), ("alloc", False)):
            try:
                with _time_limit(self.seconds_per_contender):
                    runners[name] = contender.ours(problem, self.backend, reuse)
                    results = runners[name].results()
                    self._settle(self.backend)
            except DeviceLostError:
                raise
            except Exception as error:  # a kernel that does not compile must not end the run
                row.set_fault("failed", f"{type(error).__name__}: {str(error)[:300]}")
                self._settle(self.backend)
                return {}
            reason, share = truth.wrong(problem, known, results, 1.0)
            row.budget_share = max(share, row.budget_share or 0.0)
            if reason is not None:
                row.set_fault("wrong", reason)
                return {}
        row.verified = True
        return runners

    def _admit(
        self, peer: Peer, problem: DeviceProblem, known: truth.Truth, row: Row
    ) -> Runner | None:
        """A peer's call, once its results are right."""
        spent = self.spent.get(peer.name, 0.0)
        if 0 < self.seconds_per_peer < spent:
            words = f"it took {spent:.0f} s to prepare other rows"
            row.set_fault("skipped", words, peer.name)
            return None
        started = time.monotonic()
        try:
            with _time_limit(self.seconds_per_contender):
                runner = peer.prepare(problem)
                results = runner.results()
                self._settle(peer.name)
        except DeviceLostError:
            raise
        except NotOffered as answer:
            row.set_fault("not offered", str(answer), peer.name)
            return None
        except Exception as error:  # somebody else's code: whatever it raises is its result
            text = str(error).strip().splitlines() or [""]
            row.set_fault("failed", f"{type(error).__name__}: {text[0][:300]}", peer.name)
            self._settle(peer.name)
            return None
        finally:
            self.spent[peer.name] = spent + time.monotonic() - started
        reason, share = truth.wrong(problem, known, results, truth.PEER_ALLOWANCE)
        row.peer_budget_share[peer.name] = share
        if reason is not None:
            row.set_fault("wrong", reason, peer.name)
            return runner if self.time_wrong_peers else None
        return runner

    def _host_times(self, workload: Workload, runners: dict[str, Runner], row: Row) -> None:
        if isinstance(self.timer, timing.CpuTimer):  # a call does its work: ask a tiny one
            times = self._tiny_host_times(_tiny(workload))
            ours, theirs = times.get("ours"), times
        else:
            calls = {name: runner.run for name, runner in runners.items() if name != "out"}
            theirs = self.timer.host_times(calls)
            ours = theirs.get("alloc")
        row.host_us = ours if "out" in runners else None
        row.peer_host_us = {name: theirs[name] for name in row.peers if name in theirs}

    def _tiny_host_times(self, tiny: Workload) -> dict[str, float]:
        return _cached_host_times(self.backend, tuple(self.peers), self.timer, tiny, self.seed)

    def _settle(self, who: str) -> None:
        """Wait for the device; a fault is somebody's last deed in this process."""
        if self.device == "cpu":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:
            text = str(error).splitlines()[0]
            raise DeviceLostError(f"the GPU failed in {who}: {text}") from error

    def _release(self) -> None:
        if self.device != "cpu" and torch.cuda.memory_reserved() > 32 << 30:
            torch.cuda.empty_cache()


@functools.cache
def _cached_host_times(
    backend: str | None, peers: tuple[Peer, ...], timer: timing.CpuTimer, tiny: Workload, seed: int
) -> dict[str, float]:
    problem = problems.make(tiny, "cpu", seed)
    times = {}
    if backend is not None:
        with contextlib.suppress(NormgradError):
            times["ours"] = timer.host_us(contender.ours(problem, backend, False).run)
    for peer in peers:
        if peer.name == "compile":
            continue  # another compilation, for a figure that its row shows already
        with contextlib.suppress(Exception):
            times[peer.name] = timer.host_us(peer.prepare(problem).run)
    return times


def _tiny(workload: Workload) -> Workload:
    """The same operator, type, layout and mask with next to nothing to do."""
    case = workload.case
    rank = len(case.shape)
    sizes = [2] * rank
    if OPERATORS[case.op].axes == "groups":
        sizes[1] = case.num_groups
    return Workload(dataclasses.replace(case, id="tiny", shape=tuple(sizes)), workload.dtype)


def _sums(problem: DeviceProblem) -> dict[str, int]:
    """A number for each operand that a changed bit changes."""
    return {
        role: int(_bits(array).sum(dtype=torch.int64)) for role, array in problem.operands.items()
    }


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Interrupt Python code after a while; only the main thread of a process can be."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"no result after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
