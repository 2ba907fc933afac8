"""A child that is forked while another thread holds a lock of ours, or while its own does."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, threading, time
from {module} import {owner}
lock = {lock}
held = threading.Event()

def hold():
    with lock:
        held.set()
        time.sleep(0.3)

if {other_thread}:
    threading.Thread(target=hold).start()
    held.wait()
else:
    lock.acquire()
child = os.fork()
if child == 0:
    signal.alarm(10)  # ends a child that waits for ever
    with lock:
        os._exit(0)
sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("other_thread", [True, False], ids=["other-thread", "own-thread"])
@pytest.mark.parametrize(
    ("module", "owner", "lock"),
    [
        ("normgrad.backends.cpu", "jit", "jit._lock"),
        ("normgrad.torch", "counting", "counting._lock"),
        ("normgrad.torch.wishes", "State", "State.lock"),
    ],
    ids=["compiler", "report", "enable"],
)
def test_the_child_can_take_it(module, owner, lock, other_thread):
    program = PROGRAM.format(module=module, owner=owner, lock=lock, other_thread=other_thread)
    command = [sys.executable, "-W", "ignore", "-c", program]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
