"""What our modules refuse, and where torch's do likewise."""

import pytest
import torch
from torch import nn

import normgrad.torch as ours


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("BatchNorm2d", (2, 6, 3), "expected 4D input"),
        ("BatchNorm1d", (1, 6), "more than 1 value per channel"),
        ("SyncBatchNorm", (6,), "at least 2D"),
        ("InstanceNorm2d", (2, 6, 1, 1), "more than 1 spatial element"),
    ],
)
def test_what_torch_refuses_is_refused(name, shape, words):
    for where in (ours, nn):
        with pytest.raises(ValueError, match=words):
            getattr(where, name)(6)(torch.randn(shape))


@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("BatchNorm1d", (6,), (4, 6)),
        ("LayerNorm", (6,), (4, 6)),
        ("GroupNorm", (2, 6), (4, 6)),
        ("InstanceNorm1d", (6, 1e-5, 0.1, True), (4, 6, 5)),
    ],
)
def test_parameters_without_data_are_refused(name, args, shape):
    for module_on, data_on in (("meta", "cpu"), ("cpu", "meta")):
        module = getattr(ours, name)(*args, device=module_on)
        with pytest.raises(ValueError, match=f"weight must be on input's device, {data_on}, got"):
            module(torch.randn(shape, device=data_on))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("name", "args", "shape"),
    [
        ("LayerNorm", (4,), (3, 6)),
        ("LayerNorm", ((3, 4),), (4,)),
        ("RMSNorm", (4,), (3, 6)),
        ("BatchNorm1d", (4,), (3, 6)),
        ("BatchNorm1d", (4, 1e-5, 0.1, False), (3, 6)),
        ("GroupNorm", (2, 4), (3, 6)),
        ("GroupNorm", (2, 4, 1e-5, False), (3, 7)),
        ("InstanceNorm1d", (4, 1e-5, 0.1, True), (3, 6, 2)),
    ],
)
def test_sizes_that_do_not_fit_are_refused_without_data_too(name, args, shape, device):
    for where in (ours, nn):
        module = getattr(where, name)(*args, device=device)
        x = torch.zeros(shape, device=device)
        with pytest.raises((RuntimeError, ValueError), match=r"Given|xpected|contain"):
            module(x)


def test_a_weight_of_another_shape_is_refused_without_data_too():
    for device in ("cpu", "meta"):
        x, weight = torch.zeros(2, 3, 4, device=device), torch.zeros(4, 3, device=device)
        with pytest.raises(RuntimeError, match="weight"):
            torch.ops.normgrad.layer_norm(x, [3, 4], weight, None, 1e-5)


def test_export_does_not_promise_sizes_that_cannot_run():
    size = torch.export.Dim("size", min=2, max=64)
    for module, x in (
        (ours.LayerNorm(4), torch.randn(3, 4)),
        (ours.RMSNorm(4), torch.randn(3, 4)),
        (ours.BatchNorm1d(4).eval(), torch.randn(3, 4)),
        (ours.GroupNorm(2, 4), torch.randn(3, 4)),
    ):
        torch.export.export(module, (x,), dynamic_shapes=({0: size},))
        with pytest.raises(torch._dynamo.exc.UserError, match=r"[Cc]onstraint"):
            torch.export.export(module, (x,), dynamic_shapes=({1: size},))


@pytest.mark.parametrize("name", ["BatchNorm1d", "SyncBatchNorm"])
@pytest.mark.parametrize(
    ("eps", "training", "tracking", "words"),
    [
        (0.0, True, True, "above 0 where a batch has its own statistics, got 0.0"),
        (-1.0, True, True, "above 0 where a batch has its own statistics, got -1.0"),
        (0.0, False, False, "above 0 where a batch has its own statistics, got 0.0"),
        (-1e-9, False, True, "at least 0, got -1e-09"),
        (0.0, False, True, None),
    ],
)
def test_an_eps_that_batch_norm_refuses(name, eps, training, tracking, words):
    x = torch.randn(3, 4)
    for where in (ours, nn):
        module = getattr(where, name)(4, eps=eps, track_running_stats=tracking).train(training)
        if words is None:
            torch.testing.assert_close(module(x), x)
        else:
            told = words if where is ours else rf".*{eps}$"
            with pytest.raises(ValueError, match=f"eps must be {told}"):
                module(x)


def test_what_group_norm_refuses():
    for where in (ours, nn):
        for shape in ((1, 4), (1, 4, 1, 1)):
            with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
                where.GroupNorm(4, 4)(torch.randn(shape))
        where.GroupNorm(4, 4)(torch.randn(2, 4))
    for device in ("cpu", "meta"):
        module = ours.GroupNorm(2, 4, device=device)
        with pytest.raises(ValueError, match=r"input must have 2 axes or more, got shape \(4,\)"):
            module(torch.randn(4, device=device))
