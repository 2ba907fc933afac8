"""The command line: exit codes, options, plain text in a pipe."""

import argparse
import importlib
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from neutral import neutral
from normgrad import __version__, backends, cli, verify
from normgrad.backends.reference.backend import ReferenceBackend
from normgrad.cli import env, rules, terminal, words
from normgrad.cli.main import VERBS
from normgrad.core.errors import BackendError
from normgrad.core.spec import Op
from normgrad.verify.foreign import blank_outcome
from normgrad.verify.summary import summary

QUICK = ["check", "--op", "layer_norm_backward", "--dtype", "float32", "--backend", "reference"]


def test_check_passes_in_a_line_for_each_backend(capsys):
    assert cli.main(QUICK) == 0
    cases = len(verify.select("layer_norm_backward"))
    (line,) = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"reference: {cases} cases right, \d+(\.\d)? s", line)


def test_check_verbose_has_tables_and_a_legend(capsys):
    assert cli.main([*QUICK, "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == [
        "who", "operator", "type", "right", "wrong", "not", "supported", "error/bound", "ulp",
        "torch", "worst", "case", "differing",
    ]  # fmt: skip
    assert lines[3].split()[:3] == ["reference", "layer_norm_backward", "float32"]
    assert lines[4].startswith("error/bound: ")
    assert any(line.startswith("operator ") and "kind of case" in line for line in lines)


def test_check_runs_every_operator_and_type_by_default(capsys):
    assert cli.main(["check", "--backend", "reference"]) == 0
    assert f"reference: {4 * len(verify.CASES)} cases right, " in capsys.readouterr().out


def test_check_takes_options_together(capsys):
    assert cli.main([*QUICK, "--seed", "5"]) == 0
    assert capsys.readouterr().out.count(" cases right, ") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="no device that is always full")
def test_a_full_disk_does_not_take_the_verdict_away(capsys):
    assert cli.main([*QUICK, "--json", "/dev/full"]) == 2
    out, err = capsys.readouterr()
    assert " cases right, " in out
    assert err.endswith("No space left on device: '/dev/full'\n")


def test_check_writes_every_row(tmp_path, capsys):
    path = tmp_path / "report.json"
    assert cli.main([*QUICK, "--json", str(path)]) == 0
    assert f"wrote {path}" in capsys.readouterr().out
    report = json.loads(path.read_text())
    assert report["environment"]["normgrad"] == __version__
    rows = report["rows"]
    assert len(rows) == len(verify.select("layer_norm_backward"))
    assert {row["op"] for row in rows} == {"layer_norm_backward"}
    assert all(row["verdict"] == "PASS" and row["share"] <= 1 for row in rows)
    assert {row["who"] for row in rows} == {"reference"}


class Wrong(ReferenceBackend):
    """Doubles what it should write."""

    def run(self, plan, addresses, workspace, stream):
        super().run(plan, addresses, workspace, stream)
        from normgrad.arrays import host_memory
        from normgrad.core.spec import ROLES

        for role in plan.spec.wanted:
            tensor = plan.spec.tensor(role)
            host_memory.view(addresses[ROLES.index(role)], tensor)[...] *= 2


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
    assert "FAIL reference layer_norm_backward/rows float32: " in out
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
    case = verify.select("layer_norm_backward", "rows")[0]
    blank = blank_outcome(case, "float32", "somebody")
    good = replace(blank, verdict="PASS", share=0.5, ulps=3.0)
    bad = replace(blank, share=2.0, ulps=1.0)
    none = replace(blank, verdict="NONE", dtype="float64")
    once, never = summary([good, bad, none]).groups
    assert (once.verdict, once.worst, once.other_bits) == ("FAIL", bad, None)
    assert (never.verdict, never.verdicts) == ("NONE", {"NONE": 1})
    same, other = (replace(good, deterministic=bits) for bits in (True, False))
    (repeated,) = summary([same, other, good]).groups
    assert (repeated.verdict, repeated.other_bits) == ("PASS", 1)
    assert [tuple(kind) for kind in summary([good, bad, none]).kinds] == [
        ("layer_norm_backward", "shapes", {"PASS": 1, "FAIL": 1, "NONE": 1})
    ]


