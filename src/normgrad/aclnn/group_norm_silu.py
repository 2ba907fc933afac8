"""Group norm followed by SiLU, under the names of SiLU and of Swish."""

from typing import Final

from normgrad.aclnn.products import SAME_OR_FLOAT
from normgrad.aclnn.request import Request
from normgrad.aclnn.rules import Call, Rule, finite, one_of, positive, same_type
from normgrad.aclnn.stages import stages
from normgrad.aclnn.status import INVALID, NULLPTR, fail
from normgrad.aclnn.table import Page, Parameter, operand, option, result
from normgrad.core.operators import SWISH, Op

_LACKS: Final = ("atlas-200i-500-a2", "atlas-training")
_CONST: Final = "const aclTensor*"  # the results are const, too


def parameters_given(call: Call) -> None:
    """Gamma and beta may be null on Ascend 950 alone."""
    for name in ("gamma", "beta"):
        if name not in call.tensors and not call.product.mixed:
            fail(NULLPTR, f"{name} must not be null on {call.product.title}")


def parameters_fit(data: str) -> Rule:
    """Gamma and beta have the data's type or FLOAT, and one of the two."""
    alike = same_type("gamma", "beta")

    def rule(call: Call) -> None:
        for name, kind in call.given("gamma", "beta"):
            one_of(name, kind, SAME_OR_FLOAT[call.tensors[data].dtype])
        alike(call)

    return rule


def statistics_fit_self(call: Call) -> None:
    """Those of gamma or beta on Ascend 950, else self's."""
    model = call.tensors["self"]
    if call.product.mixed:
        model = call.tensors.get("gamma") or call.tensors.get("beta") or model
    for name, kind in call.given("meanOut", "rstdOut"):
        one_of(name, kind, (model.dtype,), f" on {call.product.title}")


def sizes_of_groups(data: str, group: str, *statistics: str) -> Rule:
    """Statistics of the shape (N, group), vectors of one axis."""

    def rule(call: Call) -> None:
        shape = call.tensors[data].tensor.shape
        expected = (*shape[:1], call.options[group])
        for name, kind in call.given(*statistics):
            if len(shape) > 1 and kind.tensor.shape != expected:
                rule = f"must have the shape (N, {group}), {expected}"
                fail(INVALID, f"{name} {rule}, got shape {kind.tensor.shape}")
        for name, kind in call.given("gamma", "beta"):
            if len(kind.tensor.shape) != 1:
                fail(INVALID, f"{name} must have one axis, got shape {kind.tensor.shape}")

    return rule


def silu_if(call: Call, request: Request) -> None:
    """The activation follows if an option says so."""
    if not call.options["activateSilu"]:
        request.fields["activation"] = None


def swish_if(call: Call, request: Request) -> None:
    """Likewise; of scale 1 it is SiLU."""
    scale = call.options["swishScale"]
    if not call.options.get("activateSwish", True):
        request.fields["activation"] = None
    elif scale != 1.0:
        request.fields |= {"activation": SWISH, "negative_slope": scale}


def _forward(data: str, *, required: bool) -> tuple[Parameter, ...]:
    return (
        operand(data, "x", "data", "Shape (N, C, ...), 2 to 8 axes; FLOAT, FLOAT16 or BF16."),
        operand("gamma", "gamma", "channels", "Shape (C,); its type or FLOAT.", required=required),
        operand("beta", "beta", "channels", "Shape (C,), alike.", required=required),
    )


def _results(out: str, c_type: str) -> tuple[Parameter, ...]:
    rstd = "Result, alike: ``1 / sqrt(variance + eps)``."
    return (
        result(out, "y", "data", "Result, like the data.", c_type=c_type),
        result("meanOut", "mean", "groups", "Result, shape (N, group).", c_type=c_type),
        result("rstdOut", "rstd", "groups", rstd, c_type=c_type),
    )


_GROUP: Final = option("group", "int", "num_groups", 3, "Number of groups.")
_GROUPS: Final = option("numGroups", "int", "num_groups", 3, "Number of groups.")
_EPS: Final = option("eps", "double", "eps", 1e-5, "Added to the variance; positive.")
_FORMAT: Final = option(
    "dataFormatOptional", "text", "", "NCHW", "Null or the name of a format; not looked at."
)
_SCALE: Final = option("swishScale", "double", "", 1.0, "What the sigmoid's z is scaled by.")
_SILU_RULES: Final = (
    parameters_given,
    parameters_fit("self"),
    same_type("self", "out"),
    statistics_fit_self,
    positive("group"),
    positive("eps"),
    sizes_of_groups("self", "group", "meanOut", "rstdOut"),
)

