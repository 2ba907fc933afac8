"""One line on stderr, once a process, where compiling takes long: it is no hang."""

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from normgrad.core.errors import tell

# Seconds of compiling, all told, before it is mentioned.
_PATIENCE = 1.0


class Kernel:
    """One of them."""

    was_kept = False  # on disk, and fit to this process


class Compiling:
    """What this process has compiled and did not find on disk."""

    def __init__(self) -> None:
        self.request = "a kernel"  # whose plan is being made
        self.kernels = 0
        self.seconds = 0.0
        self.told = False

    @contextlib.contextmanager
    def kernel(self, folder: Path | None) -> Iterator[Kernel]:
        """While a kernel is compiled, or found, in a folder."""
        kernel = Kernel()
        began = time.monotonic()
        timer = threading.Timer(max(_PATIENCE - self.seconds, 0.0), self._tell, (folder,))
        timer.daemon = True
        if not self.told:
            with contextlib.suppress(RuntimeError):  # no thread can start as the process ends
                timer.start()
        try:
            yield kernel
        finally:
            timer.cancel()
            if not kernel.was_kept:
                self.kernels += 1
                self.seconds += time.monotonic() - began

    def _tell(self, folder: Path | None) -> None:
        if not self.told:
            self.told = True
            kept = f"kept in {folder}" if folder else "kept nowhere: no folder can be written"
            tell(f"compiling {self.request} for this CPU, {kept}")


COMPILING = Compiling()
