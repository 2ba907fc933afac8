"""RMS norm over the last axis."""

from collections.abc import Mapping
from typing import Final

from normgrad.core.operators import Op
from normgrad.core.spec import TensorSpec
from normgrad.infiniop.functions import functions
from normgrad.infiniop.rules import FLOATS, Given, Rule, axes, last_stride_1, one_of, same_type
from normgrad.infiniop.status import BAD_DTYPE, fail
from normgrad.infiniop.table import Fields, Number, Operator, Tensor


def weight_fits(name: str, data: str) -> Rule:
    """Beside 16-bit data any of the three types, else the data's own."""

    def rule(given: Given) -> None:
        kind = given[data].dtype
        allowed = FLOATS if kind in ("float16", "bfloat16") else (kind,)
        if given[name].dtype not in allowed:
            listed = ", ".join(allowed)
            rule = f"must be of type {listed} beside {data} of {kind}"
            fail(BAD_DTYPE, f"{name} {rule}, got {given[name].dtype}")

    return rule


def over_the_last_axis(tensors: Mapping[str, TensorSpec], fields: Fields) -> None:
    """What is normalized together is one row."""
    fields["normalized_shape"] = fields["x"].shape[-1:]


RMS_NORM: Final = Operator(
    "RMSNorm",
    Op.RMS_NORM,
    "RMS norm over the last axis",
    (
        Tensor("y", "y", "rows", "Result, like ``x``.", written=True),
        Tensor("x", "x", "rows", "2 or 3 axes, last stride 1; F16, BF16, F32 or F64."),
        Tensor(
            "w",
            "gamma",
            "tail",
            "As many elements as a row, stride 1; F16, BF16 or F32 beside 16-bit data, else x's "
            "type.",
        ),
    ),
    rules=(
        one_of(("x",), (*FLOATS, "float64")),
        same_type("x", "y"),
        weight_fits("w", "x"),
        axes(("y", "x"), (2, 3), "2 or 3 axes"),
        axes(("w",), (1,), "one axis"),
    ),
    stride_rules=(last_stride_1("y", "x", "w"),),
    numbers=(Number("epsilon", "eps", 1e-6, "Added to the mean of the squares."),),
    adapt=over_the_last_axis,
)

ADD_RMS_NORM: Final = Operator(
    "AddRMSNorm",
    Op.RMS_NORM,
    "RMS norm of a sum over the last axis",
    (
        Tensor("y", "y", "rows", "Result, like ``a``.", written=True),
        Tensor("residual_out", "sum", "rows", "Result, like ``a``: the sum.", written=True),
        Tensor("a", "x", "rows", "2 or 3 axes, last stride 1; F16, BF16, F32 or F64."),
        Tensor("b", "residual", "rows", "What is added to it, alike."),
        Tensor("weight", "gamma", "tail", "As many elements as a row, as RMSNorm has it."),
    ),
    rules=(
        one_of(("a",), (*FLOATS, "float64")),
        same_type("a", "b", "y", "residual_out"),
        weight_fits("weight", "a"),
        axes(("y", "residual_out", "a", "b"), (2, 3), "2 or 3 axes"),
        axes(("weight",), (1,), "one axis"),
    ),
    stride_rules=(last_stride_1("y", "residual_out", "a", "b", "weight"),),
    numbers=(Number("epsilon", "eps", 1e-6, "Added to the mean of the squares."),),
    adapt=over_the_last_axis,
    notes="The sum is rounded to its type, and what was rounded is normalized.",
)

(
    infiniopAddRMSNormDescriptor_t,
    infiniopCreateAddRMSNormDescriptor,
    infiniopGetAddRMSNormWorkspaceSize,
    infiniopAddRMSNorm,
    infiniopDestroyAddRMSNormDescriptor,
) = functions(ADD_RMS_NORM)
(
    infiniopRMSNormDescriptor_t,
    infiniopCreateRMSNormDescriptor,
    infiniopGetRMSNormWorkspaceSize,
    infiniopRMSNorm,
    infiniopDestroyRMSNormDescriptor,
) = functions(RMS_NORM)
