"""Group norm and its gradients, which read data as [N, C, HxW] whatever their shape."""

import math
from typing import Final

from normgrad.aclnn.request import Request
from normgrad.aclnn.rules import (
    Call,
    channels_first,
    mask_has_three,
    one_of,
    positive,
    same_format,
    same_type,
)
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, fail
from normgrad.aclnn.table import OUTPUT_MASK, Page, operand, option, result
from normgrad.core.operators import Op


def mean_fits_data(call: Call) -> None:
    """The product's table: mean's type beside data of each type."""
    data = call.tensors["gradOut"].dtype
    for name, kind in call.given("mean"):
        one_of(name, kind, call.product.beside[data], f" on {call.product.title}")


def sizes_are_selfs(call: Call) -> None:
    """N, C and HxW are those of self's shape, and the statistics' is (N, group)."""
    shape = call.tensors["self"].tensor.shape
    if len(shape) >= 2:  # fewer is refused later
        found = (shape[0], shape[1], math.prod(shape[2:]))
        for name, size in zip(("N", "C", "HxW"), found, strict=True):
            if call.options[name] != size:
                rule = f"must be {size}, as the shape of self, {shape}, says"
                fail(INVALID, f"{name} {rule}, got {call.options[name]}")
    expected = (call.options["N"], call.options["group"])
    for name, kind in call.given("meanOut", "rstdOut"):
        if kind.tensor.shape != expected:
            rule = f"must have the shape (N, group), {expected}"
            fail(INVALID, f"{name} {rule}, got shape {kind.tensor.shape}")
    for name, kind in call.given("gamma", "beta"):
        if len(kind.tensor.shape) != 1:
            fail(INVALID, f"{name} must have one axis, got shape {kind.tensor.shape}")


def sizes_are_arguments(call: Call, request: Request) -> None:
    """The sizes are the caller's, not those of a shape."""
    request.fields["extents"] = tuple(call.options[name] for name in ("N", "C", "HxW"))
    request.names["extents"] = "N, C and HxW"


_SIZES: Final = (
    option("N", "int", "", 2, "Number of samples."),
    option("C", "int", "", 6, "Number of channels, a multiple of ``group``."),
    option("HxW", "int", "", 4, "Number of positions."),
    option("group", "int", "num_groups", 3, "Number of groups."),
)

GROUP_NORM: Final = Page(
    "aclnnGroupNorm",
    Op.GROUP_NORM,
    "Group norm",
    (
        operand("self", "x", "data", "Shape (N, C, ...), 2 to 8 axes; FLOAT, FLOAT16 or BF16."),
        operand("gamma", "gamma", "channels", "Shape (C,); null means ones.", required=False),
        operand("beta", "beta", "channels", "Shape (C,); null means zeros.", required=False),
        *_SIZES,
        option("eps", "double", "eps", 1e-5, "Added to the variance; positive."),
        result("out", "y", "data", "Result, like ``self``."),
        result("meanOut", "mean", "groups", "Result, shape (N, group)."),
        result("rstdOut", "rstd", "groups", "Result, alike: ``1 / sqrt(variance + eps)``."),
    ),
    rules=(
        positive("group"),
        positive("eps"),
        sizes_are_selfs,
        same_format("self", "out"),
        channels_first("self"),
    ),
    lacks=("atlas-200i-500-a2",),
    one_type=True,
    notes="All tensors are of one type.",
)

GROUP_NORM_BACKWARD: Final = Page(
    "aclnnGroupNormBackward",
    Op.GROUP_NORM_BACKWARD,
    "Group norm's gradients",
    (
        operand(
            "gradOut",
            "dy",
            "data",
            "The gradient of the output, N * C * HxW elements in any shape.",
        ),
        operand(
            "input",
            "x",
            "data",
            "What the forward pass normalized, of as many elements and the same type.",
        ),
        operand("mean", "mean", "groups", "Of each group, N * group elements."),
        operand("rstd", "rstd", "groups", "``1 / sqrt(variance + eps)`` of each group, alike."),
        operand("gamma", "gamma", "channels", "C elements; null means ones.", required=False),
        *_SIZES,
        OUTPUT_MASK,
        result(
            "gradInput",
            "dx",
            "data",
            "Result, like ``input``; null where the mask is false.",
            when="outputMask[0]",
        ),
        result("gradGammaOut", "dgamma", "channels", "Result, C elements.", when="outputMask[1]"),
        result("gradBetaOut", "dbeta", "channels", "Result, C elements.", when="outputMask[2]"),
    ),
    rules=(
        same_type("gradOut", "input", "gradInput"),
        mean_fits_data,
        same_type("mean", "rstd", "gamma", "gradGammaOut", "gradBetaOut"),
        mask_has_three,
    ),
    adapt=sizes_are_arguments,
)

aclnnGroupNormGetWorkspaceSize, aclnnGroupNorm = stages(GROUP_NORM)
aclnnGroupNormBackwardGetWorkspaceSize, aclnnGroupNormBackward = stages(GROUP_NORM_BACKWARD)
