"""Torch's own OpenMP threads as helpers.

After each of its operators torch's threads poll for the next one, for some milliseconds. A helper
beside them gets half of a core: calls right after torch took 1.3 to 1.9 times as long. So where
torch would use as many threads as we may, its threads take part, as they do in torch's operators.
"""

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from normgrad.backends.cpu import tasks

# Unlike our helpers a team is waited for, all of it, and threads that polled are the first to lose
# their core. On a machine with other work a call then takes 4 to 8 ms instead of 1: where threads
# were away for so long, our helpers have a turn.
_AWAY = 500_000  # nanoseconds
# Small calls are done before threads that sleep wake up, after 30 us or more.
_LATE = 20_000
# How many calls a turn has: twice as many each time, until a team was there at once.
_SHORTEST, _LONGEST = 4, 256
# Of small calls: asking again in vain costs one of them some 30 us.
_LONGEST_SMALL = 32

_Lead = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64
)


class _Backoff:
    """Counts the calls that other threads have to run because a team was away for too long."""

    def __init__(self, away: int, longest: int) -> None:
        self.away = away  # nanoseconds
        self.longest = longest
        self.left = 0
        self.next = _SHORTEST

    def learn(self, away: int) -> None:
        """How long a team was away in a call, for too long or not."""
        self.left = self.next if away > self.away else 0
        self.next = min(2 * self.next, self.longest) if away > self.away else _SHORTEST


class Team:
    """Runs parameter blocks on torch's threads."""

    def __init__(self) -> None:
        self.turns = _Backoff(_AWAY, _LONGEST)
        self.small_turns = _Backoff(_LATE, _LONGEST_SMALL)
        self._forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """A forked child has no such threads, and OpenMP would wait for them."""
        self._forked = True

    def run(self, job: Any, threads: int, *, small: bool) -> bool:
        """Run a job; False where torch's threads are not to be used."""
        torch: Any = sys.modules.get("torch")
        if torch is None or self._forked or torch.get_num_threads() != threads:
            return False
        turns = self.small_turns if small else self.turns
        if turns.left > 0:
            turns.left -= 1
            return False
        lead, parallel, work = _functions()
        if lead is None:
            return False
        away = lead(job, parallel, work, threads)
        if away > turns.away or turns.next > _SHORTEST:  # seldom
            turns.learn(away)
        return True


@functools.cache
def _functions() -> tuple[Any, int, int]:
    """Our entry, OpenMP's, and what each thread runs."""
    parallel = _parallel()
    if parallel == 0:
        return None, 0, 0
    lead, work = tasks.compiled_team()
    return _Lead(lead.address), parallel, int(work.address)


def _parallel() -> int:
    """OpenMP's entry in the library that came with torch, where this process has loaded it."""
    torch: Any = sys.modules["torch"]
    mode = getattr(os, "RTLD_NOLOAD", None)
    if mode is None or not sys.platform.startswith("linux"):
        return 0
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            entry = ctypes.CDLL(str(path), mode=mode | os.RTLD_LAZY).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(entry, ctypes.c_void_p).value or 0
    return 0


TEAM = Team()
