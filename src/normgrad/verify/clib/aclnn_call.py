"""The arguments of an aclnn operator, in order, for a case: by the roles that its page names."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normgrad.aclnn.constants import ACL_BF16, ACL_FORMAT_ND, ACL_FORMAT_NHWC
from normgrad.aclnn.products import Product
from normgrad.aclnn.request import INFERENCE
from normgrad.aclnn.table import Page, Parameter
from normgrad.arrays import host_memory
from normgrad.core.operators import OPERATORS, STATISTICS, SWISH, Op
from normgrad.verify.cases import Case
from normgrad.verify.clib.beside import WEIGHT_OF_X
from normgrad.verify.clib.memory import nan_like
from normgrad.verify.problem import HostArray, Problem

# Where parameters may be null on Ascend 950 alone, and where vectors may be wider than data there.
PARAMETERS_GIVEN = ("aclnnGroupNormSilu", "aclnnGroupNormSiluV2")
WIDER_ON_950 = ("aclnnBatchNormBackward", "aclnnGroupNormBackward", *PARAMETERS_GIVEN)
WIDER_WITH_BF16 = ("aclnnRmsNorm", "aclnnRmsNormGrad")


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter by its aclnn name. Tensors hold a host array, and may have a false type."""

    name: str
    kind: str  # tensor, or a kind of the page's
    value: Any
    role: str = ""
    form: int = ACL_FORMAT_ND
    dtype: int | None = None
    required: bool = True
    writes: str = ""  # the result that an operand becomes


def arguments_of(page: Page, case: Case, hosts: dict[str, HostArray]) -> list[Argument]:
    """Everything but the workspace size and the executor."""
    return [_argument(page, one, case, hosts) for one in page.parameters]


def _argument(page: Page, one: Parameter, case: Case, hosts: dict[str, HostArray]) -> Argument:
    if not one.is_tensor:
        return Argument(one.name, one.kind, _value(page, one, case))
    role = one.role if case.training else INFERENCE.get(one.role, one.role)
    last = one.shape == "data" and case.channel_axis != 1
    form = ACL_FORMAT_NHWC if last else ACL_FORMAT_ND
    more: dict[str, Any] = {"required": one.required, "writes": one.writes}
    value = hosts.get(role)
    if value is None and role == "residual":  # of a gradient, whose cases have the sum
        x = hosts["x"]
        rest = WEIGHT_OF_X * x.values if _weighted(page) else np.zeros(x.array.shape)
        value = HostArray(host_memory.narrow(rest, x.dtype), x.dtype)
    if value is None and role == "dshortcut":
        value = nan_like(hosts["dx"].tensor)
    if not role and one.required:  # looked at for its sizes alone
        value = HostArray(np.ones((2, case.shape[1], 4), np.float32), "float32")
    return Argument(one.name, "tensor", value, role, form, **more)


def _value(page: Page, one: Parameter, case: Case) -> Any:
    if one.kind == "mask":
        return list(case.wanted)
    if one.kind == "sizes":
        return list(case.normalized_shape)
    if one.role:
        return getattr(case, one.role)
    if one.name == "swishScale" and case.activation == SWISH:
        return case.negative_slope
    wanted = dict(zip(case.results, case.wanted, strict=True))
    asking = [
        wanted[other.role]
        for other in page.parameters
        if other.when == one.name and other.role in wanted
    ]
    if asking:
        return asking[0]
    shape = case.shape
    sizes = {"N": shape[0], "C": shape[1], "HxW": math.prod(shape[2:])} if len(shape) > 1 else {}
    return sizes.get(one.name, one.example)


def as_page(page: Page, product: Product, case: Case) -> Case:
    """The case with the statistics that page and product name, in their type if they have one."""
    if page.op is Op.BATCH_NORM and product.saves_variance and case.training:
        case = replace(case, statistic="variance")
    if page.op is Op.BATCH_NORM_STATS:
        case = replace(case, statistic="invstd")
    if page.op is Op.BATCH_NORM_GATHER_STATS:
        case = replace(case, variances_are="invstd", counts_dtype="float32")
    if not _has_wide_statistics(page):
        return case
    own = page.one_type or case.own_weight or not takes_wider_vectors(page, product)
    return replace(case, statistics_dtype="float32", own_weight=own)


