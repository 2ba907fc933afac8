"""aclnnBatchNormBackward."""

from collections.abc import Mapping
from typing import Any, Final

from normgrad.aclnn.constants import (
    ACL_FLOAT,
    ACL_FORMAT_NC,
    ACL_FORMAT_NCDHW,
    ACL_FORMAT_NCHW,
    ACL_FORMAT_NCL,
    ACL_FORMAT_ND,
    ACL_FORMAT_NDHWC,
    ACL_FORMAT_NHWC,
    format_name,
)
from normgrad.aclnn.executor import StageOneAnswer, no_stage_one, stage_one, stage_two
from normgrad.aclnn.options import number, truth
from normgrad.aclnn.products import BATCH_NORM
from normgrad.aclnn.rules import (
    Call,
    Page,
    floats,
    mask_has_three,
    no_private_format,
    one_of,
    same_type,
)
from normgrad.aclnn.status import INVALID, OPERATOR_CODES, Status, fail, operator_status, reports
from normgrad.aclnn.tensors import aclBoolArray, aclTensor
from normgrad.spec import Op, Spec

DATA: Final = ("gradOut", "input", "gradInput")
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
CHANNELS_LAST: Final = (ACL_FORMAT_NHWC, ACL_FORMAT_NDHWC)
# (format, rank) with another channel axis than 1; a tag of another rank does not count.
CHANNEL_AXIS: Final[dict[tuple[int, int], int]] = {
    (ACL_FORMAT_NHWC, 4): 3,
    (ACL_FORMAT_NDHWC, 5): 4,
}


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


def formats_alike_and_plain(call: Call) -> None:
    """One format for the data, none of the blocked ones, channels last where the product can."""
    model = call.tensors["gradOut"].format
    for name, kind in call.given(*DATA):
        if kind.format != model:
            rule = f"must have the format of gradOut, {format_name(model)}"
            fail(INVALID, f"{name} {rule}, got {format_name(kind.format)}")
        if kind.format not in FORMATS:
            listed = ", ".join(format_name(value) for value in FORMATS)
            fail(INVALID, f"{name} must have a format of {listed}, got {format_name(kind.format)}")
    if model in CHANNELS_LAST and not call.product.channels_last:
        rule = f"must not have its channels last on {call.product.title}"
        fail(INVALID, f"gradOut {rule}, got {format_name(model)}")


def request(call: Call) -> tuple[Spec, Mapping[str, str]]:
    """In training the saved statistics are read, in inference the running ones."""
    training, eps = call.options
    saved = (("mean", "saveMean"), ("rstd", "saveInvstd"))
    running = (("mean", "runningMean"), ("rstd", "runningVar"))
    unread = (("running_mean", "runningMean"), ("running_var", "runningVar"))
    if not training:
        unread = (("save_mean", "saveMean"), ("save_invstd", "saveInvstd"))
    names = dict(saved if training else running)
    names |= {"dy": "gradOut", "x": "input", "gamma": "weight"}
    names |= {"dx": "gradInput", "dgamma": "gradWeight", "dbeta": "gradBias"}
    tensors = {name: kind.tensor for name, kind in call.tensors.items()}
    arguments: dict[str, Any] = {role: tensors.get(name) for role, name in names.items()}
    kind = call.saved if training else "variance"
    data = call.tensors["input"]
    spec = Spec(
        op=Op.BATCH_NORM,
        **arguments,
        unread=tuple((role, tensors[name]) for role, name in unread if name in tensors),
        training=training,
        rstd_is=kind,
        eps=eps if kind == "variance" else 0.0,  # an inverse deviation needs none
        channel_axis=CHANNEL_AXIS.get((data.format, len(data.tensor.shape)), 1),
        device=data.device,
    )
    return spec, names | dict(unread)


PAGE: Final = Page(
    name=BATCH_NORM,
    tensors=("gradOut", "input", *VECTORS, "gradInput", *PARAM_GRADS),
    required=("gradOut", "input"),
    outputs=("gradInput", *PARAM_GRADS),
    rules=(
        mask_has_three,
        floats("gradOut", "input", *VECTORS, "gradInput", *PARAM_GRADS),
        same_type("gradOut", "input", "gradInput"),
        vectors_fit_data,
        same_type("runningMean", "runningVar"),
        same_type("saveMean", "saveInvstd"),
        param_grads_fit_weight,
        same_type("gradWeight", "gradBias"),
        formats_alike_and_plain,
        no_private_format(*VECTORS, *PARAM_GRADS),
    ),
    request=request,
)


@reports(*OPERATOR_CODES, no_stage_one)
def aclnnBatchNormBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    weight: aclTensor | None,
    runningMean: aclTensor | None,
    runningVar: aclTensor | None,
    saveMean: aclTensor | None,
    saveInvstd: aclTensor | None,
    training: bool,
    eps: float,
    outputMask: aclBoolArray | None,
    gradInput: aclTensor | None,
    gradWeight: aclTensor | None,
    gradBias: aclTensor | None,
) -> StageOneAnswer:
    """Stage 1: status, size of the workspace in bytes, executor."""
    return stage_one(
        PAGE,
        (
            gradOut,
            input,
            weight,
            runningMean,
            runningVar,
            saveMean,
            saveInvstd,
            gradInput,
            gradWeight,
            gradBias,
        ),
        lambda: (truth("training", training), number("eps", eps)),
        outputMask,
    )


@operator_status
def aclnnBatchNormBackward(
    workspace: int | None, workspaceSize: int, executor: Any, stream: Any
) -> Status:
    """Stage 2: write the requested gradients."""
    return stage_two(BATCH_NORM, workspace, workspaceSize, executor, stream)
