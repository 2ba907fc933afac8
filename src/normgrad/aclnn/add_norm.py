"""Norms of a sum of two tensors."""

from dataclasses import replace
from typing import Final

from normgrad.aclnn.constants import ACL_FLOAT
from normgrad.aclnn.dtypes import dtype_name
from normgrad.aclnn.request import Request
from normgrad.aclnn.rms_norm import covered_by_gamma
from normgrad.aclnn.rules import (
    Call,
    gamma_has_axes,
    one_of,
    same_type,
    statistics_of_rows,
)
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, NULLPTR, TILING, fail
from normgrad.aclnn.table import Page, operand, option, result, updated
from normgrad.core.operators import Op
from normgrad.core.spec import Spec, TensorSpec
from normgrad.device.chain import Step

_LACKS: Final = ("atlas-200i-500-a2", "atlas-training")
_CONST: Final = "const aclTensor*"  # the results are const, too
_EPSILON: Final = option("epsilon", "double", "eps", 1e-6, "Added to the mean of the squares.")
_ZERO: Final = "dshortcut"  # a role that no norm of a sum has
_GAMMA: Final = operand("gamma", "gamma", "tail", "The weight; its shape is the last sizes of x1.")
_RSTD: Final = "Result, FLOAT, of the shape of x1 with ones for the axes of ``gamma``."


def rstd_with_sum(call: Call) -> None:
    """There is no rstdOut without xOut."""
    if "rstdOut" in call.tensors and "xOut" not in call.tensors:
        fail(NULLPTR, "xOut must not be null where rstdOut is given")


def of_one_row(call: Call, request: Request) -> None:
    """Gamma of shape (1, D) covers a row of D, where no rstdOut says which axes it covers."""
    gamma: TensorSpec = request.fields["gamma"]
    if len(gamma.shape) == 2 and gamma.shape[0] == 1 and "rstdOut" not in call.tensors:
        row = TensorSpec(gamma.shape[1:], gamma.strides[1:], gamma.dtype)
        request.fields["gamma"] = row
        request.fields["normalized_shape"] = row.shape
        request.names["normalized_shape"] = "gamma's shape"
    else:
        covered_by_gamma(call, request)


ADD_RMS_NORM: Final = Page(
    "aclnnAddRmsNorm",
    Op.RMS_NORM,
    "RMS norm of a sum",
    (
        operand("x1", "x", "data", "1 to 8 axes; FLOAT, FLOAT16 or BF16."),
        operand("x2", "residual", "data", "What is added to it, alike."),
        _GAMMA,
        _EPSILON,
        result("yOut", "y", "data", "Result, like ``x1``."),
        result(
            "rstdOut",
            "rstd",
            "rows",
            f"{_RSTD} May be null.",
            required=False,
            types=(ACL_FLOAT,),
        ),
        result(
            "xOut",
            "sum",
            "data",
            "Result, like ``x1``: the sum; may be null without ``rstdOut``.",
            required=False,
        ),
    ),
    rules=(rstd_with_sum, gamma_has_axes, statistics_of_rows("x1", "rstdOut")),
    lacks=_LACKS,
    adapt=of_one_row,
    one_type=True,
    notes="The sum is rounded to its type, and what was rounded is normalized.",
)

INPLACE_ADD_RMS_NORM: Final = Page(
    "aclnnInplaceAddRmsNorm",
    Op.RMS_NORM,
    "RMS norm of a sum, in the place of what is added",
    (
        updated("x1Ref", "x", "data", "Becomes the result.", writes="y", required=True),
        updated("x2Ref", "residual", "data", "Becomes the sum.", writes="sum", required=True),
        _GAMMA,
        _EPSILON,
        result("rstdOut", "rstd", "rows", _RSTD, types=(ACL_FLOAT,), c_type=_CONST),
    ),
    rules=(gamma_has_axes, statistics_of_rows("x1Ref", "rstdOut")),
    lacks=_LACKS,
    adapt=covered_by_gamma,
    one_type=True,
    shape_error=INVALID,
)


