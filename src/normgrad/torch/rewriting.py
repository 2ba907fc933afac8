"""Methods of a model's classes with nodes in the place of a norm and what follows it.

What is looked for are neighbours in the source, ``act`` a module or a function:

    act(self.norm(x))   act(self.norm(x) + y)
    v = self.norm(x); v = self.drop(v); v += y; v = act(v)   with other statements between
    if ...: v = self.norm(x)   else: ...   and then   v = act(v)

The rest of a method stays as it is. A source is believed if it compiles to the very code of the
method.
"""

import __future__

import ast
import copy
import itertools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple

from normgrad.torch.sources import (
    LEAVING,
    addition,
    assigned,
    blocks,
    branches,
    dotted,
    harmless,
    is_name,
    mentions,
    source,
)

NODE: Final = "_normgrad_node"
_MAKER: Final = "_normgrad_maker"


class Found(NamedTuple):
    """One place: the paths of the norm and the activation from ``self``, as written."""

    norm: str
    act: str
    with_shortcut: bool


class Rewritten(NamedTuple):
    """A method with nodes, and where they stand."""

    method: Callable[..., Any]
    places: tuple[Found, ...]


Kinds = Callable[[str], bool]  # whether what stands at a path from self is one


def rewritten(
    method: Any, is_norm: Kinds, is_act: Callable[[str], bool], node: Callable[..., Any]
) -> Rewritten | None:
    """A method with nodes; None where there is no place for one, or the source is not its own.

    ``is_act`` is asked with a path from self, as ``self.relu``, or with a name of the module.
    """
    if not isinstance(method, FunctionType) or method.__closure__ or hasattr(method, "__wrapped__"):
        return None
    function = source(method)
    if function is None:
        return None
    writer = _Writer(function.args.args[0].arg, is_norm, is_act)
    writer.write(function)
    if not writer.places:
        return None
    made = _made(function, method, node)
    return Rewritten(made, tuple(writer.places))


def _made(function: ast.FunctionDef, method: FunctionType, node: Callable[..., Any]) -> Any:
    """The function in its module's own globals, which sees the node beside them."""
    function.decorator_list = []
    function.returns = None
    arguments = function.args
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        one.annotation = None
    for star in (arguments.vararg, arguments.kwarg):
        if star is not None:
            star.annotation = None
    # Defaults are those of the method, which were computed once.
    arguments.defaults = [ast.Constant(None) for _ in arguments.defaults]
    arguments.kw_defaults = [one and ast.Constant(None) for one in arguments.kw_defaults]
    maker = ast.FunctionDef(
        name=_MAKER,
        args=ast.arguments([], [ast.arg(NODE)], None, [], [], None, []),
        body=[function, ast.Return(ast.Name(function.name, ast.Load()))],
        decorator_list=[],
    )
    if "type_params" in ast.FunctionDef._fields:
        maker.type_params = []  # type: ignore[attr-defined]
    module = ast.fix_missing_locations(ast.Module([maker], []))
    names: dict[str, Any] = {}
    flags = method.__code__.co_flags & __future__.annotations.compiler_flag
    code = compile(module, method.__code__.co_filename, "exec", flags, dont_inherit=True)
    exec(code, method.__globals__, names)
    made = names[_MAKER](node)
    made.__defaults__, made.__kwdefaults__ = method.__defaults__, method.__kwdefaults__
    made.__annotations__, made.__doc__ = dict(method.__annotations__), method.__doc__
    made.__qualname__, made.__module__ = method.__qualname__, method.__module__
    return made


class _Call(NamedTuple):
    """``self.norm(x)``: the callee and what it is called with."""

    path: str
    callee: ast.expr
    operand: ast.expr


class _Pending(NamedTuple):
    """A norm whose activation was not met yet."""

    norm: _Call
    between: list[ast.expr]
    shortcut: ast.expr | None
    in_place: bool


