"""Batch norm and its gradients."""

from typing import Final

from normgrad.aclnn.constants import (
    ACL_FLOAT,
    ACL_FORMAT_NC,
    ACL_FORMAT_NCDHW,
    ACL_FORMAT_NCHW,
    ACL_FORMAT_NCL,
    ACL_FORMAT_ND,
    ACL_FORMAT_NDHWC,
    ACL_FORMAT_NHWC,
)
from normgrad.aclnn.dtypes import format_name
from normgrad.aclnn.request import CHANNELS_LAST, INFERENCE, Request
from normgrad.aclnn.rules import (
    Call,
    Rule,
    mask_has_three,
    no_private_format,
    one_of,
    same_type,
)
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, fail
from normgrad.aclnn.table import OUTPUT_MASK, Page, operand, option, result, updated
from normgrad.core.operators import Op

VECTORS: Final = ("weight", "runningMean", "runningVar", "saveMean", "saveInvstd")
PARAM_GRADS: Final = ("gradWeight", "gradBias")

FORMATS: Final = (
    ACL_FORMAT_NC,
    ACL_FORMAT_NCL,
    ACL_FORMAT_NCHW,
    ACL_FORMAT_NHWC,
    ACL_FORMAT_NCDHW,
    ACL_FORMAT_NDHWC,
    ACL_FORMAT_ND,
)


def vectors_fit_data(call: Call) -> None:
    """The product's table: the types of vectors beside data of each type."""
    data = call.tensors["gradOut"].dtype
    for name, kind in call.given(*VECTORS):
        one_of(name, kind, call.product.beside[data], f" on {call.product.title}")


def param_grads_fit_weight(call: Call) -> None:
    """The product's table: the types of gradWeight and gradBias."""
    data = call.tensors["gradOut"].dtype
    allowed = call.product.beside[data]
    if call.product.mixed and data != ACL_FLOAT:
        weight = call.tensors.get("weight")
        # Without a weight any float type will do.
        allowed = call.product.floats if weight is None else (ACL_FLOAT, weight.dtype)
    for name, kind in call.given(*PARAM_GRADS):
        one_of(name, kind, dict.fromkeys(allowed), f" on {call.product.title}")


def formats_alike_and_plain(*names: str) -> Rule:
    """One format for the data, none of the blocked ones, channels last where the product can."""
    first = names[0]

    def rule(call: Call) -> None:
        model = call.tensors[first].format
        for name, kind in call.given(*names):
            if kind.format != model:
                rule = f"must have the format of {first}, {format_name(model)}"
                fail(INVALID, f"{name} {rule}, got {format_name(kind.format)}")
            if kind.format not in FORMATS:
                listed = ", ".join(format_name(value) for value in FORMATS)
                got = format_name(kind.format)
                fail(INVALID, f"{name} must have a format of {listed}, got {got}")
        if model in CHANNELS_LAST and not call.product.channels_last:
            rule = f"must not have its channels last on {call.product.title}"
            fail(INVALID, f"{first} {rule}, got {format_name(model)}")

    return rule


def statistics_of_mode(call: Call, request: Request) -> None:
    """In training the saved statistics are read, in inference the running ones."""
    if call.options["training"]:
        request.set_aside("running_mean", "running_var")
    else:
        request.move(INFERENCE)
    kind = call.saved if call.options["training"] else "variance"
    request.fields["rstd_is"] = kind
    if kind == "invstd":
        request.fields["eps"] = 0.0  # an inverse deviation needs none


def forward_of_mode(call: Call, request: Request) -> None:
    """In training statistics are made and saved, in inference the running ones are read."""
    if not call.options["training"]:
        request.op = Op.BATCH_NORM_ELEMT
        request.move(INFERENCE)
        request.fields["rstd_is"] = "variance"
        shape, axis = call.tensors["input"].tensor.shape, request.fields["channel_axis"]
        for role, number in (("mean", 0.0), ("rstd", 1.0)):
            request.default(role, number, shape[axis] if axis < len(shape) else 0)
    elif call.product.saves_variance or call.saved == "variance":
        request.fields["rstd_is"] = "variance"


