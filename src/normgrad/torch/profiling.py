"""``profile(step)``: what a training step spends on norms and their neighbours, and what is left.

A plan is a generator that gives way once for each step: whoever has the steps, a function or a
script that trains, runs one and comes back.
"""

import contextlib
import inspect
import statistics
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from normgrad.bench.record import within
from normgrad.calls.signatures import explained
from normgrad.core import options
from normgrad.core.errors import NothingTakenWarning, OptionError
from normgrad.torch import shares
from normgrad.torch.counting import calls_so_far
from normgrad.torch.fusion import fuse
from normgrad.torch.override import enable, enabled
from normgrad.torch.shares import PARTS, Spent

_WARM: Final = 2  # steps before anything is measured: kernels are compiled, torch finds algorithms
_LOOKS: Final = 3  # steps in which the profiler looks on; of each part the median counts
_ROUNDS: Final = 5  # of timed steps, at the least
_MOST: Final = 200
STEPS: Final = 1 + 3 * (_WARM + _LOOKS + _ROUNDS)  # that a script must have
NOW: Final = "now"

Models = list[nn.Module]
Classes = list[tuple[nn.Module, type[Any], type[Any]]]  # a module's, and the fused one's


class Way(NamedTuple):
    """A training step as it is, or with ``enable()``, or with ``enable()`` and ``fuse()``.

    Args:
        name: "now", "enable()" or "enable(), fuse()".
        milliseconds: The median of the steps that were timed.
        spread: Their interquartile range over the median.
        forward: Milliseconds of each part, by its name: "norm", "activation", "sum", "all else".
        backward: The same of backward passes.

    Example:
        >>> from normgrad.torch import Way
        >>> Way("now", 10.0, 0.01, {"norm": 1.0}, {"norm": 2.0}).spent("norm")
        3.0
    """

    name: str
    milliseconds: float
    spread: float
    forward: Mapping[str, float]
    backward: Mapping[str, float]

    def spent(self, part: str) -> float:
        """Milliseconds that a part takes, both ways.

        Args:
            part: "norm", "activation", "sum" or "all else".

        Returns:
            The milliseconds.

        Raises:
            OptionError: ``part`` is another word.

        Example:
            >>> from normgrad.torch import Way
            >>> Way("now", 10.0, 0.01, {"sum": 0.5}, {}).spent("sum")
            0.5
        """
        options.choice("part", part, PARTS)
        return self.forward.get(part, 0.0) + self.backward.get(part, 0.0)


