"""RMS norm and its gradients. What gamma covers is normalized together."""

from typing import Final

from normgrad.aclnn.constants import ACL_BF16, ACL_FLOAT
from normgrad.aclnn.request import Request
from normgrad.aclnn.rules import (
    Call,
    gamma_has_axes,
    one_of,
    same_type,
    statistics_of_rows,
)
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import TILING
from normgrad.aclnn.table import Page, operand, option, result
from normgrad.core.operators import Op

_LACKS: Final = ("atlas-200i-500-a2", "atlas-training")
_PLAIN: Final = "const aclTensor*"  # the results are const, too


def gamma_fits_x(call: Call) -> None:
    """X's type, or FLOAT where the product mixes them."""
    data = call.tensors["x"].dtype
    allowed = dict.fromkeys((data, *((ACL_FLOAT,) if ACL_BF16 in call.product.floats else ())))
    one_of("gamma", call.tensors["gamma"], allowed, f" on {call.product.title}")


def covered_by_gamma(call: Call, request: Request) -> None:
    """Gamma's shape says what is normalized together."""
    request.fields["normalized_shape"] = call.tensors["gamma"].tensor.shape
    request.names["normalized_shape"] = "gamma's shape"


def gemma(call: Call, request: Request) -> None:
    """The stored weight is less by 1."""
    covered_by_gamma(call, request)
    request.fields["weight_offset"] = 1.0


_PARAMETERS: Final = (
    operand("x", "x", "data", "1 to 8 axes; FLOAT, FLOAT16 or BF16."),
    operand("gamma", "gamma", "tail", "The weight; its shape is the last sizes of ``x``."),
    option("epsilon", "double", "eps", 1e-6, "Added to the mean of the squares."),
    result("yOut", "y", "data", "Result, like ``x``.", c_type=_PLAIN),
    result(
        "rstdOut",
        "rstd",
        "rows",
        "Result, FLOAT, of the shape of ``x`` with ones for the axes of ``gamma``.",
        types=(ACL_FLOAT,),
        c_type=_PLAIN,
    ),
)

RMS_NORM: Final = Page(
    "aclnnRmsNorm",
    Op.RMS_NORM,
    "RMS norm",
    _PARAMETERS,
    rules=(
        same_type("x", "yOut"),
        gamma_fits_x,
        gamma_has_axes,
        statistics_of_rows("x", "rstdOut"),
    ),
    lacks=_LACKS,
    adapt=covered_by_gamma,
    shape_error=TILING,
)

GEMMA_RMS_NORM: Final = Page(
    "aclnnGemmaRmsNorm",
    Op.RMS_NORM,
    "RMS norm by ``1 + gamma``",
    _PARAMETERS,
    rules=(
        gamma_has_axes,
        statistics_of_rows("x", "rstdOut"),
    ),
    lacks=(*_LACKS, "atlas-inference"),
    adapt=gemma,
    one_type=True,
    shape_error=TILING,
)

RMS_NORM_GRAD: Final = Page(
    "aclnnRmsNormGrad",
    Op.RMS_NORM_BACKWARD,
    "RMS norm's gradients",
    (
        operand("dy", "dy", "data", "The gradient of the output; FLOAT, FLOAT16 or BF16."),
        operand("x", "x", "data", "What the forward pass normalized, alike."),
        operand("rstd", "rstd", "rows", "Of each row, one element; FLOAT.", types=(ACL_FLOAT,)),
        operand("gamma", "gamma", "tail", "The weight; its shape is the last sizes of ``x``."),
        result("dxOut", "dx", "data", "Result, like ``x``.", c_type=_PLAIN),
        result(
            "dgammaOut",
            "dgamma",
            "tail",
            "Result, FLOAT, like ``gamma``.",
            types=(ACL_FLOAT,),
            c_type=_PLAIN,
        ),
    ),
    rules=(
        same_type("dy", "x", "dxOut"),
        gamma_fits_x,
        gamma_has_axes,
    ),
    lacks=_LACKS,
    adapt=covered_by_gamma,
    shape_error=TILING,
)

aclnnRmsNormGetWorkspaceSize, aclnnRmsNorm = stages(RMS_NORM)
aclnnGemmaRmsNormGetWorkspaceSize, aclnnGemmaRmsNorm = stages(GEMMA_RMS_NORM)
aclnnRmsNormGradGetWorkspaceSize, aclnnRmsNormGrad = stages(RMS_NORM_GRAD)
