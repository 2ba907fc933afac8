"""Time of a training step: torch as it is, and with ``enable()``.

    PYTHONPATH=src python3 benchmarks/train_step.py --device cuda --json steps.json
    PYTHONPATH=src python3 benchmarks/train_step.py --models resnet50 llama --convert

The models are those of the examples, and those that users know (``known_models.py``). A step is
forward, backward and optimizer. Both sides run the same model on the same data and take turns, so
that a slow moment of the machine hits both. A turn is a step that does not count, since
``enable()`` has just changed torch's tables, and some that do. Reported are the median and the
best: the latter is what a busy machine disturbs least. Before anything is timed the gradients of
both are compared; after it, the losses of some steps from the same start, beside those of torch
with weights that were a rounding error away: curves that lie on top of each other.

On CUDA times are those between two events; besides, the time that kernels ran, from a profile. Each
step runs a second time as a captured graph, where the host has no part in it: that tells what the
kernels gain from what Python costs. And a third time, also captured, with the model compiled by
``torch.compile``: with ``enable(compiled=True)`` against without. On the CPU the compiled step is
not captured. ``--convert`` converts our side's model besides, for norms written in Python;
``--fuse`` fuses it.
"""

import argparse
import contextlib
import copy
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
import known_models

_WARM = 3  # steps before the first turn
_TURN = 4  # timed steps of a turn
_RATE = 1e-3
MODES = ("eager", "captured", "compiled")  # the last is captured too, on CUDA
NAMES = (*example_models.NAMES, *known_models.NAMES)
_NO_IMAGES = ("transformer", "llama", "gpt2")


@dataclass(frozen=True)
class Setting:
    """One way to train one model."""

    model: str
    precision: str
    channels_last: bool
    mode: str  # one of MODES
    convert: bool = False
    backend: str | None = None  # which then takes small calls too
    fuse: bool = False


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
    ours: int  # calls that we took, forward and backward, per step
    torchs: int  # those that went to torch
    difference: float  # of the gradients, relative to their size
    reasons: list[str]
    convert: bool
    fuse: bool
    torch_gpu_ms: float | None  # that kernels ran
    normgrad_gpu_ms: float | None
    torch_losses: list[float]  # of the first steps
    normgrad_losses: list[float]
    losses_apart: float  # at most, relative to torch's
    losses_of_rounding: float  # the same of torch with weights a rounding error away


def settings(
    device: str,
    modes: Sequence[str],
    models: Sequence[str],
    convert: bool = False,
    backend: str | None = None,
    fuse: bool = False,
) -> list[Setting]:
    """Every model; images also channels-last; on CUDA also in bfloat16 autocast."""
    precisions = ("bf16 autocast", "float32") if device == "cuda" else ("float32",)
    return [
        Setting(model, precision, channels_last, mode, convert, backend, fuse)
        for mode in modes
        for model in models
        for precision in precisions
        for channels_last in ((False,) if model in _NO_IMAGES else (False, True))
    ]


def make(name: str, size: str) -> example_models.Example:
    """A model of either file."""
    known = name in known_models.NAMES
    return known_models.make(name, size) if known else example_models.make(name, size)


