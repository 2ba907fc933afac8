"""Prints a digest of many results: run in processes that must agree to the bit."""

import hashlib

import numpy as np

import normgrad
from normgrad import functional


def _arrays(shape, dtype, rng, last=False):
    x = (5 + 3 * rng.standard_normal(shape)).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    if last:
        x, dy = (np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) for a in (x, dy))
    return dy, x


def digest() -> str:
    rng = np.random.default_rng(7)
    found = hashlib.sha256()

    def add(results):
        for array in results:
            if array is not None:
                found.update(np.ascontiguousarray(array).tobytes())

    for dtype in ("float16", "float32"):
        for shape, last in (
            ((16, 40, 20, 25), False),
            ((3, 2, 50_000), False),
            ((16, 40, 20, 25), True),
            ((4000, 70), False),
            ((140, 200, 7, 7), False),  # short planes: two blocks of samples, streamed in float32
        ):
            channels = shape[1]
            dy, x = _arrays(shape, dtype, rng, last)
            vectors = [rng.random(channels).astype(np.float32) for _ in range(3)]
            weight, mean, rstd = vectors
            add(functional.batch_norm_backward(dy, x, mean, rstd, weight=weight, backend="cpu"))
            groups = channels // 2
            statistics = [rng.random((shape[0], groups)).astype(np.float32) for _ in range(2)]
            add(
                functional.group_norm_backward(
                    dy, x, *statistics, groups, weight=weight, backend="cpu"
                )
            )
            add(normgrad.batch_norm(x, weight=weight, backend="cpu"))
            add(normgrad.group_norm(x, groups, bias=weight, backend="cpu"))
        # Units of several channels, whole slabs, slabs of one short segment.
        for shape, groups in (((2, 70, 1023), 1), ((9, 41, 1640), 1), ((40, 61, 121), 61)):
            dy, x = _arrays(shape, dtype, rng)
            statistics = [rng.random((shape[0], groups)).astype(np.float32) for _ in range(2)]
            weight = rng.random(shape[1]).astype(np.float32)
            add(
                functional.group_norm_backward(
                    dy, x, *statistics, groups, weight=weight, backend="cpu"
                )
            )
        dy, x = _arrays((2101, 130), dtype, rng)
        add(normgrad.layer_norm(x, 130, backend="cpu"))
        rows = [rng.random((2101, 1)).astype(np.float32) for _ in range(2)]
        add(functional.layer_norm_backward(dy, x, *rows, (130,), backend="cpu"))
        dy, x = _arrays((21, 30_001), dtype, rng)  # strips of columns
        rows = [rng.random((21, 1)).astype(np.float32) for _ in range(2)]
        sums = (False, True, True)
        add(
            functional.layer_norm_backward(
                dy, x, *rows, (30_001,), output_mask=sums, backend="cpu"
            )[1:]
        )
    return found.hexdigest()


if __name__ == "__main__":
    print(digest())
