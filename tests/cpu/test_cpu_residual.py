"""A residual before layer norm and RMS norm: the bits of the same in two steps."""

import numpy as np
import pytest

import normgrad as ng
from normgrad import functional

pytest.importorskip("numba")
# Rows by fours and left over; short ones; longer than a cache; so many that results are streamed.
SHAPES = [(1, 1), (7, 24), (130, 256), (9, 5003), (3, 40_001), (701, 4096), (2100, 1000)]


def data(shape, dtype, count, seed=3):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(shape) + 2 * one).astype(dtype) for one in range(count)]


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def norm(op, x, **options):
    n = x.shape[-1]
    (weight,) = data((n,), x.dtype, 1, seed=5)
    if op == "layer_norm":
        return ng.layer_norm(x, n, weight=weight, bias=weight[::-1], backend="cpu", **options)
    return ng.rms_norm(x, n, weight=weight, weight_offset=0.5, backend="cpu", **options)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_sum_has_the_bits_of_a_sum_and_the_rest_of_its_norm(op, dtype):
    for shape in SHAPES:
        x, r = data(shape, dtype, 2)
        found, total = norm(op, x, residual=r), x + r
        expected = norm(op, total)
        np.testing.assert_array_equal(found.sum, total)
        np.testing.assert_array_equal(found.output, expected.output)
        np.testing.assert_array_equal(found.rstd, expected.rstd)
        if op == "layer_norm":
            np.testing.assert_array_equal(found.mean, expected.mean)


def test_every_sum_of_two_bfloat16():
    torch = pytest.importorskip("torch")
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    every = every.view(torch.bfloat16)
    every = every[every.isfinite() & ((every == 0) | (every.abs() > 1e-37))]
    x = every[: len(every) // 32 * 32].reshape(-1, 32)
    for seed in range(4):
        order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(seed))
        r = x.reshape(-1)[order].reshape(x.shape)
        found = ng.rms_norm(x, 32, residual=r, backend="cpu")
        kept = (x + r).abs() > 1e-37  # the processor's own narrowing flushes subnormals
        assert torch.equal(found.sum[kept], (x + r)[kept])


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(7, 24), (10, 5003), (701, 4096)])
def test_what_is_not_wanted_and_what_lies_over_an_operand(op, shape):
    x, r = data(shape, "float32", 2)
    all_of_it = norm(op, x, residual=r)
    rows = [np.empty_like(one) for one in all_of_it[1:3] if one is not None]

    def into(y, total):
        norm(op, a, residual=b, out=(y, *rows, total))

    for names in (("a", "b"), ("b", "a"), ("a", None), ("b", None), (None, "a"), (None, "b")):
        a, b = x.copy(), r.copy()
        places = [{"a": a, "b": b, None: None}[name] for name in names]
        into(*places)
        for place, want in zip(places, (all_of_it.output, all_of_it.sum), strict=True):
            if place is not None:
                np.testing.assert_array_equal(place, want)
        same(rows, [one for one in all_of_it[1:3] if one is not None])
    # At addresses where nothing can be streamed.
    room = np.empty((2, x.size + 1), "float32")[:, 1:].reshape(2, *shape)
    a, b = x, r
    into(room[0], room[1])
    same(room, (all_of_it.output, all_of_it.sum))
    rows[-1][...] = np.nan
    into(None, None)  # statistics alone
    np.testing.assert_array_equal(rows[-1], all_of_it.rstd)


@pytest.mark.parametrize("op", ["layer_norm_backward", "rms_norm_backward"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_the_gradient_of_the_sum_is_added(op, dtype, shape):
    dy, x, dsum = data(shape, dtype, 3)
    n, rows = shape[1], [one[:, :1].copy() for one in (x, np.abs(dy))]
    (weight,) = data((n,), dtype, 1)
    rows = rows if op.startswith("layer") else rows[1:]

    def gradients(**options):
        found = getattr(functional, op)(dy, x, *rows, n, weight=weight, backend="cpu", **options)
        return [one for one in found if one is not None]

    expected, found = gradients(), gradients(grad_sum=dsum)
    np.testing.assert_array_equal(found[0], expected[0] + dsum)
    same(found[1:], expected[1:])
    over = dsum.copy()
    gradients(grad_sum=over, out=[over, *map(np.empty_like, expected[1:])])
    np.testing.assert_array_equal(over, found[0])


def test_bits_do_not_depend_on_threads(python):
    code = """
import hashlib, numpy as np, normgrad as ng
rng = np.random.default_rng(0)
x, r, dy, ds = (rng.standard_normal((3000, 500)).astype("f4") for _ in range(4))
y = ng.layer_norm(x, 500, residual=r, backend="cpu")
g = ng.layer_norm_backward(dy, y.sum, y.mean, y.rstd, 500, grad_sum=ds, backend="cpu")
found = hashlib.sha256()
for one in (*y[:4], *g[:3]):
    found.update(np.ascontiguousarray(one).tobytes())
print(found.hexdigest())
"""
    assert len({python("-c", code, NORMGRAD_NUM_THREADS=n) for n in "12"}) == 1


def test_in_bounds(stay_in_bounds):
    cases = [
        (op, {"shape": shape, "residual": True, "layout": layout})
        for op in ("layer_norm", "rms_norm", "layer_norm_backward")
        for shape, layout in (((9, 37), "contiguous"), ((5, 70), "mixed"))
    ]
    stay_in_bounds({"BLOCK_ROWS": 8}, "rows", cases, first=False)
