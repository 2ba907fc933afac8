"""What options of several verbs may be: looked at once for all, before any work."""

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from normgrad.core.errors import OptionError

# From, to. Seeds: torch's is of 64 bits, and half of them tell the rows apart. Seconds: the
# clock that interrupts a contender counts no further.
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "repeats": (1, math.inf),
    "seed": (0, 2**32 - 1),
    "run_seconds": (0, 10**9),
    "limit_seconds": (0, 10**9),
    "peer_seconds": (0, 10**9),
    "budget_seconds": (0, 10**9),
    "threshold": (0, math.inf),
    "budget": (0, math.inf),
}
# What arguments of the library are called on a command line: errors name what was typed.
OPTIONS: Final = {
    "op": "--op",
    "shape": "--shape",
    "x": "--shape",
    "dy": "--shape",
    "dx": "--shape",
    "groups": "--groups",
    "num_groups": "--groups",
    "normalized": "--normalized",
    "normalized_shape": "--normalized",
    "layout": "--layout",
    "mask": "--mask",
    "peers": "--peers",
    "seconds": "--seconds",
}
_TARGETS: Final = ("json", "csv", "plot", "html")


def check(args: argparse.Namespace) -> None:
    """Raise the first broken rule about numbers and files."""
    for name, (low, high) in _RANGES.items():
        value = getattr(args, name, None)
        if value is not None and not low <= value <= high:  # nan is in no range
            rule = (
                f"must be at least {low}" if high == math.inf else f"must be from {low} to {high}"
            )
            raise OptionError(f"--{name.replace('_', '-')}", rule, value)
    source: Path | None = getattr(args, "source", None)
    taken = {} if source is None else {Path(os.path.realpath(source)): "--from"}
    for name in _TARGETS:
        path = getattr(args, name, None)
        if path is not None:
            real = _writable(f"--{name}", path)
            if real is not None and real in taken:
                rule = f"must be another file than that of {taken[real]}"
                raise OptionError(f"--{name}", rule, path)
            if real is not None:
                taken[real] = f"--{name}"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An error of what is written inside names the file; a full disk's does not by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def folder(text: str) -> Path:
    """An option's directory; an empty text, as of a variable that is not set, is not this one."""
    if not text:
        raise argparse.ArgumentTypeError("must name a directory, got ''")
    return Path(text)


def _writable(option: str, path: Path) -> Path | None:
    """The file that a path leads to, or None for a device or a pipe, which may be given twice.

    Minutes of work should not end at a folder that is not there.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            return None  # to open a pipe would disturb its reader
        real = path.resolve()
        new = not real.exists()
        real.open("ab").close()
        if new:
            real.unlink()
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        rule = "must be a file that can be written, in a directory that exists"
        reason = getattr(error, "strerror", None) or error
        raise OptionError(option, rule, f"{path} ({reason})") from error
    return real
