"""What the backend decides: copies, masks, in-place results, one entry for C."""

import ctypes
import weakref

import numpy as np
import pytest

from neutral import neutral
from normgrad import functional
from normgrad.arrays import host_memory
from normgrad.backends.cpu import engine
from normgrad.backends.cpu.plan import tuned
from normgrad.calls import generated_call
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, Op, Spec, TensorSpec
from normgrad.verify import Case, call, judge, make_problem, run_backend


def _batch_spec(
    x: TensorSpec, dy: TensorSpec | None = None, wanted=("dx", "dgamma", "dbeta"), **more
):
    vector = TensorSpec.contiguous((x.shape[1],), "float32")
    results = {role: x if role == "dx" else vector for role in wanted}
    return Spec(
        op=Op.BATCH_NORM_BACKWARD,
        dy=dy or x,
        x=x,
        mean=vector,
        rstd=vector,
        gamma=vector,
        **results,
        **more,
    )


def _config(spec):
    return make_plan(spec, "cpu").config


def test_both_layouts_are_read_in_place():
    first = TensorSpec.contiguous((4, 6, 5, 7), "bfloat16")
    last = TensorSpec((4, 6, 5, 7), (210, 1, 42, 6), "bfloat16")
    for tensor, order in ((first, "channels-first"), (last, "channels-last")):
        config = _config(_batch_spec(tensor))
        assert (config.order, config.dtype, config.copied) == (order, "bfloat16", ())


def test_only_the_tensor_that_lies_differently_is_copied():
    first = TensorSpec.contiguous((4, 6, 5, 7), "float32")
    last = TensorSpec((4, 6, 5, 7), (210, 1, 42, 6), "float32")
    assert _config(_batch_spec(first, last)).copied == ("dy",)
    assert _config(_batch_spec(first, first._replace(dtype="float16"))).copied == ("dy",)
    gaps = TensorSpec((4, 6, 5, 7), (840, 140, 14, 1), "float32")  # every second row of a picture
    assert _config(_batch_spec(gaps)).copied == ("dy", "x", "dx")
    samples = TensorSpec((4, 6, 35), (420, 35, 1), "float32")  # every second sample
    assert _config(_batch_spec(samples)).copied == ()


