"""``normgrad check``: every operator, type and layout on every backend that works here."""

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Final

from normgrad import backends, verify
from normgrad.cli import check_foreign, words
from normgrad.cli.check_report import Report
from normgrad.core.errors import BackendError, OptionError
from normgrad.core.spec import Op
from normgrad.verify.foreign import Outcome, blank_outcome

EXAMPLES: Final = (
    "normgrad check --backend cpu --op layer_norm,group_norm --dtype bf16",
    "normgrad check --impl my_kernels:layer_norm_backward --html report.html",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    listed = f"{', '.join(Op)}, or a family such as layernorm; default: all"
    parser.add_argument("--op", type=words.operators, action="extend", help=listed)
    parser.add_argument(
        "--dtype",
        type=words.dtypes,
        action="extend",
        help=f"of {', '.join(verify.DTYPES)}; default: all",
    )
    parser.add_argument(
        "--backend", type=words.backend, help=f"one of {', '.join(backends.NAMES)}; default: all"
    )
    parser.add_argument(
        "--plain", action="store_true", help="without fused forms (an activation, a sum)"
    )
    parser.add_argument("--seed", type=int, default=0, help="other random numbers")
    parser.add_argument("-v", "--verbose", action="store_true", help="tables of all cases")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every case to a file")
    parser.add_argument("--html", metavar="FILE", type=Path, help="one self-contained page")
    check_foreign.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the cases, a line for each backend; 1 if any is wrong or nothing could run."""
    report = Report(args)
    if check_foreign.asked(args):
        return check_foreign.run(args, report)
    names = [args.backend] if args.backend else backends.NAMES
    cases = check_foreign.cases_of(args.op, plain=args.plain)
    jobs = [(case, dtype) for case in cases for dtype in args.dtype or verify.DTYPES]
    for name in names:
        reason = backends.get(name).unavailable()
        if reason is not None and args.backend:
            raise OptionError("--backend", "must be one that works here", f"{name} ({reason})")
        if reason is not None:
            report.skipped(name, reason)
        elif not report.take(name, (check_case(name, *job, args.seed) for job in jobs), len(jobs)):
            break
    return report.finish()


def check_case(backend: str, case: verify.Case, dtype: str, seed: int) -> Outcome:
    """One case; an exception is a failure with its message."""
    problem = verify.make_problem(case, dtype, seed)
    blank = blank_outcome(case, dtype, backend)
    try:
        results = verify.run_backend(problem, backend)
    except BackendError as error:
        return replace(blank, verdict="NONE", detail=error.reasons.get(backend, str(error)))
    except Exception as error:
        return replace(blank, share=math.inf, detail=f"{type(error).__name__}: {error}")
    return blank.judged(verify.judge(problem, results))
