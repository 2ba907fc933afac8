"""The libraries, built once for each test process, and programs compiled against them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from normgrad.capi import build, packages

HERE = Path(__file__).parent
SRC = Path(build.__file__).parents[2]

Program = Callable[..., subprocess.CompletedProcess[str]]


def missing() -> str | None:
    """Why nothing can be built here, or None."""
    if sys.platform != "linux":
        return "the C libraries are for Linux"
    try:
        build.compiler()
    except build.BuildError as error:
        return str(error)
    if shutil.which("g++") is None:
        return "there is no g++"
    try:
        import cffi  # noqa: F401
    except ImportError as error:
        return f"no cffi: {error}"
    if not build.has_libpython():
        return "this Python has no shared library: C programs cannot start it"
    return None


@dataclass(frozen=True)
class Library:
    """A built prefix, and a folder for programs."""

    prefix: Path
    folder: Path
    flags: tuple[str, ...] = ()

    def compile(self, source: Path, *flags: str, standard: str | None = None) -> Path:
        """An executable of a C or C++ source."""
        program = self.folder / source.stem
        if not program.exists():
            c = source.suffix == ".c"
            command = [
                *("gcc" if c else "g++", f"-std={standard or ('c11' if c else 'c++11')}"),
                *("-Wall", "-Wextra", "-Wno-unused-function", "-g", *self.flags, str(source)),
                *packages.compile_flags(self.prefix),
                *packages.link_flags(self.prefix),
                *("-lm", "-pthread", "-ldl", *flags, "-o", str(program)),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert "warning" not in done.stderr, done.stderr
        return program

    def run(
        self, source: str, *arguments: str, environment: dict[str, str] | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Compile a program of this folder and run it."""
        program = self.compile(HERE / source)
        return execute(program, *arguments, environment=environment, **more)


def execute(
    program: Path, *arguments: str, environment: dict[str, str] | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a program; ``more`` are variables on top of an environment."""
    base = plain_environment() if environment is None else environment
    done = subprocess.run(
        [str(program), *arguments],
        env={**base, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # What compiles for more than a second, in a cold cache, says so.
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(one for one in lines if not one.startswith("normgrad: compiling"))
    return done


def plain_environment() -> dict[str, str]:
    """The tests' own, without what would steer Python or us."""
    steering = ("PYTHON", "NORMGRAD", "VIRTUAL_ENV", "ASAN", "LD_")
    return {name: text for name, text in os.environ.items() if not name.startswith(steering)}


@pytest.fixture(scope="session")
def capi(tmp_path_factory: pytest.TempPathFactory) -> Library:
    reason = missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("capi")
    build.build(folder / "prefix")
    return Library(folder / "prefix", folder)


@pytest.fixture(scope="session")
def capi_asan(tmp_path_factory: pytest.TempPathFactory) -> Library:
    reason = missing()
    if reason:
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("capi-asan")
    flags = ("-fsanitize=address,undefined", "-fno-omit-frame-pointer")
    try:
        build.build(folder / "prefix", flags)
    except build.BuildError as error:
        pytest.skip(f"no AddressSanitizer: {error}")
    return Library(folder / "prefix", folder, flags)
