"""A plain kernel in the compute type, honest or wrong in one way: what the judge is judged by.

It shares nothing with the reference's formula but the canonical view of the data.
"""

import numpy as np

from normgrad.arrays import host_memory
from normgrad.core.dtypes import compute_dtype
from normgrad.core.spec import Op
from normgrad.verify import HostArray

WRONG = (
    "all-zero",  # a kernel that never ran
    "no-mean-term",  # dx without the mean of g
    "no-slope-term",  # dx without the projection on xhat
    "swapped-count",  # divided by the other axes' count
    "stale-statistic",  # the rstd of the neighbour
    "own-mean",  # recomputed from the data instead of used as given
    "weight-outside",  # pulled out of sums over which it varies (a published erratum)
    "no-weight",
    "unused-first-rank",  # one count of the element stage forgotten
    "second-term-only",  # invstd * weight on the second term alone (a published erratum)
    "inference-corrected",  # the correction terms of training in inference
    "no-eps",
    "usual-eps",  # 1e-5 whatever was asked for
    "dropped-tail",  # the last sample or row missing in the sums
    "late-subtraction",  # x * rstd - mean * rstd: digits are lost far from 0
    "sixteen-bit-sums",  # accumulated in the storage type
    "sixteen-bit-xhat",  # an intermediate rounded to storage
    "off-by-one-element",  # one element of dx is its neighbour's
    "other-statistics",  # batch norm's of the other mode win wherever they are given
    "one-vector-type",  # weight and sums read as if all vectors had one type
    "dense-vectors",  # steps of vectors ignored
    "strides-of-x",  # taken for those of dy too
    "fixed-sizes",  # 16384 terms of a sum, 512 channels
    "null-weight",  # a weight that is not there read as 0, in the kernel for channels-last data
)


def run(problem, wrong=None):
    """Results by role as float64, rounded into the types of the problem."""
    with np.errstate(all="ignore"):
        values = _compute(problem, wrong)
    results = {}
    for role in problem.wanted:
        dtype = problem.result_dtypes[role]
        rounded = host_memory.widen(host_memory.narrow(np.float64(values[role]), dtype), dtype)
        if role == "dx" and problem.case.op is Op.GROUP_NORM_BACKWARD:
            shape = problem.spec.x.shape
            rounded = np.moveaxis(rounded.reshape(shape), 1, problem.case.channel_axis)
        elif role == "dx":
            rounded = rounded.reshape(problem.case.shape)
        results[role] = rounded
    return results


def _operands(problem, wrong):
    geometry, case = problem.geometry, problem.case
    kinds = [host.dtype for role, host in problem.operands.items() if role != "counter"]
    number = np.dtype(compute_dtype((*kinds, *problem.result_dtypes.values())))
    for role, host in problem.operands.items():
        values = _misread(problem, role, host, wrong).values
        if case.op is Op.GROUP_NORM_BACKWARD and role in ("dy", "x"):
            values = np.moveaxis(values, case.channel_axis, 1)
        if role != "counter":
            values = values.reshape(geometry.shape_of(role)).astype(number)
        yield role, values


def _misread(problem, role, host, wrong):
    """The operand as a kernel sees it that reads memory in another way than it was told."""
    operands = problem.operands
    if wrong == "other-statistics" and role in ("mean", "rstd") and problem.unread:
        return list(problem.unread.values())[role == "rstd"]
    if wrong == "dense-vectors" and role not in ("dy", "x", "counter"):
        dense = np.lib.stride_tricks.as_strided(
            host.array, strides=np.empty_like(host.array).strides
        )
        return HostArray(dense, host.dtype)
    if wrong == "one-vector-type" and role in ("gamma", "sum_dy", "sum_dy_xmu"):
        dtype = operands["rstd"].dtype if role == "gamma" else "float32"
        bits = host.array.ravel().view(host_memory.STORAGE[dtype])
        return HostArray(np.resize(bits, host.array.shape), dtype)
    if wrong == "strides-of-x" and role == "dy" and 0 not in host.array.strides:
        strides = operands["x"].array.strides
        return HostArray(np.lib.stride_tricks.as_strided(host.array, strides=strides), host.dtype)
    return host


