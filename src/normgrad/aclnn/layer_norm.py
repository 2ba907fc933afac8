"""Layer norm and its gradients. Formats are not looked at."""

from typing import Final

from normgrad.aclnn.constants import ACL_FLOAT16
from normgrad.aclnn.dtypes import DTYPE_BYTES, dtype_name
from normgrad.aclnn.products import SAME_OR_FLOAT
from normgrad.aclnn.request import Request
from normgrad.aclnn.rules import Call, mask_has_three, one_of, same_type
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, fail
from normgrad.aclnn.table import OUTPUT_MASK, Page, operand, option, result
from normgrad.core.operators import Op
from normgrad.core.validate import MAX_RANK


def statistics_not_narrower(call: Call) -> None:
    """Mean and rstd have at least the width of input."""
    width = DTYPE_BYTES[call.tensors["input"].dtype]
    for name, kind in call.given("mean", "rstd"):
        if DTYPE_BYTES[kind.dtype] < width:
            rule = f"must not be narrower than input, {dtype_name(call.tensors['input'].dtype)}"
            fail(INVALID, f"{name} {rule}, got {dtype_name(kind.dtype)}")


def parameters_fit_input(call: Call) -> None:
    """Weight and bias have input's type or FLOAT."""
    for name, kind in call.given("weightOptional", "biasOptional"):
        one_of(name, kind, SAME_OR_FLOAT[call.tensors["input"].dtype])


def param_grads_fit_weight(call: Call) -> None:
    """Parameter gradients have weight's type (input's without a weight) or FLOAT."""
    model = call.tensors.get("weightOptional", call.tensors["input"]).dtype
    for name, kind in call.given("gradWeightOut", "gradBiasOut"):
        one_of(name, kind, SAME_OR_FLOAT[model])


def parameters_of_shape(call: Call) -> None:
    """Weight and bias are not those of each sample, which the core has too."""
    expected = call.options["normalizedShape"]
    axes = len(call.tensors["input"].tensor.shape)
    for name, kind in call.given("weightOptional", "biasOptional"):
        if len(kind.tensor.shape) == axes > len(expected) > 0:
            rule = f"must have the shape {expected} of normalizedShape"
            fail(INVALID, f"{name} {rule}, got shape {kind.tensor.shape}")


def ranks_from_one(call: Call) -> None:
    """No scalars, and no more axes than the core takes."""
    for name, kind in call.tensors.items():
        if not 1 <= len(kind.tensor.shape) <= MAX_RANK:
            shape = kind.tensor.shape
            fail(INVALID, f"{name} must have 1 to {MAX_RANK} axes, got shape {shape}")


def impl_mode_known(call: Call) -> None:
    """0, 1 or 2; 2 asks for float16 arithmetic, of float16 data alone."""
    mode = call.options["implMode"]
    if mode not in (0, 1, 2):
        fail(INVALID, f"implMode must be 0, 1 or 2, got {mode}")
    for name, kind in call.given("input", "weightOptional", "biasOptional"):
        if mode == 2 and kind.dtype != ACL_FLOAT16:
            rule = "must be of type ACL_FLOAT16 where implMode is 2"
            fail(INVALID, f"{name} {rule}, got {dtype_name(kind.dtype)}")


def bias_unread(call: Call, request: Request) -> None:
    """The bias is validated and not read."""
    request.set_aside("beta")


