"""Batch norm in training and its gradients."""

from collections.abc import Mapping
from typing import Final

from normgrad.core.operators import Op
from normgrad.core.spec import TensorSpec
from normgrad.infiniop.functions import functions
from normgrad.infiniop.rules import FLOATS, axes, contiguous, one_of, same_type
from normgrad.infiniop.table import Fields, Number, Operator, Tensor

_BIG: Final = ("grad_input", "input", "grad_output")
_SMALL: Final = ("grad_weight", "grad_bias", "weight", "running_mean", "running_var")


def variance_without_eps(tensors: Mapping[str, TensorSpec], fields: Fields) -> None:
    """Batch statistics in running_mean and running_var, and no eps anywhere."""
    fields |= {"rstd_is": "variance", "eps": 0.0}


def biased_running(tensors: Mapping[str, TensorSpec], fields: Fields) -> None:
    """With momentum 1 the running statistics become what BatchNormBackward takes."""
    fields["biased"] = True


BATCH_NORM: Final = Operator(
    "BatchNorm",
    Op.BATCH_NORM,
    "batch norm in training",
    (
        Tensor("output", "y", "data", "Result, shape (N, C, L), contiguous.", written=True),
        Tensor(
            "running_mean",
            "running_mean",
            "channels",
            "Shape (C,), any stride but 0; updated: with momentum 1 it becomes the batch's mean.",
            written=True,
        ),
        Tensor(
            "running_var",
            "running_var",
            "channels",
            "Alike, with the batch's biased variance.",
            written=True,
        ),
        Tensor("input", "x", "data", "Shape (N, C, L), contiguous."),
        Tensor("weight", "gamma", "channels", "Shape (C,), any stride."),
        Tensor("bias", "beta", "channels", "Shape (C,), any stride."),
    ),
    rules=(
        one_of(("output", "running_mean", "running_var", "input", "weight", "bias"), FLOATS),
        same_type("input", "output", "running_mean", "running_var", "weight", "bias"),
        axes(("output", "input"), (3,), "the 3 axes (N, C, L)"),
    ),
    stride_rules=(contiguous("output", "input"),),
    numbers=(
        Number("momentum", "momentum", 0.1, "The batch's share in the running statistics."),
        Number("eps", "eps", 1e-5, "Added to the variance."),
    ),
    adapt=biased_running,
    notes="All six are of one type, F16, F32 or BF16.",
)

BATCH_NORM_BACKWARD: Final = Operator(
    "BatchNormBackward",
    Op.BATCH_NORM_BACKWARD,
    "batch norm's training gradients",
    (
        Tensor("grad_input", "dx", "data", "Result, shape (N, C, L), contiguous.", written=True),
        Tensor(
            "grad_weight",
            "dgamma",
            "channels",
            "Result, shape (C,), any stride but 0.",
            written=True,
        ),
        Tensor("grad_bias", "dbeta", "channels", "Result, alike.", written=True),
        Tensor("input", "x", "data", "Shape (N, C, L), contiguous."),
        Tensor("grad_output", "dy", "data", "Alike."),
        Tensor("weight", "gamma", "channels", "Shape (C,), any stride."),
        Tensor("running_mean", "mean", "channels", "The batch's mean, shape (C,)."),
        Tensor(
            "running_var",
            "rstd",
            "channels",
            "The batch's biased variance, shape (C,); no eps is added to it.",
        ),
    ),
    rules=(
        one_of(("grad_input", *_SMALL[:2], "input", "grad_output", *_SMALL[2:]), FLOATS),
        same_type("input", "grad_input", *_SMALL[:2], "grad_output", *_SMALL[2:]),
        axes(_BIG, (3,), "the 3 axes (N, C, L)"),
    ),
    stride_rules=(contiguous(*_BIG),),
    adapt=variance_without_eps,
    notes="All eight are of one type, F16, F32 or BF16.",
)

(
    infiniopBatchNormDescriptor_t,
    infiniopCreateBatchNormDescriptor,
    infiniopGetBatchNormWorkspaceSize,
    infiniopBatchNorm,
    infiniopDestroyBatchNormDescriptor,
) = functions(BATCH_NORM)
(
    infiniopBatchNormBackwardDescriptor_t,
    infiniopCreateBatchNormBackwardDescriptor,
    infiniopGetBatchNormBackwardWorkspaceSize,
    infiniopBatchNormBackward,
    infiniopDestroyBatchNormBackwardDescriptor,
) = functions(BATCH_NORM_BACKWARD)
