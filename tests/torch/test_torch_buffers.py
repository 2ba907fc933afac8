"""Running statistics of our modules: under checkpoints, between modes, in exports."""

import io

import pytest
import torch
from closeness import assert_near
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import normgrad.torch as ours


@pytest.mark.parametrize("momentum", [0.1, None])
def test_running_statistics_under_a_checkpoint_are_torchs(momentum):
    """Its second forward pass counts too, and ends with the operator."""
    modules = [where.BatchNorm1d(2, momentum=momentum) for where in (ours, nn)]
    for step in range(3):
        x = torch.randn(4, 2) + step
        for module in modules:
            y = checkpoint(module, x.clone().requires_grad_(), use_reentrant=False)
            y.square().sum().backward()
    mine, theirs = modules
    assert mine.num_batches_tracked == theirs.num_batches_tracked
    for name in ("running_mean", "running_var"):
        assert_near(getattr(mine, name), getattr(theirs, name).double(), torch.float32)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.filterwarnings("ignore:input's size at dim=1")  # torch's, before it raises
def test_buffers_of_another_number_of_channels_are_refused_and_left_alone(channels, training):
    for where in (ours, nn):
        module = where.InstanceNorm1d(4, track_running_stats=True).train(training)
        with pytest.raises(RuntimeError, match="running_mean should contain"):
            module(torch.randn(2, channels, 5))
        assert torch.equal(module.running_mean, torch.zeros(4))
        assert torch.equal(module.running_var, torch.ones(4))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("missing", ["running_mean", "running_var"])
def test_one_buffer_without_the_other_is_refused(missing, training):
    x = torch.randn(2, 4, 5)
    for where in (ours, nn):
        module = where.InstanceNorm1d(4, track_running_stats=True).train(training)
        setattr(module, missing, None)
        told = ("belong together" if where is ours else "both be None") if training else "defined"
        error = ValueError if training else RuntimeError
        with pytest.raises(error, match=rf"running_\w+.* {told}"):
            module(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["BatchNorm1d", "InstanceNorm1d", "SyncBatchNorm"])
def test_a_training_step_between_an_inference_and_its_backward(name, dtype):
    """Torch's batch norm then reads the new buffers, its instance norm copies of the old."""
    x = torch.randn(3, 4, 5).to(dtype)
    grads = []
    for where in (ours, nn):
        module = getattr(where, name)(4, track_running_stats=True, momentum=0.5).to(dtype)
        leaf = x.clone().requires_grad_()
        y = module.eval()(leaf)
        module.train()(10 * x)
        y.float().square().sum().backward()
        grads.append(leaf.grad)
    assert_near(grads[0], grads[1].double())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("by", [torch.Tensor.detach, lambda weight: weight.data])
def test_instance_norm_keeps_its_weight_for_backward(by, training):
    """Torch's does; ours raised an error, or read the new one where autograd was not told."""
    grads = []
    for where in (ours, nn):
        module = where.InstanceNorm1d(4, affine=True, track_running_stats=True).train(training)
        leaf = torch.linspace(-1, 3, 60).reshape(3, 4, 5).square().requires_grad_()
        loss = module(leaf).pow(3).sum()
        by(module.weight).add_(1)
        loss.backward()
        grads.append(torch.cat((leaf.grad.flatten(), module.weight.grad)))
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


def test_a_pass_without_data_leaves_instance_norms_buffers_alone():
    """They were multiplied by 1 - momentum: nothing of that is made up."""
    module = ours.InstanceNorm1d(4, track_running_stats=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module(mode.from_tensor(torch.randn(3, 4, 5)))
    assert torch.equal(module.running_var, torch.ones(4))


def test_inference_compares_no_buffers(monkeypatch):
    """That they are there is all it asks; their ``==`` takes longer than a small batch norm."""
    module = ours.BatchNorm1d(4).eval()
    monkeypatch.setattr(torch.Tensor, "__eq__", None)
    assert module(torch.randn(3, 4)).shape == (3, 4)


def test_inference_mode_with_16_bit_buffers():
    module, twin = (where.BatchNorm1d(4).bfloat16() for where in (ours, nn))
    x = torch.randn(3, 4).bfloat16()
    with torch.inference_mode():
        assert_near(module(x), twin(x).double())
        module = ours.BatchNorm1d(4).bfloat16()
        module(x)
    assert_near(module.running_mean, twin.running_mean.double())


def test_an_exported_instance_norm_is_saved_and_updates_its_buffers():
    module = ours.InstanceNorm1d(4, affine=True, track_running_stats=True)
    x = torch.randn(3, 4, 5)
    program = torch.export.export(module, (x,))
    assert all(node.op != "get_attr" for node in program.graph.nodes)  # a sub-graph
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    torch.testing.assert_close(loaded(x), module(x))
    torch.testing.assert_close(loaded.running_var, module.running_var)


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize("kind", ["BatchNorm1d", "InstanceNorm1d"])
def test_a_buffer_whose_gradient_is_asked_for_is_refused(kind, name):
    """Inference depends on it, and no gradient would be taken for one of 0."""
    x = torch.randn(2, 4, 5)
    for where in (ours, nn):
        module = getattr(where, kind)(4, track_running_stats=True).eval()
        getattr(module, name).requires_grad_()
        told = f"{name} must not require grad" if where is ours else name
        with pytest.raises(RuntimeError, match=told):
            module(x).sum().backward()
