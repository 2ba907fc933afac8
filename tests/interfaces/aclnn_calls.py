"""Valid calls of each stage 1, to be broken one argument at a time."""

import contextlib
import inspect
from typing import Any

import ml_dtypes
import numpy as np

from normgrad import aclnn
from normgrad.aclnn.dtypes import DTYPE_NAMES

F32, F16, BF16 = aclnn.ACL_FLOAT, aclnn.ACL_FLOAT16, aclnn.ACL_BF16
BATCH_NORM = "aclnnBatchNormBackward"
ELEMT = "aclnnBatchNormElemtBackward"
LAYER_NORM = "aclnnLayerNormBackward"
GROUP_NORM = "aclnnGroupNormBackward"
OPERATORS = (BATCH_NORM, ELEMT, LAYER_NORM, GROUP_NORM)
OUTPUTS = {
    BATCH_NORM: ("gradInput", "gradWeight", "gradBias"),
    ELEMT: ("gradInput",),
    LAYER_NORM: ("gradInputOut", "gradWeightOut", "gradBiasOut"),
    GROUP_NORM: ("gradInput", "gradGammaOut", "gradBetaOut"),
}
# What may not be null, besides the results that a mask asks for.
REQUIRED = {
    BATCH_NORM: ("gradOut", "input", "outputMask"),
    ELEMT: ("gradOut", "input", "mean", "invstd", "sumDy", "sumDyXmu", "counter", "gradInput"),
    LAYER_NORM: ("gradOut", "input", "normalizedShape", "mean", "rstd", "outputMask"),
    GROUP_NORM: ("gradOut", "input", "mean", "rstd", "outputMask"),
}
PARAMETERS = {
    name: tuple(inspect.signature(getattr(aclnn, f"{name}GetWorkspaceSize")).parameters)
    for name in OPERATORS
}


def numpy_type(dtype: int) -> Any:
    name = DTYPE_NAMES[dtype]
    return np.dtype(getattr(ml_dtypes, name, name))


def tensor(shape, dtype=F32, format=aclnn.ACL_FORMAT_ND):
    """A tensor over ones (statistics must not be 0 to mean something)."""
    return aclnn.tensor(np.ones(shape, numpy_type(dtype)), format=format)


def mask(*bits):
    return aclnn.aclCreateBoolArray(list(bits), len(bits))


def sizes(*values):
    return aclnn.aclCreateIntArray(list(values), len(values))


def arguments(name, data=F32, vectors=None, shape=(2, 3, 4), format=aclnn.ACL_FORMAT_ND):
    """A valid call; ``vectors`` is the type of everything that is not data."""
    vectors = data if vectors is None else vectors
    big = {key: tensor(shape, data, format) for key in ("gradOut", "input")}
    channels = shape[1]
    if name == BATCH_NORM:
        small = ("weight", "runningMean", "runningVar", "saveMean", "saveInvstd")
        return {
            **big,
            **{key: tensor((channels,), vectors) for key in small},
            "training": True,
            "eps": 1e-5,
            "outputMask": mask(True, True, True),
            "gradInput": tensor(shape, data, format),
            "gradWeight": tensor((channels,), vectors),
            "gradBias": tensor((channels,), vectors),
        }
    if name == ELEMT:
        small = ("mean", "invstd", "weight", "sumDy", "sumDyXmu")
        return {
            **big,
            **{key: tensor((channels,), vectors) for key in small},
            "counter": tensor((2,), aclnn.ACL_INT32),
            "gradInput": tensor(shape, data, format),
        }
    if name == LAYER_NORM:
        rows = (*shape[:-1], 1)
        tail = shape[-1:]
        return {
            **big,
            "normalizedShape": sizes(*tail),
            "mean": tensor(rows, vectors),
            "rstd": tensor(rows, vectors),
            "weightOptional": tensor(tail, data),
            "biasOptional": tensor(tail, data),
            "outputMask": mask(True, True, True),
            "gradInputOut": tensor(shape, data, format),
            "gradWeightOut": tensor(tail, data),
            "gradBiasOut": tensor(tail, data),
        }
    return {
        **big,
        "mean": tensor((shape[0], 1), vectors),
        "rstd": tensor((shape[0], 1), vectors),
        "gamma": tensor((channels,), vectors),
        "N": shape[0],
        "C": channels,
        "HxW": int(np.prod(shape[2:])),
        "group": 1,
        "outputMask": mask(True, True, True),
        "gradInput": tensor(shape, data, format),
        "gradGammaOut": tensor((channels,), vectors),
        "gradBetaOut": tensor((channels,), vectors),
    }


def said():
    """The sentence of the thread's last failure."""
    return aclnn.aclGetRecentErrMsg()


def stage_one(name, given):
    return getattr(aclnn, f"{name}GetWorkspaceSize")(*[given[key] for key in PARAMETERS[name]])


def stage_two(name, workspace, size, executor, stream=None):
    return getattr(aclnn, name)(workspace, size, executor, stream)


@contextlib.contextmanager
def workspace(size):
    """Memory for a stage 2; backends differ in whether they need any."""
    assert aclnn.aclrtSetDevice(0) == 0
    status, pointer = aclnn.aclrtMalloc(size) if size else (0, None)
    assert status == 0
    yield pointer
    assert pointer is None or aclnn.aclrtFree(pointer) == 0


def run(name, executor, size, stream=None):
    """Stage 2 with a workspace of its own: its status."""
    with workspace(size) as pointer:
        return stage_two(name, pointer, size, executor, stream)


def compute(name, given):
    """Both stages."""
    status, size, executor = stage_one(name, given)
    assert status == 0, said()
    assert run(name, executor, size) == 0, said()


def refused(name, status, words, given):
    """Stage 1 returns the status, says the words, and gives nothing."""
    answer = stage_one(name, given)
    assert answer == (status, 0, None), (answer, said())
    assert said().startswith(f"{name}GetWorkspaceSize: ")
    for word in words if isinstance(words, tuple) else (words,):
        assert word in said(), said()


def accepted(name, given):
    status, _, executor = stage_one(name, given)
    assert status == 0, said()
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0


def check(name, /, status, words, data=F32, vectors=None, **changes):
    """A valid call with some arguments changed is refused."""
    refused(name, status, words, {**arguments(name, data, vectors), **changes})


def fine(name, /, data=F32, vectors=None, **changes):
    """A valid call with some arguments changed is accepted."""
    accepted(name, {**arguments(name, data, vectors), **changes})
