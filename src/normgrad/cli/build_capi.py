"""``normgrad build-capi``: the C libraries, built for the interpreter that runs this."""

import argparse
from typing import Final

from normgrad.capi import build
from normgrad.cli import rules

EXAMPLES: Final = (
    "normgrad build-capi",
    "normgrad build-capi --prefix ~/normgrad-capi",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        type=rules.folder,
        default=build.default_prefix(),
        help="where include, lib64 and lib go (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Build, and say what to do next."""
    prefix = build.checked_prefix(args.prefix)
    build.build(prefix)
    print(f"built the C libraries in {prefix}")
    if not build.has_libpython():
        print("This Python has no shared library: only Python programs can load them (ctypes).")
    flags = f"normgrad capi-flags{build.prefix_option(prefix)}"
    print(f"compile with: g++ -std=c++11 program.cpp $({flags})")
    return 0
