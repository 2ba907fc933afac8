"""How many calls of torch's operators of norms went where, and why."""

from collections import Counter
from html import escape
from typing import Final, NamedTuple

from normgrad.calls.signatures import explained
from normgrad.core import fork_safe_lock, options

Fate = tuple[str, str, str, str]  # of a call: operator, device, by whom it was taken and why

_HEAD: Final = ("operator", "device", "taken by", "calls", "reason")
_NOTHING: Final = "no operator of a norm was called while normgrad was enabled"


class Row(NamedTuple):
    """Calls of one operator that had the same fate.

    Args:
        operator: Torch's name for it, without ``aten::``.
        device: "cpu" or "cuda".
        taken_by: "normgrad" or "torch".
        reason: Why torch took it; empty where we did.
        calls: How many there were.

    Example:
        >>> from normgrad.torch import Row
        >>> Row("native_layer_norm_backward", "cpu", "normgrad", "", 2).calls
        2
    """

    operator: str
    device: str
    taken_by: str
    reason: str
    calls: int


class Report(tuple[Row, ...]):
    """A tuple of ``Row``, most calls first; shows as a table.

    Example:
        >>> from normgrad.torch import Report, Row
        >>> Report([Row("native_layer_norm_backward", "cpu", "normgrad", "", 2)])
        operator                    device  taken by  calls  reason
        native_layer_norm_backward  cpu     normgrad  2
    """

    __slots__ = ()

    def calls(self, taken_by: str, operator: str | None = None) -> int:
        """How many calls went to one of the two.

        Args:
            taken_by: "normgrad" or "torch".
            operator: Count the calls of this one alone, such as "native_layer_norm_backward".

        Returns:
            The number of calls, 0 where there were none.

        Raises:
            OptionError: ``taken_by`` is another word.

        Example:
            >>> from normgrad.torch import Report, Row
            >>> Report([Row("native_layer_norm_backward", "cpu", "normgrad", "", 2)]).calls("torch")
            0
        """
        options.choice("taken_by", taken_by, ("normgrad", "torch"))
        return sum(
            row.calls
            for row in self
            if row.taken_by == taken_by and operator in (None, row.operator)
        )

    def __str__(self) -> str:
        if not self:
            return _NOTHING
        lines = [_HEAD, *map(_cells, self)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD) - 1)]
        return "\n".join(
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
            ).rstrip()
            for line in lines
        )

    __repr__ = __str__  # at a prompt too

    def _repr_html_(self) -> str:
        """The table as Jupyter shows it."""
        if not self:
            return f"<p>{_NOTHING}</p>"
        head = "".join(f"<th>{cell}</th>" for cell in _HEAD)
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in _cells(one)) for one in self]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(row: Row) -> tuple[str, ...]:
    return (row.operator, row.device, row.taken_by, str(row.calls), row.reason)


_counts: Counter[Fate] = Counter()
_before: Counter[str] = Counter()  # calls that a reset forgot, by whom they were taken
_lock = fork_safe_lock.lock()  # autograd runs one thread for each device


def count(fate: Fate) -> None:
    """Note one call."""
    with _lock:
        _counts[fate] += 1


def calls_so_far() -> Counter[str]:
    """Calls since the process began, by whom they were taken, whatever was reset."""
    with _lock:
        return _before + _by_taker()


def _by_taker() -> Counter[str]:
    calls: Counter[str] = Counter()
    for (_, _, taken_by, _), number in _counts.items():
        calls[taken_by] += number
    return calls


@explained
def report(*, reset: bool = False) -> Report:
    """What became of torch's operators of norms while ``enable()`` held.

    Args:
        reset: Begin to count anew after this report.

    Returns:
        A row for each operator, device and fate, most calls first, since the process began or since
        the last reset. At a prompt and in Jupyter it shows as a table. Calls of compiled programs
        are not counted.

    Raises:
        OptionError: ``reset`` is not True or False.

    Example:
        >>> import torch, normgrad.torch
        >>> x = torch.randn(4, 8, requires_grad=True)
        >>> with normgrad.torch.enable(backend="cpu"):
        ...     torch.nn.LayerNorm(8)(x).sum().backward()
        >>> normgrad.torch.report(reset=True)
        operator                    device  taken by  calls  reason
        native_layer_norm           cpu     normgrad  1
        native_layer_norm_backward  cpu     normgrad  1
    """
    options.flag("reset", reset)
    with _lock:
        rows = [Row(*key, calls) for key, calls in _counts.most_common()]
        if reset:
            _before.update(_by_taker())
            _counts.clear()
    return Report(rows)
