"""Our modules against ``torch.nn``'s in float64, over options, types and memory layouts."""

import inspect
import itertools

import pytest
import torch
from closeness import assert_near, off_centre
from torch import nn

import normgrad.torch as ours
from normgrad.torch import statistics

# id: module's name, arguments, options, shape of the input
MODULES = {
    "bn1d-flat": ("BatchNorm1d", (6,), {}, (9, 6)),
    "bn1d": ("BatchNorm1d", (6,), {}, (3, 6, 7)),
    "bn2d": ("BatchNorm2d", (6,), {}, (3, 6, 5, 4)),
    "bn2d-no-affine": ("BatchNorm2d", (6,), {"affine": False}, (3, 6, 5, 4)),
    "bn2d-no-tracking": ("BatchNorm2d", (6,), {"track_running_stats": False}, (3, 6, 5, 4)),
    "bn2d-average": ("BatchNorm2d", (6,), {"momentum": None, "eps": 1e-2}, (3, 6, 5, 4)),
    "bn3d": ("BatchNorm3d", (4,), {}, (2, 4, 3, 5, 4)),
    "sync-alone": ("SyncBatchNorm", (6,), {}, (3, 6, 5, 4)),
    "ln": ("LayerNorm", (10,), {}, (3, 5, 10)),
    "ln-two-axes": ("LayerNorm", ((5, 10),), {"eps": 1e-3}, (3, 5, 10)),
    "ln-no-affine": ("LayerNorm", (10,), {"elementwise_affine": False}, (3, 5, 10)),
    "ln-no-bias": ("LayerNorm", (10,), {"bias": False}, (3, 5, 10)),
    "rms": ("RMSNorm", (10,), {"eps": 1e-3}, (3, 5, 10)),
    "rms-two-axes": ("RMSNorm", ((5, 10),), {}, (3, 5, 10)),
    "rms-no-affine": ("RMSNorm", (10,), {"elementwise_affine": False}, (3, 5, 10)),
    "gn": ("GroupNorm", (2, 6), {}, (3, 6, 5, 4)),
    "gn-flat": ("GroupNorm", (2, 8), {}, (5, 8)),
    "gn-of-three": ("GroupNorm", (5, 15), {}, (2, 15, 7)),
    "gn-no-affine": ("GroupNorm", (3, 6), {"affine": False}, (3, 6, 5, 4)),
    "in1d": ("InstanceNorm1d", (6,), {"affine": True}, (3, 6, 9)),
    "in1d-no-batch": ("InstanceNorm1d", (6,), {"affine": True}, (6, 9)),
    "in2d": ("InstanceNorm2d", (6,), {}, (3, 6, 5, 4)),
    "in2d-tracking": (
        "InstanceNorm2d",
        (6,),
        {"affine": True, "track_running_stats": True},
        (3, 6, 5, 4),
    ),
    "in3d": ("InstanceNorm3d", (4,), {"affine": True}, (2, 4, 3, 5, 4)),
}
TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# Only 4 and 5 axes can be channels-last.
LAYOUTS = [
    (case, layout)
    for case, (*_, shape) in MODULES.items()
    for layout in ("contiguous", "sliced", *(("channels-last",) if len(shape) > 3 else ()))
]


def _pair(case):
    """Our module, and torch's in float64 with the same numbers."""
    name, args, options, _ = MODULES[case]
    module = getattr(ours, name)(*args, **options)
    torch.manual_seed(11)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) + 0.5)
    return module, getattr(nn, name)(*args, **options)


def _lay_out(tensor, layout):
    if layout == "channels-last" and tensor.dim() in (4, 5):
        name = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        return tensor.contiguous(memory_format=name)
    if layout == "sliced":
        wide = tensor.new_full([2 * size for size in tensor.shape], float("nan"))
        view = wide[tuple(slice(None, None, 2) for _ in tensor.shape)]
        return view.copy_(tensor)
    return tensor.contiguous()


def _compare(module, twin, x, dy, layout, dtype, steps=2):
    for _ in range(steps):
        mine = _lay_out(x.clone(), layout).requires_grad_()
        theirs = x.detach().double().clone().requires_grad_()
        y, want = module(mine), twin(theirs)
        assert y.dtype == x.dtype
        assert_near(y, want, dtype)
        if layout == "channels-last" and x.dim() == 4:
            assert y.is_contiguous(memory_format=torch.channels_last)
        y.backward(_lay_out(dy, layout))
        want.backward(dy.double())
        assert_near(mine.grad, theirs.grad, dtype)
        if layout == "channels-last" and x.dim() == 4 and module.training:
            assert mine.grad.is_contiguous(memory_format=torch.channels_last)
    for (name, got), wanted in zip(module.named_parameters(), twin.parameters(), strict=True):
        assert got.grad.dtype == got.dtype, name
        assert_near(got.grad, wanted.grad, dtype)
    for got, wanted in zip(module.buffers(), twin.buffers(), strict=True):
        assert_near(got, wanted, dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("case", "layout"), LAYOUTS)
