"""Methods of a model's classes with nodes in the place of a norm and what follows it.

What is looked for are neighbours in the source, ``act`` a module or a function:

    act(self.norm(x))   act(self.norm(x) + y)   self.norm(x) + y
    v = self.norm(x); v = self.drop(v); v += y; v = act(v)   with other statements between
    if ...: v = self.norm(x)   else: ...   and then   v = act(v)
    v = self.norm(x)   and then   if self.flag: v = self.drop(v) + y
    v = x + y; w = v; v = self.norm(v)   the norm after the sum

The rest of a method stays as it is. A source is believed if it compiles to the very code of the
method.
"""

import __future__

import ast
import copy
import itertools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Final, NamedTuple, TypeGuard

from normgrad.torch.sources import (
    LEAVING,
    Condition,
    addition,
    assigned,
    blocks,
    branches,
    condition,
    dotted,
    first_call,
    harmless,
    is_name,
    mentions,
    source,
)

NODE: Final = "_normgrad_node"
SUM_NODE: Final = "_normgrad_sum_node"
_NORMED: Final = "_normgrad_normed"
_MAKER: Final = "_normgrad_maker"


class Found(NamedTuple):
    """One place: the paths of the norm and the activation from ``self``, as written.

    Attributes:
        norm: The norm's.
        act: The activation's; None where a sum alone is taken.
        with_shortcut: Whether a sum comes between, or after the norm.
        between: Paths of what stands between and must do nothing.
        when: What must hold for the place to be met, where that is an attribute.
        after_sum: Whether the sum comes before the norm.
    """

    norm: str
    act: str | None
    with_shortcut: bool
    between: tuple[str, ...] = ()
    when: Condition | None = None
    after_sum: bool = False


class Rewritten(NamedTuple):
    """A method with nodes, and where they stand."""

    method: Callable[..., Any]
    places: tuple[Found, ...]


Kinds = Callable[[str], bool]  # whether what stands at a path from self is one


class Looked(NamedTuple):
    """What is looked for, by paths from self as ``self.relu``; activations by globals too.

    Attributes:
        is_norm: A norm that an activation may follow.
        adds: One that a sum may follow.
        after_sum: One that a sum may stand before.
        is_act: An activation.
    """

    is_norm: Kinds
    adds: Kinds
    after_sum: Kinds
    is_act: Kinds


Nodes = tuple[Callable[..., Any], Callable[..., Any]]  # for a norm and for a sum before one


def rewritten(method: Any, looked: Looked, nodes: Nodes) -> Rewritten | None:
    """A method with nodes; None where there is no place for one, or the source is not its own."""
    if not isinstance(method, FunctionType) or method.__closure__ or hasattr(method, "__wrapped__"):
        return None
    function = source(method)
    if function is None:
        return None
    writer = _Writer(function.args.args[0].arg, looked)
    writer.write(function)
    if not writer.places:
        return None
    made = _made(function, method, nodes)
    return Rewritten(made, tuple(writer.places))


def _made(function: ast.FunctionDef, method: FunctionType, nodes: Nodes) -> Any:
    """The function in its module's own globals, which sees the nodes beside them."""
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
        args=ast.arguments([], [ast.arg(NODE), ast.arg(SUM_NODE)], None, [], [], None, []),
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
    made = names[_MAKER](*nodes)
    made.__defaults__, made.__kwdefaults__ = method.__defaults__, method.__kwdefaults__
    made.__annotations__, made.__doc__ = dict(method.__annotations__), method.__doc__
    made.__qualname__, made.__module__ = method.__qualname__, method.__module__
    return made


def _is_sum(value: ast.AST | None) -> TypeGuard[ast.BinOp]:
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)


def _sum_node(call: ast.Call, total: ast.BinOp) -> ast.Call:
    """A norm's call with its sum."""
    return ast.Call(ast.Name(SUM_NODE, ast.Load()), [call.func, total.left, total.right], [])


