"""The site's pages: all of them can be reached, and the site is built where mkdocs is installed."""

import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NAV = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)


def test_every_page_is_in_the_navigation():
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").glob("**/*.md")}
    assert pages <= set(NAV)
    assert len(NAV) == len(set(NAV))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(
        [*command, "--site-dir", str(folder)], cwd=ROOT, check=True, timeout=120, env=environment
    )
    return folder


@pytest.mark.parametrize(
    ("package", "page"),
    [
        ("normgrad", "api"),
        ("normgrad.torch", "api-torch"),
        ("normgrad.aclnn", "api-aclnn"),
        ("normgrad.infiniop", "api-infiniop"),
    ],
)
def test_every_public_function_has_its_place(site, package, page):
    text = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r'<h3 id="([^"]+)"', text)}
    module = pytest.importorskip(package)
    public = {
        name
        for name, one in vars(module).items()
        if not name.startswith("_")
        and inspect.getmodule(one) is not None
        and (inspect.isfunction(one) or inspect.isclass(one))
        and one.__module__.startswith("normgrad")
        and not one.__module__.endswith(".constants")
    }
    assert public
    assert public <= shown


def test_every_environment_variable_is_in_the_table():
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    read = set()
    for path in (ROOT / "src").glob("**/*.py"):
        read |= set(re.findall(r'"(NORMGRAD_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    for path in (ROOT / "src").glob("**/*.c"):
        read |= set(re.findall(r'getenv\("([A-Z_]+)"\)', path.read_text(encoding="utf-8")))
    assert len(read) >= 8
    assert {name for name in read if f"| `{name}` |" not in page} == set()


def test_every_verb_is_in_the_table():
    page = (ROOT / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    verbs = importlib.import_module("normgrad.cli.main").VERBS
    assert {
        verb for verb in verbs if f"| `{verb}` |" not in page and f"| [`{verb}`]" not in page
    } == set()


def test_the_site_is_short():
    """In words, outside the contributors' logs."""
    pages = [path for path in (ROOT / "docs").glob("**/*.md") if not path.name.startswith("log-")]
    texts = [path.read_text(encoding="utf-8") for path in pages]
    words = [word for text in texts for word in text.split() if re.search("[A-Za-z]", word)]
    assert len(words) < 25000  # fused forms and 24 operators of the vendors came to 24000


def test_the_source_archive_has_what_tests_read():
    """Found by the ways in which tests name files at the root of the project."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        packed = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/*.py")]
    named = set(re.findall(r'(?:ROOT|parents\[\d\]) / "([^"]+)"', "".join(texts)))
    assert {"mkdocs.yml", "benchmarks"} <= named
    assert named - {"pyproject.toml"} <= set(packed)  # which every archive has
