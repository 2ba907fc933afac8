"""What ``fuse`` found in a model: its report, and where a class's nodes are."""

import itertools
from collections.abc import Iterator
from types import FunctionType
from typing import Any, Final, NamedTuple

from torch import nn

from normgrad.torch import sum_nodes
from normgrad.torch.activations import activation_of
from normgrad.torch.nodes import are_neighbours, kind_of, last_of, unhooked
from normgrad.torch.rewriting import Found
from normgrad.torch.rows import is_idle
from normgrad.torch.sources import Wrapped, unwrapped

# timm's norms that have an activation, and their kinds.
TIMMS: Final = {"BatchNormAct2d": "batch", "GroupNormAct": "group"}


class Place(NamedTuple):
    """A norm of a model, and whether it is part of a node.

    Attributes:
        norm: Its name in the model.
        node: What the node computes, such as "norm + shortcut + activation"; "" where there is
            none.
        why: Why there is none; else "".

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> normgrad.torch.fuse(model)[0].node
        'BatchNorm2d + ReLU'
    """

    norm: str
    node: str
    why: str


class Fusion(tuple[Place, ...]):
    """What ``fuse`` found: a ``Place`` for each norm of a model. It prints as a table.

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> print(normgrad.torch.fuse(model))
        1 of 1 norms are part of a node
        0  BatchNorm2d + ReLU
    """

    __slots__ = ()

    def __str__(self) -> str:
        """The table."""
        fused = sum(bool(one.node) for one in self)
        lines = [f"{fused} of {len(self)} norms are part of a node"]
        width = max((len(one.norm) for one in self), default=0)
        lines += [f"{one.norm:{width}}  {one.node or one.why}" for one in self]
        return "\n".join(lines)

    __repr__ = __str__


def methods(original: type[Any]) -> Iterator[tuple[str, Wrapped]]:
    """What a class defines beside ``torch.nn.Module``'s own, the nearest of each name."""
    seen = set()
    for cls in original.__mro__:
        if cls.__module__.partition(".")[0] == "torch" or cls is object:
            continue
        for name, one in vars(cls).items():
            if name not in seen:
                seen.add(name)
                if isinstance(one, FunctionType) and not name.startswith("__"):
                    found = unwrapped(one, original)
                    if found is not None:
                        yield name, found


def named(module: nn.Module, method: Any, name: str) -> Any:
    """What a dotted name in a method is: of the module's own, or of its globals."""
    first, _, rest = name.partition(".")
    if (first,) == method.__code__.co_varnames[:1]:
        return at(module, name)
    found = method.__globals__.get(first)
    for attribute in rest.split(".") if rest else ():
        found = getattr(found, attribute, None)
    return found


def at(module: Any, path: str) -> Any:
    """What stands at a path from self."""
    for name in path.split(".")[1:]:
        module = getattr(module, name, None)
    return module


def report_of(model: nn.Module) -> Fusion:
    """A place for each norm."""
    taken: dict[int, tuple[str, str]] = {}  # by the norm: what its node computes, or why none
    holders: dict[int, str] = {}
    for module in model.modules():
        for child in module.children():
            holders.setdefault(id(child), type(module).__name__)
        for norm, what, why in _places(module):
            if not taken.get(id(norm), ("", ""))[0]:
                taken[id(norm)] = ("", why) if why else (what, "")
    rows = []
    for name, module in model.named_modules():
        if id(module) in taken:
            rows.append(Place(name, *taken[id(module)]))
        elif isinstance(module, _NORMS) or sum_nodes.takes_sum(module):
            rows.append(Place(name, "", _why_not(module, holders.get(id(module), ""))))
    return Fusion(rows)


_NORMS: Final = (
    *(nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm),
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),
)


def _why_not(norm: Any, holder: str) -> str:
    where = holder or "the model itself"
    if sum_nodes.takes_sum(norm):
        return f"no sum that it could take in stands right before it in {where}"
    if type(norm).__name__ in TIMMS and hasattr(norm, "act"):
        if type(norm.act) is not nn.Identity:
            return f"no activation that is taken is in it: {type(norm.act).__name__}"
    elif kind_of(norm) is None:
        return f"a {type(norm).__name__} is not taken"
    return f"no {_FOLLOWS[kind_of(norm) == 'batch']} that is taken follows it in {where}"


_FOLLOWS: Final = ("activation", "activation or sum")


def _places(module: Any) -> Iterator[tuple[nn.Module, str, str]]:
    """Norms that one fused module puts into nodes, what those compute, and why not after all."""
    cls: Any = type(module)
    recipe = getattr(cls, "recipe", None)
    kind = getattr(recipe, "kind", None)
    if kind == "row":
        for one, other in itertools.pairwise(module._modules.values()):
            if are_neighbours(one, other):
                yield one, f"{type(one).__name__} + {type(other).__name__}", _hooked(one, other)
    elif kind == "itself":
        if activation_of(module.act) is not None:
            what = f"{cls.__name__} with {type(module.act).__name__}"
            yield module, what, _hooked(module, module.act)
    elif kind == "methods":
        for place in cls.places:
            yield from _in_methods(module, place, [one.method for _, one in methods(cls.original)])


def _in_methods(
    module: Any, place: Found, inside: list[FunctionType]
) -> Iterator[tuple[nn.Module, str, str]]:
    if place.when is not None and not place.when.met(module):
        return
    if place.after_sum:
        norm = at(module, place.norm)
        if sum_nodes.takes_sum(norm):
            yield norm, f"sum + {type(norm).__name__}", _hooked(norm)
        return
    norm, plus, act = last_of(at(module, place.norm)), "", None
    if kind_of(norm) is None or (place.with_shortcut and kind_of(norm) != "batch"):
        return
    if place.act is not None:
        acts = (named(module, one, place.act) for one in inside)
        act = next((one for one in acts if activation_of(one) is not None), None)
        if act is None:
            return
        plus = f" + {type(act).__name__ if isinstance(act, nn.Module) else act.__name__}"
    if place.with_shortcut:
        plus = f" + shortcut{plus}"
    busy = (at(module, one) for one in place.between)
    names = [type(one).__name__ for one in busy if not is_idle(one)]
    why = f"a {names[0]} stands behind it" if names else _hooked(norm, act)
    yield norm, f"{type(norm).__name__}{plus}", why


def _hooked(*modules: Any) -> str:
    free = all(not isinstance(one, nn.Module) or unhooked(one) for one in modules)
    return "" if free else "hooks are on it or on its activation"
