"""The site's pages: all of them can be reached, and the site is built where mkdocs is installed."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAV = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation():
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(NAV)
    assert len(NAV) == len(set(NAV))


@pytest.mark.skipif(shutil.which("mkdocs") is None, reason="mkdocs is not installed: make docs")
def test_the_site_is_built(tmp_path):
    command = ["mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    text = (tmp_path / "reference.html").read_text(encoding="utf-8")
    for words in ("batch_norm_backward", "save_invstd_is", "Gradients"):
        assert words in text


def test_the_source_archive_has_what_tests_read():
    """Found by the ways in which tests name files at the root of the project."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        packed = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/*.py")]
    named = set(re.findall(r'(?:ROOT|parents\[\d\]) / "([^"]+)"', "".join(texts)))
    assert {"mkdocs.yml", "benchmarks"} <= named
    assert named - {"pyproject.toml"} <= set(packed)  # which every archive has
