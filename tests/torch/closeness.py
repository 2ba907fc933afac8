"""How near to float64 a right result of each type is."""

import copy

import torch

# Relative to the largest element; 16 bits: one rounding of the result, and slack. Torch's own
# forward for channels-last float32 subtracts the square of the mean from the mean of squares: with
# mean 10 and deviation 3 that costs it 4 bits (with mean 100, 10 bits), ours inherits them.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}


def assert_near(got, want, dtype=None):
    """Every element of ``got`` is near ``want``'s, a float64 tensor."""
    assert got.shape == want.shape
    if not want.numel():
        return
    assert not got.isnan().any()
    tolerance = TOLERANCE[dtype or got.dtype] * max(want.abs().max().item(), 1e-3)
    worst = (got.double() - want.double()).abs().max().item()
    assert worst <= tolerance, f"off by {worst:.3g}, may be {tolerance:.3g}"


def off_centre(shape, dtype, seed=0):
    """Data far from 0, and a gradient that does not depend on them."""
    generator = torch.Generator().manual_seed(seed)
    centre = 5.0 if dtype == torch.bfloat16 else 10.0
    x = centre + 3.0 * torch.randn(shape, generator=generator, dtype=torch.float64)
    dy = 0.25 + torch.randn(shape, generator=generator, dtype=torch.float64)
    return x.to(dtype), dy.to(dtype)


def results(model, x):
    """Output, gradients and buffers after one pass both ways, of a copy."""
    model = copy.deepcopy(model)
    x = x.clone().requires_grad_()
    y = model(x)
    (y * torch.arange(1.0, 1 + y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    grads = [one.grad for one in model.parameters()]
    return [y.detach(), x.grad, *grads, *(one.double() for one in model.buffers())]


def apart(some, exact):
    """The largest of the distances, each relative to its result's size."""
    pairs = list(zip(some, exact, strict=True))
    return max(((one - two).norm() / (two.norm() + 1e-3)).item() for one, two in pairs)
