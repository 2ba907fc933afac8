"""The parts of a batch norm over several ranks, between which programs communicate."""

from typing import Final

from normgrad.aclnn.constants import (
    ACL_FLOAT,
    ACL_FLOAT16,
    ACL_INT32,
)
from normgrad.aclnn.request import Request
from normgrad.aclnn.rules import (
    Call,
    no_private_format,
    same_format,
    same_type,
)
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, fail
from normgrad.aclnn.table import Page, operand, option, result, updated
from normgrad.core.operators import Op
from normgrad.core.validate import MAX_RANK

_EVERY_FLOAT: Final = "FLOAT, FLOAT16 or BF16"
_INPUT: Final = operand("input", "x", "data", f"Shape (N, C, ...), 2 to 8 axes; {_EVERY_FLOAT}.")
_MEAN: Final = operand("mean", "mean", "channels", "Of all ranks' data, shape (C,).")
_INVSTD: Final = operand("invstd", "rstd", "channels", "``1 / sqrt(variance + eps)``, shape (C,).")
_WEIGHT: Final = operand(
    "weight", "gamma", "channels", "Shape (C,); null means ones.", required=False
)
_GRAD_OUT: Final = operand(
    "gradOut", "dy", "data", f"The gradient of the output, shape (N, C, ...); {_EVERY_FLOAT}."
)
_FORWARD_INPUT: Final = operand(
    "input", "x", "data", "What the forward pass normalized, of the same shape."
)
_NOTES: Final = "Channels are axis 1, whatever the format says."


STATS: Final = Page(
    "aclnnBatchNormStats",
    Op.BATCH_NORM_STATS,
    "One rank's mean and inverse deviation of each channel",
    (
        _INPUT,
        option("eps", "double", "eps", 1e-5, "Added to the variance."),
        result("mean", "mean", "channels", "Result, shape (C,); FLOAT.", types=(ACL_FLOAT,)),
        result(
            "invstd",
            "rstd",
            "channels",
            "Result, alike: ``1 / sqrt(variance + eps)``.",
            types=(ACL_FLOAT,),
        ),
    ),
    rules=(no_private_format("input"),),
    needs_channels=True,
    notes=_NOTES,
)


def sizes_are_those_of_input(call: Call) -> None:
    """Input is looked at for its sizes alone: channels are axis 1."""
    shape = call.tensors["input"].tensor.shape
    if not 2 <= len(shape) <= MAX_RANK:
        fail(INVALID, f"input must have 2 to {MAX_RANK} axes, got shape {shape}")
    for name, kind in call.given("mean", "invstd"):
        if len(kind.tensor.shape) != 2 or kind.tensor.shape[1] != shape[1]:
            rule = f"must have the shape (ranks, {shape[1]}), with input's channels"
            fail(INVALID, f"{name} {rule}, got shape {kind.tensor.shape}")
    for name, kind in call.given("counts"):
        if len(kind.tensor.shape) != 1:
            fail(INVALID, f"{name} must have one axis, got shape {kind.tensor.shape}")


def from_inverse_deviations(call: Call, request: Request) -> None:
    """The core's variances come as inverse deviations."""
    request.fields["variances_are"] = "invstd"


GATHER: Final = Page(
    "aclnnBatchNormGatherStatsWithCounts",
    Op.BATCH_NORM_GATHER_STATS,
    "The statistics of all ranks, from those of each",
    (
        operand("input", "", "data", "Shape (N, C, ...); only its sizes are looked at."),
        operand("mean", "x", "ranks", "Of each rank, shape (ranks, C)."),
        operand("invstd", "variances", "ranks", "Alike: ``1 / sqrt(variance + eps)``."),
        updated("runningMean", "running_mean", "channels", "Shape (C,), updated; may be null."),
        updated("runningVar", "running_var", "channels", "Likewise, by the unbiased variance."),
        option("momentum", "double", "momentum", 0.1, "The share of these statistics in them."),
        option("eps", "double", "eps", 1e-5, "What is in ``invstd``, and added again."),
        operand("counts", "counter", "counts", "Each rank's number of elements of a channel."),
        result("meanAll", "mean", "channels", "Result, shape (C,)."),
        result("invstdAll", "rstd", "channels", "Result, alike."),
    ),
    rules=(no_private_format("input"), sizes_are_those_of_input),
    adapt=from_inverse_deviations,
    notes=_NOTES,
)

