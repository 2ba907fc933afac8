"""Time of a training step of the example models: torch as it is, and with ``enable()``.

    PYTHONPATH=src python3 benchmarks/train_step.py --device cuda --json steps.json

A step is forward, backward and optimizer. Both sides run the same model on the same data and take
turns, so that a slow moment of the machine hits both. A turn is a step that does not count, since
``enable()`` has just changed torch's tables, and some that do. Reported are the median and the
best: the latter is what a busy machine disturbs least. Before anything is timed the gradients of
both are compared.

On CUDA each step runs a second time as a captured graph, where the host has no part in it: that
tells what the kernels gain from what Python costs. And a third time, also captured, with the model
compiled by ``torch.compile``: with ``enable(compiled=True)`` against without.
"""

import argparse
import contextlib
import datetime
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import normgrad.torch
from normgrad.cli import terminal
from normgrad.cli.env import environment

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import example_models

_WARM = 3  # steps before the first turn
_TURN = 4  # timed steps of a turn
MODES = ("eager", "captured", "compiled")  # the last is captured too


@dataclass(frozen=True)
class Setting:
    """One way to train one model."""

    model: str
    precision: str
    channels_last: bool
    mode: str  # one of MODES


@dataclass(frozen=True)
class Row:
    """What was measured; times in milliseconds."""

    model: str
    shape: tuple[int, ...]
    precision: str
    channels_last: bool
    mode: str
    torch_ms: float  # medians
    normgrad_ms: float
    gain: float  # torch's time over ours
    torch_best_ms: float
    normgrad_best_ms: float
    best_gain: float
    ours: int  # backward calls that we took, per step
    torchs: int  # those that went to torch
    difference: float  # of the gradients, relative to their size
    reasons: list[str]


def settings(device: str, modes: Sequence[str], models: Sequence[str]) -> list[Setting]:
    """Every model; images also channels-last; on CUDA also in bfloat16 autocast."""
    precisions = ("bf16 autocast", "float32") if device == "cuda" else ("float32",)
    return [
        Setting(model, precision, channels_last, mode)
        for mode in modes
        for model in models
        for precision in precisions
        for channels_last in ((False, True) if model != "transformer" else (False,))
    ]