def test_as_torch(case, layout, dtype):
    shape = MODULES[case][3]
    module, twin = _pair(case)
    module = module.to(dtype)
    twin.load_state_dict(module.state_dict())
    twin = twin.double()
    x, dy = off_centre(shape, dtype)
    _compare(module, twin, x, dy, layout, dtype)
    _compare(module.eval(), twin.eval(), x, dy, layout, dtype, steps=1)


@pytest.mark.parametrize(
    "shape",
    [(2, 4, 5, 1), (2, 4, 1, 5), (1, 4, 5, 1), (2, 1, 5, 1), (3, 4, 1, 1), (2, 4, 1, 3, 1)],
    ids=str,
)
@pytest.mark.parametrize("name", ["GroupNorm", "BatchNorm", "InstanceNorm"])
def test_axes_of_size_1_with_any_stride(name, shape):
    """They decide what torch's kernels take for channels-last."""
    if name == "InstanceNorm" and shape[2:] == (1, 1):
        pytest.skip("one element for each instance")
    name = name if name == "GroupNorm" else f"{name}{len(shape) - 2}d"
    args = (1, shape[1]) if name == "GroupNorm" else (shape[1],)
    module, twin = (getattr(where, name)(*args) for where in (ours, nn))
    data, dy = off_centre(shape, torch.float32)
    # Contiguous: torch 2.13's own batch norm has wrong gradients for some of these strides.
    exact = data.double().requires_grad_()
    want = getattr(nn, name)(*args).double()(exact)
    want.backward(dy.double())
    for order in itertools.permutations(range(len(shape))):
        back = [order.index(axis) for axis in range(len(shape))]
        x = data.permute(order).contiguous().permute(back).requires_grad_()
        y = module(x)
        (grad,) = torch.autograd.grad(y, x, dy)
        assert_near(y, want)
        assert_near(grad, exact.grad)
        if "Instance" not in name:  # which torch does as a batch norm
            assert y.squeeze().stride() == twin(x).squeeze().stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", ["bn2d", "ln", "rms", "gn", "in2d-tracking"])
