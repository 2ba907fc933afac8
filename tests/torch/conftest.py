"""What the tests of the torch module share."""

import os
import sys
from pathlib import Path

import pytest
import torch

from normgrad import backends

# Inductor's workers import torch anew in processes of their own: 6 of 30 s of a first model.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.fixture(scope="session")
def fast_backend():
    """The fast one by name, which takes small calls too; the reference where it is missing."""
    return "reference" if backends.get("cpu").unavailable() else "cpu"


@pytest.fixture
def by_reference(monkeypatch):
    """Operators computed by the reference backend: no kernels to compile for every form."""
    from normgrad.calls.dispatch import compute
    from normgrad.torch import backward_ops, forward

    for module in (forward, backward_ops):
        monkeypatch.setattr(module, "compute", lambda *args: compute(*args[:-1], "reference"))


@pytest.fixture
def nodes_made(monkeypatch):
    """Small calls are taken, of forms that the fast backend lacks too; which were is told."""
    from normgrad.torch import nodes, sum_nodes

    made = []
    whole, summed = nodes.one_node, sum_nodes._made

    def one_node(norm, kind, after, x, shortcut):
        made.append((kind, after[0], shortcut is not None))
        return whole(norm, kind, after, x, shortcut)

    def sum_node(norm, x, residual):
        found = summed(norm, x, residual)
        made.extend([] if found is None else [("sum", type(norm).__name__)])
        return found

    monkeypatch.setattr(nodes, "one_node", one_node)
    monkeypatch.setattr(sum_nodes, "_made", sum_node)
    monkeypatch.setattr(nodes.Small, "taken", True)
    monkeypatch.setattr(nodes, "taken", lambda *form: True)
    nodes._taken.clear()
    yield made
    nodes._taken.clear()


@pytest.fixture
def disabled():
    """Torch computes by itself before and after, and nobody has called anything."""
    import normgrad.torch as ours

    ours.disable()
    ours.report(reset=True)
    yield
    ours.disable()


@pytest.fixture(scope="module")
def nothing_from_disk():
    """Programs that another version of ours compiled would be taken for those of this one."""
    from torch._functorch import config as graphs
    from torch._inductor import config as programs

    with graphs.patch(enable_autograd_cache=False), programs.patch(fx_graph_cache=False):
        yield


@pytest.fixture
def fresh_compiler():
    """Nothing is compiled before a test, and torch computes by itself after it."""
    import normgrad.torch as ours

    torch.compiler.reset()
    yield
    ours.disable()
    torch.compiler.reset()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # two processes of the suite share two cores
