r"""Forward passes, and RMS norm's backward, on one thread of a CPU, in time of the processor.

    PYTHONPATH=src OMP_NUM_THREADS=1 NORMGRAD_NUM_THREADS=1 \
        python3 benchmarks/forward_one_thread.py --json rows.json

For a machine that others use too: waiting does not count. Ours and torch's take turns; both make
their results. Right results are what ``normgrad check`` is for.
"""

import argparse
import datetime
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import normgrad as ng
from normgrad.cli.env import environment

_WARM, _TURNS = 4, 25
_EPS = 1e-5
IMAGES = ((32, 64, 56, 56), (32, 256, 14, 14), (8, 256, 56, 56), (64, 512, 7, 7))
GROUPED = ((8, 640, 32, 32), (16, 1280, 16, 16), (64, 256, 14, 14), (1, 128, 256, 256))
ROWS = ((4096, 1024), (16384, 768), (8192, 4096), (131072, 128))
_GROUPS = 32

Call = Callable[[], object]
Case = tuple[str, tuple[int, ...], str, Call, Call]


def cases(dtype: torch.dtype) -> Iterator[Case]:
    """Operator, shape, layout, our call and torch's."""
    for shapes, name in ((IMAGES, "batch_norm"), (GROUPED, "group_norm")):
        for shape in shapes:
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(shape).to(dtype).contiguous(memory_format=layout)
                word = "contiguous" if layout is torch.contiguous_format else "channels-last"
                yield name, shape, word, *(_batch(x) if name == "batch_norm" else _group(x))
    for sizes in ROWS:
        x, dy = torch.randn(2, *sizes).to(dtype)
        yield "layer_norm", sizes, "contiguous", *_layer(x)
        yield "rms_norm", sizes, "contiguous", *_rms(x)
        yield "rms_norm_backward", sizes, "contiguous", *_rms_backward(x, dy)


def _batch(x: torch.Tensor) -> tuple[Call, Call]:
    w = torch.ones(x.shape[1], dtype=x.dtype)
    return (
        lambda: ng.batch_norm(x, weight=w, bias=w, backend="cpu"),
        lambda: torch.native_batch_norm(x, w, w, None, None, True, 0.1, _EPS),
    )


def _group(x: torch.Tensor) -> tuple[Call, Call]:
    w = torch.ones(x.shape[1], dtype=x.dtype)
    sizes = (x.shape[0], x.shape[1], x.shape[2] * x.shape[3], _GROUPS)
    return (
        lambda: ng.group_norm(x, _GROUPS, weight=w, bias=w, backend="cpu"),
        lambda: torch.native_group_norm(x, w, w, *sizes, _EPS),
    )


def _layer(x: torch.Tensor) -> tuple[Call, Call]:
    w = torch.ones(x.shape[1], dtype=x.dtype)
    return (
        lambda: ng.layer_norm(x, len(w), weight=w, bias=w, backend="cpu"),
        lambda: torch.native_layer_norm(x, [len(w)], w, w, _EPS),
    )


def _rms(x: torch.Tensor) -> tuple[Call, Call]:
    w = torch.ones(x.shape[1], dtype=x.dtype)
    return (
        lambda: ng.rms_norm(x, len(w), weight=w, eps=_EPS, backend="cpu"),
        lambda: torch.rms_norm(x, [len(w)], w, _EPS),
    )


def _rms_backward(x: torch.Tensor, dy: torch.Tensor) -> tuple[Call, Call]:
    """Torch's by autograd: on the CPU it has no operator for it."""
    w = torch.ones(x.shape[1], dtype=x.dtype)
    rstd = ng.rms_norm(x, len(w), weight=w, eps=_EPS).rstd
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = torch.rms_norm(leaves[0], [len(w)], leaves[1], _EPS)
    return (
        lambda: ng.rms_norm_backward(dy, x, rstd, len(w), weight=w, backend="cpu"),
        lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True),
    )


def medians(calls: tuple[Call, Call], turns: int) -> list[float]:
    """Milliseconds of the processor, of each."""
    times: tuple[list[float], list[float]] = [], []
    for turn in range(-_WARM, turns):
        for call, found in zip(calls, times, strict=True):
            begin = time.process_time()
            results = call()
            took = time.process_time() - begin
            del results
            if turn >= 0:
                found.append(1e3 * took)
    return [statistics.median(one) for one in times]


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write every row to a file")
    parser.add_argument("--turns", type=int, default=_TURNS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[tuple[str, str, str, str, float, float]] = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        kind = str(dtype).removeprefix("torch.")
        for op, shape, layout, *calls in cases(dtype):
            ours, torchs = medians((calls[0], calls[1]), args.turns)
            rows.append((op, "x".join(map(str, shape)), kind, layout, ours, torchs))
            print(*rows[-1][:4], f"{ours:.3f} {torchs:.3f} ms: {torchs / ours:.2f}", flush=True)
        ratios = [row[5] / row[4] for row in rows if row[2] == kind and "rms" not in row[0]]
        print(f"{kind}: {math.prod(ratios) ** (1 / len(ratios)):.2f} times torch without RMS norm")
    if args.json:
        report = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            "environment": environment(),
            "columns": ["op", "shape", "type", "layout", "ours ms", "torch ms"],
            "rows": rows,
        }
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
