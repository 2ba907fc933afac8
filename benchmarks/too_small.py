"""From which size on a call gains by being taken: the limits in ``normgrad.torch.too_small``.

    PYTHONPATH=src python3 benchmarks/too_small.py --types float32,bfloat16

For each operator and size, the median time of torch's own backward operator (or forward), and how
many microseconds more it takes where ``enable()`` leaves it to torch and where we take it. Between
two calls a small network makes a training step and 8 MB of other data are written, as in a model,
where Python's and our code comes from memory each time. A busy machine has other numbers: on Linux
``chrt -f 10`` keeps others away, for the seconds that this takes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import normgrad.torch
from normgrad.torch import too_small
from normgrad.torch.wishes import State

_MODES = ("torch", "left", "ours")
_ALL = [True, True, True]
_EPS = 1e-5
_OTHER_BYTES = 8 << 20
_CHANNELS, _GROUPS, _COLUMNS = 64, 8, 768
_WARM, _TURN, _TURNS = 3, 10, 6

Case = tuple[Callable[..., Any], tuple[Any, ...]]
Cases = tuple[Case, Case]  # forward, backward


def layer_norm(elements: int, dtype: torch.dtype) -> Cases:
    """Rows of a transformer."""
    x, dy = torch.randn(2, max(1, elements // _COLUMNS), _COLUMNS).to(dtype)
    gamma = torch.ones(_COLUMNS, dtype=dtype)
    forward = torch.native_layer_norm, (x, [_COLUMNS], gamma, gamma, _EPS)
    _, mean, rstd = forward[0](*forward[1])
    args = (dy, x, [_COLUMNS], mean, rstd, gamma, gamma, _ALL)
    return forward, (torch.ops.aten.native_layer_norm_backward, args)


def _images(elements: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    side = max(4, min(56, round((elements / _CHANNELS / 4) ** 0.5)))
    samples = max(1, elements // (_CHANNELS * side * side))
    x, dy = torch.randn(2, samples, _CHANNELS, side, side).to(dtype)
    return x, dy, torch.ones(_CHANNELS, dtype=dtype)


def batch_norm(elements: int, dtype: torch.dtype, *, last: bool = False) -> Cases:
    """Training; ``last`` with the channels last."""
    x, dy, gamma = _images(elements, dtype)
    if last:
        x, dy = (one.contiguous(memory_format=torch.channels_last) for one in (x, dy))
    buffers = torch.zeros_like(gamma), torch.ones_like(gamma)
    forward = torch.native_batch_norm, (x, gamma, gamma, *buffers, True, 0.1, _EPS)
    _, mean, rstd = forward[0](*forward[1])
    args = (dy, x, gamma, None, None, mean, rstd, True, _EPS, _ALL)
    return forward, (torch.ops.aten.native_batch_norm_backward, args)


def inference(elements: int, dtype: torch.dtype) -> Cases:
    """Batch norm by running statistics; backward as in training."""
    (operator, args), backward = batch_norm(elements, dtype)
    return (operator, (*args[:5], False, 0.0, _EPS)), backward


def channels_last(elements: int, dtype: torch.dtype) -> Cases:
    """Batch norm with the channels last."""
    return batch_norm(elements, dtype, last=True)


def group_norm(elements: int, dtype: torch.dtype) -> Cases:
    """Eight groups."""
    x, dy, gamma = _images(elements, dtype)
    sizes = (x.shape[0], _CHANNELS, x.shape[2] * x.shape[3], _GROUPS)
    forward = torch.native_group_norm, (x, gamma, gamma, *sizes, _EPS)
    _, mean, rstd = forward[0](*forward[1])
    args = (dy, x, mean, rstd, gamma, *sizes, _ALL)
    return forward, (torch.ops.aten.native_group_norm_backward, args)


def rms_norm(elements: int, dtype: torch.dtype) -> Cases:
    """Rows of a transformer; forward, and both ways, as on the CPU torch has no backward alone."""
    x, dy = torch.randn(2, max(1, elements // _COLUMNS), _COLUMNS).to(dtype)
    gamma = torch.ones(_COLUMNS, dtype=dtype, requires_grad=True)
    x.requires_grad_()

    def both() -> object:
        return torch.autograd.grad(torch.rms_norm(x, [_COLUMNS], gamma, _EPS), (x, gamma), dy)

    return (torch.rms_norm, (x, [_COLUMNS], gamma, _EPS)), (both, ())


CASES = (layer_norm, batch_norm, channels_last, group_norm, inference, rms_norm)


class Between:
    """What else a model does between two norms."""

    def __init__(self) -> None:
        self.net = nn.Sequential(
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.Hardswish(),
            nn.Conv2d(32, 32, 3, padding=1, groups=32),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.GELU(),
            nn.Linear(64, 10),
            nn.Softmax(-1),
        )
        self.x = torch.randn(2, 16, 28, 28)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-5)
        self.other = torch.randn(_OTHER_BYTES // 4)

    def run(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        self.net(self.x).square().mean().backward()
        self.optimizer.step()
        self.other.add_(1.0)


def switch(mode: str) -> None:
    """Torch alone, with no kernel of ours in its tables; or enabled."""
    normgrad.torch.disable()
    if State.library is not None:  # kept for other threads, of which none is in a backward pass
        State.library._destroy()
        State.library = None
    if mode != "torch":
        normgrad.torch.enable(backend="cpu" if mode == "ours" else None)


def medians(case: Case, between: Between) -> dict[str, float]:
    """Microseconds of a call, each side in turn."""
    operator, args = case
    times: dict[str, list[float]] = {mode: [] for mode in _MODES}
    for _ in range(_TURNS):
        for mode in _MODES:
            switch(mode)
            for place in range(-_WARM, _TURN):
                between.run()
                begin = time.perf_counter()
                operator(*args)
                if place >= 0:
                    times[mode].append(1e6 * (time.perf_counter() - begin))
    switch("torch")
    return {mode: statistics.median(one) for mode, one in times.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default="float32,float64,bfloat16,float16")
    parser.add_argument("--elements", default="16384,65536,262144,524288,1048576,2097152")
    parser.add_argument("--cases", default=",".join(one.__name__ for one in CASES))
    parser.add_argument("--forward", action="store_true", help="forward operators")
    options = parser.parse_args(arguments)
    between = Between()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, us")
    for name in options.types.split(","):
        dtype = getattr(torch, name)
        # All calls are left to torch where that is asked for.
        for limits in (too_small.LEAST, too_small.LEAST_FORWARD, too_small.LEAST_RMS_NORM):
            limits["cpu"][dtype] = 1 << 62
        for elements in map(int, options.elements.split(",")):
            cells = []
            for make in (one for one in CASES if one.__name__ in options.cases.split(",")):
                forward, backward = make(elements, dtype)
                found = medians(forward if options.forward else backward, between)
                more = [f"{found[mode] - found['torch']:+5.0f}" for mode in _MODES[1:]]
                cells.append(f"{make.__name__} {found['torch']:5.0f} {' '.join(more)}")
            print(f"{name:8} {elements:8}  " + "   ".join(cells), flush=True)


if __name__ == "__main__":
    main()
