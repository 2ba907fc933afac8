"""What the bench measures, and whose result is right by it."""

import dataclasses
import math

import pytest

torch = pytest.importorskip("torch")

from normgrad.bench import problems, session, suites, timing, truth  # noqa: E402
from normgrad.bench.suites import Workload  # noqa: E402
from normgrad.core.operators import OPERATORS, RESULTS, Op  # noqa: E402


def test_suites_hold_the_tables():
    cpu = {(one.case.op, one.case.id) for one in suites.suite("all", "cpu")}
    assert (Op.BATCH_NORM_BACKWARD, "20x6x65536") in cpu
    assert (Op.LAYER_NORM_BACKWARD, "64x3x32x32") in cpu
    assert (Op.BATCH_NORM_ELEMT_BACKWARD, "8x256x56x56") in cpu
    gpu = {(one.case.op, one.case.id, one.dtype) for one in suites.suite("all", "cuda:0")}
    assert (Op.GROUP_NORM_BACKWARD, "1x128x1024x1024", "bfloat16") in gpu
    assert (Op.BATCH_NORM_BACKWARD, "256x64x112x112", "float32") in gpu
    for name in suites.SUITES:
        rows = suites.suite(name, "cpu")
        assert len(rows) == len({one.name for one in rows})


@pytest.mark.parametrize(
    ("op", "mask", "streams"),
    [
        (Op.BATCH_NORM_BACKWARD, "111", 3),
        (Op.BATCH_NORM_BACKWARD, "011", 2),
        (Op.BATCH_NORM_BACKWARD, "001", 1),
        (Op.LAYER_NORM_BACKWARD, "100", 3),
        (Op.BATCH_NORM_ELEMT_BACKWARD, "1", 3),
        (Op.BATCH_NORM_REDUCE_BACKWARD, "1111", 2),
        (Op.BATCH_NORM, "111", 2),
        (Op.GROUP_NORM, "011", 1),
        (Op.BATCH_NORM_STATS, "11", 1),
    ],
)
def test_the_floor_counts_what_must_move(op, mask, streams):
    (one,) = suites.masked(suites.rows(op, "4x8x6", ["float32"], groups=2), mask)
    assert one.streams == streams
    assert one.data_bytes == 4 * 8 * 6 * 4


