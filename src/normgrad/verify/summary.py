"""Many outcomes in a few lines: by operator and type, by kind of case."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from normgrad.verify.foreign import Outcome, Verdict


def worst_of(outcomes: Iterable[Outcome]) -> Outcome | None:
    """The one of the largest error over its bound, if there is any."""
    return max(outcomes, key=lambda one: one.share, default=None)


def share_text(share: float | None) -> str:
    """An error over its bound: where the truth is 0 any number, and none says more than 1e6."""
    return "-" if share is None else _short(share)


def ulps_text(ulps: float) -> str:
    """Units in the last place, which a truth of 0 does not have."""
    return "-" if math.isnan(ulps) else _short(ulps)


def _short(value: float) -> str:
    if value > 1e6:
        return ">1e6"
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


class Group(NamedTuple):
    """The cases of one implementation, operator and type."""

    who: str
    op: str
    dtype: str
    verdicts: Counter[Verdict]
    worst: Outcome  # of the largest share
    other_bits: int | None  # cases whose runs differ; None where nothing ran twice

    @property
    def verdict(self) -> Verdict:
        """One failure fails them all; a pass needs one that ran."""
        if self.verdicts["FAIL"]:
            return "FAIL"
        return "PASS" if self.verdicts["PASS"] else "NONE"


class Kind(NamedTuple):
    """The cases of one operator that are about the same thing."""

    op: str
    kind: str
    verdicts: Counter[Verdict]


class Summary(NamedTuple):
    """What both reports show."""

    groups: list[Group]
    kinds: list[Kind]
    verdicts: Counter[Verdict]


def summary(outcomes: list[Outcome]) -> Summary:
    """In the order in which the groups first appear."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    kinds: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        groups[one.who, one.op, one.dtype].append(one)
        kinds[one.op, one.kind].append(one)
    return Summary(
        [_group(key, members) for key, members in groups.items()],
        [Kind(*key, _count(members)) for key, members in kinds.items()],
        _count(outcomes),
    )


def _group(key: tuple[str, str, str], members: list[Outcome]) -> Group:
    worst = worst_of(members) or members[0]
    repeated = [one.deterministic for one in members if one.deterministic is not None]
    other_bits = repeated.count(False) if repeated else None
    return Group(*key, _count(members), worst, other_bits)


def _count(outcomes: list[Outcome]) -> Counter[Verdict]:
    return Counter(one.verdict for one in outcomes)
