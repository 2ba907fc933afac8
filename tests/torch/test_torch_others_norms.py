"""Norms of transformers and timm, written out here as they compute; ``convert`` takes them."""

import copy
import itertools
import logging
import pickle

import pytest
import torch
from closeness import TOLERANCE
from torch import nn

import normgrad.torch as ours

TYPES = [torch.float32, torch.bfloat16, torch.float16]


class _RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def scaled(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)


class RoundedFirstRMSNorm(_RMSNorm):
    """As Llama, Qwen, Mistral: x-hat in the data's type, then the weight."""

    def forward(self, x):
        return self.weight * self.scaled(x.float()).to(x.dtype)


class OneMoreRMSNorm(_RMSNorm):
    """As Gemma: the weight is stored less 1, all arithmetic in float32."""

    def forward(self, x):
        return (self.scaled(x.float()) * (1.0 + self.weight.float())).type_as(x)


class CastLastRMSNorm(_RMSNorm):
    def forward(self, x):
        return (self.weight * self.scaled(x.float())).to(x.dtype)


class OfWeightsTypeLayerNorm(_RMSNorm):
    """As T5: a result of the weight's type where that has 16 bits."""

    def forward(self, x):
        xhat = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        narrow = self.weight.dtype in (torch.float16, torch.bfloat16)
        return self.weight * (xhat.to(self.weight.dtype) if narrow else xhat)


class BareRMSNorm(_RMSNorm):
    def __init__(self, size):
        super().__init__(size)
        self.weight = None

    def forward(self, x):
        return self.scaled(x.float()).type_as(x)


TAKEN = [
    RoundedFirstRMSNorm,
    OneMoreRMSNorm,
    CastLastRMSNorm,
    OfWeightsTypeLayerNorm,
    BareRMSNorm,
]


def _pair(cls, dtype=torch.float32):
    torch.manual_seed(1)
    module = cls(24)
    if module.weight is not None:
        nn.init.normal_(module.weight)
    return ours.convert(copy.deepcopy(module)).to(dtype), module.to(dtype)


def _step(module, x):
    x = x.clone().requires_grad_()
    y = module(x)
    y.double().pow(3).sum().backward()
    grads = [one.grad for one in (x, *module.parameters())]
    return [y.detach(), *grads]


@pytest.mark.parametrize(("data", "weight"), list(itertools.product(TYPES, TYPES)))
@pytest.mark.parametrize("cls", TAKEN)
def test_results_have_the_types_of_the_original_and_are_no_worse(cls, data, weight):
    module, original = _pair(cls, weight)
    assert type(module) is not cls
    assert isinstance(module, cls)
    x = (2 * torch.randn(4, 3, 24)).to(data)
    twin = copy.deepcopy(original).double()
    twin.forward = lambda x: _exact(twin, x)
    found = (_step(one, x) for one in (module, original))
    exact = _step(twin, x.double())
    for mine, theirs, right in zip(*found, exact, strict=True):
        assert mine.dtype == theirs.dtype
        slack = TOLERANCE[min((data, weight), key=lambda one: -torch.finfo(one).eps)]
        off = [(one.double() - right).abs().max() / right.abs().max() for one in (mine, theirs)]
        assert off[0] <= max(1.5 * off[1], slack)


def _exact(module, x):
    y = module.scaled(x)
    if isinstance(module, BareRMSNorm):
        return y
    return y * (module.weight + isinstance(module, OneMoreRMSNorm))


def test_the_kernel_is_ours_and_revert_brings_the_class_back(caplog):
    model = nn.Sequential(RoundedFirstRMSNorm(8), nn.Linear(8, 8), OneMoreRMSNorm(8))
    before = {name: one.clone() for name, one in model.state_dict().items()}
    seed = torch.get_rng_state()
    caplog.set_level(logging.INFO, "normgrad.torch")
    ours.convert(model)
    assert "changed 1 RoundedFirstRMSNorm, 1 OneMoreRMSNorm" in caplog.text
    assert torch.equal(torch.get_rng_state(), seed)
    assert "normgrad_rms_norm" in model[0](torch.randn(2, 8)).grad_fn.name()
    assert type(ours.convert(model)[0]) is type(model[0])  # a second time changes nothing
    assert repr(model[2]) == repr(OneMoreRMSNorm(8))
    ours.revert(model)
    assert [type(one) for one in model] == [RoundedFirstRMSNorm, nn.Linear, OneMoreRMSNorm]
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())


def test_copies_and_pickles():
    module = _pair(OneMoreRMSNorm)[0]
    x = torch.randn(3, 24)
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert type(twin) is type(module)
        assert torch.equal(twin(x), module(x))


def test_what_was_not_tried_goes_to_the_original():
    module, original = _pair(RoundedFirstRMSNorm)
    x = torch.randn(3, 24)
    assert torch.equal(module(x=x), original(x=x))
    assert torch.equal(module.double()(x.double()), original.double()(x.double()))
    with pytest.raises(TypeError, match="positional argument"):
        module(x, x)


