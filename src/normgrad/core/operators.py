"""The operators: what each takes and gives, and what shares a statistic. All else reads this table.

A *role* is what a tensor is to an operator. Every role has a slot, in which a backend gets its
address; new roles go to the end of the list, whose length is compiled into C.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

ROLES: Final = (
    "dy",
    "x",
    "mean",
    "rstd",
    "gamma",
    "sum_dy",
    "sum_dy_xmu",
    "counter",
    "dx",
    "dgamma",
    "dbeta",
    "beta",
    "y",
    "running_mean",
    "running_var",
    "variances",
    "residual",
    "sum",
    "dsum",
    "shortcut",
    "mask",
    "dshortcut",
)
SLOT: Final = {role: slot for slot, role in enumerate(ROLES)}
# What has the shape of the data, and of it what a call may do without.
DATA: Final = (
    *("dy", "x", "dx", "y", "variances"),
    *("residual", "sum", "dsum", "shortcut", "dshortcut"),
)
BESIDES: Final = ("residual", "dsum", "shortcut")
STATISTICS: Final = ("mean", "rstd")
RUNNING: Final = ("running_mean", "running_var")

# What may follow a norm, by torch's names.
ACTIVATIONS: Final = (
    *("relu", "relu6", "leaky_relu"),
    *("silu", "gelu", "gelu_tanh", "hardswish"),
)
ALSO_ACTIVATIONS: Final = {
    "silu": ("swish",),
    "gelu_tanh": ("gelu_new", "gelu_fast", "gelu_pytorch_tanh"),
}
# Of the vendors' interfaces alone: z * sigmoid(scale * z).
SWISH: Final = "swish"
# Those with a number of their own, ``Spec.negative_slope``.
NUMBERED: Final = ("leaky_relu", SWISH)

# How the axes of the data are read, and so what shares a statistic: "channels" has one axis of
# channels and a statistic for each; "groups" the samples' axis, then one of channels, and a
# statistic for each sample and group of channels; "rows" normalizes the last axes together.
Axes = Literal["channels", "groups", "rows"]


class Op(StrEnum):
    """The operators by name."""

    BATCH_NORM_BACKWARD = "batch_norm_backward"
    BATCH_NORM_REDUCE_BACKWARD = "batch_norm_reduce_backward"
    BATCH_NORM_ELEMT_BACKWARD = "batch_norm_elemt_backward"
    LAYER_NORM_BACKWARD = "layer_norm_backward"
    GROUP_NORM_BACKWARD = "group_norm_backward"
    RMS_NORM_BACKWARD = "rms_norm_backward"
    BATCH_NORM = "batch_norm"
    BATCH_NORM_STATS = "batch_norm_stats"
    BATCH_NORM_GATHER_STATS = "batch_norm_gather_stats"
    BATCH_NORM_ELEMT = "batch_norm_elemt"
    LAYER_NORM = "layer_norm"
    GROUP_NORM = "group_norm"
    RMS_NORM = "rms_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One row of the table.

    ``takes`` are the roles of the operands in the order in which they are passed, ``needs`` those
    that have no default besides the data; ``gives`` the roles of the results, ``updates`` those of
    the operands that are written in place besides. ``settings`` are names of ``Spec``'s fields in
    the order in which they are passed. ``sums`` says where the sums that a gradient subtracts come
    from: the operator's ``own``, ``given`` by the caller, or ``none``. ``besides`` are roles of
    results that only fused calls have, after the others.
    """

    axes: Axes
    takes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...]
    settings: tuple[str, ...]
    sums: Literal["own", "given", "none"] = "own"
    updates: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()  # public names of roles that are not the usual ones

    @property
    def forward(self) -> bool:
        """Whether it normalizes or makes statistics; others are gradients."""
        return "dy" not in self.takes

    @property
    def data_in(self) -> tuple[str, ...]:
        """The operands that have the shape of the data, those that every call has."""
        return tuple(role for role in self.takes if role in DATA and role not in BESIDES)

    @property
    def data_out(self) -> tuple[str, ...]:
        """The results that have it."""
        return tuple(role for role in (*self.gives, *self.besides) if role in DATA)

    @property
    def statistics(self) -> tuple[str, ...]:
        """The operands that have one element for what shares a statistic."""
        return tuple(role for role in self.takes if role in STATISTICS)

    @property
    def centred(self) -> bool:
        """Whether a mean is taken from the data; root mean squares have none."""
        return "mean" in (*self.takes, *self.gives)

    @property
    def least_rank(self) -> int:
        """How many axes the data have at least."""
        return 1 if self.axes == "rows" else 2