def test_check_fails_where_nothing_could_run(install, capsys):
    install(Absent())
    assert cli.main(QUICK) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    words = "--backend must be one that works here, got reference (it is somewhere else)"
    assert captured.err == f"normgrad check: {words}\n"


def test_a_refusal_is_no_pass(install, capsys):
    install(Refusing())
    assert cli.main(QUICK) == 1
    cases = len(verify.select("layer_norm_backward"))
    words = f"reference: 0 cases right, {cases} not supported (it is my day off), "
    assert words in capsys.readouterr().out


def test_a_check_that_is_stopped_shows_what_was_checked(install, tmp_path, capsys):
    class Stopping(ReferenceBackend):
        runs = 0

        def run(self, plan, addresses, workspace, stream):
            super().run(plan, addresses, workspace, stream)
            Stopping.runs += 1
            if Stopping.runs == 8:
                raise KeyboardInterrupt

    install(Stopping())
    path = tmp_path / "report.json"
    assert cli.main([*QUICK, "--json", str(path)]) == 130
    out = capsys.readouterr().out
    written = len(json.loads(path.read_text(encoding="utf-8"))["rows"])
    assert written >= 7
    assert f"reference: {written} cases right, " in out
    cases = len(verify.select("layer_norm_backward"))
    assert f"stopped: {written} of {cases} cases were checked" in out


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
    ("words", "told"),
    [
        ("chekc", "normgrad: there is no verb 'chekc': did you mean check?"),
        ("benchmark", "normgrad: there is no verb 'benchmark': did you mean bench?"),
        ("xyzzy", "normgrad: there is no verb 'xyzzy' (all options: normgrad --help)"),
        ("check --dtpye float32", "normgrad check: there is no --dtpye: did you mean --dtype?"),
        ("env --all", "normgrad env: there is no --all (all options: normgrad env --help)"),
        ("check --dtype int8", "check: --dtype must be one of float16, bfloat16, float32, float64"),
        ("check --dtype bloat16", "got 'bloat16': did you mean bfloat16?"),
        ("check --op lyer_norm", "got 'lyer_norm': did you mean layer_norm?"),
        ("check --op lyer_norm", "check: --op must be an operator, got 'lyer_norm': did"),  # short
        ("check layernorm", "normgrad check: there is no layernorm: did you mean --op layernorm?"),
        ("bench layer-nrom", "there is no layer-nrom: did you mean --op layer_norm?"),
        ("bench --op ln 64x8", "there is no 64x8: did you mean --shape 64x8?"),
        ("warmup bf16", "normgrad warmup: there is no bf16: did you mean --dtype bf16?"),
        ("env bf16", "normgrad env: there is no bf16 (all options: normgrad env --help)"),
        ("check --backend gnu", "--backend must be one of reference, cpu, cuda, got 'gnu'"),
        ("check --seed one", "check: --seed must be a whole number, got 'one'"),
        ("bench --layout tiled", "--layout must be one of contiguous, channels-last, got 'tiled'"),
        ("bench --suite resnet", "got 'resnet': did you mean resnet50?"),
        ("plan --op bn --shape 4x8", "--op must be one operator, got 'bn': choose batch_norm"),
        ("plan --shape 4x8", "normgrad plan: the following arguments are required: --op"),
    ],
)
def test_a_wrong_call_is_told_in_one_line_and_gives_2(words, told, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(words.split())
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert told in err


def test_without_arguments_the_help_is_shown(capsys):
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {verb} " in shown or f"  {verb}\n" in shown for verb in VERBS)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_ends_with_two_examples_that_parse(verb, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["help", verb])
    assert caught.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3] == "examples:"
    module = importlib.import_module(f"normgrad.cli.{verb.replace('-', '_')}")
    monkeypatch.setattr(module, "run", lambda args: 0)
    monkeypatch.setattr(rules, "check", lambda args: None)
    for line in lines[-2:]:
        words = re.search(r"normgrad ([^|)#]*)", line)[1].split()
        assert words[0] in VERBS
        if words[0] == verb:
            assert cli.main(words) == 0


