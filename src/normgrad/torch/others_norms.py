"""Norms that others wrote: what their classes compute, tried on random numbers, and ours for them.

A class is taken if its own forward pass gives what is expected of it. What is tried is a copy, so
that the module stays as it is. A taken one gets a class derived from its own: ``isinstance`` goes
on as before.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from normgrad.torch import modules
from normgrad.torch.library import NARROW, Tensor, shortcut

_TYPES: Final = (*NARROW, torch.float32)
_ON_CPU: Final[Any] = {"device": "cpu", "dtype": torch.float32}
_rms_norm = shortcut("rms_norm")


class StandIn(modules.Ours):
    """A class of somebody else's with our forward pass."""

    original: type[Any]
    recipe: "Recipe"

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Made here, the class has no name to be found by: it is made again."""
        made: Any = super().__reduce_ex__(protocol)
        return _blank, (self.original, self.recipe), *made[2:]


@dataclass(frozen=True)
class RootMeanSquare:
    """``x / sqrt(mean(x**2) + eps) * (weight + offset)`` over the last axis, written in Python."""

    eps: str  # the attribute
    offset: float
    # The type of the result for each of the data and of the weight that was tried and is right.
    results: tuple[tuple[torch.dtype, torch.dtype | None, torch.dtype], ...]

    def forward(self, original: type[Any]) -> Callable[..., Any]:
        """Ours, or the original's for what was not tried."""
        name, offset = self.eps, self.offset
        results = {(data, weight): result for data, weight, result in self.results}

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) != 1:
                return original.forward(self, *args, **kwargs)
            x, weight = args[0], getattr(self, "weight", None)
            if not _plain(x) or not (weight is None or _plain(weight)):
                return original.forward(self, x)
            wanted = results.get((x.dtype, None if weight is None else weight.dtype))
            shape = x.shape[-1:] if weight is None else weight.shape
            if wanted is None or x.shape[-1:] != shape:
                return original.forward(self, x)
            if wanted != x.dtype:  # rounded once
                x = x.float()
            eps = getattr(self, name)
            if x.is_cuda and torch.is_autocast_enabled("cuda"):  # under which ours is float32
                with torch.autocast("cuda", enabled=False):
                    return _rms_norm(x, list(shape), weight, eps, offset)[0].to(wanted)
            return _rms_norm(x, list(shape), weight, eps, offset)[0].to(wanted)

        return forward


@dataclass(frozen=True)
class Around:
    """A norm of ``torch.nn`` and something around it."""

    base: type[Any]
    around: Callable[..., Any]  # of the module, its input and the norm's forward pass

    def forward(self, original: type[Any]) -> Callable[..., Any]:
        """Ours, or the original's for what is no plain tensor."""
        around, ours = self.around, getattr(modules, self.base.__name__).forward

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs or len(args) != 1 or not _plain(args[0]):
                return original.forward(self, *args, **kwargs)
            return around(self, args[0], ours)

        return forward


Recipe = RootMeanSquare | Around


def _plain(one: Any) -> bool:
    """Whether it is torch's own tensor: for others the original has rules."""
    return one.__class__ is Tensor or one.__class__ is nn.Parameter


def stand_in_for(module: nn.Module) -> type[Any] | None:
    """The class that a module may have in the place of its own; None where nothing is known."""
    cls = type(module)
    if isinstance(module, modules.Ours) or "forward" in vars(module):
        return None
    if cls.__module__.partition(".")[0] == "timm":
        around = timms(module)
        return None if around is None else stand_in(cls, around)
    if "RMSNorm" in cls.__name__ or "RmsNorm" in cls.__name__ or "LayerNorm" in cls.__name__:
        recipe = root_mean_square(module)
        return None if recipe is None else stand_in(cls, recipe)
    return None


_made: Final[dict[tuple[type[Any], Recipe], type[Any]]] = {}


def stand_in(original: type[Any], recipe: Recipe) -> type[Any]:
    """The class that computes an original's results by our kernels."""
    key = original, recipe
    if key not in _made:
        body = {
            "original": original,
            "recipe": recipe,
            "forward": recipe.forward(original),
            "__doc__": original.__doc__,
        }
        _made[key] = type(original.__name__, (StandIn, original), body)
    return _made[key]


def _blank(original: type[Any], recipe: Recipe) -> nn.Module:
    made: nn.Module = object.__new__(stand_in(original, recipe))
    return made


# timm's, by the names of their classes.


def alone(module: Any, x: Tensor, norm: Callable[..., Tensor]) -> Tensor:
    """Nothing else."""
    return norm(module, x)


