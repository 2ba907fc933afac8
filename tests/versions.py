"""Tries the lowest and the newest versions of what the package needs. By hand, not in CI.

    python3 tests/versions.py [python3.11 python3.14 ...]

For each interpreter: a fresh environment with the lower bounds of pyproject.toml, and one with the
newest that the index has; then `normgrad check` on the CPU, and where torch is there its tests. A
CPU build of torch is taken from what pip finds locally, never one that brings CUDA.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHECK = ("-m", "normgrad", "check", "--backend", "cpu")
TESTS = ("tests/torch/test_torch_enable.py", "tests/core/test_worked_numbers.py")
VERSIONS = """
import importlib.metadata as m, platform
names = "numpy", "numba", "ml_dtypes", "torch"
found = {d.name: d.version for d in m.distributions() if d.name.replace("-", "_") in names}
print(platform.python_version(), found)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("interpreters", nargs="*", default=[sys.executable])
    parser.add_argument("--only", choices=("lowest", "newest"))
    parser.add_argument("--torch", help="the CPU build to try as well, such as torch==2.13.0")
    options = parser.parse_args()
    with (ROOT / "pyproject.toml").open("rb") as file:
        needed = tomllib.load(file)["project"]["dependencies"]
    lowest = [re.sub(r">=([^,]*).*", r"==\1.*", one) for one in needed]
    newest = [re.match(r"[\w-]+", one)[0] for one in needed]
    failed = False
    for interpreter in options.interpreters:
        for name, wanted in (("lowest", lowest), ("newest", newest)):
            if options.only not in (None, name):
                continue
            with tempfile.TemporaryDirectory() as folder:
                failed |= not attempt(interpreter, Path(folder), name, wanted, options.torch)
    return failed


def attempt(interpreter, folder, name, wanted, torch):
    """One environment; whether all went well."""
    python = folder / "venv" / "bin" / "python"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")}
    environment.pop("PYTHONPATH", None)
    steps = [
        [interpreter, "-m", "venv", folder / "venv"],
        [python, "-m", "pip", "install", "--quiet", *wanted, *([torch] if torch else [])],
        [python, "-m", "pip", "install", "--quiet", ROOT],
        [python, "-c", VERSIONS],
        [python, *CHECK],
    ]
    if torch:
        steps += [
            [python, "-m", "pip", "install", "--quiet", "pytest", "hypothesis", "expecttest"],
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS],
        ]
    for step in steps:
        done = subprocess.run(
            [*map(str, step)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        last = (done.stdout or done.stderr).strip().splitlines()[-1:] or [""]
        if done.returncode:
            print(f"{interpreter} {name}: FAILED {' '.join(map(str, step[:4]))}", flush=True)
            print(done.stdout[-2000:], done.stderr[-2000:], flush=True)
            return False
        if step[1] in ("-c", "-m") and step[1:3] != ["-m", "pip"] and step[0] != interpreter:
            print(f"{interpreter} {name}: {last[0]}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
