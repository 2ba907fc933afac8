"""``torch.ops.normgrad.*``: derivatives, registration, vmap, autocast."""

import inspect

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

import normgrad
import normgrad.torch
from normgrad import functional

OPS = torch.ops.normgrad


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64).requires_grad_()


def _positive(*shape):
    return (0.5 + torch.rand(*shape, dtype=torch.float64)).requires_grad_()


def _cases():
    torch.manual_seed(7)
    dy, x, weight, bias = _random(3, 4, 5), _random(3, 4, 5), _random(4), _random(4)
    mean, rstd = _random(4), _positive(4)
    every = [True, True, True]
    return {
        "batch_norm_backward/training": (dy, x, weight, None, None, mean, rstd),
        "batch_norm_backward/inference": (dy, x, weight, mean, rstd, None, None, False, 1e-3),
        "batch_norm_backward/no-weight": (dy, x, None, None, None, mean, rstd),
        "batch_norm_backward/masked": (
            *(dy, x, weight, None, None, mean, rstd),
            *(True, 1e-5, [True, False, True]),
        ),
        "batch_norm_backward/last-axis": (
            *(dy, x, _random(5), None, None, _random(5), _positive(5)),
            *(True, 1e-5, every, 2),
        ),
        "batch_norm_reduce_backward/plain": (dy, x, mean, rstd, weight),
        "batch_norm_elemt_backward/plain": (
            *(dy, x, mean, rstd, weight, _random(4), _random(4)),
            torch.tensor([7, 8], dtype=torch.int32),
        ),
        "layer_norm_backward/one-axis": (dy, x, [5], _random(3, 4, 1), _positive(3, 4, 1)),
        "layer_norm_backward/two-axes": (
            *(dy, x, [4, 5], _random(3, 1, 1), _positive(3, 1, 1), _random(4, 5)),
        ),
        "rms_norm_backward/plain": (dy, x, [5], _positive(3, 4, 1)),
        "rms_norm_backward/offset": (
            *(dy, x, [4, 5], _positive(3, 1, 1), _random(4, 5), [True, True], 1.0),
        ),
        "group_norm_backward/groups": (dy, x, _random(3, 2), _positive(3, 2), weight, 2),
        "group_norm_backward/last-axis": (
            *(dy, x, _random(3, 5), _positive(3, 5), None, 5, every, 2),
        ),
        "batch_norm_backward/silu": (
            *(dy, x, weight, None, None, mean, rstd),
            *(True, 1e-5, every, 1, bias, "silu"),
        ),
        "batch_norm_backward/inference-hardswish": (
            *(dy, x, weight, mean, rstd, None, None, False, 1e-3),
            *(every, 1, bias, "hardswish"),
        ),
        "batch_norm_add_backward/shortcut": (
            *(dy, x, _random(3, 4, 5), None, weight, bias, None, None, mean, rstd),
            *(True, 1e-5, [*every, True], 1, "gelu"),
        ),
        "batch_norm_add_backward/mask": (
            *(dy, x, None, torch.arange(12, dtype=torch.uint8).reshape(3, 4, 1), weight, bias),
            *(None, None, mean, rstd),
        ),
        "layer_norm_backward/sum": (
            *(dy, x, [5], _random(3, 4, 1), _positive(3, 4, 1), _random(5), None, every),
            _random(3, 4, 5),
        ),
        "rms_norm_backward/sum": (
            *(dy, x, [5], _positive(3, 4, 1), _random(5), [True, True], 0.0, _random(3, 4, 5)),
        ),
        "group_norm_backward/gelu": (
            *(dy, x, _random(3, 2), _positive(3, 2), weight, 2, every, 1, bias, "gelu_tanh"),
        ),
        "batch_norm/relu": (x, weight, bias, None, None, True, 0.1, 1e-5, "relu"),
        "batch_norm/leaky": (x, weight, bias, None, None, True, 0.1, 1e-5, "leaky_relu", 0.2),
        "batch_norm/inference-silu": (
            *(x, weight, bias, mean.detach(), rstd.detach(), False, 0.1, 1e-5, "silu"),
        ),
        "batch_norm_add/relu": (x, dy, weight, bias, None, None, True, 0.1, 1e-5, "relu"),
        "batch_norm_add/silu": (x, dy, weight, None, None, None, True, 0.1, 1e-5, "silu"),
        "batch_norm_add/plain": (x, dy, weight, bias, None, None, True, 0.1, 1e-5),
        "batch_norm_add/inference": (
            *(x, dy, weight, bias, mean.detach(), rstd.detach(), False, 0.1, 1e-5, "relu"),
        ),
        "add_layer_norm/plain": (x, dy, [5], _random(5), _random(5), 1e-5),
        "add_rms_norm/offset": (x, dy, [5], _random(5), None, 1.0),
        "group_norm/silu": (x, weight, bias, 2, 1e-5, "silu"),
        "batch_norm/training": (x, weight, bias, None, None, True, 0.1, 1e-5),
        "batch_norm/inference": (
            *(x, weight, bias, mean.detach(), rstd.detach(), False, 0.1, 1e-5),
        ),
        "layer_norm/plain": (x, [5], _random(5), _random(5), 1e-5),
        "rms_norm/plain": (x, [5], _random(5), 1e-5),
        "rms_norm/offset": (x, [4, 5], _random(4, 5), None, 1.0),
        "group_norm/plain": (x, weight, bias, 2, 1e-5),
    }


