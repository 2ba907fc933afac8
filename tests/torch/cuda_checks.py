"""What needs an NVIDIA GPU, as plain functions: pytest runs them, and so does

    PYTHONPATH=src python3 tests/torch/cuda_checks.py

on a machine without pytest.
"""

import copy
import os
import re
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import example_models
from closeness import assert_near, off_centre

import normgrad.torch as ours

OPS = torch.ops.normgrad
MODULES = {
    "BatchNorm1d": ((12,), (16, 12)),
    "BatchNorm2d": ((12,), (6, 12, 9, 7)),
    "BatchNorm3d": ((12,), (3, 12, 4, 5, 6)),
    "SyncBatchNorm": ((12,), (6, 12, 9, 7)),
    "LayerNorm": ((40,), (6, 9, 40)),
    "RMSNorm": ((40,), (6, 9, 40)),
    "GroupNorm": ((4, 12), (6, 12, 9, 7)),
    "InstanceNorm2d": ((12,), (6, 12, 9, 7)),
}


def check_modules():
    """Every module, type and memory format against torch.nn in float64."""
    for name, (args, shape) in MODULES.items():
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
            for channels_last in (False, True) if len(shape) == 4 else (False,):
                module = getattr(ours, name)(*args).to("cuda", dtype)
                twin = getattr(nn, name)(*args).to("cuda", torch.float64)
                twin.load_state_dict(module.state_dict())
                x, dy = (one.cuda() for one in off_centre(shape, dtype))
                if channels_last:
                    x = x.contiguous(memory_format=torch.channels_last)
                mine = x.clone().requires_grad_()
                theirs = x.double().clone().requires_grad_()
                y, want = module(mine), twin(theirs)
                y.backward(dy)
                want.backward(dy.double())
                for got, wanted in ((y, want), (mine.grad, theirs.grad)):
                    assert_near(got, wanted, dtype)
                for got, wanted in zip(module.parameters(), twin.parameters(), strict=True):
                    assert_near(got.grad, wanted.grad, dtype)
                if channels_last:
                    assert mine.grad.is_contiguous(memory_format=torch.channels_last), name


def check_statistics_are_float32():
    """Also where torch's own group norm keeps 16 bits."""
    for dtype in (torch.float16, torch.bfloat16):
        x = off_centre((3, 6, 5, 4), dtype)[0].cuda()
        weight = torch.ones(6, device="cuda", dtype=dtype)
        for y, mean, rstd in (
            OPS.batch_norm(x, weight, None, None, None, True, 0.1, 1e-5),
            OPS.group_norm(x, weight, None, 2, 1e-5),
            OPS.layer_norm(x, [4], None, None, 1e-5),
            (*OPS.rms_norm(x, [4], None, 1e-5), torch.ones(1)),
        ):
            assert (y.dtype, mean.dtype, rstd.dtype) == (dtype, torch.float32, torch.float32)


def check_enable():
    """Torch's modules with our backward; nothing goes to torch; cuDNN's operator too."""
    torch.backends.cudnn.enabled = True
    ours.report(reset=True)
    for name, (args, shape) in MODULES.items():
        for dtype in (torch.float32, torch.bfloat16):
            for channels_last in (False, True) if len(shape) == 4 else (False,):
                if name == "SyncBatchNorm":
                    continue
                module = getattr(nn, name)(*args).to("cuda", dtype)
                twin = copy.deepcopy(module).double()
                x, dy = (one.cuda() for one in off_centre(shape, dtype))
                if channels_last:
                    x = x.contiguous(memory_format=torch.channels_last)
                mine, theirs = (
                    x.clone().requires_grad_(),
                    x.double().clone().requires_grad_(),
                )
                twin(theirs).backward(dy.double())
                with ours.enable():
                    module(mine).backward(dy)
                assert_near(mine.grad, theirs.grad, dtype)
    report = ours.report(reset=True)
    print(report)
    assert report.calls("normgrad") > 0
    assert report.calls("torch") == 0, str(report)
    operators = {row.operator for row in report}
    assert "cudnn_batch_norm_backward" in operators or not torch.backends.cudnn.is_available()


def check_synchronized_operators():
    """Torch's own two backward operators of synchronized batch norm, overridden."""
    x, dy = (one.cuda() for one in off_centre((5, 12, 6, 7), torch.float32))
    mean, invstd = torch.batch_norm_stats(x, 1e-5)
    weight = torch.rand(12, device="cuda")
    count = torch.tensor([x.numel() // 12], device="cuda", dtype=torch.int32)

    def both():
        sums = torch.batch_norm_backward_reduce(dy, x, mean, invstd, weight, True, True, True)
        dx = torch.batch_norm_backward_elemt(dy, x, mean, invstd, weight, *sums[:2], count)
        return (*sums, dx)

    want = both()
    ours.report(reset=True)
    with ours.enable():
        got = both()
    assert ours.report(reset=True).calls("normgrad") == 2
    for one, other in zip(got, want, strict=True):
        assert_near(one, other.double(), torch.float32)


class _WrittenRMSNorm(nn.RMSNorm):
    """As transformers write it."""

    def forward(self, x):
        mean = x.float().square().mean(-1, keepdim=True)
        return self.weight * (x.float() * torch.rsqrt(mean + self.eps)).to(x.dtype)


def check_written_rms_norm():
    """With types of its own, under autocast too."""
    for dtype, autocast in ((torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)):
        original = _WrittenRMSNorm(40, 1e-6).cuda()
        module = ours.convert(copy.deepcopy(original))
        assert type(module) is not _WrittenRMSNorm
        x = off_centre((6, 9, 40), dtype)[0].cuda()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            got, want = module(x), original(x)
        assert got.dtype == want.dtype
        assert_near(got, original.double()(x.double()), dtype)
        got.sum().backward()


def check_autocast():
    """Layer and group norm in float32, batch and instance norm in bfloat16, as torch's."""
    x = torch.randn(4, 12, 6, 6, device="cuda", dtype=torch.bfloat16)
    with torch.autocast("cuda", torch.bfloat16):
        for mine, theirs in (
            (ours.BatchNorm2d(12), nn.BatchNorm2d(12)),
            (ours.GroupNorm(3, 12), nn.GroupNorm(3, 12)),
            (ours.LayerNorm(6), nn.LayerNorm(6)),
            (ours.RMSNorm(6), nn.RMSNorm(6)),
            (ours.InstanceNorm2d(12, affine=True), nn.InstanceNorm2d(12, affine=True)),
        ):
            got, want = mine.cuda()(x), theirs.cuda()(x)
            assert got.dtype == want.dtype, type(mine)
            got.sum().backward()


def check_training():
    """Twenty steps of each example model by both."""
    for name in example_models.NAMES:
        torch.manual_seed(0)
        example = example_models.make(name)
        model = example.model.cuda()
        twin = copy.deepcopy(model)
        losses = []
        for one, side in ((model, ours.enable), (twin, None)):
            generator = torch.Generator().manual_seed(1)
            optimizer = torch.optim.SGD(one.parameters(), lr=0.02)
            history = []
            for _ in range(20):
                x = torch.randn(example.shape, generator=generator).cuda()
                target = torch.randint(0, 10, example.shape[:1], generator=generator).cuda()
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(one(x), target)
                if side is None:
                    loss.backward()
                else:
                    with side():
                        loss.backward()
                optimizer.step()
                history.append(loss.item())
            losses.append(torch.tensor(history))
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)


def _group():
    if not dist.is_initialized():
        path = Path(tempfile.mkdtemp()) / "meet"
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", init_method=f"file://{path}", rank=0, world_size=1)
    return dist.group.WORLD.group_name


def check_synchronized_without_waiting():
    """A group of one on nccl: right numbers, and not one synchronization with the host."""
    group = _group()
    x, dy = (one.cuda() for one in off_centre((5, 12, 6, 7), torch.float32))
    x.requires_grad_()
    weight = torch.rand(12, device="cuda", requires_grad=True)
    bias = torch.rand(12, device="cuda", requires_grad=True)
    run = lambda: OPS.sync_batch_norm(x, weight, bias, 1e-5, group)[0]  # noqa: E731
    run().backward(dy)  # compiles, connects
    x.grad = weight.grad = bias.grad = None
    layer = ours.SyncBatchNorm(12).cuda()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        y, mean, _, variance, count = OPS.sync_batch_norm(x, weight, bias, 1e-5, group)
        from normgrad.torch.statistics import Joined

        layer._track(Joined(mean, variance, count))
        y.backward(dy)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    twin = nn.BatchNorm2d(12).cuda().double()
    with torch.no_grad():
        twin.weight.copy_(weight)
        twin.bias.copy_(bias)
    theirs = x.detach().double().requires_grad_()
    want = twin(theirs)
    want.backward(dy.double())
    assert_near(y, want)
    assert_near(x.grad, theirs.grad)
    assert_near(weight.grad, twin.weight.grad)
    assert_near(layer.running_var, twin.running_var)


def check_captured():
    """Forward and backward of synchronized batch norm inside a CUDA graph."""
    group = _group()
    x = off_centre((5, 12, 6, 7), torch.float32)[0].cuda()
    dy = torch.randn_like(x)
    weight = torch.rand(12, device="cuda")

    def step():
        y, mean, invstd, _, count = OPS.sync_batch_norm(x, weight, None, 1e-5, group)
        grads = OPS.sync_batch_norm_backward(
            dy, x, weight, mean, invstd, count, [True, True, True], group
        )
        return (y, *grads)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.mul_(1.5)
    dy.add_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    got = [one.clone() for one in captured]
    for one, other in zip(got, step(), strict=True):
        assert_near(one, other.double(), torch.float32)


def check_compiled():
    """Modules in a whole graph by inductor."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1),
        ours.BatchNorm2d(8),
        ours.GroupNorm(2, 8),
        ours.LayerNorm(6),
        ours.RMSNorm(6),
    ).cuda()
    twin = copy.deepcopy(model)
    x = torch.randn(2, 3, 5, 6, device="cuda")
    run = torch.compile(model, fullgraph=True)
    for one in (run, twin):
        one(x).square().mean().backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)


def check_compiled_activations(device="cuda"):
    """Of torch's modules they are part of the backward call, and of ours, sums or not."""
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    class Ours(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 1), ours.BatchNormAct2d(8)
            self.groups = ours.GroupNormAct(2, 8)

        def forward(self, x):
            return self.groups(self.norm(self.conv(x), x))

    torchs = nn.Sequential(
        nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.GroupNorm(2, 8), nn.SiLU()
    )
    x = torch.randn(4, 8, 5, 6, device=device).to(memory_format=torch.channels_last)
    for model, taken in ((torchs, True), (Ours(), False)):  # a sum is between in the second
        model.to(device)
        twin = copy.deepcopy(model)
        torch.compiler.reset()
        with ours.enable(compiled=True), config.patch(force_disable_caches=True):
            run = torch.compile(model, fullgraph=True)
            _, programs = run_and_get_code(lambda run=run: run(x).square().mean().backward())
        twin(x).square().mean().backward()
        for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
        assert "normgrad" not in programs[0]
        calls = re.findall(r"normgrad\.(\w+)\.default\((.*)\)", programs[1])
        assert [name for name, _ in calls] == ["group_norm_backward", "batch_norm_backward"]
        assert "'silu'" in calls[0][1]
        assert ("'relu'" in calls[1][1]) is taken


CHECKS = [one for name, one in sorted(globals().items()) if name.startswith("check_")]


def main():
    """Run every check, say which failed; 1 if any did."""
    if not torch.cuda.is_available():
        sys.exit("no NVIDIA GPU here")
    failed = 0
    for check in CHECKS:
        begin = time.perf_counter()
        try:
            check()
        except Exception:
            traceback.print_exc()
            failed += 1
            print(f"FAIL {check.__name__}", flush=True)
        else:
            print(f"PASS {check.__name__} ({time.perf_counter() - begin:.1f} s)", flush=True)
    print(f"{len(CHECKS) - failed} passed, {failed} failed", flush=True)
    os._exit(1 if failed else 0)


if __name__ == "__main__":
    main()