def test_parameters_in_float32_and_data_in_16_bits(case, dtype):
    module, twin = _pair(case)
    twin.load_state_dict(module.state_dict())
    x, dy = off_centre(MODULES[case][3], dtype)
    _compare(module, twin.double(), x, dy, "contiguous", dtype)
    assert all(parameter.grad.dtype == torch.float32 for parameter in module.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("case", ["bn2d", "ln", "gn", "in1d"])
def test_a_bias_in_float32_with_a_weight_in_16_bits_or_none(case, weighted, training):
    """Its gradient is not rounded to the data's 16 bits, in which this one is infinite."""
    name, args, options, shape = MODULES[case]
    module = getattr(ours, name)(*args, **options).train(training)
    module.weight = nn.Parameter(module.weight.detach().half()) if weighted else None
    x, _ = off_centre(shape, torch.float16)
    module(x.requires_grad_()).backward(torch.full(shape, 3e4, dtype=torch.float16))
    axes = [axis for axis in range(x.dim()) if axis != (x.dim() - 1 if case == "ln" else 1)]
    assert_near(module.bias.grad, torch.full(shape, 3e4, dtype=torch.float64).sum(axes))
    assert not weighted or module.weight.grad.dtype == torch.float16


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("case", ["bn2d", "bn2d-no-affine", "ln", "ln-no-bias", "gn", "in2d"])
def test_parameters_in_the_other_16_bits_are_refused(case, training):
    name, args, options, shape = MODULES[case]
    if case == "in2d":
        options = {"affine": True}
    for dtype, other in itertools.permutations((torch.float16, torch.bfloat16)):
        for where in (ours, nn):
            module = getattr(where, name)(*args, **options).to(other).train(training)
            with pytest.raises(RuntimeError, match="mixed dtype"):
                module(torch.randn(shape, dtype=dtype))


@pytest.mark.parametrize("other", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_instance_norms_inference_takes_buffers_of_any_type(dtype, other):
    module, twin = (where.InstanceNorm1d(4, track_running_stats=True) for where in (ours, nn))
    for one in (module, twin):
        one.running_mean.fill_(0.1)
        one.to(other).eval()
    x, _ = off_centre((3, 4, 5), dtype)
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    y.backward(torch.ones_like(y))
    assert y.dtype == leaf.grad.dtype == twin(x).dtype == dtype
    exact = twin.double()
    assert_near(y, exact(x.double()))
    assert_near(leaf.grad, torch.full_like(x, 1 / (1 + exact.eps) ** 0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_statistics_are_kept_in_float32(dtype):
    x, _ = off_centre((3, 6, 5, 4), dtype)
    weight = torch.ones(6, dtype=dtype)
    ops = torch.ops.normgrad
    results = (
        ops.batch_norm(x, weight, None, None, None, True, 0.1, 1e-5),
        ops.group_norm(x, weight, None, 2, 1e-5),
        ops.layer_norm(x, [4], None, None, 1e-5),
    )
    for y, mean, rstd in results:
        assert (y.dtype, mean.dtype, rstd.dtype) == (dtype, torch.float32, torch.float32)
    assert_near(results[0][1], x.double().mean((0, 2, 3)))


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_torchs_default_type_and_device_do_not_matter(dtype, default):
    x = torch.randn(4, 6, 5).to(dtype)
    modules = (
        ours.BatchNorm1d(6, affine=False, track_running_stats=False),
        ours.LayerNorm(5, elementwise_affine=False),
        ours.GroupNorm(2, 6, affine=False),
    )
    want = [module(x) for module in modules]
    moments = statistics.moments(x)
    torch.set_default_dtype(default)
    try:
        with torch.device("meta"):
            got = [module(x) for module in modules]
            assert all(map(torch.equal, statistics.moments(x), moments))
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("name", sorted({case[0] for case in MODULES.values()}))
def test_constructor_and_state_dict_are_torchs(name):
    args = (2, 6) if name == "GroupNorm" else (6,)
    module, twin = getattr(ours, name)(*args), getattr(nn, name)(*args)
    if name != "SyncBatchNorm":
        assert isinstance(module, getattr(nn, name))
        theirs, mine = (inspect.signature(one.__init__) for one in (type(twin), type(module)))
        assert mine == theirs
    assert list(module.state_dict()) == list(twin.state_dict())
    assert repr(module) == repr(twin)
    module.load_state_dict(twin.state_dict())


def test_sync_batch_norm_takes_torchs_arguments():
    def arguments(cls):
        return [
            (one.name, one.default)
            for one in inspect.signature(cls.__init__).parameters.values()
            if one.name != "bias"
        ]

    mine, torchs = arguments(ours.SyncBatchNorm), arguments(nn.SyncBatchNorm)
    assert mine[: len(torchs)] == torchs
    assert mine[len(torchs) :] == [("activation", None), ("negative_slope", 0.01)]


@pytest.mark.parametrize("axes", [3, 9])
@pytest.mark.parametrize("name", ["batch_norm", "batch_norm_elemt", "group", "layer", "rms"])
def test_results_may_be_changed_in_place(name, axes):
    """As by ``ReLU(inplace=True)``: they were views for a time, which autograd refuses."""
    x = torch.randn(3, 4, 5, *(1,) * (axes - 3), requires_grad=True)
    ops, vectors = torch.ops.normgrad, (torch.zeros(4), torch.ones(4))
    y, *statistics = {
        "batch_norm": lambda: ops.batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
        "batch_norm_elemt": lambda: ops.batch_norm(x, None, None, *vectors, False, 0.1, 1e-5),
        "group": lambda: ops.group_norm(x, None, None, 2, 1e-5),
        "layer": lambda: ops.layer_norm(x, x.shape[2:], None, None, 1e-5),
        "rms": lambda: ops.rms_norm(x, x.shape[2:], None, 1e-5),
    }[name]()
    assert not any(one._is_view() for one in (y, *statistics))
    torch.relu_(y).sum().backward()
    assert x.grad.shape == x.shape


def test_a_batch_of_nothing():
    module = ours.BatchNorm2d(4)
    x = torch.randn(0, 4, 3, 3, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(module.weight.grad, torch.zeros(4))
    assert torch.equal(module.running_var, torch.ones(4))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(0, 5), (2, 5, 0)])
def test_a_batch_of_nothing_in_another_number_of_channels(shape, training):
    """Refused where it is met, as one with data: the backward pass could not take it."""
    with pytest.raises(RuntimeError, match="weight should contain 5 elements not 4"):
        ours.BatchNorm1d(4).train(training)(torch.randn(shape))


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 4, 0, 3)])
def test_instance_norm_of_nothing(shape):
    module = ours.InstanceNorm2d(4, affine=True, track_running_stats=True)
    x = torch.randn(shape, requires_grad=True)
    module(x).sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(module.weight.grad, torch.zeros(4))
    assert torch.equal(module.running_var, torch.ones(4))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("options", [{}, {"affine": True}, {"track_running_stats": True}], ids=str)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_instance_norm_without_channels(options, training):
    """Torch gives an empty result; with parameters it fails on them."""
    for shape in ((2, 0, 5), (2, 0, 0), (0, 0, 5)):
        for where in (ours,) if "affine" in options else (ours, nn):
            module = where.InstanceNorm1d(0, **options).train(training)
            x = torch.randn(shape, requires_grad=True)
            y = module(x)
            y.sum().backward()
            assert y.shape == x.grad.shape == shape
    if training:
        with pytest.raises(ValueError, match="more than 1 spatial element"):
            ours.InstanceNorm1d(0, **options)(torch.randn(2, 0, 1))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_batch_norm_without_channels():
    for where in (ours, nn):
        for shape in ((1, 0), (1, 0, 1)):
            with pytest.raises(ValueError, match="more than 1 value per channel"):
                where.BatchNorm1d(0)(torch.randn(shape))
    for shape in ((2, 0), (1, 0, 3)):  # torch fails on its own zeros
        assert ours.BatchNorm1d(0)(torch.randn(shape)).shape == shape
    assert ours.BatchNorm1d(0).eval()(torch.randn(1, 0)).shape == (1, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 3, 4, 4, 4)], ids=str)
