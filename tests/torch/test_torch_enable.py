"""``enable()``, ``disable()``, ``report()``: torch's own operators computed by us."""

import itertools
import math
import sys
import threading

import pytest
import torch
from closeness import assert_near, off_centre
from torch import nn

import normgrad
import normgrad.torch as ours
from normgrad.backends.reference.backend import ReferenceBackend
from normgrad.torch import adapters, override
from normgrad.torch.too_small import LEAST

pytestmark = [
    pytest.mark.usefixtures("disabled"),
    pytest.mark.filterwarnings("ignore::normgrad.torch.NothingTakenWarning"),
]


def _grads(module, x, dy):
    x = x.clone().requires_grad_()
    module.zero_grad()
    module(x).backward(dy)
    return [x.grad, *(parameter.grad.clone() for parameter in module.parameters())]


MODULES = {
    "batch": (nn.BatchNorm2d(6), "native_batch_norm_backward"),
    "batch-inference": (nn.BatchNorm2d(6).eval(), "native_batch_norm_backward"),
    "instance": (nn.InstanceNorm2d(6, affine=True), "native_batch_norm_backward"),
    "layer": (nn.LayerNorm((5, 4)), "native_layer_norm_backward"),
    "group": (nn.GroupNorm(2, 6), "native_group_norm_backward"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", MODULES)
def test_gradients_are_torchs(kind, dtype, fast_backend):
    module, operator = MODULES[kind]
    module = module.to(dtype)
    x, dy = off_centre((3, 6, 5, 4), dtype)
    want = _grads(module, x, dy)
    with ours.enable(backend=fast_backend):
        got = _grads(module, x, dy)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        assert one.stride() == other.stride()
        # Torch keeps statistics of 16-bit data in 16 bits and sums with them.
        assert_near(one, other, dtype)
    report = ours.report()
    assert report.calls("normgrad", operator) == 1
    assert report.calls("torch") == 0


FUNCTIONS = {
    "batch": lambda x, bias: nn.functional.batch_norm(x, None, None, None, bias, True),
    "batch-inference": lambda x, bias: nn.functional.batch_norm(
        x, torch.zeros(4), torch.ones(4), None, bias
    ),
    "instance": lambda x, bias: nn.functional.instance_norm(x, bias=bias),
    "group": lambda x, bias: nn.functional.group_norm(x, 2, None, bias),
    "layer": lambda x, bias: nn.functional.layer_norm(x, (4,), None, bias),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_bias_in_float32_without_a_weight(kind, fast_backend):
    """Torch's gradient of it is in float32, where torch has one: in 16 bits this is infinite."""
    x = torch.randn(3, 4, 4).half().requires_grad_()
    bias = torch.zeros(4, requires_grad=True)
    with ours.enable(backend=fast_backend):
        FUNCTIONS[kind](x, bias).backward(torch.full((3, 4, 4), 3e4, dtype=torch.float16))
    assert ours.report().calls("torch") == 0
    assert_near(bias.grad, torch.full((4,), 12 * 3e4, dtype=torch.float64))


def _views(shape):
    """Data of this shape with its axes in every order, with gaps, and expanded."""
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(axis) for axis in range(len(shape))]
        yield torch.randn([shape[axis] for axis in order]).permute(back)
        gaps = (slice(None, None, 2),) * len(shape)
        yield torch.randn([2 * shape[axis] for axis in order]).permute(back)[gaps]
    yield torch.randn(shape)[:1].expand(shape)


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 3), (2, 4, 3, 5), (2, 4, 5, 1)], ids=str)
def test_gradients_are_laid_out_as_torchs(shape, fast_backend):
    """Also where input is not: torch.compile plans with the layout of torch's kernels."""
    samples, channels, *rest = shape
    gamma, rows = torch.ones(shape[-1]), (*shape[:-1], 1)
    every = [True, True, True]
    vectors = (torch.ones(channels), None, None, torch.zeros(channels), torch.ones(channels))
    groups = (torch.zeros(samples, 2), torch.ones(samples, 2), torch.ones(channels))
    calls = {
        "native_layer_norm_backward": (
            *([shape[-1]], torch.zeros(rows), torch.ones(rows), gamma, gamma, every),
        ),
        "native_batch_norm_backward": (*vectors, True, 1e-5, every),
        "native_group_norm_backward": (*groups, samples, channels, math.prod(rest), 2, every),
    }
    for x in _views(shape):
        dy = torch.randn(shape)
        for name, args in calls.items():
            op = getattr(torch.ops.aten, name)
            layout, want = (op(dy, one, *args)[0] for one in (x, x.contiguous()))
            with ours.enable(backend=fast_backend):
                got = op(dy, x, *args)[0]
            assert got.squeeze().stride() == layout.squeeze().stride(), (name, x.stride())
            assert_near(got, want.double())  # torch's numbers are not right for all layouts
    assert ours.report().calls("torch") == 0


