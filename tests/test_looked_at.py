"""The site and the reports in a real browser: no errors, nothing scrolls sideways, light and dark.

LOOK_AT=folder keeps a picture of each.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import browser
from normgrad import cli

ROOT = Path(__file__).parent.parent
PHONE, LAPTOP = 420, 1366
# Of the page: what its text and its background are made of, from 0 to 1.
LIGHTNESS = """(() => {
  const light = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  };
  const style = getComputedStyle(document.body);
  return [light(style.color), light(style.backgroundColor)];
})()"""
SEEN = {"light": "back - text > 0.4", "dark": "text - back > 0.4"}
TOO_WIDE = """(() => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  if (wide <= 0) return "";
  const far = [...document.querySelectorAll("body *")].filter(
    one => one.getBoundingClientRect().right > innerWidth + 1);
  return wide + "px: " + far.slice(0, 3).map(one => one.outerHTML.slice(0, 80)).join(" | ");
})()"""
AT_ONCE = """(() => {
  const style = document.createElement("style");
  style.textContent = "* { transition: none !important; animation: none !important }";
  document.head.append(style);
})()"""
BROKEN_PICTURES = "[...document.images].filter(one => !one.naturalWidth).map(one => one.src)"

pytestmark = pytest.mark.skipif(
    browser.PATH is None, reason="Chromium is not installed: apt-get install chromium"
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    one = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, env=environment)
    return folder


def look_at(reader, path, name):
    """In both schemes, as wide as a phone and a laptop."""
    reader.complaints.clear()
    found = []
    reader.look(PHONE, "light")
    reader.open(path.as_uri())
    reader.ask(AT_ONCE)
    if "mathdefault" in reader.ask("document.body.textContent"):
        found.append(f"{name}: a formula of matplotlib's as it is written")
    for scheme, width in (("light", PHONE), ("dark", PHONE), ("dark", LAPTOP), ("light", LAPTOP)):
        reader.look(width, scheme)
        if sideways := reader.ask(TOO_WIDE):
            found.append(f"{name}, {width} px: {sideways}")
        try:
            reader.until(f"(([text, back]) => {SEEN[scheme]})({LIGHTNESS})")
        except AssertionError:
            found.append(f"{name}, {scheme}: lightness of text and page {reader.ask(LIGHTNESS)}")
        found += [f"{name}: no picture {one}" for one in reader.ask(BROKEN_PICTURES)]
        if folder := os.environ.get("LOOK_AT"):
            reader.picture(Path(folder) / f"{name.replace('/', '-')}-{scheme}-{width}.png")
    return found + [f"{name}: {one}" for one in reader.complaints]


def test_every_page_of_the_site(reader, site):
    found = []
    pages = sorted(path for path in site.glob("**/*.html") if path.name != "404.html")
    assert len(pages) > 30
    for path in pages:
        found += look_at(reader, path, str(path.relative_to(site).with_suffix("")))
    assert not found, "\n".join(found)


def test_search_works_from_disk(reader, site):
    reader.complaints.clear()
    reader.look(LAPTOP, "light")
    reader.open((site / "index.html").as_uri())
    field = "document.querySelector('[data-md-component=search-query]')"
    reader.ask(f"{field}.focus()")
    reader.call("Input.insertText", text="layer norm")
    links = "[...document.querySelectorAll('.md-search-result__link')]"
    # It listens to keys, once its index is there.
    reader.until(f"{field}.dispatchEvent(new KeyboardEvent('keyup')) && {links}.length > 3")
    first = reader.ask(f"{links}[0].innerText.toLowerCase()")
    assert "layer" in first
    assert "missing" not in first
    assert reader.ask(f"{links}[0].href.startsWith('file:')")
    assert reader.complaints == []


def test_report_of_check(reader, tmp_path, capsys):
    page = tmp_path / "check.html"
    command = "check --backend reference --op layer_norm_backward --dtype float32 --html"
    assert cli.main([*command.split(), str(page)]) == 0
    assert look_at(reader, page, "check") == []


@pytest.mark.parametrize("run", ["cpu", "h200"])
def test_report_of_bench(reader, tmp_path, capsys, run):
    page = tmp_path / "bench.html"
    source = ROOT / "benchmarks" / "results" / f"{run}.json"
    if not source.exists():
        pytest.skip("the source archive has no results of benchmarks")
    cli.main(["bench", "--from", str(source), "--html", str(page)])
    assert look_at(reader, page, f"bench-{run}") == []
