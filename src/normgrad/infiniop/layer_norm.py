"""Layer norm over the last axis, with what was normalized and its deviation as results."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from normgrad.core.operators import Op
from normgrad.core.spec import Spec, TensorSpec
from normgrad.device.chain import Step
from normgrad.infiniop.functions import functions
from normgrad.infiniop.rules import FLOATS, Given, axes, one_of, same_type
from normgrad.infiniop.status import BAD_SHAPE, fail
from normgrad.infiniop.table import Fields, Number, Operator, Steps, Tensor

_RESULTS: Final = ("output", "input_standardization", "input_std_deviation")


def shapes_of_results(given: Given) -> None:
    """Xhat is like input; the deviation has input's leading sizes."""
    shape = given["input"].shape
    for name, expected in zip(_RESULTS[1:], (shape, shape[:-1]), strict=True):
        if given[name].shape != expected:
            fail(BAD_SHAPE, f"{name} must have the shape {expected}, got {given[name].shape}")


def output_alone(tensors: Mapping[str, TensorSpec], fields: Fields) -> None:
    """The request for the output; the others are made beside it."""
    fields["normalized_shape"] = fields["x"].shape[-1:]
    del fields["sum"], fields["dsum"]


def with_xhat_and_deviation(tensors: Mapping[str, TensorSpec], spec: Spec) -> Steps:
    """Xhat is a norm without weight; a deviation is the root mean square of one number's inverse.

    Xhat goes to scratch memory first: it may lie over what is still to be read.
    """
    x, deviation = spec.x, tensors["input_std_deviation"]
    xhat = TensorSpec.contiguous(x.shape, x.dtype)
    rstd = TensorSpec.contiguous((*x.shape[:-1], 1), "float32")
    plain = replace(spec, gamma=None, beta=None, y=xhat, rstd=rstd)
    inverse = Spec(
        op=Op.RMS_NORM, x=rstd, rstd=deviation, normalized_shape=(1,), device=spec.device
    )
    steps = (
        Step(plain, {"y": "xhat", "rstd": "rstd"}),
        Step(spec, {}),
        Step(inverse, {"x": "rstd"}, {"rstd": "dsum"}),
    )
    return steps, {"xhat": ("sum", tensors["input_standardization"])}


LAYER_NORM: Final = Operator(
    "LayerNorm",
    Op.LAYER_NORM,
    "layer norm over the last axis",
    (
        Tensor("output", "y", "rows", "Result, like ``input``.", written=True),
        Tensor(
            "input_standardization",
            "sum",
            "rows",
            "Result, like ``input``: ``(input - mean) / deviation``.",
            written=True,
        ),
        Tensor(
            "input_std_deviation",
            "dsum",
            "statistics",
            "Result, of the leading sizes: ``sqrt(variance + eps)``, not its inverse.",
            written=True,
        ),
        Tensor("input", "x", "rows", "1 to 8 axes, any strides; F16, F32 or BF16."),
        Tensor("weight", "gamma", "tail", "As many elements as a row."),
        Tensor("bias", "beta", "tail", "Alike; may be null.", required=False),
    ),
    rules=(
        one_of((*_RESULTS, "input", "weight", "bias"), FLOATS),
        same_type("input", *_RESULTS, "weight", "bias"),
        axes(("input",), tuple(range(1, 9)), "1 to 8 axes"),
        axes(("weight", "bias"), (1,), "one axis"),
        shapes_of_results,
    ),
    stride_rules=(),
    numbers=(Number("eps", "eps", 1e-5, "Added to the variance."),),
    adapt=output_alone,
    chain=with_xhat_and_deviation,
    notes="All six are of one type.",
)

(
    infiniopLayerNormDescriptor_t,
    infiniopCreateLayerNormDescriptor,
    infiniopGetLayerNormWorkspaceSize,
    infiniopLayerNorm,
    infiniopDestroyLayerNormDescriptor,
) = functions(LAYER_NORM)
