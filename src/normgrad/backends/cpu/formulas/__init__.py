"""Which formula a request has."""

import importlib
from dataclasses import replace
from typing import Final

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.formulas.formula import (
    ConstantStatistics,
    Formula,
    GivenStatistics,
    Norm,
    RootMeanSquare,
    RootMeanSquareGradient,
)
from normgrad.core.operators import Op
from normgrad.core.spec import Spec

__all__ = ["FORMULAS", "Formula", "Norm", "formula_of"]

# Of each operator where it is not the gradient; statistics from the data and constant ones.
FORMULAS: Final[dict[str, tuple[Formula, Formula]]] = {
    Op.RMS_NORM_BACKWARD: (RootMeanSquareGradient(),) * 2,
    Op.BATCH_NORM: (Norm(),) * 2,
    Op.BATCH_NORM_STATS: (Norm(),) * 2,
    Op.BATCH_NORM_ELEMT: (GivenStatistics(),) * 2,
    Op.LAYER_NORM: (Norm(),) * 2,
    Op.GROUP_NORM: (Norm(),) * 2,
    Op.RMS_NORM: (RootMeanSquare(),) * 2,
}
_GRADIENT = Formula(), ConstantStatistics()


def formula_of(spec: Spec, *, constant: bool) -> Formula:
    """What a request computes, with statistics that are constants or depend on the data."""
    formula = FORMULAS.get(spec.op, _GRADIENT)[constant]
    if spec.residual is not None:
        formula = replace(formula, residual=spec.x.dtype)
    if spec.activation is not None:
        formula = replace(formula, activation=spec.activation, dtype=spec.x.dtype)
    return formula


if jit.ENABLED:
    importlib.import_module("normgrad.backends.cpu.formulas.tracing")