def _compute(problem, wrong):
    case, geometry = problem.case, problem.geometry
    op, of = case.op, dict(_operands(problem, wrong))
    dy, x = of["dy"], of["x"]
    one = x.dtype.type(1)

    def rounded(values):
        narrow = host_memory.narrow(np.float64(values), problem.dtype)
        return host_memory.widen(narrow, problem.dtype).astype(x.dtype)

    def total(values, axes):
        if wrong == "dropped-tail" and axes == (0, 3):
            values = values[:-1]
        if wrong == "sixteen-bit-sums":
            return _narrow_sum(values, axes, rounded)
        if wrong == "fixed-sizes":
            return _short_sum(values, axes)
        return values.sum(axis=axes, keepdims=True, dtype=x.dtype)

    mean, rstd = of.get("mean", 0 * one), of["rstd"]
    gamma = of.get("gamma", one) + x.dtype.type(case.weight_offset)
    if wrong == "null-weight" and "gamma" not in of and case.layout == "channels-last":
        gamma = 0 * one
    as_variance = case.statistic == "variance"
    if wrong == "other-statistics" and problem.unread:
        as_variance = case.training
    if as_variance:
        eps = {"no-eps": 0.0, "usual-eps": 1e-5}.get(wrong, case.eps)
        rstd = one / np.sqrt(rstd + x.dtype.type(eps))
    if wrong == "stale-statistic":
        rstd = np.roll(rstd, 1, axis=2 if geometry.statistic == "channel" else 0)
    if wrong == "own-mean" and "mean" in of:
        mean = x.sum(axis=geometry.statistic_axes, keepdims=True) / x.dtype.type(geometry.count)
    if wrong == "no-weight":
        gamma = one
    xmu = x - mean
    if op is Op.BATCH_NORM_REDUCE_BACKWARD:
        sum_dy, sum_dy_xmu = total(dy, (0, 3)), total(dy * xmu, (0, 3))
        values = {"sum_dy": sum_dy, "sum_dy_xmu": sum_dy_xmu}
        values |= {"dgamma": sum_dy_xmu * rstd, "dbeta": sum_dy}
        return {role: 0 * value if wrong == "all-zero" else value for role, value in values.items()}
    xhat = rounded(xmu * rstd) if wrong == "sixteen-bit-xhat" else xmu * rstd
    if wrong == "late-subtraction":
        xhat = x * rstd - mean * rstd
    values = {"dgamma": total(dy * xhat, (0, 3)), "dbeta": total(dy, (0, 3))}
    channel = geometry.statistic == "channel"
    weight, factor = (one, rstd * gamma) if channel else (gamma, rstd)
    if wrong == "weight-outside" and not channel:
        weight, factor = one, rstd * gamma
    g = dy * weight
    if op is Op.BATCH_NORM_ELEMT_BACKWARD:
        counts = of["counter"][1:] if wrong == "unused-first-rank" else of["counter"]
        mean_d, mean_dt = of["sum_dy"] / counts.sum(), of["sum_dy_xmu"] * rstd / counts.sum()
    else:
        count = geometry.channels if wrong == "swapped-count" else geometry.count
        mean_d, mean_dt = (
            total(term, geometry.statistic_axes) / x.dtype.type(count) for term in (g, g * xhat)
        )
    mean_d = 0 * mean_d if wrong == "no-mean-term" or "mean" not in of else mean_d
    mean_dt = 0 * mean_dt if wrong == "no-slope-term" else mean_dt
    if case.training or wrong == "inference-corrected":
        dx = (g - mean_d - xhat * mean_dt) * factor
        if wrong == "second-term-only":
            dx = g - mean_d - xhat * mean_dt * factor
    else:
        dx = g * factor
    if wrong == "off-by-one-element" and dx.size > 1:
        dx.reshape(-1)[-1] = dx.reshape(-1)[-2]
    values["dx"] = dx
    return {role: 0 * value if wrong == "all-zero" else value for role, value in values.items()}


def _short_sum(values, axes):
    terms = np.moveaxis(values, axes, (2, 3))
    kept = terms.reshape(*terms.shape[:2], terms.shape[2] * terms.shape[3])
    kept = kept[..., :16384].sum(axis=2)
    sums = np.expand_dims(kept, axes)
    sums[:, :, 512:] = 0
    return sums


def _narrow_sum(values, axes, rounded):
    """One term after another, each partial sum rounded to storage; the first 300 are enough."""
    rest = [axis for axis in range(4) if axis not in axes]
    first, second = (values.shape[axis] for axis in axes)
    kept = [values.shape[axis] for axis in rest]
    terms = values.transpose(*axes, *rest).reshape(first * second, *kept)
    sums = np.zeros(kept, values.dtype)
    for term in terms[:300]:
        sums = rounded(sums + term)
    sums = sums + terms[300:].sum(axis=0)
    return np.expand_dims(sums, axes)
