"""Overlap inside one view: found exactly, and soon enough for any size."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normgrad as ng
from neutral import neutral
from normgrad.core import strides
from normgrad.core.spec import TensorSpec
from normgrad.core.strides import overlaps_itself

AXES = {
    "few": st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 12)), min_size=0, max_size=4),
    "many": st.lists(st.tuples(st.integers(1, 3), st.integers(-90, 90)), min_size=5, max_size=8),
    "long": st.lists(st.tuples(st.integers(1, 60), st.integers(-400, 400)), min_size=2, max_size=3),
}


def described(axes):
    return TensorSpec(tuple(a for a, _ in axes), tuple(b for _, b in axes), "float32")


def listed(axes):
    grid = np.zeros(1, np.int64)
    for size, stride in axes:
        grid = (grid[:, None] + np.arange(size) * stride).ravel()
    return len(np.unique(grid)) < grid.size


@pytest.mark.parametrize("kind", AXES)
@pytest.mark.parametrize("steps", [50_000, 3, 0])
def test_overlap_is_found_exactly(kind, steps):
    """With few steps the list of all offsets decides: the same answer."""

    @given(axes=AXES[kind])
    @settings(max_examples=300)
    def check(axes):
        assert overlaps_itself(described(axes)) is listed(axes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strides, "_STEPS", steps)
        check()


LARGE = {
    "every-third-and-every-second": (((400_000, 3), (3, 2)), False),
    "one-row-more": (((400_000, 4), (3, 2)), True),
    "next-to-each-other": (((10**6, 10**6 - 1), (10**6 - 1, 10**6)), False),
    "just-meeting": (((10**6 + 1, 10**6), (10**6 - 1, 10**6)), True),
    "three-by-remainders": (((15, 10**6, 10), (10, 6 * 10**3, 15)), True),
    "three-apart": (((3, 10**6, 2), (10, 30, 15)), False),
    "sheared": (((1000, 1000, 3), (3001, 3, 1)), False),
    "beyond-int64": (((2, 2, 2), (-(2**63), 1, 1)), True),
    "far-beyond-int64": (((2, 3, 2**40), (2**80, 2**39, 3)), False),
}


@pytest.mark.parametrize("case", LARGE)
def test_large_views_are_decided_soon(case):
    (shape, steps), overlap = LARGE[case]
    start = time.process_time()
    assert overlaps_itself(TensorSpec(shape, steps, "float32")) is overlap
    assert time.process_time() - start < 0.01


def test_a_large_result_of_which_nothing_is_known(monkeypatch):
    """It is refused, and not called overlapping."""
    monkeypatch.setattr(strides, "_STEPS", 0)
    monkeypatch.setattr(strides, "_LISTED", 0)
    x = np.zeros((4, 3, 5), np.float32)
    store = np.zeros(200, np.float32)
    out = np.lib.stride_tricks.as_strided(store, x.shape, (4 * 15, 4 * 10, 4 * 6))
    with pytest.raises(ng.OverlapError, match="must be plain enough to see that no two elements"):
        ng.batch_norm_backward(
            x, x, *neutral(x), out=(out, None, None), output_mask=(True, False, False)
        )


def test_a_large_result_between_other_elements():
    """1.2 million elements at every third address plus 0, 2 and 4: none of them twice."""
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((400_000, 3)).astype(np.float32) for _ in range(2))
    store = np.full(3 * len(x) + 3, np.nan, np.float32)
    out = np.lib.stride_tricks.as_strided(store, x.shape, (12, 8))
    expected = ng.batch_norm_backward(dy, x, *neutral(x)).grad_input
    ng.batch_norm_backward(
        dy, x, *neutral(x), out=(out, None, None), output_mask=(True, False, False)
    )
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-6)
