"""Finds the verb and runs it. A verb's module is imported only when it is used."""

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TextIO, TypeVar, cast

from normgrad import __version__
from normgrad.cli import rules
from normgrad.errors import ArgumentError, NormgradError

T = TypeVar("T")

# verb: what it is for. Each has a module of its name with `add_arguments(parser)` and `run(args)`.
VERBS = {
    "bench": "time the operators and others' against the speed of memory, results checked first",
    "build-capi": "build the C libraries for this interpreter",
    "capi-flags": "print the compiler and linker flags of the C libraries",
    "check": "run the named cases against the float64 reference",
    "compare": "what got faster, slower or wrong between two runs of bench",
    "env": "print versions, hardware and the state of each backend",
    "plan": "print the launches that compute a request on a GPU, which need not be here",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a failed check, 2 for a wrong call."""
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="normgrad", description="Backward operators of batch, layer and group normalization."
    )
    parser.add_argument("--version", action="version", version=f"normgrad {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    modules = {}
    for verb, purpose in VERBS.items():
        sub = verbs.add_parser(verb, help=purpose, description=purpose)
        if verb == asked:
            modules[verb] = importlib.import_module(f"normgrad.cli.{verb.replace('-', '_')}")
            modules[verb].add_arguments(sub)
    args = parser.parse_args(arguments)
    try:
        rules.check(args)
        with contextlib.redirect_stdout(cast(TextIO, _Reader(sys.stdout))):
            code: int = modules[args.verb].run(args)
            sys.stdout.flush()
    except ArgumentError as error:
        text = error.render({**error.names, **rules.OPTIONS})
        print(f"normgrad {args.verb}: {text}", file=sys.stderr)
        return 2
    except (NormgradError, OSError) as error:  # the latter names its file: as of a full disk
        print(f"normgrad {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


class _Reader:
    """Standard output whose reader may have seen enough, as `| head` has: the rest goes nowhere.

    The verb goes on, so that its exit code is that of its own work.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._gone = stream, False

    def write(self, text: str) -> int:
        """To the reader, while there is one."""
        return self._while_there(lambda: self._stream.write(text), len(text))

    def flush(self) -> None:
        """The same."""
        self._while_there(self._stream.flush, None)

    def _while_there(self, work: Callable[[], T], otherwise: T) -> T:
        try:
            return otherwise if self._gone else work()
        except BrokenPipeError:
            self._gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # for what is in its buffer, and for children
            os.close(nowhere)
            return otherwise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _open_streams() -> None:
    """Printing never fails: neither where nobody listens, nor for a letter that is not there."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller, as `>&-` does
            nowhere = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(nowhere, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
