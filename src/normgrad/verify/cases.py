"""The named cases. Each id says why the case exists."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, Literal, get_args

from normgrad.core.dtypes import FLOATS
from normgrad.core.operators import ACTIVATIONS, OPERATORS
from normgrad.core.spec import Op, StatisticKind

DTYPES: Final = tuple(FLOATS)
EPS: Final = 1e-5
# Beside a variance of 9 the usual eps drowns in 16 and 32 bits; this one moves rstd by 3 %.
_LARGE_EPS: Final = 0.5
# How data lie in memory: first as people have them, which bench measures, then what must work too.
Layout = Literal[
    "contiguous",
    "channels-last",
    "sliced",
    "flipped",
    "transposed",
    "broadcast",
    "mixed",
    "offset",
]
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)
USUAL_LAYOUTS, ODD_LAYOUTS = LAYOUTS[:2], LAYOUTS[2:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem without its numbers. ``layout`` names how the data lie in memory."""

    id: str
    op: Op
    shape: tuple[int, ...]
    layout: Layout = "contiguous"
    channel_axis: int = 1
    num_groups: int = 1
    normalized: int = 1  # how many of the last axes are normalized together
    training: bool = True
    statistic: StatisticKind = "invstd"  # the second one, taken or given
    weight: bool = True
    mask: tuple[bool, ...] = ()
    statistics_dtype: str | None = None  # None: the data's own type
    own_weight: bool = False  # the weight has the data's type, not that of the statistics
    sums_dtype: str | None = None  # of the element stage; None: as batch_norm_reduce gives them
    counts_dtype: str = "int32"  # of its counts
    vectors: Layout = "contiguous"  # how statistics, weight and sums lie in memory
    both_statistics: bool = False  # where a call takes those of the other mode: other numbers
    poison: float | None = None  # one element of x and dy is this
    own_statistics: bool = True  # False: statistics that do not belong to the data
    centre: float = 100.0  # the mean of x, whose deviation is 3
    ranks: int = 3  # how many counts the element stage adds
    eps: float = EPS
    weight_offset: float = 0.0
    bias: bool = True  # where an operator takes one
    running: bool = False  # running statistics are updated
    biased: bool = False  # the variance among them by the biased one
    variances_are: StatisticKind = "variance"  # how the ranks' variances come
    momentum: float = 0.1
    activation: str | None = None
    negative_slope: float = 0.01
    residual: bool = False  # forward: one is added before the norm; backward: its sum had a use
    shortcut: Literal["none", "values", "mask"] = "none"  # what is added after the norm
    each_sample: bool = False  # weight and bias are of each sample
    spread: float = 3.0  # the deviation of x; 0: all elements are alike

    @property
    def name(self) -> str:
        """Operator and id."""
        return f"{self.op}/{self.id}"

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        """The last axes that are normalized together."""
        return self.shape[len(self.shape) - self.normalized :]

    @property
    def wanted(self) -> tuple[bool, ...]:
        """The mask, all results by default; that of fused calls is wanted where there is one."""
        count = len(self.results)
        return (*self.mask, *(True,) * (count - len(self.mask))) if self.mask else (True,) * count

    @property
    def fused(self) -> bool:
        """Whether it is more than a norm."""
        return bool(self.form)

    @property
    def form(self) -> str:
        """What it is besides a norm, in words; empty for a plain one."""
        words = ["residual"] if self.residual else []
        words += {"none": [], "values": ["shortcut"], "mask": ["shortcut mask"]}[self.shortcut]
        words += [self.activation] if self.activation else []
        words += ["each sample"] if self.each_sample else []
        return " + ".join(words)

    @property
    def results(self) -> tuple[str, ...]:
        """The roles of the results; what only fused calls have comes last."""
        operator = OPERATORS[self.op]
        fused = self.residual or self.shortcut == "mask"
        if not operator.forward:
            fused = self.shortcut != "none"
        return (*operator.gives, *operator.besides) if fused else operator.gives


def _from_variance(like: Case) -> Iterator[Case]:
    """A variance in the place of 1/std, with an eps that drowns beside it and one that counts."""
    yield replace(like, id="variance", statistic="variance")
    yield replace(like, id="variance-large-eps", statistic="variance", eps=_LARGE_EPS)


