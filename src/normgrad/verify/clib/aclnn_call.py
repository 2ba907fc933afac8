"""The arguments of aclnn's backward operators, in order, for a case."""

import math
from dataclasses import dataclass
from typing import Any

from normgrad.aclnn.constants import ACL_FORMAT_ND, ACL_FORMAT_NHWC
from normgrad.spec import Op
from normgrad.verify.cases import Case
from normgrad.verify.problem import HostArray


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter by its aclnn name. Tensors hold a host array, and may have a false type."""

    name: str
    kind: str  # tensor, mask, sizes, bool, int, double
    value: Any
    role: str = ""
    form: int = ACL_FORMAT_ND
    dtype: int | None = None
    required: bool = True


def arguments_of(case: Case, hosts: dict[str, HostArray]) -> list[Argument]:
    """Everything but the workspace size and the executor."""
    return _MAKERS[case.op](case, hosts)


def _tensor(
    name: str,
    role: str,
    hosts: dict[str, HostArray],
    form: int = ACL_FORMAT_ND,
    *,
    required: bool = True,
) -> Argument:
    return Argument(name, "tensor", hosts.get(role), role, form, required=required)


def _mask(case: Case) -> Argument:
    return Argument("outputMask", "mask", list(case.wanted))


def _batch_norm(case: Case, hosts: dict[str, HostArray]) -> list[Argument]:
    form = ACL_FORMAT_NHWC if case.channel_axis == 3 else ACL_FORMAT_ND
    running, saved = ("running_mean", "running_var"), ("mean", "rstd")
    if not case.training:
        running, saved = ("mean", "rstd"), ("save_mean", "save_invstd")
    names = ("runningMean", "runningVar", "saveMean", "saveInvstd")
    vectors = [
        _tensor(name, role, hosts, required=False)
        for name, role in zip(names, (*running, *saved), strict=True)
    ]
    return [
        _tensor("gradOut", "dy", hosts, form),
        _tensor("input", "x", hosts, form),
        _tensor("weight", "gamma", hosts, required=False),
        *vectors,
        Argument("training", "bool", case.training),
        Argument("eps", "double", case.eps),
        _mask(case),
        _tensor("gradInput", "dx", hosts, form),
        _tensor("gradWeight", "dgamma", hosts),
        _tensor("gradBias", "dbeta", hosts),
    ]


def _elemt(case: Case, hosts: dict[str, HostArray]) -> list[Argument]:
    return [
        _tensor("gradOut", "dy", hosts),
        _tensor("input", "x", hosts),
        _tensor("mean", "mean", hosts),
        _tensor("invstd", "rstd", hosts),
        _tensor("weight", "gamma", hosts, required=False),
        _tensor("sumDy", "sum_dy", hosts),
        _tensor("sumDyXmu", "sum_dy_xmu", hosts),
        _tensor("counter", "counter", hosts),
        _tensor("gradInput", "dx", hosts),
    ]


def _layer_norm(case: Case, hosts: dict[str, HostArray]) -> list[Argument]:
    tail = list(case.normalized_shape)
    return [
        _tensor("gradOut", "dy", hosts),
        _tensor("input", "x", hosts),
        Argument("normalizedShape", "sizes", tail),
        _tensor("mean", "mean", hosts),
        _tensor("rstd", "rstd", hosts),
        _tensor("weightOptional", "gamma", hosts, required=False),
        Argument("biasOptional", "tensor", None, required=False),
        _mask(case),
        _tensor("gradInputOut", "dx", hosts),
        _tensor("gradWeightOut", "dgamma", hosts),
        _tensor("gradBiasOut", "dbeta", hosts),
    ]


def _group_norm(case: Case, hosts: dict[str, HostArray]) -> list[Argument]:
    return [
        _tensor("gradOut", "dy", hosts),
        _tensor("input", "x", hosts),
        _tensor("mean", "mean", hosts),
        _tensor("rstd", "rstd", hosts),
        _tensor("gamma", "gamma", hosts, required=False),
        Argument("N", "int", case.shape[0]),
        Argument("C", "int", case.shape[1]),
        Argument("HxW", "int", math.prod(case.shape[2:])),
        Argument("group", "int", case.num_groups),
        _mask(case),
        _tensor("gradInput", "dx", hosts),
        _tensor("gradGammaOut", "dgamma", hosts),
        _tensor("gradBetaOut", "dbeta", hosts),
    ]


_MAKERS = {
    Op.BATCH_NORM: _batch_norm,
    Op.BATCH_NORM_ELEMT: _elemt,
    Op.LAYER_NORM: _layer_norm,
    Op.GROUP_NORM: _group_norm,
}
