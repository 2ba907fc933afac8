"""``enable()`` and forward passes: torch's results in torch's types, layouts and statistics."""

import copy
import itertools

import pytest
import torch

import normgrad.torch as ours
from normgrad.core.errors import OptionError
from normgrad.torch import adapters, forward_adapters

_LAYOUTS = ("plain", "last", "gaps", "turned")
# Of 16-bit data: the type of parameters too.
_TYPES = (
    (torch.float64, torch.float64),
    (torch.float32, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
)
_ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


@pytest.fixture
def taken(fast_backend, disabled):
    """A with statement in which everything is taken."""
    return lambda **more: ours.enable(backend=fast_backend, **more)


def _laid(layout, dtype, shape=(4, 6, 5, 3)):
    torch.manual_seed(0)
    x = (torch.randn(shape, dtype=torch.float64) * 2 + 1).to(dtype)
    if layout == "last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "gaps":
        return torch.cat([x, x], -1)[..., : shape[-1]]
    if layout == "turned":
        return x.transpose(0, 3).contiguous().transpose(0, 3)
    return x


def _vectors(size, dtype, affine):
    torch.manual_seed(1)
    if not affine:
        return None, None
    return tuple((torch.rand(size, dtype=torch.float64) + 0.5).to(dtype) for _ in range(2))


def _near(got, want, exact, dtype):
    """As near to the exact values as torch's, but for a rounding."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    assert got.stride() == want.stride()
    scale = max(exact.abs().max().item(), 1.0)
    error = (got.double() - exact).abs().max().item()
    torchs = (want.double() - exact).abs().max().item()
    assert error <= torchs + _ROUNDING[dtype] * scale


def _wide(arguments):
    return [one.double() if isinstance(one, torch.Tensor) else one for one in arguments]


def _compare(operator, arguments, dtype, taken):
    """Results of an operator, and its buffers, beside torch's and those of float64."""
    runs = []
    for data, context in ((_wide(arguments), None), (arguments, None), (arguments, taken())):
        mine = [
            one.clone() if isinstance(one, torch.Tensor) and one.dim() == 1 else one for one in data
        ]
        if context is None:
            results = operator(*mine)
        else:
            with context:
                results = operator(*mine)
        versions = [
            one._version for one in mine if isinstance(one, torch.Tensor) and one.dim() == 1
        ]
        buffers = [one for one in mine if isinstance(one, torch.Tensor) and one.dim() == 1]
        runs.append(([*results, *buffers], versions))
    (exact, _), (want, torchs), (got, versions) = runs
    assert versions == torchs
    assert len(got) == len(want)
    for one, other, true in zip(got, want, exact, strict=True):
        if one.numel() == 0:
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
        else:
            _near(one, other, true, dtype)
    report = ours.report(reset=True)
    assert report.calls("torch") == 0, str(report)
    assert report.calls("normgrad") > 0


@pytest.mark.parametrize("dtypes", _TYPES, ids=str)
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_batch_norm(layout, dtypes, taken):
    x = _laid(layout, dtypes[0])
    for affine, training, tracked in itertools.product((True, False), repeat=3):
        if not (training or tracked):
            continue
        buffers = _vectors(6, dtypes[1], tracked)
        if not affine and not tracked and dtypes[0] != dtypes[1]:
            continue  # nothing says another type
        arguments = (x, *_vectors(6, dtypes[1], affine), *buffers, training, 0.3, 1e-5)
        _compare(torch.native_batch_norm, arguments, dtypes[0], taken)
        if training and tracked:
            operator = torch.ops.aten._batch_norm_with_update.default
            _compare(operator, (*arguments[:5], 0.3, 1e-5), dtypes[0], taken)


@pytest.mark.parametrize("dtypes", _TYPES, ids=str)
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_layer_norm(layout, dtypes, taken):
    x = _laid(layout, dtypes[0])
    for affine in (True, False):
        weight, bias = _vectors(3, dtypes[1], affine)
        _compare(torch.native_layer_norm, (x, [3], weight, bias, 1e-5), dtypes[0], taken)


@pytest.mark.parametrize("dtypes", _TYPES, ids=str)
@pytest.mark.parametrize("layout", ["plain", "last"])
def test_group_norm(layout, dtypes, taken):
    x = _laid(layout, dtypes[0])
    for affine in (True, False):
        arguments = (x, *_vectors(6, dtypes[1], affine), 4, 6, 15, 3, 1e-5)
        _compare(torch.native_group_norm, arguments, dtypes[0], taken)


@pytest.mark.parametrize("dtype", _ROUNDING, ids=str)
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_rms_norm(layout, dtype, taken):
    x = _laid(layout, dtype)
    for affine, eps in itertools.product((True, False), (None, 0.1)):
        weight = _vectors(3, dtype, affine)[0]
        _compare(torch.ops.aten._fused_rms_norm, (x, [3], weight, eps), dtype, taken)


def test_statistics_of_a_part_of_a_synchronized_batch():
    """The adapter for CUDA, where torch has this operator."""
    for layout, (dtype, _) in itertools.product(_LAYOUTS, _TYPES):
        x = _laid(layout, dtype)
        mean, invstd = forward_adapters.batch_norm_stats("reference", x, 0.25)
        variance, want = torch.var_mean(x.to(_wide_type(dtype)), (0, 2, 3), correction=0)
        torch.testing.assert_close(mean, want)
        torch.testing.assert_close(invstd, (variance + 0.25).rsqrt())


def _models():
    torch.manual_seed(3)
    return {
        "batch_norm": (torch.nn.BatchNorm2d(6), (4, 6, 5, 3)),
        "instance_norm": (torch.nn.InstanceNorm2d(6, affine=True), (4, 6, 5, 3)),
        "layer_norm": (torch.nn.LayerNorm(3), (4, 6, 5, 3)),
        "group_norm": (torch.nn.GroupNorm(2, 6), (4, 6, 5, 3)),
        "rms_norm": (torch.nn.RMSNorm(3), (4, 6, 5, 3)),
    }


def _step(model, x, ends=None):
    """Output and gradients of a forward and a backward pass."""
    model, x = copy.deepcopy(model), x.clone().requires_grad_()
    y = model(x)
    if ends is not None:
        ends()
    (y * torch.linspace(0, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    return [y.detach(), x.grad, *(one.grad for one in model.parameters())]


@pytest.mark.parametrize("how", ["whole", "ends between", "forward=False"])
@pytest.mark.parametrize("name", _models())
def test_a_step(name, how, taken):
    model, shape = _models()[name]
    x = _laid("plain", torch.float64, shape)
    model.double()
    want = _step(model, x)
    with taken(forward=how != "forward=False"):
        got = _step(model, x, ours.disable if how == "ends between" else None)
    if how == "ends between":
        ours.enable(backend="reference")
        got = _step(model, x, ours.disable)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    report = ours.report()
    forwards = [row for row in report if not row.operator.endswith("backward")]
    assert bool(forwards) is (how != "forward=False"), str(report)
    assert all(row.taken_by == "normgrad" for row in forwards)


def test_which_norms(taken):
    model = torch.nn.Sequential(*(one for one, _ in _models().values()))
    x = _laid("plain", torch.float32)
    for options, left in (
        ({"only": ["group_norm"]}, {"batch_norm", "layer_norm", "rms_norm"}),
        ({"exclude": {"group_norm"}}, {"group_norm"}),
    ):
        with taken(**options):
            _step(model, x)
        for row in ours.report(reset=True):
            kept = any(one in row.operator for one in left)
            assert row.taken_by == ("torch" if kept else "normgrad"), str(row)
            assert ("told to leave" in row.reason) is kept


def test_options_that_are_none(disabled):
    for bad in (
        {"only": "batch_norm"},
        {"only": ["batchnorm"]},
        {"exclude": []},
        {"only": ["batch_norm"], "exclude": ["batch_norm"]},
        {"only": ["batch_norm"], "compiled": True},
        {"forward": 2},
    ):
        with pytest.raises(OptionError):
            ours.enable(**bad)


@pytest.mark.filterwarnings("ignore:enable")
def test_rms_norms_that_we_do_not_take(disabled):
    """Too small, or of types that torch computes by other operators: with gradients of its own."""
    for dtype, size in ((torch.float32, 4), (torch.complex64, 4)):
        x = torch.randn(3, size, dtype=dtype, requires_grad=True)
        weight = torch.randn(size, dtype=dtype, requires_grad=True)
        grads = []
        for _ in range(2):
            y = torch.nn.functional.rms_norm(x, [size], weight)
            seed = torch.linspace(0, 1, y.numel(), dtype=dtype).view_as(y)
            grads.append([y.detach(), *torch.autograd.grad(y, (x, weight), seed)])
            ours.enable()
        torch.testing.assert_close(*grads)
        ours.disable()
    assert ours.report().calls("normgrad") == 0


@pytest.mark.parametrize("dtype", _ROUNDING, ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm_that_comes_back_in_pieces(dtype, affine):
    """What torch gets back of a forward pass that was seen: as near as our own kernels."""
    dy, x = (_laid("plain", dtype, (7, 3, 5)) for _ in range(2))
    weight = _vectors(5, dtype, True)[0] if affine else None
    rstd = x.double().square().mean(-1, keepdim=True).add(1e-5).rsqrt()
    arguments = (dy, x, [5], rstd.to(_wide_type(dtype)), weight, [True, affine])
    want = adapters.fused_rms_norm_backward("reference", *arguments)
    got = adapters.rms_norm_backward_in_pieces(*arguments)
    tolerance = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(tuple(got), tuple(want), rtol=tolerance, atol=4 * tolerance)


def _wide_type(dtype):
    return torch.float64 if dtype is torch.float64 else torch.float32


@pytest.mark.filterwarnings("ignore:enable")
def test_what_torch_refuses(taken):
    """Its own words, not ours; and what has no elements is torch's affair."""
    x, wrong = torch.randn(2, 6, 4), torch.ones(5)
    for call in (
        lambda: torch.nn.functional.batch_norm(x, wrong, wrong),
        lambda: torch.native_batch_norm(x, x[0, :, 0].double(), *[None] * 3, True, 0.1, 1e-5),
        lambda: torch.native_layer_norm(x, [5], None, None, 1e-5),
        lambda: torch.native_layer_norm(x.double(), [4], torch.ones(4), None, 1e-5),
        lambda: torch.native_group_norm(x, None, None, 2, 6, 4, 4, 1e-5),
        lambda: torch.native_group_norm(x, wrong, None, 2, 6, 4, 2, 1e-5),
    ):
        with pytest.raises(RuntimeError) as want:
            call()
        with taken(), pytest.raises(RuntimeError) as got:
            call()
        assert str(got.value) == str(want.value)
    empty = torch.zeros(0, 6, 4)
    buffers = torch.zeros(6), torch.ones(6)
    want = torch.native_layer_norm(empty, [4], None, None, 1e-5)
    with taken():
        got = torch.native_layer_norm(empty, [4], None, None, 1e-5)
        torch.nn.functional.batch_norm(empty, *buffers)
    torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:enable")
def test_small_calls_are_torchs(disabled):
    with ours.enable():
        torch.nn.LayerNorm(3)(torch.randn(4, 3))
    (row,) = ours.report()
    assert (row.operator, row.taken_by) == ("native_layer_norm", "torch")
    assert "too small" in row.reason


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("name", _models())
def test_transforms(name, taken):
    """torch.func, a second backward pass, forward mode."""
    model, shape = _models()[name]
    model = model.double().eval()
    x = _laid("plain", torch.float64, shape)
    if name == "batch_norm":
        model.train()
        model.track_running_stats, model.running_mean, model.running_var = False, None, None
    parameters = dict(model.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).pow(3).sum()

    def all_of_them():
        first = torch.func.grad(loss)(parameters, x)
        tangent = torch.func.jvp(lambda x: loss(parameters, x), (x,), (x.cos(),))
        stacked = torch.func.vmap(torch.func.grad(loss, argnums=1), (None, 0))(
            parameters, torch.stack([x, x.sin()])
        )
        twice = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(parameters, twice), twice, create_graph=True)
        return [first, tangent, stacked, torch.autograd.grad(grad.pow(2).sum(), twice)[0]]

    want = all_of_them()
    with taken():
        got = all_of_them()
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_inference_mode_and_autocast(taken):
    model = torch.nn.Sequential(torch.nn.Conv2d(6, 6, 1), *(one for one, _ in _models().values()))
    x = _laid("last", torch.float32)
    for mode in (torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)):
        with mode():
            want = copy.deepcopy(model)(x)
            with taken():
                got = copy.deepcopy(model)(x)
        assert (got.dtype, got.stride()) == (want.dtype, want.stride())
        torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)


_SAMPLES = {
    "nn.functional.layer_norm",
    "nn.functional.group_norm",
    "nn.functional.batch_norm",
    "nn.functional.instance_norm",
    "nn.functional.rms_norm",
    "native_layer_norm",
    "native_batch_norm",
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(_SAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_samples_of_torch(name, dtype, taken):
    from torch.testing._internal.common_methods_invocations import op_db

    (info,) = (one for one in op_db if one.name == name and not one.variant_test_name)

    def results():
        torch.manual_seed(0)
        samples = info.sample_inputs("cpu", dtype, requires_grad=False)
        return [info(one.input, *one.args, **one.kwargs) for one in samples]

    want = results()
    with taken():
        got = results()
    # Torch normalizes by statistics of bfloat16 data that it rounded to bfloat16.
    tolerance = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert ours.report().calls("normgrad") > 0