class _Writer(ast.NodeTransformer):
    """Puts nodes in. Places are found from the inside of a method out."""

    def __init__(self, self_name: str, is_norm: Kinds, is_act: Kinds) -> None:
        self.self_name, self.is_norm, self.is_act = self_name, is_norm, is_act
        self.places: list[Found] = []
        self.captured: set[str] = set()  # names that functions inside know

    def write(self, function: ast.FunctionDef) -> None:
        """Statements side by side, at every depth, then expressions."""
        inner = (ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        inside = [
            one for one in ast.walk(function) if isinstance(one, inner) and one is not function
        ]
        self.captured = {
            each.id for one in inside for each in ast.walk(one) if isinstance(each, ast.Name)
        }
        if any(isinstance(one, (ast.Try, ast.With)) for one in ast.walk(function)):
            holders: list[ast.AST] = []  # what is left in the middle may be read
        else:
            holders = [function, *blocks(function)]
        for holder in holders:
            for field in ("body", "orelse", "finalbody"):
                body = getattr(holder, field, None)
                if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                    self._sink(body)
        for holder in holders:
            for field in ("body", "orelse", "finalbody"):
                body = getattr(holder, field, None)
                if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                    setattr(holder, field, self._statements(body))
        function.body = [self.visit(one) for one in function.body]

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.AST:
        """What is called later is left alone."""
        return function

    def visit_Lambda(self, function: ast.Lambda) -> ast.AST:
        """Likewise."""
        return function

    def visit_Call(self, call: ast.Call) -> ast.AST:
        """``act(self.norm(x))`` and ``act(self.norm(x) + y)``."""
        self.generic_visit(call)
        act = self._activation(call)
        if act is None:
            return call
        inner, added = call.args[0], None
        norm = self._norm(inner)
        if norm is None and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add):
            norm, added = self._norm(inner.left), inner.right
            if norm is None:
                norm, added = self._norm(inner.right), inner.left
        if norm is None:
            return call
        return self._node(_Pending(norm, [], added, False), call, act)

    def _sink(self, body: list[ast.stmt]) -> None:
        """An activation behind branches of which one ends in a norm goes into each of them."""
        for place, (statement, after) in enumerate(itertools.pairwise(body)):
            name, value = assigned(after)
            if not isinstance(statement, ast.If) or not isinstance(value, ast.Call):
                continue
            if name is None or self._activation(value) is None:
                continue
            ways = branches(statement)
            ends = [assigned(branch[-1]) for branch in ways if branch]
            if is_name(value.args[0], name) and any(
                target == name and self._norm(last) is not None for target, last in ends
            ):
                for branch in ways:
                    if not branch or not isinstance(branch[-1], LEAVING):
                        branch.append(copy.deepcopy(after))
                body[place + 1] = ast.copy_location(ast.Pass(), after)

    def _statements(self, body: list[ast.stmt]) -> list[ast.stmt]:
        body = list(body)
        for start, statement in enumerate(body):
            name, value = assigned(statement)
            norm = None if name is None else self._norm(value)
            if norm is None or name is None or name in self.captured:
                continue
            end = self._follow(body, start, name, norm)
            if end is not None:
                place, made = end
                first = ast.Assign([ast.Name(name, ast.Store())], norm.operand)
                body[start] = ast.copy_location(first, statement)
                last: ast.stmt = ast.Assign([ast.Name(name, ast.Store())], made)
                if isinstance(body[place], ast.Return):
                    last = ast.Return(made)
                kept = [one for one in body[start + 1 : place] if not mentions(one, name)]
                for gone in range(start + 1, place):
                    if not any(body[gone] is one for one in kept):
                        body[gone] = ast.copy_location(ast.Pass(), body[gone])
                body[place] = ast.copy_location(last, body[place])
        return body

    def _follow(
        self, body: Sequence[ast.stmt], start: int, name: str, norm: _Call
    ) -> tuple[int, ast.expr] | None:
        """Where the activation stands that takes a norm's result, and the node."""
        state = _Pending(norm, [], None, False)
        for place in range(start + 1, len(body)):
            statement = body[place]
            if not mentions(statement, name):
                if state.shortcut is not None or not harmless(statement, norm.operand, name):
                    return None
                continue
            added = addition(statement, name)
            if added is not None:
                if state.shortcut is not None or mentions(added[0], name):
                    return None
                state = state._replace(shortcut=added[0], in_place=added[1])
                continue
            target, value = assigned(statement)
            if isinstance(statement, ast.Return):
                value = statement.value
            call = value if isinstance(value, ast.Call) else None
            act = None if call is None else self._activation(call)
            ends = target == name or isinstance(statement, ast.Return)
            if ends and call is not None and act is not None and is_name(call.args[0], name):
                now = norm._replace(operand=ast.Name(name, ast.Load()))
                return place, self._node(state._replace(norm=now), call, act)
            passed = self._passed(statement, name)
            if passed is None or state.shortcut is not None:
                return None
            state.between.append(passed)
        return None

    def _passed(self, statement: ast.stmt, name: str) -> ast.expr | None:
        """``v = self.drop(v)``, also behind ``if self.drop is not None``: what v goes through."""
        guard = None
        if isinstance(statement, ast.If) and len(statement.body) == 1 and not statement.orelse:
            test = statement.test
            if not (
                isinstance(test, ast.Compare)
                and len(test.ops) == 1
                and isinstance(test.ops[0], ast.IsNot)
                and isinstance(test.comparators[0], ast.Constant)
                and test.comparators[0].value is None
            ):
                return None
            guard, statement = test.left, statement.body[0]
        target, value = assigned(statement)
        if target != name or not isinstance(value, ast.Call) or value.keywords:
            return None
        if len(value.args) != 1 or not is_name(value.args[0], name):
            return None
        if self._path(value.func) is None:
            return None
        if guard is not None and ast.dump(guard) != ast.dump(value.func):
            return None
        return value.func

    def _node(self, found: _Pending, call: ast.Call, act: str) -> ast.expr:
        self.places.append(Found(found.norm.path, act, found.shortcut is not None))
        keywords = list(call.keywords)
        if found.shortcut is not None:
            keywords.append(ast.keyword("shortcut", found.shortcut))
            keywords.append(ast.keyword("in_place", ast.Constant(found.in_place)))
        if found.between:
            keywords.append(ast.keyword("between", ast.Tuple(found.between, ast.Load())))
        arguments = [found.norm.callee, call.func, found.norm.operand]
        made = ast.Call(ast.Name(NODE, ast.Load()), arguments, keywords)
        return ast.copy_location(made, call)

    def _norm(self, value: ast.expr | None) -> _Call | None:
        if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
            return None
        path = self._path(value.func)
        if path is None or isinstance(value.args[0], ast.Starred) or not self.is_norm(path):
            return None
        return _Call(path, value.func, value.args[0])

    def _activation(self, call: ast.Call) -> str | None:
        """``self.relu(v)`` or ``F.relu(v, inplace=True)``."""
        if len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
            return None
        name = dotted(call.func)
        if name is None or not self.is_act(name):
            return None
        allowed = () if name.startswith(f"{self.self_name}.") else ("inplace",)
        if any(one.arg not in allowed for one in call.keywords):
            return None
        return name

    def _path(self, callee: ast.expr) -> str | None:
        name = dotted(callee)
        own = f"{self.self_name}."
        return name if name is not None and name.startswith(own) else None
