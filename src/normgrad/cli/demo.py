"""``normgrad demo``: this CPU's speed with us, plain NumPy, and torch if it is there."""

import argparse
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from normgrad import backends, verify
from normgrad.backends.base import unusable
from normgrad.backends.reference.backend import evaluate
from normgrad.bench.record import within
from normgrad.cli import terminal
from normgrad.core.cpu_count import cores
from normgrad.core.spec import Op
from normgrad.verify.cases import Case
from normgrad.verify.problem import Problem
from normgrad.verify.run import bound_call, to_array

EXAMPLES: Final = ("normgrad demo", "NO_COLOR=1 normgrad demo | tee demo.txt")

# Shapes of a language model, a ResNet and a diffusion model, small enough for any machine.
_CASES: Final = (
    Case(id="demo", op=Op.LAYER_NORM_BACKWARD, shape=(4096, 768)),
    Case(id="demo", op=Op.BATCH_NORM_BACKWARD, shape=(16, 64, 56, 56)),
    Case(id="demo", op=Op.GROUP_NORM_BACKWARD, shape=(2, 320, 64, 64), num_groups=32),
)
_DTYPE: Final = "float32"
_SECONDS = 3.0  # of timed runs for a case, all contenders
_LEAST_RUNS = 3
_BAR = 40
# What a result may miss in the root of its squares and still be called the same mathematics.
_ALIKE = 1e-3

Call = Callable[[], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(args: argparse.Namespace) -> int:
    """A block of bars for each case, then what to do next; 1 if a result of ours is wrong."""
    torch_reason = unusable("torch")
    terminal.say(f"time of a call on {_DTYPE} arrays, CPU with {cores()} cores; shorter is better")
    right = True
    for case in _CASES:
        right = _compare(case, with_torch=torch_reason is None) and right
    if torch_reason is not None:
        terminal.say(f"torch is not measured: {torch_reason}")
    for line in _next():
        terminal.say(line)
    return 0 if right else 1


def _compare(case: Case, *, with_torch: bool) -> bool:
    """Check, time and draw one case; whether our result is right."""
    sizes = "x".join(map(str, case.shape))
    terminal.note(f"{case.op} {sizes}: making data")
    problem = verify.make_problem(case, _DTYPE)
    truth = verify.expected(problem).values
    calls: dict[str, Call] = {"normgrad": _ours(problem), "NumPy": _numpy(problem)}
    if with_torch:
        calls["torch"] = _torch(problem)
    wrong = []
    for name, call in calls.items():
        terminal.note(f"{case.op} {sizes}: compiling and checking {name}")
        if not _alike(call(), truth):
            wrong.append(name)
    terminal.note(f"{case.op} {sizes}: measuring")
    times = _measured({name: call for name, call in calls.items() if name not in wrong})
    terminal.say()
    terminal.say(f"{case.op} {sizes}")
    for line in _bars(times):
        terminal.say(line)
    for name in wrong:
        terminal.say(f"  {name:<9} WRONG: another result than in float64")
    return "normgrad" not in wrong


def _ours(problem: Problem) -> Call:
    operands = {role: to_array(host, None) for role, host in problem.operands.items()}
    return bound_call(problem, operands, None, None)


def _numpy(problem: Problem) -> Call:
    """The formula of the reference, in float32 as somebody would write it."""
    spec, geometry = problem.spec, problem.geometry
    operands = {
        role: host.array.reshape(geometry.shape_of(role)) for role, host in problem.operands.items()
    }
    return lambda: tuple(evaluate(spec, geometry, operands).values())


def _torch(problem: Problem) -> Call:
    """Torch's own operator, without autograd around it."""
    from normgrad.bench import peers
    from normgrad.bench.problems import DeviceProblem
    from normgrad.bench.suites import Workload
    from normgrad.verify.run import to_torch

    operands = {role: to_torch(host, "cpu") for role, host in problem.operands.items()}
    workload = Workload(problem.case, problem.dtype)
    made = DeviceProblem(workload, operands, problem.result_dtypes, "cpu")
    return peers.get("torch").prepare(made).run


def _alike(results: Any, truth: Mapping[str, Any]) -> bool:
    for got, want in zip(results, truth.values(), strict=False):
        error = np.asarray(got, np.float64).reshape(want.shape) - want
        if not np.linalg.norm(error) <= _ALIKE * np.linalg.norm(want):
            return False
    return True


def _measured(calls: Mapping[str, Call]) -> dict[str, list[float]]:
    """Milliseconds: one call of each in turn, so that a slow moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    started = time.perf_counter()
    while True:
        for name, call in calls.items():
            before = time.perf_counter()
            result = call()
            times[name].append((time.perf_counter() - before) * 1e3)
            del result  # freed outside the clock
        enough = min(map(len, times.values()), default=_LEAST_RUNS) >= _LEAST_RUNS
        if enough and time.perf_counter() - started > _SECONDS:
            return times


def _bars(times: Mapping[str, list[float]]) -> Iterator[str]:
    """Medians as lengths, and how often ours fits in each where that can be told."""
    medians = {name: statistics.median(listed) for name, listed in times.items()}
    longest = max(medians.values(), default=0.0)
    mark = "█" if terminal.live() and "utf" in (sys.stdout.encoding or "").lower() else "#"
    for name, median in sorted(medians.items(), key=lambda one: one[1]):
        bar = mark * max(1, round(_BAR * median / longest))
        yield f"  {name:<9} {median:8.2f} ms  {bar:<{_BAR}}  {_times(name, times)}".rstrip()


def _times(name: str, times: Mapping[str, list[float]]) -> str:
    if name == "normgrad" or "normgrad" not in times:
        return ""
    ours, theirs = times["normgrad"], times[name]
    ratio = statistics.median(theirs) / statistics.median(ours)
    noise = _spread(ours) + _spread(theirs)
    return "too noisy" if within(ratio, noise) else f"{ratio:.1f}x"


def _spread(times: list[float]) -> float:
    """The interquartile range over the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def _next() -> Iterator[str]:
    """Commands for somebody who has seen this."""
    yield ""
    yield "next:"
    found = shutil.which("normgrad")
    if found is None or Path(found).parent != Path(sys.executable).parent:
        activate = Path(sys.prefix, "bin", "activate")
        here = Path.cwd()
        yield f"  . {activate.relative_to(here) if activate.is_relative_to(here) else activate}"
    yield "  normgrad bench --suite quick --peers torch   more shapes and types"
    if backends.get("cuda").unavailable() is None:
        yield "  normgrad bench --backend cuda --peers torch  the same on the GPU"
    yield "  normgrad check --impl my_kernels             is your own kernel right?"
    if Path("docs/tutorials/pytorch.md").exists():
        yield "  docs/tutorials/pytorch.md                    faster training in two lines"
