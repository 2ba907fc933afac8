"""The GPU's side of the benchmark: on a GPU where there is one, on stand-ins elsewhere."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from normgrad import cli  # noqa: E402
from normgrad.bench import problems, session, suites, timing  # noqa: E402
from normgrad.bench.peers import torch_eager  # noqa: E402
from normgrad.core.spec import Op  # noqa: E402


class Event:
    """Time that passes by 2 ms between two records."""

    clock = 0.0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.clock += 2.0
        self.at = Event.clock

    def elapsed_time(self, other):
        return other.at - self.at


@pytest.fixture
def gpu(monkeypatch):
    """torch.cuda by stand-ins; data stay on the CPU."""
    calls = []
    fake = SimpleNamespace(
        Event=Event,
        _sleep=lambda cycles: calls.append(("sleep", cycles)),
        synchronize=lambda: calls.append(("synchronize",)),
        reset_peak_memory_stats=lambda: None,
        memory_allocated=lambda: 1000,
        max_memory_allocated=lambda: 1640,
        memory_reserved=lambda: 0,
        empty_cache=lambda: None,
    )
    monkeypatch.setattr(timing, "_cuda", fake)
    monkeypatch.setattr(timing, "_FLUSH_BYTES", 1 << 10)
    monkeypatch.setitem(timing._COPY_BYTES, "cuda", 1 << 10)
    monkeypatch.setattr(session.torch, "cuda", fake)
    make = problems.make
    monkeypatch.setattr(problems, "make", lambda one, device, seed: make(one, "cpu", seed))
    return calls


def test_the_gpu_is_timed_between_events_with_the_host_ahead(gpu):
    timer = timing.CudaTimer("cpu", 12, 5.0)
    ran = []
    timed = timer.time({"call": lambda: ran.append(1)})["call"]
    assert timed.median_ms == 2.0
    assert timed.runs == 12
    assert len(ran) >= 12 + timing._HOST_CALLS
    assert sum(call[0] == "sleep" for call in gpu) >= 12
    assert timer.copy_gbps() == pytest.approx(2 * 1024 / 2.0 / 1e6)
    assert timer.memory_peak(lambda: None) == 640


def test_a_row_on_the_gpu_has_everything(gpu):
    timer = timing.CudaTimer("cpu", 3, 5.0)
    one = session.Session("reference", "cuda:0", [torch_eager.PEER], timer, 4000.0)
    for workload in suites.rows(Op.LAYER_NORM_BACKWARD, "32x64", ["bfloat16", "float32"]):
        row = one.measure(workload)
        assert row.error is None
        assert row.verified
        assert row.same_bits
        assert row.median_ms == row.alloc_ms == row.peers["torch"] == 2.0
        assert row.host_us > 0
        assert row.peer_host_us["torch"] > 0
        assert row.memory_peak == 640


def test_a_lost_gpu_ends_the_run(gpu, monkeypatch):
    def synchronize():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    timer = timing.CudaTimer("cpu", 3, 5.0)
    one = session.Session("reference", "cuda:0", [], timer, 4000.0)
    monkeypatch.setattr(session.torch.cuda, "synchronize", synchronize)
    (workload,) = suites.rows(Op.LAYER_NORM_BACKWARD, "32x64", ["float32"])
    with pytest.raises(session.DeviceLostError, match="the GPU failed in reference: CUDA error"):
        one.measure(workload)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on importing inductor
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_peers_on_a_real_gpu(tmp_path):
    path = tmp_path / "run.json"
    options = ["--suite", "quick", "--backend", "none", "--peers", "torch,compile"]
    # Torch's own bfloat16 batch norm is 124 times past the budget there: timed all the same.
    assert cli.main(["bench", *options, "--time-wrong-peers", "--json", str(path)]) == 0
    record = json.loads(path.read_text(encoding="utf-8"))
    assert all("torch" in row["peers"] for row in record["rows"])
    assert record["copy_gbps"] > 100