GROUP_NORM_SILU: Final = Page(
    "aclnnGroupNormSilu",
    Op.GROUP_NORM,
    "Group norm and SiLU",
    (*_forward("self", required=False), _GROUP, _EPS, *_results("out", "")),
    rules=_SILU_RULES,
    lacks=_LACKS,
    activation="silu",
    notes="Gamma and beta may be null on Ascend 950; the statistics have their type there.",
)

GROUP_NORM_SILU_V2: Final = Page(
    "aclnnGroupNormSiluV2",
    Op.GROUP_NORM,
    "Group norm, and SiLU if wanted",
    (
        *_forward("self", required=False),
        _GROUP,
        _EPS,
        option("activateSilu", "bool", "", True, "Whether SiLU follows."),
        *_results("out", ""),
    ),
    rules=_SILU_RULES,
    lacks=_LACKS,
    adapt=silu_if,
    activation="silu",
    header="group_norm_silu",
    notes="Gamma and beta may be null on Ascend 950; the statistics have their type there.",
)

GROUP_NORM_SWISH: Final = Page(
    "aclnnGroupNormSwish",
    Op.GROUP_NORM,
    "Group norm, and Swish if wanted",
    (
        *_forward("x", required=True),
        _GROUPS,
        _FORMAT,
        _EPS,
        option("activateSwish", "bool", "", True, "Whether Swish follows."),
        _SCALE,
        *_results("yOut", _CONST),
    ),
    rules=(
        parameters_fit("x"),
        same_type("x", "yOut"),
        same_type("gamma", "meanOut", "rstdOut"),
        positive("numGroups"),
        sizes_of_groups("x", "numGroups", "meanOut", "rstdOut"),
        finite("swishScale"),
    ),
    lacks=(*_LACKS, "atlas-inference"),
    adapt=swish_if,
    activation="silu",
)

GROUP_NORM_SWISH_GRAD: Final = Page(
    "aclnnGroupNormSwishGrad",
    Op.GROUP_NORM_BACKWARD,
    "The gradients of group norm and Swish",
    (
        operand("dy", "dy", "data", "The gradient of the output; FLOAT, FLOAT16 or BF16."),
        operand("mean", "mean", "groups", "Of each group, shape (N, numGroups)."),
        operand("rstd", "rstd", "groups", "``1 / sqrt(variance + eps)``, alike."),
        operand("x", "x", "data", "What the forward pass normalized, like ``dy``."),
        operand("gamma", "gamma", "channels", "Shape (C,)."),
        operand("beta", "beta", "channels", "Shape (C,)."),
        _GROUPS,
        _FORMAT,
        _SCALE,
        option("dgammaIsRequire", "bool", "", True, "Whether to compute ``dgammaOut``."),
        option("dbetaIsRequire", "bool", "", True, "Whether to compute ``dbetaOut``."),
        result("dxOut", "dx", "data", "Result, like ``x``.", c_type=_CONST),
        result(
            "dgammaOut",
            "dgamma",
            "channels",
            "Result, like ``gamma``.",
            when="dgammaIsRequire",
            c_type=_CONST,
        ),
        result(
            "dbetaOut",
            "dbeta",
            "channels",
            "Result, like ``beta``.",
            when="dbetaIsRequire",
            c_type=_CONST,
        ),
    ),
    rules=(
        positive("numGroups"),
        sizes_of_groups("dy", "numGroups"),
        finite("swishScale"),
    ),
    lacks=(*_LACKS, "atlas-inference"),
    adapt=swish_if,
    activation="silu",
    one_type=True,
)

aclnnGroupNormSiluGetWorkspaceSize, aclnnGroupNormSilu = stages(GROUP_NORM_SILU)
aclnnGroupNormSiluV2GetWorkspaceSize, aclnnGroupNormSiluV2 = stages(GROUP_NORM_SILU_V2)
aclnnGroupNormSwishGetWorkspaceSize, aclnnGroupNormSwish = stages(GROUP_NORM_SWISH)
aclnnGroupNormSwishGradGetWorkspaceSize, aclnnGroupNormSwishGrad = stages(GROUP_NORM_SWISH_GRAD)
