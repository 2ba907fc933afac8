"""What benchmarks/timeline.py makes of ncu's report."""

import csv
import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import timeline

READ, WRITTEN, INSTRUCTIONS = timeline._COLUMNS.values()


def report(**cells):
    """A report of one kernel, between other lines that are printed."""
    names = {
        "ID": ("", "0"),
        "Kernel Name": ("", "layer_rows"),
        "gpu__time_duration.sum": ("ns", "1,206,500"),
        "profiler__pmsampler_interval_time": ("ns", "1,500 (1,500; 1,500)"),
        READ: ("%", "(0.00; 0; 98.5; 0; 61; 0; 0)"),
        WRITTEN: ("%", "(0.00; 0; 0; 0; 2; 30; 0)"),
        INSTRUCTIONS: ("%", "(7; 50; 0; 0)"),
        f"{timeline._STALLS}barrier.avg": ("warp", "1,500 (0; 1,500)"),
        f"{timeline._STALLS}wait.avg": ("warp", "500 (500; 0)"),
    }
    names |= {name: ("", cell) for name, cell in cells.items()}
    text = io.StringIO()
    rows = [list(names), *zip(*names.values(), strict=True)]
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows(rows)
    return f"==PROF== Connected\n{text.getvalue()}==PROF== Disconnected\n"


def test_samples_of_a_kernel():
    (found,) = timeline.read(report())
    assert found.kernel == "layer_rows"
    assert (found.microseconds, found.interval) == (1206.5, 1.5)
    # Memory from its first busy sample to its last, reads and writes of the same moments.
    assert found.shares == {
        "read": [98.5, 0, 61, 0],
        "written": [0, 0, 2, 30],
        "instructions": [7, 50],
    }
    assert found.stalls == {"barrier": 0.75, "wait": 0.25}
    assert "read         98 0 61 0" in str(found)
    assert "barrier 75%, wait 25%" in str(found)


def test_a_kernel_without_memory():
    (found,) = timeline.read(report(**{READ: "(0; 0)", WRITTEN: "(0; 0)"}))
    assert found.shares["read"] == found.shares["written"] == []


@pytest.mark.parametrize("words", [[], ["layer_norm_backward"], ["a", "b", "c", "d", "e"]])
def test_wrong_use_says_how(words, capsys):
    assert timeline.main(words) == 2
    assert "timeline.py layer_norm" in capsys.readouterr().out


def test_without_ncu(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert timeline.main(["layer_norm_backward", "64x64"]) == 1
    assert "Nsight Compute" in capsys.readouterr().out
