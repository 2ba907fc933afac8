"""The same bits wherever results lie: dx is streamed in whole lines only at some addresses."""

import numpy as np
import pytest

from normgrad import functional

pytest.importorskip("numba")

SCRIPT = """
import numpy as np
from normgrad import verify
from normgrad.backends.cpu.plan import tuned
from normgrad.core.plan import make_plan
from normgrad.core.spec import RESULTS, Op
from normgrad.verify.run import _poisoned, call, to_array

tuned.STREAM_BYTES = 0  # small data are written past the cache too


def placed(like, offset):
    raw = np.empty(like.nbytes + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


# Rows of an odd number of vectors, of parts of one, of whole pairs; planes and samples likewise.
REQUESTS = (
    (Op.LAYER_NORM_BACKWARD, (37, 784), {}),
    (Op.LAYER_NORM_BACKWARD, (70, 48), {}),
    (Op.LAYER_NORM_BACKWARD, (21, 1040), {}),
    (Op.LAYER_NORM_BACKWARD, (9, 1001), {}), (Op.LAYER_NORM_BACKWARD, (40, 512), {}),
    (Op.GROUP_NORM_BACKWARD, (21, 64, 7, 7), {"num_groups": 4}),
    (Op.GROUP_NORM_BACKWARD, (50, 96), {"num_groups": 2}),
    (Op.GROUP_NORM_BACKWARD, (3, 12, 28, 28), {"num_groups": 3}),
    (Op.GROUP_NORM_BACKWARD, (2, 8, 131, 13), {"num_groups": 2}),
    (Op.GROUP_NORM_BACKWARD, (9, 64, 9, 7), {"num_groups": 4, "layout": "channels-last"}),
    (Op.BATCH_NORM_BACKWARD, (10, 16, 28, 28), {}), (Op.BATCH_NORM_BACKWARD, (16, 64, 7, 7), {}),
    (Op.BATCH_NORM_BACKWARD, (5, 3, 3000), {}), (Op.BATCH_NORM_BACKWARD, (300, 48), {}),
    (Op.BATCH_NORM_BACKWARD, (6, 48, 9, 9), {"layout": "channels-last"}),
    (Op.BATCH_NORM_ELEMT_BACKWARD, (5, 16, 33, 31), {}),
    (Op.BATCH_NORM_BACKWARD, (5, 3, 3000), {"training": False}),
    (Op.BATCH_NORM_BACKWARD, (6, 48, 9, 9), {"layout": "channels-last", "training": False}),
)
streamed = 0
for op, shape, options in REQUESTS:
    for dtype in ("float32", "bfloat16"):
        problem = verify.make_problem(verify.Case(id="at", op=op, shape=shape, **options), dtype, 0)
        streamed += make_plan(problem.spec, "cpu").config.streaming
        first = None
        operands = {role: to_array(host, None) for role, host in problem.operands.items()}
        for offset in (0, 4, 16, 32, 48):
            out = [to_array(_poisoned(problem, role), None) for role in problem.case.results]
            last = options.get("layout") == "channels-last"
            dx = np.moveaxis(out[0], 1, -1) if last else out[0]
            out[0] = placed(np.ascontiguousarray(dx), offset)
            out[0] = np.moveaxis(out[0], -1, 1) if last else out[0]
            call(problem, operands, tuple(out), "cpu")
            bits = [np.ascontiguousarray(one).tobytes() for one in out]
            first = first or bits
            assert bits == first, (op, shape, dtype, offset)
assert streamed > 24, streamed
print("done")
"""


@pytest.mark.slow(10)
def test_results_at_any_address_have_the_same_bits(python):
    assert python("-c", SCRIPT).strip() == "done"


def spaced(memory, shape, axis):
    """A view of that shape with an element between neighbours along an axis, none if -1."""
    sizes = list(shape)
    if axis >= 0:
        sizes[axis] += 1
    return memory[: np.prod(sizes)].reshape(sizes)[tuple(slice(size) for size in shape)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("op", "shape", "axis"),
    [
        ("batch", (16, 64, 49), 1),  # short planes: strips
        ("batch", (5, 12, 300), 1),
        ("batch", (8, 21, 32), 2),  # narrow rows: folded
        ("batch", (9, 21, 60), 2),
        ("batch", (64, 24), 1),
        ("group", (5, 24, 49), 1),
        ("group", (5, 24, 9), 1),  # as rows of layer norm
        ("group", (5, 30, 24), 2),
        ("group", (5, 24), 1),
        ("layer", (37, 24), 1),
    ],
)
def test_gaps_of_a_result_have_no_say(op, shape, axis, dtype):
    """Nor whether it lies over an operand: then it is computed where there are none."""
    rng = np.random.default_rng(1)
    x, dy = (rng.standard_normal(shape).astype(dtype) for _ in range(2))
    channels = shape[axis]
    gamma, mean, rstd = (rng.random(channels).astype(np.float32) for _ in range(3))
    rows = rng.random((2, shape[0], 6)).astype(np.float32)
    vectors = tuple(np.empty(channels, np.float32) for _ in range(2))

    def bits(input, target):
        out = (target, *vectors)
        options = {"param_grad_dtype": "float32", "out": out, "backend": "cpu", "weight": gamma}
        if op == "batch":
            functional.batch_norm_backward(dy, input, mean, rstd, channel_axis=axis, **options)
        elif op == "group":
            functional.group_norm_backward(dy, input, *rows, 6, channel_axis=axis, **options)
        else:
            functional.layer_norm_backward(dy, input, *rows[:, :, 0], channels, **options)
        return [one.tobytes() for one in out]

    want = bits(x, np.empty_like(x))
    for gap in range(-1, len(shape)):
        memory = np.empty(4 * x.size, dtype)
        assert bits(x, spaced(memory, shape, gap)) == want, f"gaps along {gap}"
        over = memory[7 : 7 + x.size].reshape(shape)
        over[...] = x
        assert bits(over, spaced(memory, shape, gap)) == want, f"gaps along {gap}, over x"
