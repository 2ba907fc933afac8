"""aclnnLayerNormBackward. Formats are not looked at."""

from collections.abc import Mapping
from typing import Any, Final

from normgrad.aclnn.constants import DTYPE_BYTES, dtype_name
from normgrad.aclnn.executor import StageOneAnswer, no_stage_one, stage_one, stage_two
from normgrad.aclnn.products import LAYER_NORM, SAME_OR_FLOAT
from normgrad.aclnn.rules import Call, Page, floats, mask_has_three, one_of, same_type
from normgrad.aclnn.status import (
    INVALID,
    NULLPTR,
    OPERATOR_CODES,
    Status,
    fail,
    operator_status,
    reports,
)
from normgrad.aclnn.tensors import aclBoolArray, aclIntArray, aclTensor, living
from normgrad.device.failures import is_null
from normgrad.spec import Op, Spec
from normgrad.validate import MAX_RANK

NAMES: Final = {
    "dy": "gradOut",
    "x": "input",
    "mean": "mean",
    "rstd": "rstd",
    "gamma": "weightOptional",
    "dx": "gradInputOut",
    "dgamma": "gradWeightOut",
    "dbeta": "gradBiasOut",
}
OTHER_NAMES: Final = {"beta": "biasOptional", "normalized_shape": "normalizedShape"}
PARAMETERS: Final = ("weightOptional", "biasOptional")
OUTPUTS: Final = ("gradInputOut", "gradWeightOut", "gradBiasOut")


def statistics_not_narrower(call: Call) -> None:
    """Mean and rstd have at least the width of input."""
    width = DTYPE_BYTES[call.tensors["input"].dtype]
    for name, kind in call.given("mean", "rstd"):
        if DTYPE_BYTES[kind.dtype] < width:
            rule = f"must not be narrower than input, {dtype_name(call.tensors['input'].dtype)}"
            fail(INVALID, f"{name} {rule}, got {dtype_name(kind.dtype)}")


def parameters_fit_input(call: Call) -> None:
    """Weight and bias have input's type or FLOAT."""
    for name, kind in call.given(*PARAMETERS):
        one_of(name, kind, SAME_OR_FLOAT[call.tensors["input"].dtype])


def param_grads_fit_weight(call: Call) -> None:
    """Parameter gradients have weight's type (input's without a weight) or FLOAT."""
    model = call.tensors.get("weightOptional", call.tensors["input"]).dtype
    for name, kind in call.given("gradWeightOut", "gradBiasOut"):
        one_of(name, kind, SAME_OR_FLOAT[model])


def ranks_from_one(call: Call) -> None:
    """No scalars, and no more axes than the core takes."""
    for name, kind in call.tensors.items():
        if not 1 <= len(kind.tensor.shape) <= MAX_RANK:
            shape = kind.tensor.shape
            fail(INVALID, f"{name} must have 1 to {MAX_RANK} axes, got shape {shape}")


def request(call: Call) -> tuple[Spec, Mapping[str, str]]:
    """The bias is validated and not read."""
    tensors = {name: kind.tensor for name, kind in call.tensors.items()}
    arguments: dict[str, Any] = {role: tensors.get(name) for role, name in NAMES.items()}
    bias = tensors.get("biasOptional")
    spec = Spec(
        op=Op.LAYER_NORM,
        **arguments,
        unread=() if bias is None else (("beta", bias),),
        normalized_shape=call.options,
        device=call.tensors["input"].device,
    )
    return spec, NAMES | OTHER_NAMES


PAGE: Final = Page(
    name=LAYER_NORM,
    tensors=("gradOut", "input", "mean", "rstd", *PARAMETERS, *OUTPUTS),
    required=("gradOut", "input", "mean", "rstd"),
    outputs=OUTPUTS,
    rules=(
        floats("gradOut", "input", "mean", "rstd", *PARAMETERS),
        same_type("input", "gradOut"),
        same_type("mean", "rstd"),
        statistics_not_narrower,
        parameters_fit_input,
        same_type("weightOptional", "biasOptional"),
        same_type("input", "gradInputOut"),
        param_grads_fit_weight,
        mask_has_three,
        ranks_from_one,
    ),
    request=request,
)


@reports(*OPERATOR_CODES, no_stage_one)
def aclnnLayerNormBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    normalizedShape: aclIntArray | None,
    mean: aclTensor | None,
    rstd: aclTensor | None,
    weightOptional: aclTensor | None,
    biasOptional: aclTensor | None,
    outputMask: aclBoolArray | None,
    gradInputOut: aclTensor | None,
    gradWeightOut: aclTensor | None,
    gradBiasOut: aclTensor | None,
) -> StageOneAnswer:
    """Stage 1: status, size of the workspace in bytes, executor."""
    tensors = (
        gradOut,
        input,
        mean,
        rstd,
        weightOptional,
        biasOptional,
        gradInputOut,
        gradWeightOut,
        gradBiasOut,
    )
    if is_null(normalizedShape):
        fail(NULLPTR, "normalizedShape must not be null")

    def sizes() -> tuple[int, ...]:
        values: tuple[int, ...] = living(normalizedShape, "normalizedShape", aclIntArray).values
        return values

    return stage_one(PAGE, tensors, sizes, outputMask)


@operator_status
def aclnnLayerNormBackward(
    workspace: int | None, workspaceSize: int, executor: Any, stream: Any
) -> Status:
    """Stage 2: write the requested gradients."""
    return stage_two(LAYER_NORM, workspace, workspaceSize, executor, stream)
