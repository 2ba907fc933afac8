"""How many calls of torch's backward operators went where, and why."""

from collections import Counter
from typing import NamedTuple

from normgrad import forks


class Row(NamedTuple):
    """Calls of one operator that had the same fate."""

    operator: str
    device: str
    taken_by: str  # "normgrad" or "torch"
    reason: str  # why torch took it
    calls: int


class Report(tuple[Row, ...]):
    """The rows, most calls first; prints as a table."""

    __slots__ = ()

    def calls(self, taken_by: str, operator: str | None = None) -> int:
        """How many calls ``"normgrad"`` or ``"torch"`` took."""
        return sum(
            row.calls
            for row in self
            if row.taken_by == taken_by and operator in (None, row.operator)
        )

    def __str__(self) -> str:
        if not self:
            return "no backward operator was called while normgrad was enabled"
        lines = [("operator", "device", "taken by", "calls", "reason")]
        lines += [
            (one.operator, one.device, one.taken_by, str(one.calls), one.reason) for one in self
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        return "\n".join(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[4]]
            ).rstrip()
            for line in lines
        )


_counts: Counter[tuple[str, str, str, str]] = Counter()
_lock = forks.lock()  # autograd runs one thread for each device


def count(fate: tuple[str, str, str, str]) -> None:
    """Note one call: operator, device, by whom it was taken and why."""
    with _lock:
        _counts[fate] += 1


def report(*, reset: bool = False) -> Report:
    """Calls of the overridden operators since the process began, or since the last reset."""
    with _lock:
        rows = [Row(*key, calls) for key, calls in _counts.most_common()]
        if reset:
            _counts.clear()
    return Report(rows)
