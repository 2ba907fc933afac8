"""Words that stay from call to call, without a GPU: nobody finds one that is not clear."""

import random

import numpy as np
import pytest
from cuda_plans import kernels, launches, plan

from normgrad.backends.cuda.plan.program import AREAS, Fill, Ref
from normgrad.backends.cuda.run import exchange_areas

WAITING = (
    ("batch_norm_backward", "64x256x56x56", "bfloat16"),
    ("group_norm_backward", "4x512x128x128", "bfloat16"),
    ("batch_norm_backward", "64x256x56x56", "float32", "channels-last"),
    ("batch_norm_backward", "64x64x112x112", "bfloat16", "channels-last"),
    ("layer_norm_backward", "4096x16384", "bfloat16"),
)


class Memory:
    """Stands for a GPU's: words by address, with all bits set where they are clear."""

    def __init__(self):
        self.owners = []

    def make(self, count):
        array = np.full(count, -1, np.int64)
        self.owners.append(array)
        return array, array.ctypes.data

    def words(self, address, count):
        for array in self.owners:
            start = address - array.ctypes.data
            if 0 <= start < array.nbytes:
                return array[start // 8 : start // 8 + count]
        raise AssertionError(address)


@pytest.mark.parametrize("seed", range(20))
def test_every_call_finds_clear_words(seed):
    pick, memory = random.Random(seed), Memory()
    areas = exchange_areas.ExchangeAreas(memory.make)
    for turn in range(200):
        count = pick.choice((1, 7, 300, pick.randint(1, 20000), pick.randint(1, 70000)))
        words, previous, left = areas.next_area(count)
        mine, theirs = memory.words(words, count), memory.words(previous, left)
        assert (mine == -1).all(), turn
        assert not np.shares_memory(mine, theirs)
        if pick.random() < 0.05:  # the launch failed: it did all of this, or nothing
            areas.forget()
            if pick.random() < 0.5:
                continue
        mine[...] = turn
        theirs[...] = -1


def test_areas_that_forgot_clear_nothing_of_the_old_ones():
    areas = exchange_areas.ExchangeAreas(Memory().make)
    areas.next_area(5)
    areas.forget()
    assert areas.next_area(5)[2] == 0


def test_one_for_each_thread_and_device(monkeypatch):
    monkeypatch.setattr(exchange_areas, "_set_words", lambda index, count: (None, 1 << 20))
    from concurrent.futures import ThreadPoolExecutor

    here = [
        exchange_areas.areas_of(101),
        exchange_areas.areas_of(102),
        exchange_areas.areas_of(101),
    ]
    assert here[0] is here[2]
    assert here[0] is not here[1]
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(exchange_areas.areas_of, 101).result()
    assert there is not here[0]


@pytest.mark.parametrize("device", ["h200", "a100"])
@pytest.mark.parametrize("request_", WAITING, ids=" ".join)
def test_no_launch_clears_words_that_stay(request_, device):
    program = plan(*request_, device=device)
    steps = exchange_areas.using_areas(program)
    if not program.words:
        assert tuple(steps) == program.steps
        return
    assert len(steps) == len(program.steps) - 1
    assert not any(isinstance(step, Fill) for step in steps)
    assert [one for one in kernels(program) if one != "clear_words"] == [
        step.kernel.partition(".")[2] for step in steps
    ]
    before = {step.kernel: step for step in launches(program)}
    for step in steps:
        if not step.cooperative:
            assert step == before[step.kernel]
            continue
        # It follows what the caller launched, and must not start before that is done.
        assert not step.early
        assert not dict(step.constants)["EARLY"]
        changed = dict(step.arguments).items() - dict(before[step.kernel].arguments).items()
        roles = {name: value.role for name, value in changed if isinstance(value, Ref)}
        assert roles == {name: name for name in AREAS}