def _weighted(page: Page) -> bool:
    """Whether the sum that is normalized has a weight, which is `WEIGHT_OF_X` here."""
    return any(one.name == "alpha" for one in page.parameters)


def _has_wide_statistics(page: Page) -> bool:
    return any(one.kind == "in" and one.role == "rstd" and one.types for one in page.parameters)


def takes_wider_vectors(page: Page, product: Product) -> bool:
    """Whether vectors may be FLOAT beside narrower data, as far as that is the product's matter."""
    if page.name in WIDER_WITH_BF16:
        return ACL_BF16 in product.floats
    return product.mixed or page.name not in WIDER_ON_950


def expressible(page: Page, case: Case, product: Product) -> bool:
    """Whether the operator has a place for all that a case wants.

    Statistics as 1/sqrt(var + eps), channels at axis 1 or tagged NHWC, no negative strides.
    """
    tagged = page.channels_last and product.channels_last
    last = tagged and case.channel_axis == len(case.shape) - 1
    saved = page.op is Op.BATCH_NORM and product.saves_variance
    usual = saved or (case.statistic == "variance") is not case.training
    placed = case.layout != "flipped" and (case.channel_axis == 1 or last)
    fused = page.activation == case.activation and case.shortcut == "none" and not case.each_sample
    fitting = usual and placed and fused and _takes_types(page, case, product)
    return fitting and _takes_operands(page, case) and _takes_mask(page, case)


def _takes_types(page: Page, case: Case, product: Product) -> bool:
    """Types that the product relates, parameters that it wants."""
    if page.name in PARAMETERS_GIVEN and not product.mixed and not (case.bias and case.weight):
        return False
    own = case.own_weight if _has_wide_statistics(page) else case.statistics_dtype is None
    return own or takes_wider_vectors(page, product)


def _takes_operands(page: Page, case: Case) -> bool:
    """Types that the page relates, a weight that it wants, channels that there are."""
    roles = {one.role for one in page.parameters}
    if case.residual and not roles & {"residual", "dsum"}:
        return False
    if _weighted(page):  # a rounded sum is another's
        if case.residual or case.normalized == len(case.shape):
            return False
    elif "residual" in roles and "dsum" not in roles and not case.residual:
        return False
    gammas = [one for one in page.parameters if one.role == "gamma"]
    if any(one.required for one in gammas) and not case.weight:
        return False
    betas = [one for one in page.parameters if one.role == "beta"]
    if any(one.required for one in betas) and not case.bias:
        return False
    mixed = case.statistics_dtype is not None or case.own_weight
    alike = page.one_type and not _has_wide_statistics(page)
    if mixed and (alike or (page.op is Op.GROUP_NORM_BACKWARD and case.own_weight)):
        return False
    channels = case.shape[case.channel_axis] if OPERATORS[page.op].axes == "channels" else 1
    offset = 1.0 if page.name == "aclnnGemmaRmsNorm" else 0.0
    return case.weight_offset == offset and not (page.needs_channels and channels == 0)


def _takes_mask(page: Page, case: Case) -> bool:
    """Whether the results that are not wanted may be left out."""
    unwanted = {role for role, want in zip(case.results, case.wanted, strict=True) if not want}
    for one in page.parameters:
        together = {other.role for other in page.parameters if other.when == one.when}
        if one.role not in unwanted or one.kind == "in":
            continue
        if one.when == "training" or (one.required and not one.when):
            return False
        if one.when and "[" not in one.when and not together <= unwanted:
            return False
    return True


def result_dtype(page: Page, role: str, problem: Problem, usual: str) -> str:
    """The type of a result: the page's, where it has one, or that of other tensors."""
    (one,) = [one for one in page.parameters if role in (one.role, one.writes)]
    if one.types:
        return "float32"
    if page.activation and role in STATISTICS:
        beside = problem.operands.get("gamma") or problem.operands.get("beta")
        return beside.dtype if beside else problem.dtype
    return problem.dtype if page.one_type else usual
