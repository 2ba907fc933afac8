"""Results over operands, over each other, and between other people's numbers."""

import ml_dtypes
import numpy as np
import pytest
import torch

import normgrad as ng
from neutral import neutral
from normgrad.arrays import host_memory, overlap
from normgrad.arrays.kinds import View
from normgrad.backends.reference.backend import ReferenceBackend
from normgrad.core.spec import ROLES, TensorSpec

RNG = np.random.default_rng(11)
SHAPE = (3, 4, 6)
OPS = ("batch", "layer", "group", "group-last", "elemt")


def call(op, dy, x, weight, out, backend=None):
    if op == "batch":
        mean, invstd = np.full(4, 0.5, x.dtype), np.full(4, 1.5, x.dtype)
        return ng.batch_norm_backward(dy, x, mean, invstd, weight=weight, out=out, backend=backend)
    if op == "elemt":
        vectors = [np.full(4, value, x.dtype) for value in (0.5, 1.5, 3.0, 2.0)]
        single = None if out is None else out[0]
        return ng.batch_norm_elemt_backward(
            dy,
            x,
            *vectors,
            np.array([18], np.int32),
            weight=weight,
            out=single,
            backend=backend,
        )
    rows = np.linspace(0.5, 1.5, 3).astype(x.dtype)
    if op == "layer":
        return ng.layer_norm_backward(dy, x, *_pair(12), 6, weight=weight, out=out, backend=backend)
    axis = 2 if op == "group-last" else 1
    return ng.group_norm_backward(
        dy, x, rows, rows, 1, weight=weight, channel_axis=axis, out=out, backend=backend
    )


def _pair(count):
    return np.linspace(0.1, 0.9, count), np.linspace(1, 2, count)


def params(op):
    return 6 if op in ("layer", "group-last") else 4


def operands(op, dtype=np.float64):
    dy, x = (RNG.standard_normal(SHAPE).astype(dtype) for _ in range(2))
    return dy, x + 3, RNG.standard_normal(params(op)).astype(dtype)


def fresh(op, dtype=np.float64):
    return np.full(SHAPE, np.nan, dtype), *(np.full(params(op), np.nan, dtype) for _ in range(2))


def same(op, got, want):
    for one, other in zip(got, want if op != "elemt" else (want,), strict=False):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("over", ["grad_out", "input"])
def test_grad_input_in_place(op, over, host_backend):
    dy, x, weight = operands(op)
    want = call(op, dy.copy(), x.copy(), weight, None, host_backend)
    target = dy if over == "grad_out" else x
    out = (target, *fresh(op)[1:])
    call(op, dy, x, weight, out, host_backend)
    same(op, out, want)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("over", ["grad_out", "input"])
@pytest.mark.parametrize("shift", [-5, 1, 7])
def test_grad_input_over_part_of_an_operand(op, over, shift, host_backend):
    dy, x, weight = operands(op)
    want = call(op, dy.copy(), x.copy(), weight, None, host_backend)
    buffer = np.full(x.size + 20, 7.0)
    under = buffer[10 : 10 + x.size].reshape(SHAPE)
    under[...] = dy if over == "grad_out" else x
    target = buffer[10 + shift : 10 + shift + x.size].reshape(SHAPE)
    out = (target, *fresh(op)[1:])
    pair = (under, x) if over == "grad_out" else (dy, under)
    call(op, *pair, weight, out, host_backend)
    same(op, out, want)
    assert (np.delete(buffer, np.s_[10 + shift : 10 + shift + x.size])[:5] == 7).all()


@pytest.mark.parametrize("op", OPS)
def test_grad_input_over_a_flipped_operand(op, host_backend):
    dy, x, weight = operands(op)
    want = call(op, dy.copy(), x.copy(), weight, None, host_backend)
    out = (x[::-1, :, ::-1], *fresh(op)[1:])
    call(op, dy, x, weight, out, host_backend)
    same(op, out, want)


@pytest.mark.parametrize("op", ["batch", "layer", "group", "group-last"])
def test_parameter_gradients_over_the_weight_and_the_data(op, host_backend):
    dy, x, weight = operands(op)
    want = call(op, dy.copy(), x.copy(), weight.copy(), None, host_backend)
    out = (fresh(op)[0], weight, dy.reshape(-1)[3 : 3 + params(op)])
    call(op, dy, x, weight, out, host_backend)
    same(op, out, want)


def test_reduced_sums_over_the_statistics(host_backend):
    dy, x, weight = operands("batch")
    mean, invstd = np.full(4, 0.5), np.full(4, 1.5)
    want = ng.batch_norm_reduce_backward(dy, x, mean, invstd, weight=weight, backend=host_backend)
    out = (mean, invstd, weight, np.empty(4))
    got = ng.batch_norm_reduce_backward(
        dy, x, mean, invstd, weight=weight, out=out, backend=host_backend
    )
    for one, given, other in zip(got, out, want, strict=True):
        assert one is given
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("op", ["batch", "layer", "group", "group-last"])
def test_results_interleaved_in_one_buffer(op, host_backend):
    """Nothing shares an address although every range overlaps every other."""
    dy, x, weight = operands(op)
    want = call(op, dy, x, weight, None, host_backend)
    buffer = np.full(3 * x.size, 7.0)
    data = buffer[0::3].reshape(SHAPE)
    out = (data, buffer[1::3][: params(op)], buffer[2::3][: params(op)])
    call(op, dy, x, weight, out, host_backend)
    same(op, out, want)
    assert (buffer[1::3][params(op) :] == 7).all()
    assert (buffer[2::3][params(op) :] == 7).all()


