"""normgrad bench: what it refuses, in which words, and which files it leaves alone."""

import json
import subprocess
import sys

import pytest
from bench_calls import SMALL

torch = pytest.importorskip("torch")

from normgrad import cli  # noqa: E402
from normgrad.backends.reference.backend import ReferenceBackend  # noqa: E402
from normgrad.bench import suites, timing  # noqa: E402
from normgrad.core.errors import OptionError  # noqa: E402
from normgrad.core.spec import Op  # noqa: E402


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shape", "4x4"], "--op must be given with --shape"),
        (["--op", "layer_norm_backward", "--shape", "4xx4"], "sizes of one shape joined by x"),
        (["--suite", "quick", "--peers", "nobody"], "peers must be among torch"),
        (["--op", "layer_norm_backward", "--shape", f"{2**59}x2"], "fewer than 2**60 elements"),
        (
            ["--op", "layer_norm_backward", "--shape", "4x8", "--normalized", "5"],
            "from 1 to 2 axes, got 5",
        ),
        (
            ["--op", "layer_norm_backward", "--shape", "4x8", "--normalized", "0"],
            "from 1 to 2 axes, got 0",
        ),
        (
            ["--op", "layer_norm_backward", "--shape", "4x8", "--groups", "2"],
            "for all but group_norm",
        ),
        (
            ["--op", "batch_norm_backward", "--shape", "4x8", "--normalized", "1"],
            "for all but layer_norm",
        ),
        (
            ["--op", "group_norm_backward", "--shape", "4x8x3"],
            "must divide the number of channels, 8",
        ),
        (
            ["--op", "group_norm_backward", "--shape", "4x8", "--groups", "0"],
            "--groups must be positive",
        ),
        (["--op", "batch_norm_backward", "--shape", "8"], "--shape must have 2 to 8 axes"),
        (
            ["--op", "batch_norm_backward", "--shape", "8x4", "--layout", "channels-last"],
            "for two axes",
        ),
        (
            ["--op", "batch_norm_backward", "--shape", "8x4", "--mask", "1"],
            "each of dx, dgamma, dbeta,",
        ),
        (
            ["--op", "layer_norm_backward", "--shape", "8x4", "--suite", "llm"],
            "be left out with --shape",
        ),
        (["--suite", "quick", "--groups", "2"], "be left out without --shape"),
        (["--suite", "quick", "--mask", "12"], "must be bits"),
        (["--suite", "quick", "--mask", ""], "must be bits"),
        (["--suite", "llm", "--mask", "1"], "must have a bit for each of dx, dgamma, dbeta,"),
        (["--suite", "llm", "--op", "group_norm_backward"], "at least one row"),
        (["--suite", "quick", "--plot", "x.pdf"], ".svg or .png"),
        (["--suite", "quick", "--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--suite", "quick", "--seed", "-1"], "--seed must be from 0 to 4294967295, got -1"),
        (["--suite", "quick", "--run-seconds", "-1"], "--run-seconds must be from 0 to"),
        (["--suite", "quick", "--run-seconds", "nan"], "--run-seconds must be from 0 to"),
        (["--suite", "quick", "--limit-seconds", "inf"], "--limit-seconds must be from 0 to"),
        (["--suite", "quick", "--peer-seconds", "-1"], "--peer-seconds must be from 0 to"),
        (["--suite", "quick", "--budget-seconds", "-1"], "--budget-seconds must be from 0 to"),
        (["--suite", "quick", "--csv", "x", "--html", "./x"], "another file than that of --csv"),
        (["--suite", "quick", "--json", "nowhere/x.json"], "a directory that exists"),
        (["--suite", "quick", "--backend", "none"], "--peers must name somebody to measure"),
        (["--from", "run.json"], "--backend must be left out with --from"),
    ],
)
def test_wrong_options_are_refused_with_words(options, words, monkeypatch, capsys):
    monkeypatch.setattr(timing, "timer", lambda *_: pytest.fail("something was measured"))
    assert cli.main(["bench", "--backend", "reference", *options]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            "4x8 --groups 2",
            "--groups must be left out for all but group_norm_backward and group_norm, got 2",
        ),
        ("4x8 --normalized 5", "--normalized must be from 1 to 2 axes, got 5"),
        ("4x8 --mask 12", "--mask must be bits with at least one 1, as 110, got 12"),
        ("4x8 --mask 1", "--mask must have a bit for each of dx, dgamma, dbeta, got 1"),
        ("4xx8", "--shape must be sizes of one shape joined by x, as in 32x64x56x56, got 4xx8"),
        ("0x8", "--shape must have positive sizes, got 0x8"),
        (
            "4x8 --layout channels-last",
            "--layout must be contiguous for rows and for two axes, got channels-last",
        ),
        (
            "4x8 --peers nobody",
            "--peers must be among torch, cudnn, compile, liger, flaggems, jax, got nobody",
        ),
    ],
)
def test_errors_name_the_option_as_typed(words, sentence, capsys):
    assert cli.main(["bench", "--op", "layer_norm_backward", "--shape", *words.split()]) == 2
    assert capsys.readouterr().err == f"normgrad bench: {sentence}\n"