_SHAPE: Final = option(
    "normalizedShape",
    "sizes",
    "normalized_shape",
    (4,),
    "The last sizes of ``input``, at least one.",
)
_WEIGHT: Final = operand(
    "weightOptional",
    "gamma",
    "tail",
    "Of shape ``normalizedShape``; null means ones.",
    required=False,
)
_FORWARD: Final = (
    operand("input", "x", "data", "1 to 8 axes; FLOAT, FLOAT16 or BF16."),
    _SHAPE,
    _WEIGHT,
    operand(
        "biasOptional",
        "beta",
        "tail",
        "Of shape ``normalizedShape``; null means zeros.",
        required=False,
    ),
    option("eps", "double", "eps", 1e-5, "Added to the variance."),
    result("out", "y", "data", "Result, like ``input``."),
    result(
        "meanOutOptional",
        "mean",
        "rows",
        "Result, one element for each row, with ones for the axes of ``normalizedShape``; may be "
        "null.",
        required=False,
    ),
    result(
        "rstdOutOptional",
        "rstd",
        "rows",
        "Result, alike: ``1 / sqrt(variance + eps)``.",
        required=False,
    ),
)
_FORWARD_RULES: Final = (
    parameters_fit_input,
    same_type("weightOptional", "biasOptional"),
    same_type("input", "out"),
    ranks_from_one,
    parameters_of_shape,
)
_FORWARD_LACKS: Final = ("atlas-inference",)

LAYER_NORM: Final = Page(
    "aclnnLayerNorm",
    Op.LAYER_NORM,
    "Layer norm",
    _FORWARD,
    rules=_FORWARD_RULES,
    lacks=_FORWARD_LACKS,
)

LAYER_NORM_WITH_IMPL_MODE: Final = Page(
    "aclnnLayerNormWithImplMode",
    Op.LAYER_NORM,
    "Layer norm with a choice of arithmetic, which is made here: float32 at least",
    (
        *_FORWARD,
        option("implMode", "int32", "", 0, "0, 1, or with float16 data 2; without influence."),
    ),
    rules=(*_FORWARD_RULES, impl_mode_known),
    lacks=_FORWARD_LACKS,
    header="layer_norm",
)

LAYER_NORM_BACKWARD: Final = Page(
    "aclnnLayerNormBackward",
    Op.LAYER_NORM_BACKWARD,
    "Layer norm's gradients",
    (
        operand(
            "gradOut",
            "dy",
            "data",
            "The gradient of the output, 1 to 8 axes; FLOAT, FLOAT16 or BF16.",
        ),
        operand("input", "x", "data", "What the forward pass normalized, alike."),
        _SHAPE,
        operand("mean", "mean", "rows", "Of each row, one element; not narrower than ``input``."),
        operand("rstd", "rstd", "rows", "``1 / sqrt(variance + eps)`` of each row, like ``mean``."),
        _WEIGHT,
        operand(
            "biasOptional",
            "beta",
            "tail",
            "Of shape ``normalizedShape``; checked and not read.",
            required=False,
        ),
        OUTPUT_MASK,
        result(
            "gradInputOut",
            "dx",
            "data",
            "Result, like ``input``; null where the mask is false.",
            when="outputMask[0]",
        ),
        result(
            "gradWeightOut",
            "dgamma",
            "tail",
            "Result, of shape ``normalizedShape``.",
            when="outputMask[1]",
        ),
        result(
            "gradBiasOut",
            "dbeta",
            "tail",
            "Result, of shape ``normalizedShape``.",
            when="outputMask[2]",
        ),
    ),
    rules=(
        same_type("input", "gradOut"),
        same_type("mean", "rstd"),
        statistics_not_narrower,
        parameters_fit_input,
        same_type("weightOptional", "biasOptional"),
        same_type("input", "gradInputOut"),
        param_grads_fit_weight,
        mask_has_three,
        ranks_from_one,
        parameters_of_shape,
    ),
    lacks=("atlas-200i-500-a2",),
    adapt=bias_unread,
)

aclnnLayerNormGetWorkspaceSize, aclnnLayerNorm = stages(LAYER_NORM)
aclnnLayerNormWithImplModeGetWorkspaceSize, aclnnLayerNormWithImplMode = stages(
    LAYER_NORM_WITH_IMPL_MODE
)
aclnnLayerNormBackwardGetWorkspaceSize, aclnnLayerNormBackward = stages(LAYER_NORM_BACKWARD)
