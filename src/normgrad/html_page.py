"""Self-contained HTML pages for reports: plain tables, light and dark, no scripts."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

_STYLE = """
:root { color-scheme: light dark; --text: #1f2328; --back: #ffffff; --soft: #f3f5f8;
  --grid: #d4d9e0; --good: #1a7f37; --bad: #c62f2f; --link: #2b63b8; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e8ee; --back: #14181d; --soft: #1d232a; --grid: #38414c;
    --good: #56c271; --bad: #ff7b72; --link: #7fb0f5; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 100rem; color: var(--text);
  background: var(--back); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
figure { margin: 0; overflow-x: auto; } figure svg { width: 100%; min-width: 48rem; height: auto; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
th, td { padding: .25rem .55rem; text-align: left; border-bottom: 1px solid var(--grid);
  vertical-align: top; }
td:not(.text) { white-space: nowrap; }
td.text { max-width: 26rem; min-width: 14rem; overflow-wrap: anywhere; }
th { background: var(--soft); position: sticky; top: 0; }
td.number { text-align: right; } td.good { color: var(--good); }
td.bad { color: var(--bad); font-weight: 600; }
""".strip()
# Longer cells may break into lines.
_TEXT_LENGTH = 32


class Cell(NamedTuple):
    """A cell with a class: ``good`` or ``bad``."""

    text: str
    style: str = ""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{escape(title)}</title>\n'
        f"<style>\n{_STYLE}\n</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        f"{body}\n</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """A heading and what follows it (HTML)."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def table(header: Sequence[str], rows: Iterable[Sequence[str | Cell]]) -> str:
    """Rows of text; numbers stand to the right."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in header)]
    for row in rows:
        cells = (cell if isinstance(cell, Cell) else Cell(cell) for cell in row)
        lines.append("".join(_cell(cell) for cell in cells))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _cell(cell: Cell) -> str:
    styles = [cell.style] if cell.style else []
    if _is_number(cell.text):
        styles.append("number")
    elif len(cell.text) > _TEXT_LENGTH:
        styles.append("text")
    attribute = f' class="{" ".join(styles)}"' if styles else ""
    return f"<td{attribute}>{escape(cell.text)}</td>"


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("%x"))
    except ValueError:
        return False
    return True


def environment_table(environment: Mapping[str, object]) -> str:
    """Names and values, one level of nesting flattened."""
    rows = []
    for name, value in environment.items():
        if isinstance(value, Mapping):
            rows += [(f"{name}: {key}", str(entry)) for key, entry in value.items()]
        else:
            rows.append((name, str(value)))
    return table(("what", "value"), rows)
