"""What the tests of the torch module share."""

import sys
from pathlib import Path

import pytest
import torch

from normgrad import backends

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.fixture(scope="session")
def fast_backend():
    """What ``enable()`` uses by default on the CPU, or the reference where it is missing."""
    return "reference" if backends.get("cpu").unavailable() else None


@pytest.fixture
def disabled():
    """Torch computes by itself before and after, and nobody has called anything."""
    import normgrad.torch as ours

    ours.disable()
    ours.report(reset=True)
    yield
    ours.disable()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # two processes of the suite share two cores