class Profile(tuple[Way, ...]):
    """What ``profile`` found: a ``Way`` for each, the step as it is first. It shows as a table.

    Example:
        >>> from normgrad.torch import Profile, Way
        >>> now = Way("now", 10.0, 0.01, {"norm": 1.0, "all else": 3.0}, {"norm": 2.0})
        >>> Profile([now, now._replace(name="enable()", milliseconds=8.0)]).gain("enable()")
        1.25
    """

    device: str
    notes: tuple[str, ...]

    def __new__(
        cls, ways: Sequence[Way] = (), device: str = "cpu", notes: Sequence[str] = ()
    ) -> "Profile":
        """Of ways that were measured elsewhere."""
        made = super().__new__(cls, ways)
        made.device, made.notes = device, tuple(notes)
        return made

    def share(self, part: str) -> float:
        """The share of a part in a step as it is.

        Args:
            part: "norm", "activation", "sum" or "all else".

        Returns:
            A number from 0 to 1; on a GPU of the time in which it works.

        Raises:
            OptionError: ``part`` is another word.

        Example:
            >>> from normgrad.torch import Profile, Way
            >>> Profile([Way("now", 10.0, 0.01, {"norm": 1.0, "all else": 3.0}, {})]).share("norm")
            0.25
        """
        now = self[0]
        return now.spent(part) / (sum(map(now.spent, PARTS)) or 1.0)

    def gain(self, name: str) -> float:
        """How many times as fast a step is.

        Args:
            name: Of a way, such as "enable()".

        Returns:
            The time of a step as it is over that.

        Raises:
            OptionError: No such way was measured.

        Example:
            >>> from normgrad.torch import Profile, Way
            >>> Profile([Way("now", 10.0, 0.01, {}, {})]).gain("now")
            1.0
        """
        options.choice("name", name, tuple(one.name for one in self))
        (way,) = (one for one in self if one.name == name)
        return self[0].milliseconds / way.milliseconds

    def __str__(self) -> str:
        """The table and what it says."""
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [self._title()]
        for first, *rest in table:
            cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            lines.append("  ".join((first.ljust(widths[0]), *cells)).rstrip())
        return "\n".join([*lines, *self._words()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The same as Jupyter shows it."""
        head, *rows = (
            "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in row)
            for row, kind in zip(self._table(), ("th", *("td",) * 99), strict=False)
        )
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        words = "".join(f"<p>{escape(one)}</p>" for one in self._words())
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p>{escape(self._title())}</p>{table}{words}"

    def _title(self) -> str:
        return f"{self.device}, torch {torch.__version__}; milliseconds of a training step"

    def _table(self) -> list[tuple[str, ...]]:
        rows = [("", NOW, "share", *(one.name for one in self[1:]))]
        total = sum(map(self[0].spent, PARTS)) or 1.0
        for part in PARTS:
            both = (
                (("forward", "backward"),) if part == PARTS[-1] else (("forward",), ("backward",))
            )
            for ways in both:
                name = part if len(ways) > 1 else f"{part}, {ways[0]}"
                mine, *others = (
                    sum(getattr(one, way).get(part, 0.0) for way in ways) for one in self
                )
                more = (_number(one) for one in others)
                rows.append((name, _number(mine), f"{mine / total:.0%}", *more))
        whole = (_number(one.milliseconds) for one in self[1:])
        rows.append(("whole step", _number(self[0].milliseconds), "", *whole))
        rows.append(("as fast", "", "", *map(self._gained, self[1:])))
        return rows

    def _gained(self, way: Way) -> str:
        """A factor that is more than the noise of what was timed."""
        ratio = self.gain(way.name)
        return "as now" if within(ratio, self[0].spread + way.spread) else f"{ratio:.2f}x"

    def _words(self) -> list[str]:
        free = 1 - sum(map(self.share, PARTS[:-1]))
        most = f"without norms, activations and sums a step would be {1 / max(free, 1e-9):.2f}"
        lines = [f"{most} times as fast: no kernel gains more"]
        return [*lines, *self.notes]


def _number(milliseconds: float) -> str:
    return f"{milliseconds:.2f}" if milliseconds < 10 else f"{milliseconds:.1f}"


@explained
def profile(step: Callable[[], Any], *, seconds: float = 5.0) -> Profile:
    """What share of a training step norms have, and what ``enable()`` and ``fuse()`` leave of it.

    The step is run some thirty times or more, in turns as it is, with ``enable()``, and with
    ``enable()`` and ``fuse()`` of the models that it calls; each way is timed, and looked at by
    ``torch.profiler``. Afterwards the models' classes and torch's tables are as before; what the
    steps trained stays trained.

    Args:
        step: A function without arguments that runs one training step: forward, backward and,
            where it belongs to it, the optimizer.
        seconds: For how long to time, at the least; more makes smaller differences visible.

    Returns:
        A tuple of ``Way``, which shows as a table. On a GPU parts are the time of its kernels.

    Raises:
        OptionError: ``step`` is no such function or calls nothing of torch, or ``seconds`` is no
            number above 0.

    Example:
        >>> import torch, normgrad.torch
        >>> model, x = torch.nn.LayerNorm(64), torch.randn(512, 64)
        >>> found = normgrad.torch.profile(lambda: model(x).sum().backward(), seconds=0.1)
        >>> 0.0 < found.share("norm") < 1.0
        True
    """
    if not _is_step(step):
        rule = "must be a function without arguments that runs one training step"
        raise OptionError("step", rule, options.described(step))
    made = Plan(seconds)
    with contextlib.closing(made.steps):
        for _ in made.steps:
            step()
    if not made.found:
        rule = "must run a training step of torch (the profiler saw no operator)"
        raise OptionError("step", rule, options.described(step))
    return made.found[0]


def _is_step(step: Any) -> bool:
    if not callable(step) or isinstance(step, (type, nn.Module)):
        return False
    if inspect.iscoroutinefunction(step) or inspect.isgeneratorfunction(step):
        return False
    try:
        inspect.signature(step).bind()
    except ValueError:  # has no signature, as some functions written in C
        return True
    except TypeError:
        return False
    return True


class Plan:
    """Steps to be run by somebody, and what was found when they are over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = options.number("seconds", seconds)
        if not self._seconds > 0:
            raise OptionError("seconds", "must be more than 0", seconds)
        self.found: list[Profile] = []
        self.steps = self._run()

    def _run(self) -> Generator[None, None, None]:
        with _called() as called:
            yield
        models = _outermost(called)
        classes, fused = _fused_classes(models)
        ways: dict[str, Classes] = {NOW: []}
        if not enabled():
            ways["enable()"] = []
        if classes:
            ways["enable(), fuse()" if not enabled() else "fuse()"] = classes
        spent: dict[str, Spent] = {}
        took: dict[str, int] = {}
        for name, changed in ways.items():
            with _way(name, changed):
                for _ in range(_WARM):
                    yield
                before = calls_so_far()
                seen = []
                for _ in range(_LOOKS):
                    with shares.looking(models) as one:
                        yield
                    seen += one
                if name == "enable()":
                    took = {key: each // _LOOKS for key, each in (calls_so_far() - before).items()}
                spent[name] = shares.median(seen)
        if not spent[NOW].operators:
            return
        times = yield from self._timed(ways)
        made = [_of_clock(name, times[name], spent[name]) for name in ways]
        notes = list(_notes(spent[NOW], fused, took, models))
        if not spent[NOW].scaled:
            busy = sum(map(made[0].spent, PARTS))
            notes.insert(0, f"the GPU works {_number(busy)} ms of a step; else it waits for Python")
        self.found.append(Profile(made, spent[NOW].device, notes))

    def _timed(self, ways: Mapping[str, Classes]) -> Generator[None, None, dict[str, list[float]]]:
        """Seconds of steps: one of each way in turn, so that a slow moment hits all alike."""
        times: dict[str, list[float]] = {name: [] for name in ways}
        began, order = time.perf_counter(), list(ways)
        for turn in range(_MOST):
            for name in order:
                with _way(name, ways[name]):
                    _wait()
                    before = time.perf_counter()
                    yield
                    _wait()
                    times[name].append(time.perf_counter() - before)
            order.append(order.pop(0))
            if turn + 1 >= _ROUNDS and time.perf_counter() - began > self._seconds:
                break
        return times


def _wait() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _of_clock(name: str, times: Sequence[float], spent: Spent) -> Way:
    """On a CPU the profiler's own work is in its times: only shares are taken from them."""
    low, middle, high = (1e3 * one for one in statistics.quantiles(times, n=4))
    total = sum(spent.forward.values()) + sum(spent.backward.values())
    scale = middle / total if spent.scaled and total else 1.0
    parts = [{part: scale * one for part, one in way.items()} for way in spent[:2]]
    return Way(name, middle, (high - low) / middle, *parts)


@contextlib.contextmanager
def _called() -> Iterator[Models]:
    """The modules that are called meanwhile."""
    called: dict[int, nn.Module] = {}

    def note(module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            called.setdefault(id(module), module)

    models: Models = []
    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield models
    finally:
        handle.remove()
        models += called.values()


def _outermost(called: Models) -> Models:
    """Those that are no part of another that was called."""
    inner = {id(part) for one in called for part in one.modules() if part is not one}
    return [one for one in called if id(one) not in inner]


def _fused_classes(models: Models) -> tuple[Classes, tuple[int, int]]:
    """What ``fuse`` would change, how many norms it takes and how many there are."""
    classes: Classes = []
    taken = norms = 0
    for model in models:
        if any(type(one).__module__.startswith("torch._dynamo") for one in model.modules()):
            continue  # what is compiled stays as it is
        before = [(one, type(one)) for one in model.modules()]
        found = fuse(model)
        changed = [(one, cls, type(one)) for one, cls in before if type(one) is not cls]
        for one, cls, _ in changed:
            object.__setattr__(one, "__class__", cls)
        classes += changed
        taken, norms = taken + sum(bool(one.node) for one in found), norms + len(found)
    return classes, (taken, norms)


@contextlib.contextmanager
def _way(name: str, classes: Classes) -> Iterator[None]:
    """Torch's tables and the models' classes as this way has them."""
    try:
        for module, _, fused in classes:
            object.__setattr__(module, "__class__", fused)
        with contextlib.ExitStack() as stack:
            if name.startswith("enable()"):
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore", NothingTakenWarning)
                stack.enter_context(enable())
            yield
    finally:
        for module, cls, _ in classes:
            object.__setattr__(module, "__class__", cls)


def _notes(
    now: Spent, fused: tuple[int, int], took: Mapping[str, int], models: Models
) -> Iterator[str]:
    if took:
        ours = took.get("normgrad", 0)
        why = "; report() says why not all" if took.get("torch") else ""
        yield f"enable() took {ours} of {sum(took.values())} calls of norms{why}"
    elif enabled():
        yield "enable() held already: it is part of every column"
    taken, norms = fused
    if not models:
        yield "no model was called: fuse() had nothing to look at"
    elif norms:
        yield f"fuse() makes {taken} of {norms} norms part of a node; fuse(model) says which"
    if now.compiled:
        yield (
            "compiled parts are in 'all else' and stay as they are: to compare, call "
            "enable(compiled=True) before they are compiled, in a process of its own"
        )