@pytest.mark.parametrize("cls", [RoundedFirstRMSNorm, OneMoreRMSNorm])
def test_in_a_whole_graph(cls):
    module, original = _pair(cls)
    x = torch.randn(3, 24)
    torch.compiler.reset()
    run = torch.compile(module, backend="aot_eager", fullgraph=True)
    for got, want in zip(_step(run, x), _step(original, x), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()


class CentredRMSNorm(_RMSNorm):
    def forward(self, x):
        return self.weight * self.scaled(x - x.mean(-1, keepdim=True))


class EpsOutsideRMSNorm(_RMSNorm):
    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


class ConstantScaleRMSNorm(_RMSNorm):
    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps).detach()


class NoisyRMSNorm(_RMSNorm):
    def forward(self, x):
        return nn.functional.dropout(self.weight * self.scaled(x), 0.5, self.training)


class GroupedRMSNorm(_RMSNorm):
    def forward(self, x):
        return self.weight * self.scaled(x.unflatten(-1, (2, -1))).flatten(-2)


class FailingRMSNorm(_RMSNorm):
    def forward(self, x):
        raise RuntimeError


class CountingRMSNorm(_RMSNorm):
    def __init__(self, size):
        super().__init__(size)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.weight * self.scaled(x)


@pytest.mark.parametrize(
    "cls",
    [
        CentredRMSNorm,
        EpsOutsideRMSNorm,
        ConstantScaleRMSNorm,
        NoisyRMSNorm,
        GroupedRMSNorm,
        FailingRMSNorm,
        CountingRMSNorm,
    ],
)
def test_what_is_something_else_is_left_alone_and_named(cls, caplog):
    module = cls(24)
    assert type(ours.convert(module)) is cls
    assert f"left alone, as it is not known what they compute: 1 {cls.__name__}" in caplog.text
    assert not any(one.any() for one in module.buffers())


def test_a_module_whose_forward_was_replaced_is_left_alone():
    module = RoundedFirstRMSNorm(24)
    module.forward = lambda x: x
    assert type(ours.convert(module)) is RoundedFirstRMSNorm


# timm's, by their names and the package they are from.


class _LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class _LayerNorm2d(_LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _GroupNorm(nn.GroupNorm):
    def __init__(self, channels, groups=2):
        super().__init__(groups, channels)
        self.drop, self.act = nn.Dropout(0.5), nn.SiLU(inplace=True)

    def forward(self, x):
        return nn.functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _GroupNormAct(_GroupNorm):
    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class _RmsNorm(_RMSNorm):
    def __init__(self, size):
        super().__init__(size)
        self.normalized_shape = (size,)

    def forward(self, x):
        return nn.functional.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class _BatchNormAct2d(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


def _timms(cls, forward=None):
    """A class as timm would have it."""
    name = cls.__name__.removeprefix("_")
    body = {"__module__": "timm.layers.norm"} | ({} if forward is None else {"forward": forward})
    return type(name, (cls,), body)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("cls", "shape"),
    [
        (_LayerNorm, (2, 5, 6)),
        (_LayerNorm2d, (2, 6, 4, 5)),
        (_GroupNorm, (2, 6, 4, 5)),
        (_GroupNormAct, (2, 6, 4, 5)),
        (_RmsNorm, (2, 5, 6)),
        (_BatchNormAct2d, (2, 6, 4, 5)),
    ],
)
def test_timms(cls, shape, training):
    original = _timms(cls)(6).train(training)
    module = ours.convert(copy.deepcopy(original))
    assert type(module) is not type(original)
    assert all(map(torch.equal, module.buffers(), original.buffers()))  # the trial moves nothing
    found = []
    for one in (module, original):
        torch.manual_seed(3)
        found.append(_step(one, torch.randn(shape)))
    for got, want in zip(*found, strict=True):
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(list(module.buffers()), list(original.buffers()))
    assert type(ours.revert(module)) is type(original)


def test_timms_that_compute_something_else_are_left_alone():
    other = _timms(_LayerNorm, lambda self, x: 2 * nn.LayerNorm.forward(self, x))(6)
    fast = _timms(_LayerNorm)(6)
    fast._fast_norm = True  # types of its own under autocast
    for module in (other, fast):
        cls = type(module)
        assert type(ours.convert(module)) is cls


def test_the_real_ones():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    gemma = pytest.importorskip("transformers.models.gemma.modeling_gemma")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    for cls in (llama.LlamaRMSNorm, gemma.GemmaRMSNorm, t5.T5LayerNorm):
        assert type(ours.convert(cls(24))) is not cls


def test_a_model_of_timms(caplog):
    timm = pytest.importorskip("timm")
    ours.convert(timm.create_model("efficientnet_b0"))
    assert "left alone" not in caplog.text
