"""What compiling tells, and `normgrad warmup`, after which nothing is compiled."""

import os
import subprocess
import sys
import time

import pytest

from normgrad.backends.cpu import compiling, jit

if not jit.ENABLED:
    pytest.skip("nothing is compiled", allow_module_level=True)


def test_long_compiling_is_told_once_and_short_is_not(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(compiling, "_PATIENCE", 0.05)
    state = compiling.Compiling()
    state.request = "layer_norm_backward float32"
    with state.kernel(tmp_path):
        pass
    assert capsys.readouterr().err == ""
    for _ in range(4):  # none is long, all of them are
        with state.kernel(tmp_path):
            time.sleep(0.03)
    words = "compiling layer_norm_backward float32 for this CPU, kept in"
    assert capsys.readouterr().err == f"normgrad: {words} {tmp_path}\n"
    assert state.kernels == 5
    with state.kernel(tmp_path) as kernel:
        kernel.was_kept = True
    assert state.kernels == 5
    with state.kernel(None):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


CALL = """
import numpy as np, normgrad as ng
from normgrad.backends.cpu.compiling import COMPILING
x = np.ones((64, 1024), np.float32)
ng.rms_norm_backward(x, x, np.ones(64, np.float32), 1024, weight=np.ones(1024, np.float32))
print(COMPILING.kernels)
"""


@pytest.mark.slow(12)
def test_after_a_warmup_nothing_is_compiled(tmp_path):
    def python(*words):
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    words = ["-m", "normgrad", "warmup", "--op", "rms_norm_backward", "--dtype", "fp32"]
    first, last = python(*words)
    assert first.startswith("rms_norm_backward float32: ")
    assert "compiled in" in first
    assert f"kept in {tmp_path}" in last
    assert python("-c", CALL) == ["0"]
    assert python(*words)[0] == "rms_norm_backward float32: ready"
