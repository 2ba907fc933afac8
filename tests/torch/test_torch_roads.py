"""Which road a call of our modules takes: past torch's dispatcher, if nobody looks."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import normgrad.torch as ours


class _Seen(TorchDispatchMode):
    """The operators of ours that come by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op.namespace == "normgrad":
            self.names.append(op._opname)
        return op(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "group_norm", "batch_norm"])
def test_a_mode_sees_our_operators(name):
    """Plain tensors go past the dispatcher, but not past somebody who looks."""
    module = {
        "layer_norm": ours.LayerNorm(6),
        "rms_norm": ours.RMSNorm(6),
        "group_norm": ours.GroupNorm(2, 6),
        "batch_norm": ours.BatchNorm1d(6),
    }[name]
    with _Seen() as seen:
        module(torch.randn(4, 6)).square().sum().backward()
        with torch.no_grad():
            module(torch.randn(4, 6))
    assert seen.names == [name, f"{name}_backward", name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_norms_of_rows_have_the_same_bits_without_grad(name, dtype):
    """There they go past the dispatcher; a checkpoint compares the two."""
    module = getattr(ours, name)(33).to(dtype)
    nn.init.normal_(module.weight)
    x = (100 + 3 * torch.randn(5, 33)).to(dtype)
    with_grad = module(x)
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            assert torch.equal(module(x), with_grad)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_a_trace_without_grad_has_our_norm(name):
    """Or its gradients would be torch's."""
    with torch.no_grad():
        module = getattr(ours, name)(6)
        programs = (
            torch.jit.trace(module, torch.randn(4, 6)).graph,
            torch.export.export(module, (torch.randn(4, 6),)).graph,
            torch.fx.symbolic_trace(module).graph,
        )
    for program in programs:
        assert "normgrad" in str(program)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_forward_mode_without_grad_reaches_layer_norm_twice():
    """Torch's rule for it is wrong the second time (2.13)."""
    module = ours.LayerNorm(4, dtype=torch.float64)
    x = torch.randn(4, dtype=torch.float64)

    def cubes(x):
        return module(x).pow(3).sum()

    with torch.no_grad():
        got = torch.func.jacfwd(torch.func.jacfwd(cubes))(x)
    torch.testing.assert_close(got, torch.func.hessian(cubes)(x))