CASES = _cases()


@pytest.fixture(params=CASES, ids=str)
def call(request):
    name = request.param.partition("/")[0]
    return getattr(OPS, name).default, CASES[request.param]


def _of_tensors(op, args, *, all_results=False):
    """The operator as a function of its differentiable arguments, and those."""
    places = [
        index
        for index, one in enumerate(args)
        if isinstance(one, torch.Tensor) and one.is_leaf and one.requires_grad
    ]

    def function(*tensors):
        full = list(args)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        results = op(*full)
        results = results if isinstance(results, tuple) else (results,)
        results = [one for one in results if one is not None]
        return tuple(one for one in results if all_results or one.requires_grad)

    return function, [args[place] for place in places]


def test_first_and_second_derivatives(call):
    function, tensors = _of_tensors(*call)
    assert gradcheck(function, tensors, fast_mode=True)
    assert gradgradcheck(function, tensors, fast_mode=True)


# Torch's own warning, when it sets up its rules for forward mode.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_forward_mode(call):
    function, tensors = _of_tensors(*call, all_results=True)
    assert gradcheck(function, tensors, check_forward_ad=True, check_backward_ad=False)


def test_opcheck(call):
    op, args = call
    torch.library.opcheck(op, args)


def test_opcheck_with_running_statistics():
    x, weight, bias = _random(3, 4, 5), _random(4), _random(4)
    buffers = (torch.zeros(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    args = (x, weight, bias, *buffers, True, 0.1, 1e-5)
    torch.library.opcheck(OPS.batch_norm.default, args)


@pytest.mark.parametrize("layout", ["channels-last", "sliced", "expanded"])
def test_shapes_without_data_have_the_strides_of_results(layout):
    x = torch.randn(2, 4, 6, 6)
    if layout == "channels-last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "sliced":
        x = x[:, :, ::2, 1:]
    else:
        x = x[:1, :, :1].expand(2, 4, 6, 6)
    args = (torch.randn_like(x), x, torch.ones(4), None, None, torch.zeros(4), torch.ones(4))
    torch.library.opcheck(OPS.batch_norm_backward.default, args)
    stats = (torch.zeros(2, 2), torch.ones(2, 2))
    torch.library.opcheck(OPS.group_norm_backward.default, (args[0], x, *stats, torch.ones(4), 2))


def test_an_operator_is_the_function():
    """Whose arguments come in another order."""
    dy, x, shape, mean, rstd, weight = CASES["layer_norm_backward/two-axes"]
    with torch.no_grad():
        got = OPS.layer_norm_backward(dy, x, shape, mean, rstd, weight)
    want = normgrad.layer_norm_backward(dy, x, mean, rstd, shape, weight=weight)
    assert all(torch.equal(one, other) for one, other in zip(got, want[:3], strict=True))


# Torch's own operator for each of ours, and its arguments that have another name here or (None)
# say what the data's shape or the mask says.
TORCHS = {
    "batch_norm_backward": ("native_batch_norm_backward", {"train": "training"}),
    "batch_norm_reduce_backward": (
        "batch_norm_backward_reduce",
        {"input_g": "output_mask", "weight_g": None, "bias_g": None},
    ),
    "batch_norm_elemt_backward": ("batch_norm_backward_elemt", {"count": "counter"}),
    "layer_norm_backward": ("native_layer_norm_backward", {}),
    "rms_norm_backward": ("_fused_rms_norm_backward", {}),
    "group_norm_backward": (
        "native_group_norm_backward",
        {"N": None, "C": None, "HxW": None, "group": "num_groups"},
    ),
}
# What torch's have not, which comes last.
_AFTER = ["bias", "activation", "negative_slope"]
LAST = {
    "batch_norm_backward": ["channel_axis", *_AFTER],
    "group_norm_backward": ["channel_axis", *_AFTER],
    "layer_norm_backward": ["grad_sum"],
    "rms_norm_backward": ["weight_offset", "grad_sum"],
}
# What the function has no default for, or has not at all.
DEFAULTS = {
    **dict.fromkeys(("running_mean", "running_var", "save_mean", "save_invstd", "bias")),
    "num_groups": 32,
}


def test_all_operators_are_compared_with_torchs():
    assert {name for name in functional.__all__ if hasattr(OPS, name)} == TORCHS.keys()


@pytest.mark.parametrize("name", TORCHS)
def test_an_operator_has_torchs_arguments_in_torchs_order(name):
    torchs, renamed = TORCHS[name]
    arguments = getattr(torch.ops.aten, torchs).default._schema.arguments
    names = [renamed.get(one.name, one.name) for one in arguments]
    wanted = [one for one in names if one is not None]
    wanted += LAST.get(name, ["channel_axis"])
    assert [one.name for one in getattr(OPS, name).default._schema.arguments] == wanted


@pytest.mark.parametrize("name", TORCHS)
def test_an_operator_has_the_functions_defaults(name):
    """Where the arguments that follow have one too."""
    parameters = inspect.signature(getattr(functional, name)).parameters
    given = {
        one.name: one.default for one in parameters.values() if one.default is not one.empty
    } | DEFAULTS
    given.pop("rstd", None)  # the operators take no variance in its place
    arguments = getattr(OPS, name).default._schema.arguments
    last_without = max(place for place, one in enumerate(arguments) if one.name not in given)
    for place, one in enumerate(arguments):
        assert one.has_default_value() == (place > last_without), one.name
        if place > last_without:
            default = one.default_value
            default = tuple(default) if isinstance(default, list) else default
            assert default == given[one.name], one.name


def test_errors_name_the_argument():
    x = torch.randn(3, 4)
    with pytest.raises(normgrad.ShapeError, match=r"mean must have one element for each of the 3"):
        OPS.layer_norm_backward(x, x, [4], torch.zeros(2), torch.ones(2))


def test_a_tensor_on_another_device_is_an_error_that_names_it(call):
    """Without data torch takes the shapes' road, whose results are memory that nobody wrote."""
    op, args = call
    tensors = [place for place, one in enumerate(args) if isinstance(one, torch.Tensor)]
    for place in (tensors[0], tensors[-1]):
        mixed = [one.detach() if isinstance(one, torch.Tensor) else one for one in args]
        mixed[place] = mixed[place].to("meta")
        first = op._schema.arguments[tensors[0]].name
        with pytest.raises(normgrad.DeviceError, match=f"must be on {first}'s device"):
            op(*mixed)


def _mapped(args, which):
    """Arguments with three slices in some tensors, and where their mapped axes are."""
    torch.manual_seed(3)
    made, dims = [], []
    for index, one in enumerate(args):
        if isinstance(one, torch.Tensor) and which(index, one):
            slices = [one.detach() * (1 + 0.1 * k) for k in range(3)]
            slices = [part.to(one.dtype) for part in slices]
            axis = one.dim() if index == 1 else 0
            made.append(torch.stack(slices, axis))
            dims.append(axis)
        else:
            made.append(one.detach() if isinstance(one, torch.Tensor) else one)
            dims.append(None)
    return made, dims


@pytest.mark.parametrize("which", ["all", "data", "counter-apart"])
def test_vmap_is_a_loop(call, which):
    op, args = call
    if op is OPS.batch_norm_add_backward.default and args[2] is None:
        with pytest.raises(NotImplementedError, match="takes shortcut, not mask"):
            torch.func.vmap(lambda one: op(one, *args[1:]))(torch.stack([args[0]] * 3))
        return
    choose = {
        "all": lambda index, one: True,
        "data": lambda index, one: one.dim() == 3 and one.shape == (3, 4, 5),
        "counter-apart": lambda index, one: not one.dtype.is_floating_point or index < 2,
    }[which]
    mapped, dims = _mapped(args, choose)
    got = torch.func.vmap(
        lambda *tensors: tuple(
            one for one in _tuple(op(*_fill(mapped, dims, tensors))) if one is not None
        ),
        in_dims=tuple(dim for dim in dims if dim is not None),
    )(*(one for one, dim in zip(mapped, dims, strict=True) if dim is not None))
    for index in range(3):
        alone = [
            one if dim is None else one.select(dim, index)
            for one, dim in zip(mapped, dims, strict=True)
        ]
        want = [one for one in _tuple(op(*alone)) if one is not None]
        for ours, single in zip(got, want, strict=True):
            if single.dtype != torch.uint8:  # a mask, which has no slices
                torch.testing.assert_close(ours[index], single)


def _tuple(results):
    return results if isinstance(results, tuple) else (results,)


def _fill(mapped, dims, tensors):
    rest = iter(tensors)
    return [one if dim is None else next(rest) for one, dim in zip(mapped, dims, strict=True)]


@pytest.mark.parametrize("kind", ["layer", "group", "batch"])
def test_gradients_of_each_sample_as_with_torch(kind):
    torch.manual_seed(5)
    x, weight, bias = torch.randn(3, 2, 4, 5), torch.randn(4), torch.randn(4)
    functional = torch.nn.functional
    pairs = {
        "layer": (
            lambda w, b, one: OPS.layer_norm(one, [4], w, b, 1e-5)[0],
            lambda w, b, one: functional.layer_norm(one, [4], w, b, 1e-5),
        ),
        "group": (
            lambda w, b, one: OPS.group_norm(one, w, b, 2, 1e-5)[0],
            lambda w, b, one: functional.group_norm(one, 2, w, b, 1e-5),
        ),
        "batch": (
            lambda w, b, one: OPS.batch_norm(one, w, b, None, None, True, 0.0, 1e-5)[0],
            lambda w, b, one: functional.batch_norm(one, None, None, w, b, True, 0.0, 1e-5),
        ),
    }
    if kind == "layer":
        x = x.transpose(2, 3).contiguous()
    ours, torchs = (
        torch.func.vmap(
            torch.func.grad(lambda w, b, one, f=f: f(w, b, one).sin().sum(), argnums=(0, 1, 2)),
            in_dims=(None, None, 0),
        )(weight, bias, x)
        for f in pairs[kind]
    )
    for one, other in zip(ours, torchs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "args", "training", "each"),
    [
        ("GroupNorm", (2, 4), True, False),
        ("GroupNorm", (2, 4), True, True),
        ("InstanceNorm1d", (4, 1e-5, 0.1, True), True, True),
        ("InstanceNorm1d", (4, 1e-5, 0.1, True, True), False, False),
        ("InstanceNorm1d", (4, 1e-5, 0.1, True, True), False, True),
    ],
)
def test_slices_of_vmap_are_laid_out_as_torchs(name, args, training, each):
    """A view of one as a vector was an error; with a weight for each slice or for all."""
    x, weight = torch.randn(3, 5, 4, 6), torch.randn(3, 4) if each else torch.randn(4)
    found = []
    for where in (normgrad.torch, torch.nn):
        module = getattr(where, name)(*args).train(training)

        def vector(x, weight, module=module):
            return torch.func.functional_call(module, {"weight": weight}, (x,)).view(-1)

        found.append(torch.func.vmap(vector, (0, 0 if each else None))(x, weight))
    torch.testing.assert_close(*found)


def test_vmap_over_unmapped_buffers_is_refused():
    x = torch.randn(3, 2, 4)
    buffers = (torch.zeros(4), torch.ones(4))
    with pytest.raises(RuntimeError, match="running statistics that are not mapped"):
        torch.func.vmap(lambda one: OPS.batch_norm(one, None, None, *buffers, True, 0.1, 1e-5)[0])(
            x
        )


@pytest.mark.parametrize("names", [("weight", "bias"), ("bias",)], ids=str)
@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3)], ids=str)
def test_vmap_over_parameters_alone_updates_buffers_once(shape, names):
    """An ensemble of parameters on one batch, as with torch's module."""
    torch.manual_seed(2)
    x, parameters = torch.randn(shape) + 5, {name: torch.rand(3, 4) for name in names}
    results = []
    for module in (normgrad.torch.BatchNorm1d(4), torch.nn.BatchNorm1d(4)):
        own = {name: one.clone() for name, one in module.named_buffers()}

        def forward(mine, x, own, module=module):
            y = torch.func.functional_call(module, (mine, own), (x,))
            return y.sin().sum(), y

        gradients = torch.func.grad(forward, argnums=(0, 1), has_aux=True)
        mapped = torch.func.vmap(gradients, in_dims=(0, None, None))
        results.append((mapped(parameters, x, own), own))
    ours, torchs = results
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-5)
    assert ours[1]["num_batches_tracked"] == 1


