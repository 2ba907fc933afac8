"""Activations: exponentials to the last place, and a ReLU that both passes decide in one way."""

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import pytest

import normgrad as ng
from normgrad.backends.cpu import formulas
from normgrad.backends.cpu.formulas import functions
from normgrad.backends.cpu.vectors import lanes, load, size_of, store
from normgrad.backends.cpu.vectors.formats import F32, F64

torch = pytest.importorskip("torch")


@dataclass(frozen=True, slots=True)
class Exp(formulas.Formula):
    """Nothing else."""

    def centre(self, x: Any, mean: Any) -> Any:
        return functions.exp(x)


def exp_of(x):
    found, form, fmt = np.empty_like(x), Exp(), F32 if x.dtype == np.float32 else F64

    @numba.njit
    def exponentials(source, target, count):
        for at in range(0, count * size_of(fmt), lanes(fmt) * size_of(fmt)):
            one = load(fmt, source + at)
            store(fmt, target + at, form.centre(one, one))

    exponentials(x.ctypes.data, found.ctypes.data, x.size)
    return found


def test_exp_in_float32_is_right_to_a_unit_of_its_last_place():
    x = np.linspace(-104, 89, 1 << 20, dtype=np.float32)
    x[:16] = [
        np.nan,
        np.inf,
        -np.inf,
        0,
        -0.0,
        1e-30,
        -1e-30,
        1,
        3e38,
        -3e38,
        88.7,
        -87,
        0,
        0,
        0,
        0,
    ]
    found = exp_of(x).astype(np.float64)
    with np.errstate(over="ignore"):
        truth = np.exp(x.astype(np.float64))
        held = truth.astype(np.float32)
    exact = np.isfinite(held)
    unit = np.spacing(np.where(exact, held, 1)).astype(np.float64)
    assert np.all(abs(found[exact] - truth[exact]) <= unit[exact])
    assert np.array_equal(found[~exact], held[~exact], equal_nan=True)


def test_exp_in_float64_is_right_to_two_roundings():
    x = np.linspace(-708, 709, 1 << 16)
    truth = np.exp(x.astype(np.longdouble))
    assert float(np.max(abs(exp_of(x) - truth) / truth)) < 2 * 2.0**-53


def all_values(dtype):
    """Every number of 16 bits, in each of four channels."""
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.int16)
    values = torch.from_numpy(bits).view(dtype).reshape(16, 1, 4096)
    return values.expand(16, 4, 4096).contiguous()


DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
LAYOUTS = pytest.mark.parametrize("last", [False, True], ids=["first", "last"])
# What rounds to a number of 16 bits from either side, to 0, and 6 from below.
FACTORS = torch.tensor([1.0, 2.0**-10, 1 / 3, -7.77e-3])
SHIFTS = torch.tensor([0.0, 0.0, 2.0**-25, 6.0])


@pytest.mark.slow(15)
@DTYPES
@LAYOUTS
@pytest.mark.parametrize("name", ["relu", "relu6", "leaky_relu"])
def test_a_relu_is_decided_on_the_rounded_value_of_all_that_there_are(dtype, last, name):
    """As in a program whose norm and activation are two operators, each way."""
    x = all_values(dtype)
    if last:
        x = x.permute(0, 2, 1).contiguous().permute(0, 2, 1)
    rows = torch.zeros(4), torch.ones(4)
    options = {"weight": FACTORS, "bias": SHIFTS, "backend": "cpu"}
    after = {"activation": name, "negative_slope": 0.25}
    plain = ng.batch_norm_elemt(x, *rows, **options).float()
    closed, capped = plain <= 0, plain >= 6
    below = {"relu": 0.0, "relu6": 0.0, "leaky_relu": 0.25}[name]
    want = torch.where(closed, plain * below if below else torch.zeros(()), plain)
    if name == "relu6":
        want = torch.where(capped, torch.tensor(6.0), want)
    y = ng.batch_norm_elemt(x, *rows, **options, **after).float()
    if name == "leaky_relu":  # below 0 it is not rounded twice
        torch.testing.assert_close(y, want, rtol=2**-7, atol=2**-24, equal_nan=True)
        y, want = y[~closed], want[~closed]
    torch.testing.assert_close(y, want, rtol=0, atol=0, equal_nan=True)

    dy = torch.ones_like(x)
    options |= {"training": False, "output_mask": (True, False, False)}
    slope = torch.where(closed, below, 1.0)
    if name == "relu6":
        slope = torch.where(capped, 0.0, slope)
    dx = ng.batch_norm_backward(dy, x, *rows, **options, **after)[0]
    plain = ng.batch_norm_backward(dy, x, *rows, **options)[0]
    torch.testing.assert_close(dx.float(), plain.float() * slope, rtol=0, atol=0)


@pytest.mark.slow(15)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "last"),
    [
        ((8, 12, 40, 25), False),
        ((40, 16, 7, 7), False),
        ((8, 12, 40, 25), True),
        ((3, 2, 50000), False),
    ],
)
def test_both_passes_of_a_batch_norm_are_open_in_the_same_places(dtype, shape, last):
    """From statistics that were rounded in between; a far mean leaves z few digits."""
    x = (100 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).to(dtype)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    weight = 1 + torch.rand(shape[1]) / 3
    given = {"weight": weight, "activation": "relu", "backend": "cpu"}
    y, mean, rstd = ng.batch_norm(x, **given)[:3]
    dx = ng.batch_norm_backward(
        torch.ones_like(x), x, mean, rstd, **given, training=False, output_mask=(True, False, False)
    )[0]
    assert torch.equal(y > 0, dx > 0)


def test_negative_slopes_share_a_kernel():
    x = torch.randn(64, 8)
    results = [
        ng.layer_norm(x, 8, activation="leaky_relu", negative_slope=slope, backend="cpu")[0]
        for slope in (0.5, -2.0)
    ]
    plain = ng.layer_norm(x, 8, backend="cpu")[0]
    for y, slope in zip(results, (0.5, -2.0), strict=True):
        torch.testing.assert_close(y, torch.where(plain <= 0, plain * slope, plain))
