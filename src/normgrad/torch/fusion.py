"""``fuse(model)``: a norm and what follows it become one node, in models as they are."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import torch
from torch import nn

from normgrad.calls.signatures import explained
from normgrad.torch import nodes, others_norms
from normgrad.torch.activations import activation_of
from normgrad.torch.nodes import kind_of, node, unhooked
from normgrad.torch.rewriting import Found, rewritten
from normgrad.torch.sync_module import check_module

Model = TypeVar("Model", bound=nn.Module)


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


class Recipe(NamedTuple):
    """How a class's nodes are made: of its methods, of its children in a row, or of itself."""

    kind: str  # "methods", "row", "itself"
    norms: frozenset[str] = frozenset()  # as the source of the methods names them
    acts: frozenset[str] = frozenset()


class Fused:
    """A class of a model's with nodes in its methods; it goes by the name of the original."""

    original: type[Any]
    recipe: Recipe
    places: tuple[Found, ...]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Made here, the class has no name to be found by: it is made again."""
        made: Any = super().__reduce_ex__(protocol)
        return _blank, (self.original, tuple(self.recipe)), *made[2:]

    def __prepare_scriptable__(self) -> NoReturn:
        """Called by ``torch.jit.script``, whose own words would be about sources."""
        msg = (
            "torch.jit.script cannot compile a fused model: call normgrad.torch.unfuse(model) "
            "before, or use torch.jit.trace or torch.export"
        )
        raise NotImplementedError(msg)


def _blank(original: type[Any], recipe: tuple[Any, ...]) -> nn.Module:
    made: nn.Module = object.__new__(_fused_class(original, Recipe(*recipe)) or original)
    return made


_made: Final[dict[tuple[type[Any], Recipe], type[Any] | None]] = {}


def _fused_class(original: type[Any], recipe: Recipe) -> type[Any] | None:
    """A class with nodes; None where there is no place for one."""
    key = original, recipe
    if key not in _made:
        _made[key] = _make_class(original, recipe)
    return _made[key]


def _make_class(original: type[Any], recipe: Recipe) -> type[Any] | None:
    body: dict[str, Any] = {}
    places: tuple[Found, ...] = ()
    if recipe.kind == "row":
        body["forward"] = _row
    elif recipe.kind == "itself":
        body["forward"] = _itself(original)
    else:
        for name, method in _methods(original):
            made = rewritten(method, recipe.norms.__contains__, recipe.acts.__contains__, node)
            if made is not None:
                body[name] = made.method
                places += made.places
    if not body:
        return None
    kept = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    more = {"original": original, "recipe": recipe, "places": places}
    try:
        return type(original.__name__, (Fused, original), body | kept | more)
    except TypeError:  # a class that nothing may be derived from
        return None


def _methods(original: type[Any]) -> Iterator[tuple[str, FunctionType]]:
    """What a class defines beside ``torch.nn.Module``'s own, the nearest of each name."""
    seen = set()
    for cls in original.__mro__:
        if cls.__module__.partition(".")[0] == "torch" or cls is object:
            continue
        for name, one in vars(cls).items():
            if name not in seen:
                seen.add(name)
                if isinstance(one, FunctionType) and not name.startswith("__"):
                    yield name, one


def _row(self: Any, input: Any) -> Any:
    """``torch.nn.Sequential``'s forward pass, with nodes for neighbours."""
    children, x = list(self._modules.values()), input
    place = 0
    while place < len(children):
        one = children[place]
        place += 1
        if place < len(children) and _are_neighbours(one, children[place]):
            x = node(one, children[place], x)
            place += 1
        else:
            x = one(x)
    return x


def _are_neighbours(one: nn.Module, other: nn.Module) -> bool:
    return kind_of(one) is not None and activation_of(other) is not None


def _itself(original: type[Any]) -> Callable[..., Any]:
    """The forward pass of timm's norms that have an activation."""
    kind = _TIMMS[original.__name__]
    theirs = original.forward

    def forward(self: Any, x: Any) -> Any:
        if type(self.drop) is nn.Identity and unhooked(self.drop) and unhooked(self.act):
            after = activation_of(self.act)
            if after is not None and nodes.fits(self, kind, after, x, None):
                return nodes.one_node(self, kind, after, x, None)
        return theirs(self, x)

    return forward


_TIMMS: Final = {"BatchNormAct2d": "batch", "GroupNormAct": "group"}


def _recipe(original: type[Any], members: list[nn.Module]) -> Recipe | None:
    """How nodes are put into a class of which a model has these."""
    if original.forward is nn.Sequential.forward:
        rows = (list(one._modules.values()) for one in members)
        pairs = (pair for row in rows for pair in itertools.pairwise(row))
        return Recipe("row") if any(itertools.starmap(_are_neighbours, pairs)) else None
    home = original.__module__.partition(".")[0]
    if home == "timm" and original.__name__ in _TIMMS:
        recipe = others_norms.timms(members[0])
        return None if recipe is None else Recipe("itself")
    if home in ("torch", "normgrad") or not issubclass(original, nn.Module):
        return None
    norms, acts = set(), set()
    for _, method in _methods(original):
        made = rewritten(
            method,
            lambda path: any(kind_of(_at(one, path)) is not None for one in members),
            partial(_is_activation, members, method),
            node,
        )
        if made is not None:
            norms |= {one.norm for one in made.places}
            acts |= {one.act for one in made.places}
    return Recipe("methods", frozenset(norms), frozenset(acts)) if norms else None


def _is_activation(members: list[nn.Module], method: FunctionType, name: str) -> bool:
    return any(activation_of(_named(one, method, name)) is not None for one in members)


