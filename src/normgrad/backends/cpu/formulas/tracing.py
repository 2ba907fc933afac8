"""Formulas as Numba sees them: a method is run on stand-ins for numbers, which leave instructions.

As functions that Numba compiles they took a quarter of the time of most kernels: 15 more of each,
40 ms apiece.
"""

from dataclasses import fields, replace
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import typeof
from numba.core import types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    signature,
)
from numba.extending import models, register_model, typeof_impl

from normgrad.backends.cpu.formulas.formula import Formula
from normgrad.backends.cpu.vectors.arithmetic import LanesType, opaque_constant, spread

_all_types: Any = types  # names that mypy does not see
_TUPLES, _tuple_of = _all_types.BaseTuple, _all_types.Tuple
_unliteral, _ANY_OTHERS = _all_types.unliteral, _all_types.VarArg(types.Any)


class FormulaType(types.Type):
    """The type of one formula; its values carry nothing."""

    def __init__(self, formula: Formula, what: str = "") -> None:
        self.formula = formula
        kind = type(formula)
        given = (getattr(formula, field.name) for field in fields(formula))
        name = f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(name=" ".join([name, *filter(None, given), *filter(None, [what])]))


class SlopedType(FormulaType):
    """The same of one whose values carry leaky ReLU's slope."""

    def __init__(self, formula: Formula) -> None:
        super().__init__(replace(formula, negative_slope=None), "with its slope")


@register_model(SlopedType)
class _SlopedModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: SlopedType) -> None:
        super().__init__(manager, kind, ir.DoubleType())


register_model(FormulaType)(models.OpaqueModel)
opaque_constant(FormulaType)
typeof_impl.register(Formula)(lambda value, context: FormulaType(value))


class Traced:
    """A number, or a vector of them: its type, and its value where instructions are made."""

    def __init__(self, kind: Any, value: Any = None, place: Any = None) -> None:
        self.kind, self.value, self.place = kind, value, place

    def like(self, other: Any) -> "Traced":
        """Another number; in all lanes if it is one and this is a vector."""
        if isinstance(other, Traced) and (isinstance(other.kind, LanesType) or self.is_scalar()):
            return other
        if self.place is None:
            return Traced(self.kind)
        _, builder = self.place
        value = other.value if isinstance(other, Traced) else ir.DoubleType()(other)
        if not self.is_scalar():
            value = value if self.kind.wide else builder.fptrunc(value, self.kind.llvm.element)
            value = spread(builder, value, self.kind.count)
        return Traced(self.kind, value, self.place)

    def is_scalar(self) -> bool:
        """Whether it is one number."""
        return not isinstance(self.kind, LanesType)

    def _with(self, other: "Traced | float", instruction: str) -> "Traced":
        other = self.like(other)
        assert self.kind == other.kind, (self.kind, other.kind)
        if self.place is None:
            return Traced(self.kind)
        _, builder = self.place
        value = getattr(builder, instruction)(self.value, other.value)
        return Traced(self.kind, value, self.place)

    def __add__(self, other: "Traced | float") -> "Traced":
        return self._with(other, "fadd")

    def __sub__(self, other: "Traced | float") -> "Traced":
        return self._with(other, "fsub")

    def __mul__(self, other: "Traced | float") -> "Traced":
        return self._with(other, "fmul")

    def __truediv__(self, other: "Traced | float") -> "Traced":
        return self._with(other, "fdiv")

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
        return Traced(self.kind, self.place[1].fneg(self.value), self.place)

    def apply(self, intrinsic: Any, values: tuple[Any, ...]) -> "Traced":
        """An operation of `vectors` on these, of which this is the first number."""
        # A constant is like the last one: choices may be wider than what decides them.
        last = next(one for one in reversed(values) if isinstance(one, Traced))
        values = tuple(
            (self if index == 1 else last).like(one) if isinstance(one, float) else one
            for index, one in enumerate(values)
        )
        others = (one if isinstance(one, Traced) else Traced(typeof(one)) for one in values)
        values = tuple(others)
        made, codegen = intrinsic._defn(None, *(value.kind for value in values))
        if self.place is None:
            return Traced(made.return_type)
        context, builder = self.place
        value = codegen(context, builder, made, [value.value for value in values])
        return Traced(made.return_type, value, self.place)


def _stand_in(kind: Any, value: Any = None, place: Any = None) -> Any:
    if not isinstance(kind, _TUPLES):
        return Traced(kind, value, place)
    parts = (
        None if place is None else place[1].extract_value(value, index)
        for index in range(len(kind))
    )
    return tuple(_stand_in(one, part, place) for one, part in zip(kind, parts, strict=True))


def _kind(result: Any) -> Any:
    if isinstance(result, tuple):
        return _tuple_of([_kind(one) for one in result])
    if isinstance(result, Traced):
        return result.kind
    if isinstance(result, Formula):
        return (FormulaType if result.negative_slope is None else SlopedType)(result)
    return types.boolean if isinstance(result, bool) else types.float64


def _value(result: Any, context: Any, builder: Any) -> Any:
    if isinstance(result, tuple):
        parts = [_value(one, context, builder) for one in result]
        return context.make_tuple(builder, _kind(result), parts)
    if isinstance(result, Traced):
        return result.value
    if isinstance(result, Formula):
        slope = result.negative_slope
        return context.get_dummy_value() if slope is None else slope.value
    kind = ir.IntType(1) if isinstance(result, bool) else ir.DoubleType()
    return ir.Constant(kind, result)


def _formula(kind: FormulaType, value: Any = None, place: Any = None) -> Formula:
    """The formula of a type, with what its values carry."""
    if not isinstance(kind, SlopedType):
        return kind.formula
    return replace(kind.formula, negative_slope=Traced(types.float64, value, place))


def _method(name: str) -> type[AbstractTemplate]:
    """How a method is typed; what it leaves is told below."""

    class Template(AbstractTemplate):
        key = f"normgrad.formula.{name}"

        def generic(self, args: Any, kws: Any) -> Any:
            assert not kws
            kinds = tuple(_unliteral(one) for one in args)
            result = getattr(_formula(self.this), name)(*(_stand_in(one) for one in kinds))
            return signature(_kind(result), *kinds, recvr=self.this)

    @lower_builtin(Template.key, FormulaType, _ANY_OTHERS)
    def lowered(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        form, *kinds = signed.args
        place = context, builder
        values = (
            _stand_in(kind, value, place) for kind, value in zip(kinds, arguments[1:], strict=True)
        )
        formula = _formula(form, arguments[0], place)
        return _value(getattr(formula, name)(*values), context, builder)

    return Template


_METHODS = {
    name: _method(name)
    for name, one in vars(Formula).items()
    if isinstance(one, FunctionType) and name[0] != "_"
}


@infer_getattr
class _Methods(AttributeTemplate):
    key = FormulaType

    def generic_resolve(self, form: Any, attr: str) -> Any:
        template = _METHODS.get(attr)
        if template is None:
            return None
        return types.BoundFunction(type(attr, (template,), {"this": form}), form)
