"""Every code block of the docs runs alone and prints; commands are ours; links lead somewhere."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from normgrad import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
# A block that needs more than the tests have says so in the line above: <!-- needs: torchvision -->
BLOCK = re.compile(
    r"^(?:<!-- needs: (?P<needs>[^\n]*) -->\n)?```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^ {4,}(?:[A-Z_]+=\S+ )*normgrad (?P<words>[^#|>&\n]*)", re.MULTILINE)
EXPECTED = re.compile(r"^ *print\(.*\)  # -> (?P<text>.*)$", re.MULTILINE)
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<place>[^)]*))?\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (?P<words>.*)$", re.MULTILINE)


def name(page):
    return str(page.relative_to(ROOT))


def blocks():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("code"))
            yield pytest.param(page, block, line, id=f"{name(page)}:{line}")


@pytest.fixture(autouse=True)
def _as_in_a_new_process():
    if ours := sys.modules.get("normgrad.torch"):
        ours.report(reset=True)
    yield
    if ours := sys.modules.get("normgrad.torch"):
        ours.disable()


# Torch says so of itself when it loads inductor; lightning's own.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize(("page", "block", "line"), [*blocks()])
def test_block_runs_alone_and_prints(page, block, line, capsys, tmp_path, monkeypatch):
    """With nothing before it; what stands behind `# ->` is what is printed."""
    for need in (block["needs"] or "").split():
        if need == "cuda":
            if not pytest.importorskip("torch").cuda.is_available():
                pytest.skip("needs a GPU")
        else:
            pytest.importorskip(need)
    monkeypatch.chdir(tmp_path)
    code = "\n" * line + block["code"]  # so that a traceback names the page's own line
    exec(compile(code, str(page), "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.strip(), "a block prints what it found"
    for expected in EXPECTED.finditer(block["code"]):
        assert expected["text"] in printed


def commands():
    for page in PAGES:
        for command in COMMAND.finditer(page.read_text(encoding="utf-8")):
            words = command["words"].split()
            yield pytest.param(words, id=f"{name(page)}: {' '.join(words)}")


@pytest.mark.parametrize("words", [*commands()])
def test_command_is_one_that_the_command_line_takes(words, monkeypatch, tmp_path):
    """Parsed and looked at as if called; nothing is run."""
    monkeypatch.chdir(tmp_path)
    verb = importlib.import_module(f"normgrad.cli.{words[0].replace('-', '_')}")
    monkeypatch.setattr(verb, "run", lambda _: 0)
    assert cli.main(words) == 0


def places(page):
    """What the headings of a page are called in links to them."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for heading in HEADING.finditer(text):
        yield re.sub(r"[^\w\- ]", "", heading["words"].lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_inside_the_project_lead_somewhere(page):
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        if "://" in link["target"]:
            continue
        target = page.parent / link["target"] if link["target"] else page
        assert target.exists(), link[0]
        if link["place"]:
            assert link["place"] in set(places(target)), link[0]


def test_paths_that_contributors_read_of_are_there():
    """Files and folders in backticks, from the project's root or the package's."""
    for page in (ROOT / "docs" / "contributors").glob("[!l]*.md"):
        for path in re.findall(r"`([\w*/.]+(?:/|\.py))`", page.read_text(encoding="utf-8")):
            within = [ROOT, ROOT / "src" / "normgrad"]
            backend = {"cpu.md": "cpu", "gpu.md": "cuda"}.get(page.name)
            if backend:  # these pages say which folder theirs are in
                within.append(ROOT / "src" / "normgrad" / "backends" / backend)
            if "/" not in path:
                within += [one for one in (ROOT / "src" / "normgrad").iterdir() if one.is_dir()]
            name = path.replace("NAME", "*").rstrip("/")
            assert any([*one.glob(name)] for one in within), (page.name, path)


def test_the_readme_is_short_and_has_examples_that_run():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(BLOCK.findall(text)) >= 3
    assert text.count("\n") <= 120
