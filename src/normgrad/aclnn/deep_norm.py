"""Layer norm of a weighted sum, ``alpha * x + gx``, and its gradients.

The sum is made in float32 and normalized unrounded, and so is its gradient before it is written
twice: as that of gx, and times alpha as that of x.
"""

from dataclasses import replace
from typing import Any, Final

from normgrad.aclnn.constants import ACL_FLOAT
from normgrad.aclnn.request import Request
from normgrad.aclnn.rms_norm import covered_by_gamma
from normgrad.aclnn.rules import Call, finite, gamma_has_axes, statistics_of_rows
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, fail
from normgrad.aclnn.table import Page, Parameter, operand, option, result
from normgrad.core.operators import Op
from normgrad.core.spec import Spec, TensorSpec
from normgrad.core.validate import MAX_RANK
from normgrad.device.chain import Step
from normgrad.device.constants import repeated

_LACKS: Final = ("atlas-200i-500-a2", "atlas-training")
_CONST: Final = "const aclTensor*"  # the results are const, too
# Roles that neither operator has, for numbers that stand for vectors: mean, rstd and weight.
_AS_IT_IS: Final = {"mean": "sum_dy", "rstd": "sum_dy_xmu"}
_WEIGHT: Final = "counter"


def rows_below_two_axes(call: Call) -> None:
    """X has rows, in 2 to 8 axes: gamma does not cover all of them."""
    shape, covered = (call.tensors[name].tensor.shape for name in ("x", "gamma"))
    if not 2 <= len(shape) <= MAX_RANK:
        fail(INVALID, f"x must have 2 to {MAX_RANK} axes, got shape {shape}")
    if len(covered) >= len(shape):
        fail(INVALID, f"gamma must have fewer axes than x, {len(shape)}, got shape {covered}")


def _steps(call: Call, request: Request, **on_sum: TensorSpec) -> Spec:
    """The sum, and of it what the core has; returns the element stage ``alpha * x``.

    That is one of batch norm, with one weight for all channels.
    """
    covered_by_gamma(call, request)
    fields, names = request.fields, request.names
    names["shortcut"] = names["residual"]
    request.constants = {"sum_dy": 0.0, "sum_dy_xmu": 1.0, _WEIGHT: call.options["alpha"]}
    x, device = fields["x"], call.tensors["x"].device
    last = len(x.shape) - 1
    one = repeated(x.shape[last])
    total = TensorSpec.contiguous(x.shape, "float32")
    axes: dict[str, Any] = {"channel_axis": last, "device": device}
    scaled = Spec(op=Op.BATCH_NORM_ELEMT, x=x, mean=one, rstd=one, gamma=one, y=total, **axes)
    added = replace(scaled, shortcut=fields.pop("residual"))
    spec = Spec(op=request.op, **(fields | {"x": total} | on_sum), device=device)
    request.steps = [
        Step(added, {"y": "sum"}, {**_AS_IT_IS, "gamma": _WEIGHT, "shortcut": "residual"}),
        Step(spec, dict.fromkeys(("x", *on_sum), "sum")),
    ]
    return scaled


def norm_of_sum(call: Call, request: Request) -> None:
    """The forward pass."""
    _steps(call, request)


def gradients_of_sum(call: Call, request: Request) -> None:
    """The sum is made again; its gradient takes its place."""
    of_x, of_gx = request.fields.pop("dshortcut"), request.fields["dx"]
    total = TensorSpec.contiguous(of_x.shape, "float32")
    scaled = replace(_steps(call, request, dx=total), x=total)
    roles = {**_AS_IT_IS, "gamma": _WEIGHT, "y": "dshortcut"}
    request.steps += [
        Step(replace(scaled, y=of_x), {"x": "sum"}, roles),
        Step(replace(scaled, gamma=None, y=of_gx), {"x": "sum"}, {**_AS_IT_IS, "y": "dx"}),
    ]


def _wide(name: str, role: str, shape: str, about: str) -> Parameter:
    return result(name, role, shape, about, types=(ACL_FLOAT,), c_type=_CONST)


_X: Final = operand("x", "x", "data", "2 to 8 axes; FLOAT, FLOAT16 or BF16.")
_GX: Final = operand("gx", "residual", "data", "What is added to ``alpha * x``, alike.")
_GAMMA: Final = operand("gamma", "gamma", "tail", "The weight; its shape is the last sizes of x.")
_ALPHA: Final = option("alpha", "double", "", 0.5, "The weight of ``x`` in the sum; finite.")
_NOTES: Final = "The sum is made in float32 and not rounded to the type of the data."

DEEP_NORM: Final = Page(
    "aclnnDeepNorm",
    Op.LAYER_NORM,
    "Layer norm of a weighted sum, ``alpha * x + gx``",
    (
        _X,
        _GX,
        operand("beta", "beta", "tail", "The bias, like ``gamma``."),
        _GAMMA,
        _ALPHA,
        option("epsilon", "double", "eps", 1e-6, "Added to the variance."),
        _wide("meanOut", "mean", "rows", "Result, FLOAT, like x with ones for gamma's axes."),
        _wide("rstdOut", "rstd", "rows", "Result, alike: ``1 / sqrt(variance + epsilon)``."),
        result("yOut", "y", "data", "Result, like ``x``.", c_type=_CONST),
    ),
    rules=(
        gamma_has_axes,
        rows_below_two_axes,
        finite("alpha"),
        statistics_of_rows("x", "meanOut", "rstdOut"),
    ),
    lacks=_LACKS,
    adapt=norm_of_sum,
    one_type=True,
    notes=_NOTES,
)

DEEP_NORM_GRAD: Final = Page(
    "aclnnDeepNormGrad",
    Op.LAYER_NORM_BACKWARD,
    "The gradients of the layer norm of a weighted sum",
    (
        operand("dy", "dy", "data", "The gradient of the output; FLOAT, FLOAT16 or BF16."),
        _X,
        _GX,
        _GAMMA,
        operand("mean", "mean", "rows", "Of each row, one element; FLOAT.", types=(ACL_FLOAT,)),
        operand("rstd", "rstd", "rows", "Of each row, one element; FLOAT.", types=(ACL_FLOAT,)),
        _ALPHA,
        result("dxOut", "dshortcut", "data", "Result: alpha times that of gx.", c_type=_CONST),
        result("dgxOut", "dx", "data", "Result: of the sum, and so of gx.", c_type=_CONST),
        _wide("dbetaOut", "dbeta", "tail", "Result, FLOAT, like ``gamma``."),
        _wide("dgammaOut", "dgamma", "tail", "Result, FLOAT, like ``gamma``."),
    ),
    rules=(gamma_has_axes, rows_below_two_axes, finite("alpha")),
    lacks=_LACKS,
    adapt=gradients_of_sum,
    one_type=True,
    notes=_NOTES,
)

aclnnDeepNormGetWorkspaceSize, aclnnDeepNorm = stages(DEEP_NORM)
aclnnDeepNormGradGetWorkspaceSize, aclnnDeepNormGrad = stages(DEEP_NORM_GRAD)
