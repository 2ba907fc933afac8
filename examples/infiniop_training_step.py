"""A complete training step through normgrad.infiniop: batch norm, ReLU, loss, backward, update.

With momentum 1 BatchNorm leaves the batch's mean and biased variance in running_mean and
running_var: what BatchNormBackward takes, which adds no eps. examples/c/infiniop_training_step.c
is the same in C, and for a GPU.
"""

import math
from typing import Any

import numpy as np

from normgrad import infiniop

SHAPE = (4, 6, 5)
MOMENTUM, EPS, RATE = 1.0, 1e-12, np.float32(0.5)


def must(status: int, *results: Any) -> Any:
    """The result of a call that may not fail."""
    if status != infiniop.INFINI_STATUS_SUCCESS:
        raise SystemExit(f"{status}: {infiniop.recent_error()}")
    return results[0] if results else None


def planned(name: str, handle: Any, arrays: tuple[Any, ...], *numbers: float) -> Any:
    """An operator for arrays of these shapes, which is called with nothing: they are updated."""
    tensors = [
        must(
            *infiniop.infiniopCreateTensorDescriptor(
                one.ndim, one.shape, None, infiniop.INFINI_DTYPE_F32
            )
        )
        for one in arrays
    ]
    create = getattr(infiniop, f"infiniopCreate{name}Descriptor")
    desc = must(*create(handle, *tensors, *numbers))
    size = must(*getattr(infiniop, f"infiniopGet{name}WorkspaceSize")(desc))
    workspace = must(*infiniop.infinirtMalloc(size))
    addresses = [one.ctypes.data for one in arrays]
    compute = getattr(infiniop, f"infiniop{name}")
    return lambda: must(compute(desc, workspace, size, *addresses, None))


def main() -> None:
    """Five steps: the loss is half the mean square of the distance to a target."""
    index = np.arange(math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    x = 1 + 3 * np.sin(np.float32(0.7) * index)
    target = np.cos(np.float32(0.3) * index)
    mean, var, bias, dweight, dbias = (np.zeros(SHAPE[1], np.float32) for _ in range(5))
    weight = np.ones_like(bias)
    y, dy, dx = (np.empty_like(x) for _ in range(3))
    handle = must(*infiniop.infiniopCreateHandle())
    forward = planned("BatchNorm", handle, (y, mean, var, x, weight, bias), MOMENTUM, EPS)
    operands = (x, dy, weight, mean, var)
    backward = planned("BatchNormBackward", handle, (dx, dweight, dbias, *operands))
    for step in range(5):
        forward()
        off = np.maximum(y, 0) - target
        print(f"batch_norm loss {step}: {0.5 * np.mean(np.square(off, dtype=np.float64)):.9g}")
        dy[...] = off * (y > 0) / x.size
        backward()
        weight -= RATE * dweight
        bias -= RATE * dbias
    for word, parameter in (("weight", weight), ("bias", bias)):
        print(f"batch_norm {word}: {' '.join(f'{value:.9g}' for value in parameter)}")


if __name__ == "__main__":
    main()
