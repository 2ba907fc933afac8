"""Two runs side by side: what got faster, slower or wrong."""

from dataclasses import dataclass
from typing import Literal

from normgrad.bench.record import Record, Row, within

Verdict = Literal["faster", "slower", "same", "wrong", "mended", "gone", "new"]
# What makes a comparison fail.
BAD: tuple[Verdict, ...] = ("slower", "wrong", "gone")


@dataclass(frozen=True, slots=True)
class Change:
    """One row in both runs; ``ratio`` is the new time over the old."""

    key: str
    verdict: Verdict
    before: float | None
    after: float | None
    ratio: float | None


def compare(
    before: Record, after: Record, threshold: float, *, relative: bool = False
) -> list[Change]:
    """Rows of ours in the order of the first run, then those that are new.

    A change counts when it is beyond the threshold and beyond the two runs' spreads together.
    ``relative`` compares times over the memory-bandwidth limit of their own run, for runs on
    machines or days of different memory speed.
    """
    old = {row.key: row for row in before.our_rows}
    new = {row.key: row for row in after.our_rows}
    changes = [_change(row, new.get(key), threshold, relative) for key, row in old.items()]
    for key, row in new.items():
        if key not in old:
            verdict: Verdict = "wrong" if row.right_ms is None else "new"
            changes.append(Change(key, verdict, None, row.median_ms, None))
    return changes


def _change(old: Row, new: Row | None, threshold: float, relative: bool) -> Change:
    if new is None:
        return Change(old.key, "gone", old.median_ms, None, None)
    before, after = old.right_ms, new.right_ms
    if after is None:
        return Change(old.key, "wrong", old.median_ms, new.median_ms, None)
    if before is None:
        return Change(old.key, "mended", old.median_ms, after, None)
    ratio = after / before
    if relative and old.floor_ms > 0 and new.floor_ms > 0:
        ratio = (after / new.floor_ms) / (before / old.floor_ms)
    margin = max(threshold, (old.spread or 0.0) + (new.spread or 0.0))
    verdict: Verdict = "slower" if ratio > 1 else "faster"
    if within(ratio, margin):
        verdict = "same"
    return Change(old.key, verdict, before, after, ratio)
