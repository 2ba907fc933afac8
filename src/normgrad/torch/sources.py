"""The source of a method as a tree, and what its statements are."""

import ast
import copy
import functools
import linecache
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import Any, Final, NamedTuple


@functools.lru_cache(maxsize=32)
def _file(name: str) -> tuple[ast.Module, CodeType] | None:
    """What a file says, and its code: a method's depends on what its module imports."""
    try:
        tree = ast.parse("".join(linecache.getlines(name)))
        return tree, compile(tree, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None


def source(method: FunctionType) -> ast.FunctionDef | None:
    """The source of a method, if it is the method's."""
    code = method.__code__
    known = _file(code.co_filename)
    if known is None:
        return None
    tree, compiled = known
    place = code.co_name, code.co_firstlineno
    for one in ast.walk(tree):
        if isinstance(one, ast.FunctionDef) and one.name == place[0]:
            first = one.decorator_list[0] if one.decorator_list else one
            if first.lineno == place[1]:
                alike = any(_alike(each, code) for each in _codes(compiled, place))
                fits = alike and one.args.args and not _private(one)
                return copy.deepcopy(one) if fits else None
    return None


class Wrapped(NamedTuple):
    """A method, and the functions of decorators around it, the outermost first."""

    method: Any  # a FunctionType, which mypy takes for a method of this class
    around: tuple[FunctionType, ...]

    def put(self, method: Any) -> Any:
        """Another method in the place of this one: what the decorators made knows it as a cell."""
        before = self.method
        for one in reversed(self.around):
            cells = (
                CellType(method) if _content(cell) is before else cell
                for cell in one.__closure__ or ()
            )
            code, names = one.__code__, one.__globals__
            made = FunctionType(code, names, one.__name__, one.__defaults__, tuple(cells))
            functools.update_wrapper(made, one)
            made.__kwdefaults__ = one.__kwdefaults__
            made.__wrapped__ = method  # type: ignore[attr-defined]
            before, method = one, made
        return method


def unwrapped(outermost: FunctionType, original: type[Any]) -> Wrapped | None:
    """The method in a class that decorators may have wrapped; None where one does more than that.

    What a base class wraps in each class derived from it, as transformers' checkpointing does, is
    left out: a class that is derived from this one is wrapped again.
    """
    hooks = (vars(cls).get("__init_subclass__") for cls in original.__mro__)
    again = [one.__func__.__code__ for one in hooks if isinstance(one, classmethod)]
    method: FunctionType = outermost
    around: list[FunctionType] = []
    while True:
        inner: Any = getattr(method, "__wrapped__", None)
        if not isinstance(inner, FunctionType):
            return Wrapped(method, tuple(around))
        if not any(method.__code__ in code.co_consts for code in again):
            around.append(method)
            if [_content(cell) is inner for cell in method.__closure__ or ()].count(True) != 1:
                return None
        elif around:
            return None
        method = inner


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _private(function: ast.FunctionDef) -> bool:
    """Whether names are in it that mean others inside of a class."""
    names = {
        one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
        for one in ast.walk(function)
    }
    return any(name.startswith("__") and not name.endswith("__") for name in names)


def _codes(code: CodeType, place: tuple[str, int]) -> Iterator[CodeType]:
    """The code at one place of a file."""
    for one in code.co_consts:
        if isinstance(one, CodeType):
            if (one.co_name, one.co_firstlineno) == place:
                yield one
            yield from _codes(one, place)


def _alike(one: CodeType, other: CodeType) -> bool:
    mine, theirs = one.co_consts, other.co_consts
    return (
        one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and len(mine) == len(theirs)
        and all(
            _alike(left, right)
            if isinstance(left, CodeType) and isinstance(right, CodeType)
            else type(left) is type(right) and (left == right or isinstance(left, CodeType))
            for left, right in zip(mine, theirs, strict=True)
        )
    )


def blocks(function: ast.FunctionDef) -> list[ast.AST]:
    """Statements that hold others, without functions and classes inside."""
    found: list[ast.AST] = []
    rest: list[ast.AST] = list(function.body)
    while rest:
        one = rest.pop()
        if isinstance(one, (ast.If, ast.For, ast.While)):
            found.append(one)
            rest.extend(ast.iter_child_nodes(one))
    return found


class Condition(NamedTuple):
    """``self.flag``, ``not self.flag``, ``self.part is None``: of a module's own attribute.

    Attributes:
        path: Of the attribute, as it is written.
        none: Whether it is compared with None.
        holds: What it must be.
    """

    path: str
    none: bool
    holds: bool

    def met(self, module: Any) -> bool:
        """By a module as it is."""
        for name in self.path.split(".")[1:]:
            module = getattr(module, name, None)
        return (module is None if self.none else bool(module)) is self.holds


def condition(test: ast.expr, self_name: str) -> Condition | None:
    """What a branch asks, if it is no more than an attribute: to read it changes nothing."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = condition(test.operand, self_name)
        return None if found is None else found._replace(holds=not found.holds)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        op, other = test.ops[0], test.comparators[0]
        of_none = isinstance(other, ast.Constant) and other.value is None
        path = dotted(test.left)
        if of_none and isinstance(op, (ast.Is, ast.IsNot)) and path is not None:
            found = Condition(path, True, isinstance(op, ast.Is))
            return found if path.startswith(f"{self_name}.") else None
        return None
    path = dotted(test)
    if path is None or not path.startswith(f"{self_name}."):
        return None
    return Condition(path, False, True)


def first_call(statement: ast.stmt, name: str) -> ast.Call | None:
    """The call of v alone that a statement makes before it does anything else."""
    if not isinstance(statement, (ast.Assign, ast.Return, ast.Expr)):
        return None
    one: ast.expr | None = statement.value
    while one is not None:
        if isinstance(one, ast.BinOp):
            one = one.right if dotted(one.left) is not None else one.left
        elif isinstance(one, ast.Call) and dotted(one.func) is not None and one.args:
            if len(one.args) == 1 and not one.keywords and is_name(one.args[0], name):
                return one
            one = one.args[0]
        else:
            return None
    return None


LEAVING: Final = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def branches(statement: ast.If) -> list[list[ast.stmt]]:
    """The bodies of which one runs, the empty one too."""
    if len(statement.orelse) == 1 and isinstance(statement.orelse[0], ast.If):
        return [statement.body, *branches(statement.orelse[0])]
    return [statement.body, statement.orelse]


def dotted(one: ast.expr) -> str | None:
    """``a.b.c`` as it is written; None for anything else."""
    if isinstance(one, ast.Name):
        return one.id
    if isinstance(one, ast.Attribute):
        base = dotted(one.value)
        return None if base is None else f"{base}.{one.attr}"
    return None


def is_name(one: ast.AST, name: str) -> bool:
    """Whether it is this name alone."""
    return isinstance(one, ast.Name) and one.id == name


def mentions(one: ast.AST, name: str) -> bool:
    """Whether the name is anywhere in it."""
    return any(is_name(each, name) for each in ast.walk(one))


def assigned(statement: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """The name and the value of ``v = value``."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Name):
            return target.id, statement.value
    return None, None


def addition(statement: ast.stmt, name: str) -> tuple[ast.expr, bool] | None:
    """What ``v += y``, ``v = v + y`` or ``v = y + v`` adds, and whether in place."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return (statement.value, True) if is_name(statement.target, name) else None
    target, value = assigned(statement)
    if target != name or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for one, other in ((value.left, value.right), (value.right, value.left)):
        if is_name(one, name):
            return other, False
    return None


def harmless(statement: ast.stmt, operand: ast.expr, name: str) -> bool:
    """Whether a statement may come before a norm that it stood behind.

    It assigns to names that the norm's operand does not have, writes nothing in place, and goes on.
    """
    for one in ast.walk(statement):
        if isinstance(one, (ast.AugAssign, ast.Return, ast.Break, ast.Continue, ast.Raise)):
            return False
        if isinstance(one, (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)):
            return False
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            return False
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
            return False
        if isinstance(one, ast.Attribute) and one.attr.endswith("_"):
            return False
        if isinstance(one, ast.Name) and one.id != name and mentions(operand, one.id):
            # What it reads may be the operand itself, which a module may write in place.
            if not dotted(operand) and one.id == "self":
                continue
            return False
    return isinstance(statement, (ast.Assign, ast.If))
