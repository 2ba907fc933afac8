"""``normgrad check``: every operator, type and layout on every backend that works here."""

import argparse
import math
from dataclasses import replace
from pathlib import Path

from normgrad import backends, verify
from normgrad.cli import check_foreign, check_report, terminal
from normgrad.errors import BackendError
from normgrad.spec import Op
from normgrad.verify.foreign import Outcome, blank_outcome


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
    outcomes = [
        check_case(name, case, dtype, args.seed)
        for name, case, dtype in terminal.progress(jobs, "checking")
    ]
    return check_report.finish(args, outcomes)


def check_case(backend: str, case: verify.Case, dtype: str, seed: int) -> Outcome:
    """One case; an exception is a failure with its message."""
    problem = verify.make_problem(case, dtype, seed)
    blank = blank_outcome(case, dtype, backend)
    try:
        results = verify.run_backend(problem, backend)
    except BackendError as error:
        return replace(blank, verdict="NONE", detail=f"refused: {error}")
    except Exception as error:
        return replace(blank, share=math.inf, detail=f"{type(error).__name__}: {error}")
    return blank.judged(verify.judge(problem, results))