def test_what_is_too_hard_to_see_counts_as_shared(monkeypatch):
    """Of two views with other strides in one buffer NumPy may not be able to tell in time."""
    monkeypatch.setattr(overlap, "_MAX_WORK", 1)
    dy, x, one = np.ones((4, 6)), np.ones((4, 6)), np.ones(1)
    buffer = np.zeros(99)
    vectors = [
        np.lib.stride_tricks.as_strided(buffer[start:], (4, 6), (8 * row, 8 * column))
        for start, row, column in ((0, 13, 2), (1, 11, 3))
    ]
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(*vectors, max_work=1)
    with pytest.raises(ng.OverlapError, match="grad_bias must not share memory with grad_weight"):
        ng.layer_norm_backward(dy, x, one, one, (4, 6), out=(np.empty_like(x), *vectors))


def test_torch_results_over_operands(host_backend):
    dy, x, weight = (torch.from_numpy(array) for array in operands("batch"))
    want = ng.batch_norm_backward(
        dy.clone(), x.clone(), *neutral(x.clone()), weight=weight.clone(), backend=host_backend
    )
    big = torch.empty(x.numel() + 9, dtype=x.dtype)
    under = big[: x.numel()].view(SHAPE).copy_(x)
    out = (big[9:].view(SHAPE), weight, torch.empty(4, dtype=x.dtype))
    got = ng.batch_norm_backward(
        dy, under, *neutral(under), weight=weight, out=out, backend=host_backend
    )
    for one, given, other in zip(got[:3], out, want[:3], strict=True):
        assert one is given
        assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("steps", [(1, 1, 1), (1, 1, 2), (2, 3, 1), (1, -1, 1), (-1, 2, -3)])
def test_only_what_a_view_covers_is_written(op, dtype, steps, host_backend):
    """Guards before, after and between the elements keep their bytes."""
    dy, x, weight = operands(op, dtype)
    want = call(op, dy, x, weight, None, host_backend)
    sizes = [2 + size * abs(step) for size, step in zip(SHAPE, steps, strict=True)]
    buffer = np.full(sizes, 7.0, dtype)
    target = buffer[
        tuple(
            slice(1, 1 + size * step, step) if step > 0 else slice(size * -step, 0, step)
            for size, step in zip(SHAPE, steps, strict=True)
        )
    ]
    assert target.shape == SHAPE
    vectors = [np.full(2 * params(op) + 5, 7.0, dtype) for _ in range(2)]
    out = (target, *(vector[2 : 2 + 2 * params(op) : 2] for vector in vectors))
    call(op, dy, x, weight, out, host_backend)
    same(op, out, want)
    target[...] = 7.0
    assert (buffer == 7.0).all()
    if op != "elemt":
        for vector in vectors:
            vector[2 : 2 + 2 * params(op) : 2] = 7.0
            assert (vector == 7.0).all()


class Careless(ReferenceBackend):
    """Spoils every result before it reads, but for one that is the very view of dy or x."""

    def run(self, plan, addresses, workspace, stream):
        where = dict(zip(ROLES, addresses, strict=True))
        data = [(where[role], plan.spec.tensor(role)) for role in ("dy", "x")]
        for role in plan.spec.wanted:
            tensor = plan.spec.tensor(role)
            if (where[role], tensor) not in data:
                host_memory.view(where[role], tensor)[...] = np.nan
        super().run(plan, addresses, workspace, stream)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("over", ["same", "shifted", "flipped", "weight"])
def test_a_backend_may_write_before_it_reads(op, over, install):
    """What lies over an operand is computed elsewhere and copied."""
    dy, x, weight = operands(op)
    want = call(op, dy.copy(), x.copy(), weight.copy(), None, "reference")
    install(Careless())
    buffer = np.zeros(x.size + 5)
    under = buffer[: x.size].reshape(SHAPE)
    under[...] = x
    grad_input = {
        "same": under,
        "shifted": buffer[5:].reshape(SHAPE),
        "flipped": under[::-1],
        "weight": np.empty(SHAPE),
    }[over]
    grad_weight = weight if over == "weight" else np.empty(params(op))
    out = (grad_input, grad_weight, np.empty(params(op)))
    call(op, dy, under, weight, out, "reference")
    same(op, out, want)


@pytest.mark.parametrize(("role", "bounced"), [("x", False), ("dy", False), ("gamma", True)])
def test_only_data_may_be_replaced_in_place(role, bounced):
    """A single row of layer norm has gamma's shape; a backend may read that again."""
    view = View(TensorSpec.contiguous((8,), "float32"), 4096, "cpu", None)
    assert overlap.results_needing_copies({"dx": view}, {role: view}, {}) == (
        {"dx"} if bounced else set()
    )
