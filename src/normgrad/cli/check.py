"""``normgrad check``: every operator, type and layout on every backend that works here."""

import argparse
import json
import math
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from normgrad import backends, verify
from normgrad.cli import check_foreign, terminal
from normgrad.cli.env import environment
from normgrad.errors import BackendError, OptionError
from normgrad.spec import Op
from normgrad.verify.foreign import Outcome, Verdict, blank_outcome


@dataclass(frozen=True, slots=True)
class Row:
    """One case on one backend."""

    op: str
    case: str
    dtype: str
    backend: str
    verdict: Verdict  # PASS, FAIL, or NONE where the backend refused with a reason
    share: float  # worst error over budget
    ulps: float
    detail: str

    def as_json(self) -> dict[str, object]:
        """Every field; JSON has no infinity, so that becomes null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--op", choices=[op.value for op in Op], help="one operator only")
    parser.add_argument("--dtype", choices=verify.DTYPES, help="one data type only")
    parser.add_argument("--backend", choices=backends.NAMES, help="one backend only")
    parser.add_argument("--seed", type=int, default=0, help="other random numbers")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every row to a file")
    parser.add_argument("--html", metavar="FILE", type=Path, help="one self-contained page")
    check_foreign.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the cases, print the table; 1 if any is wrong or nothing could run."""
    if args.json:
        _check_writable(args.json)
    if check_foreign.asked(args):
        return check_foreign.run(args)
    names = [args.backend] if args.backend else list(backends.NAMES)
    reasons = {name: backends.get(name).unavailable() for name in names}
    usable = [name for name, reason in reasons.items() if reason is None]
    for name, reason in reasons.items():
        if reason is not None:
            print(f"backend {name} is not checked: {reason}")
    dtypes = [args.dtype] if args.dtype else list(verify.DTYPES)
    jobs = [
        (name, case, dtype)
        for name in usable
        for case in verify.select(args.op)
        for dtype in dtypes
    ]
    rows = [
        check_case(name, case, dtype, args.seed)
        for name, case, dtype in terminal.progress(jobs, "checking")
    ]
    _print(rows)
    if args.json:
        report = {"environment": environment(), "rows": [row.as_json() for row in rows]}
        args.json.write_text(json.dumps(report, indent=1, allow_nan=False), encoding="utf-8")
    if args.html:
        check_foreign.write_page(args.html, [_outcome(row) for row in rows])
    count = Counter(row.verdict for row in rows)
    refused = f", {count['NONE']} refused" if count["NONE"] else ""
    print(f"{count['PASS']} passed, {count['FAIL']} failed{refused}")
    return 0 if count["PASS"] and not count["FAIL"] else 1


def _outcome(row: Row) -> Outcome:
    (case, *_) = verify.select(row.op, row.case)
    blank = blank_outcome(case, row.dtype, row.backend)
    return replace(blank, verdict=row.verdict, share=row.share, ulps=row.ulps, detail=row.detail)


def _check_writable(path: Path) -> None:
    """Minutes of work should not end at a folder that is not there."""
    try:
        path.open("a", encoding="utf-8").close()
    except OSError as error:
        raise OptionError("--json", "must be a file that can be written", error) from error


def check_case(backend: str, case: verify.Case, dtype: str, seed: int) -> Row:
    """One case; an exception is a failure with its message."""
    problem = verify.make_problem(case, dtype, seed)
    where = (case.op, case.id, dtype, backend)
    try:
        results = verify.run_backend(problem, backend)
    except BackendError as error:
        return Row(*where, "NONE", 0.0, 0.0, f"refused: {error}")
    except Exception as error:
        return Row(*where, "FAIL", math.inf, 0.0, f"{type(error).__name__}: {error}")
    measured = verify.judge(problem, results)
    if not measured:
        return Row(*where, "PASS", 0.0, 0.0, "nothing to compute")
    worst = max(measured, key=lambda one: one.share)
    detail = f"{worst.role}{list(worst.index)} is {worst.got:.9g}, should be {worst.want:.9g}"
    ulps = max(one.ulps for one in measured)
    return Row(*where, "PASS" if worst.ok else "FAIL", worst.share, ulps, detail)


def _print(rows: list[Row]) -> None:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.backend, row.op, row.dtype].append(row)
    lines = []
    for (backend, op, dtype), members in groups.items():
        worst = max(members, key=lambda row: row.share)
        verdicts = {row.verdict for row in members}
        verdict = next(one for one in ("FAIL", "PASS", "NONE") if one in verdicts)
        refused = sum(row.verdict == "NONE" for row in members)
        count = f"{len(members)}" + (f" ({refused} refused)" if refused else "")
        lines.append((backend, op, dtype, count, f"{worst.share:.2f}", worst.case, verdict))
    header = ("backend", "operator", "type", "cases", "worst/budget", "in case", "verdict")
    terminal.table("normgrad check", header, lines)
    for row in rows:
        if row.verdict == "FAIL":
            where = f"{row.backend} {row.op}/{row.case} {row.dtype}"
            print(f"FAIL {where}: {row.share:.3g} of the budget; {row.detail}")
