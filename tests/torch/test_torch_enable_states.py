"""When torch's operators are ours: ``enable()``, ``disable()``, with statements in any order."""

import threading

import pytest

import normgrad
import normgrad.torch as ours
from normgrad.torch import override

pytestmark = [
    pytest.mark.usefixtures("disabled"),
    pytest.mark.filterwarnings("ignore::normgrad.torch.NothingTakenWarning"),
]


def test_states():
    assert not ours.enabled()
    ours.enable()
    ours.enable()
    assert ours.enabled()
    with ours.enable(backend="reference"):
        assert ours.enabled()
    assert ours.enabled()  # as it was before
    ours.disable()
    assert not ours.enabled()
    ours.disable()
    with ours.enable():
        assert ours.enabled()
    assert not ours.enabled()
    with pytest.raises(normgrad.OptionError, match="backend must be None or one of"):
        ours.enable(backend="fastest")
    assert not ours.enabled()


def test_with_statements_that_overlap():
    first, second = ours.enable(), ours.enable(backend="reference")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert override.State.now.backend == "reference"
    second.__exit__(None, None, None)
    assert not ours.enabled()


def test_one_object_in_several_with_statements():
    ours.enable(backend="reference")
    once = ours.enable(backend="cpu")
    for _ in range(3):
        with once:
            assert override.State.now.backend == "cpu"
            with once:
                pass
            assert override.State.now.backend == "cpu"
        assert override.State.now.backend == "reference"
    ours.disable()
    with once:
        with once:
            ours.disable()
            assert not ours.enabled()
            with once:
                assert ours.enabled()
            assert not ours.enabled()
        assert ours.enabled()
    assert not ours.enabled()


def test_a_with_statement_counts_though_others_were_called_since():
    first, _, _ = ours.enable(backend="cpu"), ours.enable(), ours.enable(backend="reference")
    with first:
        assert override.State.now.backend == "cpu"
    assert override.State.now.backend == "reference"


def test_with_statements_of_threads_that_overlap():
    inside, left, seen = threading.Event(), threading.Event(), []

    def second():
        inside.wait()
        with ours.enable():
            left.set()
            thread.join()
            seen.append(ours.enabled())

    def first():
        with ours.enable():
            inside.set()
            left.wait()

    thread, other = threading.Thread(target=first), threading.Thread(target=second)
    thread.start()
    other.start()
    other.join()
    assert seen == [True]
    assert not ours.enabled()


def test_what_was_called_inside_ends_with_the_statement():
    with ours.enable():
        ours.disable()
        assert not ours.enabled()
        ours.enable(backend="reference")
    assert not ours.enabled()
    ours.enable()
    with ours.enable():
        ours.disable()
    assert not ours.enabled()  # the call before held until disable(), too
    for _ in range(5):
        ours.enable()
    assert len(override.State.wishes) == 2
    ours.disable()
    assert not ours.enabled()
