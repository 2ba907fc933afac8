"""``normgrad profile``: whether a script that trains with torch would gain."""

import argparse
import contextlib
import functools
import runpy
import sys
from pathlib import Path
from types import MethodType
from typing import Any, Final

from normgrad.cli import terminal
from normgrad.core.errors import NormgradError, OptionError

EXAMPLES: Final = (
    "normgrad profile train.py",
    "normgrad profile --seconds 20 train.py --epochs 1",
)


class _Enough(BaseException):
    """Ends a script; no ``except Exception`` of its own keeps it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The script and what it is called with."""
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="for how long to time steps, at the least (default: 5)",
    )
    parser.add_argument(
        "script",
        type=Path,
        metavar="SCRIPT",
        help="a program in Python that trains; each optimizer step ends a step",
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments"
    )


def run(args: argparse.Namespace) -> int:
    """Run the script until enough steps were seen; its own output goes to stderr."""
    if not args.script.is_file():
        raise NormgradError(f"there is no file {args.script}")
    from normgrad.backends.base import unusable

    reason = unusable("torch")
    if reason is not None:
        raise OptionError("SCRIPT", f"needs torch, which is missing ({reason})", str(args.script))
    from normgrad.torch.profiling import STEPS, Plan

    plan = Plan(args.seconds)
    with contextlib.closing(plan.steps):
        _steps_of(args.script, args.arguments, plan.steps)
    if not plan.found:
        rule = f"must train for at least {STEPS + 1} optimizer steps of torch"
        raise OptionError("SCRIPT", rule, f"{args.script}, which ended before")
    for line in str(plan.found[0]).splitlines():
        terminal.say(line)
    return 0


def _steps_of(script: Path, arguments: list[str], steps: Any) -> None:
    """Run it; its first step shows what its optimizer is."""
    from torch.optim import optimizer

    patched: list[tuple[Any, Any]] = []

    def ended(of: Any, args: Any, kwargs: Any) -> None:
        """After the first step of the first one; a second, as of a GAN, is part of the step.

        What comes after the others must not be called from here: torch is in the middle of telling
        a profiler how long this took, which would be started meanwhile (it crashed).
        """
        if patched:
            return
        whole = of.step
        patched.append((of, vars(of).get("step")))

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = whole(*args, **kwargs)
            if next(steps, True):
                raise _Enough
            return made

        functools.update_wrapper(step, whole)
        of.step = MethodType(step, of)

    handle = optimizer.register_optimizer_step_post_hook(ended)
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        next(steps)
        with contextlib.redirect_stdout(sys.stderr):
            runpy.run_path(str(script), run_name="__main__")
    except (_Enough, SystemExit):
        pass
    finally:
        handle.remove()
        sys.argv, sys.path[:] = before
        for of, own in patched:
            del of.step
            if own is not None:
                of.step = own
