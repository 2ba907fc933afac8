"""A plain forward kernel in the compute type, honest or wrong in one way."""

import numpy as np

from normgrad.arrays import host_memory
from normgrad.core.operators import Op


def run(problem, wrong=None):
    """Results by role as float64, rounded into the types of the problem."""
    with np.errstate(all="ignore"):
        values = _compute(problem, wrong)
    results, spec = {}, problem.spec
    for role in problem.measured:
        tensor = spec.present(role)
        value = values[role] if wrong != "all-zero" else np.zeros_like(values[role])
        narrow = host_memory.narrow(np.float64(value).reshape(tensor.shape), tensor.dtype)
        wide = host_memory.widen(narrow, tensor.dtype)
        if role == "y" and spec.operator.axes == "groups":
            wide = np.moveaxis(wide, 1, problem.case.channel_axis)
        results[role] = wide
    return results


def _compute(problem, wrong):
    case, geometry, spec = problem.case, problem.geometry, problem.spec
    of = {}
    number = np.float64 if problem.dtype == "float64" else np.float32
    for role, host in problem.operands.items():
        values = host.values
        if spec.operator.axes == "groups" and role == "x":
            values = np.moveaxis(values, case.channel_axis, 1)
        of[role] = values if role == "counter" else values.reshape(geometry.shape_of(role))
        of[role] = of[role].astype(number)
    x, axes = of["x"], geometry.statistic_axes
    count, one = number(max(geometry.count, 1)), number(1)

    def total(values):
        if wrong == "dropped-tail":
            values = values[:, :, :, :-1] if values.shape[3] > 1 else values
        if wrong == "sixteen-bit-sums" and values.size:
            rows = np.moveaxis(values, axes, (2, 3)).reshape(*_kept(values, axes), -1)
            sums = np.zeros(rows.shape[:2])
            for at in range(min(rows.shape[2], 200)):
                narrow = host_memory.narrow(sums + rows[:, :, at], problem.dtype)
                sums = host_memory.widen(narrow, problem.dtype)
            sums = sums + rows[:, :, 200:].sum(axis=2)
            return np.expand_dims(sums, axes).astype(number)
        return values.sum(axis=axes, keepdims=True, dtype=number)

    if case.op is Op.BATCH_NORM_GATHER_STATS:
        counts = np.float64(of["counter"]).reshape(-1, 1, 1, 1)
        counts = np.ones_like(counts) if wrong == "equal-ranks" else counts
        count = counts.sum()
        mean = (np.float64(x) * counts).sum(axis=0, keepdims=True) / count
        apart = 0 if wrong == "means-alike" else (x - mean) ** 2
        variance = ((of["variances"] + apart) * counts).sum(axis=0, keepdims=True) / count
    elif case.op is Op.BATCH_NORM_ELEMT:
        mean, variance = of["mean"], of["rstd"]
    elif not geometry.size:
        mean = variance = total(x)
    else:
        first = x[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(4))]
        first = 0 * first if wrong == "constant-off" else first
        mean = first + total(x - first) / count
        if wrong == "no-mean" or not spec.operator.centred:
            mean = np.zeros_like(mean)
        variance = total((x - mean) ** 2) / count
        if wrong == "squares-minus-square":
            variance = total(x * x) / count - mean * mean
        if wrong == "unbiased":
            variance = variance * count / max(count - one, one)
    eps = number(0 if wrong == "no-eps" else case.eps)
    given = case.op is Op.BATCH_NORM_ELEMT and case.statistic == "invstd"
    rstd = variance if given else one / np.sqrt(variance + eps)
    if wrong == "stale-statistic":
        mean = np.roll(mean, 1, axis=2 if geometry.statistic == "channel" else 0)
    gamma = of.get("gamma", one) + number(0 if wrong == "no-offset" else case.weight_offset)
    gamma = one if wrong == "no-weight" else gamma
    beta = 0 if wrong == "no-bias" else of.get("beta", 0)
    y = (x - mean) * (rstd * gamma) + beta
    if wrong == "late-subtraction":
        y = x * (rstd * gamma) + (beta - mean * rstd * gamma)
    as_variance = case.op is Op.BATCH_NORM_STATS
    values = {"y": y, "mean": mean, "rstd": variance if as_variance else rstd}
    wider = variance if wrong == "biased-running" else variance * count / max(count - one, one)
    share = case.momentum if geometry.size and wrong != "running-untouched" else 0.0
    share = 1 - share if wrong == "swapped-momentum" else share
    for role, statistic in (("running_mean", mean), ("running_var", wider)):
        if role in of:
            values[role] = number(1 - share) * of[role] + number(share) * statistic
    return values


def _kept(values, axes):
    return [values.shape[axis] for axis in range(4) if axis not in axes]