ELEMT: Final = Page(
    "aclnnBatchNormElemt",
    Op.BATCH_NORM_ELEMT,
    "The output of a batch norm whose statistics are known",
    (
        _INPUT,
        _WEIGHT,
        operand("bias", "beta", "channels", "Shape (C,); null means zeros.", required=False),
        operand("mean", "mean", "channels", "Of all ranks' data, shape (C,).", c_type="aclTensor*"),
        operand(
            "invstd",
            "rstd",
            "channels",
            "``1 / sqrt(variance + eps)``, shape (C,).",
            c_type="aclTensor*",
        ),
        option("eps", "double", "", 1e-5, "Not used: it is in ``invstd``."),
        result("output", "y", "data", "Result, like ``input``."),
    ),
    rules=(
        same_type("input", "output"),
        same_format("input", "output"),
        no_private_format("input", "output"),
    ),
    needs_channels=True,
    notes=_NOTES,
)

REDUCE_BACKWARD: Final = Page(
    "aclnnBatchNormReduceBackward",
    Op.BATCH_NORM_REDUCE_BACKWARD,
    "The first half of synchronized batch norm's gradients: one rank's sums",
    (
        _GRAD_OUT,
        _FORWARD_INPUT,
        _MEAN,
        _INVSTD,
        operand("weight", "gamma", "channels", "Shape (C,); without influence.", required=False),
        option("inputG", "bool", "", True, "Whether to compute ``sumDy`` and ``sumDyXmu``."),
        option("weightG", "bool", "", True, "Whether to compute ``gradWeight``."),
        option("biasG", "bool", "", True, "Whether to compute ``gradBias``."),
        result("sumDy", "sum_dy", "channels", "Result, shape (C,): of ``gradOut``.", when="inputG"),
        result(
            "sumDyXmu",
            "sum_dy_xmu",
            "channels",
            "Result, shape (C,): of ``gradOut * (input - mean)``.",
            when="inputG",
        ),
        result("gradWeight", "dgamma", "channels", "Result, shape (C,).", when="weightG"),
        result("gradBias", "dbeta", "channels", "Result, shape (C,).", when="biasG"),
    ),
    rules=(
        same_type("gradOut", "input"),
        same_format("gradOut", "input"),
        no_private_format("gradOut", "input"),
    ),
    header="batch_norm_backward_reduce",
    needs_channels=True,
    notes=_NOTES,
)

ELEMT_BACKWARD: Final = Page(
    "aclnnBatchNormElemtBackward",
    Op.BATCH_NORM_ELEMT_BACKWARD,
    "The second half of synchronized batch norm's gradients",
    (
        _GRAD_OUT,
        _FORWARD_INPUT,
        _MEAN,
        _INVSTD,
        _WEIGHT,
        operand(
            "sumDy", "sum_dy", "channels", "The sum of ``gradOut`` over all ranks, shape (C,)."
        ),
        operand(
            "sumDyXmu",
            "sum_dy_xmu",
            "channels",
            "The sum of ``gradOut * (input - mean)`` over all ranks, shape (C,).",
        ),
        operand(
            "counter",
            "counter",
            "counts",
            "Each rank's number of elements of a channel; FLOAT, FLOAT16 or INT32.",
            types=(ACL_FLOAT, ACL_FLOAT16, ACL_INT32),
            c_type="aclTensor*",
        ),
        result("gradInput", "dx", "data", "Result, like ``input``."),
    ),
    rules=(no_private_format("gradOut", "input", "gradInput"),),
    needs_channels=True,
    notes=_NOTES,
)

aclnnBatchNormStatsGetWorkspaceSize, aclnnBatchNormStats = stages(STATS)
aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize, aclnnBatchNormGatherStatsWithCounts = stages(
    GATHER
)
aclnnBatchNormElemtGetWorkspaceSize, aclnnBatchNormElemt = stages(ELEMT)
aclnnBatchNormReduceBackwardGetWorkspaceSize, aclnnBatchNormReduceBackward = stages(REDUCE_BACKWARD)
aclnnBatchNormElemtBackwardGetWorkspaceSize, aclnnBatchNormElemtBackward = stages(ELEMT_BACKWARD)
