"""The operators' tables in the docs, made of the interfaces' own: ``python docs/hooks/tables.py``.

A table lies between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.products import PRODUCTS
from normgrad.aclnn.table import Page
from normgrad.capi.operator_headers import header_of, snake
from normgrad.infiniop.operators import OPERATORS

REFERENCE: Final = Path(__file__).parent.parent / "reference"
_PLACE: Final = re.compile(r"(<!-- table: ([\w ]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def aclnn_operators() -> list[str]:
    """What there is, and what it is to the functional API."""
    rows = ["| operator | what | computed by | header |", "|---|---|---|---|"]
    for page in PAGES:
        what = page.title[0].lower() + page.title[1:]
        if page.title.startswith("RMS"):
            what = page.title
        header = header_of(page).removeprefix("aclnnop/")
        rows.append(f"| `{page.name}` | {what.replace('``', '`')} | `{page.op}` | `{header}` |")
    return rows


def aclnn_arguments() -> list[str]:
    """The parameters of stage 1 in order."""
    rows = ["| operator | arguments of stage 1 |", "|---|---|"]
    return rows + [f"| `{page.name}` | {_arguments(page)} |" for page in PAGES]


def _arguments(page: Page) -> str:
    words = []
    for one in page.parameters:
        mark = "?" if one.is_tensor and not one.required else ""
        kind = "" if one.is_tensor else f"{one.declared.removeprefix('const ')} "
        words.append(f"{kind}{one.name}{mark}")
    return ", ".join(words)


def aclnn_products() -> list[str]:
    """Which product has which operator."""
    rows = ["| operator | " + " | ".join(f"`{key}`" for key in PRODUCTS) + " |"]
    rows.append("|---" * (len(PRODUCTS) + 1) + "|")
    for page in PAGES:
        has = ["no" if key in page.lacks else "yes" for key in PRODUCTS]
        rows.append(f"| `{page.name}` | {' | '.join(has)} |")
    return rows


def infiniop_operators() -> list[str]:
    """The tensors in order, results first, and the numbers that follow."""
    rows = ["| operator | what | tensors, then numbers | header |", "|---|---|---|---|"]
    for one in OPERATORS:
        listed = [f"**{tensor.name}**" if tensor.written else tensor.name for tensor in one.tensors]
        listed += [f"float {number.name}" for number in one.numbers]
        header = f"infiniop/ops/{snake(one.name)}.h"
        rows.append(f"| `infiniop{one.name}` | {one.title} | {', '.join(listed)} | `{header}` |")
    return rows


TABLES: Final[dict[str, Callable[[], list[str]]]] = {
    "aclnn operators": aclnn_operators,
    "aclnn arguments": aclnn_arguments,
    "aclnn products": aclnn_products,
    "infiniop operators": infiniop_operators,
}


def with_tables(text: str) -> str:
    """A page with its tables as they are now."""

    def table(found: re.Match[str]) -> str:
        return "".join([found[1], *(f"{row}\n" for row in TABLES[found[2]]()), found[4]])

    return _PLACE.sub(table, text)


if __name__ == "__main__":
    for page in REFERENCE.glob("*.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")
