"""`normgrad demo`: bars of what was checked, in 80 columns, with and without torch."""

from dataclasses import replace

import pytest

from normgrad import cli
from normgrad.backends.reference.backend import ReferenceBackend
from normgrad.cli import demo, terminal


@pytest.fixture(autouse=True)
def small(monkeypatch):
    shapes = [(8, 16), (2, 4, 3, 3), (2, 8, 3, 3)]
    cases = [replace(one, shape=shape) for one, shape in zip(demo._CASES, shapes, strict=True)]
    cases[2] = replace(cases[2], num_groups=2)
    monkeypatch.setattr(demo, "_CASES", cases)
    monkeypatch.setattr(demo, "_SECONDS", 0.0)


def test_demo_shows_bars_and_what_to_do_next(monkeypatch, capsys):
    monkeypatch.setattr(demo, "unusable", lambda package: "torch is not installed")
    assert cli.main(["demo"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert out.isascii()
    assert "\r" not in out
    assert max(map(len, lines)) <= 80
    for case in demo._CASES:
        at = lines.index(f"{case.op} {'x'.join(map(str, case.shape))}")
        rows = [line.split() for line in lines[at + 1 : at + 3]]
        assert {row[0] for row in rows} == {"normgrad", "NumPy"}
        assert max(len(row[3]) for row in rows) == 40
        assert all(set(row[3]) == {"#"} for row in rows)
    assert "torch is not measured: torch is not installed" in lines
    assert "next:" in lines


def test_demo_beside_torch(capsys):
    pytest.importorskip("torch")
    assert cli.main(["demo"]) == 0
    assert capsys.readouterr().out.count("  torch  ") == 3


def test_a_wrong_result_is_not_timed(install, monkeypatch, capsys):
    class Wrong(ReferenceBackend):
        name = "cpu"

        def run(self, plan, addresses, workspace, stream):
            """It writes nothing."""

    install(Wrong())
    monkeypatch.setattr(demo, "unusable", lambda package: "torch is not installed")
    assert cli.main(["demo"]) == 1
    out = capsys.readouterr().out
    assert out.count("  normgrad  WRONG: ") == 3
    assert " ms" in out  # the others


def test_a_ratio_inside_the_noise_is_not_shown():
    times = {"normgrad": [1.0, 1.1, 0.9, 1.0], "torch": [1.1, 1.2, 1.0, 1.1]}
    assert demo._times("torch", times) == "too noisy"
    assert demo._times("torch", times | {"torch": [3.0, 3.1, 2.9, 3.0]}) == "3.0x"
    assert not terminal.live()
