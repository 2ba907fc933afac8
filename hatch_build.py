"""The project's address, for whoever builds a package: NORMGRAD_ADDRESS=https://HOST/PATH.

No address is public yet, so none stands in pyproject.toml. With one the package's page has project
links, and the README's links to files lead to it; without, they stay relative.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class AddressHook(MetadataHookInterface):
    """Fills in what depends on the address."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Called by hatch with the ``project`` table."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = os.environ.get("NORMGRAD_ADDRESS", "").rstrip("/")
        if address:
            text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{address}/raw/main/", text)
            text = re.sub(r"\]\((?!https?:|#)", rf"]({address}/blob/main/", text)
            text = text.replace("git+ADDRESS", f"git+{address}").replace(
                "ADDRESS is where you found this page; nothing is published yet.", ""
            )
            metadata["urls"] = {
                "Source": address,
                "Documentation": f"{address}/tree/main/docs",
                "Changelog": f"{address}/blob/main/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
