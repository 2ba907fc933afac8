"""What ``normgrad check`` says: a line for each implementation, failures, files, the exit code."""

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Iterable
from typing import Final

from normgrad.cli import check_foreign, rules, terminal
from normgrad.cli.env import environment
from normgrad.verify.foreign import Outcome, Verdict
from normgrad.verify.summary import share_text, summary, ulps_text, worst_of

# Failures that are listed without -v.
_LISTED = 20
_LEGEND: Final = (
    "error/bound: the error of the worst element over the most that rounding may cause there;",
    "up to 1 is right. ulp: the same error in units of the element's last place. torch: the",
    "error/bound of torch's own operator in the same case. differing: cases whose repeated runs",
    "gave different bits.",
)


class Report:
    """Takes outcomes as they come, one implementation after another."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.outcomes: list[Outcome] = []
        self.asked = 0
        self.stopped = False
        self.others = args.lib is not None or args.impl is not None

    def skipped(self, who: str, reason: str) -> None:
        """An implementation that cannot run here."""
        terminal.say(f"{who}: not checked: {reason}")

    def take(self, who: str, outcomes: Iterable[Outcome], count: int) -> bool:
        """The cases of one implementation, and its line; False if somebody pressed Ctrl-C."""
        started = time.monotonic()
        found: list[Outcome] = []
        self.asked += count
        try:
            for one in terminal.progress(outcomes, f"{who}: case", total=count):
                found.append(one)  # noqa: PERF402 - those before an interruption stay
            seconds = time.monotonic() - started
            found = self._beside_torch(who, found)
        except KeyboardInterrupt:
            self.stopped = True
            seconds = time.monotonic() - started
        self.outcomes += found
        terminal.say(_line(who, found, seconds) + (_worst(found) if self.others else ""))
        return not self.stopped

    def _beside_torch(self, who: str, outcomes: list[Outcome]) -> list[Outcome]:
        """What torch misses in the cases that are shown; it takes seconds to load."""
        shown = [one for one in outcomes if one.verdict == "FAIL" and math.isfinite(one.share)]
        if self.args.verbose or self.args.html:
            shown += [group.worst for group in summary(outcomes).groups]
        if not shown or who == "torch":
            return outcomes
        terminal.note(f"{who}: the same cases by torch")
        return list(check_foreign.beside_torch(outcomes, shown, self.args.seed))

    def finish(self) -> int:
        """Print, write; 0 if something passed and nothing failed, 130 after Ctrl-C, else 1."""
        if self.args.verbose:
            _tables(self.outcomes)
        _failures(self.outcomes, all_of_them=self.args.verbose)
        if self.stopped:
            terminal.say(f"stopped: {len(self.outcomes)} of {self.asked} cases were checked")
        self._write()
        for path in filter(None, (self.args.json, self.args.html)):
            terminal.say(f"wrote {path}")
        count = Counter(one.verdict for one in self.outcomes)
        if self.stopped:
            return 130
        return 0 if count["PASS"] and not count["FAIL"] else 1

    def _write(self) -> None:
        """JSON and HTML, where asked for."""
        args = self.args
        if args.json:
            rows = [one.as_json() for one in self.outcomes]
            text = json.dumps({"environment": environment(), "rows": rows}, indent=1)
            with rules.writing(args.json):
                args.json.write_text(text, encoding="utf-8")
        if args.html:
            from normgrad.verify import page

            text = page.render(self.outcomes, environment())
            with rules.writing(args.html):
                args.html.write_text(text, encoding="utf-8", errors="backslashreplace")


def _line(who: str, outcomes: list[Outcome], seconds: float) -> str:
    """``cpu: 1016 cases right, 38 s``."""
    count = Counter(one.verdict for one in outcomes)
    parts = [f"{count['PASS']} cases right"]
    if count["FAIL"]:
        parts.append(f"{count['FAIL']} WRONG")
    if count["NONE"]:
        reasons = Counter(one.detail for one in outcomes if one.verdict == "NONE")
        reason, _ = reasons.most_common(1)[0]
        parts.append(
            f"{count['NONE']} not supported ({reason}{', ...' if len(reasons) > 1 else ''})"
        )
    parts.append(f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s")
    return f"{who}: {', '.join(parts)}"


def _worst(outcomes: list[Outcome]) -> str:
    """How near the worst right case is to its bound, and torch in the same case."""
    worst = worst_of(one for one in outcomes if one.verdict == "PASS")
    if worst is None or worst_of(outcomes) is not worst:  # the failures are listed below
        return ""
    text = f"; worst {share_text(worst.share)} of the error bound"
    beside = "" if worst.torch_share is None else f", torch {share_text(worst.torch_share)}"
    return f"{text}{beside} ({worst.op}/{worst.case} {worst.dtype})"


def _tables(outcomes: list[Outcome]) -> None:
    """One by operator and type, one by kind of case."""
    found = summary(outcomes)
    lines = []
    for group in found.groups:
        worst = group.worst
        shown = share_text(worst.share), ulps_text(worst.ulps), share_text(worst.torch_share)
        bits = "" if group.other_bits is None else str(group.other_bits)
        counts = _counts(group.verdicts)
        lines.append((group.who, group.op, group.dtype, *counts, *shown, worst.case, bits))
    counts_header = ("right", "wrong", "not supported")
    terminal.say()
    header = ("who", "operator", "type", *counts_header, "error/bound", "ulp", "torch")
    terminal.table("", (*header, "worst case", "differing"), lines)
    for line in _LEGEND:
        terminal.say(line)
    terminal.say()
    rows = [(op, kind, *_counts(count)) for op, kind, count in found.kinds]
    terminal.table("", ("operator", "kind of case", *counts_header), rows)
    terminal.say()


def _counts(count: Counter[Verdict]) -> tuple[str, str, str]:
    return str(count["PASS"]), str(count["FAIL"]), str(count["NONE"])


def _failures(outcomes: list[Outcome], *, all_of_them: bool) -> None:
    """A line for each; what fails many cases in the same words is said once."""
    failed = [one for one in outcomes if one.verdict == "FAIL"]
    alike: dict[object, list[Outcome]] = {}
    for one in failed:
        alike.setdefault(one if all_of_them else (one.who, one.detail), []).append(one)
    lines = list(alike.values())
    for first, *more in lines[: None if all_of_them else _LISTED]:
        name = f"{first.op}/{first.case} {first.dtype}"
        where = f"{len(more) + 1} cases, first {name}" if more else name
        terminal.say(f"FAIL {first.who} {where}: {first.detail}{_numbers(first)}")
    if len(lines) > _LISTED and not all_of_them:
        terminal.say(f"... and {len(lines) - _LISTED} more: all of them with -v")


def _numbers(one: Outcome) -> str:
    """How wrong it is, and how wrong torch is; nothing where there is no number."""
    if not math.isfinite(one.share):
        return ""
    text = f": {share_text(one.share)} times the error bound, {ulps_text(one.ulps)} ulp"
    return text + ("" if one.torch_share is None else f" (torch: {share_text(one.torch_share)})")