def _without_parameters(like: Case) -> Iterator[Case]:
    yield replace(like, id="no-weight", weight=False, bias=False)
    if OPERATORS[like.op].forward and "beta" in OPERATORS[like.op].takes:
        yield replace(like, id="weight-alone", bias=False)
        yield replace(like, id="bias-alone", weight=False)


def _given_statistics(like: Case) -> Iterator[Case]:
    """Statistics that do not belong to the data, where an operator takes any."""
    if OPERATORS[like.op].statistics:
        yield from _from_variance(like)
        yield replace(like, id="foreign-statistics", own_statistics=False)


def _own_statistics(like: Case, long: tuple[int, ...]) -> Iterator[Case]:
    """What statistics are measured by: |mean| / deviation of 10^4, and none at all."""
    if "rstd" in OPERATORS[like.op].gives:
        yield replace(like, id="mean-10000-deviations", centre=3e4)
        yield replace(like, id="mean-10000-deviations-long", centre=3e4, shape=long)
        yield replace(like, id="constant", spread=0.0, centre=100.3)
        yield replace(like, id="constant-long", spread=0.0, centre=0.1, shape=long)
        yield replace(like, id="large-eps", eps=_LARGE_EPS)


def _batch_like(op: Op) -> Iterator[Case]:
    shapes = {
        "nchw": (4, 6, 5, 7),
        "two-axes": (33, 10),
        "three-axes": (3, 17, 13),
        "five-axes": (2, 4, 3, 5, 6),
        "rank-8": (2, 3, 2, 1, 2, 2, 1, 3),
        "one-channel": (5, 1, 9),
        "one-element-per-statistic": (1, 5),
        "ragged-long": (3, 2, 7001),
        "many-channels": (3, 601, 2),
        "long-batch": (1031, 7),
        "wide-rows": (70, 130, 3),
        "empty-batch": (0, 4, 3),
        "empty-positions": (2, 4, 0),
        "no-channels": (3, 0, 4),
    }
    for name, shape in shapes.items():
        yield Case(id=name, op=op, shape=shape)
    yield Case(id="channels-last", op=op, shape=(4, 6, 5, 7), layout="channels-last")
    yield Case(id="channels-last-many", op=op, shape=(3, 130, 9, 8), layout="channels-last")
    yield Case(id="channels-last-5d", op=op, shape=(2, 19, 3, 4, 5), layout="channels-last")
    yield Case(id="nhwc-axis", op=op, shape=(4, 5, 7, 6), channel_axis=3)
    yield Case(id="channel-axis-first", op=op, shape=(6, 5, 7), channel_axis=0)
    for layout in ODD_LAYOUTS:
        yield Case(id=layout, op=op, shape=(4, 6, 5, 8), layout=layout)
    yield Case(id="mixed-squares", op=op, shape=(2, 19, 5, 7), layout="mixed")
    yield from _without_parameters(Case(id="", op=op, shape=(4, 6, 5)))
    yield Case(id="float32-statistics", op=op, shape=(4, 6, 35), statistics_dtype="float32")
    yield Case(
        id="float32-statistics-channels-last",
        op=op,
        shape=(4, 20, 5, 7),
        statistics_dtype="float32",
        layout="channels-last",
    )
    yield Case(
        id="float32-statistics-own-weight",
        op=op,
        shape=(4, 6, 35),
        statistics_dtype="float32",
        own_weight=True,
    )
    yield from _given_statistics(Case(id="", op=op, shape=(4, 6, 35)))
    yield from _own_statistics(Case(id="", op=op, shape=(4, 6, 35)), (3, 2, 7001))
    yield Case(id="vectors-with-gaps", op=op, shape=(4, 6, 35), vectors="sliced")
    yield Case(id="far-from-zero", op=op, shape=(4, 6, 5), centre=3000.0)
    yield Case(id="nan-in-data", op=op, shape=(4, 6, 5), poison=float("nan"))
    yield Case(id="inf-in-data", op=op, shape=(4, 6, 5), poison=float("inf"))


