"""In the graphs that ``torch.compile`` captures: a norm and what follows it made one operator.

What is left of the activation, and of the sum before it, is then part of the one backward call.
The graph is the program as it was written: with changes in place, before autograd. So a place is
taken only where nobody else can see what is between the norm and its activation, and where what
the norm reads is the same where it goes. All else is left alone.
"""

import inspect
import operator
from collections.abc import Iterator, Sequence
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

_OPS: Final = torch.ops.normgrad
_SIGNATURES: Final = {
    functional.batch_norm: ("batch", inspect.signature(functional.batch_norm)),
    functional.group_norm: ("group", inspect.signature(functional.group_norm)),
}
_SUMS: Final = (operator.add, operator.iadd, torch.add, "add", "add_")
_IN_PLACE: Final = (operator.iadd, "add_")
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
    def operands(self) -> list[fx.Node]:
        """The data, the parameters, the buffers that are there."""
        given = (self.names.get(name) for name in ("input", *self._vectors))
        return [one for one in given if isinstance(one, fx.Node)]

    @property
    def _vectors(self) -> Sequence[str]:
        return ("weight", "bias", "running_mean", "running_var")[: 4 if self.kind == "batch" else 2]


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
    """Put our operator in the place of a norm and what follows it, if all is as it should be."""
    shortcut, last = None, _only_user(norm.node)
    place = norm.node
    if norm.kind == "batch" and last is not None and _is_sum(last, norm.node):
        place = last
        shortcut = last.args[1] if last.args[0] is norm.node else last.args[0]
        last = _only_user(last)
    if last is None:
        return
    after = _activation(last, place)
    if after is None or not _fits(norm, after, shortcut, last):
        return
    # The norm moves to the sum, the activation to where the operator is: over plain calls alone,
    # the norm also over none that touch what it reads or writes.
    memory = {_memory(value) for value in map(_value, norm.operands)}
    if shortcut is not None and not _calm(norm.node, place, memory):
        return
    if _calm(place, last, set()):
        _put(norm, after, shortcut, place, last)


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_sum(node: fx.Node, z: fx.Node) -> bool:
    """Whether a node is a sum of z, the norm's result, and another tensor."""
    if node.op not in ("call_function", "call_method") or node.target not in _SUMS:
        return False
    if len(node.args) != 2 or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
        return False
    if node.target in _IN_PLACE and node.args[0] is not z:
        return False  # what is changed is the other's
    return node.args[0] is not node.args[1]


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


def _memory(value: Any) -> Any:
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else None


def _fits(norm: _Norm, after: After, shortcut: Any, last: fx.Node) -> bool:
    """Whether the operator takes the call, and gives what the calls in its place give."""
    names, x, y = norm.names, _value(norm.names["input"]), _value(last)
    vectors = [_value(one) for one in norm.operands[1:]]
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
    if not all(type(one) in (float, int) for one in numbers) or not of_our_types(x, *vectors):
        return False
    added = _value(shortcut)
    if shortcut is not None and not (isinstance(added, Tensor) and _alike(added, x)):
        return False
    form = (norm.kind, x.device.type, after[0], shortcut is not None)
    return _same_result(norm, x, y) and nodes.takes(*form)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether both have a type, a device and a shape, the sizes of which need not be numbers."""
    if one.dtype != other.dtype or one.device != other.device or one.dim() != other.dim():
        return False
    return _same_sizes(one.shape, other.shape)


def _same_sizes(some: Sequence[Any], others: Sequence[Any]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(statically_known_true(one == other) for one, other in pairs)


def _same_result(norm: _Norm, x: Tensor, y: Tensor) -> bool:
    """Whether our result is laid out as the activation's; what follows may rely on it."""
    z, dtype = _value(norm.node), x.dtype
    if norm.kind == "group" and x.is_cuda and x.dtype in NARROW and z.dtype == torch.float32:
        dtype = torch.float32  # under autocast, as in ours
    wanted = memory_format(x) if norm.kind == "batch" else group_format(x)
    mine = torch.empty_like(x, dtype=dtype, memory_format=wanted)
    return _alike(mine, y) and _same_sizes(mine.stride(), y.stride())


def _calm(first: fx.Node, last: fx.Node, memory: set[Any]) -> bool:
    """Whether between two nodes there are but calls on tensors, none on this memory.

    What has no tensor comes or goes is a mode, gradients or autocast, or something unknown.
    """
    for node in _between(first, last):
        if node.op in ("placeholder", "get_attr"):
            continue
        inputs = [leaf for one in node.all_input_nodes for leaf in tree_leaves(_value(one))]
        results = tree_leaves(_value(node))
        if not any(isinstance(one, Tensor) for one in inputs) or results in ([], [None]):
            return False
        if memory & {_memory(one) for one in inputs if isinstance(one, Tensor)}:
            return False
    return True


def _between(first: fx.Node, last: fx.Node) -> Iterator[fx.Node]:
    node = first.next
    while node is not last:
        yield node
        node = node.next


def _put(norm: _Norm, after: After, shortcut: Any, place: fx.Node, last: fx.Node) -> None:
    names, graph = norm.names, norm.node.graph
    settings: tuple[Any, ...] = (names["weight"], names["bias"])
    if norm.kind == "batch":
        keys = ("running_mean", "running_var", "training", "momentum", "eps")
        op: Any = _OPS.batch_norm.default
    else:
        keys = ("num_groups", "eps")
        op = _OPS.group_norm.default
    operands: tuple[Any, ...] = (names["input"],)
    if shortcut is not None:
        operands, op = (*operands, shortcut), _OPS.batch_norm_add.default
    settings = (*operands, *settings, *(names[key] for key in keys), *after)
    with graph.inserting_before(place):
        call = graph.call_function(op, settings)
        y = graph.call_function(operator.getitem, (call, 0))
    call.meta = {key: one for key, one in norm.node.meta.items() if key != "example_value"}
    y.meta = dict(last.meta)
    last.replace_all_uses_with(y)
    for node in dict.fromkeys((last, place, norm.node)):
        graph.erase_node(node)


def install() -> None:
    """Have inductor call it, if it calls no other there."""
    if getattr(programs, "pre_grad_custom_pass", programs) is None:
        programs.pre_grad_custom_pass = OneNode()


def remove() -> None:
    """Take it out again, if it is in."""
    if isinstance(getattr(programs, "pre_grad_custom_pass", None), OneNode):
        programs.pre_grad_custom_pass = None