def test_vmap_over_mapped_buffers_updates_them():
    torch.manual_seed(1)
    x = torch.randn(3, 6, 4) + 5
    means, variances = torch.zeros(3, 4), torch.ones(3, 4)
    torch.func.vmap(
        lambda one, mean, var: OPS.batch_norm(one, None, None, mean, var, True, 0.5, 1e-5)[0]
    )(x, means, variances)
    torch.testing.assert_close(means, 0.5 * x.mean(1))
    torch.testing.assert_close(variances, 0.5 + 0.5 * x.var(1))


def test_vmap_over_instance_norms_parameters_and_buffers_on_one_batch():
    """An ensemble: the data are not mapped, what is computed of them is."""
    x = torch.randn(5, 4, 6)
    found = []
    for where in (normgrad.torch, torch.nn):
        module = where.InstanceNorm1d(4, affine=True, track_running_stats=True)
        state = {name: torch.stack([one.detach()] * 3) for name, one in module.state_dict().items()}

        def member(state, module=module):
            return torch.func.functional_call(module, state, (x,))

        found.append((torch.func.vmap(member)(state), state["running_mean"], state["running_var"]))
    torch.testing.assert_close(*found)


def test_autocast_on_the_cpu_leaves_types_as_torch_does():
    module, twin = normgrad.torch.LayerNorm(8), torch.nn.LayerNorm(8)
    x = torch.randn(4, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours, torchs = module(x), twin(x)
        linear = torch.nn.Linear(8, 8)
        through = module(linear(torch.randn(4, 8)))
    assert ours.dtype == torchs.dtype
    assert through.dtype == torch.bfloat16
    through.float().sum().backward()
    assert module.weight.grad.dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("BatchNorm2d", (8, 1e-5, 0.1, True, False)),
        ("LayerNorm", (4,)),
        ("RMSNorm", (4,)),
        ("GroupNorm", (2, 8)),
        ("InstanceNorm2d", (8,)),
        ("InstanceNorm2d", (8, 1e-5, 0.1, True)),
    ],
)
def test_autocast_on_cuda_leaves_types_as_torch_does(name, args):
    """On fake tensors: types need no GPU, if no buffers are written."""
    types = []
    with FakeTensorMode(), torch.no_grad():
        for where in (normgrad.torch, torch.nn):
            module = getattr(where, name)(*args, device="cuda")
            x = torch.empty(2, 8, 4, 4, device="cuda", dtype=torch.float16)
            torch.set_autocast_enabled("cuda", True)
            try:
                types.append(module(x).dtype)
            finally:
                torch.set_autocast_enabled("cuda", False)
    assert types[0] == types[1]