class Trainer:
    """A model, its data and its optimizer on a device."""

    def __init__(self, setting: Setting, device: str) -> None:
        torch.manual_seed(0)
        example = example_models.make(setting.model, device)
        self.shape = example.shape
        self.autocast = setting.precision == "bf16 autocast"
        self.device = device
        self.model = example.model.to(device)
        self.x = torch.randn(example.shape, device=device)
        if setting.channels_last:
            # torch's types lack what its documentation has.
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.target = torch.randint(0, 10, example.shape[:1], device=device)
        self.run: Callable[[torch.Tensor], torch.Tensor] = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def gradients(self) -> None:
        """Forward and backward."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            scores = self.run(self.x)
        torch.nn.functional.cross_entropy(scores.float(), self.target).backward()

    def step(self) -> None:
        """A whole training step."""
        self.gradients()
        self.optimizer.step()

    def compile(self) -> None:
        """Compile the model anew, whatever was compiled of its kind before."""
        torch.compiler.reset()
        self.run = torch.compile(self.model)

    def capture(self) -> Callable[[], None]:
        """A step as a graph: the kernels of whoever computes it now, again and again."""
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            for _ in range(_WARM):
                self.step()
        with torch.cuda.graph(graph, stream=side):
            self.step()

        def replay(owner: Trainer = self) -> None:  # the graph's memory is the model's
            graph.replay()

        return replay

    def difference(self, compiled: bool) -> float:
        """Distance between torch's gradients and ours, relative to their length.

        Ends the program if it is too large: for a compiled model larger than that between torch
        and torch compiled, where convolutions of 16 bits and TF32 are others too.
        """
        self.gradients()
        torchs = self._copied()
        bound = 0.05 if self.autocast else 1e-3
        if compiled:
            self.compile()
            bound += 1.5 * self._distance(torchs)
        with normgrad.torch.enable(compiled=compiled):
            if compiled:
                self.compile()
            found = self._distance(torchs)
        if not found < bound:
            msg = f"gradients differ by {found:.3g} of their size (bound {bound:.3g})"
            raise SystemExit(msg)
        return found

    def _distance(self, torchs: list[torch.Tensor]) -> float:
        """Of new gradients from these."""
        self.gradients()
        pairs = zip(self._copied(), torchs, strict=True)
        nothing = torch.zeros((), dtype=torch.float64, device=self.device)
        distance = sum(((one - other).double().square().sum() for one, other in pairs), nothing)
        length = sum((one.double().square().sum() for one in torchs), nothing)
        return float((distance / length).sqrt())

    def _copied(self) -> list[torch.Tensor]:
        """The gradients; every parameter of these models has one."""
        found = [parameter.grad for parameter in self.model.parameters()]
        return [one.clone() for one in found if one is not None]


def clock(device: str) -> Callable[[Callable[[], None]], float]:
    """A function that times another in milliseconds."""

    def on_cpu(step: Callable[[], None]) -> float:
        begin = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - begin)

    def on_cuda(step: Callable[[], None]) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    return on_cuda if device == "cuda" else on_cpu


def measure(setting: Setting, device: str, rounds: int) -> Row:
    """Check, warm up, then time both sides in turn."""
    trainer = Trainer(setting, device)
    normgrad.torch.report(reset=True)
    compiled = setting.mode == "compiled"
    difference = trainer.difference(compiled)
    calls = normgrad.torch.report(reset=True)  # of one step
    timer = clock(device)
    sides: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "torch": contextlib.nullcontext,
        "normgrad": functools.partial(normgrad.torch.enable, compiled=compiled),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    steps: dict[str, Callable[[], None]] = {}
    for name, side in sides.items():
        with side():
            if setting.mode == "eager":
                for _ in range(_WARM):
                    trainer.step()
                steps[name] = trainer.step
            else:
                own = Trainer(setting, device)
                if compiled:
                    own.compile()
                steps[name] = own.capture()
    for _ in range(-(-rounds // _TURN)):
        for name, side in sides.items():
            with side():
                taken = [timer(steps[name]) for _ in range(1 + _TURN)]
            times[name] += taken[1:]
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = {name: min(values) for name, values in times.items()}
    return Row(
        setting.model,
        tuple(trainer.shape),
        setting.precision,
        setting.channels_last,
        setting.mode,
        medians["torch"],
        medians["normgrad"],
        medians["torch"] / medians["normgrad"],
        best["torch"],
        best["normgrad"],
        best["torch"] / best["normgrad"],
        calls.calls("normgrad"),
        calls.calls("torch"),
        difference,
        sorted({row.reason for row in calls if row.reason}),
    )


def written(rows: list[Row], args: argparse.Namespace, name: str) -> None:
    """Write what has been measured so far."""
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "device": name,
        "rounds": args.rounds,
        "threads": args.threads or torch.get_num_threads(),
        "environment": environment(),
        "rows": [asdict(row) for row in rows],
    }
    args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=20, help="timed steps for each side")
    parser.add_argument("--threads", type=int, help="of torch and of ours, on the CPU")
    parser.add_argument("--modes", nargs="+", choices=MODES, help="all on CUDA, eager on the CPU")
    names = example_models.NAMES
    parser.add_argument("--models", nargs="+", choices=names, default=names)
    parser.add_argument("--json", type=Path, help="write every row to a file")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
        os.environ["NORMGRAD_NUM_THREADS"] = str(args.threads)
    modes = args.modes or (MODES if args.device == "cuda" else MODES[:1])
    if args.device == "cpu" and set(modes) != {"eager"}:
        parser.error("the other modes capture graphs, which needs --device cuda")
    name = torch.cuda.get_device_name() if args.device == "cuda" else environment()["cpu"]
    measured = []
    for setting in terminal.progress(settings(args.device, modes, args.models), "training"):
        measured.append(measure(setting, args.device, args.rounds))
        if args.json:
            written(measured, args, str(name))
    terminal.table(
        f"training step on {name}, torch {torch.__version__}, median of {args.rounds}",
        (
            *("model", "precision", "channels-last", "mode", "torch ms", "ours ms", "gain"),
            *("best of torch", "best of ours", "gain", "calls", "to torch"),
        ),
        [
            (
                row.model,
                row.precision,
                "yes" if row.channels_last else "no",
                row.mode,
                f"{row.torch_ms:.2f}",
                f"{row.normgrad_ms:.2f}",
                f"{row.gain:.2f}",
                f"{row.torch_best_ms:.2f}",
                f"{row.normgrad_best_ms:.2f}",
                f"{row.best_gain:.2f}",
                str(row.ours),
                str(row.torchs),
            )
            for row in measured
        ],
    )
    for reason in sorted({reason for row in measured for reason in row.reasons}):
        print(f"to torch: {reason}")


if __name__ == "__main__":
    main()
