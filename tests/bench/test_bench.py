"""normgrad bench: what it measures, refuses, prints and writes. Timing decides nothing here."""

import csv
import json
import subprocess
import sys

import jsonschema
import pytest

torch = pytest.importorskip("torch")

from normgrad import cli  # noqa: E402
from normgrad.backends.reference.backend import ReferenceBackend  # noqa: E402
from normgrad.bench import contender, problems, session, suites, timing, truth  # noqa: E402
from normgrad.bench.peers import torch_eager  # noqa: E402
from normgrad.bench.record import read_json  # noqa: E402
from normgrad.bench.suites import Workload  # noqa: E402
from normgrad.errors import OptionError  # noqa: E402
from normgrad.spec import RESULTS, Op  # noqa: E402

NUMBER = {"type": "number"}
MAYBE = {"type": ["number", "null"]}
TIMES = {"type": "object", "additionalProperties": NUMBER}
ROW = {
    "type": "object",
    "required": [
        "op", "shape", "dtype", "layout", "mask", "backend", "median_ms", "spread", "floor_share",
        "host_us", "peers", "verified", "alloc_ms", "memory_peak", "peer_errors",
    ],
    "properties": {
        "op": {"enum": [op.value for op in Op]},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "dtype": {"enum": ["float16", "bfloat16", "float32", "float64"]},
        "layout": {"enum": list(suites.LAYOUTS)},
        "mask": {"type": "string", "pattern": "^[01]+$"},
        "backend": {"type": "string"},
        "median_ms": MAYBE,
        "alloc_ms": MAYBE,
        "spread": MAYBE,
        "floor_share": MAYBE,
        "host_us": MAYBE,
        "memory_peak": {"type": ["integer", "null"]},
        "peers": TIMES,
        "verified": {"type": "boolean"},
        "peer_errors": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}  # fmt: skip
SCHEMA = {
    "type": "object",
    "required": ["environment", "copy_gbps", "rows"],
    "properties": {
        "environment": {"type": "object", "required": ["normgrad", "python", "packages", "cpu"]},
        "copy_gbps": {"type": "number", "exclusiveMinimum": 0},
        "rows": {"type": "array", "items": ROW, "minItems": 1},
    },
}


def test_json_has_the_promised_form(record):
    jsonschema.validate(record, SCHEMA)
    assert [(row["dtype"], row["layout"]) for row in record["rows"]] == [
        ("float32", "contiguous"),
        ("bfloat16", "contiguous"),
        ("float32", "channels-last"),
        ("bfloat16", "channels-last"),
    ]
    for row in record["rows"]:
        assert row["verified"] is True
        assert row["same_bits"] is True
        assert row["median_ms"] > 0
        assert row["alloc_ms"] > 0
        assert set(row["peers"]) == {"torch"}
        assert row["peers"]["torch"] > 0
        floor = 3 * row["megabytes"] / record["copy_gbps"]
        assert row["floor_ms"] == pytest.approx(floor)
        assert row["floor_share"] == pytest.approx(row["floor_ms"] / row["median_ms"])


def test_absent_peers_are_named(record):
    assert record["absent_peers"]["liger"]
    assert "jax" in record["absent_peers"] or all("jax" in row["peers"] for row in record["rows"])


def test_csv_has_a_line_for_each_row(record_path, record):
    with record_path.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(record["rows"])
    assert float(rows[0]["torch_ms"]) == pytest.approx(record["rows"][0]["peers"]["torch"])
    assert rows[0]["shape"] == "8x64x6x6 G32"


SMALL = ["bench", "--op", "layer_norm", "--shape", "16x32", "--repeats", "2", "--run-seconds", "0"]


class Wrong(ReferenceBackend):
    """Adds a little to every element of every result."""

    def run(self, plan, addresses, workspace, stream):
        super().run(plan, addresses, workspace, stream)
        from normgrad import hostmem
        from normgrad.spec import ROLES

        for role in plan.spec.wanted:
            tensor = plan.spec.tensor(role)
            hostmem.view(addresses[ROLES.index(role)], tensor)[...] += 0.01


class Fickle(ReferenceBackend):
    """Right, and another last bit in every call."""

    turn = 0

    def run(self, plan, addresses, workspace, stream):
        super().run(plan, addresses, workspace, stream)
        import numpy as np

        from normgrad import hostmem
        from normgrad.spec import ROLES

        Fickle.turn += 1
        view = hostmem.view(addresses[ROLES.index("dx")], plan.spec.dx)
        for _ in range(Fickle.turn % 7):
            view.flat[0] = np.nextafter(view.flat[0], np.float32(9))


def test_a_wrong_result_is_shown_and_not_timed(install, tmp_path, capsys):
    install(Wrong())
    path = tmp_path / "wrong.json"
    assert cli.main([*SMALL, "--backend", "reference", "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "times the budget" in out
    (row,) = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert row["verified"] is False
    assert row["median_ms"] is None
    assert row["error"].startswith("wrong: ")


def test_other_bits_after_the_timed_runs_are_wrong(install, capsys):
    install(Fickle())
    assert cli.main([*SMALL, "--backend", "reference"]) == 1
    assert "other bits after the timed runs" in capsys.readouterr().out


class WrongPeer:
    name = "torch"

    def unavailable(self, device):
        return None

    def prepare(self, problem):
        zeros = problem.poisoned()
        for one in zeros:
            one.zero_()
        return contender.Runner(lambda: zeros, lambda arrays: contender.by_role(problem, arrays))


@pytest.mark.parametrize("timed", [False, True])
def test_a_wrong_peer_is_shown_and_timed_only_on_request(timed, monkeypatch, capsys):
    from normgrad.bench import peers

    monkeypatch.setattr(peers, "get", lambda name: WrongPeer())
    extra = ["--time-wrong-peers"] if timed else []
    options = ["--backend", "none", "--peers", "torch", "--dtype", "bfloat16", *extra]
    assert cli.main([*SMALL, *options]) == 0
    out = capsys.readouterr().out
    assert "torch: layer_norm 16x32 bfloat16 contiguous 111: wrong: " in out
    row = next(line for line in out.splitlines() if line.startswith("layer_norm"))
    assert row.endswith("!" if timed else "WRONG")


def test_peers_that_are_all_absent_leave_nothing_to_measure(monkeypatch, capsys):
    from normgrad.bench import peers

    class Elsewhere(WrongPeer):
        def unavailable(self, device):
            return "it is somewhere else"

    monkeypatch.setattr(peers, "get", lambda name: Elsewhere())
    assert cli.main([*SMALL, "--backend", "none", "--peers", "torch"]) == 2
    words = "--peers must name somebody to measure, got torch: it is somewhere else"
    assert words in capsys.readouterr().err


def test_a_peer_that_fails_does_not_end_the_run(monkeypatch, capsys):
    from normgrad.bench import peers

    class Raising(WrongPeer):
        def prepare(self, problem):
            raise RuntimeError("out of paper")

    monkeypatch.setattr(peers, "get", lambda name: Raising())
    assert cli.main([*SMALL, "--backend", "reference", "--peers", "torch"]) == 0
    assert "RuntimeError: out of paper" in capsys.readouterr().out


class skipped(Exception):
    """Its name begins the message, as the word of another fault does."""


def test_an_exception_is_a_failure_whatever_its_name(monkeypatch, install, capsys, tmp_path):
    from normgrad.bench import peers

    class RaisingPeer(WrongPeer):
        def prepare(self, problem):
            raise skipped("out of paper")

    class Raising(ReferenceBackend):
        def run(self, plan, addresses, workspace, stream):
            raise type("wrong", (Exception,), {})("out of ink")

    monkeypatch.setattr(peers, "get", lambda name: RaisingPeer())
    install(Raising())
    path = tmp_path / "run.json"
    options = ["--backend", "reference", "--peers", "torch", "--json", str(path)]
    assert cli.main([*SMALL, *options]) == 1
    out = capsys.readouterr().out
    cells = next(line for line in out.splitlines() if line.startswith("layer_norm")).split()
    assert cells[-2:] == ["refused", "failed"]
    assert "torch: layer_norm 16x32 float32 contiguous 111: skipped: out of paper" in out
    (row,) = read_json(path).rows
    assert (row.fault, row.error) == ("failed", "wrong: out of ink")
    assert row.peer_faults == {"torch": "failed"}


def forever():
    while True:
        pass


def test_a_peer_that_hangs_is_stopped():
    with pytest.raises(session.TooSlow, match="no result after 1e-05 s"), session._time_limit(1e-5):
        forever()


@pytest.mark.parametrize("layout", suites.LAYOUTS)
def test_torch_is_not_called_where_it_crashes(layout):
    """Group norm without grad_input, channels last on the CPU: torch 2.13 ends the process."""
    mask = (False, True, True)
    (row,) = suites.rows(Op.GROUP_NORM, "2x64x4x4", ["float32"], [layout], mask)
    problem = problems.make(row, "cpu")
    if layout == "channels-last":
        with pytest.raises(contender.NotOffered, match="without grad_input"):
            torch_eager.PEER.prepare(problem)
    else:
        assert torch_eager.PEER.prepare(problem).results().keys() == {"dgamma", "dbeta"}


def test_plain_text_in_a_pipe():
    command = [sys.executable, "-m", "normgrad", *SMALL, "--backend", "reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("cpu: 1 rows, copy ")
    assert lines[1].split()[:4] == ["operator", "shape", "type", "layout"]
    assert lines[2].split()[:4] == ["layer_norm", "16x32", "f32", "contiguous"]
    assert lines[-1] == "1 rows, 0 of ours wrong or refused"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shape", "4x4"], "--op must be given with --shape"),
        (["--op", "layer_norm", "--shape", "4xx4"], "sizes joined by x"),
        (["--suite", "quick", "--peers", "nobody"], "peers must be among torch"),
        (["--op", "layer_norm", "--shape", f"{2**59}x2"], "fewer than 2**60 elements"),
        (["--op", "layer_norm", "--shape", "4x8", "--normalized", "5"], "from 1 to 2 axes, got 5"),
        (["--op", "layer_norm", "--shape", "4x8", "--normalized", "0"], "from 1 to 2 axes, got 0"),
        (["--op", "layer_norm", "--shape", "4x8", "--groups", "2"], "for all but group_norm"),
        (["--op", "batch_norm", "--shape", "4x8", "--normalized", "1"], "for all but layer_norm"),
        (["--op", "group_norm", "--shape", "4x8x3"], "must divide the number of channels, 8"),
        (["--op", "group_norm", "--shape", "4x8", "--groups", "0"], "--groups must be positive"),
        (["--op", "batch_norm", "--shape", "8"], "--shape must have 2 to 8 axes"),
        (["--op", "batch_norm", "--shape", "8x4", "--layout", "channels-last"], "for two axes"),
        (["--op", "batch_norm", "--shape", "8x4", "--mask", "1"], "each of dx, dgamma, dbeta,"),
        (["--op", "layer_norm", "--shape", "8x4", "--suite", "llm"], "be left out with --shape"),
        (["--suite", "quick", "--groups", "2"], "be left out without --shape"),
        (["--suite", "quick", "--mask", "12"], "must be bits"),
        (["--suite", "quick", "--mask", ""], "must be bits"),
        (["--suite", "llm", "--mask", "1"], "must have a bit for each of dx, dgamma, dbeta,"),
        (["--suite", "llm", "--op", "group_norm"], "at least one row"),
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
        ("4x8 --groups 2", "--groups must be left out for all but group_norm, got 2"),
        ("4x8 --normalized 5", "--normalized must be from 1 to 2 axes, got 5"),
        ("4x8 --mask 12", "--mask must be bits with at least one 1, as 110, got 12"),
        ("4x8 --mask 1", "--mask must have a bit for each of dx, dgamma, dbeta, got 1"),
        ("4xx8", "--shape must be sizes joined by x, as in 32x64x56x56, got 4xx8"),
        ("0x8", "--shape must have positive sizes, got 0x8"),
        (
            "4x8 --layout channels-last",
            "--layout must be contiguous for layer norm and for two axes, got channels-last",
        ),
        (
            "4x8 --peers nobody",
            "--peers must be among torch, cudnn, compile, liger, flaggems, jax, got nobody",
        ),
    ],
)
def test_errors_name_the_option_as_typed(words, sentence, capsys):
    assert cli.main(["bench", "--op", "layer_norm", "--shape", *words.split()]) == 2
    assert capsys.readouterr().err == f"normgrad bench: {sentence}\n"


def test_python_callers_read_their_own_names():
    with pytest.raises(
        OptionError, match=r"^groups must be left out for all but group_norm, got 2$"
    ):
        suites.asked(Op.LAYER_NORM, "4x8", ["float32"], ["contiguous"], groups=2)


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
    assert "it is somewhere else" in capsys.readouterr().err


def test_options_are_known_without_torch():
    code = "import sys, normgrad.cli.bench; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_torch_that_is_not_there_is_said_on_stderr(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # an import of it raises
    assert cli.main(SMALL) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    words = "torch is missing, which makes the data: pip install torch"
    assert captured.err == f"normgrad bench: {words}\n"


def test_the_time_budget_leaves_rows_out_and_says_so(capsys):
    options = ["--shape", "8x32", "--shape", "16x32", "--budget-seconds", "0.000001"]
    assert cli.main([*SMALL, "--backend", "reference", *options]) == 1  # nothing was measured
    assert "rows were not measured: --budget-seconds" in capsys.readouterr().out


def test_a_run_stopped_by_hand_shows_what_it_has(monkeypatch, capsys, tmp_path):
    measure = session.Session.measure

    def once(self, workload):
        if workload.case.id == "8x32":
            raise KeyboardInterrupt
        return measure(self, workload)

    monkeypatch.setattr(session.Session, "measure", once)
    path = tmp_path / "run.json"
    options = ["--shape", "8x32", "--backend", "reference", "--json", str(path)]
    assert cli.main([*SMALL, *options]) == 1
    assert "stopped by hand at layer_norm 8x32" in capsys.readouterr().out
    assert len(json.loads(path.read_text(encoding="utf-8"))["rows"]) == 1


def test_suites_hold_the_tables():
    cpu = {(one.case.op, one.case.id) for one in suites.suite("all", "cpu")}
    assert (Op.BATCH_NORM, "20x6x65536") in cpu
    assert (Op.LAYER_NORM, "64x3x32x32") in cpu
    assert (Op.BATCH_NORM_ELEMT, "8x256x56x56") in cpu
    gpu = {(one.case.op, one.case.id, one.dtype) for one in suites.suite("all", "cuda:0")}
    assert (Op.GROUP_NORM, "1x128x1024x1024", "bfloat16") in gpu
    assert (Op.BATCH_NORM, "256x64x112x112", "float32") in gpu
    for name in suites.SUITES:
        rows = suites.suite(name, "cpu")
        assert len(rows) == len({one.name for one in rows})


@pytest.mark.parametrize(
    ("op", "mask", "streams"),
    [
        (Op.BATCH_NORM, "111", 3),
        (Op.BATCH_NORM, "011", 2),
        (Op.BATCH_NORM, "001", 1),
        (Op.LAYER_NORM, "100", 3),
        (Op.BATCH_NORM_ELEMT, "1", 3),
        (Op.BATCH_NORM_REDUCE, "1111", 2),
    ],
)
def test_the_floor_counts_what_must_move(op, mask, streams):
    (one,) = suites.masked(suites.rows(op, "4x8x6", ["float32"]), mask)
    assert one.streams == streams
    assert one.data_bytes == 4 * 8 * 6 * 4


SHAPES = {
    Op.BATCH_NORM: "6x10x5x7",
    Op.BATCH_NORM_REDUCE: "6x10x5x7",
    Op.BATCH_NORM_ELEMT: "6x10x5x7",
    Op.LAYER_NORM: "70x33",
    Op.GROUP_NORM: "3x12x5x7",
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", suites.LAYOUTS)
@pytest.mark.parametrize("op", list(Op))
def test_the_sliced_truth_is_the_whole_truth(op, layout, dtype, monkeypatch):
    """Slices of a few elements give what one slice gives, and the reference is right by it."""
    from normgrad.verify import call

    for one in suites.rows(op, SHAPES[op], [dtype], [layout], groups=4):
        problem = problems.make(one, "cpu")
        whole = truth.truth(problem)
        monkeypatch.setitem(truth._SLICE, "cpu", 64)
        parts = truth.truth(problem)
        out = problem.poisoned()
        call(problem.host_problem, problem.operands, out, "reference")
        named = zip(RESULTS[op], out, strict=True)
        results = {role: array for role, array in named if array is not None}
        for role in whole.values:
            assert torch.allclose(parts.values[role], whole.values[role], rtol=1e-12, atol=1e-12)
            assert torch.allclose(parts.budgets[role], whole.budgets[role], rtol=1e-9)
        reason, share = truth.wrong(problem, parts, results, 1.0)
        assert reason is None
        assert share <= 1
        for role, array in results.items():
            bent = {**results, role: array * 1.02 + 0.5}
            assert role in truth.wrong(problem, parts, bent, 1.0)[0]


def test_a_result_in_16_bits_may_be_rounded_to_them():
    """A peer's parameter gradients come in the data's type where ours are float32."""
    (one,) = suites.rows(Op.LAYER_NORM, "70x33", ["bfloat16"])
    problem = problems.make(one, "cpu")
    assert problem.result_dtypes["dgamma"] == "float32"
    known = truth.truth(problem)
    rounded = {role: want.to(torch.bfloat16) for role, want in known.values.items()}
    reason, share = truth.wrong(problem, known, rounded, 1.0)
    assert reason is None
    assert share <= 1
    bent = rounded | {"dgamma": rounded["dgamma"] * 1.02}
    assert "dgamma" in truth.wrong(problem, known, bent, 1.0)[0]


def test_a_missing_result_is_wrong():
    (one,) = suites.rows(Op.LAYER_NORM, "4x8", ["float32"])
    problem = problems.make(one, "cpu")
    reason, share = truth.wrong(problem, truth.truth(problem), {}, 16.0)
    assert reason is not None
    assert share == float("inf")


def test_medians_and_spreads():
    found = timing.summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median_ms == 3.0
    assert found.best_ms == 1.0
    assert found.runs == 5
    assert found.spread > 0


def test_tiny_workloads_are_valid_for_every_operator():
    for one in suites.suite("quick", "cpu"):
        tiny = session._tiny(one)
        assert isinstance(tiny, Workload)
        assert problems.make(tiny, "cpu").spec.wanted
