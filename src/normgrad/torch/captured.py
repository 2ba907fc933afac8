"""In the graphs that ``torch.compile`` captures: a norm and its activation made one operator.

What is left of the activation is then part of the one backward call, where it was a kernel of its
own, of three passes over memory. A graph is the program as it was written: with changes in place,
before autograd. So a place is taken only where nobody else can see what is between the two.

A sum before the activation is left to inductor. Its gradient has to be written for the other side
too, and inductor writes it through the activation, in one kernel with what comes before: 7 passes
over memory in a ResNet's block. As one call of ours it would be 8.
"""

import inspect
import operator
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch._inductor import config as programs
from torch._inductor.custom_graph_pass import CustomGraphPass
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

_SIGNATURES: Final = {
    functional.batch_norm: ("batch", inspect.signature(functional.batch_norm)),
    functional.group_norm: ("group", inspect.signature(functional.group_norm)),
}
# Arguments behind the data: by position or by name, and what they are if not given.
_MORE: Final[dict[str, dict[str, Any]]] = {
    "leaky_relu": {"negative_slope": NEGATIVE_SLOPE, "inplace": False},
    "gelu": {"approximate": "none"},
    "hardtanh": {"min_val": -1.0, "max_val": 1.0, "inplace": False},
}
_IN_ANY: Final[dict[str, Any]] = {"inplace": False}


class _Norm(NamedTuple):
    """A call of a norm: ``names`` are the arguments of torch's function."""

    node: fx.Node
    kind: str
    names: dict[str, Any]

    @property
    def vectors(self) -> list[fx.Node]:
        """The parameters and the buffers that are there."""
        names = ("weight", "bias", "running_mean", "running_var")[: 4 if self.kind == "batch" else 2]
        return [self.names[name] for name in names if self.names[name] is not None]


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
    known = _SIGNATURES.get(node.target) if node.op == "call_function" else None
    if known is None:
        return None
    kind, signature = known
    try:
        bound = signature.bind(*node.args, **node.kwargs)
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
        return ("leaky_relu", float(slope)) if isinstance(slope, float | int) else None
    if name == "gelu":
        found = {"none": "gelu", "tanh": "gelu_tanh"}.get(options["approximate"])
        return None if found is None else (found, NEGATIVE_SLOPE)
    if name == "hardtanh":
        return ("relu6", NEGATIVE_SLOPE) if (*options.values(),) == (0, 6) else None
    return name, NEGATIVE_SLOPE


def _value(node: Any) -> Any:
    """The shape, type and so on of a node's result, as a tensor without data."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _fits(norm: _Norm, after: After, last: fx.Node) -> bool:
    """Whether the operator takes the call, and gives what the calls in its place give."""
    names, x, y = norm.names, _value(norm.names["input"]), _value(last)
    vectors = [_value(one) for one in norm.vectors]
    for one in (x, y, *vectors):
        if not isinstance(one, Tensor) or one.layout is not torch.strided:
            return False
        if one.device != x.device or has_free_unbacked_symbols(one):
            return False
    if (names["weight"] is None) is not (names["bias"] is None) or not y.requires_grad:
        return False
    if x.device.type not in ("cpu", "cuda") or not 2 <= x.dim() <= MAX_RANK:
        return False
    numbers = [names["eps"]]
    if norm.kind == "batch":
        # Inference reads statistics that may change until the backward pass.
        if names["training"] is not True:
            return False
        if (names["running_mean"] is None) is not (names["running_var"] is None):
            return False
        numbers.append(names["momentum"])
    elif type(names["num_groups"]) is not int:
        return False
    if not all(map(_is_number, numbers)) or not of_our_types(x, *vectors):
        return False
    return _same_result(norm, x, y) and nodes.takes(norm.kind, x.device.type, after[0], False)


def _is_number(one: Any) -> bool:
    """Whether this is known now, or will be: of dynamic programs a number is an input."""
    value = _value(one) if isinstance(one, fx.Node) else one
    return isinstance(value, float | int | torch.SymFloat) and not isinstance(value, bool)


def _same_result(norm: _Norm, x: Tensor, y: Tensor) -> bool:
    """Whether our result is laid out as the activation's; what follows may rely on it."""
    z, dtype = _value(norm.node), x.dtype
    if norm.kind == "group" and x.is_cuda and x.dtype in NARROW and z.dtype == torch.float32:
        dtype = torch.float32  # under autocast, as in ours
    wanted = memory_format(x) if norm.kind == "batch" else group_format(x)
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
    names, graph = norm.names, norm.node.graph
    if norm.kind == "batch":
        keys = ("running_mean", "running_var", "training", "momentum", "eps")
        op: Any = torch.ops.normgrad.batch_norm.default
    else:
        keys = ("num_groups", "eps")
        op = torch.ops.normgrad.group_norm.default
    settings = (names[key] for key in ("input", "weight", "bias", *keys))
    with graph.inserting_before(norm.node):
        call = graph.call_function(op, (*settings, *after))
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
