"""``normgrad check --impl`` and ``--lib``: others under the same judge, with the same cases."""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

from normgrad import verify
from normgrad.cli import terminal
from normgrad.cli.env import environment
from normgrad.errors import OptionError
from normgrad.verify import foreign, isolate
from normgrad.verify.foreign import Outcome


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to judge instead of our own backends, and how."""
    others = parser.add_argument_group("somebody else's implementation")
    others.add_argument(
        "--impl",
        metavar="MODULE[:FUNCTION]",
        help="functions with our signatures, or torch, liger, flaggems",
    )
    others.add_argument("--lib", metavar="FILE", type=Path, help="libinfiniop.so or libopapi_nn.so")
    others.add_argument(
        "--arrays",
        default="numpy",
        choices=("numpy", "torch", "torch:cuda"),
        help="what --impl functions take (numpy)",
    )
    others.add_argument("--repeats", type=int, default=3, help="runs that must agree in bits (3)")


def asked(args: argparse.Namespace) -> bool:
    """Whether the options are about somebody else."""
    return bool(args.impl or args.lib)


def run(args: argparse.Namespace) -> int:
    """Examine, print, write; 1 if anything fails or nothing could run."""
    if args.impl and args.lib:
        raise OptionError("--impl and --lib", "must not be given together", args.impl)
    if args.repeats < 1:
        raise OptionError("--repeats", "must be at least 1", args.repeats)
    outcomes = list(_library(args) if args.lib else _functions(args))
    show(outcomes)
    write(args, outcomes)
    return exit_code(outcomes)


def _functions(args: argparse.Namespace) -> Iterable[Outcome]:
    # Made here too: a name that leads nowhere is said before a process starts.
    implementation = _implementation(args.impl, args.op, args.arrays)
    offered = getattr(implementation, "functions", None)
    dtypes = [args.dtype] if args.dtype else list(verify.DTYPES)
    jobs = [
        (case, dtype)
        for case in verify.select(args.op)
        for dtype in dtypes
        if offered is None or case.op in offered
    ]
    blanks = [foreign.blank_outcome(case, dtype, args.impl) for case, dtype in jobs]
    recipe = (args.impl, args.op, args.arrays, jobs, args.seed, args.repeats)
    yield from terminal.progress(
        isolate.run(_worker, recipe, blanks), "checking", total=len(blanks)
    )


def _implementation(target: str, op: str | None, arrays: str) -> foreign.Implementation:
    if target in ("torch", "liger", "flaggems"):
        if find_spec("torch") is None:
            rule = "needs torch: pip install 'normgrad[torch]'"
            raise OptionError("--impl", rule, target)
        from normgrad.bench.peer_check import PeerImplementation

        return PeerImplementation(target)
    return foreign.load(target, op, arrays)


def _worker(
    target: str,
    op: str | None,
    arrays: str,
    jobs: list[tuple[verify.Case, str]],
    seed: int,
    repeats: int,
) -> Callable[[int], Outcome]:
    implementation = _implementation(target, op, arrays)
    return lambda job: foreign.examine(implementation, *jobs[job], seed, repeats)


def _library(args: argparse.Namespace) -> Iterable[Outcome]:
    from normgrad.verify import clib

    blanks = clib.blanks(args.lib, args.op, args.dtype)
    recipe = (args.lib, args.op, args.dtype, args.seed)
    yield from terminal.progress(
        isolate.run(clib.worker, recipe, blanks), "checking", total=len(blanks)
    )


def show(outcomes: list[Outcome]) -> None:
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
        several = sum(one.deterministic is False for one in members)
        verdict = next(word for word in ("FAIL", "PASS", "NONE") if count[word])
        shown = f"{worst.share:.3g}", f"{ulps:.3g}", worst.case, str(several)
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
    count = Counter(one.verdict for one in outcomes)
    print(f"{count['PASS']} passed, {count['FAIL']} failed, {count['NONE']} not offered")


def write(args: argparse.Namespace, outcomes: list[Outcome]) -> None:
    """JSON and HTML, where asked for."""
    if args.json:
        report = {"environment": environment(), "rows": [one.as_json() for one in outcomes]}
        args.json.write_text(json.dumps(report, indent=1, allow_nan=False), encoding="utf-8")
    if args.html:
        write_page(args.html, outcomes)


def write_page(path: Path, outcomes: list[Outcome]) -> None:
    """One self-contained page."""
    from normgrad.verify import page

    path.write_text(page.render(outcomes, environment()), encoding="utf-8")
    print(f"wrote {path}")


def exit_code(outcomes: list[Outcome]) -> int:
    """0 if something passed and nothing failed."""
    count = Counter(one.verdict for one in outcomes)
    return 0 if count["PASS"] and not count["FAIL"] else 1
