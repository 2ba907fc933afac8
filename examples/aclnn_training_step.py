"""Complete training steps through normgrad.aclnn: forward, loss, backward, update.

Batch norm with ReLU, layer norm with GELU, group norm with SiLU, each alone.
examples/c/training_step.cpp is the same in C++.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from normgrad import aclnn

SAMPLES, CHANNELS, POSITIONS, GROUPS = 4, 6, 5, 3
EPS, RATE = 1e-5, np.float32(0.5)
SHAPE = (SAMPLES, CHANNELS, POSITIONS)
MASK = aclnn.aclCreateBoolArray([True, True, True], 3)
LAST = aclnn.aclCreateIntArray([POSITIONS], 1)

_normal = np.vectorize(lambda z: 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))))


def compute(name: str, *arguments: Any) -> None:
    """Both stages of an operator; arrays are tensors."""
    given = [aclnn.tensor(one) if isinstance(one, np.ndarray) else one for one in arguments]
    status, size, executor = getattr(aclnn, f"{name}GetWorkspaceSize")(*given)
    assert status == 0, aclnn.aclGetRecentErrMsg()
    workspace = aclnn.aclrtMalloc(size)[1] if size else None
    status = getattr(aclnn, name)(workspace, size, executor, None)
    assert status == 0, aclnn.aclGetRecentErrMsg()
    if workspace:
        aclnn.aclrtFree(workspace)


def batch_norm(x: Any, weight: Any, bias: Any, y: Any) -> Callable[..., None]:
    """The forward pass; what comes back is the backward pass."""
    mean, invstd, running_mean, running_var = (np.zeros(CHANNELS, np.float32) for _ in range(4))
    running = (running_mean, running_var)
    compute("aclnnBatchNorm", x, weight, bias, *running, True, 0.1, EPS, y, mean, invstd)

    def backward(dy: Any, *gradients: Any) -> None:
        saved = (None, None, mean, invstd)
        compute("aclnnBatchNormBackward", dy, x, weight, *saved, True, EPS, MASK, *gradients)

    return backward


def layer_norm(x: Any, weight: Any, bias: Any, y: Any) -> Callable[..., None]:
    """The same of layer norm over the last axis."""
    mean, rstd = (np.empty((*SHAPE[:-1], 1), np.float32) for _ in range(2))
    compute("aclnnLayerNorm", x, LAST, weight, bias, EPS, y, mean, rstd)

    def backward(dy: Any, *gradients: Any) -> None:
        compute("aclnnLayerNormBackward", dy, x, LAST, mean, rstd, weight, bias, MASK, *gradients)

    return backward


def group_norm(x: Any, weight: Any, bias: Any, y: Any) -> Callable[..., None]:
    """Group norm with SiLU behind it."""
    mean, rstd = (np.empty((SAMPLES, GROUPS), np.float32) for _ in range(2))
    compute("aclnnGroupNormSilu", x, weight, bias, GROUPS, EPS, y, mean, rstd)

    def backward(dy: Any, *gradients: Any) -> None:
        numbers = (GROUPS, "NCHW", 1.0, True, True)
        compute("aclnnGroupNormSwishGrad", dy, mean, rstd, x, weight, bias, *numbers, *gradients)

    return backward


def relu(z: Any) -> tuple[Any, Any]:
    """The activation and its slope."""
    return np.maximum(z, 0), (z > 0).astype(np.float32)


def gelu(z: Any) -> tuple[Any, Any]:
    """The activation and its slope."""
    share = _normal(z)
    return z * share, share + z * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def none(z: Any) -> tuple[Any, Any]:
    """The operator has its activation."""
    return z, 1.0


def train(name: str, norm: Callable[..., Any], act: Callable[[Any], Any], width: int) -> None:
    """Five steps: the loss is half the mean square of the distance to a target."""
    index = np.arange(math.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    x = 1 + 3 * np.sin(np.float32(0.7) * index)
    target = np.cos(np.float32(0.3) * index)
    weight, bias = np.ones(width, np.float32), np.zeros(width, np.float32)
    y, dx = np.empty_like(x), np.empty_like(x)
    changes = np.empty_like(weight), np.empty_like(bias)
    for step in range(5):
        backward = norm(x, weight, bias, y)
        out, slope = act(y)
        loss = 0.5 * np.mean(np.square(out - target, dtype=np.float64))
        backward(((out - target) * slope / x.size).astype(np.float32), dx, *changes)
        weight -= RATE * changes[0]
        bias -= RATE * changes[1]
        print(f"{name} loss {step}: {loss:.9g}")
    for word, parameter in (("weight", weight), ("bias", bias)):
        print(f"{name} {word}: {' '.join(f'{value:.9g}' for value in parameter)}")


if __name__ == "__main__":
    aclnn.aclrtSetDevice(0)
    train("batch_norm", batch_norm, relu, CHANNELS)
    train("layer_norm", layer_norm, gelu, POSITIONS)
    train("group_norm", group_norm, none, CHANNELS)
