"""``normgrad warmup``: the CPU's kernels compiled ahead, for the usual shapes of each operator."""

import argparse
import time
from collections.abc import Iterator
from typing import Final

from normgrad import backends
from normgrad.backends.cpu.compiling import COMPILING
from normgrad.bench import suites
from normgrad.cli import terminal, words
from normgrad.cli.plan import spec_of
from normgrad.core.dtypes import compute_dtype
from normgrad.core.errors import BackendError, NormgradError
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op, Spec

EXAMPLES: Final = (
    "normgrad warmup",
    "normgrad warmup --op layer_norm,layer_norm_backward --dtype bf16",
)
_TYPES: Final = ("float32", "bfloat16", "float16")
_SUITES: Final = ("cpu", "quick")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    listed = f"{', '.join(Op)}, or a family such as layernorm; default: all"
    parser.add_argument("--op", type=words.operators, action="extend", help=listed)
    parser.add_argument(
        "--dtype",
        type=words.dtypes,
        action="extend",
        help=f"types of the data; default: {', '.join(_TYPES)}",
    )


def run(args: argparse.Namespace) -> int:
    """A line for each operator and type, then where the kernels are kept."""
    reason = backends.get("cpu").unavailable()
    if reason is not None:
        raise NormgradError(f"the CPU's kernels cannot be compiled here: {reason}")
    from normgrad.backends.cpu import engine, jit

    COMPILING.told = True  # the lines below say more
    folder = jit.cache_folder()
    started = time.monotonic()
    terminal.note("compiling what all kernels share")
    engine.entry_address()
    for op in dict.fromkeys(args.op or Op):
        for dtype in dict.fromkeys(args.dtype or _TYPES):
            terminal.note(f"compiling {op} {dtype}")
            before, since = COMPILING.kernels, time.monotonic()
            try:
                for spec in _requests(op, dtype):
                    make_plan(spec, "cpu")
            except BackendError as error:
                terminal.say(f"{op} {dtype}: {error.reasons['cpu']}")
                continue
            count, seconds = COMPILING.kernels - before, time.monotonic() - since
            many = "kernel" if count == 1 else "kernels"
            made = f"{count} {many} compiled in {seconds:.1f} s" if count else "ready"
            terminal.say(f"{op} {dtype}: {made}")
    kept = f"kept in {folder}" if folder else "kept nowhere: no folder can be written"
    terminal.say(f"{time.monotonic() - started:.0f} s, {kept}")
    return 0


def _requests(op: Op, dtype: str) -> Iterator[Spec]:
    """The shapes of bench, with statistics and weights in float32 and in the data's type."""
    sizes = {
        one.case
        for name in _SUITES
        for one in suites.suite(name, "cpu")
        if one.case.op == op and one.dtype == "float32"
    }
    for case in sorted(sizes, key=str):
        for small in dict.fromkeys((compute_dtype((dtype,)), dtype)):
            yield spec_of(case, dtype, small)