def _batch() -> Iterator[Case]:
    yield from _batch_like(Op.BATCH_NORM_BACKWARD)
    op = Op.BATCH_NORM_BACKWARD
    constant = Case(id="inference", op=op, shape=(4, 6, 35), training=False, statistic="variance")
    yield constant
    yield replace(constant, id="inference-large-eps", eps=_LARGE_EPS)
    yield replace(constant, id="inference-rstd", statistic="invstd")
    yield replace(
        constant, id="inference-channels-last", shape=(4, 12, 5, 7), layout="channels-last"
    )
    yield replace(constant, id="saved-statistics-too", both_statistics=True)
    yield Case(id="running-statistics-too", op=op, shape=(4, 6, 35), both_statistics=True)
    for layout, training in product(USUAL_LAYOUTS, (True, False)):
        mode = "" if training else "-inference"
        for mask in _masks(3):
            bits = "".join("01"[bit] for bit in mask)
            yield Case(
                id=f"mask-{bits}-{layout}{mode}",
                op=op,
                shape=(4, 6, 5, 7),
                mask=mask,
                layout=layout,
                training=training,
                statistic="invstd" if training else "variance",
                both_statistics=True,  # as frameworks call it, who know a mask
            )


def _reduce() -> Iterator[Case]:
    yield from _batch_like(Op.BATCH_NORM_REDUCE_BACKWARD)
    for mask in _masks(4):
        bits = "".join("01"[bit] for bit in mask)
        yield Case(id=f"mask-{bits}", op=Op.BATCH_NORM_REDUCE_BACKWARD, shape=(4, 6, 35), mask=mask)


def _elemt() -> Iterator[Case]:
    op = Op.BATCH_NORM_ELEMT_BACKWARD
    for case in _batch_like(op):
        if case.id != "no-channels":
            yield case
    yield Case(id="one-rank", op=op, shape=(4, 6, 35), ranks=1)
    yield Case(id="many-ranks", op=op, shape=(4, 6, 35), ranks=257)
    yield Case(
        id="sums-and-counts-of-other-types",
        op=op,
        shape=(4, 6, 35),
        sums_dtype="float16",
        counts_dtype="float32",
    )


def _rows(op: Op) -> Iterator[Case]:
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "rows": ((7, 64), 1),
        "one-axis": ((19,), 1),
        "two-normalized": ((3, 4, 5), 2),
        "all-normalized": ((3, 4, 5), 3),
        "rank-8": ((2, 1, 2, 3, 1, 2, 2, 3), 4),
        "ragged": ((13, 257), 1),
        "one-element-per-statistic": ((6, 1), 1),
        "long-row": ((3, 5003), 1),
        "row-for-a-team": ((7, 12296), 1),  # more columns than one block of a GPU takes
        "many-rows": ((1003, 24), 1),
        "wide-and-tall": ((130, 768), 1),
        "no-rows": ((0, 8), 1),
        "no-columns": ((5, 0), 1),
    }
    for name, (shape, normalized) in shapes.items():
        yield Case(id=name, op=op, shape=shape, normalized=normalized)
    for layout in ODD_LAYOUTS:
        yield Case(id=layout, op=op, shape=(6, 5, 8), layout=layout)
    yield Case(id="mixed-rows", op=op, shape=(9, 50), layout="mixed")
    yield from _without_parameters(Case(id="", op=op, shape=(9, 50)))
    yield Case(id="float32-statistics", op=op, shape=(9, 50), statistics_dtype="float32")
    yield Case(
        id="float32-statistics-own-weight",
        op=op,
        shape=(9, 50),
        statistics_dtype="float32",
        own_weight=True,
    )
    yield from _given_statistics(Case(id="", op=op, shape=(9, 50)))
    yield from _own_statistics(Case(id="", op=op, shape=(9, 50)), (3, 5003))
    yield Case(id="vectors-with-gaps", op=op, shape=(9, 50), vectors="sliced")
    yield Case(id="far-from-zero", op=op, shape=(9, 50), centre=3000.0)
    yield Case(id="nan-in-data", op=op, shape=(9, 50), poison=float("nan"))
    yield Case(id="inf-in-data", op=op, shape=(9, 50), poison=float("inf"))
    for mask in _masks(len(OPERATORS[op].gives)):
        bits = "".join("01"[bit] for bit in mask)
        yield Case(id=f"mask-{bits}", op=op, shape=(12, 33), mask=mask)


