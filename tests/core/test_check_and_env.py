"""The command line: exit codes, options, plain text in a pipe."""

import argparse
import importlib
import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from normgrad import __version__, backends, cli, verify
from normgrad.backends.reference.backend import ReferenceBackend
from normgrad.cli import env, terminal
from normgrad.cli.main import VERBS
from normgrad.errors import BackendError
from normgrad.verify.foreign import blank_outcome
from normgrad.verify.summary import summary

QUICK = ["check", "--op", "layer_norm", "--dtype", "float32", "--backend", "reference"]


def test_check_passes_and_ends_with_a_table(capsys):
    assert cli.main(QUICK) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "normgrad check"
    assert lines[1].split() == [
        "who", "operator", "type", "pass", "fail", "not", "offered", "worst/budget", "ulp",
        "in", "case", "other", "bits", "verdict",
    ]  # fmt: skip
    assert lines[2].split()[:3] == ["reference", "layer_norm", "float32"]
    assert lines[2].split()[-1] == "PASS"
    assert lines[-1].endswith("passed, 0 failed, 0 not offered")


def test_check_runs_every_operator_and_type_by_default(capsys):
    assert cli.main(["check", "--backend", "reference"]) == 0
    out = capsys.readouterr().out
    assert out.count("PASS") == 20  # five operators in four types
    assert "FAIL" not in out


def test_check_takes_options_together(capsys):
    assert cli.main([*QUICK, "--seed", "5"]) == 0
    assert capsys.readouterr().out.count("PASS") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="no device that is always full")
def test_a_full_disk_does_not_take_the_verdict_away(capsys):
    assert cli.main([*QUICK, "--json", "/dev/full"]) == 2
    out, err = capsys.readouterr()
    assert "PASS" in out
    assert err.endswith("No space left on device: '/dev/full'\n")