@pytest.mark.parametrize("training", [True, False])
def test_one_image_with_its_channels_last(training, fast_backend):
    """Whose batch axis has a stride that no batch has; torch takes some for contiguous."""
    image, module = torch.randn(5, 7, 3), nn.BatchNorm2d(3).train(training)
    x = image.permute(2, 0, 1)[None]
    dy = torch.randn(x.shape)
    exact = x.double().contiguous().requires_grad_()
    nn.BatchNorm2d(3).double().train(training)(exact).backward(dy.double())
    for layout in (torch.contiguous_format, torch.channels_last):
        leaf = x.detach().requires_grad_()
        y = module(leaf)
        with ours.enable(backend=fast_backend):
            (got,) = torch.autograd.grad(y, leaf, dy.contiguous(memory_format=layout))
        assert_near(got, exact.grad)
        assert got.squeeze().stride() == x.squeeze().stride()


def test_the_default_is_the_fast_backend_and_torch_takes_what_it_refuses():
    x = torch.randn(-(-LEAST["cpu"][torch.float32] // 1024), 1024)
    with ours.enable(forward=False):
        _grads(nn.LayerNorm(1024), x, x)
    (row,) = ours.report()
    refusal = normgrad.backends.get("cpu").unavailable()
    assert row.taken_by == ("torch" if refusal else "normgrad")
    if refusal:
        assert refusal in row.reason


@pytest.fixture
def cuda(monkeypatch):
    """A backend that works, as on a machine with a GPU, and refuses what lies on the CPU."""
    backend = normgrad.backends.get("cuda")
    monkeypatch.setattr(type(backend), "unavailable", lambda _: None)
    return "cuda"


def test_a_refused_case_goes_to_torch_with_the_reason(cuda):
    x, dy = torch.randn(3, 4), torch.randn(3, 4)
    module = nn.LayerNorm(4)
    want = _grads(module, x, dy)
    with ours.enable(forward=False, backend=cuda):
        got = _grads(module, x, dy)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    (row,) = ours.report(reset=True)
    assert (row.operator, row.device, row.taken_by, row.calls) == (
        "native_layer_norm_backward",
        "cpu",
        "torch",
        1,
    )
    assert "no backend takes layer_norm_backward on cpu (cuda: " in row.reason
    assert row.reason in str(ours.report()) or not ours.report()


def test_a_refusal_is_remembered_for_its_backend_and_shapes(cuda):
    x, dy = torch.randn(3, 4), torch.randn(3, 4)
    module = nn.LayerNorm(4)
    with ours.enable(forward=False, backend=cuda):
        want = _grads(module, x, dy)
        first = ours.report()
        again = _grads(module, x, dy)
        assert ours.report() == (first[0]._replace(calls=2),)
        with ours.enable(forward=False, backend="reference"):
            got = _grads(module, x, dy)
        _grads(module, x.repeat(2, 1), dy.repeat(2, 1))
    assert all(torch.equal(one, other) for one, other in zip(again, want, strict=True))
    for one, other in zip(got, want, strict=True):
        assert_near(one, other, torch.float32)
    report = ours.report()
    assert (report.calls("torch"), report.calls("normgrad")) == (3, 1)


class Choosy(ReferenceBackend):
    def refuses(self, spec, geometry):
        return "it takes float64 alone" if spec.x.dtype == "float32" else None


def test_a_refusal_is_remembered_for_its_type(install):
    install(Choosy())
    x, dy = torch.randn(3, 4), torch.randn(3, 4)
    module = nn.LayerNorm(4)
    with ours.enable(forward=False, backend="reference"):
        _grads(module, x, dy)
        _grads(module.double(), x.double(), dy.double())
    report = ours.report()
    assert (report.calls("torch"), report.calls("normgrad")) == (1, 1)


def test_group_norm_with_sizes_that_are_not_the_shapes(fast_backend):
    x, dy = torch.randn(6, 20), torch.randn(6, 20)  # as N=3, C=4, HxW=10
    mean, rstd = torch.zeros(3, 2), torch.ones(3, 2)
    args = (dy, x, mean, rstd, torch.ones(4), 3, 4, 10, 2, [True, True, True])
    op = torch.ops.aten.native_group_norm_backward
    want = op(*args)
    with ours.enable(backend=fast_backend):
        got = op(*args)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))
    assert "must have shape (3, 4, ...)" in ours.report()[0].reason