def _of_channels(module: Any, x: Tensor, norm: Callable[..., Tensor]) -> Tensor:
    return norm(module, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def _activated(module: Any, x: Tensor, norm: Callable[..., Tensor]) -> Any:
    return module.act(module.drop(norm(module, x)))


_TIMMS: Final[Mapping[str, Around]] = {
    "LayerNorm": Around(nn.LayerNorm, alone),
    "LayerNorm2d": Around(nn.LayerNorm, _of_channels),
    "GroupNorm": Around(nn.GroupNorm, alone),
    "GroupNorm1": Around(nn.GroupNorm, alone),
    "GroupNormAct": Around(nn.GroupNorm, _activated),
    "RmsNorm": Around(nn.RMSNorm, alone),
    "BatchNormAct2d": Around(nn.BatchNorm2d, _activated),
}


def timms(module: nn.Module) -> Around | None:
    """What a norm of timm's is, if a trial agrees."""
    around = _TIMMS.get(type(module).__name__)
    return around if around is not None and _is(around, module) else None


def _is(recipe: Around, module: Any) -> bool:
    """Whether a module computes what ``torch.nn``'s would, in the same bits."""
    if getattr(module, "_fast_norm", False):  # has types of its own under autocast
        return False
    shape = getattr(module, "normalized_shape", None)
    if shape is None:
        shape = (2, getattr(module, "num_channels", None) or module.num_features, 3, 5)
    else:
        shape = (2, *shape, 3, 5) if recipe.around is _of_channels else (2, 3, *shape)
    passes = (type(module).forward, lambda one, x: recipe.around(one, x, recipe.base.forward))
    try:
        for training in (True, False):
            found = []
            for forward in passes:
                twin = copy.deepcopy(module).to("cpu", torch.float32).train(training)
                with torch.random.fork_rng(devices=[]), _undisturbed():
                    # For a dropout in both; torch.manual_seed would reach for the GPUs' too.
                    torch.default_generator.manual_seed(0)
                    y = forward(twin, torch.randn(shape, device="cpu", dtype=torch.float32))
                found.append([y, *twin.buffers()])
            if not all(map(torch.equal, *found)):
                return False
    except Exception:  # whatever somebody else's code raises
        return False
    return True


# RMS norms, by trial.


def root_mean_square(module: nn.Module) -> RootMeanSquare | None:
    """What a module computes if it is an RMS norm over the last axis."""
    names = [name for name, value in vars(module).items() if type(value) is float and value < 0.1]
    parameters = {name: one for name, one in module._parameters.items() if one is not None}
    weight = parameters.pop("weight", None)
    if parameters or module._buffers or module._modules or not names:
        return None
    if weight is not None and (type(weight) is not nn.Parameter or weight.dim() != 1):
        return None
    try:
        with _undisturbed():
            return _tried(module, names, None if weight is None else len(weight))
    except Exception:  # whatever somebody else's code raises
        return None


def _tried(module: nn.Module, names: list[str], size: int | None) -> RootMeanSquare | None:
    generator = torch.Generator("cpu").manual_seed(20)
    data, weight = _numbers(generator, size or 48, [getattr(module, name) for name in names])
    for name in names:
        for offset in (0.0,) if size is None else (0.0, 1.0):
            recipe = RootMeanSquare(name, offset, ())
            wide = (data, None if size is None else weight)
            if _agrees(module, recipe, *wide, differentiated=True):
                tried = [
                    (x_type, weight_type, _agrees(module, recipe, *operands))
                    for x_type in _TYPES
                    for weight_type in ((None,) if size is None else _TYPES)
                    for operands in [
                        (data.to(x_type), None if weight_type is None else weight.to(weight_type))
                    ]
                ]
                results = tuple((x, w, result) for x, w, result in tried if result is not None)
                return RootMeanSquare(name, offset, results)
    return None


def _numbers(generator: torch.Generator, size: int, steps: list[float]) -> tuple[Tensor, Tensor]:
    """Rows of large numbers, and of some so small that each of the steps beside them is felt."""
    rows = torch.tensor([1.0, 30.0, *(max(abs(step), 4e-6) ** 0.5 for step in steps)], **_ON_CPU)
    x = torch.randn(2, len(rows), size, generator=generator, **_ON_CPU) + 0.5
    return x * rows.unsqueeze(1), torch.randn(size, generator=generator, **_ON_CPU)


def _agrees(
    module: nn.Module,
    recipe: RootMeanSquare,
    x: Tensor,
    weight: Tensor | None,
    *,
    differentiated: bool = False,
) -> torch.dtype | None:
    """The type of the results, if they are right to rounding, in training and in inference."""
    leaves = [x, *(() if weight is None else (weight,))]
    exact = [one.double().requires_grad_() for one in leaves]
    scale = exact[0].square().mean(-1, keepdim=True) + getattr(module, recipe.eps)
    want = exact[0] / scale.sqrt()
    if weight is not None:
        want = want * (exact[1] + recipe.offset)
    result = None
    for training in (True, False):
        mine = [one.clone().requires_grad_() for one in leaves]
        twin = object.__new__(type(module))
        vars(twin).update(vars(module), training=training)
        vars(twin)["_parameters"] = {"weight": mine[1]} if weight is not None else {}
        y = type(module).forward(twin, mine[0])
        # Each of x-hat, the weight and the result may be rounded, to the coarsest of the types.
        step = max(torch.finfo(one.dtype).eps for one in (*leaves, y))
        if result not in (None, y.dtype) or not _near(y, want, max(1.5 * step, 1e-5), 0.05):
            return None
        if differentiated:
            seed = torch.linspace(-1, 1, want.numel(), **_ON_CPU).reshape(want.shape)
            got = torch.autograd.grad(y, mine, seed)
            wanted = torch.autograd.grad(want, exact, seed.double(), retain_graph=True)
            # Sums are near by the size of their terms.
            if not all(
                _near(one, other, 1e-4, 1.0) for one, other in zip(got, wanted, strict=True)
            ):
                return None
        result = y.dtype
    return result


def _near(got: Tensor, want: Tensor, tolerance: float, slack: float) -> bool:
    atol = slack * tolerance * want.abs().mean().item()
    return got.shape == want.shape and torch.allclose(got.double(), want, rtol=tolerance, atol=atol)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Without the caller's autocast, no_grad and inference mode."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield
