"""Calls whose arguments do not fit: a sentence that says what was meant, or where to get it."""

import functools
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

from normgrad.core.errors import CallError, OptionError
from normgrad.core.operators import OPERATORS
from normgrad.core.options import described
from normgrad.core.spec import Op, StatisticKind

P = ParamSpec("P")
R = TypeVar("R")

# What people call these arguments elsewhere.
_ELSEWHERE: Final = {
    "grad_out": ("dy", "grad", "grad_output", "dout", "gradOut", "grad_y"),
    "input": ("x", "inp", "data"),
    "mean": ("save_mean", "running_mean", "saved_mean", "mu", "saveMean", "runningMean"),
    "rstd": ("invstd", "inv_std", "save_invstd", "save_rstd", "saveInvstd", "saved_invstd"),
    "variance": ("var", "running_var", "save_var", "runningVar", "save_invstd_is"),
    "weight": ("gamma", "scale", "w"),
    "bias": ("beta", "shift"),
    "count": ("counter", "counts"),
    "eps": ("epsilon",),
    "num_groups": ("groups", "group", "G"),
    "normalized_shape": ("shape", "normalizedShape", "dims"),
    "channel_axis": ("axis", "dim", "channel_dim"),
    "output_mask": ("mask", "outputMask", "wanted"),
    "training": ("train",),
}
_MEANT: Final = {name: ours for ours, names in _ELSEWHERE.items() for name in names}

_PER: Final = {"rows": "row", "groups": "sample and group", "channels": "channel"}


def _where_from(op: Op) -> str:
    """Where a caller gets the statistics of an operator."""
    per = _PER[OPERATORS[op].axes]
    if op is Op.BATCH_NORM_ELEMT:
        return f"one element for each {per}, as batch_norm_gather_stats gives it"
    saved = f"one element for each {per}, as the forward pass saved it"
    if op is not Op.BATCH_NORM_BACKWARD:
        return saved
    running = "with training=False the running one, as in "
    call = "batch_norm_backward(dy, x, running_mean, variance=running_var, training=False)"
    return f"{saved}; {running}{call}"


def one_of_rstd_and_variance(
    op: Op, mean: Any, rstd: Any, variance: Any
) -> tuple[Any, StatisticKind]:
    """The second statistic and how to read it; neither it nor the mean is ever assumed."""
    if mean is None and OPERATORS[op].centred:
        raise OptionError("mean", f"must be given ({_where_from(op)})", None)
    if variance is None:
        if rstd is None:
            rule = f"or variance= with eps= must be given ({_where_from(op)})"
            raise OptionError("rstd", rule, None)
        return rstd, "invstd"
    if rstd is not None:
        rule = "must be None where rstd is given: one of the two says all"
        raise OptionError("variance", rule, described(variance))
    return variance, "variance"


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """The same function; a call that does not fit its signature raises our ``CallError``."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            at = error.__traceback__
            if at is not None and at.tb_next is None:  # raised by the call, not inside
                raise CallError(_explanation(function, args, kwargs, error)) from None
            raise

    return call


def _explanation(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: TypeError
) -> str:
    """What is wrong with these arguments: a name, too many by position, or one that is missing."""
    import inspect

    name = function.__qualname__.removesuffix(".__init__")
    parameters = dict(inspect.signature(function).parameters)
    if name != function.__qualname__:
        del parameters["self"]
        args = args[1:]
    for given in kwargs:
        if given not in parameters:
            return f"{name} has no argument {given!r}: {_suggestion(given, list(parameters))}"
    by_place = [one.name for one in parameters.values() if one.kind is one.POSITIONAL_OR_KEYWORD]
    if len(args) > len(by_place):
        extra = described(args[len(by_place)])
        number = {0: "no arguments", 1: "one argument"}.get(
            len(by_place), f"{len(by_place)} arguments"
        )
        places = f"{number} by position" + (f" ({', '.join(by_place)})" if by_place else "")
        named = [one for one in parameters if one not in by_place]
        such = "weight" if "weight" in named else named[0] if named else None
        rest = f"give the others by name, such as {such}=" if such else "there are no others"
        return f"{name} takes {places}, got {len(args)}: {rest} (the first left over is {extra})"
    required = [one for one in by_place if parameters[one].default is inspect.Parameter.empty]
    missing = [one for one in required[len(args) :] if one not in kwargs]
    if not missing:  # one that is given twice, which Python says well enough
        return str(error)
    listed = ", ".join(missing)
    wanted = [one for one in missing if one in ("mean", "rstd")]
    where = f" ({wanted[0]}: {_where_from(Op(name))})" if wanted else ""
    return f"{name} needs {listed}, in the order {', '.join(by_place)}{where}"


def _suggestion(given: str, names: list[str]) -> str:
    meant = _MEANT.get(given) or _MEANT.get(given.lower())
    if meant not in names:
        import difflib

        close = difflib.get_close_matches(given.lower(), names, 1)
        meant = close[0] if close else None
    if meant is None:
        return f"it takes {', '.join(names)}"
    return f"did you mean {meant}?"