def _rms(op: Op) -> Iterator[Case]:
    yield from _rows(op)
    yield Case(id="weight-offset", op=op, shape=(9, 50), weight_offset=1.0)
    yield Case(id="weight-offset-alone", op=op, shape=(9, 50), weight=False, weight_offset=1.0)


def _group(op: Op) -> Iterator[Case]:
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "nchw": ((3, 12, 5, 7), 4),
        "group-of-10": ((2, 40, 6, 6), 4),
        "one-group": ((3, 6, 10), 1),
        "instance": ((3, 6, 10), 6),
        "two-axes": ((5, 12), 3),
        "rank-8": ((2, 4, 2, 1, 2, 2, 1, 3), 2),
        "one-element-per-statistic": ((2, 5, 1), 5),
        "ragged-long": ((1, 6, 7001), 2),
        "many-groups": ((2, 192, 9), 64),
        "many-samples": ((65, 12, 9), 4),
        "empty-batch": ((0, 8, 3), 2),
        "empty-positions": ((2, 8, 0), 2),
    }
    for name, (shape, groups) in shapes.items():
        yield Case(id=name, op=op, shape=shape, num_groups=groups)
    yield Case(id="channels-last", op=op, shape=(4, 20, 5, 7), num_groups=2, layout="channels-last")
    yield Case(
        id="channels-last-group-of-10",
        op=op,
        shape=(2, 320, 6, 6),
        num_groups=32,
        layout="channels-last",
    )
    yield Case(id="nhwc-axis", op=op, shape=(4, 5, 7, 6), channel_axis=3, num_groups=2)
    for layout in ODD_LAYOUTS:
        yield Case(id=layout, op=op, shape=(4, 6, 5, 8), num_groups=2, layout=layout)
    yield Case(id="mixed-squares", op=op, shape=(2, 34, 5, 7), num_groups=2, layout="mixed")
    yield from _without_parameters(Case(id="", op=op, shape=(4, 6, 35), num_groups=2))
    yield Case(
        id="no-weight-channels-last",
        op=op,
        shape=(4, 20, 5, 7),
        num_groups=2,
        weight=False,
        bias=False,
        layout="channels-last",
    )
    yield Case(
        id="float32-statistics", op=op, shape=(4, 6, 35), num_groups=2, statistics_dtype="float32"
    )
    yield Case(
        id="float32-statistics-own-weight",
        op=op,
        shape=(4, 6, 35),
        num_groups=2,
        statistics_dtype="float32",
        own_weight=True,
    )
    yield from _given_statistics(Case(id="", op=op, shape=(4, 6, 35), num_groups=2))
    yield from _own_statistics(Case(id="", op=op, shape=(4, 6, 35), num_groups=2), (1, 6, 7001))
    yield Case(id="vectors-with-gaps", op=op, shape=(4, 6, 35), num_groups=2, vectors="sliced")
    yield Case(id="far-from-zero", op=op, shape=(4, 6, 5), num_groups=2, centre=3000.0)
    yield Case(id="nan-in-data", op=op, shape=(4, 6, 5), num_groups=3, poison=float("nan"))
    yield Case(id="inf-in-data", op=op, shape=(4, 6, 5), num_groups=3, poison=float("inf"))
    for layout in USUAL_LAYOUTS:
        for mask in _masks(3):
            bits = "".join("01"[bit] for bit in mask)
            yield Case(
                id=f"mask-{bits}-{layout}",
                op=op,
                shape=(4, 12, 5, 7),
                num_groups=3,
                mask=mask,
                layout=layout,
            )


