"""Models whose modules become ours, and torch's again."""

import copy

import pytest
import torch
import torch.distributed as dist
from closeness import assert_near
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import parametrize

import normgrad.torch as ours


def _model():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.GroupNorm(2, 8),
        nn.InstanceNorm2d(8),
        nn.Flatten(),
        nn.LayerNorm(8 * 36),
        nn.SyncBatchNorm(8 * 36),
    )


def test_convert_and_revert_a_model_in_place():
    model = _model()
    twin = copy.deepcopy(model)
    before = [type(module) for module in model.modules()]
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    parameters = list(model.parameters())
    assert ours.convert(model) is model
    assert [type(model[place]) for place in (1, 2, 3, 5, 6)] == [
        ours.BatchNorm2d,
        ours.GroupNorm,
        ours.InstanceNorm2d,
        ours.LayerNorm,
        ours.SyncBatchNorm,
    ]
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    x = torch.randn(4, 3, 8, 8)
    assert_near(model(x), twin(x).double(), torch.float32)
    assert seen == [1]
    assert [type(module) for module in ours.revert(model).modules()] == before


def test_a_converted_model_is_traced_symbolically():
    model = ours.convert(_model())
    twin = copy.deepcopy(model)
    traced = torch.fx.symbolic_trace(model)
    for training in (True, False):
        x = torch.randn(4, 3, 8, 8)
        torch.testing.assert_close(traced.train(training)(x), twin.train(training)(x))
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("name", "args"), [("LayerNorm", (6,)), ("GroupNorm", (2, 6))])
def test_a_module_alone_is_traced_symbolically(name, args):
    """Torch's others look at shapes and are not."""
    x = torch.randn(3, 6)
    for where in (ours, nn):
        module = getattr(where, name)(*args)
        torch.testing.assert_close(torch.fx.symbolic_trace(module)(x), module(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_converted_model_is_traced_by_example(training):
    """With torch's check, a second trace without grad that must be the same."""
    tracking = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
    model = ours.convert(nn.Sequential(tracking, *_model()[1:])).train(training)
    twin = copy.deepcopy(model)
    traced = torch.jit.trace(model, torch.randn(4, 8, 6, 6))
    model.load_state_dict(twin.state_dict())
    x = torch.randn(4, 8, 6, 6)
    torch.testing.assert_close(traced(x), twin(x))
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("place", [1, 2, 3, 5, 6])
def test_a_script_is_refused_with_what_to_do(place):
    model = ours.convert(_model())
    name = type(model[place]).__name__
    words = rf"cannot compile normgrad\.torch\.{name}: call normgrad\.torch\.revert\(model\) before"
    for _ in range(2):  # torch would have other words for the second try
        with pytest.raises(NotImplementedError, match=words):
            torch.jit.script(nn.Sequential(model[place]))
    if place < 6:  # torch's own synchronized one cannot be compiled either
        x = torch.randn(2, 8, 6, 6) if place < 5 else torch.randn(2, 8 * 36)
        layer = ours.revert(model)[place]
        torch.testing.assert_close(torch.jit.script(layer)(x), layer(x))


def test_convert_leaves_subclasses_alone():
    class Special(nn.LayerNorm):
        pass

    model = nn.Sequential(Special(4))
    assert type(ours.convert(model)[0]) is Special


def test_convert_sync_batchnorm():
    model = nn.Sequential(nn.Linear(4, 4), ours.BatchNorm1d(4), nn.BatchNorm1d(4), nn.LayerNorm(4))
    weight = model[2].weight
    assert ours.convert_sync_batchnorm(model) is model
    assert [type(one) for one in model][1:3] == [ours.SyncBatchNorm] * 2
    assert model[2].weight is weight
    assert type(model[3]) is nn.LayerNorm
    model(torch.randn(5, 4)).sum().backward()


def test_convert_sync_batchnorm_passes_the_process_group_on():
    group = object()
    model = nn.Sequential(ours.BatchNorm1d(4), nn.Sequential(nn.BatchNorm2d(4)))
    ours.convert_sync_batchnorm(model, group)
    assert [one.process_group for one in (model[0], model[1][0])] == [group, group]


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_convert_sync_batchnorm_of_a_parametrized_one():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    parametrize.register_parametrization(model[1], "weight", Twice())
    with pytest.raises(ValueError, match="a ParametrizedBatchNorm1d gets its parameters from its"):
        ours.convert_sync_batchnorm(model)
    assert type(model[0]) is nn.BatchNorm1d
    assert torch.equal(model[1].weight, torch.full((4,), 2.0))
    parametrize.remove_parametrizations(model[1], "weight")
    ours.convert_sync_batchnorm(model)(torch.randn(3, 4))


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this torch has no gloo")
def test_convert_sync_batchnorm_of_a_sharded_one(tmp_path):
    """Its class is made for it too, and so are those that ``replicate`` makes."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'one'}", rank=0, world_size=1)
    try:
        fully_shard(model[1], mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="a FSDPBatchNorm1d is sharded or replicated"):
            ours.convert_sync_batchnorm(model)
        assert type(model[0]) is nn.BatchNorm1d
        assert ours.convert(model)[1](torch.randn(3, 4)).shape == (3, 4)
    finally:
        dist.destroy_process_group()


def test_a_parametrized_module_keeps_its_class():
    """It has one of its own: convert and revert see a subclass, and leave it alone."""
    model = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4))
    parametrize.register_parametrization(model[0], "weight", Twice())
    ours.convert(model)
    parametrize.register_parametrization(model[1], "weight", Twice())
    classes = [type(one).__mro__[1] for one in ours.revert(model)]
    assert classes == [nn.LayerNorm, ours.LayerNorm]
    x = torch.randn(3, 4)
    torch.testing.assert_close(model[1](x), model[0](x))
    for one in model:
        parametrize.remove_parametrizations(one, "weight")
    assert [type(one) for one in ours.revert(model)] == [nn.LayerNorm, nn.LayerNorm]


def test_convert_sync_batchnorm_of_one_with_an_activation():
    """As timm's BatchNormAct2d, whose activation was left out without a word."""
    module = nn.BatchNorm1d(4)
    module.act = nn.ReLU()
    with pytest.raises(ValueError, match="a BatchNorm1d holds act, which its own class calls"):
        ours.convert_sync_batchnorm(nn.Sequential(module))
    assert type(module) is nn.BatchNorm1d


def test_convert_sync_batchnorm_of_a_lazy_one():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.LazyBatchNorm1d())
    with pytest.raises(ValueError, match="a LazyBatchNorm1d that has seen no data"):
        ours.convert_sync_batchnorm(model)
    assert type(model[0]) is nn.BatchNorm1d
    model(torch.randn(3, 4))
    assert type(ours.convert_sync_batchnorm(model)[1]) is ours.SyncBatchNorm
