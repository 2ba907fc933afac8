"""The page about contributing is the repository's own file, with links as the site has them."""

from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.file.src_uri != "contributing.md":
        return markdown
    return (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
