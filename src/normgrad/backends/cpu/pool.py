"""Threads that help a caller: plain Python threads around calls that hold no lock.

The caller works too and never waits for a helper that has not begun, so a busy interpreter only
means less help. Several callers share the helpers. A forked child starts without helpers and makes
its own.
"""

import functools
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

Job = tuple[Any, ...]


class Pool:
    """Helpers, started as they are needed and then kept."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[..., int], Job]] = queue.SimpleQueue()
        self.helpers = 0
        self._lock = threading.Lock()

    def run(self, function: Callable[..., int], job: Job, helpers: int) -> int:
        """Call a function here and, as they come free, in helpers with the same arguments."""
        if self.helpers < helpers:
            self._start(helpers)
        for _ in range(helpers):
            self._jobs.put((function, job))
        return function(*job)

    def _start(self, helpers: int) -> None:
        with self._lock:
            while self.helpers < helpers:
                name = f"normgrad-{self.helpers + 1}"
                try:
                    threading.Thread(
                        target=_help, args=(self._jobs,), name=name, daemon=True
                    ).start()
                except RuntimeError:  # no more threads, or the interpreter is going down
                    return
                self.helpers += 1


def _help(jobs: "queue.SimpleQueue[tuple[Callable[..., int], Job]]") -> None:
    while True:
        function, job = jobs.get()
        function(*job)
        del function, job  # the caller's memory must not live on in a waiting helper


@functools.cache
def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def thread_count() -> int:
    """How many threads a call may use: the least of what everybody allows.

    ``NORMGRAD_NUM_THREADS`` first; without it Numba's own setting; never more than the cores that
    this process may run on.
    """
    wish = os.environ.get("NORMGRAD_NUM_THREADS", "")
    if wish.strip().isdigit():
        return max(1, min(int(wish), 4 * _cores()))
    return min(_cores(), _numba_threads())


def _numba_threads() -> int:
    import numba
    from numba.np.ufunc import parallel

    # Asking Numba starts its threads; only when somebody else has done so is there an answer.
    if getattr(parallel, "_is_initialized", False):
        return int(numba.get_num_threads())
    return int(numba.config.NUMBA_NUM_THREADS)


POOL = Pool()
