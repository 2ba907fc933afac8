"""Torch's own threads as helpers: same bits, and not where they would be waited for in vain."""

import pytest

pytest.importorskip("torch")

PROGRAM = """
import os, sys, torch
from cpu_digest import digest
from normgrad.backends.cpu.threads import team
run, used = team.TEAM.run, []
def counted(*arguments, small):
    done = run(*arguments, small=small)
    if not small:
        used.append(done)
    return done
team.TEAM.run = counted
torch.set_num_threads({threads})
data = torch.ones(1 << 20)
data + data  # torch has its threads from here on
{more}
print(digest(), any(used), all(used), flush=True)
"""
FORKED = """
if (child := os.fork()):
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def _run(python, threads=2, more=""):
    program = PROGRAM.format(threads=threads, more=more)
    digest, some, every = python("-c", program, NORMGRAD_NUM_THREADS="2").split()
    return digest, some == "True", every == "True"


@pytest.fixture(scope="module")
def offered():
    """Whether torch brought an OpenMP library that can be called."""
    from normgrad.backends.cpu.threads import team

    return team._functions()[0] is not None


def test_same_bits_on_torch_threads(python, offered):
    teams = _run(python)
    helpers = _run(python, threads=3)
    assert teams[0] == helpers[0]
    assert teams[1] is offered
    assert helpers[1] is False  # torch has more threads than we may use


def test_a_forked_child_uses_its_own(python):
    _, some, _ = _run(
        python, more=f"first = digest(); used.clear(){FORKED}assert digest() == first"
    )
    assert some is False


def test_a_team_that_is_away_rests(python, offered):
    if not offered:
        pytest.skip("torch came without an OpenMP library")
    # Every call finds that it took too long: turns of 4, 8, 16 calls and so on.
    away = "team.TEAM.turns.away = -1"
    _, some, every = _run(python, more=away)
    assert some
    assert not every
