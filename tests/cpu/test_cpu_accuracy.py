"""What the arithmetic promises: sums that do not drift, results rounded once."""

import numpy as np
import pytest

from neutral import neutral
from normgrad import functional
from normgrad.arrays import host_memory
from normgrad.core.dtypes import FLOATS
from normgrad.core.spec import Op
from normgrad.verify import Case, expected, judge, make_problem, run_backend
from normgrad.verify.budget import sum_factor

TERMS = 10_000_000


def _long_sums(shape, op, seed):
    rng = np.random.default_rng(seed)
    x = (100 + 3 * rng.standard_normal(shape, np.float32)).astype(np.float32)
    dy = rng.standard_normal(shape, np.float32) + np.float32(0.25)
    # The data's own: then terms cancel, and add up to a few thousandths of their sizes at most.
    mean = np.float32([x.mean(dtype=np.float64)])
    rstd = np.float32([1 / 3])
    truth_dy = dy.astype(np.float64).sum()
    truth = (dy.astype(np.float64) * (x.astype(np.float64) - np.float64(mean[0]))).sum()
    truth *= np.float64(rstd[0])
    mask = (False, True, True)
    if op is Op.BATCH_NORM_BACKWARD:
        got = functional.batch_norm_backward(dy, x, mean, rstd, output_mask=mask, backend="cpu")
    elif op is Op.GROUP_NORM_BACKWARD:
        got = functional.group_norm_backward(dy, x, mean, rstd, 1, output_mask=mask, backend="cpu")
    else:
        rows = np.full((shape[0], 1), mean[0]), np.full((shape[0], 1), rstd[0])
        got = functional.layer_norm_backward(dy, x, *rows, (1,), output_mask=mask, backend="cpu")
    return [(got.grad_weight, truth), (got.grad_bias, truth_dy)]


