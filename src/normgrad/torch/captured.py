"""In the graphs that ``torch.compile`` captures: a norm and its activation made one operator.

What is left of the activation is then part of the one backward call, where it was a kernel of its
own, of three passes over memory. A graph is the program as it was written: with changes in place,
before autograd. So a place is taken only where nobody else can see what is between the two.

A sum before the activation is left to inductor. Its gradient has to be written for the other side
too, and inductor writes it through the activation, in the kernel that adds up what comes in: at the
end of a ResNet's block the backward pass goes 7 times over memory, with one call of ours 9 times.
"""

import inspect
import math
import operator
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch._inductor import config as programs
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols, statically_known_true
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from normgrad import __version__
from normgrad.calls.fused import NEGATIVE_SLOPE
from normgrad.core.validate import MAX_RANK
from normgrad.torch import inductor, nodes
from normgrad.torch.activations import After, activation_of
from normgrad.torch.forward import group_format, of_our_types
from normgrad.torch.library import NARROW, Tensor, memory_format

# Torch's functions, and the names of their arguments in the order of ours.
_KINDS: Final[dict[Any, str]] = {functional.batch_norm: "batch", functional.group_norm: "group"}
_SIGNATURES: Final = {kind: inspect.signature(one) for one, kind in _KINDS.items()}
_PARAMETERS: Final = ("weight", "bias")
_BUFFERS: Final = {"batch": ("running_mean", "running_var"), "group": ()}
_SETTINGS: Final = {"batch": ("training", "momentum", "eps"), "group": ("num_groups", "eps")}

# Arguments behind the data: by position or by name, and what they are if not given.
_MORE: Final[dict[str, dict[str, Any]]] = {
    "leaky_relu": {"negative_slope": NEGATIVE_SLOPE, "inplace": False},
    "gelu": {"approximate": "none"},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0, "inplace": False},
}
_IN_ANY: Final[dict[str, Any]] = {"inplace": False}


class _Norm(NamedTuple):
    """A call of a norm: ``given`` are the arguments of torch's function by name."""

    node: fx.Node
    kind: str
    given: dict[str, Any]


class OneNode(CustomGraphPass):
    """What inductor calls with each graph, before it is differentiated."""

    def __call__(self, graph: fx.Graph) -> None:
        """Make one operator of each norm and activation in their places."""
        if inductor.taken_over() and torch.is_grad_enabled():
            for node in list(graph.nodes):
                norm = _norm(node)
                if norm is not None:
                    _take(norm)

    def uuid(self) -> str:
        """What programs on disk are told apart by."""
        return f"normgrad-{__version__}-{inductor.taken_over()}"


