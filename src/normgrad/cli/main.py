"""Finds the verb and runs it. A verb's module is imported only when it is used."""

import argparse
import contextlib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn, TextIO, TypeVar, cast

from normgrad import __version__
from normgrad.backends.cpu.compiling import COMPILING
from normgrad.cli import rules, terminal
from normgrad.core.errors import ArgumentError, NormgradError, printable

T = TypeVar("T")

# verb: what it is for. Each has a module of its name with `EXAMPLES`, `add_arguments(parser)` and
# `run(args)`.
VERBS: Final = {
    "bench": "time the operators beside others' implementations, results checked first",
    "build-capi": "build the C libraries for this interpreter",
    "capi-flags": "print the compiler and linker flags of the C libraries",
    "check": "compare every operator, type and layout with a float64 reference",
    "compare": "what got faster, slower or wrong between two runs of bench",
    "demo": "this CPU's speed with normgrad, plain NumPy and torch, as bars",
    "env": "print versions, hardware and the state of each backend",
    "plan": "print the launches that compute a request on a GPU, which need not be here",
    "profile": "what share of a training script norms have, and what we would leave of it",
    "warmup": "compile the CPU's kernels ahead of the first call",
}
# What people call them elsewhere.
_ALSO: Final = {
    "bench": ("benchmark", "time", "perf"),
    "build-capi": ("build", "capi"),
    "capi-flags": ("flags", "cflags"),
    "check": ("test", "verify", "validate"),
    "compare": ("diff",),
    "demo": ("run", "tour"),
    "env": ("info", "version", "versions", "doctor", "environment"),
    "profile": ("share", "gain", "step"),
    "warmup": ("warm", "compile", "cache", "precompile"),
}
_EXAMPLES: Final = (
    "normgrad check                    is everything right on this machine?",
    "normgrad bench --peers torch      and how fast?",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 for a failed check, 2 for a wrong call."""
    _open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    parser = _Parser(
        "normgrad", "Normalization layers and their gradients: check, time, plan.", _EXAMPLES
    )
    parser.add_argument("--version", action="version", version=f"normgrad {__version__}")
    verbs = parser.add_subparsers(
        title="verbs", metavar="VERB", prog="normgrad", parser_class=argparse.ArgumentParser
    )
    for verb, what in VERBS.items():
        verbs.add_parser(verb, help=what)
    asked = arguments[0] if arguments else ""
    if not asked:
        parser.print_help()
        return 0
    if asked.startswith("-"):
        parser.parse_args(arguments[:1])
    if asked not in VERBS:
        from normgrad.cli import words

        parser.error(f"there is no verb {asked!r}{words.suggestion(asked, VERBS, _ALSO)}")
    module = importlib.import_module(f"normgrad.cli.{asked.replace('-', '_')}")
    parser = _Parser(f"normgrad {asked}", VERBS[asked], module.EXAMPLES)
    module.add_arguments(parser)
    args = parser.parse_args(arguments[1:])
    if terminal.live():  # who watches sees what is being done, in the line that this would break
        COMPILING.told = True
    try:
        rules.check(args)
        with contextlib.redirect_stdout(cast(TextIO, _Reader(sys.stdout))):
            code: int = module.run(args)
            sys.stdout.flush()
    except ArgumentError as error:
        text = error.render({**error.names, **rules.OPTIONS})
        return _refused(asked, text)
    except (NormgradError, OSError) as error:  # the latter names its file: as of a full disk
        return _refused(asked, str(error))
    except KeyboardInterrupt:
        return 130
    return code


def _refused(verb: str, text: str) -> int:
    print(f"normgrad {verb}: {printable(text)}", file=sys.stderr)
    return 2


class _Parser(argparse.ArgumentParser):
    """One verb's. A wrong call is answered by one line, help ends with examples."""

    def __init__(self, prog: str, purpose: str, examples: Sequence[str]) -> None:
        lines = "\n".join(f"  {one}" for one in examples)
        super().__init__(
            prog=prog,
            description=purpose[0].upper() + purpose[1:].rstrip(".") + ".",
            epilog=f"examples:\n{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """One line: what is wrong, and where the options are listed."""
        text = re.sub(r"^argument (\S+)(/\S+)*: ", r"\1 ", message)
        for kind, rule in (("int", "a whole number"), ("float", "a number")):
            text = re.sub(rf"invalid {kind} value: (.*)", rf"must be {rule}, got \1", text)
        unknown = re.match(r"unrecognized arguments: (\S+)", text)
        if unknown:
            from normgrad.cli import words

            options = [one for one in self._option_string_actions if one != "-h"]
            end = (
                words.suggestion(unknown[1], options)
                if unknown[1].startswith("-")
                else words.option_of(unknown[1], options)
            )
            text = f"there is no {unknown[1]}{end}"
        self.exit(2, f"{self.prog}: {printable(text)} (all options: {self.prog} --help)\n")


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