_TRAINING: Final = option(
    "training", "bool", "training", True, "Whether the statistics are those of ``input``."
)
_RUNNING_MEAN: Final = "Shape (C,); null means zeros."
_RUNNING_VAR: Final = "Shape (C,); null means ones."
_WEIGHT: Final = operand(
    "weight", "gamma", "channels", "Shape (C,); null means ones.", required=False
)

BATCH_NORM: Final = Page(
    "aclnnBatchNorm",
    Op.BATCH_NORM,
    "Batch norm; in training it updates the running statistics and saves the batch's",
    (
        operand("input", "x", "data", "2 to 8 axes; FLOAT, FLOAT16 or BF16."),
        _WEIGHT,
        operand("bias", "beta", "channels", "Shape (C,); null means zeros.", required=False),
        updated(
            "runningMean",
            "running_mean",
            "channels",
            "Shape (C,), updated in training and read in inference; null means zeros there.",
        ),
        updated(
            "runningVar",
            "running_var",
            "channels",
            "The same of the unbiased variance; null means ones in inference.",
        ),
        _TRAINING,
        option(
            "momentum", "double", "momentum", 0.1, "The batch's share in the running statistics."
        ),
        option("eps", "double", "eps", 1e-5, "Added to the variance."),
        result("output", "y", "data", "Result, like ``input``."),
        result(
            "saveMean",
            "mean",
            "channels",
            "Result in training, shape (C,): the batch's mean.",
            when="training",
        ),
        result(
            "saveInvstd",
            "rstd",
            "channels",
            "Result in training: ``1 / sqrt(variance + eps)``; the variance on other products than "
            "Ascend 950.",
            when="training",
        ),
    ),
    rules=(
        same_type("input", "output"),
        formats_alike_and_plain("input", "output"),
    ),
    lacks=("atlas-200i-500-a2",),
    adapt=forward_of_mode,
    channels_last=True,
    notes="Sizes are N, C and any others; for NHWC and NDHWC the last axis is C.",
)

BATCH_NORM_BACKWARD: Final = Page(
    "aclnnBatchNormBackward",
    Op.BATCH_NORM_BACKWARD,
    "Batch norm's gradients",
    (
        operand(
            "gradOut",
            "dy",
            "data",
            "The gradient of the output, 2 to 8 axes; FLOAT, FLOAT16 or BF16.",
        ),
        operand("input", "x", "data", "What the forward pass normalized, alike."),
        _WEIGHT,
        operand("runningMean", "running_mean", "channels", _RUNNING_MEAN, required=False),
        operand("runningVar", "running_var", "channels", _RUNNING_VAR, required=False),
        operand(
            "saveMean",
            "mean",
            "channels",
            "The batch's mean, shape (C,); null means zeros.",
            required=False,
        ),
        operand(
            "saveInvstd",
            "rstd",
            "channels",
            "``1 / sqrt(variance + eps)`` of the batch, shape (C,); null means ones.",
            required=False,
        ),
        _TRAINING,
        option("eps", "double", "eps", 1e-5, "Added to ``runningVar``; not used in training."),
        OUTPUT_MASK,
        result(
            "gradInput",
            "dx",
            "data",
            "Result, like ``input``; null where the mask is false.",
            when="outputMask[0]",
        ),
        result("gradWeight", "dgamma", "channels", "Result, shape (C,).", when="outputMask[1]"),
        result("gradBias", "dbeta", "channels", "Result, shape (C,).", when="outputMask[2]"),
    ),
    rules=(
        mask_has_three,
        same_type("gradOut", "input", "gradInput"),
        vectors_fit_data,
        same_type("runningMean", "runningVar"),
        same_type("saveMean", "saveInvstd"),
        param_grads_fit_weight,
        same_type("gradWeight", "gradBias"),
        formats_alike_and_plain("gradOut", "input", "gradInput"),
        no_private_format(*VECTORS, *PARAM_GRADS),
    ),
    adapt=statistics_of_mode,
    channels_last=True,
    notes=(
        "In training the saved statistics are read, in inference the running ones; those that are "
        "not read are checked as well. Sizes are N, C and any others; for NHWC and NDHWC the last "
        "axis is C."
    ),
)

aclnnBatchNormGetWorkspaceSize, aclnnBatchNorm = stages(BATCH_NORM)
aclnnBatchNormBackwardGetWorkspaceSize, aclnnBatchNormBackward = stages(BATCH_NORM_BACKWARD)
