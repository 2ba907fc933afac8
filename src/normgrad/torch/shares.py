"""What a step spends on norms, activations and sums, as ``torch.profiler`` saw it."""

import contextlib
import functools
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn

NORM, ACTIVATION, SUM, REST = PARTS = ("norm", "activation", "sum", "all else")

# Operators, of torch and ours, forward and backward.
_NORMS: Final = re.compile(r"(batch|layer|group|instance|rms)_norm|batch_norm_")
_ACTIVATIONS: Final = re.compile(
    r"aten::(relu6?|silu|gelu|hardswish|hardtanh|leaky_relu|elu|celu|selu|mish|softplus|prelu|"
    r"hardsigmoid|sigmoid|threshold)(_backward)?_?$"
)
# Classes that write theirs in Python, of several operators.
_CLASSES: Final = (
    (NORM, re.compile(r"[Nn]orm(\d[dD])?$")),
    (ACTIVATION, re.compile(r"(GELU|SiLU|ReLU|Swish|swish|Mish|GELUActivation)\w*$")),
)
_MARK: Final = "normgrad: "
_STEP: Final = f"{_MARK}step"
_BACKWARD: Final = "autograd::engine::evaluate_function: "
_LEFT: Final = ("torch::autograd::AccumulateGrad", "Optimizer.")  # no part of a model's sums
_COMPILED: Final = ("Torch-Compiled Region", "CompiledFxGraph", "## Call CompiledFxGraph")


class Spent(NamedTuple):
    """Milliseconds of each part.

    Attributes:
        forward: By part.
        backward: By part.
        device: What worked.
        scaled: Whether they contain the profiler's own work, as a CPU's do.
        compiled: Whether some of it is a compiled program's, whose parts cannot be told apart.
        operators: How many there were.
    """

    forward: dict[str, float]
    backward: dict[str, float]
    device: str
    scaled: bool
    compiled: bool
    operators: int


@contextlib.contextmanager
def looking(models: Sequence[nn.Module]) -> Iterator[list[Spent]]:
    """What one step spends, which is run meanwhile."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    found: list[Spent] = []
    with (
        _marked(models),
        torch.profiler.profile(activities=kinds, record_shapes=True, acc_events=True) as seen,
    ):
        with torch.profiler.record_function(_STEP):
            yield found
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
    found.append(_summed([one for one in seen.events() or () if one.device_type.name == "CPU"]))


def median(seen: Sequence[Spent]) -> Spent:
    """Of several steps, for each part."""
    forward, backward = (
        {part: statistics.median(getattr(one, way)[part] for one in seen) for part in PARTS}
        for way in ("forward", "backward")
    )
    compiled = any(one.compiled for one in seen)
    return seen[0]._replace(forward=forward, backward=backward, compiled=compiled)


@contextlib.contextmanager
def _marked(models: Sequence[nn.Module]) -> Iterator[None]:
    """Norms and activations that are written in Python carry their part's name."""
    classes: dict[type[Any], str] = {}
    for cls in {
        type(one) for model in models for one in model.modules() if not any(one.children())
    }:
        if not cls.__module__.startswith("torch."):
            for part, name in _CLASSES:
                if name.search(cls.__name__):
                    classes[cls] = part
    own = {cls: vars(cls).get("forward") for cls in classes}
    try:
        for cls, part in classes.items():
            cls.forward = _named(cls.forward, part)
        yield
    finally:
        for cls, forward in own.items():
            if forward is None:
                del cls.forward
            else:
                cls.forward = forward


def _named(forward: Callable[..., Any], part: str) -> Callable[..., Any]:
    @functools.wraps(forward)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with torch.profiler.record_function(_MARK + part):
            return forward(*args, **kwargs)

    return marked


def _summed(events: Sequence[Any]) -> Spent:
    on_gpu = any(one.self_device_time_total for one in events)
    forward, backward = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    compiled = False
    parts: dict[int, str] = {}  # of a forward operator, by the number that its backward node has
    roots = [one for one in events if one.cpu_parent is None]
    # Backward nodes may stand before what they belong to where another thread runs them.
    for late in (False, True):
        rest = [(one, REST, False) for one in roots]
        while rest:
            one, part, back = rest.pop()
            compiled = compiled or one.name.startswith(_COMPILED)
            back = back or one.name.startswith(_BACKWARD)
            if part == REST:
                part = _part(one)
            if late and part == REST and one.name.startswith(_BACKWARD):
                part = parts.get(one.sequence_nr, REST)
            if not back and part not in (REST, _NEVER) and one.sequence_nr >= 0:
                parts[one.sequence_nr] = part
            if late:
                spent = one.self_device_time_total if on_gpu else one.self_cpu_time_total
                (backward if back else forward)[REST if part == _NEVER else part] += spent / 1e3
            rest += ((child, part, back) for child in one.cpu_children)
    device = "the CPU" if not on_gpu else torch.cuda.get_device_name()
    operators = sum("::" in one.name for one in events)
    return Spent(forward, backward, device, not on_gpu, compiled, operators)


_NEVER: Final = "never"  # a part of a model, whatever it calls


def _part(one: Any) -> str:
    """What an event is by itself."""
    name = one.name
    if name.startswith(_MARK) and name != _STEP:
        return str(name.removeprefix(_MARK))
    if name.startswith(_LEFT):
        return _NEVER
    if _NORMS.search(name):
        return NORM
    if _ACTIVATIONS.match(name):
        return ACTIVATION
    if name in ("aten::add", "aten::add_"):
        shapes = [shape for shape in one.input_shapes or () if shape]
        if len(shapes) == 2 and shapes[0] == shapes[1] and len(shapes[0]) > 1:
            return SUM
    return REST
