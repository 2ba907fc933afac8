"""Plots, pages and comparisons made from a run."""

import copy
import csv
import importlib
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from normgrad import cli
from normgrad.bench import compare, plots
from normgrad.bench.record import Record, Row, read_json
from normgrad.core.operators import Op

pytest.importorskip("matplotlib")

KEPT = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("suffix", [".svg", ".png", ".PNG"])
def test_plots_are_made(record_path, tmp_path, suffix, capsys):
    path = tmp_path / f"plot{suffix}"
    assert cli.main(["bench", "--from", str(record_path), "--plot", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    data = path.read_bytes()
    if suffix.lower() == ".png":
        assert data.startswith(b"\x89PNG")
        assert len(data) > 20_000
        return
    text = data.decode()
    ET.fromstring(text)
    for words in ("group norm", "GB/s", "size of x, MB", "torch", "copy in the same run"):
        assert words in text, words


def test_every_operator_has_a_title():
    assert set(plots._TITLES) == set(Op)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_run_that_was_stopped_at_once_has_a_picture(tmp_path, suffix):
    source, path = tmp_path / "run.json", tmp_path / f"plot{suffix}"
    data = {"environment": {}, "copy_gbps": 1.0, "rows": []}
    source.write_text(json.dumps(data), encoding="utf-8")
    assert cli.main(["bench", "--from", str(source), "--plot", str(path)]) == 0
    assert path.stat().st_size > 0


def test_labels_of_a_plot_do_not_overlap(record_path):
    pyplot = plots._pyplot()
    record = read_json(record_path)
    for draw in (plots._bandwidth, plots._speedups):
        figure = pyplot.figure(figsize=(13, plots._height(record, draw)), layout="constrained")
        draw(figure, record)
        figure.canvas.draw()
        boxes = []
        for axes in figure.axes:
            if not axes.get_visible():
                continue
            labels = [*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts, axes.title]
            boxes += [
                (label.get_text(), label.get_window_extent())
                for label in labels
                if label.get_text() and label.get_visible()
            ]
        for place, (text, box) in enumerate(boxes):
            for other_text, other in boxes[place + 1 :]:
                apart = not box.overlaps(other) or box.width < 1 or other.width < 1
                assert apart, (text, other_text)
        pyplot.close(figure)


def test_a_page_without_matplotlib_has_no_pictures_and_says_so(
    record_path, tmp_path, monkeypatch, capsys
):
    page = tmp_path / "new.html"
    monkeypatch.setattr(plots, "unavailable", lambda: "matplotlib is not installed")
    assert cli.main(["bench", "--from", str(record_path), "--html", str(page)]) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    assert "Not drawn: matplotlib is not installed" in page.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Counts what is in a page, and what it would fetch."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.fetched = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not value.startswith(("#", "data:")):
                self.fetched.append(value)


def test_the_page_of_a_run_is_whole_and_alone(record_path, record, tmp_path):
    path = tmp_path / "run.html"
    assert cli.main(["bench", "--from", str(record_path), "--html", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.fetched == []
    assert "script" not in page.tags
    assert page.tags.count("svg") == 2
    assert page.tags.count("tr") > len(record["rows"])
    assert "prefers-color-scheme: dark" in text
    assert "8x64x6x6 G32" in text
    assert f"{record['copy_gbps']:.0f} GB/s" in text
    assert record["environment"]["cpu"] in text


CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_opens_in_a_browser(record_path, record, tmp_path):
    path = tmp_path / "run.html"
    assert cli.main(["bench", "--from", str(record_path), "--html", str(path)]) == 0
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "CONSOLE" not in done.stderr
    assert len(re.findall("<tr>", done.stdout)) > len(record["rows"])
    assert done.stdout.count("<svg") == 2
    for title in ("Summary", "Bandwidth", "Rows", "Where"):
        assert f"<h2>{title}</h2>" in done.stdout


def changed(record_path, tmp_path, name, change):
    data = copy.deepcopy(json.loads(record_path.read_text(encoding="utf-8")))
    for row in data["rows"]:
        row["spread"] = 0.01
    change(data["rows"])
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return str(path)


def times(factor):
    def change(rows):
        rows[0]["median_ms"] *= factor

    return change


def unverified(rows):
    rows[1]["verified"] = False


def shorter(rows):
    del rows[2]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (times(1.0), 0, "4 same"),
        (times(1.04), 0, "4 same"),
        (times(0.5), 0, "1 faster, 3 same"),
        (times(1.5), 1, "3 same, 1 slower"),
        (unverified, 1, "3 same, 1 wrong"),
        (shorter, 1, "1 gone, 3 same"),
    ],
)
def test_compare_names_what_changed(record_path, tmp_path, capsys, change, code, words):
    before = changed(record_path, tmp_path, "before", times(1.0))
    after = changed(record_path, tmp_path, "after", change)
    assert cli.main(["compare", before, after]) == code
    assert words in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    "fault", [{"verified": False}, {"same_bits": False}, {"median_ms": None}], ids=str
)
def test_what_is_wrong_in_bench_is_wrong_in_compare_and_on_the_page(fault, tmp_path, capsys):
    rows = {"right": [ROW | {"verified": True, "same_bits": True}], "none": []}
    rows["bad"] = [rows["right"][0] | fault]
    paths = {name: tmp_path / f"{name}.json" for name in rows}
    for name, path in paths.items():
        data = {"environment": {}, "copy_gbps": 1.0, "rows": rows[name]}
        path.write_text(json.dumps(data), encoding="utf-8")
    page = tmp_path / "run.html"
    said = []
    for name, code in (("bad", 1), ("right", 0), ("none", 0)):
        assert cli.main(["bench", "--from", str(paths[name]), "--html", str(page)]) == code
        lead = page.read_text(encoding="utf-8").partition("<p>")[2].partition("</p>")[0]
        said.append(lead.rpartition("written. ")[2])
    assert said == ["1 of our results are wrong or refused.", "Every result of ours is right.", ""]
    capsys.readouterr()
    for before, after, code, words in [
        ("right", "bad", 1, "1 wrong"),
        ("none", "bad", 1, "1 wrong"),
        ("none", "right", 0, "1 new"),
        ("bad", "right", 0, "1 mended"),
        ("bad", "bad", 1, "1 wrong"),
    ]:
        assert cli.main(["compare", str(paths[before]), str(paths[after])]) == code
        assert capsys.readouterr().out.splitlines()[-1] == words


def test_compare_takes_noise_and_thresholds_into_account(record_path, tmp_path, capsys):
    def noisy(rows):
        rows[0]["median_ms"] *= 1.2
        rows[0]["spread"] = 0.5

    before = changed(record_path, tmp_path, "before", times(1.0))
    assert cli.main(["compare", before, changed(record_path, tmp_path, "noisy", noisy)]) == 0
    slower = changed(record_path, tmp_path, "slower", times(1.2))
    assert cli.main(["compare", before, slower]) == 1
    assert cli.main(["compare", before, slower, "--threshold", "0.3"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("time", "floor", "relative", "verdict"),
    [
        (0.96, 1.0, False, "same"),  # a threshold of 5 %: 1 / 1.05 is 0.952
        (0.94, 1.0, False, "faster"),
        (1.04, 1.0, False, "same"),
        (1.06, 1.0, False, "slower"),
        (0.5, 0.5, False, "faster"),
        (0.5, 0.5, True, "same"),  # memory is twice as fast, and so are we
        (1.0, 0.5, True, "slower"),
        (1.0, 2.0, True, "faster"),
    ],
)
def test_what_a_change_is_measured_by(time, floor, relative, verdict):
    row = ROW | {"verified": True, "same_bits": True}
    before = Record({}, 1.0, [Row(**row, floor_ms=1.0)])
    after = Record({}, 1.0, [Row(**row | {"median_ms": time}, floor_ms=floor)])
    (change,) = compare.compare(before, after, 0.05, relative=relative)
    assert change.verdict == verdict


def test_runs_of_peers_alone_have_nothing_to_compare(tmp_path, capsys):
    path = tmp_path / "run.json"
    data = {"environment": {}, "copy_gbps": 1.0, "rows": [ROW | {"backend": "none"}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    assert cli.main(["compare", str(path), str(path)]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("nothing to compare: neither run has a row of ours")


def test_a_faster_copy_lowers_every_floor():
    rows = [Row(**ROW, floor_ms=0.5, floor_share=0.5), Row(**ROW | {"median_ms": None})]
    record = Record({}, 100.0, rows)
    record.raise_copy(90.0)
    assert (record.copy_gbps, rows[0].floor_ms, rows[0].floor_share) == (100.0, 0.5, 0.5)
    record.raise_copy(200.0)
    assert (record.copy_gbps, rows[0].floor_ms, rows[0].floor_share) == (200.0, 0.25, 0.25)
    assert rows[1].floor_share is None


def test_a_run_that_is_nowhere_cannot_be_shown(capsys):
    for words in (["bench", "--from", "nowhere.json"], ["compare", "nowhere.json", "x.json"]):
        assert cli.main(words) == 2
        assert capsys.readouterr().err == f"normgrad {words[0]}: there is no file nowhere.json\n"


def test_names_in_a_record_are_texts_and_nothing_else(tmp_path, capsys):
    """Neither formulas for matplotlib nor commands for a terminal."""
    strange = r"$\frac{$"
    evil = "\x1b[31mred\x1b]0;title\x07\x9b2J"
    row = ROW | {
        "backend": strange,
        "verified": True,
        "gbps": 1.0,
        "floor_ms": 0.5,
        "megabytes": 1.0,
    }
    row |= {"peers": {strange: 2.0, evil: 3.0}, "error": evil}
    row |= {"peer_errors": {"other": evil}, "peer_faults": {"other": "failed"}}
    data = {"environment": {"cpu": evil}, "copy_gbps": 1.0, "rows": [row]}
    data |= {"settings": {"device": evil, "started": strange}, "absent_peers": {evil: evil}}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    plot, page = tmp_path / "run.svg", tmp_path / "run.html"
    words = ["bench", "--from", str(path), "--plot", str(plot), "--html", str(page)]
    assert cli.main(words) == 0
    assert cli.main([*words[:3], "-v"]) == 0
    assert cli.main(["compare", str(path), str(path), "--all"]) == 0
    out = capsys.readouterr().out
    assert strange in plot.read_text(encoding="utf-8")
    ET.fromstring(plot.read_text(encoding="utf-8"))
    assert r"\x1b[31mred" in out
    for text in (out, page.read_text(encoding="utf-8"), plot.read_text(encoding="utf-8")):
        assert not set(text) & set("\x1b\x07\x9b")


@pytest.mark.parametrize(
    ("theirs", "spreads", "cell"),
    [
        (2.0, (0.1, 0.1), "2.00x"),
        (1.3, (0.1, 0.1), "1.30x"),
        (1.15, (0.1, 0.1), "noisy"),
        (0.9, (0.1, 0.1), "noisy"),
        (0.7, (0.1, 0.1), "0.70x"),
        (1.02, (0.02, 0.01), "equal"),
        (1.04, (0.02, 0.01), "1.04x"),
    ],
)
def test_a_ratio_inside_the_noise_is_no_result(theirs, spreads, cell, tmp_path, capsys):
    row = ROW | {"verified": True, "alloc_ms": 1.0, "alloc_spread": spreads[0], "load": 7.7}
    row |= {"peers": {"torch": theirs}, "peer_spread": {"torch": spreads[1]}}
    data = {"environment": {"cores": 2}, "copy_gbps": 1.0, "rows": [row]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert cli.main(["bench", "--from", str(path)]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("4x8 "))
    assert line.split()[-1] == cell
    assert f"{spreads[1]:.0%}" in line  # the others' spread
    mean = "too little or too noisy to tell" if cell in ("noisy", "equal") else f"{theirs:.2f}x"
    assert f"geometric mean over torch, float32: {mean}" in out
    assert ("too noisy to tell; load 7.7 on 2 cores" in out) is (cell == "noisy")


@pytest.mark.parametrize(("load", "told"), [(3.9, False), (12.5, True), (None, False)])
def test_a_busy_machine_is_told(load, told, tmp_path, capsys):
    row = ROW | {"verified": True, "alloc_ms": 1.0, "alloc_spread": 0.1, "load": load}
    row |= {"peers": {"torch": 600.0}, "peer_spread": {"torch": 0.1}}
    data = {"environment": {"cores": 2}, "copy_gbps": 1.0, "rows": [row]}
    path = tmp_path / "run.json"
    for cores in ("many", 2):
        data["environment"]["cores"] = cores
        path.write_text(json.dumps(data), encoding="utf-8")
        assert cli.main(["bench", "--from", str(path)]) == 0
    assert ("busy: load 12.5 on 2 cores: threads wait" in capsys.readouterr().out) is told


@pytest.mark.parametrize(("spread", "cell"), [(0.9, "50%"), (3.5, "noisy")])
def test_a_share_of_the_copy_inside_the_noise_is_no_result(spread, cell, tmp_path, capsys):
    row = ROW | {"verified": True, "floor_ms": 0.5, "alloc_ms": 1.0, "alloc_spread": spread}
    data = {"environment": {"cores": 2}, "copy_gbps": 1.0, "rows": [row | {"load": 7.7}]}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    assert cli.main(["bench", "--from", str(path)]) == 0
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith("4x8 "))
    assert line.split()[-1] == cell
    assert ("too noisy to tell; load 7.7 on 2 cores" in out) is (cell == "noisy")


@pytest.mark.parametrize(
    "options", [["--op", "layer_norm_backward"], ["--time-wrong-peers"]], ids=str
)
def test_to_show_a_run_takes_no_options_of_measuring(options, record_path, capsys):
    assert cli.main(["bench", "--from", str(record_path), *options]) == 2
    assert f"{options[0]} must be left out with --from" in capsys.readouterr().err


@pytest.mark.parametrize("threshold", ["-1", "nan"])
def test_compare_refuses_a_threshold_that_is_none(threshold, record_path, capsys):
    words = ["compare", str(record_path), str(record_path), "--threshold", threshold]
    assert cli.main(words) == 2
    assert "--threshold must be at least 0" in capsys.readouterr().err


ROW = {"op": "layer_norm_backward", "shape": [4, 8], "dtype": "float32", "layout": "contiguous"}
ROW |= {"mask": "111", "backend": "cpu", "median_ms": 1.0}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "got []"),
        ({}, "got no 'environment'"),
        ({"environment": {}, "copy_gbps": 1.0}, "got no 'rows'"),
        ({"environment": {}, "copy_gbps": "fast", "rows": []}, "got copy_gbps 'fast'"),
        ({"environment": {}, "copy_gbps": 0, "rows": []}, "got a time or speed of 0"),
        ([ROW, "x"], "got row 2: 'x'"),
        ([{}], "got row 1: no 'op'"),
        ([ROW | {"dtype": "int3"}], "got row 1: dtype 'int3'"),
        ([ROW | {"op": "no_norm"}], "got row 1: op 'no_norm'"),
        ([ROW | {"layout": "tiled"}], "got row 1: layout 'tiled'"),
        ([ROW | {"shape": ["4", 8]}], "got row 1: shape ['4', 8]"),
        ([ROW | {"median_ms": "1"}], "got row 1: median_ms '1'"),
        ([ROW | {"median_ms": True}], "got row 1: median_ms True"),
        ([ROW | {"median_ms": 0.0}], "got row 1: a time or speed of 0"),
        ([ROW | {"median_ms": 10**400}], "got row 1: median_ms 1000"),
        ([ROW | {"memory_peak": 10**400}], "got row 1: memory_peak 1000"),
        ([ROW | {"fault": "tired"}], "got row 1: fault 'tired'"),
        ([ROW | {"peers": {"torch": -1.0}}], "got row 1: peers {'torch': -1.0}"),
        ([ROW | {"peers": {"torch": float("nan")}}], "got row 1: peers {'torch': nan}"),
    ],
    ids=lambda one: f"{one!s:.160}",
)
def test_what_is_no_run_is_refused_with_the_row(data, words, tmp_path, capsys):
    if isinstance(data, list) and data:
        data = {"environment": {}, "copy_gbps": 1.0, "rows": data}
    path = tmp_path / "other.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    for verb in (["compare", str(path), str(path)], ["bench", "--from", str(path)]):
        assert cli.main(verb) == 2
        err = capsys.readouterr().err
        assert f"{path} must be JSON that `normgrad bench --json` wrote" in err
        assert words in err


@pytest.mark.parametrize("option", ["--csv", "--html", "--json"])
def test_a_run_is_not_written_over_by_what_is_made_of_it(option, tmp_path, monkeypatch, capsys):
    path = tmp_path / "run.json"
    text = json.dumps({"environment": {}, "copy_gbps": 1.0, "rows": [ROW]})
    path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", "--from", "run.json", option, str(path)]) == 2
    assert f"{option} must be another file than that of --from" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == text


def test_what_a_run_said_is_shown_again(tmp_path, capsys):
    """The copy, who was absent, and peers that no row has a time of."""
    faults = {"peer_faults": {"liger": "failed"}, "peer_errors": {"liger": "ValueError: no"}}
    rows = [ROW | faults | {"verified": True, "wrong_peers": {"flaggems": 3.0}}]
    data = {"environment": {}, "copy_gbps": 7.0, "rows": rows}
    more = {"settings": {"device": "cuda:0"}, "absent_peers": {"jax": "jax is not installed"}}
    path, table = tmp_path / "run.json", tmp_path / "run.csv"
    path.write_text(json.dumps(data | more), encoding="utf-8")
    assert cli.main(["bench", "--from", str(path), "--csv", str(table)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "cuda:0: 1 rows, copy 7 GB/s (read plus written)",
        "peer jax is not measured: jax is not installed",
    ]
    assert "flaggems ms" in lines[2]
    assert lines[4].split()[-2:] == ["3.000!", "failed"]
    with table.open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert "wrong_peers" not in row
    assert (row["flaggems_ms"], row["flaggems_wrong_ms"], row["liger_ms"]) == ("", "3.0", "")


def test_a_row_may_lack_what_has_a_default(tmp_path, capsys):
    path = tmp_path / "short.json"
    rows = [ROW | {"verified": True, "peers": {"torch": 2.0}, "of_a_later_version": 1}]
    data = {"environment": {}, "copy_gbps": 1.0, "rows": rows}
    path.write_text(json.dumps(data), encoding="utf-8")
    pictures = ["--html", str(tmp_path / "short.html"), "--csv", str(tmp_path / "short.csv")]
    assert cli.main(["bench", "--from", str(path), *pictures]) == 0
    assert cli.main(["compare", str(path), str(path), "--relative"]) == 0
    assert "1 same" in capsys.readouterr().out


def test_faults_of_older_runs_are_read_from_their_words(tmp_path, capsys):
    words = ["wrong: dx[0] is 1", "not offered: no mask", "skipped: it took 9 s", "ValueError: no"]
    rows = [ROW | {"median_ms": None, "error": words[0], "peers": {"torch": 2.0}}]
    rows += [ROW | {"verified": True, "peer_errors": {"torch": error}} for error in words]
    path, page = tmp_path / "old.json", tmp_path / "old.html"
    data = {"environment": {}, "copy_gbps": 1.0, "rows": rows}
    path.write_text(json.dumps(data), encoding="utf-8")
    assert cli.main(["bench", "--from", str(path), "--html", str(page)]) == 1
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines() if line.startswith("4x8 ")]
    assert table[0][-2:] == ["WRONG", "2.000"]
    assert [cells[-1] for cells in table[1:]] == ["WRONG", "-", "skipped", "failed"]
    assert [row.fault for row in read_json(path).rows] == ["wrong", None, None, None, None]
    notes = [line for line in out.splitlines() if line.startswith("torch: ")]
    assert [note.rpartition("111: ")[2] for note in notes] == [words[0], words[3]]
    assert page.read_text(encoding="utf-8").count('class="bad">wrong') == 2


def test_the_kept_runs_can_be_shown(capsys):
    for name in ("h200", "deeplab", "cpu", "cpu-before", "cpu-passive"):
        assert cli.main(["bench", "--from", str(KEPT / f"{name}.json")]) == 0
    capsys.readouterr()


def test_the_page_of_performance_is_that_of_the_kept_runs(monkeypatch):
    monkeypatch.syspath_prepend(str(KEPT.parent))
    page = importlib.import_module("performance_page")
    assert page.page() == page.PAGE.read_text(encoding="utf-8")