def _norm(node: fx.Node) -> _Norm | None:
    kind = _KINDS.get(node.target) if node.op == "call_function" else None
    if kind is None:
        return None
    try:
        bound = _SIGNATURES[kind].bind(*node.args, **node.kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return _Norm(node, kind, bound.arguments)


def _take(norm: _Norm) -> None:
    """Put our operator in the place of a norm and its activation, if all is as it should be."""
    users = list(norm.node.users)
    after = _activation(users[0], norm.node) if len(users) == 1 else None
    if after is not None and _fits(norm, after, users[0]) and _calm(norm.node, users[0]):
        _put(norm, after, users[0])


def _activation(node: fx.Node, z: fx.Node) -> After | None:
    """What a node makes of z, if that is an activation of ours."""
    if node.op == "call_method":
        plain = node.target in ("relu", "relu_") and node.args == (z,) and not node.kwargs
        return ("relu", NEGATIVE_SLOPE) if plain else None
    if node.op != "call_function":
        return None
    given = dict(node.kwargs)
    first, *rest = node.args or (given.pop("input", None),)
    known = activation_of(node.target)
    name = "hardtanh" if node.target is functional.hardtanh else known[0] if known else None
    names = _MORE.get(name or "", _IN_ANY)
    if name is None or first is not z or len(rest) > len(names):
        return None
    given.update(zip(names, rest, strict=False))
    if not given.keys() <= names.keys():
        return None
    options = {**names, **given}
    if options.pop("inplace", False) not in (True, False):
        return None
    if name == "leaky_relu":
        slope = options["negative_slope"]
        number = isinstance(slope, float | int) and math.isfinite(slope)
        return ("leaky_relu", float(slope)) if number else None
    if name == "gelu":
        found = {"none": "gelu", "tanh": "gelu_tanh"}.get(options["approximate"])
        return None if found is None else (found, NEGATIVE_SLOPE)
    if name == "hardtanh":
        bounds = (options["min_val"], options["max_val"])
        return ("relu6", NEGATIVE_SLOPE) if bounds == (0, 6) else None
    return name, NEGATIVE_SLOPE


def _value(node: Any) -> Any:
    """The shape, type and so on of a node's result, as a tensor without data."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _fits(norm: _Norm, after: After, last: fx.Node) -> bool:
    """Whether the operator takes the call, and gives what the calls in its place give."""
    given, x, y = norm.given, _value(norm.given["input"]), _value(last)
    names = (*_PARAMETERS, *_BUFFERS[norm.kind])
    vectors = [_value(given[name]) for name in names if given[name] is not None]
    for one in (x, y, *vectors):
        # Not of a class of its own, nor inside one of torch.func's transforms.
        if not isinstance(one, FakeTensor) or one.layout is not torch.strided:
            return False
        if one.device != x.device or has_free_unbacked_symbols(one):
            return False
    for pair in (_PARAMETERS, _BUFFERS[norm.kind]):
        if len({given[name] is None for name in pair}) == 2:
            return False
    if x.device.type not in ("cpu", "cuda") or not 2 <= x.dim() <= MAX_RANK:
        return False
    # Inference reads statistics that may change until the backward pass.
    if not y.requires_grad or given.get("training", True) is not True:
        return False
    numbers = (given["eps"], given.get("momentum", 0.0))
    if type(given.get("num_groups", 1)) is not int or not all(map(_is_number, numbers)):
        return False
    if not of_our_types(x, *vectors) or not _same_result(norm.kind, x, y):
        return False
    with unset_fake_temporarily():  # what backends make when they are loaded is real
        return nodes.takes(norm.kind, x.device.type, after[0], False)


def _is_number(one: Any) -> bool:
    """Whether this is known now, or will be: of dynamic programs a number is an input."""
    value = _value(one) if isinstance(one, fx.Node) else one
    return isinstance(value, float | int | torch.SymFloat) and not isinstance(value, bool)


def _same_result(kind: str, x: Tensor, y: Tensor) -> bool:
    """Whether our result is laid out as the activation's; what follows may rely on it."""
    dtype = x.dtype
    if kind == "group" and x.is_cuda and x.dtype in NARROW and y.dtype == torch.float32:
        dtype = torch.float32  # under autocast, as in ours
    wanted = memory_format(x) if kind == "batch" else group_format(x)
    mine = torch.empty_like(x, dtype=dtype, memory_format=wanted)
    sizes = zip((*mine.shape, *mine.stride()), (*y.shape, *y.stride()), strict=True)
    return dtype == y.dtype and all(statically_known_true(one == other) for one, other in sizes)


def _calm(first: fx.Node, last: fx.Node) -> bool:
    """Whether between two nodes there are but calls on tensors.

    Where no tensor comes or goes is a mode, gradients or autocast, or something unknown.
    """
    node = first.next
    while node is not last:
        inputs, result = map(_value, node.all_input_nodes), _value(node)
        tensors = any(isinstance(leaf, Tensor) for leaf in tree_leaves(list(inputs)))
        if node.op not in ("placeholder", "get_attr") and (not tensors or result is None):
            return False
        node = node.next
    return True


def _put(norm: _Norm, after: After, last: fx.Node) -> None:
    graph, given = norm.node.graph, norm.given
    names = ("input", *_PARAMETERS, *_BUFFERS[norm.kind], *_SETTINGS[norm.kind])
    op = getattr(torch.ops.normgrad, f"{norm.kind}_norm").default
    with graph.inserting_before(norm.node):
        call = graph.call_function(op, (*(given[name] for name in names), *after))
        y = graph.call_function(operator.getitem, (call, 0))
    call.meta = {key: one for key, one in norm.node.meta.items() if key != "example_value"}
    y.meta = dict(last.meta)
    last.replace_all_uses_with(y)
    graph.erase_node(last)
    graph.erase_node(norm.node)


def install() -> None:
    """Have inductor call it, if it calls no other there."""
    if getattr(programs, "pre_grad_custom_pass", programs) is None:
        programs.pre_grad_custom_pass = OneNode()


def remove() -> None:
    """Take it out again, if it is in."""
    if isinstance(getattr(programs, "pre_grad_custom_pass", None), OneNode):
        programs.pre_grad_custom_pass = None
