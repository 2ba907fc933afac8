"""aclnnBatchNormElemtBackward, the second half of synchronized batch norm."""

from collections.abc import Mapping
from typing import Any, Final

from normgrad.aclnn.constants import ACL_FLOAT, ACL_FLOAT16, ACL_INT32
from normgrad.aclnn.executor import StageOneAnswer, no_stage_one, stage_one, stage_two
from normgrad.aclnn.products import ELEMT
from normgrad.aclnn.rules import Call, Page, floats, no_private_format, types
from normgrad.aclnn.status import OPERATOR_CODES, Status, operator_status, reports
from normgrad.aclnn.tensors import aclTensor
from normgrad.spec import Op, Spec

NAMES: Final = {
    "dy": "gradOut",
    "x": "input",
    "mean": "mean",
    "rstd": "invstd",
    "gamma": "weight",
    "sum_dy": "sumDy",
    "sum_dy_xmu": "sumDyXmu",
    "counter": "counter",
    "dx": "gradInput",
}


def request(call: Call) -> tuple[Spec, Mapping[str, str]]:
    """Channels are always at axis 1, whatever the format says."""
    tensors = {name: kind.tensor for name, kind in call.tensors.items()}
    arguments: dict[str, Any] = {role: tensors.get(name) for role, name in NAMES.items()}
    device = call.tensors["input"].device
    return Spec(op=Op.BATCH_NORM_ELEMT, **arguments, device=device), NAMES


PAGE: Final = Page(
    name=ELEMT,
    tensors=tuple(NAMES.values()),
    required=tuple(name for name in NAMES.values() if name != "weight"),
    outputs=("gradInput",),
    rules=(
        floats("gradOut", "input", "mean", "invstd", "weight", "sumDy", "sumDyXmu", "gradInput"),
        types(("counter",), (ACL_FLOAT, ACL_FLOAT16, ACL_INT32)),
        no_private_format("gradOut", "input", "gradInput"),
    ),
    request=request,
)


@reports(*OPERATOR_CODES, no_stage_one)
def aclnnBatchNormElemtBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    mean: aclTensor | None,
    invstd: aclTensor | None,
    weight: aclTensor | None,
    sumDy: aclTensor | None,
    sumDyXmu: aclTensor | None,
    counter: aclTensor | None,
    gradInput: aclTensor | None,
) -> StageOneAnswer:
    """Stage 1: status, size of the workspace in bytes, executor."""
    return stage_one(
        PAGE, (gradOut, input, mean, invstd, weight, sumDy, sumDyXmu, counter, gradInput)
    )


@operator_status
def aclnnBatchNormElemtBackward(
    workspace: int | None, workspaceSize: int, executor: Any, stream: Any
) -> Status:
    """Stage 2: write gradInput."""
    return stage_two(ELEMT, workspace, workspaceSize, executor, stream)
