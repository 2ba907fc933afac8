"""``normgrad compare``: two runs of bench, and an exit code for CI."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Final

from normgrad.bench.compare import BAD, Change, compare
from normgrad.bench.record import read_json
from normgrad.cli import terminal

EXAMPLES: Final = (
    "normgrad compare before.json after.json",
    "normgrad compare before.json after.json --threshold 0.1 --all",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("before", type=Path, help="JSON of the older run")
    parser.add_argument("after", type=Path, help="JSON of the newer run")
    parser.add_argument(
        "--threshold", type=float, default=0.05, help="relative change that counts (0.05)"
    )
    parser.add_argument(
        "--relative",
        action="store_true",
        help="compare shares of the memory's speed: other machine, or day",
    )
    parser.add_argument("--all", action="store_true", help="print rows that did not change, too")


def run(args: argparse.Namespace) -> int:
    """Print the changes; 1 if something is slower, wrong or gone."""
    before, after = read_json(args.before), read_json(args.after)
    changes = compare(before, after, args.threshold, relative=args.relative)
    shown = [change for change in changes if args.all or change.verdict != "same"]
    if shown:
        header = ("row", "before ms", "after ms", "after/before", "verdict")
        terminal.table("normgrad compare", header, [_cells(change) for change in shown])
    terminal.say(f"copy: {before.copy_gbps:.0f} GB/s before, {after.copy_gbps:.0f} GB/s after")
    counts = Counter(change.verdict for change in changes)
    listed = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    terminal.say(
        listed or "nothing to compare: neither run has a row of ours (peers are not compared)"
    )
    return 1 if any(change.verdict in BAD for change in changes) or not changes else 0


def _cells(change: Change) -> tuple[str, ...]:
    times = ("-" if time is None else f"{time:.4f}" for time in (change.before, change.after))
    ratio = "-" if change.ratio is None else f"{change.ratio:.2f}"
    verdict = change.verdict.upper() if change.verdict in BAD else change.verdict
    return (change.key, *times, ratio, verdict)
