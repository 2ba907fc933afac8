"""``normgrad check``: every operator, type and layout on every backend that works here."""

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from normgrad import backends, verify
from normgrad.cli import check_foreign, terminal
from normgrad.cli.env import environment
from normgrad.errors import BackendError, NormgradError
from normgrad.spec import Op


@dataclass(frozen=True, slots=True)
class Row:
    """One case on one backend."""

    op: str
    case: str
    dtype: str
    backend: str
    ok: bool
    share: float  # worst error over budget
    ulps: float
    detail: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("--op", choices=[op.value for op in Op], help="one operator only")
    parser.add_argument("--dtype", choices=verify.DTYPES, help="one data type only")
    parser.add_argument("--backend", choices=backends.NAMES, help="one backend only")
    parser.add_argument("--seed", type=int, default=0, help="other random numbers")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every row to a file")
    check_foreign.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the cases, print the table; 1 if any is wrong or nothing could run."""
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
        report = {"environment": environment(), "rows": [asdict(row) for row in rows]}
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    failed = [row for row in rows if not row.ok]
    print(f"{len(rows) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed or not rows else 0


def check_case(backend: str, case: verify.Case, dtype: str, seed: int) -> Row:
    """One case; an exception is a failure with its message."""
    problem = verify.make_problem(case, dtype, seed)
    try:
        results = verify.run_backend(problem, backend)
    except BackendError as error:
        return Row(case.op, case.id, dtype, backend, True, 0.0, 0.0, f"refused: {error}")
    except NormgradError as error:
        return Row(case.op, case.id, dtype, backend, False, float("inf"), 0.0, str(error))
    measured = verify.judge(problem, results)
    if not measured:
        return Row(case.op, case.id, dtype, backend, True, 0.0, 0.0, "nothing to compute")
    worst = max(measured, key=lambda one: one.share)
    detail = f"{worst.role}{list(worst.index)} is {worst.got:.9g}, should be {worst.want:.9g}"
    ulps = max(one.ulps for one in measured)
    return Row(case.op, case.id, dtype, backend, worst.ok, worst.share, ulps, detail)


def _print(rows: list[Row]) -> None:
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.backend, row.op, row.dtype].append(row)
    lines = []
    for (backend, op, dtype), members in groups.items():
        worst = max(members, key=lambda row: row.share)
        refused = sum(row.detail.startswith("refused") for row in members)
        verdict = "PASS" if all(row.ok for row in members) else "FAIL"
        count = f"{len(members)}" + (f" ({refused} refused)" if refused else "")
        lines.append((backend, op, dtype, count, f"{worst.share:.2f}", worst.case, verdict))
    header = ("backend", "operator", "type", "cases", "worst/budget", "in case", "verdict")
    terminal.table("normgrad check", header, lines)
    for row in rows:
        if not row.ok:
            where = f"{row.backend} {row.op}/{row.case} {row.dtype}"
            print(f"FAIL {where}: {row.share:.3g} of the budget; {row.detail}")