@pytest.mark.parametrize(
    ("text", "ops"),
    [
        ("layer_norm_backward", ["layer_norm_backward"]),
        ("layer-norm-backward", ["layer_norm_backward"]),
        ("LayerNormBackward", ["layer_norm_backward"]),
        ("layer_norm", ["layer_norm"]),  # an exact name is that operator
        ("layer-norm", ["layer_norm_backward", "layer_norm"]),
        ("layernorm", ["layer_norm_backward", "layer_norm"]),
        ("ln,rms", ["layer_norm_backward", "layer_norm", "rms_norm_backward", "rms_norm"]),
        ("BatchNorm2d", [op for op in Op if op.startswith("batch_norm")]),
    ],
)
def test_operators_are_understood(text, ops):
    assert words.operators(text) == ops


@pytest.mark.parametrize(
    ("read", "texts", "name"),
    [
        (words.dtype, ["bf16", "BF16", "torch.bfloat16", "bfloat16"], "bfloat16"),
        (words.dtype, ["fp32", "f32", "float", "np.float32"], "float32"),
        (words.dtype, ["fp16", "half", "f16"], "float16"),
        (words.backend, ["gpu", "cuda", "CUDA"], "cuda"),
        (words.layout, ["nhwc", "channels_last", "channels-last"], "channels-last"),
    ],
)
def test_words_are_understood(read, texts, name):
    assert {read(text) for text in texts} == {name}


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
PLAN = "plan --op layer_norm_backward --shape 4x8 --device h200"


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


@pytest.fixture
def terminal_of_80(monkeypatch):
    monkeypatch.setattr(terminal, "live", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.usefixtures("terminal_of_80")
def test_a_terminal_has_colours_unless_it_wants_none(monkeypatch, capsys):
    terminal.table("Title", ["one", "two"], [["a", "FAIL"]])
    assert capsys.readouterr().out == "Title\none  two\na    \x1b[1;31mFAIL\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    terminal.table("Title", ["one", "two"], [["a", "FAIL"]])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.usefixtures("terminal_of_80")
def test_a_terminal_sees_what_is_being_done(capsys):
    assert list(terminal.progress([1, 2], "counting")) == [1, 2]
    shown = capsys.readouterr().out
    assert "counting 0 of 2" in shown
    assert shown.endswith("\r")
    assert "\x1b" not in shown
    terminal.note("x" * 100)  # no line that the terminal would break
    assert capsys.readouterr().out == "\r" + "x" * 79
    terminal.say("done")
    assert capsys.readouterr().out == "\r" + " " * 79 + "\rdone\n"


def test_a_pipe_hears_of_no_progress(capsys):
    assert list(terminal.progress([1, 2], "counting")) == [1, 2]
    terminal.table("Title", ["one", "two"], [["a", "PASS"]])
    assert capsys.readouterr().out == "Title\none  two\na    PASS\n"


def test_control_characters_are_shown_and_not_obeyed(capsys):
    terminal.say("red \x1b[31m\x07")
    terminal.table("", ["one"], [["\x9b2J\n"]])
    out = capsys.readouterr().out
    assert out.splitlines()[0] == r"red \x1b[31m\x07"
    assert out.splitlines()[2] == r"\x9b2J\n"


def test_refusals_reach_the_caller_of_a_named_backend(install):
    import normgrad as ng

    install(Refusing())
    with pytest.raises(BackendError, match="reference: it is my day off"):
        ng.batch_norm_backward(
            np.ones((2, 3)), np.ones((2, 3)), *neutral(np.ones((2, 3))), backend="reference"
        )
