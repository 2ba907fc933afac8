"""What normgrad raises, and tells. Each error names the argument, the rule and the value."""

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_HERE: Final = str(Path(__file__).parents[1]) + os.sep


class NormgradError(Exception):
    """The root of every exception of this library."""


class ArgumentError(NormgradError):
    """A rule about one argument does not hold.

    ``role`` is the argument's name inside the core and ``rule`` may mention others as ``{role}``;
    an interface with names of its own renders the sentence with them.
    """

    def __init__(
        self, role: str, rule: str, got: object, names: Mapping[str, str] | None = None
    ) -> None:
        self.role = role
        self.rule = rule
        self.got = got
        self.names: Mapping[str, str] = names or {}
        super().__init__(role, rule, got)

    def render(self, names: Mapping[str, str]) -> str:
        """The sentence, with the argument names of one interface."""
        rule = self.rule.format_map(_Names(names))
        return f"{names.get(self.role, self.role)} {rule}, got {self.got}"

    def __str__(self) -> str:
        return self.render(self.names)


class ShapeError(ArgumentError, ValueError):
    """A shape, rank or number of elements is off."""


class OptionError(ArgumentError, ValueError):
    """An option's value is off."""


class DeviceError(ArgumentError, ValueError):
    """Arrays live on different devices, or on one that nothing here can reach."""


class OverlapError(ArgumentError, ValueError):
    """Outputs that share memory with themselves or with each other."""


class DtypeError(ArgumentError, TypeError):
    """A data type is off."""


class ArrayTypeError(ArgumentError, TypeError):
    """Not an array, an array that cannot be read, or an output that cannot be written."""


class ReadOnlyError(ArrayTypeError):
    """An output that could be written but must not be."""


class CallError(NormgradError, TypeError):
    """A call that does not fit the function: a wrong name, too many arguments or too few."""


class BackendError(NormgradError, ValueError):
    """No backend takes the request; ``reasons`` has one sentence for each that was asked."""

    def __init__(self, request: str, reasons: Mapping[str, str]) -> None:
        self.request = request
        self.reasons = dict(reasons)
        super().__init__(request, self.reasons)  # what a copy in another process is made from

    def __str__(self) -> str:
        listed = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
        return f"no backend takes {self.request} ({listed})"


def printable(text: str) -> str:
    """Text with its control characters shown instead of obeyed: records come from anywhere."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


class FallbackWarning(UserWarning):
    """The fast backend does not work on this machine: calls that name none are slow."""


class NothingTakenWarning(UserWarning):
    """A ``with normgrad.torch.enable():`` ended and changed nothing."""


@functools.cache
def warn_once(text: str, category: type[UserWarning] = FallbackWarning) -> None:
    """A warning at the caller's line, once a process."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def tell(text: str) -> None:
    """A line on stderr. Where it is closed or full the line is lost, and nothing else changes."""
    if sys.stderr is not None:  # as in a process without it: print would take stdout
        with contextlib.suppress(OSError, ValueError):
            print(f"normgrad: {text}", file=sys.stderr, flush=True)


class _Names(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key
