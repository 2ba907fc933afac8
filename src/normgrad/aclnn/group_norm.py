"""aclnnGroupNormBackward. Data are read as [N, C, HxW] whatever their shape."""

from collections.abc import Mapping
from typing import Any, Final

from normgrad.aclnn.executor import StageOneAnswer, no_stage_one, stage_one, stage_two
from normgrad.aclnn.options import integer
from normgrad.aclnn.products import GROUP_NORM
from normgrad.aclnn.rules import Call, Page, floats, mask_has_three, one_of, same_type
from normgrad.aclnn.status import OPERATOR_CODES, Status, operator_status, reports
from normgrad.aclnn.tensors import aclBoolArray, aclTensor
from normgrad.spec import Op, Spec

NAMES: Final = {
    "dy": "gradOut",
    "x": "input",
    "mean": "mean",
    "rstd": "rstd",
    "gamma": "gamma",
    "dx": "gradInput",
    "dgamma": "gradGammaOut",
    "dbeta": "gradBetaOut",
}
OTHER_NAMES: Final = {"num_groups": "group", "extents": "N, C and HxW"}


def mean_fits_data(call: Call) -> None:
    """The product's table: mean's type beside data of each type."""
    data = call.tensors["gradOut"].dtype
    for name, kind in call.given("mean"):
        one_of(name, kind, call.product.beside[data], f" on {call.product.title}")


def request(call: Call) -> tuple[Spec, Mapping[str, str]]:
    """The sizes are the caller's, not those of a shape."""
    samples, channels, positions, groups = call.options
    tensors = {name: kind.tensor for name, kind in call.tensors.items()}
    arguments: dict[str, Any] = {role: tensors.get(name) for role, name in NAMES.items()}
    spec = Spec(
        op=Op.GROUP_NORM,
        **arguments,
        num_groups=groups,
        extents=(samples, channels, positions),
        device=call.tensors["input"].device,
    )
    return spec, NAMES | OTHER_NAMES


PAGE: Final = Page(
    name=GROUP_NORM,
    tensors=tuple(NAMES.values()),
    required=("gradOut", "input", "mean", "rstd"),
    outputs=("gradInput", "gradGammaOut", "gradBetaOut"),
    rules=(
        floats("gradOut"),
        same_type("gradOut", "input", "gradInput"),
        mean_fits_data,
        same_type("mean", "rstd", "gamma", "gradGammaOut", "gradBetaOut"),
        mask_has_three,
    ),
    request=request,
)


@reports(*OPERATOR_CODES, no_stage_one)
def aclnnGroupNormBackwardGetWorkspaceSize(
    gradOut: aclTensor | None,
    input: aclTensor | None,
    mean: aclTensor | None,
    rstd: aclTensor | None,
    gamma: aclTensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    outputMask: aclBoolArray | None,
    gradInput: aclTensor | None,
    gradGammaOut: aclTensor | None,
    gradBetaOut: aclTensor | None,
) -> StageOneAnswer:
    """Stage 1: status, size of the workspace in bytes, executor."""
    return stage_one(
        PAGE,
        (gradOut, input, mean, rstd, gamma, gradInput, gradGammaOut, gradBetaOut),
        lambda: (integer("N", N), integer("C", C), integer("HxW", HxW), integer("group", group)),
        outputMask,
    )


@operator_status
def aclnnGroupNormBackward(
    workspace: int | None, workspaceSize: int, executor: Any, stream: Any
) -> Status:
    """Stage 2: write the requested gradients."""
    return stage_two(GROUP_NORM, workspace, workspaceSize, executor, stream)