def _batch_forward() -> Iterator[Case]:
    op = Op.BATCH_NORM
    yield from _batch_like(op)
    running = Case(id="running-statistics", op=op, shape=(4, 6, 5, 7), running=True)
    yield running
    yield replace(running, id="running-momentum-1", momentum=1.0)
    yield replace(running, id="running-channels-last", layout="channels-last")
    yield replace(running, id="running-in-16-bits", statistics_dtype="float16")
    yield replace(running, id="running-with-gaps", vectors="sliced")
    yield replace(running, id="running-long", shape=(3, 2, 7001), momentum=0.3)
    yield replace(running, id="running-empty-batch", shape=(0, 4, 3))
    for layout in USUAL_LAYOUTS:
        for mask in _masks(3):
            bits = "".join("01"[bit] for bit in mask)
            yield Case(
                id=f"mask-{bits}-{layout}", op=op, shape=(4, 6, 5, 7), mask=mask, layout=layout
            )


_EVERY_ACTIVATION: Final = (
    Op.BATCH_NORM,
    Op.BATCH_NORM_BACKWARD,
    Op.LAYER_NORM,
    Op.LAYER_NORM_BACKWARD,
)


def _fused(like: Case, *shapes: tuple[int, ...]) -> Iterator[Case]:
    """What a norm is followed by: each activation by itself, two of them everywhere.

    An activation stands in one place and rides every layout; each is compiled anew for each.
    """
    op = OPERATORS[like.op]
    everywhere = ("relu", "silu")
    for name in ACTIVATIONS if like.op in _EVERY_ACTIVATION else everywhere:
        slope = 0.2 if name == "leaky_relu" else 0.01
        one = replace(like, id=name, activation=name, negative_slope=slope)
        yield one
        if op.axes != "rows" and name in everywhere:
            yield replace(one, id=f"{name}-channels-last", layout="channels-last")
    usual = replace(like, activation="silu")
    yield replace(usual, id="silu-no-weight", weight=False, bias=False)
    yield replace(usual, id="silu-sliced", layout="sliced")
    yield replace(usual, id="silu-mixed", layout="mixed")
    yield replace(usual, id="silu-float32-statistics", statistics_dtype="float32")
    yield replace(usual, id="silu-nan-in-data", poison=float("nan"))
    for shape in shapes:
        sizes = "x".join(map(str, shape))
        yield replace(usual, id=f"silu-{sizes}", shape=shape)
    if "training" in op.settings:
        yield replace(usual, id="silu-inference", training=False, statistic="variance")
    if "sum_dy" not in op.takes and not op.forward:
        for bits in _masks(len(op.gives)):
            if any(bits):
                name = "".join("01"[bit] for bit in bits)
                yield replace(usual, id=f"silu-mask-{name}", mask=bits)


_SHORTCUTS: Final[tuple[tuple[str | None, Literal["values", "mask"]], ...]] = (
    ("relu", "mask"),
    ("relu", "values"),
    ("silu", "values"),
    (None, "values"),
)


def _shortcuts(like: Case, *shapes: tuple[int, ...]) -> Iterator[Case]:
    """A residual network's sum behind the norm, in layouts that a mask has its own bytes for."""
    for name, how in _SHORTCUTS:
        if how == "mask" and like.op is Op.BATCH_NORM_ELEMT:
            continue
        one = replace(like, shortcut=how, activation=name)
        words = f"shortcut-{name}" if how == "values" else f"shortcut-{name}-mask"
        yield replace(one, id=words)
        yield replace(one, id=f"{words}-channels-last", layout="channels-last")
        if name is not None:
            yield replace(one, id=f"{words}-mixed", layout="mixed")
        for shape in shapes:
            yield replace(one, id=f"{words}-{'x'.join(map(str, shape))}", shape=shape)


def _residuals(like: Case, *shapes: tuple[int, ...]) -> Iterator[Case]:
    """A transformer's sum before the norm."""
    one = replace(like, residual=True)
    yield replace(one, id="residual")
    yield replace(one, id="residual-silu", activation="silu")
    yield replace(one, id="residual-sliced", layout="sliced")
    yield replace(one, id="residual-mixed", layout="mixed")
    yield replace(one, id="residual-no-weight", weight=False, bias=False)
    for shape in shapes:
        yield replace(one, id=f"residual-{'x'.join(map(str, shape))}", shape=shape)


