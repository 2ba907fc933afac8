"""The named cases. Each id says why the case exists."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, get_args

from normgrad.dtypes import FLOATS
from normgrad.spec import RESULTS, Op, StatisticKind

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
    normalized: int = 1  # how many of the last axes layer norm normalizes
    training: bool = True
    statistic: StatisticKind = "invstd"
    weight: bool = True
    mask: tuple[bool, ...] = ()
    statistics_dtype: str | None = None  # None: the data's own type
    own_weight: bool = False  # the weight has the data's type, not that of the statistics
    sums_dtype: str | None = None  # of the element stage; None: as batch_norm_reduce gives them
    counts_dtype: str = "int32"  # of its counts
    vectors: Layout = "contiguous"  # how statistics, weight and sums lie in memory
    both_statistics: bool = False  # those that the mode does not read are given too, other numbers
    poison: float | None = None  # one element of x and dy is this
    own_statistics: bool = True  # False: statistics that do not belong to the data
    centre: float = 100.0  # the mean of x, whose deviation is 3
    ranks: int = 3  # how many counts the element stage adds
    eps: float = EPS

    @property
    def name(self) -> str:
        """Operator and id."""
        return f"{self.op}/{self.id}"

    @property
    def normalized_shape(self) -> tuple[int, ...]:
        """Layer norm's last axes."""
        return self.shape[len(self.shape) - self.normalized :]

    @property
    def wanted(self) -> tuple[bool, ...]:
        """The mask, all results by default."""
        return self.mask or (True,) * len(RESULTS[self.op])


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
    yield Case(id="no-weight", op=op, shape=(4, 6, 5), weight=False)
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
    yield Case(id="vectors-with-gaps", op=op, shape=(4, 6, 35), vectors="sliced")
    yield Case(id="foreign-statistics", op=op, shape=(4, 6, 35), own_statistics=False)
    yield Case(id="far-from-zero", op=op, shape=(4, 6, 5), centre=3000.0)
    yield Case(id="nan-in-data", op=op, shape=(4, 6, 5), poison=float("nan"))
    yield Case(id="inf-in-data", op=op, shape=(4, 6, 5), poison=float("inf"))


def _batch() -> Iterator[Case]:
    yield from _batch_like(Op.BATCH_NORM)
    op = Op.BATCH_NORM
    yield Case(id="inference", op=op, shape=(4, 6, 35), training=False)
    yield Case(id="inference-large-eps", op=op, shape=(4, 6, 35), training=False, eps=_LARGE_EPS)
    yield Case(
        id="inference-channels-last",
        op=op,
        shape=(4, 12, 5, 7),
        training=False,
        layout="channels-last",
    )
    yield Case(id="variance", op=op, shape=(4, 6, 35), statistic="variance")
    yield Case(
        id="variance-large-eps", op=op, shape=(4, 6, 35), statistic="variance", eps=_LARGE_EPS
    )
    for name, training in (("running-statistics-too", True), ("saved-statistics-too", False)):
        yield Case(id=name, op=op, shape=(4, 6, 35), training=training, both_statistics=True)
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
                both_statistics=True,  # as frameworks call it, who know a mask
            )


def _reduce() -> Iterator[Case]:
    yield from _batch_like(Op.BATCH_NORM_REDUCE)
    for mask in _masks(4):
        bits = "".join("01"[bit] for bit in mask)
        yield Case(id=f"mask-{bits}", op=Op.BATCH_NORM_REDUCE, shape=(4, 6, 35), mask=mask)


def _elemt() -> Iterator[Case]:
    op = Op.BATCH_NORM_ELEMT
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


def _layer() -> Iterator[Case]:
    op = Op.LAYER_NORM
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
    yield Case(id="no-weight", op=op, shape=(9, 50), weight=False)
    yield Case(id="float32-statistics", op=op, shape=(9, 50), statistics_dtype="float32")
    yield Case(
        id="float32-statistics-own-weight",
        op=op,
        shape=(9, 50),
        statistics_dtype="float32",
        own_weight=True,
    )
    yield Case(id="vectors-with-gaps", op=op, shape=(9, 50), vectors="sliced")
    yield Case(id="foreign-statistics", op=op, shape=(9, 50), own_statistics=False)
    yield Case(id="far-from-zero", op=op, shape=(9, 50), centre=3000.0)
    yield Case(id="nan-in-data", op=op, shape=(9, 50), poison=float("nan"))
    yield Case(id="inf-in-data", op=op, shape=(9, 50), poison=float("inf"))
    for mask in _masks(3):
        bits = "".join("01"[bit] for bit in mask)
        yield Case(id=f"mask-{bits}", op=op, shape=(12, 33), mask=mask)


def _group() -> Iterator[Case]:
    op = Op.GROUP_NORM
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
    yield Case(id="no-weight", op=op, shape=(4, 6, 35), num_groups=2, weight=False)
    yield Case(
        id="no-weight-channels-last",
        op=op,
        shape=(4, 20, 5, 7),
        num_groups=2,
        weight=False,
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
    yield Case(id="vectors-with-gaps", op=op, shape=(4, 6, 35), num_groups=2, vectors="sliced")
    yield Case(id="foreign-statistics", op=op, shape=(4, 6, 35), num_groups=2, own_statistics=False)
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


def _masks(length: int) -> Iterator[tuple[bool, ...]]:
    yield from product((False, True), repeat=length)


CASES: Final[tuple[Case, ...]] = (*_batch(), *_reduce(), *_elemt(), *_layer(), *_group())


def select(op: str | None = None, case_id: str | None = None) -> tuple[Case, ...]:
    """The cases of one operator, or of one id, or all."""
    return tuple(
        case for case in CASES if (op is None or case.op == op) and case_id in (None, case.id)
    )