def test_check_writes_every_row(tmp_path, capsys):
    path = tmp_path / "report.json"
    assert cli.main([*QUICK, "--json", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["environment"]["normgrad"] == __version__
    rows = report["rows"]
    assert len(rows) == len(verify.select("layer_norm"))
    assert {row["op"] for row in rows} == {"layer_norm"}
    assert all(row["verdict"] == "PASS" and row["share"] <= 1 for row in rows)
    assert {row["who"] for row in rows} == {"reference"}


class Wrong(ReferenceBackend):
    """Doubles what it should write."""

    def run(self, plan, addresses, workspace, stream):
        super().run(plan, addresses, workspace, stream)
        from normgrad import hostmem
        from normgrad.spec import ROLES

        for role in plan.spec.wanted:
            tensor = plan.spec.tensor(role)
            hostmem.view(addresses[ROLES.index(role)], tensor)[...] *= 2


class Raising(ReferenceBackend):
    def run(self, plan, addresses, workspace, stream):
        raise RuntimeError("out of paper")


class Refusing(ReferenceBackend):
    def refuses(self, spec, geometry):
        return "it is my day off"


class Absent(ReferenceBackend):
    def unavailable(self):
        return "it is somewhere else"


def test_check_fails_for_a_wrong_backend(install, tmp_path, capsys):
    install(Wrong())
    path = tmp_path / "report.json"
    assert cli.main([*QUICK, "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert "FAIL reference layer_norm/rows float32: " in out
    assert "should be" in out
    assert any(row["verdict"] == "FAIL" for row in json.loads(path.read_text())["rows"])


def test_check_fails_for_a_backend_that_raises(install, tmp_path, capsys):
    install(Raising())
    path = tmp_path / "report.json"
    assert cli.main([*QUICK, "--json", str(path)]) == 1
    assert "RuntimeError: out of paper" in capsys.readouterr().out
    rows = json.loads(path.read_text())["rows"]
    assert rows[0]["share"] is None  # JSON has no infinity


def test_a_summary_names_the_worst_and_what_was_repeated():
    case = verify.select("layer_norm", "rows")[0]
    blank = blank_outcome(case, "float32", "somebody")
    good = replace(blank, verdict="PASS", share=0.5, ulps=3.0)
    bad = replace(blank, share=2.0, ulps=1.0)
    none = replace(blank, verdict="NONE", dtype="float64")
    once, never = summary([good, bad, none]).groups
    assert (once.verdict, once.worst, once.ulps, once.other_bits) == ("FAIL", bad, 3.0, None)
    assert (never.verdict, never.verdicts) == ("NONE", {"NONE": 1})
    same, other = (replace(good, deterministic=bits) for bits in (True, False))
    (repeated,) = summary([same, other, good]).groups
    assert (repeated.verdict, repeated.other_bits) == ("PASS", 1)
    assert [tuple(kind) for kind in summary([good, bad, none]).kinds] == [
        ("layer_norm", "shapes", {"PASS": 1, "FAIL": 1, "NONE": 1})
    ]


def test_check_fails_where_nothing_could_run(install, capsys):
    install(Absent())
    assert cli.main(QUICK) == 1
    assert "backend reference is not checked: it is somewhere else" in capsys.readouterr().out


def test_a_refusal_is_no_pass(install, capsys):
    install(Refusing())
    assert cli.main(QUICK) == 1
    out = capsys.readouterr().out
    assert "NONE" in out
    cases = len(verify.select("layer_norm"))
    assert f"0 passed, 0 failed, {cases} not offered" in out


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_check_says_so_before_working_for_a_file_it_cannot_write(option, tmp_path, capsys):
    assert cli.main([*QUICK, option, str(tmp_path / "no" / "report")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{option} must be a file that can be written" in captured.err


@pytest.mark.parametrize("seed", ["-1", "4294967296"])
def test_check_refuses_a_seed_that_is_none(seed, capsys):
    assert cli.main([*QUICK, "--seed", seed]) == 2
    assert f"--seed must be from 0 to 4294967295, got {seed}" in capsys.readouterr().err


def test_what_the_system_refuses_is_a_sentence(monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "report.json")

    monkeypatch.setattr(verify, "make_problem", full)
    assert cli.main(QUICK) == 2
    assert "normgrad check: [Errno 28] No space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [[], ["chekc"], ["check", "--dtype", "int8"], ["check", "--op", "rms"], ["env", "--all"]],
    ids=" ".join,
)
def test_a_wrong_call_is_told_and_gives_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert "usage: normgrad" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_says_what_it_is_for(verb):
    parser = argparse.ArgumentParser()
    importlib.import_module(f"normgrad.cli.{verb.replace('-', '_')}").add_arguments(parser)
    for option in parser._actions:
        assert option.help, option.option_strings


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"normgrad {__version__}\n"


def test_env_names_every_backend(capsys):
    assert cli.main(["env"]) == 0
    out = capsys.readouterr().out
    assert f"normgrad: {__version__}" in out
    assert "  reference: works" in out
    for name in (*backends.NAMES, "numpy", "python", "cores", "gpu"):
        assert f"{name}:" in out


def test_env_never_fails(monkeypatch, capsys):
    class Exploding:
        def unavailable(self):
            raise RuntimeError("boom")

    monkeypatch.setattr(backends, "get", lambda name: Exploding())
    monkeypatch.setattr(env, "_cpuinfo", lambda field: "")
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it raises
    assert cli.main(["env"]) == 0
    assert "cpu: broken: boom" in capsys.readouterr().out


def run_module(*words):
    return subprocess.run(
        [sys.executable, "-m", "normgrad", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_python_dash_m_and_plain_text_in_a_pipe():
    done = run_module(*QUICK)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout  # no colour codes
    assert "\r" not in done.stdout
    assert done.stdout.isascii()
    assert run_module("nonsense").returncode == 2


def test_a_pipe_takes_a_report():
    done = run_module(*QUICK, "--json", "/dev/stdout", "--html", "/dev/null")
    assert done.returncode == 0
    assert '"verdict": "PASS"' in done.stdout


# Prints, and loads neither torch nor Numba.
PLAN = "plan --op layer_norm --shape 4x8 --device h200"


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m normgrad {PLAN} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code"),
    [(f"{PLAN} >&-", 0), (f"{PLAN} <&- >&- 2>&-", 0), ("check --seed -1 2>&-", 2)],
)
def test_closed_streams_are_no_error(words, code):
    command = f"{sys.executable} -m normgrad {words}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (code, "")


def test_letters_that_the_terminal_lacks_are_no_error(install, tmp_path, monkeypatch):
    class Foreign(ReferenceBackend):
        def run(self, plan, addresses, workspace, stream):
            raise ValueError("é→\udce9")

    install(Foreign())
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", screen)
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    assert cli.main([*QUICK, "--json", str(report), "--html", str(page)]) == 1
    screen.flush()
    assert rb"ValueError: \xe9\u2192\udce9" in screen.buffer.getvalue()
    assert json.loads(report.read_text())["rows"][0]["detail"] == "ValueError: é→\udce9"
    assert r"é→\udce9" in page.read_text(encoding="utf-8")


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def write(self, text):
        raise BrokenPipeError

    def fileno(self):
        return os.open(os.devnull, os.O_WRONLY)


def test_the_exit_code_is_the_same_without_a_reader(install, monkeypatch):
    class Wrong(ReferenceBackend):
        def run(self, plan, addresses, workspace, stream):
            pass

    install(Wrong())
    monkeypatch.setattr(sys, "stdout", Gone())
    assert cli.main(QUICK) == 1
    assert isinstance(sys.stdout, Gone)
    assert cli.main([*QUICK, "--json", "/dev/full"]) == 2


def test_files_are_written_before_anything_is_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", Gone())
    path = tmp_path / "report.json"
    assert cli.main([*QUICK, "--json", str(path)]) == 0
    assert json.loads(path.read_text())["rows"]


def test_a_terminal_gets_a_rich_table(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_rich", lambda: True)
    terminal.table("Title", ["one", "two"], [["a", "PASS"]])
    assert list(terminal.progress([1, 2], "counting")) == [1, 2]
    out = capsys.readouterr().out
    assert "Title" in out
    assert "PASS" in out


def test_a_table_wider_than_the_terminal_is_plain_and_whole(monkeypatch, capsys):
    monkeypatch.setattr(terminal, "_rich", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    fitting, wide = ["x" * 36, "y" * 37], ["x" * 37, "y" * 37]
    terminal.table("Title", ["one", "two"], [fitting])
    framed = capsys.readouterr().out
    assert max(map(len, framed.splitlines())) == 80
    assert all(cell in framed for cell in fitting)
    terminal.table("Title", ["one", "two"], [wide])
    assert capsys.readouterr().out.splitlines()[-1] == "  ".join(wide)
    lines = terminal.Lines([("one", 5), ("two", 5)])
    lines.add(wide)
    lines.close()
    assert capsys.readouterr().out.splitlines()[-1] == "  ".join(wide)


def test_without_rich_the_table_is_plain(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setitem(sys.modules, "rich", None)
    terminal.table("Title", ["one", "two"], [["a", "PASS"]])
    assert capsys.readouterr().out == "Title\none  two\na    PASS\n"


def test_refusals_reach_the_caller_of_a_named_backend(install):
    import normgrad as ng

    install(Refusing())
    with pytest.raises(BackendError, match="reference: it is my day off"):
        ng.batch_norm_backward(np.ones((2, 3)), np.ones((2, 3)), backend="reference")