_DATA_AND_STATISTICS = ("dy", "x", *STATISTICS, "gamma", "beta")
_ACTIVATION = ("activation", "negative_slope")
_GRADIENTS = ("dx", "dgamma", "dbeta")
_NORMALIZED = ("y", *STATISTICS)

OPERATORS: Final[dict[Op, Operator]] = {
    Op.BATCH_NORM_BACKWARD: Operator(
        axes="channels",
        takes=(*_DATA_AND_STATISTICS, "shortcut", "mask"),
        gives=_GRADIENTS,
        settings=("training", "eps", "rstd_is", "channel_axis", *_ACTIVATION),
        besides=("dshortcut",),
    ),
    Op.BATCH_NORM_REDUCE_BACKWARD: Operator(
        axes="channels",
        takes=_DATA_AND_STATISTICS,
        needs=STATISTICS,
        gives=("sum_dy", "sum_dy_xmu", "dgamma", "dbeta"),
        settings=("channel_axis", "eps", "rstd_is", *_ACTIVATION),
        sums="none",
    ),
    Op.BATCH_NORM_ELEMT_BACKWARD: Operator(
        axes="channels",
        takes=(*_DATA_AND_STATISTICS, "sum_dy", "sum_dy_xmu", "counter"),
        needs=(*STATISTICS, "sum_dy", "sum_dy_xmu", "counter"),
        gives=("dx",),
        settings=("channel_axis", "eps", "rstd_is", *_ACTIVATION),
        sums="given",
    ),
    Op.LAYER_NORM_BACKWARD: Operator(
        axes="rows",
        takes=(*_DATA_AND_STATISTICS, "dsum"),
        needs=STATISTICS,
        gives=_GRADIENTS,
        settings=("normalized_shape", "eps", "rstd_is", *_ACTIVATION),
    ),
    Op.GROUP_NORM_BACKWARD: Operator(
        axes="groups",
        takes=_DATA_AND_STATISTICS,
        needs=STATISTICS,
        gives=_GRADIENTS,
        settings=("num_groups", "channel_axis", "eps", "rstd_is", *_ACTIVATION),
    ),
    Op.RMS_NORM_BACKWARD: Operator(
        axes="rows",
        takes=("dy", "x", "rstd", "gamma", "dsum"),
        needs=("rstd",),
        gives=("dx", "dgamma"),
        settings=("normalized_shape", "eps", "rstd_is", "weight_offset", *_ACTIVATION),
    ),
    Op.BATCH_NORM: Operator(
        axes="channels",
        takes=("x", "gamma", "beta", *RUNNING, "shortcut"),
        gives=_NORMALIZED,
        settings=("eps", "momentum", "channel_axis", *_ACTIVATION),
        updates=RUNNING,
        besides=("mask",),
    ),
    Op.BATCH_NORM_STATS: Operator(
        axes="channels",
        takes=("x",),
        gives=STATISTICS,
        settings=("channel_axis", "rstd_is"),
        sums="none",
    ),
    Op.BATCH_NORM_GATHER_STATS: Operator(
        axes="channels",
        takes=("x", "counter", *RUNNING, "variances"),
        needs=("variances", "counter"),
        gives=STATISTICS,
        settings=("eps", "momentum", "rstd_is"),
        sums="none",
        updates=RUNNING,
        names=(("x", "mean"), ("variances", "variance")),
    ),
    Op.BATCH_NORM_ELEMT: Operator(
        axes="channels",
        takes=("x", *STATISTICS, "gamma", "beta", "shortcut"),
        needs=STATISTICS,
        gives=("y",),
        settings=("channel_axis", "eps", "rstd_is", *_ACTIVATION),
        sums="given",
    ),
    Op.LAYER_NORM: Operator(
        axes="rows",
        takes=("x", "gamma", "beta", "residual"),
        gives=_NORMALIZED,
        settings=("normalized_shape", "eps", *_ACTIVATION),
        besides=("sum",),
    ),
    Op.GROUP_NORM: Operator(
        axes="groups",
        takes=("x", "gamma", "beta"),
        gives=_NORMALIZED,
        settings=("num_groups", "channel_axis", "eps", *_ACTIVATION),
    ),
    Op.RMS_NORM: Operator(
        axes="rows",
        takes=("x", "gamma", "residual"),
        gives=("y", "rstd"),
        settings=("normalized_shape", "eps", "weight_offset", *_ACTIVATION),
        besides=("sum",),
    ),
}
RESULTS: Final[dict[Op, tuple[str, ...]]] = {
    op: (*one.gives, *one.besides) for op, one in OPERATORS.items()
}
