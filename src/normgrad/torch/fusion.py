"""``fuse(model)``: a norm and what follows it become one node, in models as they are."""

import itertools
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import torch
from torch import nn

from normgrad.calls.signatures import explained
from normgrad.torch import nodes, others_norms, sum_nodes
from normgrad.torch.activations import activation_of
from normgrad.torch.nodes import kind_of, unhooked
from normgrad.torch.places import TIMMS, Fusion, at, methods, named, report_of
from normgrad.torch.rewriting import Found, Looked, rewritten
from normgrad.torch.sync_module import check_module

Model = TypeVar("Model", bound=nn.Module)


NODES: Final = (nodes.node, sum_nodes.sum_node)


class Recipe(NamedTuple):
    """How a class's nodes are made: of its methods, of its children in a row, or of itself."""

    kind: str  # "methods", "row", "itself"
    # As the source of the methods names them; norms in three ways, as in Looked.
    norms: frozenset[str] = frozenset()
    adds: frozenset[str] = frozenset()
    after_sum: frozenset[str] = frozenset()
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
        looked = Looked(*(paths.__contains__ for paths in recipe[1:]))
        for name, method in methods(original):
            found = rewritten(method.method, looked, NODES)
            if found is not None:
                body[name] = method.put(found.method)
                places += found.places
    if not body:
        return None
    kept = {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}
    more = {"original": original, "recipe": recipe, "places": places}
    try:
        made = type(original.__name__, (Fused, original), body | kept | more)
    except TypeError:  # a class that nothing may be derived from
        return None
    if recipe.kind == "itself":
        nodes.ACTIVATED[made] = TIMMS[original.__name__]
    return made


def _row(self: Any, input: Any) -> Any:
    """``torch.nn.Sequential``'s forward pass, with nodes for neighbours."""
    return nodes.row(list(self._modules.values()), input)


def _itself(original: type[Any]) -> Callable[..., Any]:
    """The forward pass of timm's norms that have an activation."""
    kind = TIMMS[original.__name__]
    theirs = original.forward

    def forward(self: Any, x: Any) -> Any:
        if type(self.drop) is nn.Identity and unhooked(self.drop) and unhooked(self.act):
            after = activation_of(self.act)
            if after is not None and nodes.fits(self, kind, after, x, None):
                return nodes.one_node(self, kind, after, x, None)
        return theirs(self, x)

    return forward


def _recipe(original: type[Any], members: list[nn.Module]) -> Recipe | None:
    """How nodes are put into a class of which a model has these."""
    if original.forward is nn.Sequential.forward:
        rows = (list(one._modules.values()) for one in members)
        pairs = (pair for row in rows for pair in itertools.pairwise(row))
        return Recipe("row") if any(itertools.starmap(nodes.are_neighbours, pairs)) else None
    home = original.__module__.partition(".")[0]
    if original.__name__ in TIMMS and issubclass(original, others_norms.StandIn):  # tried before
        return Recipe("itself")
    if home == "timm" and original.__name__ in TIMMS:
        return None if others_norms.timms(members[0]) is None else Recipe("itself")
    if home in ("torch", "normgrad") or not issubclass(original, nn.Module):
        return None
    found: list[set[str]] = [set(), set(), set(), set()]

    def some(test: Callable[[Any], Any]) -> Callable[[str], bool]:
        return lambda path: any(test(at(one, path)) for one in members)

    for _, (method, _) in methods(original):
        looked = Looked(
            some(lambda one: nodes.last_of(one) is not None),
            some(lambda one: kind_of(nodes.last_of(one)) == "batch"),
            some(sum_nodes.takes_sum),
            partial(_is_activation, members, method),
        )
        made = rewritten(method, looked, NODES)
        if made is not None:
            for place in made.places:
                found[2 if place.after_sum else 0].add(place.norm)
                if place.with_shortcut:
                    found[1].add(place.norm)
                if place.act is not None:
                    found[3].add(place.act)
    return Recipe("methods", *map(frozenset, found)) if found[0] or found[2] else None


def _is_activation(members: list[nn.Module], method: FunctionType, name: str) -> bool:
    return any(activation_of(named(one, method, name)) is not None for one in members)


@explained
def fuse(model: Model) -> Fusion:
    """Make one node of a norm and what follows it, in place, in a model as it is.

    What is taken are batch and group norm of ``torch.nn``, or ours, with a ReLU, ReLU6, leaky ReLU,
    SiLU, GELU or hardswish behind them, our synchronized batch norm too; batch norm also with a sum
    behind it, and an activation behind that; layer norm and RMS norm, those that models wrote too,
    with a sum before them. They are found among neighbours in any ``torch.nn.Sequential``, in
    timm's ``BatchNormAct2d`` and ``GroupNormAct``, and wherever in the source of the model's own
    classes one follows the other, such as ``F.relu(self.bn1(self.conv1(x)))``, the ends of a
    ResNet's blocks or the middle of a transformer's. Only classes change: modules, parameters,
    buffers, names and hooks stay.

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
            sum_nodes.look(module)
    # Norms first: what holds them asks what they are.
    for original, ones in sorted(members.items(), key=lambda one: one[0].__name__ not in TIMMS):
        recipe = _recipe(original, ones)
        cls = None if recipe is None else _fused_class(original, recipe)
        if cls is not None:
            for module in ones:
                object.__setattr__(module, "__class__", cls)
    return report_of(model)


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
