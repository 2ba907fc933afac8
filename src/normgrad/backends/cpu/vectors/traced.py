"""Functions run on stand-ins for numbers, which leave instructions: no function to compile."""

import functools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate

from normgrad.backends.cpu.vectors.conversions import F64, I64, spread

_all_types: Any = types  # names that mypy does not see
_TUPLES, _tuple_of = _all_types.BaseTuple, _all_types.Tuple


class Traced:
    """A number, or a vector of them: its type, and its value where instructions are made."""

    def __init__(self, kind: Any, value: Any = None, place: Any = None) -> None:
        self.kind, self.value, self.place = kind, value, place

    def like(self, other: Any) -> "Traced":
        """Another number; in all lanes if it is one and this is a vector."""
        if isinstance(other, Traced) and (self.is_scalar() or not other.is_scalar()):
            return other
        if self.place is None:
            return Traced(self.kind)
        _, builder = self.place
        if isinstance(other, Traced):
            value = other.value
        elif self.is_whole():
            return Traced(self.kind, I64(other), self.place)
        else:
            value = F64(float(other))
        if not self.is_scalar():
            value = value if self.kind.wide else builder.fptrunc(value, self.kind.llvm.element)
            value = spread(builder, value, self.kind.count)
        return Traced(self.kind, value, self.place)

    def is_scalar(self) -> bool:
        """Whether it is one number."""
        return not hasattr(self.kind, "llvm")

    def is_whole(self) -> bool:
        """Whether it is an integer."""
        return isinstance(self.kind, types.Integer)

    def _with(self, other: Any, instruction: str) -> "Traced":
        other = self.like(other)
        assert self.kind == other.kind, (self.kind, other.kind)
        if self.place is None:
            return Traced(self.kind)
        _, builder = self.place
        instruction = instruction if self.is_whole() else f"f{instruction}"
        value = getattr(builder, instruction)(self.value, other.value)
        return Traced(self.kind, value, self.place)

    def __add__(self, other: Any) -> "Traced":
        return self._with(other, "add")

    def __sub__(self, other: Any) -> "Traced":
        return self._with(other, "sub")

    def __mul__(self, other: Any) -> "Traced":
        return self._with(other, "mul")

    def __truediv__(self, other: Any) -> "Traced":
        return self._with(other, "div")

    def __radd__(self, other: float) -> "Traced":
        return self.like(other) + self

    def __rsub__(self, other: float) -> "Traced":
        return self.like(other) - self

    def __rmul__(self, other: float) -> "Traced":
        return self.like(other) * self

    def __rtruediv__(self, other: float) -> "Traced":
        return self.like(other) / self

    def __neg__(self) -> "Traced":
        if self.place is None:
            return self
        assert not self.is_whole()
        return Traced(self.kind, self.place[1].fneg(self.value), self.place)

    def __bool__(self) -> bool:
        msg = "what is traced has no branches"
        raise TypeError(msg)


def _given(values: tuple[Any, ...]) -> tuple[list[Traced], Any]:
    """Arguments of an operation, and where its instructions go.

    A constant is like the last number: choices may be wider than what decides them.
    """
    place = next((one.place for one in values if isinstance(one, Traced)), None)
    numbers = [one for one in values if isinstance(one, Traced) and _is_float(one.kind)]
    given = []
    for index, one in enumerate(values):
        if isinstance(one, float):
            near = numbers[0 if index == 1 else -1] if numbers else Traced(types.float64, 0, place)
            given.append(near.like(one))
        elif isinstance(one, Traced):
            given.append(one)
        elif isinstance(one, int):
            given.append(Traced(types.int64, I64(one), place))
        else:
            given.append(Traced(typeof(one)))
    return given, place


def _is_float(kind: Any) -> bool:
    return kind == types.float64 or hasattr(kind, "llvm")


class Operation:
    """Instructions that kernels name; traced functions call it.

    Numba's own intrinsics are looked up anew for all types that they meet, 0.2 ms each.
    """

    traced: Callable[..., Any] | None = None  # what those call in its place

    def __init__(self, define: Callable[..., Any]) -> None:
        functools.update_wrapper(self, define)
        self.define = define
        template = type(define.__name__, (_Template,), {"key": self})
        self._numba_type_ = _all_types.Function(template)
        lower_builtin(self, _all_types.VarArg(_all_types.Any))(self._lower)

    def _lower(self, context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        _, codegen = self.define(None, *signed.args)
        return codegen(context, builder, signed, arguments)

    def __call__(self, *values: Any) -> Any:
        """On stand-ins."""
        if self.traced is not None:
            return self.traced(*values)
        given, place = _given(values)
        made, codegen = self.define(None, *(one.kind for one in given))
        if place is None:
            return stand_in(made.return_type)
        context, builder = place
        value = codegen(context, builder, made, [one.value for one in given])
        return stand_in(made.return_type, value, place)


class _Template(AbstractTemplate):
    """How an operation is typed."""

    def generic(self, args: Any, kws: Any) -> Any:
        assert not kws
        kinds = tuple(_all_types.unliteral(one) for one in args)
        return self.key.define(None, *kinds)[0]


def intrinsic(define: Callable[..., Any]) -> Operation:
    """As Numba's: from types to a signature and what writes instructions."""
    return Operation(define)


def stand_in(kind: Any, value: Any = None, place: Any = None) -> Any:
    """What stands for a value of a type."""
    if hasattr(kind, "stand_in"):
        return kind.stand_in(value, place)
    if not isinstance(kind, _TUPLES):
        return Traced(kind, value, place)
    parts = (
        None if place is None else place[1].extract_value(value, index)
        for index in range(len(kind))
    )
    return tuple(stand_in(one, part, place) for one, part in zip(kind, parts, strict=True))


def kind_of(result: Any) -> Any:
    """The type of what a traced function returned."""
    if result is None:
        return types.none
    if isinstance(result, tuple):
        return _tuple_of([kind_of(one) for one in result])
    if isinstance(result, Traced):
        return result.kind
    if isinstance(result, bool):
        return types.boolean
    if isinstance(result, float):
        return types.float64
    return typeof(result)


def value_of(result: Any, context: Any, builder: Any) -> Any:
    """The value of what it returned."""
    if isinstance(result, tuple):
        parts = [value_of(one, context, builder) for one in result]
        return context.make_tuple(builder, kind_of(result), parts)
    if isinstance(result, Traced):
        return result.value
    if isinstance(result, bool | float):
        return ir.Constant(ir.IntType(1) if isinstance(result, bool) else F64, result)
    carried = None if result is None else getattr(typeof(result), "carried", None)
    return carried(result) if carried else context.get_dummy_value()


def traced(function: Callable[..., Any]) -> Operation:
    """A part without branches but on constants, as an operation."""

    def define(typingctx: Any, *kinds: Any) -> Any:
        made = kind_of(function(*(stand_in(one) for one in kinds)))

        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            place = context, builder
            values = (stand_in(*one, place) for one in zip(kinds, arguments, strict=True))
            return value_of(function(*values), context, builder)

        return made(*kinds), codegen

    functools.update_wrapper(define, function)
    operation = intrinsic(define)
    operation.traced = function
    return operation