def _named(module: nn.Module, method: Any, name: str) -> Any:
    """What a dotted name in a method is: of the module's own, or of its globals."""
    first, _, rest = name.partition(".")
    if (first,) == method.__code__.co_varnames[:1]:
        return _at(module, name)
    found = method.__globals__.get(first)
    for attribute in rest.split(".") if rest else ():
        found = getattr(found, attribute, None)
    return found


def _at(module: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        module = getattr(module, name, None)
    return module


@explained
def fuse(model: Model) -> Fusion:
    """Make one node of a norm and what follows it, in place, in a model as it is.

    What is taken are batch and group norm of ``torch.nn``, or ours, with a ReLU, ReLU6, leaky ReLU,
    SiLU, GELU or hardswish behind them, and for batch norm a sum between the two: neighbours in any
    ``torch.nn.Sequential``, timm's ``BatchNormAct2d`` and ``GroupNormAct``, and every place in the
    source of the model's own classes where one follows the other, such as
    ``F.relu(self.bn1(self.conv1(x)))`` or the ends of a ResNet's blocks. Only classes change:
    modules, parameters, buffers, names and hooks stay.

    Each call looks again: where somebody hooks on to a norm or its activation, in inference with
    gradients, in traces and exports, and on the CPU for data that are too small to gain, the
    modules are called as before.

    Args:
        model: A model.

    Returns:
        For each norm of the model whether it is part of a node, and why not.

    Raises:
        ArrayTypeError: ``model`` is no ``torch.nn.Module``.

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.ReLU())
        >>> print(normgrad.torch.fuse(model))
        1 of 1 norms are part of a node
        0  BatchNorm2d + ReLU
    """
    check_module(model)
    for device in {one.device.type for one in model.parameters()} & {"cpu", "cuda"}:
        nodes.look(device)
    members: dict[type[Any], list[nn.Module]] = {}
    for module in model.modules():
        if not isinstance(module, Fused) and _may_change(module):
            members.setdefault(type(module), []).append(module)
    for original, ones in members.items():
        recipe = _recipe(original, ones)
        cls = None if recipe is None else _fused_class(original, recipe)
        if cls is not None:
            for module in ones:
                object.__setattr__(module, "__class__", cls)
    return _report(model)


@explained
def unfuse(model: Model) -> Model:
    """Undo ``fuse``, in place.

    Args:
        model: A model.

    Returns:
        The model itself.

    Raises:
        ArrayTypeError: ``model`` is no ``torch.nn.Module``.

    Example:
        >>> import torch, normgrad.torch
        >>> model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> normgrad.torch.fuse(model)[0].node
        'BatchNorm2d + ReLU'
        >>> type(normgrad.torch.unfuse(model))
        <class 'torch.nn.modules.container.Sequential'>
    """
    check_module(model)
    for module in model.modules():
        if isinstance(module, Fused):
            object.__setattr__(module, "__class__", type(module).original)
    return model


def _may_change(module: nn.Module) -> bool:
    """Not a module whose class or forward pass somebody made for it."""
    cls = type(module)
    made_for_it = torch.fx.GraphModule, torch.jit.ScriptModule
    return not (
        isinstance(module, made_for_it)
        or "forward" in vars(module)
        or getattr(cls, "__module__", "").startswith("torch.nn.utils")
        or cls.__name__.startswith("FSDP")
    )


def _report(model: nn.Module) -> Fusion:
    taken: dict[int, tuple[str, str]] = {}  # by the norm: what its node computes, or why none
    holders: dict[int, str] = {}
    for module in model.modules():
        for child in module.children():
            holders.setdefault(id(child), type(module).__name__)
        for norm, act, what in _places(module):
            hooked = not unhooked(norm) or (isinstance(act, nn.Module) and not unhooked(act))
            taken[id(norm)] = ("", "hooks are on it or on its activation") if hooked else (what, "")
    rows = []
    for name, module in model.named_modules():
        if id(module) in taken:
            rows.append(Place(name, *taken[id(module)]))
        elif isinstance(module, _NORMS):
            rows.append(Place(name, "", _why_not(module, holders.get(id(module), ""))))
    return Fusion(rows)


_NORMS: Final = (
    *(nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm),
    *((nn.RMSNorm,) if hasattr(nn, "RMSNorm") else ()),
)


def _why_not(norm: Any, holder: str) -> str:
    if isinstance(norm, Fused) or (type(norm).__name__ in _TIMMS and hasattr(norm, "act")):
        return f"no activation that is taken is in it: {type(norm.act).__name__}"
    if kind_of(norm) is None:
        return f"a {type(norm).__name__} is not taken"
    return f"no activation that is taken follows it in {holder or 'the model itself'}"


def _places(module: Any) -> Iterator[tuple[nn.Module, Any, str]]:
    """Norms and activations that one fused module puts into nodes, and what those compute."""
    cls: Any = type(module)
    if not issubclass(cls, Fused):
        return
    if cls.recipe.kind == "row":
        for one, other in itertools.pairwise(module._modules.values()):
            if _are_neighbours(one, other):
                yield one, other, f"{type(one).__name__} + {type(other).__name__}"
    elif cls.recipe.kind == "itself":
        if activation_of(module.act) is not None:
            yield module, module.act, f"{cls.__name__} with {type(module.act).__name__}"
    else:
        methods = [method for _, method in _methods(cls.original)]
        for place in cls.places:
            norm = _at(module, place.norm)
            acts = (_named(module, one, place.act) for one in methods)
            act = next((one for one in acts if activation_of(one) is not None), None)
            if kind_of(norm) is not None and act is not None:
                called = act.__name__ if not isinstance(act, nn.Module) else type(act).__name__
                plus = " + shortcut" if place.with_shortcut else ""
                yield norm, act, f"{type(norm).__name__}{plus} + {called}"