def test_disabled_is_torch(fast_backend):
    ours.enable(backend=fast_backend)
    ours.disable()
    _grads(nn.LayerNorm(4), torch.randn(3, 4), torch.randn(3, 4))
    assert ours.report() == ()
    assert "no operator of a norm" in str(ours.report())


@pytest.fixture
def other_thread():
    """One that does nothing, but might be in a backward pass for all that anybody knows."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    yield thread
    over.set()
    thread.join()


def test_kernels_that_another_thread_may_be_calling_stay_and_call_torchs(
    fast_backend, other_thread
):
    """Torch frees them when they are taken away: what runs then is anything, or a fault."""
    x, dy = off_centre((3, 6, 5, 4), torch.float32)
    want = {kind: _grads(module.float(), x, dy) for kind, (module, _) in MODULES.items()}
    with ours.enable(forward=False, backend=fast_backend):
        library = override.State.library
    assert not ours.enabled()
    assert override.State.library is library
    for kind, (module, _) in MODULES.items():
        got = _grads(module, x, dy)
        assert all(torch.equal(one, other) for one, other in zip(got, want[kind], strict=True))
    assert ours.report() == ()
    with ours.enable(forward=False, backend=fast_backend):
        assert override.State.library is library
        _grads(nn.LayerNorm(4), x, dy)
    assert ours.report().calls("normgrad") == 1


def test_kept_kernels_that_torch_does_not_have_are_missing_while_disabled(
    fast_backend, other_thread
):
    x, ones = torch.randn(5, 4), torch.ones(4)
    with ours.enable(backend=fast_backend):
        torch.batch_norm_stats(x, 1e-5)
    with pytest.raises(NotImplementedError, match="torch has no aten::batch_norm_stats"):
        torch.batch_norm_stats(x, 1e-5)
    with pytest.raises(NotImplementedError, match="torch has no aten::batch_norm_backward_reduce"):
        torch.batch_norm_backward_reduce(x, x, ones, ones, ones, True, True, True)


def test_kernels_are_taken_away_when_nobody_else_can_be_calling_them(other_thread, monkeypatch):
    assert not override._alone()
    frame = sys._getframe()
    monkeypatch.setattr(sys, "_current_frames", lambda: {0: frame})
    assert override._alone()
    seen = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: seen.append(override._alone()))
    x.sum().backward()  # on a GPU other threads take part in it
    assert seen == [False]
    ours.enable()
    ours.disable()
    assert override.State.library is None


def test_report_prints_a_table(fast_backend):
    with ours.enable(backend=fast_backend):
        _grads(nn.LayerNorm(4), torch.randn(3, 4), torch.randn(3, 4))
    text = str(ours.report())
    assert text.splitlines()[0].split() == ["operator", "device", "taken", "by", "calls", "reason"]
    assert "native_layer_norm_backward  cpu     normgrad  1" in text


def test_masks_give_nothing_for_what_nobody_wants(fast_backend):
    x = torch.randn(3, 4)
    args = (x, x, [4], torch.zeros(3, 1), torch.ones(3, 1), torch.ones(4), None)
    with ours.enable(backend=fast_backend):
        dx, dgamma, dbeta = torch.ops.aten.native_layer_norm_backward(*args, [False, True, False])
    assert dx is None
    assert dgamma.shape == (4,)
    assert dbeta is None


def test_second_derivatives_still_work(fast_backend):
    start = torch.randn(4, 5, dtype=torch.float64)
    with ours.enable(backend=fast_backend):
        assert torch.autograd.gradgradcheck(
            lambda x: nn.functional.layer_norm(x, (5,)), start.clone().requires_grad_()
        )


def test_many_threads(fast_backend):
    failures = []

    def work():
        try:
            for _ in range(10):
                _grads(nn.LayerNorm(16), torch.randn(8, 16), torch.randn(8, 16))
        except Exception as error:
            failures.append(error)

    with ours.enable(forward=False, backend=fast_backend):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert ours.report().calls("normgrad") == 40


def test_synchronized_operators_on_the_cpu(fast_backend):
    """What torch has on CUDA only, against one batch norm over the joined batch."""
    x, dy = off_centre((5, 4, 6), torch.float32)
    weight, bias = torch.rand(4) + 0.5, torch.rand(4)
    parts = [x[:2], x[2:]]
    with pytest.raises(NotImplementedError):
        torch.batch_norm_stats(x, 1e-5)
    twin = nn.BatchNorm1d(4).double()
    with torch.no_grad():
        twin.weight.copy_(weight)
        twin.bias.copy_(bias)
    joined = x.double().requires_grad_()
    want = twin(joined)
    want.backward(dy.double())
    running = (torch.zeros(4), torch.ones(4))
    with ours.enable(backend=fast_backend):
        local = [torch.batch_norm_stats(part, 1e-5) for part in parts]
        counts = torch.tensor([part.numel() / 4 for part in parts])
        mean, invstd = torch.batch_norm_gather_stats_with_counts(
            x,
            torch.stack([one for one, _ in local]),
            torch.stack([one for _, one in local]),
            *running,
            0.1,
            1e-5,
            counts,
        )
        y = torch.cat([torch.batch_norm_elemt(p, weight, bias, mean, invstd, 1e-5) for p in parts])
        sums = [
            torch.batch_norm_backward_reduce(g, p, mean, invstd, weight, True, True, True)
            for g, p in zip((dy[:2], dy[2:]), parts, strict=True)
        ]
        total = [sum(part) for part in zip(*sums, strict=True)]
        dx = torch.cat(
            [
                torch.batch_norm_backward_elemt(
                    g, p, mean, invstd, weight, total[0], total[1], counts.int()
                )
                for g, p in zip((dy[:2], dy[2:]), parts, strict=True)
            ]
        )
    assert_near(y, want)
    assert_near(dx, joined.grad)
    assert_near(total[2], twin.weight.grad)
    assert_near(total[3], twin.bias.grad)
    assert_near(running[0], twin.running_mean)
    assert_near(running[1], twin.running_var)


def test_the_adapter_of_cudnns_operator(fast_backend):
    """Its arguments come in another order, and its save_var is 1/std."""
    x, dy = off_centre((5, 4, 6), torch.float32)
    weight = torch.rand(4) + 0.5
    _, mean, invstd = torch.native_batch_norm(x, weight, None, None, None, True, 0.0, 1e-5)
    got = adapters.cudnn_batch_norm_backward(
        fast_backend or "cpu", x, dy, weight, None, None, mean, invstd, 1e-5, torch.empty(0)
    )
    want = torch.ops.aten.native_batch_norm_backward(
        dy, x, weight, None, None, mean, invstd, True, 1e-5, [True, True, True]
    )
    for one, other in zip(got, want, strict=True):
        assert_near(one, other.double())
