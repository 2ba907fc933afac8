"""Threads that help a caller: Python threads that stay in compiled code and hold no lock.

The caller works too and never waits for a helper that has not begun, so a busy machine only means
less help. Several callers share the helpers. A forked child starts without helpers and makes its
own.
"""

import ctypes
import functools
import os
import threading
from typing import Any

from normgrad.backends.cpu import tasks
from normgrad.core.cpu_count import cores
from normgrad.core.errors import tell

# Threads for each core at most.
_MOST = 4
_RunWithHelpers = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    *[ctypes.c_void_p] * 2,
    ctypes.c_int64,
    *[ctypes.c_void_p] * 2,
    *[ctypes.c_int64] * 2,
)
_HelperLoop = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


_POSIX = os.name == "posix"
# The dictionary behind os.environ, which is Python in several functions: `thread_count` took 57 us
# with cold caches. os.environ itself where there is none.
_environment: Any = getattr(os.environ, "_data", os.environ)
_WISH: Any = "NORMGRAD_NUM_THREADS"
if _environment is not os.environ:
    _WISH = os.environ.encodekey(_WISH)


class Pool:
    """Helpers, started as they are needed and then kept."""

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.helpers = 0
        self._boxes = 0
        self._lock = threading.Lock()

    def run(self, block: Any, addresses: Any, workspace: int, sync: Any, helpers: int) -> int:
        """Run a parameter block here and in as many helpers as are free."""
        if self.helpers < helpers:
            self._start(helpers)
        run, _ = _functions()
        status: int = run(block, addresses, workspace, sync, self._boxes, self.helpers, helpers)
        return status

    def _start(self, helpers: int) -> None:
        from normgrad.backends.cpu.threads.helpers import (
            BOX_BYTES,
            LOCK_AT,
            OFF,
            SIGNAL_AT,
            THREAD,
        )

        _, loop = _functions()
        with self._lock:
            system = ctypes.CDLL(None)
            system.calloc.restype = ctypes.c_void_p
            if not self._boxes:
                # Never freed: helpers wait there until the process ends.
                room = system.calloc(_MOST * _cores() + 1, BOX_BYTES)
                self._boxes = -(-room // BOX_BYTES) * BOX_BYTES
            while self.helpers < helpers:
                box = self._boxes + self.helpers * BOX_BYTES
                system.pthread_mutex_init(ctypes.c_void_p(box + LOCK_AT), None)
                system.pthread_cond_init(ctypes.c_void_p(box + SIGNAL_AT), None)
                name = f"normgrad-{self.helpers + 1}"
                thread = threading.Thread(target=loop, args=(box,), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no more threads, or the interpreter is going down
                    return
                places = ctypes.cast(box, ctypes.POINTER(ctypes.c_int64))
                places[THREAD], places[OFF] = thread.native_id or 0, -1
                self.helpers += 1


@functools.cache
def _functions() -> tuple[Any, Any]:
    run, loop = tasks.compiled_helpers()
    return _RunWithHelpers(run.address), _HelperLoop(loop.address)


_cores = functools.cache(cores)


def thread_count() -> int:
    """How many threads a call may use.

    ``NORMGRAD_NUM_THREADS``, up to four for each core that this process may run on; without it
    Numba's own setting, up to one for each. Helpers wait on POSIX's signals; elsewhere the caller
    works alone.
    """
    if not _POSIX:
        return 1
    wish = _environment.get(_WISH)
    if wish:
        if wish.strip().isdigit():
            return max(1, min(int(wish), _MOST * _cores()))
        _complain(wish)
    numba, parallel, config = _numba()
    # Asking Numba starts its threads; only when somebody else has done so is there an answer.
    asked = getattr(parallel, "_is_initialized", False)
    return min(_cores(), int(numba.get_num_threads() if asked else config.NUMBA_NUM_THREADS))


@functools.cache  # once for each value: this is asked with every call
def _complain(wish: str | bytes) -> None:
    text = os.fsdecode(wish)
    rule = "NORMGRAD_NUM_THREADS must be a number of threads"
    tell(f"{rule}, got {text!r}, which is ignored")


@functools.cache
def _numba() -> tuple[Any, Any, Any]:
    """Found once: with cold caches two imports that do nothing take 20 us."""
    import numba
    from numba.np.ufunc import parallel

    return numba, parallel, numba.config


POOL = Pool()
