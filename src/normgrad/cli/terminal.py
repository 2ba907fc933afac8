"""Tables and progress: rich on a terminal, plain text in a pipe or where rich is absent."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def _rich() -> bool:
    if not sys.stdout.isatty():
        return False
    try:
        import rich  # noqa: F401
    except ImportError:
        return False
    return True


def progress(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on a terminal; ``total`` where they have no length."""
    if not _rich():
        yield from items
        return
    from rich.progress import track

    yield from track(items, description=label, total=total, transient=True)


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a header; a cell of PASS or FAIL has its colour on a terminal."""
    listed = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(header, *listed, strict=True)]
    if _rich() and _rich_table(title, header, listed, widths):
        return
    if title:
        print(title)
    for row in [list(header), *listed]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


class Lines:
    """A table that grows: line by line in a pipe, at the end on a terminal with its bar."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        self.columns = columns
        self.rows: list[list[str]] = []
        self.header = [name for name, _ in columns]
        if not _rich():
            self._print(self.header)

    def add(self, cells: Sequence[str]) -> None:
        """One more row."""
        self.rows.append(list(cells))
        if not _rich():
            self._print(cells)

    def close(self) -> None:
        """Nothing more comes."""
        if _rich() and self.rows:
            table("", self.header, self.rows)

    def _print(self, cells: Sequence[str]) -> None:
        padded = (cell.ljust(width) for cell, (_, width) in zip(cells, self.columns, strict=True))
        print("  ".join(padded).rstrip(), flush=True)


def _rich_table(
    title: str, header: Sequence[str], rows: list[list[str]], widths: list[int]
) -> bool:
    """Print it, or say that the terminal is too narrow: rich would cut names to `ba...`."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if sum(widths) + 3 * len(widths) + 1 > console.width:  # a bar and two spaces for each column
        return False
    shown = Table(title=title, title_justify="left")
    for name in header:
        shown.add_column(name)
    colours = {"PASS": "[green]PASS[/green]", "FAIL": "[bold red]FAIL[/bold red]"}
    colours["WRONG"] = "[bold red]WRONG[/bold red]"
    for row in rows:
        shown.add_row(*(colours.get(cell, cell) for cell in row))
    console.print(shown)
    return True
