"""Calls of infiniop's batch norm for its tests."""

import numpy as np

from normgrad import batch_norm_backward, infiniop

F16, F32, BF16 = infiniop.INFINI_DTYPE_F16, infiniop.INFINI_DTYPE_F32, infiniop.INFINI_DTYPE_BF16
NAMES = (
    "grad_input",
    "grad_weight",
    "grad_bias",
    "input",
    "grad_output",
    "weight",
    "running_mean",
    "running_var",
)
BIG = ("grad_input", "input", "grad_output")
H2H, H2D, D2H, D2D = infiniop.infinirtMemcpyKind_t


def said():
    return infiniop.recent_error()


def handle():
    status, made = infiniop.infiniopCreateHandle()
    assert status == 0
    return made


def describe(shape, strides=None, dtype=F32):
    status, made = infiniop.infiniopCreateTensorDescriptor(len(shape), shape, strides, dtype)
    assert status == 0, said()
    return made


def tensors(shape=(2, 3, 4), dtype=F32):
    return {name: describe(shape if name in BIG else (shape[1],), dtype=dtype) for name in NAMES}


def create(given=None, handle_=None, **changes):
    given = {**(given or tensors()), **changes}
    return infiniop.infiniopCreateBatchNormBackwardDescriptor(handle_ or handle(), *given.values())


def refused(status, words, **changes):
    assert create(**changes) == (status, None), said()
    assert words in said(), said()


def run(desc, arrays, workspace=None, size=0, stream=None):
    pointers = [array.ctypes.data for array in arrays.values()]
    return infiniop.infiniopBatchNormBackward(desc, workspace, size, *pointers, stream)


def problem(shape=(2, 3, 4), dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in NAMES:
        size = shape if name in BIG else shape[1:2]
        values = 100 + 3 * rng.standard_normal(size) if name in BIG else 0.5 + rng.random(size)
        arrays[name] = values.astype(dtype)
        if name.startswith("grad_") and name != "grad_output":
            arrays[name][...] = np.nan
    return arrays


def expected(arrays):
    """The three gradients."""
    return batch_norm_backward(
        arrays["grad_output"],
        arrays["input"],
        arrays["running_mean"],
        variance=arrays["running_var"],
        eps=0.0,
        weight=arrays["weight"],
    )[:3]


def scratch(desc):
    status, size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(desc)
    assert status == 0
    status, pointer = infiniop.infinirtMalloc(size)
    assert status == 0
    return pointer, size
