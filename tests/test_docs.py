"""Every Python block of the docs runs, every link inside the project leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


def name(page):
    return str(page.relative_to(ROOT))


# Torch says so of itself when it loads inductor.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_blocks_run(page):
    """In one namespace, as a reader would. A block that needs a GPU says so: ```python cuda."""
    namespace = {"__name__": "page"}
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        if "cuda" in block["info"]:
            torch = pytest.importorskip("torch")
            if not torch.cuda.is_available():
                continue
        line = text.count("\n", 0, block.start()) + 1
        code = "\n" * line + block["code"]  # so that a traceback names the page's own line
        exec(compile(code, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_inside_the_project_lead_somewhere(page):
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        target = link["target"]
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_readme_has_an_example_that_runs():
    assert BLOCK.search((ROOT / "README.md").read_text(encoding="utf-8"))