def test_instance_norm_far_from_0(shape, layout, dtype):
    """As near as torch's in every layout: with its channels last it was off by 0.13."""
    torch.manual_seed(4)
    x = (torch.randn(shape) + 300.0).to(dtype)
    dy = torch.randn(shape).to(dtype)
    name = f"InstanceNorm{len(shape) - 2}d"
    exact = x.double().requires_grad_()
    want = getattr(nn, name)(3).double()(exact)
    want.backward(dy.double())
    leaf = _lay_out(x, layout).requires_grad_()
    y = getattr(ours, name)(3)(leaf)
    y.backward(dy)
    slack = 10 * 300 * torch.finfo(torch.float32).eps  # of the mean, in deviations
    unit = torch.finfo(dtype).eps
    for got, wanted in ((y, want), (leaf.grad, exact.grad)):
        torch.testing.assert_close(got.double(), wanted, rtol=unit, atol=slack)


@pytest.mark.parametrize(
    ("scale", "mean", "eps"),
    [(1e-4, 1.0, 1e-5), (1e-4, 1.0, 0.1), (1e3, 1.0, 1e-5), (1e-2, 1e6, 1e-5)],
)
@pytest.mark.parametrize("channels_last", [True, False])
def test_instance_norms_running_variance_is_that_of_the_data(scale, mean, eps, channels_last):
    options = {"track_running_stats": True, "momentum": 1.0, "eps": eps}
    module, twin = ours.InstanceNorm2d(3, **options), nn.InstanceNorm2d(3, **options).double()
    x = scale * (torch.randn(4, 3, 5, 10) + mean)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    module(x)
    twin(x.double())
    torch.testing.assert_close(module.running_var.double(), twin.running_var, rtol=2e-6, atol=0.0)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("LayerNorm", (2,)),
        ("LayerNorm", ((4, *(2,) * 8),)),
        ("GroupNorm", (2, 4)),
        ("SyncBatchNorm", (4,)),
    ],
)
def test_more_axes_than_the_core_takes(name, args):
    module = getattr(ours, name)(*args).double()
    twin = getattr(nn, "BatchNorm1d" if name == "SyncBatchNorm" else name)(*args).double()
    x = torch.randn(2, 4, *(2,) * 8, dtype=torch.float64).transpose(3, 7)
    dy = torch.randn(x.shape, dtype=torch.float64)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    module(mine).backward(dy)
    if name == "SyncBatchNorm":
        twin(theirs.flatten(2)).backward(dy.flatten(2))
    else:
        twin(theirs).backward(dy)
    assert_near(mine.grad, theirs.grad)
    for one, other in zip(module.parameters(), twin.parameters(), strict=True):
        assert_near(one.grad, other.grad)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0)])
def test_second_derivative_of_nothing(shape):
    for module in (ours.GroupNorm(2, 4), ours.BatchNorm1d(4), ours.LayerNorm(shape[-1])):
        x = torch.randn(shape, requires_grad=True)
        (grad,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        grad.square().sum().backward()
        assert x.grad.shape == x.shape


def test_second_derivative_as_torchs():
    torch.manual_seed(2)
    start = torch.randn(4, 6, 5, dtype=torch.float64)

    def penalty(module):
        x = start.clone().requires_grad_()
        (grad,) = torch.autograd.grad(module(x).sin().sum(), x, create_graph=True)
        grad.square().sum().backward()
        return x.grad

    for mine, theirs in (
        (ours.BatchNorm1d(6), nn.BatchNorm1d(6)),
        (ours.GroupNorm(3, 6), nn.GroupNorm(3, 6)),
        (ours.LayerNorm(5), nn.LayerNorm(5)),
    ):
        assert_near(penalty(mine.double()), penalty(theirs.double()))
