"""What options of several verbs may be: looked at once for all, before any work."""

import argparse
import math
from pathlib import Path
from typing import Final

from normgrad.errors import OptionError

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
    taken: dict[Path, str] = {}
    for name in _TARGETS:
        path = getattr(args, name, None)
        if path is not None:
            real = _writable(f"--{name}", path)
            if real in taken:
                rule = f"must be another file than that of {taken[real]}"
                raise OptionError(f"--{name}", rule, path)
            if real.is_file() or not real.exists():  # two may well go to /dev/null
                taken[real] = f"--{name}"


def _writable(option: str, path: Path) -> Path:
    """Where the path leads. Minutes of work should not end at a folder that is not there."""
    try:
        real = path.resolve()
        if real.is_file() or real.is_dir():
            real.open("ab").close()
        elif not real.exists():  # else a device or a pipe, which opening might disturb
            real.open("xb").close()
            real.unlink()
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        rule = "must be a file that can be written, in a directory that exists"
        reason = getattr(error, "strerror", None) or error
        raise OptionError(option, rule, f"{path} ({reason})") from error
    return real