SHAPES = {
    Op.BATCH_NORM_BACKWARD: "6x10x5x7",
    Op.BATCH_NORM_REDUCE_BACKWARD: "6x10x5x7",
    Op.BATCH_NORM_ELEMT_BACKWARD: "6x10x5x7",
    Op.LAYER_NORM_BACKWARD: "70x33",
    Op.GROUP_NORM_BACKWARD: "3x12x5x7",
    Op.RMS_NORM_BACKWARD: "70x33",
    Op.BATCH_NORM: "6x10x5x7",
    Op.BATCH_NORM_STATS: "6x10x5x7",
    Op.BATCH_NORM_ELEMT: "6x10x5x7",
    Op.LAYER_NORM: "70x33",
    Op.GROUP_NORM: "3x12x5x7",
    Op.RMS_NORM: "70x33",
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", suites.LAYOUTS)
@pytest.mark.parametrize("op", SHAPES)
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
        named = zip(RESULTS[op], out, strict=False)
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
    (one,) = suites.rows(Op.LAYER_NORM_BACKWARD, "70x33", ["bfloat16"])
    problem = problems.make(one, "cpu")
    assert problem.result_dtypes["dgamma"] == "float32"
    known = truth.truth(problem)
    rounded = {role: want.to(torch.bfloat16) for role, want in known.values.items()}
    reason, share = truth.wrong(problem, known, rounded, 1.0)
    assert reason is None
    assert share <= 1
    bent = rounded | {"dgamma": rounded["dgamma"] * 1.02}
    assert "dgamma" in truth.wrong(problem, known, bent, 1.0)[0]


@pytest.mark.parametrize("op", SHAPES)
def test_statistics_and_weights_are_the_same_numbers_in_the_data_s_type(op):
    shape = "6x64" if OPERATORS[op].axes == "rows" else "6x64x5"
    (one,) = suites.rows(op, shape, ["bfloat16"])
    operands = problems.make(one, "cpu").operands
    vectors = (*OPERATORS[op].statistics, "gamma", "beta")
    for role in [one for one in vectors if one in operands]:
        assert operands[role].dtype == torch.float32
        assert operands[role].bfloat16().float().equal(operands[role])


def test_what_a_peer_may_miss():
    """16 budgets everywhere; besides, parameter gradients within 5 % of their norm."""
    (one,) = suites.rows(Op.LAYER_NORM_BACKWARD, "70x33", ["float32"])
    problem = problems.make(one, "cpu")
    known = truth.truth(problem)

    def off(role, error):
        results = dict(known.values)
        results[role] = known.values[role] + error
        return [truth.wrong(problem, known, results, allowance)[0] is None for allowance in (1, 16)]

    for role in ("dx", "dgamma"):
        assert off(role, 0.9 * known.budgets[role]) == [True, True]
        assert off(role, 15 * known.budgets[role]) == [False, True]
    assert off("dx", 17 * known.budgets["dx"]) == [False, False]
    assert off("dx", 0.01 * known.values["dx"]) == [False, False]
    assert off("dgamma", 0.04 * known.values["dgamma"]) == [False, True]
    assert off("dgamma", 0.06 * known.values["dgamma"]) == [False, False]
    assert truth.PEER_ALLOWANCE == 16  # as docs/reference/bench.md says


def test_an_infinity_that_is_right_hides_nothing():
    """Sums beyond float16's range: where all are infinite, a number or the other sign is wrong."""
    (one,) = suites.rows(Op.LAYER_NORM_BACKWARD, "400000x2", ["float16"])
    made = problems.make(one, "cpu")
    types = dict.fromkeys(made.result_dtypes, "float16")
    problem = dataclasses.replace(made, result_dtypes=types)
    known = truth.truth(problem)
    results = {role: want.to(torch.float16) for role, want in known.values.items()}
    assert results["dbeta"].isinf().all()
    assert truth.wrong(problem, known, results, 1.0)[0] is None
    for value in (0.0, 60000.0, -math.inf, math.nan):
        bent = results["dbeta"].clone()
        bent[..., -1, :] = value
        reason, _ = truth.wrong(problem, known, results | {"dbeta": bent}, 1.0)
        assert reason.startswith(f"dbeta[0, 0, 1, 0] is {value:g}, ")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda array: None, "dgamma is missing"),
        (lambda array: array.numpy(), "dgamma is no dense tensor of torch's: ndarray"),
        (lambda array: array.to_sparse(), "dgamma is no dense tensor of torch's: Tensor"),
        (lambda array: array[:7], "dgamma has 7 elements of float32 on cpu, should have 8"),
        (lambda array: array.int(), "dgamma has 8 elements of int32 on cpu, should have 8"),
        (lambda array: array.to("meta"), "dgamma has 8 elements of float32 on meta, should have 8"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_wrong(spoil, words):
    (one,) = suites.rows(Op.LAYER_NORM_BACKWARD, "4x8", ["float32"])
    problem = problems.make(one, "cpu")
    known = truth.truth(problem)
    results = {role: want.float().squeeze() for role, want in known.values.items()}
    assert truth.wrong(problem, known, results, 16.0)[0] is None
    reason, share = truth.wrong(
        problem, known, results | {"dgamma": spoil(results["dgamma"])}, 16.0
    )
    assert reason.startswith(words)
    assert share == math.inf


def test_medians_and_spreads():
    found = timing.summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found.median_ms == 3.0
    assert found.best_ms == 1.0
    assert found.runs == 5
    assert found.spread == pytest.approx((52 - 1.5) / 3)  # between the quartiles, over the median
    assert timing.summary([1.0, 2.0, 5.0]).spread == 2.0  # too few for quartiles


def test_a_copy_counts_what_is_read_and_written_at_its_best(monkeypatch):
    """Other work on the machine only slows it down, and a slow copy would flatter us."""
    monkeypatch.setitem(timing._COPY_BYTES, "cpu", 1000)
    medians = iter([2.0, 1.0, 4.0])

    def time(self, calls):
        (call,) = calls.values()
        assert call().numel() == 1000
        return {"copy": timing.Timing(next(medians), 0.5, 0.0, 7)}

    monkeypatch.setattr(timing.CpuTimer, "time", time)
    assert timing.CpuTimer(1, 0.0).copy_gbps() == pytest.approx(2 * 1000 / 1e-3 / 1e9)


def test_tiny_workloads_are_valid_for_every_operator():
    for one in suites.suite("quick", "cpu"):
        tiny = session._tiny(one)
        assert isinstance(tiny, Workload)
        assert problems.make(tiny, "cpu").spec.wanted