@pytest.mark.parametrize(
    ("shape", "op"),
    [
        pytest.param((10, 1, TERMS // 10), Op.BATCH_NORM_BACKWARD, id="channels-first"),
        pytest.param((TERMS // 50, 1, 50), Op.BATCH_NORM_BACKWARD, id="short-segments"),
        pytest.param((TERMS, 1), Op.BATCH_NORM_BACKWARD, id="channels-last"),
        pytest.param((1, 1, TERMS), Op.GROUP_NORM_BACKWARD, id="group"),
        pytest.param((TERMS, 1), Op.LAYER_NORM_BACKWARD, id="rows"),
    ],
)
@pytest.mark.parametrize("seed", [1, 3])  # in float32 alone up to 31 and 5.6 units off
def test_ten_million_terms_stay_within_a_unit(shape, op, seed):
    for got, truth in _long_sums(shape, op, seed):
        unit = np.spacing(np.float32(abs(truth)))
        assert abs(np.float64(got[0]) - truth) <= 0.51 * unit


def test_paired_sums_of_folded_rows_of_more_than_64_channels():
    # Two rows as one, in 65 blocks: when two tasks paired them both sums were up to 130 off.
    case = Case(id="folded", op=Op.BATCH_NORM_BACKWARD, shape=(2 * 64 * 128 + 2, 65))
    problem = make_problem(case, "float64")
    for measured in judge(problem, run_backend(problem, "cpu")):
        assert measured.ok, measured


@pytest.mark.parametrize("shape", [(1 << 20,), (1, 8192, 32), (1, 32, 8192)], ids=str)
def test_long_float64_sums_behind_grad_input_are_not_joined_one_by_one(shape):
    # Equal terms less their mean are 0. Blocks of a row or a group's channels, channels first or
    # last, were joined one by one: their means were 324 and 1085 roundings off.
    dy, x = np.full(shape, 0.1), np.resize([1.0, -1.0], shape)
    statistics = np.zeros((1, 1)), np.ones((1, 1))
    if len(shape) == 1:
        got = functional.layer_norm_backward(dy, x, *statistics, shape, backend="cpu")
    else:
        options = {"channel_axis": shape.index(8192), "backend": "cpu"}
        got = functional.group_norm_backward(dy, x, *statistics, 1, **options)
    assert np.abs(got.grad_input).max() <= (sum_factor(dy.size) + 13) * 2.0**-53 * 0.1


def test_units_of_a_float64_channel_are_not_joined_one_by_one():
    shape = (2048, 1, 32768)  # as many units of 0.1 were 324 roundings off
    dy, x = (np.broadcast_to(np.full(shape[1:], value), shape) for value in (0.1, 1.0))
    got = functional.batch_norm_backward(
        dy, x, *neutral(x), output_mask=(False, True, True), backend="cpu"
    )
    truth = 0.1 * dy.size  # a power of two
    for sums in (got.grad_weight, got.grad_bias):
        assert abs(sums[0] - truth) <= sum_factor(dy.size) * 2.0**-53 * truth


CASES = [
    Case(id="channels-first", op=Op.BATCH_NORM_BACKWARD, shape=(16, 8, 2048)),
    Case(
        id="channels-last", op=Op.BATCH_NORM_BACKWARD, shape=(8, 32, 32, 32), layout="channels-last"
    ),
    Case(id="short-planes", op=Op.BATCH_NORM_BACKWARD, shape=(150, 128, 7, 7)),
    Case(id="inference", op=Op.BATCH_NORM_BACKWARD, shape=(16, 8, 2048), training=False),
    Case(id="elemt", op=Op.BATCH_NORM_ELEMT_BACKWARD, shape=(16, 8, 2048)),
    Case(id="rows", op=Op.LAYER_NORM_BACKWARD, shape=(256, 1000)),
    Case(id="group", op=Op.GROUP_NORM_BACKWARD, shape=(4, 32, 2000), num_groups=8),
]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.id}")
def test_16_bit_gradients_are_rounded_once(case, dtype):
    problem = make_problem(case, dtype)
    want = expected(problem).values["dx"]
    got = run_backend(problem, "cpu")["dx"].reshape(want.shape)
    info = FLOATS[dtype]
    nearest = host_memory.widen(host_memory.narrow(want, dtype), dtype)
    assert (got != nearest).mean() < 0.01
    _, exponent = np.frexp(np.abs(want))
    unit = np.maximum(2 * info.unit_roundoff * np.ldexp(1.0, exponent - 1), info.smallest)
    # Where terms of about 1 cancel, float32 itself ends: 4 units of its own.
    unit = np.maximum(unit, 4 * 2.0**-23 * np.abs(want).max())
    assert (np.abs(got - want) <= unit).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_parameter_gradient_is_rounded_once_from_float64(dtype):
    # 1 + half a step of the type, and a hair that only float64 holds: up, not to even.
    half = FLOATS[dtype].unit_roundoff
    dy = np.zeros((48, 1), np.float32)
    dy[:3, 0] = 1.0, half, 2.0**-40  # rows of one channel are taken 16 as one: three lanes
    gamma = host_memory.narrow(np.ones(1), dtype)
    if dtype == "bfloat16":
        gamma = gamma.view(pytest.importorskip("ml_dtypes").bfloat16)
    got = functional.batch_norm_backward(
        dy,
        np.ones_like(dy),
        *neutral(np.ones_like(dy)),
        weight=gamma,
        output_mask=(False, False, True),
        backend="cpu",
    ).grad_bias
    assert np.float64(got[0]) == 1 + 2 * half


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("gap", [1, 2])
def test_columns_of_layer_norm_are_rounded_once_from_float64(dtype, gap):
    # The same in three blocks of rows, for a vector of columns and a part, and one by one.
    half = FLOATS[dtype].unit_roundoff
    signs = np.resize([1.0, -1.0, 1e30, 2.0**-30, 0.0], 21)
    dy = np.zeros((300, 21), np.float32)
    for row, size in ((0, 1.0), (100, half), (200, 2.0**-40)):
        dy[row] = size * signs
    rows = np.zeros((300, 1), np.float32), np.ones((300, 1), np.float32)
    gamma = host_memory.narrow(np.ones(21), dtype)
    given = host_memory.narrow(np.full(21 * gap, np.nan), dtype)[::gap]
    if dtype == "bfloat16":
        bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
        gamma, given = gamma.view(bfloat16), given.view(bfloat16)
    functional.layer_norm_backward(
        dy, dy, *rows, 21, weight=gamma, output_mask=(False, False, True), out=(None, None, given)
    )
    sums = host_memory.narrow(dy.sum(0, dtype=np.float64), dtype)
    np.testing.assert_array_equal(given.view(sums.dtype), sums)
