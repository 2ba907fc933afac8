"""``normgrad check --impl`` and ``--lib``: others under the same judge, with the same cases."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from normgrad import verify
from normgrad.backends.base import missing, unusable
from normgrad.cli import words
from normgrad.core.errors import NormgradError, OptionError
from normgrad.core.spec import Op
from normgrad.verify import foreign, isolate
from normgrad.verify.foreign import Outcome

if TYPE_CHECKING:
    from normgrad.cli.check_report import Report

Jobs = list[tuple[verify.Case, str]]

# Peers of the benchmark that --impl knows by name.
_PEERS: Final = ("torch", "liger", "flaggems")


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
        type=words.one_of(("numpy", "torch", "torch:cuda"), {"torch:cuda": ("torchgpu", "cuda")}),
        help="what --impl functions take: numpy (default), torch or torch:cuda",
    )
    others.add_argument("--repeats", type=int, help="runs of --impl that must agree in bits (3)")
    others.add_argument(
        "--budget",
        type=float,
        metavar="FACTOR",
        help="how many times the error bound is still right for --impl (1)",
    )


def asked(args: argparse.Namespace) -> bool:
    """Whether the options are about somebody else; one that would have no effect is refused."""
    foreign_code = args.impl is not None or args.lib is not None
    if foreign_code and args.backend is not None:
        raise OptionError("--backend", "must be left out with --impl and --lib", args.backend)
    for name in ("arrays", "repeats", "budget"):
        value = getattr(args, name)
        if value is not None and args.impl is None:
            raise OptionError(f"--{name}", "must be left out without --impl", value)
    if args.arrays is not None and args.impl in _PEERS:
        rule = f"must be left out with --impl {args.impl}, which takes torch tensors"
        raise OptionError("--arrays", rule, args.arrays)
    return foreign_code


def cases_of(ops: Sequence[Op] | None, *, plain: bool = False) -> list[verify.Case]:
    """The cases of some operators, or all, with fused forms or without."""
    found = [case for op in dict.fromkeys(ops or Op) for case in verify.select(op)]
    return [case for case in found if not (plain and case.fused)]


def run(args: argparse.Namespace, report: "Report") -> int:
    """Examine, print, write; 1 if anything fails or nothing could run."""
    if args.impl is not None and args.lib is not None:
        raise OptionError("--impl and --lib", "must not be given together", args.impl)
    if args.lib:
        from normgrad.verify import clib

        blanks = clib.blanks(args.lib, args.op, args.dtype)
        recipe = (args.lib, args.op, args.dtype, args.seed)
        report.take(str(args.lib), isolate.run(clib.worker, recipe, blanks), len(blanks))
        return report.finish()
    # Made here too: a name that leads nowhere is said before a process starts.
    arrays = args.arrays or "numpy"
    _check_arrays(arrays)
    implementation = _implementation(args.impl, args.op, arrays)
    offered = getattr(implementation, "functions", None)
    jobs = [
        (case, dtype)
        for case in cases_of(args.op, plain=args.plain)
        for dtype in args.dtype or verify.DTYPES
        if offered is None or case.op in offered
    ]
    blanks = [foreign.blank_outcome(case, dtype, args.impl) for case, dtype in jobs]
    how = (args.seed, args.repeats or 3, args.budget or 1.0)
    outcomes = isolate.run(_worker, (args.impl, args.op, arrays, jobs, *how), blanks)
    report.take(args.impl, outcomes, len(blanks))
    return report.finish()


def beside_torch(
    outcomes: Sequence[Outcome], asked: Sequence[Outcome], seed: int
) -> Iterator[Outcome]:
    """The same; those that are asked for with the error of torch's own operator."""
    cases = {(case.op.value, case.id): case for case in verify.CASES}
    keys = dict.fromkeys((one.op, one.case, one.dtype) for one in asked)
    jobs = [(cases[op, case], dtype) for op, case, dtype in keys if (op, case) in cases]
    blanks = [foreign.blank_outcome(case, dtype, "torch") for case, dtype in jobs]
    found: dict[tuple[str, str, str], float] = {}
    if blanks and missing("torch") is None:
        recipe = ("torch", None, "torch", jobs, seed, 1, 1.0)
        try:
            for one in isolate.run(_worker, recipe, blanks):
                if one.verdict == "PASS" or 0 < one.share < float("inf"):
                    found[one.op, one.case, one.dtype] = one.share
        except NormgradError:  # torch cannot be imported: there is nothing to show
            found = {}
    for one in outcomes:
        share = found.get((one.op, one.case, one.dtype))
        yield one if share is None else replace(one, torch_share=share)


def _check_arrays(arrays: str) -> None:
    """What every case would fail for is said once."""
    if arrays == "numpy":
        return
    _need_torch("--arrays", arrays)
    import torch

    if arrays == "torch:cuda" and not torch.cuda.is_available():
        rule = "must be numpy or torch where torch can use no GPU"
        raise OptionError("--arrays", rule, arrays)


def _need_torch(option: str, value: str) -> None:
    reason = unusable("torch")
    if reason is not None:
        raise OptionError(option, "needs torch", f"{value} ({reason})")


def _implementation(target: str, ops: Sequence[Op] | None, arrays: str) -> foreign.Implementation:
    if target in _PEERS:
        _need_torch("--impl", target)
        from normgrad.bench.peer_check import PeerImplementation

        return PeerImplementation(target)
    try:
        return foreign.load(target, ops, arrays)
    except OptionError as error:
        end = words.suggestion(target, _PEERS)
        if not end or not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise OptionError(error.role, error.rule, f"{target!r}{end}") from error


def _worker(
    target: str,
    ops: Sequence[Op] | None,
    arrays: str,
    jobs: Jobs,
    seed: int,
    repeats: int,
    allowance: float,
) -> Callable[[int], Outcome]:
    implementation = _implementation(target, ops, arrays)
    return lambda job: foreign.examine(implementation, *jobs[job], seed, repeats, allowance)
