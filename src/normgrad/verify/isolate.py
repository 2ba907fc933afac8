"""Others' code in a process of its own: a crash is one failed case, not the end of the check."""

import contextlib
import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from normgrad.verify.foreign import Outcome

# Makes, from picklable arguments, a function from a job's number to its outcome.
Factory = Callable[..., Callable[[int], Outcome]]
# A case takes milliseconds; a first call may compile for a while.
_SECONDS = 180.0


def run(
    factory: Factory, arguments: tuple[Any, ...], blanks: Sequence[Outcome]
) -> Iterator[Outcome]:
    """The outcome of every job. ``blanks`` are what to report of a job whose process died."""
    context = multiprocessing.get_context("spawn")
    done = 0
    while done < len(blanks):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, factory, arguments, range(done, len(blanks))), daemon=True
        )
        process.start()
        theirs.close()
        try:
            with contextlib.suppress(EOFError, ConnectionResetError):
                while done < len(blanks) and ours.poll(_SECONDS):
                    answer = ours.recv()
                    if isinstance(answer, Exception):
                        raise answer
                    yield answer
                    done += 1
            if done < len(blanks):
                yield _dead(process, blanks[done])
                done += 1
        finally:  # also where the caller wants no more
            if process.is_alive():
                process.kill()
            process.join()
            ours.close()


def _dead(process: Any, blank: Outcome) -> Outcome:
    process.join(5.0)
    code = process.exitcode
    if code is None:
        reason = f"no answer in {_SECONDS:g} s"
    elif code < 0:
        reason = f"the process crashed: {_signal_name(-code)}"
    else:
        reason = f"the process ended with code {code}"
    return replace(blank, share=math.inf, detail=reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # Python has names for the first and the last of the real-time ones alone
        return f"signal {number}"


def _serve(
    connection: Connection, factory: Factory, arguments: tuple[Any, ...], jobs: Sequence[int]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is our caller's: it ends this process
    try:
        work = factory(*arguments)
    except Exception as error:
        connection.send(error)
        return
    for job in jobs:
        connection.send(work(job))