@pytest.mark.parametrize(
    "text", ["4096x1024", "4096,1024", "(4096, 1024)", "4096 1024", "4096*1024"]
)
def test_a_shape_is_one_shape(text):
    assert suites.parse_shape(text) == (4096, 1024)


@pytest.mark.parametrize("text", ["4x8,2x2", "4x8, 2x2", "4xx8", "x", "", "-4x8", "4.0x8", "four"])
def test_what_is_no_shape_or_several_is_refused(text):
    with pytest.raises(OptionError, match="shape must be sizes of one shape joined by x"):
        suites.parse_shape(text)


def test_python_callers_read_their_own_names():
    with pytest.raises(
        OptionError,
        match=r"^groups must be left out for all but group_norm_backward and group_norm, got 2$",
    ):
        suites.asked(Op.LAYER_NORM_BACKWARD, "4x8", ["float32"], ["contiguous"], groups=2)


@pytest.mark.parametrize("option", ["--json", "--csv", "--plot", "--html"])
def test_a_directory_is_no_file(option, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(timing, "timer", lambda *_: pytest.fail("something was measured"))
    target = tmp_path / "run.svg"
    target.mkdir()
    assert cli.main([*SMALL, "--backend", "reference", option, str(target)]) == 2
    assert f"{option} must be a file that can be written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["run.svg"]  # nothing is left beside


def test_what_is_refused_later_leaves_no_file(tmp_path, capsys):
    path = tmp_path / "run.json"
    assert cli.main([*SMALL, "--mask", "1", "--json", str(path)]) == 2
    assert not path.exists()
    capsys.readouterr()


@pytest.mark.parametrize("name", ["run.json", "r" * 250 + ".json"], ids=["a folder", "too long"])
def test_a_run_is_written_where_nothing_can_be_made_beside_it(name, tmp_path):
    from normgrad.bench.record import Record, read_json

    path = tmp_path / name
    if len(name) < 250:
        path.with_name(f"{name}.part").mkdir()
    for gbps in (1.0, 2.0):
        Record({}, gbps).write_json(path)
        assert read_json(path).copy_gbps == gbps


def test_a_full_disk_leaves_the_last_whole_file_and_the_table(tmp_path, monkeypatch, capsys):
    from pathlib import Path

    from normgrad.bench.record import Record

    path = tmp_path / "run.json"
    Record({}, 1.0).write_json(path)

    def cut_short(self, text, encoding):
        self.write_bytes(text.encode(encoding)[:20])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", cut_short)
    call = [*SMALL, "--shape", "8x8", "--backend", "reference", "--json", str(path)]
    assert cli.main(call) == 2
    out, err = capsys.readouterr()
    assert "\n16x32             f32 " in out
    assert "stopped after layer_norm_backward 16x32 float32" in out
    assert err == f"normgrad bench: [Errno 28] No space left on device: '{path}'\n"
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]
    assert json.loads(path.read_text(encoding="utf-8"))["copy_gbps"] == 1.0


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    import os
    import threading

    from normgrad.bench.record import Record

    record = Record({}, 1.0)
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to(real)
    record.write_json(link)
    assert link.is_symlink()
    assert json.loads(real.read_text(encoding="utf-8"))["copy_gbps"] == 1.0
    os.mkfifo(pipe)
    writer = threading.Thread(target=record.write_json, args=(pipe,), daemon=True)
    writer.start()
    assert json.loads(pipe.read_text(encoding="utf-8"))["copy_gbps"] == 1.0
    writer.join(10)
    assert pipe.is_fifo()


def test_a_backend_that_is_not_there_is_refused(capsys, install):
    class Absent(ReferenceBackend):
        def unavailable(self):
            return "it is somewhere else"

    install(Absent())
    assert cli.main([*SMALL, "--backend", "reference"]) == 2
    told = "--backend must be one that works here, got reference (it is somewhere else)"
    assert told in capsys.readouterr().err


def test_options_are_known_without_torch():
    code = "import sys, normgrad.cli.bench; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_picture_that_cannot_be_drawn_is_said_before_anything_is_measured(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(timing, "timer", lambda *_: pytest.fail("something was measured"))
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # where find_spec finds nothing
    path = tmp_path / "run.png"
    assert cli.main([*SMALL, "--plot", str(path)]) == 2
    reason = "matplotlib is not installed: pip install matplotlib"
    words = f"--plot needs matplotlib, got {path} ({reason})"
    assert capsys.readouterr().err == f"normgrad bench: {words}\n"
