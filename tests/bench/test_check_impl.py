"""normgrad check --impl: right ones pass, each kind of wrong one is caught."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from normgrad import cli, verify
from normgrad.backends import base

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    yield
    sys.modules.pop("implementations", None)


def check(target, *options, op="layer_norm_backward", dtype="float32"):
    plain = ["check", "--plain", "--impl", target, "--op", op, "--dtype", dtype]
    return cli.main([*plain, *options])


def assert_all_right(out):
    assert " cases right, " in out
    assert "WRONG" not in out
    assert "not supported" not in out


def test_a_right_function_passes(capsys, tmp_path):
    path = tmp_path / "rows.json"
    assert check("implementations:layer_norm_backward", "--json", str(path)) == 0
    out = capsys.readouterr().out
    assert_all_right(out)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert {row["kind"] for row in rows} == {
        "shapes", "empty", "strides", "statistics", "inf and nan", "masks", "modes",
    }  # fmt: skip
    assert all(row["verdict"] == "PASS" and row["deterministic"] for row in rows)
    assert max(row["share"] for row in rows) > 0


def test_a_function_without_a_signature_gets_all_options(capsys):
    assert check("implementations:compiled") == 0
    assert_all_right(capsys.readouterr().out)
    assert check("numpy:dot") == 1
    assert "TypeError: dot() " in capsys.readouterr().out  # its own words


def test_a_module_is_judged_by_the_functions_it_has(capsys):
    assert cli.main(["check", "--impl", "implementations", "--dtype", "bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "layer_norm_backward" in out
    assert "group_norm_backward" not in out


def test_a_module_of_this_folder_is_found(tmp_path, monkeypatch, capsys):
    """By the console script too, whose path starts at its own folder."""
    source = (HERE / "implementations.py").read_text(encoding="utf-8")
    (tmp_path / "my_kernels.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    elsewhere = [one for one in sys.path if one not in ("", str(tmp_path))]
    monkeypatch.setattr(sys, "path", elsewhere)
    assert check("my_kernels:layer_norm_backward") == 0
    assert_all_right(capsys.readouterr().out)
    monkeypatch.delitem(sys.modules, "my_kernels")


def test_torch_tensors_go_in_where_asked_for(capsys):
    pytest.importorskip("torch")
    assert check("normgrad", "--arrays", "torch", op="group_norm_backward", dtype="bfloat16") == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_tensors_with_a_graph_are_numbers_too(dtype, capsys):
    pytest.importorskip("torch")
    assert check("implementations:with_history", "--arrays", "torch", dtype=dtype) == 0
    assert "WRONG" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("without_the_mean", " times the error bound, "),
        ("of_the_moment", "different bits in 3 runs"),
        ("in_place", "36 cases, first layer_norm_backward/rows float32: it changed its operand x"),
        ("of_another_shape", "TypeError: dx has shape"),
        ("of_another_type", "TypeError: dx is of type float64, should be float32"),
    ],
)
def test_wrong_functions_are_caught(function, words, capsys):
    assert check(f"implementations:{function}") == 1
    out = capsys.readouterr().out
    failures = [line for line in out.splitlines() if line.startswith("FAIL ")]
    assert any(words in line for line in failures), out
    assert f"implementations:{function} " in out
    assert "layer_norm_backward/rows float32: " in out


def test_an_exception_names_the_line_that_raised(capsys):
    assert check("implementations:raises") == 1
    out = capsys.readouterr().out
    source = (HERE / "implementations.py").read_text(encoding="utf-8").splitlines()
    line = next(n for n, text in enumerate(source, 1) if "out of paper" in text)
    words = f"first layer_norm_backward/rows float32: RuntimeError: out of paper ({HERE / 'imple'}"
    assert out.count("FAIL ") == 1  # in the same words for all cases
    assert words in out
    assert f"implementations.py:{line})" in out


def test_a_signature_that_does_not_fit_is_said_once(capsys):
    assert check("implementations:of_two_operands") == 1
    failures = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL ")]
    (line,) = failures
    order = "called as layer_norm_backward(grad_out, input, mean, rstd, normalized_shape, *, weight"
    assert order in line
    assert "its signature is (grad_out, input)" in line


def test_a_bound_of_ones_own(capsys):
    """One that is some times as wrong as it may be, and right by a bound that allows for it."""
    assert check("implementations:rounded_early") == 1
    assert " times the error bound, " in capsys.readouterr().out
    assert check("implementations:rounded_early", "--budget", "1e5") == 0
    assert_all_right(capsys.readouterr().out)


def test_torch_stands_beside_what_fails(with_torch_beside, capsys, monkeypatch, tmp_path):
    some = verify.select("layer_norm_backward", "rows")
    monkeypatch.setattr(verify, "select", lambda op: some)
    path = tmp_path / "rows.json"
    assert check("implementations:without_the_mean", "--json", str(path)) == 1
    assert " ulp (torch: " in capsys.readouterr().out
    (row,) = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert 0 < row["torch_share"] < row["share"]


def test_one_run_says_nothing_about_bits(capsys, tmp_path):
    path = tmp_path / "rows.json"
    assert check("implementations:compiled", "--repeats", "1", "--json", str(path), "-v") == 0
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert {row["deterministic"] for row in rows} == {None}
    header, line = capsys.readouterr().out.splitlines()[2:4]
    assert line[header.index("differing") :] == ""


def test_results_that_the_mask_leaves_out_must_be_none(capsys):
    assert check("implementations:whatever_the_mask", "-v") == 1
    out = capsys.readouterr().out
    failures = [line for line in out.splitlines() if line.startswith("FAIL ")]
    assert [line.split()[2] for line in failures] == [
        f"layer_norm_backward/mask-{bits}"
        for bits in ("000", "001", "010", "011", "100", "101", "110")
    ]
    words = "TypeError: it returned dgamma, which output_mask leaves out: it should be None"
    assert words in failures[-2]


def test_the_type_is_that_of_data_or_weight(capsys):
    """Float64 all over fails for float64 data in one case: the weight is float32 there."""
    assert check("implementations:of_another_type", dtype="float64") == 1
    out = capsys.readouterr().out
    (failure,) = (line for line in out.splitlines() if line.startswith("FAIL "))
    assert "/float32-statistics " in failure
    assert "dgamma is of type float64, should be float32" in failure


@pytest.mark.parametrize(
    ("function", "words"),
    [("crashes", "SIG"), ("dies_of_a_signal_without_name", "signal 40\n")],
)
def test_a_crash_fails_its_case_and_no_other(function, words, capsys, monkeypatch):
    some = verify.select("layer_norm_backward", "rows") + verify.select(
        "layer_norm_backward", "ragged"
    )
    monkeypatch.setattr(verify, "select", lambda op: some)
    assert check(f"implementations:{function}", "-v") == 1
    out = capsys.readouterr().out
    assert out.count(f"the process crashed: {words}") == 2


def test_a_check_stopped_by_hand_says_how_far_it_came():
    assert check("implementations:hears_a_signal") == 0  # the command ends it, not the terminal
    command = [
        sys.executable,
        "-m",
        "normgrad",
        "check",
        "--impl",
        "implementations:stopped_by_hand",
    ]
    done = subprocess.run(
        [*command, "--op", "layer_norm_backward", "--plain"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,  # a group of its own
        # Tests that a shell runs in the background (`make test &`) inherit that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        timeout=50,
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert done.stdout.endswith("stopped: 0 of 152 cases were checked\n")


def test_the_worst_element_is_named(capsys):
    check("implementations:without_the_mean")
    line = next(line for line in capsys.readouterr().out.splitlines() if "/rows " in line)
    assert "/rows float32: dx[" in line
    assert ", should be " in line
    assert line.endswith(" ulp")


def test_a_gpu_that_is_not_there_is_said_once(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check("implementations:layer_norm_backward", "--arrays", "torch:cuda") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "--arrays must be numpy or torch where torch can use no GPU" in captured.err


@pytest.fixture(params=["torch is not installed: pip install torch", "torch cannot be imported: "])
def no_torch(request, monkeypatch):
    """The reason why there is no torch: not installed, or installed and broken."""
    if "installed" in request.param:
        monkeypatch.setitem(sys.modules, "torch", None)  # where find_spec finds nothing
    else:
        reason = "torch cannot be imported: OSError: libtorch_cpu.so"
        monkeypatch.setattr(base, "broken", lambda package: reason)
    return request.param


def test_torch_tensors_without_torch(no_torch, capsys):
    assert check("implementations:layer_norm_backward", "--arrays", "torch") == 2
    assert f"--arrays needs torch, got torch ({no_torch}" in capsys.readouterr().err


@pytest.mark.parametrize("peer", ["torch", "liger", "flaggems"])
def test_peers_without_torch(peer, no_torch, capsys):
    assert cli.main(["check", "--impl", peer]) == 2
    assert f"--impl needs torch, got {peer} ({no_torch}" in capsys.readouterr().err


def test_a_bench_without_torch(no_torch, capsys):
    assert cli.main(["bench", "--suite", "quick"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"normgrad bench: the data are made by torch: {no_torch}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--impl", "no_such_module"], "must name a module that can be imported"),
        (["--impl", "implementations:nothing"], "must name a function of implementations"),
        (["--impl", "implementations:in_place"], "does not say which operator"),
        (["--impl", "json"], "must be a module with functions named"),
        (
            ["--impl", "implementations", "--op", "group_norm_backward"],
            "that implementations has: layer_norm_backward, got group_norm_backward",
        ),
        (["--impl", "broken:f"], "this folder or PYTHONPATH), got 'broken': KeyError: 'me'"),
        (["--impl", "leaves"], "'leaves': SystemExit: 3"),
        (["--impl", "torhc"], "PYTHONPATH), got 'torhc': did you mean torch?"),
        (["--impl", "gone.py:f"], "must be MODULE[:FUNCTION], got gone.py: there is no such file"),
        (
            ["--impl", f"{__file__}:f"],
            f"a file: write test_check_impl:f, with {HERE} on PYTHONPATH",
        ),
        (["--impl", ""], "must name a module that can be imported"),
        (["--impl", ".relative"], "must name a module that can be imported"),
        (["--impl", "normgrad", "--backend", "cpu"], "--backend must be left out with --impl"),
        (["--lib", "x.so", "--backend", "cpu"], "--backend must be left out with --impl and --lib"),
        (["--arrays", "torch"], "--arrays must be left out without --impl"),
        (["--lib", "x.so", "--arrays", "torch"], "--arrays must be left out without --impl"),
        (["--impl", "torch", "--arrays", "torch"], "--arrays must be left out with --impl torch"),
        (["--repeats", "2"], "--repeats must be left out without --impl"),
        (["--impl", "normgrad", "--lib", "x.so"], "must not be given together"),
        (["--impl", "normgrad", "--repeats", "0"], "at least 1"),
        (["--lib", "no_such_file.so"], "--lib: there is no file no_such_file.so"),
        (["--lib", __file__], "must export"),
    ],
)
def test_wrong_options_are_refused_with_words(options, words, tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.py").write_text("{}['me']", encoding="utf-8")
    (tmp_path / "leaves.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.main(["check", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_page_is_written(tmp_path, capsys):
    path = tmp_path / "check.html"
    assert check("implementations:without_the_mean", "--html", str(path)) == 1
    text = path.read_text(encoding="utf-8")
    for title in (
        "By operator and type",
        "By kind of case",
        "What is wrong",
        "Every case",
        "Where",
    ):
        assert f"<h2>{title}</h2>" in text
    assert 'class="bad">wrong' in text
    assert "mathdefault" not in text  # a formula of matplotlib's, as numbers on an axis may be
    capsys.readouterr()


def test_torch_itself_can_be_judged(capsys):
    pytest.importorskip("torch")
    code = check("torch", op="batch_norm_reduce_backward")
    assert code == 1  # on the CPU torch has no kernel for it: nothing passed
    assert "torch: 0 cases right, " in capsys.readouterr().out