def sum_of_types(call: Call) -> None:
    """X1 and x2 of one type, or one of them FLOAT; yOut and xOut of the wider one."""
    one, two = (call.tensors[name].dtype for name in ("x1", "x2"))
    data = ACL_FLOAT if ACL_FLOAT in (one, two) else one
    if data != ACL_FLOAT and two != one:
        rule = f"must have the type of x1, {dtype_name(one)}, or one of them ACL_FLOAT"
        fail(INVALID, f"x2 {rule}, got {dtype_name(two)}")
    for name, kind in call.given("yOut", "xOut"):
        if kind.dtype != data:
            rule = f"must be of type {dtype_name(data)}, the sum's"
            fail(INVALID, f"{name} {rule}, got {dtype_name(kind.dtype)}")
    for name, kind in call.given("gamma"):
        if kind.dtype not in (data, ACL_FLOAT):
            rule = f"must be of type {dtype_name(data)} or ACL_FLOAT"
            fail(INVALID, f"{name} {rule}, got {dtype_name(kind.dtype)}")


def bias_fits(call: Call) -> None:
    """The third tensor of the sum has the sum's type, and gamma's shape or x1's."""
    for name, kind in call.given("biasOptional"):
        one_of(name, kind, (call.tensors["yOut"].dtype,))
        shapes = [call.tensors[model].tensor.shape for model in ("gamma", "x1")]
        if kind.tensor.shape not in shapes:
            rule = f"must have the shape of gamma or of x1, {shapes[0]} or {shapes[1]}"
            fail(TILING, f"{name} {rule}, got shape {kind.tensor.shape}")


def sum_of_two_or_three(call: Call, request: Request) -> None:
    """The sum has the type of the wider one, which the core calls the data."""
    covered_by_gamma(call, request)
    fields, names = request.fields, request.names
    if fields["x"].dtype != "float32" and fields["residual"].dtype == "float32":
        fields["x"], fields["residual"] = fields["residual"], fields["x"]
        names["x"], names["residual"] = names["residual"], names["x"]
    bias = fields.pop("shortcut")
    if bias is not None:
        _sum_of_three(call, request, bias)


def _sum_of_three(call: Call, request: Request, bias: TensorSpec) -> None:
    """Two are added in float32, the third to that; what was rounded is normalized."""
    fields = request.fields
    one, two, total = (fields.pop(role) for role in ("x", "residual", "sum"))
    data, device = call.tensors["yOut"].tensor.dtype, call.tensors["x1"].device
    wide = TensorSpec.contiguous(one.shape, "float32")
    whole = TensorSpec.contiguous(one.shape, data)
    idle = (0,) * (len(one.shape) - len(bias.shape))
    spread = TensorSpec(one.shape, (*idle, *bias.strides), bias.dtype)
    shared = {"normalized_shape": fields["normalized_shape"], "device": device}
    if one.dtype != "float32":  # a sum is rounded to the type of its first: 0 and x1 come first
        nothing = TensorSpec(one.shape, (0,) * len(one.shape), "float32")
        spec = Spec(op=Op.RMS_NORM, x=nothing, residual=one, sum=wide, **shared)
        request.constants[_ZERO] = 0.0
        request.steps.append(Step(spec, {"sum": "one"}, {"x": _ZERO, "residual": "x"}))
    spec = Spec(op=Op.RMS_NORM, x=wide, residual=two, sum=wide, **shared)
    if request.steps:
        request.steps.append(Step(spec, {"x": "one", "sum": "two"}))
    else:
        request.steps.append(Step(replace(spec, x=one), {"sum": "two"}))
    spec = Spec(op=Op.RMS_NORM, x=wide, residual=spread, sum=whole, **shared)
    request.steps.append(Step(spec, {"x": "two", "sum": "whole"}, {"residual": "shortcut"}))
    spec = Spec(op=Op.LAYER_NORM, x=whole, **fields, device=device)
    request.steps.append(Step(spec, {"x": "whole"}))
    if total is not None:
        request.copies = {"whole": ("sum", total)}


def sum_before_gradients(call: Call, request: Request) -> None:
    """The forward pass normalized the sum, which is made again."""
    covered_by_gamma(call, request)
    fields, device = request.fields, call.tensors["x1"].device
    residual = fields.pop("residual")
    whole = TensorSpec.contiguous(fields["x"].shape, fields["x"].dtype)
    axes = {"normalized_shape": fields["normalized_shape"], "device": device}
    request.steps = [
        Step(
            Spec(op=Op.RMS_NORM, x=fields["x"], residual=residual, sum=whole, **axes),
            {"sum": "whole"},
        ),
        Step(
            Spec(op=Op.LAYER_NORM_BACKWARD, **(fields | {"x": whole}), device=device),
            {"x": "whole"},
        ),
    ]