def _modulated(like: Case, *shapes: tuple[int, ...]) -> Iterator[Case]:
    """Weights of each sample, as diffusion transformers have them."""
    one = replace(like, each_sample=True)
    yield replace(one, id="each-sample")
    yield replace(one, id="each-sample-silu", activation="silu")
    yield replace(one, id="each-sample-float32", statistics_dtype="float32")
    if OPERATORS[like.op].axes == "groups":
        yield replace(one, id="each-sample-channels-last", layout="channels-last")
    for shape in shapes:
        yield replace(one, id=f"each-sample-{'x'.join(map(str, shape))}", shape=shape)


def _fused_cases() -> Iterator[Case]:
    short, wide = (4, 6, 5, 7), (3, 130, 9, 8)
    for op in (
        Op.BATCH_NORM_BACKWARD,
        Op.BATCH_NORM_REDUCE_BACKWARD,
        Op.BATCH_NORM_ELEMT_BACKWARD,
        Op.BATCH_NORM,
        Op.BATCH_NORM_ELEMT,
    ):
        like = Case(id="", op=op, shape=short)
        yield from _fused(like, (3, 2, 7001), (1031, 7), (33, 10), (70, 130, 3), wide)
        if "shortcut" in OPERATORS[op].takes:
            yield from _shortcuts(like, (3, 2, 7001), (1031, 7), (70, 130, 3), wide)
    for op in (Op.LAYER_NORM_BACKWARD, Op.LAYER_NORM, Op.RMS_NORM_BACKWARD, Op.RMS_NORM):
        like = Case(id="", op=op, shape=(9, 50))
        yield from _fused(like, (1003, 24), (130, 768), (3, 5003), (7, 12296))
        yield from _residuals(like, (1003, 24), (130, 768), (3, 5003), (7, 12296))
        sampled = replace(like, shape=(3, 5, 50))
        yield from _modulated(sampled, (2, 401, 24), (5, 26, 768), (2, 2, 5003), (4, 50))
    for op in (Op.GROUP_NORM_BACKWARD, Op.GROUP_NORM):
        like = Case(id="", op=op, shape=(3, 12, 5, 7), num_groups=4)
        yield from _fused(like, (1, 12, 7001), (2, 320, 6, 6), (65, 12, 9))
        yield from _modulated(like, (2, 12, 7001), (2, 320, 6, 6), (65, 12, 9))


def _gather() -> Iterator[Case]:
    op = Op.BATCH_NORM_GATHER_STATS
    shapes = {"ranks": (8, 6), "one-rank": (1, 5), "many-ranks": (257, 33), "one-channel": (3, 1)}
    for name, shape in shapes.items():
        yield Case(id=name, op=op, shape=shape)
    yield Case(id="running-statistics", op=op, shape=(8, 6), running=True)
    yield Case(id="large-eps", op=op, shape=(8, 6), eps=_LARGE_EPS)
    yield Case(id="transposed", op=op, shape=(8, 6), layout="transposed")
    yield Case(id="vectors-with-gaps", op=op, shape=(8, 6), vectors="sliced", running=True)
    yield Case(id="counts-of-other-types", op=op, shape=(8, 6), counts_dtype="float32")
    yield Case(id="far-from-zero", op=op, shape=(8, 6), centre=3000.0)


def _masks(length: int) -> Iterator[tuple[bool, ...]]:
    yield from product((False, True), repeat=length)


CASES: Final[tuple[Case, ...]] = (
    *_batch(),
    *_reduce(),
    *_elemt(),
    *_rows(Op.LAYER_NORM_BACKWARD),
    *_group(Op.GROUP_NORM_BACKWARD),
    *_rms(Op.RMS_NORM_BACKWARD),
    *_batch_forward(),
    *(replace(case, statistic="variance") for case in _batch_like(Op.BATCH_NORM_STATS)),
    *_gather(),
    *_batch_like(Op.BATCH_NORM_ELEMT),
    *_rows(Op.LAYER_NORM),
    *_group(Op.GROUP_NORM),
    *_rms(Op.RMS_NORM),
    *_fused_cases(),
)


def select(op: str | None = None, case_id: str | None = None) -> tuple[Case, ...]:
    """The cases of one operator, or of one id, or all."""
    return tuple(
        case for case in CASES if (op is None or case.op == op) and case_id in (None, case.id)
    )