class _Swapped(ast.NodeTransformer):
    """Puts a name in the place of a call."""

    def __init__(self, call: ast.Call, name: ast.Name) -> None:
        self.call, self.name = call, name

    def visit_Call(self, call: ast.Call) -> ast.AST:
        """The one call."""
        return self.name if call is self.call else self.generic_visit(call)


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

    def __init__(self, self_name: str, looked: Looked) -> None:
        self.self_name, self.looked = self_name, looked
        self.places: list[Found] = []
        self.captured: set[str] = set()  # names that functions inside know
        self.when: Condition | None = None

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
        for work in (self._raise, self._sink, self._statements, self._sums):
            for holder in holders:
                for field in ("body", "orelse", "finalbody"):
                    body = getattr(holder, field, None)
                    if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                        self.when = self._condition(holder, field)
                        work(body)
        self.when = None
        function.body = [self.visit(one) for one in function.body]

    def _condition(self, holder: ast.AST, field: str) -> Condition | None:
        found = condition(holder.test, self.self_name) if isinstance(holder, ast.If) else None
        if found is None or field == "body":
            return found
        return found._replace(holds=not found.holds)

    def visit_FunctionDef(self, function: ast.FunctionDef) -> ast.AST:
        """What is called later is left alone."""
        return function

    def visit_Lambda(self, function: ast.Lambda) -> ast.AST:
        """Likewise."""
        return function

    def visit_If(self, branch: ast.If) -> ast.AST:
        """What is inside is met when its condition holds."""
        outside = self.when
        branch.test = self.visit(branch.test)
        for field in ("body", "orelse"):
            self.when = self._condition(branch, field)
            setattr(branch, field, [self.visit(one) for one in getattr(branch, field)])
        self.when = outside
        return branch

    def visit_Call(self, call: ast.Call) -> ast.AST:
        """``act(self.norm(x))`` and ``act(self.norm(x) + y)``."""
        act = self._activation(call)
        if act is not None:
            norm, added = self._norm(call.args[0]), None
            found = (norm, added) if norm is not None else self._sum(call.args[0])
            if found is not None:
                return self.generic_visit(self._node(_Pending(found[0], [], found[1], False), call))
            return self.generic_visit(call)
        path = self._path(call.func)
        if path is not None and len(call.args) == 1 and not call.keywords:
            total = call.args[0]
            if _is_sum(total) and self.looked.after_sum(path):  # whose own value nobody reads
                self.places.append(Found(path, None, False, (), self.when, after_sum=True))
                made = ast.Subscript(_sum_node(call, total), ast.Constant(1), ast.Load())
                return self.generic_visit(ast.copy_location(made, call))
        return self.generic_visit(call)

    def visit_BinOp(self, operation: ast.BinOp) -> ast.AST:
        """``self.norm(x) + y``."""
        found = self._sum(operation)
        if found is None:
            return self.generic_visit(operation)
        return self.generic_visit(self._node(_Pending(found[0], [], found[1], False), operation))

    def _raise(self, body: list[ast.stmt]) -> None:
        """A norm before a branch in which it is added to something goes into the branch."""
        for place, statement in enumerate(body):
            name, value = assigned(statement)
            norm = None if name is None else self._norm(value)
            if norm is None or name is None or name in self.captured:
                continue
            end = place + 1
            while end < len(body) and self._passed(body[end], name) is not None:
                end += 1
            after = body[end] if end < len(body) else None
            if not isinstance(after, ast.If) or condition(after.test, self.self_name) is None:
                continue
            if mentions(after.test, name) or not self.looked.adds(norm.path):
                continue
            ways = (after.body, after.orelse)
            if any(self._added(one, name) is not None for way in ways for one in way):
                for way in ways:
                    way[:0] = copy.deepcopy(body[place:end])
                for gone in range(place, end):
                    body[gone] = ast.copy_location(ast.Pass(), body[gone])

    def _sink(self, body: list[ast.stmt]) -> None:
        """An activation behind branches of which one ends in a norm goes into each of them."""
        for place, (statement, after) in enumerate(itertools.pairwise(body)):
            name, value = assigned(after)
            if isinstance(after, ast.Return):
                value = after.value
            if not isinstance(statement, ast.If) or not isinstance(value, ast.Call):
                continue
            if self._activation(value) is None or not isinstance(value.args[0], ast.Name):
                continue
            if name not in (None, value.args[0].id):
                continue
            name = value.args[0].id
            ways = branches(statement)
            if any(branch and self._ends_in_norm(branch, name) for branch in ways):
                for branch in ways:
                    if not branch or not isinstance(branch[-1], LEAVING):
                        branch.append(copy.deepcopy(after))
                body[place + 1] = ast.copy_location(ast.Pass(), after)

    def _ends_in_norm(self, branch: list[ast.stmt], name: str) -> bool:
        target, last = assigned(branch[-1])
        if target == name and (self._norm(last) is not None or self._sum(last) is not None):
            return True
        # Raised: a norm, then a sum.
        before = [assigned(one) for one in branch[:-1]]
        added = self._added(branch[-1], name)
        return added is not None and any(
            target == name and self._norm(value) is not None for target, value in before[-1:]
        )

    def _statements(self, body: list[ast.stmt]) -> None:
        for start, statement in enumerate(body):
            name, value = assigned(statement)
            if name is None or name in self.captured:
                continue
            norm = self._norm(value)
            if norm is None:
                self._inline(body, start, name, value)
                continue
            end = self._follow(body, start, name, norm)
            if end is not None:
                place, made = end
                first = ast.Assign([ast.Name(name, ast.Store())], norm.operand)
                body[start] = ast.copy_location(first, statement)
                last: ast.stmt = ast.Assign([ast.Name(name, ast.Store())], made)
                if isinstance(body[place], ast.Return):
                    last = ast.Return(made)
                for gone in range(start + 1, place):
                    if mentions(body[gone], name):
                        body[gone] = ast.copy_location(ast.Pass(), body[gone])
                body[place] = ast.copy_location(last, body[place])

    def _inline(self, body: list[ast.stmt], start: int, name: str, value: ast.expr | None) -> None:
        """``v = self.norm(x) + y`` right before its activation goes into that."""
        if self._sum(value) is None or start + 1 == len(body):
            return
        after = body[start + 1]
        target, call = assigned(after)
        if isinstance(after, ast.Return):
            target, call = name, after.value
        if target != name or not isinstance(call, ast.Call) or value is None:
            return
        if self._activation(call) is not None and is_name(call.args[0], name):
            call.args[0] = value
            body[start] = ast.copy_location(ast.Pass(), body[start])

    def _sums(self, body: list[ast.stmt]) -> None:
        """``v = x + y`` before ``self.norm(v)``, with no more than other names for v between."""
        for start, statement in enumerate(body):
            name, value = assigned(statement)
            if name is None or not _is_sum(value):
                continue
            for after in body[start + 1 :]:
                target, renamed = assigned(after)
                if target is not None and target != name and is_name(renamed or after, name):
                    continue
                call = first_call(after, name)
                path = None if call is None else self._path(call.func)
                if call is not None and path is not None and self.looked.after_sum(path):
                    normed = f"{_NORMED}{len(self.places)}"
                    made = _sum_node(call, value)
                    targets: list[ast.expr] = [ast.Name(one, ast.Store()) for one in (name, normed)]
                    both = ast.Assign([ast.Tuple(targets, ast.Store())], made)
                    body[start] = ast.copy_location(both, statement)
                    place = body.index(after)
                    body[place] = _Swapped(call, ast.Name(normed, ast.Load())).visit(after)
                    self.places.append(Found(path, None, False, (), self.when, after_sum=True))
                break

    def _follow(
        self, body: Sequence[ast.stmt], start: int, name: str, norm: _Call
    ) -> tuple[int, ast.expr] | None:
        """Where the activation stands that takes a norm's result, and the node."""
        state = _Pending(norm, [], None, False)
        summed: int | None = None
        for place in range(start + 1, len(body)):
            statement = body[place]
            if not mentions(statement, name):
                if state.shortcut is not None or not harmless(statement, norm.operand, name):
                    break
                continue
            added = None if summed is not None else self._added(statement, name)
            if added is not None:
                if not self.looked.adds(norm.path):
                    break
                other, in_place, through = added
                between = state.between if through is None else [*state.between, through]
                state, summed = _Pending(norm, between, other, in_place), place
                continue
            target, value = assigned(statement)
            if isinstance(statement, ast.Return):
                value = statement.value
            call = value if isinstance(value, ast.Call) else None
            ends = target == name or isinstance(statement, ast.Return)
            met = ends and call is not None and self._activation(call) is not None
            if met and call is not None and is_name(call.args[0], name):
                now = norm._replace(operand=ast.Name(name, ast.Load()))
                return place, self._node(state._replace(norm=now), call)
            passed = self._passed(statement, name)
            if passed is None or summed is not None:
                break
            state.between.append(passed)
        if summed is None:
            return None
        now = norm._replace(operand=ast.Name(name, ast.Load()))  # no activation follows the sum
        return summed, self._node(state._replace(norm=now), body[summed])

    def _added(
        self, statement: ast.stmt, name: str
    ) -> tuple[ast.expr, bool, ast.expr | None] | None:
        """What is added to v, whether in place, and what v goes through before."""
        added = addition(statement, name)
        if added is not None:
            return None if mentions(added[0], name) else (*added, None)
        target, value = assigned(statement)
        if target != name or not _is_sum(value):
            return None
        for one, other in ((value.left, value.right), (value.right, value.left)):
            through = self._through(one, name)
            if through is not None and not mentions(other, name):
                return other, False, through
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
        through = None if target != name else self._through(value, name)
        if guard is not None and (through is None or ast.dump(guard) != ast.dump(through)):
            return None
        return through

    def _through(self, value: ast.expr | None, name: str) -> ast.expr | None:
        """``self.drop`` of ``self.drop(v)``."""
        if not isinstance(value, ast.Call) or value.keywords or len(value.args) != 1:
            return None
        if not is_name(value.args[0], name) or self._path(value.func) is None:
            return None
        return value.func

    def _node(self, found: _Pending, end: ast.AST) -> ast.expr:
        """In the place of an activation's call, or of a sum that none follows."""
        act = self._activation(end) if isinstance(end, ast.Call) else None
        call = end if isinstance(end, ast.Call) and act is not None else None
        between = tuple(path for one in found.between if (path := self._path(one)) is not None)
        shortcut = found.shortcut is not None
        self.places.append(Found(found.norm.path, act, shortcut, between, self.when))
        keywords = [] if call is None else list(call.keywords)
        if found.shortcut is not None:
            keywords.append(ast.keyword("shortcut", found.shortcut))
            keywords.append(ast.keyword("in_place", ast.Constant(found.in_place)))
        if found.between:
            keywords.append(ast.keyword("between", ast.Tuple(found.between, ast.Load())))
        called = ast.Constant(None) if call is None else call.func
        arguments = [found.norm.callee, called, found.norm.operand]
        made = ast.Call(ast.Name(NODE, ast.Load()), arguments, keywords)
        return ast.copy_location(made, end)

    def _norm(self, value: ast.expr | None) -> _Call | None:
        if not isinstance(value, ast.Call) or len(value.args) != 1 or value.keywords:
            return None
        path = self._path(value.func)
        if path is None or isinstance(value.args[0], ast.Starred) or not self.looked.is_norm(path):
            return None
        return _Call(path, value.func, value.args[0])

    def _sum(self, value: ast.AST | None) -> tuple[_Call, ast.expr] | None:
        """``self.norm(x) + y``: the norm, and what is added; of two norms the later."""
        if not _is_sum(value):
            return None
        for one, other in ((value.right, value.left), (value.left, value.right)):
            norm = self._norm(one)
            if norm is not None and self.looked.adds(norm.path):
                return norm, other
        return None

    def _activation(self, call: ast.Call) -> str | None:
        """``self.relu(v)`` or ``F.relu(v, inplace=True)``."""
        if len(call.args) != 1 or isinstance(call.args[0], ast.Starred):
            return None
        name = dotted(call.func)
        if name is None or not self.looked.is_act(name):
            return None
        allowed = () if name.startswith(f"{self.self_name}.") else ("inplace",)
        if any(one.arg not in allowed for one in call.keywords):
            return None
        return name

    def _path(self, callee: ast.expr) -> str | None:
        name = dotted(callee)
        own = f"{self.self_name}."
        return name if name is not None and name.startswith(own) else None
