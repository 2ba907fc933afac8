"""Processes of their own for what depends on a process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import normgrad

HERE = Path(__file__).parent
SOURCE = Path(normgrad.__file__).parent.parent


@pytest.fixture
def python():
    """Runs Python with settings and returns what it prints."""

    def run(*arguments, **settings):
        environment = {**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE}"}
        environment.pop("NORMGRAD_NUM_THREADS", None)
        environment.update(settings)
        done = subprocess.run(
            [sys.executable, "-W", "error", *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def stay_in_bounds(python):
    """Judges cases without the compiler: see `in_bounds.check`."""

    def run(*arguments, **options):
        code = f"import in_bounds; in_bounds.check(*{arguments!r}, **{options!r})"
        assert python("-c", code, NUMBA_DISABLE_JIT="1").strip() == "done"

    return run
