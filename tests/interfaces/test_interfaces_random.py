"""20 000 random argument sets, valid and broken, at each stage 1.

Never an exception, never a status outside the table, never a write before stage 2 or on failure.
"""

import random

import numpy as np
import pytest
from aclnn_calls import (
    BATCH_NORM,
    BF16,
    ELEMT,
    F16,
    F32,
    GROUP_NORM,
    LAYER_NORM,
    OUTPUTS,
    PARAMETERS,
    numpy_type,
    run,
    stage_one,
    stage_two,
)

from normgrad import aclnn, infiniop, verify
from normgrad.core.spec import Op
from normgrad.device import memory

ROUNDS = 20_000
ARENA = 1 << 16
MARK = 0xA5
STRANGE = (None, 0, -1, 1 << 70, 2.5, "x", (), [1], float("nan"), object(), np.zeros(2), True)
FORMATS = tuple(aclnn.aclFormat)
EXTREME = (2**31, -(2**40), 2**61, -(2**62), 2**63 - 1, -(2**63))


class Arena:
    """Device memory that only stage 2 may change, and the random tensors over it."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        aclnn.aclrtSetDevice(0)
        status, self.base = aclnn.aclrtMalloc(ARENA)
        assert status == 0
        self.clear()

    def clear(self):
        assert aclnn.aclrtMemset(self.base, ARENA, MARK, ARENA) == 0

    def untouched(self):
        seen = np.empty(ARENA, np.uint8)
        assert aclnn.aclrtMemcpy(seen, ARENA, self.base, ARENA, 2) == 0
        return bool((seen == MARK).all())

    def free(self):
        assert aclnn.aclrtFree(self.base) == 0

    def tensor(self, shape, dtype, format=aclnn.ACL_FORMAT_ND):
        """Often plain, sometimes strided, shifted, over the edge or over nothing."""
        pick = self.random.random
        place = self.base + 64 * self.random.randrange(512)
        strides, offset = None, 0
        chance = pick()
        if chance > 0.8:
            strides = permuted(self.random, shape)
        elif chance < 0.2:
            strides = [self.random.choice((1, 2, 3, 5, 12, 60, 0, -1)) for _ in shape]
            offset = self.random.randrange(64)
            if pick() < 0.1:
                strides = [self.random.choice((*EXTREME, 1)) for _ in shape]
            if pick() < 0.1:
                offset = self.random.choice(EXTREME)
        elif chance < 0.22:
            place = self.random.choice((0, 1, self.base - 4, self.base + ARENA - 4, 1 << 60))
        made = aclnn.aclCreateTensor(
            shape, len(shape), dtype, strides, offset, format, shape, len(shape), place
        )
        if made is not None and pick() < 0.005:
            aclnn.aclDestroyTensor(made)
        return made


def a_shape(rng):
    rank = rng.choice((1, 2, 3, 3, 3, 4, 5, 8, 9, 0))
    return tuple(rng.choice((1, 2, 3, 4, 0, 2, 3)) for _ in range(rank))


def permuted(rng, shape):
    """Strides of dense elements whose axes lie in memory in another order: often axis 1 last."""
    order = list(range(len(shape)))
    if rng.random() < 0.5 and len(order) > 1:
        order.append(order.pop(1))
    else:
        rng.shuffle(order)
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return strides


def recut(rng, shape):
    """A shape of as many elements: sizes are split, merged and padded with ones."""
    sizes = list(shape)
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(sizes) + 1)
        if rng.random() < 0.5 or place + 1 >= len(sizes):
            sizes.insert(place, 1)
        else:
            sizes[place : place + 2] = [sizes[place] * sizes[place + 1]]
    return tuple(sizes)


def bent(rng, shape):
    """Mostly the shape itself."""
    chance = rng.random()
    if chance < 0.93:
        return shape
    return a_shape(rng) if chance < 0.97 else (*shape, 1)


def plausible(name, arena):
    """Arguments that belong together before they are bent."""
    rng = arena.random
    shape = a_shape(rng)
    data = rng.choice((F32, F16, BF16))
    vector = data if rng.random() < 0.6 else rng.choice((F32, F32, F16, BF16))
    tag = rng.choice(FORMATS) if rng.random() < 0.3 else aclnn.ACL_FORMAT_ND
    last = tag in (aclnn.ACL_FORMAT_NHWC, aclnn.ACL_FORMAT_NDHWC) and name == BATCH_NORM
    axis = max(len(shape) - 1, 1) if last else 1
    channels = shape[axis] if len(shape) > axis else 3
    split = rng.randint(0, len(shape))
    groups = rng.choice((1, 1, 2, 3, 0, -2))
    samples = shape[0] if shape else 1
    tail = shape[split:]
    sizes = {
        BATCH_NORM: (channels,),
        ELEMT: (channels,),
        LAYER_NORM: tail,
        GROUP_NORM: (channels,),
    }[name]
    statistics = {LAYER_NORM: (*shape[:split], *[1] * len(tail))}
    statistics[GROUP_NORM] = (samples, max(groups, 0))
    given = {}
    for key in PARAMETERS[name]:
        if key in ("gradOut", "input", "gradInput", "gradInputOut"):
            dims = bent(rng, shape)
            if name == GROUP_NORM and key == "gradOut" and rng.random() < 0.3:
                dims = recut(rng, shape)  # only the number of elements counts
            given[key] = arena.tensor(dims, data, tag)
        elif key == "counter":
            kind = rng.choice((F32, F16, aclnn.ACL_INT32, aclnn.ACL_INT64))
            given[key] = arena.tensor(bent(rng, (2,)), kind)
        elif key == "outputMask":
            length = 3 if rng.random() < 0.95 else rng.randrange(6)
            bits = [rng.random() < 0.7 for _ in range(length)]
            given[key] = aclnn.aclCreateBoolArray(bits, length)
        elif key == "normalizedShape":
            given[key] = aclnn.aclCreateIntArray(bent(rng, tail), len(tail))
        elif key in ("training", "eps", "N", "C", "HxW", "group"):
            positions = int(np.prod(shape[2:])) if len(shape) > 2 else 1
            given[key] = {
                "training": rng.random() < 0.5,
                "eps": rng.choice((0.0, 1e-5, -1.0, float("nan"))),
                "N": samples,
                "C": channels,
                "HxW": positions,
                "group": groups,
            }[key]
        elif key in ("mean", "rstd") and name in statistics:
            given[key] = arena.tensor(bent(rng, statistics[name]), vector)
        else:
            given[key] = arena.tensor(bent(rng, sizes), vector)
    return given


def broken(rng, given):
    """Some arguments replaced by null or by nonsense."""
    for key in given:
        chance = rng.random()
        if chance < 0.01:
            given[key] = rng.choice(STRANGE)
        elif chance < 0.03:
            given[key] = None
    return given


@pytest.mark.parametrize("name", [BATCH_NORM, ELEMT, LAYER_NORM, GROUP_NORM])
def test_aclnn_stage_1(name):
    arena = Arena(name)
    rng = arena.random
    products = tuple(aclnn.PRODUCTS)
    statuses = dict.fromkeys((0, 161001, 161002, 561003), 0)
    live = len(memory.DEVICE.live())
    finished = 0
    for _ in range(ROUNDS):
        if rng.random() < 0.05:
            aclnn.set_product(rng.choice(products))
        elif rng.random() < 0.2:
            aclnn.set_product("ascend950")
        given = broken(rng, plausible(name, arena))
        status, size, executor = stage_one(name, given)
        statuses[int(status)] += 1  # a status outside the table is a KeyError
        if status:
            assert (size, executor) == (0, None)
            assert aclnn.aclGetRecentErrMsg().startswith(f"{name}GetWorkspaceSize: ")
            continue
        if finished % 8 == 0:
            assert arena.untouched()  # neither by failures nor by stage 1
            workspace = aclnn.aclrtMalloc(size)[1] if size else None
            waiting = executor.launch is None  # for an address
            done = stage_two(name, workspace, size, executor)
            assert done == (161001 if waiting else 0), aclnn.aclGetRecentErrMsg()
            assert workspace is None or aclnn.aclrtFree(workspace) == 0
            arena.clear()
        else:
            assert aclnn.aclDestroyAclOpExecutor(executor) == 0
        finished += 1
    aclnn.set_product("ascend950")
    assert arena.untouched()
    assert len(memory.DEVICE.live()) == live
    arena.free()
    # The mix is no good if it reaches only one answer.
    assert all(count > ROUNDS // 200 for count in statuses.values()), statuses


def test_group_norm_numbers_whatever_the_shapes():
    """The data as N, C, HxW: each cut into axes of its own, each with its own order in memory."""
    rng = random.Random(11)
    mask = aclnn.aclCreateBoolArray([True] * 3, 3)
    for turn in range(400):
        samples, channels, positions = (rng.choice((1, 2, 3, 4, 6)) for _ in range(3))
        groups = rng.choice([size for size in range(1, 7) if channels % size == 0])
        shape = (samples, channels, positions)
        cuts = [recut(rng, shape) if rng.random() < 0.7 else shape for _ in range(2)]
        case = verify.Case(
            id="cut", op=Op.GROUP_NORM_BACKWARD, shape=shape, num_groups=groups, weight=False
        )
        problem = verify.make_problem(case, "float32", turn)
        dy, x, mean, rstd = (problem.operands[role].array for role in ("dy", "x", "mean", "rstd"))
        dy_cut, x_cut = cuts

        def laid(dims):
            store = np.full(int(np.prod(dims)), np.nan, np.float32)
            steps = [4 * step for step in permuted(rng, dims)]
            return np.lib.stride_tricks.as_strided(store, dims, steps)

        seen = [laid(dims) for dims in (dy_cut, x_cut, x_cut, (channels,), (channels,))]
        seen[0][...], seen[1][...] = dy.reshape(dy_cut), x.reshape(x_cut)
        status, size, executor = aclnn.aclnnGroupNormBackwardGetWorkspaceSize(
            aclnn.tensor(seen[0]), aclnn.tensor(seen[1]), aclnn.tensor(mean), aclnn.tensor(rstd),
            None, *shape, groups, mask, *map(aclnn.tensor, seen[2:]),
        )  # fmt: skip
        what = (shape, groups, [(view.shape, view.strides) for view in seen[:3]])
        assert status == 0, (what, aclnn.aclGetRecentErrMsg())
        assert run(GROUP_NORM, executor, size) == 0, (what, aclnn.aclGetRecentErrMsg())
        results = dict(zip(problem.wanted, map(np.float64, seen[2:]), strict=True))
        results["dx"] = results["dx"].reshape(shape)
        for measured in verify.judge(problem, results):
            assert measured.ok, (what, measured)


def test_infiniop_create():
    rng = random.Random(5)
    handle = infiniop.infiniopCreateHandle()[1]
    foreign = infiniop.infiniopCreateHandle()[1]
    foreign.device = 3
    statuses = dict.fromkeys((0, 3, 5, 10, 11, 12), 0)
    dtypes = (12, 13, 19)
    names = ("dx", "dw", "db", "x", "dy", "w", "m", "v")
    for _ in range(ROUNDS):
        shape = tuple(rng.choice((1, 2, 3, 4, 0)) for _ in range(3))
        if rng.random() < 0.02:
            shape = tuple(rng.choice((0, 1, 2**40, 2**63, 2**64 - 1)) for _ in range(3))
        dtype = rng.choice(dtypes)
        given = []
        for name in names:
            big = name in ("dx", "x", "dy")
            dims = bent(rng, shape if big else shape[1:2])
            strides = None
            if rng.random() < (0.05 if big else 0.2):
                strides = [rng.choice((1, 2, -1, 4, 0, *EXTREME[::3])) for _ in dims]
            kind = dtype if rng.random() < 0.98 else rng.choice((5, 6, 12, 13, 14, 19, 77))
            made = infiniop.infiniopCreateTensorDescriptor(len(dims), dims, strides, kind)[1]
            chance = rng.random()
            if chance < 0.005:
                infiniop.infiniopDestroyTensorDescriptor(made)
            given.append(rng.choice(STRANGE) if chance > 0.995 else made)
        owner = rng.choice((handle,) * 40 + (foreign, None, "handle"))
        status, desc = infiniop.infiniopCreateBatchNormBackwardDescriptor(owner, *given)
        statuses[int(status)] += 1
        if status:
            assert desc is None
            assert infiniop.recent_error()
        else:
            assert infiniop.infiniopGetBatchNormBackwardWorkspaceSize(desc)[0] == 0
            assert infiniop.infiniopDestroyBatchNormBackwardDescriptor(desc) == 0
    assert all(count > ROUNDS // 200 for count in statuses.values()), statuses


def test_outputs_are_the_last_parameters():
    """The table that the tests use follows the signatures."""
    for name, outputs in OUTPUTS.items():
        assert PARAMETERS[name][-len(outputs) :] == outputs
    assert numpy_type(F16) == np.float16