class Trainer:
    """A model, its data and its optimizer on a device."""

    def __init__(self, setting: Setting, device: str, size: str, *, ours: bool = False) -> None:
        torch.manual_seed(0)
        self.example = make(setting.model, size)
        self.autocast = setting.precision == "bf16 autocast"
        self.device = device
        self.model = self.example.model.to(device)
        self.x, self.target = self.example.data(device)
        if setting.channels_last:
            # torch's types lack what its documentation has.
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        if ours and setting.convert:
            normgrad.torch.convert(self.model)
        if ours and setting.fuse:
            normgrad.torch.fuse(self.model)
        self.run: Callable[[torch.Tensor], torch.Tensor] = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=_RATE, momentum=0.9)

    def gradients(self) -> torch.Tensor:
        """Forward and backward; the loss."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.autocast):
            told = self.run(self.x)
        loss = self.example.loss(told, self.target)
        loss.backward()
        return loss.detach()

    def step(self) -> None:
        """A whole training step."""
        self.gradients()
        self.optimizer.step()

    def losses(self, steps: int) -> list[float]:
        """Of some steps."""
        found = []
        for _ in range(steps):
            found.append(self.gradients())
            self.optimizer.step()
        return [one.item() for one in found]

    def disturb(self) -> None:
        """Move every weight by a rounding error."""
        with torch.no_grad():
            for one in self.model.parameters():
                one.mul_(1 + torch.finfo(one.dtype).eps * torch.randn_like(one))

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

    def difference(
        self,
        other: "Trainer",
        disturbed: "Trainer",
        enabled: Callable[[], contextlib.AbstractContextManager[object]],
        compiled: bool,
    ) -> float:
        """Distance between torch's gradients and the other's, ours, relative to their length.

        Ends the program if it is too large: beside that of torch with disturbed weights; for a
        compiled model larger than that between torch and torch compiled, where convolutions of 16
        bits and TF32 are others too.
        """
        all_three = (self, other, disturbed)
        starts = [copy.deepcopy(one.model.state_dict()) for one in all_three]
        self.gradients()
        torchs = self._copied()
        bound = (0.05 if self.autocast else 1e-3) + 10 * disturbed._distance(torchs)
        if compiled:
            self.compile()
            bound += 1.5 * self._distance(torchs)
        with enabled():
            if compiled:
                other.compile()
            found = other._distance(torchs)
        for one, start in zip(all_three, starts, strict=True):  # running statistics too
            one.model.load_state_dict(start)
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
        """The gradients; no step leaves one of these out that another has."""
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


def gpu_ms(step: Callable[[], None], device: str) -> float | None:
    """Milliseconds in which kernels ran, of a step; None on the CPU."""
    if device == "cpu":
        return None
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        for _ in range(_TURN):
            step()
        torch.cuda.synchronize()
    busy = sum(one.self_device_time_total for one in profile.key_averages())
    return float(busy) / 1e3 / _TURN


def apart(losses: Sequence[float], torchs: Sequence[float]) -> float:
    """The greatest distance between two curves, relative to the second."""
    return max(abs(one - other) / abs(other) for one, other in zip(losses, torchs, strict=True))


def measure(setting: Setting, device: str, rounds: int, size: str, steps: int) -> Row:
    """Check, warm up, then time both sides in turn."""
    compiled = setting.mode == "compiled"
    sides: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
        "torch": contextlib.nullcontext,
        "normgrad": functools.partial(
            normgrad.torch.enable, compiled=compiled, backend=setting.backend
        ),
    }
    trainers = {
        name: Trainer(setting, device, size, ours=name == "normgrad")
        for name in (*sides, "disturbed")
    }
    disturbed = trainers.pop("disturbed")
    disturbed.disturb()
    normgrad.torch.report(reset=True)
    others = (trainers["normgrad"], disturbed)
    difference = trainers["torch"].difference(*others, sides["normgrad"], compiled)
    calls = normgrad.torch.report(reset=True)  # of one step
    losses = {"disturbed": disturbed.losses(steps)}
    shape = tuple(disturbed.example.shape)
    del disturbed, others
    timer = clock(device)
    times: dict[str, list[float]] = {name: [] for name in sides}
    turns: dict[str, Callable[[], None]] = {}
    busy: dict[str, float | None] = {}
    for name, side in sides.items():
        trainer = trainers.pop(name)
        with side():
            if compiled:
                trainer.compile()
            losses[name] = trainer.losses(steps)
            captured = device == "cuda" and setting.mode != "eager"
            turns[name] = trainer.capture() if captured else trainer.step
            busy[name] = gpu_ms(turns[name], device)
    for _ in range(-(-rounds // _TURN)):
        for name, side in sides.items():
            with side():
                taken = [timer(turns[name]) for _ in range(1 + _TURN)]
            times[name] += taken[1:]
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = {name: min(values) for name, values in times.items()}
    return Row(
        setting.model,
        shape,
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
        setting.convert,
        setting.fuse,
        busy["torch"],
        busy["normgrad"],
        losses["torch"],
        losses["normgrad"],
        apart(losses["normgrad"], losses["torch"]),
        apart(losses["disturbed"], losses["torch"]),
    )


def _gpu(row: Row) -> tuple[float | None, float | None]:
    return row.torch_gpu_ms, row.normgrad_gpu_ms


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
    parser.add_argument("--models", nargs="+", choices=NAMES, default=example_models.NAMES)
    parser.add_argument("--size", choices=("tiny", "cpu", "cuda"), help="the device's by default")
    parser.add_argument("--steps", type=int, default=20, help="whose losses are compared")
    parser.add_argument("--backend", help="takes all calls, small ones too")
    parser.add_argument("--convert", action="store_true", help="our side's model besides")
    parser.add_argument("--fuse", action="store_true", help="our side's model besides")
    parser.add_argument("--json", type=Path, help="write every row to a file")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
        os.environ["NORMGRAD_NUM_THREADS"] = str(args.threads)
    modes = args.modes or (MODES if args.device == "cuda" else MODES[:1])
    if args.device == "cpu" and "captured" in modes:
        parser.error("graphs are captured on --device cuda")
    name = torch.cuda.get_device_name() if args.device == "cuda" else environment()["cpu"]
    measured = []
    asked = settings(args.device, modes, args.models, args.convert, args.backend, args.fuse)
    for setting in terminal.progress(asked, "training"):
        size = args.size or args.device
        measured.append(measure(setting, args.device, args.rounds, size, args.steps))
        if args.json:
            written(measured, args, str(name))
    terminal.table(
        f"training step on {name}, torch {torch.__version__}, median of {args.rounds}",
        (
            *("model", "precision", "channels-last", "mode", "torch ms", "ours ms", "gain"),
            *("best of torch", "best of ours", "gain", "GPU of torch", "GPU of ours"),
            *("calls", "to torch", "losses apart", "of rounding"),
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
                *("-" if one is None else f"{one:.2f}" for one in _gpu(row)),
                str(row.ours),
                str(row.torchs),
                f"{row.losses_apart:.1e}",
                f"{row.losses_of_rounding:.1e}",
            )
            for row in measured
        ],
    )
    for reason in sorted({reason for row in measured for reason in row.reasons}):
        print(f"to torch: {reason}")


if __name__ == "__main__":
    main()
