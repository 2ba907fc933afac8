"""What a verb prints: plain text in a pipe; on a terminal also colours and a line of progress.

The line of progress is rewritten in place, without escape sequences. ``NO_COLOR`` and a terminal
that calls itself dumb get no colours.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Final, TypeVar

from normgrad.core.errors import printable

T = TypeVar("T")

_COLOURS: Final = {"PASS": "32", "FAIL": "1;31", "WRONG": "1;31", "right": "32", "wrong": "1;31"}
# A line of progress is written no more often than this, in seconds.
_PAUSE = 0.1

_noted = 0  # letters of the line of progress that is shown


def live() -> bool:
    """Whether a person watches."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Columns of the terminal; 80 in a pipe."""
    return shutil.get_terminal_size().columns if live() else 80


def say(text: str = "") -> None:
    """A line. Control characters, as a record may have, are shown and not obeyed."""
    note("")
    print(printable(text), flush=True)


def note(text: str) -> None:
    """What is being done now, on a terminal: the next line takes its place."""
    global _noted  # noqa: PLW0603
    if not live() or not (text or _noted):
        return
    shown = printable(text)[: width() - 1]
    sys.stdout.write("\r" + shown.ljust(_noted) + ("" if shown else "\r"))
    sys.stdout.flush()
    _noted = len(shown)


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """The items, with a line of progress; ``total`` where they have no length."""
    count = len(items) if isinstance(items, Sized) else total
    last = 0.0
    try:
        for place, item in enumerate(items):
            if time.monotonic() - last > _PAUSE:
                note(f"{label} {place} of {count}" if count else f"{label} {place}")
                last = time.monotonic()
            yield item
    finally:
        note("")


def coloured(word: str, padded: str | None = None) -> str:
    """A word such as PASS or FAIL in its colour, where colours are wanted."""
    code = _COLOURS.get(word)
    text = word if padded is None else padded
    if code is None or not live() or os.environ.get("NO_COLOR"):
        return text
    return text.replace(word, f"\x1b[{code}m{word}\x1b[0m", 1)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a header; a cell of PASS or FAIL has its colour on a terminal."""
    listed = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(header, *listed, strict=True)]
    if title:
        say(title)
    lines = Lines(list(zip(header, widths, strict=True)))
    for row in listed:
        lines.add(row)


class Lines:
    """A table that grows line by line, under columns of given widths."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self.widths = [max(len(name), least) for name, least in columns]
        self.add([name for name, _ in columns])

    def add(self, cells: Sequence[str]) -> None:
        """One more row."""
        note("")
        clean = [printable(cell) for cell in cells]
        padded = (
            coloured(cell, cell.ljust(wide)) for cell, wide in zip(clean, self.widths, strict=True)
        )
        print("  ".join(padded).rstrip(), flush=True)
