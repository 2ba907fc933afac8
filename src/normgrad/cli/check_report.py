"""What ``normgrad check`` says of its cases: tables, every failure, files, the exit code."""

import argparse
import json
from collections import Counter

from normgrad.cli import rules, terminal
from normgrad.cli.env import environment
from normgrad.verify.foreign import Outcome, Verdict
from normgrad.verify.summary import Summary, summary


def finish(args: argparse.Namespace, outcomes: list[Outcome]) -> int:
    """Print, write; 0 if something passed and nothing failed, else 1."""
    found = summary(outcomes)
    _show(found, outcomes)  # first: the disk may be full
    _write(args, outcomes)
    for path in filter(None, (args.json, args.html)):
        print(f"wrote {path}")
    count = found.verdicts
    print(f"{count['PASS']} passed, {count['FAIL']} failed, {count['NONE']} not offered")
    return 0 if count["PASS"] and not count["FAIL"] else 1


def _show(found: Summary, outcomes: list[Outcome]) -> None:
    """A table by operator and type, one by kind of case, and every failure in full."""
    lines = []
    for group in found.groups:
        who, op, dtype, count, worst, ulps, several = group
        bits = "" if several is None else str(several)
        shown = f"{worst.share:.3g}", f"{ulps:.3g}", worst.case, bits
        lines.append((who, op, dtype, *_counts(count), *shown, group.verdict))
    counts_header = ("who", "operator", "type", "pass", "fail", "not offered")
    header = (*counts_header, "worst/budget", "ulp", "in case", "other bits", "verdict")
    terminal.table("normgrad check", header, lines)
    print()
    rows = [(op, kind, *_counts(count)) for op, kind, count in found.kinds]
    terminal.table("by kind of case", ("operator", "kind", "pass", "fail", "not offered"), rows)
    for one in outcomes:
        if one.verdict == "FAIL":
            where = f"{one.who} {one.op}/{one.case} {one.dtype}"
            print(f"FAIL {where}: {one.share:.3g} of the budget, {one.ulps:.3g} ulp; {one.detail}")


def _counts(count: Counter[Verdict]) -> tuple[str, str, str]:
    return str(count["PASS"]), str(count["FAIL"]), str(count["NONE"])


def _write(args: argparse.Namespace, outcomes: list[Outcome]) -> None:
    """JSON and HTML, where asked for."""
    if args.json:
        report = {"environment": environment(), "rows": [one.as_json() for one in outcomes]}
        text = json.dumps(report, indent=1, allow_nan=False)
        with rules.writing(args.json):
            args.json.write_text(text, encoding="utf-8")
    if args.html:
        from normgrad.verify import page

        text = page.render(outcomes, environment())
        with rules.writing(args.html):
            args.html.write_text(text, encoding="utf-8", errors="backslashreplace")
