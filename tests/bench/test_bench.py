"""normgrad bench: what it measures, refuses, prints and writes. Timing decides nothing here."""

import csv
import json
import subprocess
import sys

import jsonschema
import pytest
from bench_calls import SMALL

torch = pytest.importorskip("torch")

from normgrad import cli  # noqa: E402
from normgrad.backends.reference.backend import ReferenceBackend  # noqa: E402
from normgrad.bench import contender, peers, problems, session, suites, timing  # noqa: E402
from normgrad.bench.peers import torch_eager  # noqa: E402
from normgrad.bench.record import read_json  # noqa: E402
from normgrad.core.spec import Op  # noqa: E402

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


@pytest.mark.parametrize(
    ("name", "package", "device", "words"),
    [
        ("jax", "jax", "cpu", "jax is not installed: pip install jax"),
        ("jax", "jax", "cuda", "only on the CPU: its stream cannot be timed here"),
        (
            "liger",
            "liger_kernel",
            "cuda",
            "liger_kernel is not installed: pip install liger-kernel",
        ),
        ("liger", "liger_kernel", "cpu", "its kernels need a GPU"),  # an install would not help
        ("flaggems", "flag_gems", "cpu", "its kernels need a GPU"),
    ],
)
def test_an_absent_peer_says_what_would_help(name, package, device, words, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # where find_spec finds nothing
    assert peers.get(name).unavailable(device) == words


def test_csv_has_a_line_for_each_row(record_path, record):
    with record_path.with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(record["rows"])
    assert float(rows[0]["torch_ms"]) == pytest.approx(record["rows"][0]["peers"]["torch"])
    assert rows[0]["shape"] == "8x64x6x6 G32"


class Wrong(ReferenceBackend):
    """Adds a little to every element of every result."""

    def run(self, plan, addresses, workspace, stream):
        super().run(plan, addresses, workspace, stream)
        from normgrad.arrays import host_memory
        from normgrad.core.spec import ROLES

        for role in plan.spec.wanted:
            tensor = plan.spec.tensor(role)
            host_memory.view(addresses[ROLES.index(role)], tensor)[...] += 0.01


class Fickle(ReferenceBackend):
    """Right, and another last bit in every call."""

    turn = 0

    def run(self, plan, addresses, workspace, stream):
        super().run(plan, addresses, workspace, stream)
        import numpy as np

        from normgrad.arrays import host_memory
        from normgrad.core.spec import ROLES

        Fickle.turn += 1
        view = host_memory.view(addresses[ROLES.index("dx")], plan.spec.dx)
        for _ in range(Fickle.turn % 7):
            view.flat[0] = np.nextafter(view.flat[0], np.float32(9))


def test_a_wrong_result_is_shown_and_not_timed(install, tmp_path, capsys):
    install(Wrong())
    path = tmp_path / "wrong.json"
    assert cli.main([*SMALL, "--backend", "reference", "--json", str(path)]) == 1
    out = capsys.readouterr().out
    assert "WRONG" in out
    assert "times the error bound" in out
    (row,) = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert row["verified"] is False
    assert row["median_ms"] is None
    assert row["error"].startswith("wrong: ")


def test_other_bits_after_the_timed_runs_are_wrong(install, capsys):
    install(Fickle())
    assert cli.main([*SMALL, "--backend", "reference"]) == 1
    assert "different bits after the timed runs" in capsys.readouterr().out


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
    monkeypatch.setattr(peers, "get", lambda name: WrongPeer())
    extra = ["--time-wrong-peers"] if timed else []
    options = ["--backend", "none", "--peers", "torch", "--dtype", "bfloat16", *extra]
    assert cli.main([*SMALL, *options]) == 0
    out = capsys.readouterr().out
    assert "torch: layer_norm_backward 16x32 bfloat16 contiguous 111: wrong: " in out
    row = next(line for line in out.splitlines() if line.startswith("16x32 "))
    assert row.split()[3].endswith("!" if timed else "WRONG")


def test_peers_that_are_all_absent_leave_nothing_to_measure(monkeypatch, capsys):
    class Elsewhere(WrongPeer):
        def unavailable(self, device):
            return "it is somewhere else"

    monkeypatch.setattr(peers, "get", lambda name: Elsewhere())
    assert cli.main([*SMALL, "--backend", "none", "--peers", "torch"]) == 2
    words = "--peers must name somebody to measure, got torch: it is somewhere else"
    assert words in capsys.readouterr().err


def test_a_peer_that_fails_does_not_end_the_run(monkeypatch, capsys):
    class Raising(WrongPeer):
        def prepare(self, problem):
            raise RuntimeError("out of paper")

    monkeypatch.setattr(peers, "get", lambda name: Raising())
    assert cli.main([*SMALL, "--backend", "reference", "--peers", "torch"]) == 0
    assert "RuntimeError: out of paper" in capsys.readouterr().out


@pytest.mark.parametrize("made", [None, "x", torch.zeros(3), torch.zeros(512, device="meta")])
def test_a_peer_whose_results_have_no_form_is_wrong_and_we_are_not(made, monkeypatch, capsys):
    class Shapeless(WrongPeer):
        def prepare(self, problem):
            results = (made, *problem.poisoned()[1:])
            return contender.Runner(
                lambda: results, lambda arrays: contender.by_role(problem, arrays)
            )

    monkeypatch.setattr(peers, "get", lambda name: Shapeless())
    assert cli.main([*SMALL, "--backend", "reference", "--peers", "torch"]) == 0
    out = capsys.readouterr().out
    assert "torch: layer_norm_backward 16x32 float32 contiguous 111: wrong: dx " in out
    assert "1 rows, 0 of ours wrong or refused" in out


@pytest.mark.parametrize("role", ["dy", "x", "mean", "gamma"])
def test_a_peer_that_changes_its_operands_is_wrong_and_nobody_else(role, monkeypatch, capsys):
    class Spoiling(WrongPeer):
        name = "cudnn"

        def prepare(self, problem):
            def run():
                results = torch_eager.PEER.prepare(problem).run()
                problem.operands[role].mul_(2)
                return results

            return contender.Runner(run, lambda arrays: contender.by_role(problem, arrays))

    known = {"cudnn": Spoiling(), "torch": torch_eager.PEER}
    monkeypatch.setattr(peers, "get", known.get)
    options = ["--backend", "reference", "--peers", "cudnn,torch", "--time-wrong-peers"]
    assert cli.main([*SMALL, *options]) == 0
    out = capsys.readouterr().out
    assert f"contiguous 111: wrong: it changed its operand {role}" in out
    assert "different bits" not in out
    assert "torch: layer_norm_backward" not in out  # its own results are right


class skipped(Exception):
    """Its name begins the message, as the word of another fault does."""


def test_an_exception_is_a_failure_whatever_its_name(monkeypatch, install, capsys, tmp_path):
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
    cells = next(line for line in out.splitlines() if line.startswith("16x32 ")).split()
    assert cells[-2:] == ["refused", "failed"]
    assert "torch: layer_norm_backward 16x32 float32 contiguous 111: skipped: out of paper" in out
    (row,) = read_json(path).rows
    assert (row.fault, row.error) == ("failed", "wrong: out of ink")
    assert row.peer_faults == {"torch": "failed"}


class Clock(timing.CpuTimer):
    """Everybody takes the time of its name."""

    def time(self, calls):
        for name, given in (("out", True), ("alloc", False)):
            first, again = calls[name](), calls[name]()
            assert (first.grad_input.data_ptr() == again.grad_input.data_ptr()) is given
        times = {"out": 1.0, "alloc": 2.0, "torch": 3.0}
        return {name: timing.Timing(times[name], times[name] / 2, 0.1, 1) for name in calls}

    def near_copies(self):
        return [10.0, 20.0, 30.0, 40.0, 500.0]


def test_each_time_has_its_place_in_the_row():
    (one,) = suites.rows(Op.LAYER_NORM_BACKWARD, "16x32", ["float32"])
    made = session.Session("reference", "cpu", [torch_eager.PEER], Clock(1, 0.0), copy_gbps=2.0)
    row = made.measure(one)
    assert (row.median_ms, row.best_ms, row.alloc_ms) == (1.0, 0.5, 2.0)
    assert (row.peers, row.peer_best_ms) == ({"torch": 3.0}, {"torch": 1.5})
    assert row.speedup("torch") == 1.5  # both allocating
    assert row.floor_ms == pytest.approx(3 * 16 * 32 * 4 / 2e9 * 1e3)
    assert row.floor_share == row.floor_ms / row.median_ms
    assert row.copy_gbps == 30.0


@pytest.mark.parametrize("speeds", [(10.0, 20.0), (20.0, 10.0)])
def test_the_faster_copy_of_the_two_is_the_floor(speeds, monkeypatch, tmp_path):
    measured = iter(speeds)
    monkeypatch.setattr(timing.CpuTimer, "copy_gbps", lambda self: next(measured))
    path = tmp_path / "run.json"
    assert cli.main([*SMALL, "--backend", "reference", "--json", str(path)]) == 0
    record = read_json(path)
    assert record.copy_gbps == 20.0
    assert record.rows[0].floor_ms == pytest.approx(3 * 16 * 32 * 4 / 20e9 * 1e3)
    kept = record.settings
    assert (kept["copy_gbps_before"], kept["copy_gbps_after"]) == speeds


def test_a_peer_that_takes_too_long_to_prepare_is_left_out():
    rows = list(suites.rows(Op.LAYER_NORM_BACKWARD, "16x32, 16x64", ["float32"]))
    made = session.Session("reference", "cpu", [torch_eager.PEER], Clock(1, 0.0), copy_gbps=2.0)
    made.seconds_per_peer = 1e-9
    first, second = map(made.measure, rows)
    assert "torch" in first.peers
    assert second.peer_faults == {"torch": "skipped"}
    assert second.peer_errors["torch"].startswith("skipped: it took ")


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
    (row,) = suites.rows(Op.GROUP_NORM_BACKWARD, "2x64x4x4", ["float32"], [layout], mask)
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
    assert lines[1].split() == ["shape", "type", "channels", "ours", "ms", "+-", "copy"]
    assert lines[2] == "layer_norm_backward:"
    assert lines[3].split()[:3] == ["16x32", "f32", "-"]
    assert max(map(len, lines[1:4])) <= 80
    assert lines[-1] == "1 rows, 0 of ours wrong or refused"
    assert done.stderr == ""


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
    assert "interrupted at layer_norm_backward 8x32" in capsys.readouterr().out
    assert len(json.loads(path.read_text(encoding="utf-8"))["rows"]) == 1
