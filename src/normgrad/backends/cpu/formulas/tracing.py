"""Formulas as Numba sees them: a method is run on stand-ins for numbers, which leave instructions.

As functions that Numba compiles they took a quarter of the time of most kernels: 15 more of each,
40 ms apiece.
"""

from dataclasses import fields, replace
from types import FunctionType
from typing import Any

from llvmlite import ir
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
from normgrad.backends.cpu.vectors.arithmetic import opaque_constant
from normgrad.backends.cpu.vectors.traced import Traced, kind_of, stand_in, value_of

_all_types: Any = types  # names that mypy does not see
_unliteral, _ANY_OTHERS = _all_types.unliteral, _all_types.VarArg(types.Any)


class FormulaType(types.Type):
    """The type of one formula; its values carry nothing."""

    def __init__(self, formula: Formula, what: str = "") -> None:
        self.formula = formula
        kind = type(formula)
        given = (getattr(formula, field.name) for field in fields(formula))
        name = f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(name=" ".join([name, *filter(None, given), *filter(None, [what])]))

    def stand_in(self, value: Any, place: Any) -> Formula:
        """The formula, with what a value carries."""
        return self.formula


class SlopedType(FormulaType):
    """The same of one whose values carry leaky ReLU's slope."""

    def __init__(self, formula: Formula) -> None:
        super().__init__(replace(formula, negative_slope=None), "with its slope")

    def stand_in(self, value: Any, place: Any) -> Formula:
        """With its slope."""
        return replace(self.formula, negative_slope=Traced(types.float64, value, place))

    def carried(self, formula: Formula) -> Any:
        """Its slope."""
        return formula.negative_slope.value


@register_model(SlopedType)
class _SlopedModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: SlopedType) -> None:
        super().__init__(manager, kind, ir.DoubleType())


register_model(FormulaType)(models.OpaqueModel)
opaque_constant(FormulaType)


@typeof_impl.register(Formula)
def _type_of(value: Formula, context: Any) -> FormulaType:
    return (FormulaType if value.negative_slope is None else SlopedType)(value)


def _method(name: str) -> type[AbstractTemplate]:
    """How a method is typed; what it leaves is told below."""

    class Template(AbstractTemplate):
        key = f"normgrad.formula.{name}"

        def generic(self, args: Any, kws: Any) -> Any:
            assert not kws
            kinds = tuple(_unliteral(one) for one in args)
            result = getattr(stand_in(self.this), name)(*(stand_in(one) for one in kinds))
            return signature(kind_of(result), *kinds, recvr=self.this)

    @lower_builtin(Template.key, FormulaType, _ANY_OTHERS)
    def lowered(context: Any, builder: Any, signed: Any, arguments: Any) -> Any:
        place = context, builder
        formula, *values = (
            stand_in(*one, place) for one in zip(signed.args, arguments, strict=True)
        )
        return value_of(getattr(formula, name)(*values), context, builder)

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
