"""``normgrad check --impl`` and ``--lib``: others under the same judge, with the same cases."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from normgrad import verify
from normgrad.backends.base import unusable
from normgrad.cli import check_report, terminal
from normgrad.errors import OptionError
from normgrad.verify import foreign, isolate
from normgrad.verify.foreign import Outcome

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
        choices=("numpy", "torch", "torch:cuda"),
        help="what --impl functions take (numpy)",
    )
    others.add_argument("--repeats", type=int, help="runs of --impl that must agree in bits (3)")


def asked(args: argparse.Namespace) -> bool:
    """Whether the options are about somebody else; one that would have no effect is refused."""
    foreign_code = args.impl is not None or args.lib is not None
    if foreign_code and args.backend is not None:
        raise OptionError("--backend", "must be left out with --impl and --lib", args.backend)
    for name in ("arrays", "repeats"):
        value = getattr(args, name)
        if value is not None and args.impl is None:
            raise OptionError(f"--{name}", "must be left out without --impl", value)
    if args.arrays is not None and args.impl in _PEERS:
        rule = f"must be left out with --impl {args.impl}, which takes torch tensors"
        raise OptionError("--arrays", rule, args.arrays)
    return foreign_code


def run(args: argparse.Namespace) -> int:
    """Examine, print, write; 1 if anything fails or nothing could run."""
    if args.impl is not None and args.lib is not None:
        raise OptionError("--impl and --lib", "must not be given together", args.impl)
    outcomes = list(_library(args) if args.lib else _functions(args))
    return check_report.finish(args, outcomes)


def _functions(args: argparse.Namespace) -> Iterable[Outcome]:
    # Made here too: a name that leads nowhere is said before a process starts.
    arrays = args.arrays or "numpy"
    _check_arrays(arrays)
    implementation = _implementation(args.impl, args.op, arrays)
    offered = getattr(implementation, "functions", None)
    dtypes = [args.dtype] if args.dtype else list(verify.DTYPES)
    jobs = [
        (case, dtype)
        for case in verify.select(args.op)
        for dtype in dtypes
        if offered is None or case.op in offered
    ]
    blanks = [foreign.blank_outcome(case, dtype, args.impl) for case, dtype in jobs]
    recipe = (args.impl, args.op, arrays, jobs, args.seed, args.repeats or 3)
    yield from terminal.progress(
        isolate.run(_worker, recipe, blanks), "checking", total=len(blanks)
    )


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


def _implementation(target: str, op: str | None, arrays: str) -> foreign.Implementation:
    if target in _PEERS:
        _need_torch("--impl", target)
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
