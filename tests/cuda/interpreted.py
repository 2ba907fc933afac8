"""Python with Triton's interpreter, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import normgrad

SOURCE = str(Path(normgrad.__file__).parent.parent)


def interpreted(*arguments, codes=(0,)):
    """Run Python with Triton's interpreter."""
    folders = os.pathsep.join([SOURCE, str(Path(__file__).parent)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode in codes, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout
