"""``normgrad capi-flags``: what a compiler needs to know about the C libraries."""

import argparse
from typing import Final

from normgrad.capi import build, packages
from normgrad.cli import rules

EXAMPLES: Final = (
    "g++ -std=c++11 program.cpp $(normgrad capi-flags) -o program",
    "normgrad capi-flags --libs --aclnn",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--prefix",
        metavar="DIR",
        type=rules.folder,
        default=build.default_prefix(),
        help="where build-capi put them (default: %(default)s)",
    )
    parser.add_argument("--cflags", action="store_true", help="the compiler's flags only")
    parser.add_argument("--libs", action="store_true", help="the linker's flags only")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--aclnn", action="store_true", help="link the aclnn libraries only")
    which.add_argument("--infiniop", action="store_true", help="link the infiniop libraries only")


def run(args: argparse.Namespace) -> int:
    """Print the flags on one line."""
    prefix = build.checked_prefix(args.prefix)
    if not (prefix / "lib64" / build.LIBRARY).exists():
        command = f"normgrad build-capi{build.prefix_option(prefix)}"
        msg = f"there are no libraries in {prefix}: run '{command}' first"
        raise build.BuildError(msg)
    flags = []
    if args.cflags or not args.libs:
        flags += packages.compile_flags(prefix)
    if args.libs or not args.cflags:
        flags += packages.link_flags(prefix, aclnn=not args.infiniop, infiniop=not args.aclnn)
    print(*flags)
    return 0