@pytest.mark.parametrize("columns", [402, 403], ids=["one run", "rows"])
def test_copies_of_several_tasks(columns):
    """The last of them has less than the others, into the workspace and out of it."""
    numbers = np.random.default_rng(3).standard_normal((3, 6, 100, columns)).astype(np.float32)
    dy, x, dx = numbers[..., ::2]
    functional.batch_norm_backward(
        dy, x, *neutral(x), output_mask=(True, False, False), out=(dx, None, None), backend="cpu"
    )
    want = functional.batch_norm_backward(dy, x, *neutral(x), backend="reference").grad_input
    np.testing.assert_allclose(dx, want, rtol=1e-5, atol=1e-4)
    tensor = TensorSpec(x.shape, tuple(step // 4 for step in x.strides), "float32")
    config = _config(Spec(op=Op.BATCH_NORM_BACKWARD, dy=tensor, x=tensor, dx=tensor))
    assert config.copied == ("dy", "x", "dx")
    assert config.phases.count("copies x 8") == 3


def test_a_mask_leaves_phases_out():
    last = TensorSpec((8, 64, 16, 16), (16384, 1, 1024, 64), "float32")

    def names(**options):
        return {phase.split()[0] for phase in _config(_batch_spec(last, **options)).phases}

    assert "write_row_blocks" not in names(wanted=("dgamma", "dbeta"))
    assert names(wanted=("dx",), training=False) == {"join_blocks", "write_row_blocks"}
    assert "sum_row_blocks" in names(wanted=("dx",))  # the correction needs the sums


@pytest.mark.parametrize("axis", [1, 2], ids=["channels-first", "channels-last"])
def test_x_is_not_read_where_nothing_needs_it(axis):
    rng = np.random.default_rng(0)
    dy = rng.standard_normal((3, 40, 40)).astype(np.float32)
    x = np.full_like(dy, np.nan)
    ones = np.ones(40, np.float32)
    got = functional.batch_norm_backward(
        dy,
        x,
        ones,
        variance=ones,
        eps=0.0,
        training=False,
        output_mask=(True, False, False),
        channel_axis=axis,
        backend="cpu",
    )
    np.testing.assert_array_equal(got.grad_input, dy)
    case = Case(
        id="no-x",
        op=Op.BATCH_NORM_BACKWARD,
        shape=x.shape,
        channel_axis=axis,
        mask=(False, False, True),
    )
    problem = make_problem(case, "float32")
    problem.operands["x"].array[...] = np.nan
    (measured,) = judge(problem, run_backend(problem, "cpu"))
    assert measured.ok, measured


@pytest.mark.parametrize("over", ["x", "dy"])
@pytest.mark.parametrize("shape", [(4, 6, 35), (1100, 70), (3, 4, 70000)], ids=str)
def test_in_place(over, shape):
    rng = np.random.default_rng(1)
    arrays = {
        "x": rng.standard_normal(shape).astype(np.float32) + 5,
        "dy": rng.standard_normal(shape).astype(np.float32),
    }
    mean, rstd = np.full(shape[1], 5, np.float32), np.ones(shape[1], np.float32)
    vectors = (mean, rstd)
    separate = functional.batch_norm_backward(arrays["dy"], arrays["x"], *vectors, backend="cpu")
    dgamma, dbeta = np.empty_like(mean), np.empty_like(mean)
    out = (arrays[over], dgamma, dbeta)
    functional.batch_norm_backward(arrays["dy"], arrays["x"], *vectors, out=out, backend="cpu")
    for got, want in zip(out, separate[:3], strict=True):
        np.testing.assert_array_equal(got, want)


def test_large_results_are_streamed_and_right():
    # Past the cache, starting at no multiple of a line, with tails.
    shape = (2, 3, 700_001)
    problem = make_problem(Case(id="streamed", op=Op.BATCH_NORM_BACKWARD, shape=shape), "float32")
    arrays = {role: host.array for role, host in problem.operands.items()}
    dx = np.full(arrays["x"].size + 3, np.nan, np.float32)[3:].reshape(shape)
    out = (dx, *(np.full(3, np.nan, np.float32) for _ in range(2)))
    call(problem, arrays, out, "cpu")
    results = dict(zip(problem.wanted, map(np.float64, out), strict=True))
    for measured in judge(problem, results):
        assert measured.ok, measured
    plain = TensorSpec.contiguous(shape, "float32")
    assert _config(_batch_spec(plain)).streaming


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize(("inner", "offset"), [(49, 0), (196, 3), (64, 32), (67, 1)])
def test_streamed_groups_have_the_same_bits(dtype, inner, offset, monkeypatch, forget_plans):
    # Channels that begin within a line, and share it with their neighbours.
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    torch.manual_seed(5)
    shape = (3, 40, inner)
    x, dy = torch.randn(shape).to(kind) + 3, torch.randn(shape).to(kind)
    mean, rstd, gamma = torch.full((3, 8), 2.9), torch.rand(3, 8) + 0.5, torch.rand(40) + 0.5

    def results(limit):
        monkeypatch.setattr(tuned, "STREAM_BYTES", limit)
        forget_plans()
        memory = torch.full((x.numel() + 64 + offset,), torch.nan, dtype=kind)
        dx = memory[offset : offset + x.numel()].view(shape)
        out = (dx, torch.empty(40), torch.empty(40))
        functional.group_norm_backward(dy, x, mean, rstd, 8, weight=gamma, out=out, backend="cpu")
        assert memory[:offset].isnan().all()
        assert memory[offset + x.numel() :].isnan().all()
        return out

    streamed, plain = results(0), results(1 << 40)
    for one, other in zip(streamed, plain, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(9, 5, 7, 24), (8, 20, 20, 40)])
def test_samples_one_by_one_have_the_same_bits(dtype, shape, monkeypatch, forget_plans):
    rng = np.random.default_rng(8)
    x, dy = ((rng.standard_normal(shape) + 3).astype(dtype) for _ in range(2))
    mean, rstd = (rng.random((shape[0], 4)) + 0.5 for _ in range(2))
    gamma = rng.random(shape[-1])
    results = []
    for least in (8, 10):
        monkeypatch.setattr(tuned, "SOME_SAMPLES", least)
        forget_plans()
        out = np.full(shape, np.nan, dtype), *(np.full(shape[-1], np.nan) for _ in range(2))
        results.append(
            functional.group_norm_backward(
                dy, x, mean, rstd, 4, weight=gamma, channel_axis=3, out=out, backend="cpu"
            )[:3]
        )
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


def test_c_callers_run_a_plan_by_address():
    entry = ctypes.CFUNCTYPE(
        ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )(engine.entry_address())
    rng = np.random.default_rng(3)
    x = rng.standard_normal((5, 7, 9)).astype(np.float32)
    dy = rng.standard_normal((5, 7, 9)).astype(np.float32)
    ones = np.ones(7, np.float32)
    plan = make_plan(_batch_spec(TensorSpec.contiguous(x.shape, "float32")), "cpu")
    results = {"dx": np.empty_like(x), "dgamma": np.empty(7, np.float32)}
    results["dbeta"] = np.empty(7, np.float32)
    arrays = {"dy": dy, "x": x, "mean": ones, "rstd": ones, "gamma": ones, **results}
    addresses = (ctypes.c_int64 * len(ROLES))(
        *(arrays[role].ctypes.data if role in arrays else 0 for role in ROLES)
    )
    scratch = np.empty(plan.workspace_bytes + 64, np.uint8)
    workspace = -(-scratch.ctypes.data // 64) * 64
    assert entry(ctypes.addressof(plan.config.block), addresses, workspace, None) == 0
    want = functional.batch_norm_backward(dy, x, ones, ones, weight=ones, backend="cpu")
    for got, expected in zip(results.values(), want[:3], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_plan_prints_what_was_decided():
    text = repr(make_plan(_batch_spec(TensorSpec.contiguous((4, 6, 35), "float32")), "cpu"))
    assert "order='channels-first'" in text
    assert "slabs x" in text
    small = Case(id="small", op=Op.GROUP_NORM_BACKWARD, shape=(64, 512, 4, 4), num_groups=32)
    text = repr(make_plan(spec_of(small, "float32"), "cpu"))
    assert "order='rows'" in text
    assert "rows x" in text


def test_cpu_arrays_go_to_this_backend():
    spec = _batch_spec(TensorSpec.contiguous((4, 6, 35), "float32"))
    assert make_plan(spec).backend.name == "cpu"


def test_large_new_torch_results_on_huge_pages(monkeypatch, forget_plans):
    torch = pytest.importorskip("torch")
    ask, asked = host_memory.ask_huge_pages, []

    def note(address, nbytes):
        asked.append((address, nbytes))
        ask(address, nbytes)

    monkeypatch.setattr(host_memory, "ask_huge_pages", note)
    monkeypatch.setattr(generated_call, "ask_huge_pages", note)
    x = torch.randn(2, 16, 200, 201)  # 5 MB, no multiple of a page
    dy = torch.randn_like(x)
    ones = torch.ones(16)
    given = tuple(torch.full_like(tensor, torch.nan) for tensor in (x, ones, ones))
    vectors = (ones, ones)
    functional.batch_norm_backward(dy, x, *vectors, out=given, backend="cpu")
    assert asked == []
    for calls in range(1, 4):  # the first, one that was seen before, one that is written out
        new = functional.batch_norm_backward(dy, x, *vectors, backend="cpu")
        assert asked[-1] == (new[0].data_ptr(), new[0].nbytes)
        assert len(asked) == calls
        assert all(torch.equal(one, other) for one, other in zip(new[:3], given, strict=True))


def test_short_planes_are_taken_in_strips():
    def phases(shape, dtype="float32"):
        return _config(_batch_spec(TensorSpec.contiguous(shape, dtype))).phases

    assert phases((64, 512, 7, 7)) == ("side_by_side_planes x 32",)
    assert phases((64, 500, 7, 7), "bfloat16") == ("side_by_side_planes x 16",)
    # Would be streamed in pieces of lines.
    assert phases((64, 512, 14, 14)) == ("side_by_side_planes x 128",)
    assert phases((8, 64, 16, 16)) == ("slabs x 16",)
    assert phases((4, 512, 7, 7)) == ("slabs x 16",)  # too few samples for factors by element
    gaps = TensorSpec((64, 512, 7, 7), (50176, 98, 7, 1), "float32")
    assert _config(_batch_spec(gaps)).phases[0].startswith("slabs")


def test_scratch_memory_stays_while_a_call_runs(monkeypatch, forget_plans):
    """A signal handler may call us meanwhile, and leave other scratch memory to the thread."""
    torch = pytest.importorskip("torch")
    kept = []

    class Owner:
        pass

    def scratch(nbytes):
        owner = Owner()
        kept[:] = [weakref.ref(owner)]
        return owner, host_memory.aligned_bytes(nbytes)[1]

    monkeypatch.setattr(engine, "_scratch", scratch)
    seen = []
    monkeypatch.setattr(engine, "_entry", lambda: lambda *given: seen.extend(one() for one in kept))
    x = torch.ones(8, 40)
    for _ in range(4):
        functional.layer_norm_backward(x, x, x[:, :1], x[:, :1], 40, backend="cpu")
    assert seen
    assert all(isinstance(owner, Owner) for owner in seen)


def test_nothing_is_done_where_there_is_nothing():
    """Groups of no channels may be as many as one likes, and so may counts beside empty data."""
    case = Case(id="empty", op=Op.GROUP_NORM_BACKWARD, shape=(2, 0, 3), num_groups=1 << 20)
    assert make_plan(spec_of(case, "float32"), "cpu").config.phases == ()
    case = Case(id="empty", op=Op.BATCH_NORM_ELEMT_BACKWARD, shape=(0, 3, 4))
    assert make_plan(spec_of(case, "float32"), "cpu").config.phases == ()