ADD_LAYER_NORM: Final = Page(
    "aclnnAddLayerNorm",
    Op.LAYER_NORM,
    "Layer norm of a sum",
    (
        operand("x1", "x", "data", "1 to 8 axes; FLOAT, FLOAT16 or BF16."),
        operand("x2", "residual", "data", "What is added to it, of the same shape."),
        _GAMMA,
        operand("beta", "beta", "tail", "The bias of the norm, like ``gamma``."),
        operand(
            "biasOptional",
            "shortcut",
            "tail",
            "A third tensor of the sum, of the shape of ``gamma`` or ``x1``; may be null.",
            required=False,
        ),
        option("epsilon", "double", "eps", 1e-5, "Added to the variance."),
        option("additionalOutput", "bool", "", True, "Whether to write ``xOut``."),
        result("yOut", "y", "data", "Result, of the wider type of the two.", c_type=_CONST),
        result(
            "meanOut",
            "mean",
            "rows",
            "Result, FLOAT, of the shape of x1 with ones for the axes of ``gamma``.",
            types=(ACL_FLOAT,),
            c_type=_CONST,
        ),
        result(
            "rstdOut",
            "rstd",
            "rows",
            "Result, alike: ``1 / sqrt(variance + epsilon)``.",
            types=(ACL_FLOAT,),
            c_type=_CONST,
        ),
        result(
            "xOut",
            "sum",
            "data",
            "Result, like ``yOut``: the sum.",
            when="additionalOutput",
            c_type=_CONST,
        ),
    ),
    rules=(
        sum_of_types,
        same_type("gamma", "beta"),
        statistics_of_rows("x1", "meanOut", "rstdOut"),
        bias_fits,
    ),
    lacks=_LACKS,
    adapt=sum_of_two_or_three,
    shape_error=TILING,
    notes="The sum is rounded to its type, and what was rounded is normalized.",
)

ADD_LAYER_NORM_GRAD: Final = Page(
    "aclnnAddLayerNormGrad",
    Op.LAYER_NORM_BACKWARD,
    "The gradients of the layer norm of a sum",
    (
        operand("dy", "dy", "data", "The gradient of the output; FLOAT, FLOAT16 or BF16."),
        operand("x1", "x", "data", "What the forward pass added, alike."),
        operand("x2", "residual", "data", "The other, alike."),
        operand("rstd", "rstd", "rows", "Of each row, one element; FLOAT.", types=(ACL_FLOAT,)),
        operand("mean", "mean", "rows", "Of each row, one element; FLOAT.", types=(ACL_FLOAT,)),
        _GAMMA,
        operand(
            "dsumOptional",
            "dsum",
            "data",
            "The gradient that reaches the sum from elsewhere; null for none.",
            required=False,
        ),
        result("dxOut", "dx", "data", "Result: of x1 and of x2.", c_type=_CONST),
        result(
            "dgammaOut",
            "dgamma",
            "tail",
            "Result, FLOAT, like ``gamma``.",
            types=(ACL_FLOAT,),
            c_type=_CONST,
        ),
        result(
            "dbetaOut",
            "dbeta",
            "tail",
            "Result, FLOAT, like ``gamma``.",
            types=(ACL_FLOAT,),
            c_type=_CONST,
        ),
    ),
    rules=(gamma_has_axes,),
    lacks=_LACKS,
    adapt=sum_before_gradients,
    one_type=True,
)

aclnnAddLayerNormGradGetWorkspaceSize, aclnnAddLayerNormGrad = stages(ADD_LAYER_NORM_GRAD)
aclnnAddRmsNormGetWorkspaceSize, aclnnAddRmsNorm = stages(ADD_RMS_NORM)
aclnnInplaceAddRmsNormGetWorkspaceSize, aclnnInplaceAddRmsNorm = stages(INPLACE_ADD_RMS_NORM)
aclnnAddLayerNormGetWorkspaceSize, aclnnAddLayerNorm = stages(ADD_LAYER_NORM)
