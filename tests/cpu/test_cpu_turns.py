"""Few large slabs: some are summed and written before the next, so that they stay in the cache."""

import numpy as np
import pytest

from normgrad import functional, verify
from normgrad.backends.cpu.plan import tuned
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

pytest.importorskip("numba")


@pytest.fixture
def small_cache(monkeypatch, forget_plans):
    """A last cache that is half full with one slab."""
    monkeypatch.setattr(tuned, "LAST_CACHE", 3 << 20)


def phases(op, shape, groups=1):
    case = verify.Case(id="turns", op=op, shape=shape, num_groups=groups)
    return make_plan(spec_of(case, "float32"), "cpu").config.phases


def test_slabs_take_turns(small_cache):
    once = ("sum_pieces", "combine_pieces", "write_pieces")
    made = [one.split()[0] for one in phases(Op.BATCH_NORM_BACKWARD, (2, 5, 70000))]
    assert made == [*once] * 5
    made = [one.split()[0] for one in phases(Op.GROUP_NORM_BACKWARD, (1, 12, 70000), 4)]
    assert made == [*once] * 4 + ["join_samples"]
    # One slab that does not stay, and more turns than there are phases for.
    assert len(phases(Op.BATCH_NORM_BACKWARD, (8, 2, 70000))) == 3
    assert len(phases(Op.BATCH_NORM_BACKWARD, (2, 31, 70000))) == 3


@pytest.mark.parametrize("op", ["batch", "group"])
def test_turns_change_no_bit(op, small_cache, monkeypatch, forget_plans):
    rng = np.random.default_rng(3)
    shape = (2, 6, 70001)
    x = (5 + rng.standard_normal(shape)).astype("f4")
    dy = rng.standard_normal(shape).astype("f4")
    size = 6 if op == "batch" else 2 * 3
    mean, rstd, gamma = (rng.random(count).astype("f4") for count in (size, size, 6))

    def results():
        out = tuple(np.full(one, np.nan, "f4") for one in (shape, (6,), (6,)))
        if op == "batch":
            call = functional.batch_norm_backward
            return call(dy, x, mean, rstd, weight=gamma, out=out, backend="cpu")[:3]
        call = functional.group_norm_backward
        return call(dy, x, mean, rstd, 3, weight=gamma, out=out, backend="cpu")[:3]

    def turns_taken():
        known = Op.BATCH_NORM_BACKWARD if op == "batch" else Op.GROUP_NORM_BACKWARD
        return sum(one.startswith("sum_pieces") for one in phases(known, shape, 3))

    turns = results()
    assert turns_taken() == 6
    monkeypatch.undo()
    forget_plans()
    assert turns_taken() == 1
    for one, other in zip(turns, results(), strict=True):
        assert not np.isnan(one).any()
        assert one.tobytes() == other.tobytes()


def test_turns_leave_room_for_copies(small_cache):
    """Six turns, and a copy of everything that can be copied: eight tensors."""
    rng = np.random.default_rng(4)

    def gapped(*shape):
        array = rng.random((*shape[:-1], shape[-1] + 3), "f4")
        return array[..., : shape[-1]]

    shapes = [(1, 12, 300, 250)] * 2 + [(3, 2), (3, 2), (6, 2)]
    operands = [gapped(*shape) for shape in shapes]
    out = gapped(1, 12, 300, 250), gapped(6, 2), gapped(6, 2)

    def call(operands, out=None):
        *first, weight = operands
        return functional.group_norm_backward(*first, 6, weight=weight, out=out, backend="cpu")

    call(operands, out)
    dense = call([np.ascontiguousarray(operand) for operand in operands])
    for one, other in zip(out, dense[:3], strict=True):
        np.testing.assert_array_equal(one, other.reshape(one.shape))
    names = [one.split()[0] for one in phases(Op.GROUP_NORM_BACKWARD, (1, 12, 75000), 6)]
    assert names.count("sum_pieces") == tuned.MOST_TURNS
