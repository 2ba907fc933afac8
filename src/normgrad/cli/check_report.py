"""What ``normgrad check`` says of its cases: tables, every failure, files, the exit code."""

import argparse
import json
from collections import Counter, defaultdict

from normgrad.cli import terminal
from normgrad.cli.env import environment
from normgrad.verify.foreign import Outcome


def finish(args: argparse.Namespace, outcomes: list[Outcome]) -> int:
    """Write, print; 0 if something passed and nothing failed, else 1."""
    _write(args, outcomes)
    _show(outcomes)
    if args.html:
        print(f"wrote {args.html}")
    count = Counter(one.verdict for one in outcomes)
    print(f"{count['PASS']} passed, {count['FAIL']} failed, {count['NONE']} not offered")
    return 0 if count["PASS"] and not count["FAIL"] else 1


def _show(outcomes: list[Outcome]) -> None:
    """A table by operator and type, one by kind of case, and every failure in full."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    kinds: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in outcomes:
        groups[one.who, one.op, one.dtype].append(one)
        kinds[one.op, one.kind][one.verdict] += 1
    lines = []
    for (who, op, dtype), members in groups.items():
        worst = max(members, key=lambda one: one.share)
        ulps = max(one.ulps for one in members)
        count = Counter(one.verdict for one in members)
        repeated = any(one.deterministic is not None for one in members)
        several = str(sum(one.deterministic is False for one in members)) if repeated else ""
        verdict = next(word for word in ("FAIL", "PASS", "NONE") if count[word])
        shown = f"{worst.share:.3g}", f"{ulps:.3g}", worst.case, several
        counts = (str(count["PASS"]), str(count["FAIL"]), str(count["NONE"]))
        lines.append((who, op, dtype, *counts, *shown, verdict))
    counts_header = ("who", "operator", "type", "pass", "fail", "not offered")
    header = (*counts_header, "worst/budget", "ulp", "in case", "other bits", "verdict")
    terminal.table("normgrad check", header, lines)
    print()
    rows = [
        (op, kind, str(count["PASS"]), str(count["FAIL"]), str(count["NONE"]))
        for (op, kind), count in kinds.items()
    ]
    terminal.table("by kind of case", ("operator", "kind", "pass", "fail", "not offered"), rows)
    for one in outcomes:
        if one.verdict == "FAIL":
            where = f"{one.who} {one.op}/{one.case} {one.dtype}"
            print(f"FAIL {where}: {one.share:.3g} of the budget, {one.ulps:.3g} ulp; {one.detail}")


def _write(args: argparse.Namespace, outcomes: list[Outcome]) -> None:
    """JSON and HTML, where asked for."""
    if args.json:
        report = {"environment": environment(), "rows": [one.as_json() for one in outcomes]}
        args.json.write_text(json.dumps(report, indent=1, allow_nan=False), encoding="utf-8")
    if args.html:
        from normgrad.verify import page

        text = page.render(outcomes, environment())
        args.html.write_text(text, encoding="utf-8", errors="backslashreplace")
