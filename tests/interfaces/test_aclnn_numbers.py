"""Stage 2 gives the bits of the functional API: each operator, mask, mode and pair of types."""

import gc
import itertools
import threading

import ml_dtypes
import numpy as np
import pytest
from aclnn_calls import (
    BATCH_NORM,
    ELEMT,
    GROUP_NORM,
    LAYER_NORM,
    OPERATORS,
    arguments,
    compute,
    mask,
)

import normgrad
from normgrad import aclnn

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
SHAPE = (4, 6, 10)


def draw(name, data, vectors, seed=0):
    """Arrays of one problem by their aclnn names, and the shapes of the results."""
    rng = np.random.default_rng(seed)

    def big():
        return (100 + 3 * rng.standard_normal(SHAPE)).astype(data)

    def small(*shape):
        return (0.5 + rng.random(shape)).astype(vectors)

    arrays = {"gradOut": big(), "input": big()}
    if name == BATCH_NORM:
        names = ("weight", "runningMean", "runningVar", "saveMean", "saveInvstd")
        arrays |= {key: small(6) for key in names}
    elif name == ELEMT:
        arrays |= {key: small(6) for key in ("mean", "invstd", "weight", "sumDy", "sumDyXmu")}
        arrays["counter"] = np.array([40, 41], np.int32)
    elif name == LAYER_NORM:
        arrays |= {"mean": small(4, 6, 1), "rstd": small(4, 6, 1)}
        arrays["weightOptional"] = small(10)
        arrays["biasOptional"] = small(10)
    else:
        arrays |= {"mean": small(4, 3), "rstd": small(4, 3), "gamma": small(6)}
    width = 10 if name == LAYER_NORM else 6
    return arrays, [SHAPE] if name == ELEMT else [SHAPE, (width,), (width,)]


def functional(name, arrays, bits, training):
    if name == BATCH_NORM:
        dy, x, weight, running_mean, running_var, mean, rstd = arrays.values()
        options = {"weight": weight, "training": training, "output_mask": bits}
        if training:
            return normgrad.batch_norm_backward(dy, x, mean, rstd, **options)[:3]
        options |= {"variance": running_var, "eps": 1e-3}
        return normgrad.batch_norm_backward(dy, x, running_mean, **options)[:3]
    if name == ELEMT:
        dy, x, mean, rstd, weight, *sums = arrays.values()
        return (normgrad.batch_norm_elemt_backward(dy, x, mean, rstd, *sums, weight=weight),)
    if name == LAYER_NORM:
        *given, weight, _bias = arrays.values()
        return normgrad.layer_norm_backward(*given, 10, weight=weight, output_mask=bits)[:3]
    *given, weight = arrays.values()
    return normgrad.group_norm_backward(*given, 3, weight=weight, output_mask=bits)[:3]


def through_aclnn(name, arrays, bits, training, param_type, nulls=()):
    types = [arrays["input"].dtype, param_type, param_type]
    shapes = draw(name, F32, F32)[1]
    out = [
        np.full(shape, np.nan, kind) if bit else None
        for shape, kind, bit in zip(shapes, types, bits, strict=False)
    ]
    given = arguments(name, shape=SHAPE)
    outputs = list(given)[-len(out) :]
    given |= {key: aclnn.tensor(array) for key, array in arrays.items()} | dict.fromkeys(nulls)
    given |= {
        key: None if array is None else aclnn.tensor(array)
        for key, array in zip(outputs, out, strict=True)
    }
    if name != ELEMT:
        given["outputMask"] = mask(*bits)
    if name == BATCH_NORM:
        given |= {"training": training, "eps": 1e-3}
    if name == GROUP_NORM:
        given["group"] = 3
    compute(name, given)
    return out


def agree(got, want):
    for ours, theirs in zip(got, want, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            np.testing.assert_array_equal(ours.view(np.uint8), theirs.view(np.uint8))


@pytest.mark.parametrize("name", [BATCH_NORM, LAYER_NORM, GROUP_NORM])
@pytest.mark.parametrize("bits", list(itertools.product((True, False), repeat=3)), ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_masks_and_modes(name, bits, training):
    arrays, _ = draw(name, F32, F32)
    got = through_aclnn(name, arrays, bits, training, F32)
    agree(got, functional(name, arrays, bits, training))


@pytest.mark.parametrize("name", [BATCH_NORM, ELEMT, LAYER_NORM, GROUP_NORM])
@pytest.mark.parametrize(
    ("data", "vectors"), [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]
)
def test_pairs_of_types(name, data, vectors):
    arrays, _ = draw(name, data, vectors)
    bits = (True,) if name == ELEMT else (True, True, True)
    got = through_aclnn(name, arrays, bits, True, np.dtype(vectors))
    agree(got, functional(name, arrays, bits, True))


@pytest.mark.parametrize("name", [BATCH_NORM, LAYER_NORM, GROUP_NORM])
def test_null_vectors_have_their_defaults(name):
    arrays, _ = draw(name, F32, F32)
    optional = [key for key in arrays if key not in ("gradOut", "input", "mean", "rstd")]
    ones = arrays | {
        key: (np.zeros_like if key.endswith("Mean") else np.ones_like)(arrays[key])
        for key in optional
    }
    bits = (True, True, True)
    for training in (True, False):
        without = {key: array for key, array in arrays.items() if key not in optional}
        got = through_aclnn(name, without, bits, training, F32, nulls=optional)
        agree(got, functional(name, ones, bits, training))


def test_eight_threads_with_executors_of_their_own():
    problems = [(name, seed) for name in OPERATORS for seed in range(2)]
    wrong = []

    def work(name, seed):
        arrays, _ = draw(name, F32, F32, seed)
        bits = (True,) if name == ELEMT else (True, True, True)
        want = functional(name, arrays, bits, True)
        for _ in range(10):
            try:
                agree(through_aclnn(name, arrays, bits, True, F32), want)
            except AssertionError as error:
                wrong.append((name, seed, error))

    threads = [threading.Thread(target=work, args=problem) for problem in problems]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_rounds_leave_nothing_behind():
    arrays, _ = draw(LAYER_NORM, F32, F32)
    bits = (True, True, True)

    def rounds(count):
        for _ in range(count):
            through_aclnn(LAYER_NORM, arrays, bits, True, F32)
        gc.collect()
        return len(gc.get_objects())

    aclnn.aclrtSetDevice(0)
    for _ in range(1100):  # the table remembers the last 1024 blocks that were freed
        aclnn.aclrtFree(aclnn.aclrtMalloc(64)[1])
    before = rounds(20)
    assert rounds(200) < before + 100
