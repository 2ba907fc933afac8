"""Tensors whose numbers are not what lies at their address, or lie between places: every call."""

import ctypes

import numpy as np
import pytest

import normgrad as ng
from neutral import neutral
from normgrad.core.spec import TensorSpec

torch = pytest.importorskip("torch")

from foreign_arrays import Foreign, Writable  # noqa: E402  (needs torch's skip first)

BACKENDS = ("cpu", "reference")


def _negated(shape):
    tensor = torch.randn(shape, dtype=torch.complex64).conj().imag  # the sign is a flag
    assert tensor.is_neg()
    return tensor


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", range(4))
def test_a_pending_negation_is_seen_in_every_call(backend, place):
    shapes = ((8, 4), (8, 4), (8, 1), (8, 1), (4,))
    dy, x, mean, rstd, gamma = (torch.randn(shape) for shape in shapes)
    operands = [dy, x, mean, gamma]
    operands[place] = _negated(operands[place].shape)
    dy, x, mean, gamma = operands
    plain = [one.clone() for one in operands]
    out = torch.empty(8, 4), torch.empty(4), torch.empty(4)
    want = ng.layer_norm_backward(
        plain[0], plain[1], plain[2], rstd, 4, weight=plain[3], backend=backend
    )
    for given in (None, None, None, out, out, out):
        got = ng.layer_norm_backward(dy, x, mean, rstd, 4, weight=gamma, out=given, backend=backend)
        assert all(map(torch.equal, got[:3], want[:3]))


SHAPE = (8, 64, 3136)  # large enough for lines written past the cache


def _shifted(values, by=1):
    """The same numbers at an address that is no multiple of their size."""
    memory = bytearray(values.nbytes + 8)
    tensor = torch.frombuffer(memory, dtype=values.dtype, offset=by, count=values.numel())
    tensor.view(values.shape).copy_(values)
    return tensor.view(values.shape)


@pytest.mark.parametrize("op", ["batch", "group"])
def test_a_result_between_places_is_refused_in_every_call(op):
    x, dy = torch.randn(SHAPE), torch.randn(SHAPE)
    mask = (True, False, False)

    def call(dx):
        if op == "batch":
            return ng.batch_norm_backward(
                dy, x, *neutral(x), output_mask=mask, out=(dx, None, None)
            )
        rows = torch.zeros(8, 32), torch.ones(8, 32)
        return ng.group_norm_backward(dy, x, *rows, 32, output_mask=mask, out=(dx, None, None))

    fine, shifted = torch.empty(SHAPE), _shifted(x)
    for dx in (shifted, fine, fine, shifted):
        if dx is fine:
            call(dx)
            continue
        with pytest.raises(ng.ArrayTypeError, match=r"grad_input must be aligned .* address 0x"):
            call(dx)
        assert torch.equal(dx, x)


def test_operands_between_places_are_copied():
    x, dy = torch.randn(4, 6, 50), torch.randn(4, 6, 50)
    want = ng.batch_norm_backward(dy, x, *neutral(x))
    for _ in range(3):
        got = ng.batch_norm_backward(_shifted(dy), _shifted(x, 3), *neutral(_shifted(x, 3)))
        assert all(map(torch.equal, got[:3], want[:3]))


def test_the_same_of_memory_behind_dlpack():
    x, dy = (np.random.default_rng(seed).standard_normal((4, 6)) for seed in (1, 2))
    buffer = ctypes.create_string_buffer(4 * 24 + 8)
    address = ctypes.addressof(buffer) // 8 * 8 + 1
    tensor = TensorSpec.contiguous((4, 6), "float32")
    moved = Foreign(tensor, address, buffer)
    ctypes.memmove(address, x.astype(np.float32).ctypes.data, 4 * 24)
    dy, x = dy.astype(np.float32), x.astype(np.float32)
    statistics = neutral(x)
    lent = [Foreign.of(one, "float32") for one in (dy, *statistics)]
    got = ng.batch_norm_backward(lent[0], moved, *lent[1:])
    want = ng.batch_norm_backward(dy, x, *statistics)
    assert np.array_equal(got.grad_input.values, want.grad_input)
    view = np.frombuffer(buffer, np.uint8)[address - ctypes.addressof(buffer) :]
    out = Writable(view[: 4 * 24].view(np.float32).reshape(4, 6))
    with pytest.raises(ng.ArrayTypeError, match="must be aligned to its elements"):
        ng.batch_norm_backward(
            dy, x, *statistics, output_mask=(True, False, False), out=(out, None, None)
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_along_which_nobody_steps(backend):
    """An axis of size 1 may have any: NumPy ends at 2**63 bytes."""
    base, dy = torch.randn(64), torch.randn(4, 1, 8)
    x = torch.as_strided(base, (4, 1, 8), (8, 2**61, 1))
    dx = torch.as_strided(torch.empty(64), (4, 1, 8), (8, 2**61, 1))
    want = ng.batch_norm_backward(dy, x.clone(), *neutral(x.clone()), backend=backend).grad_input
    out = (dx, torch.empty(1), torch.empty(1))
    assert torch.equal(ng.batch_norm_backward(dy, x, *neutral(x), backend=backend).grad_input, want)
    assert torch.equal(
        ng.batch_norm_backward(dy, x, *neutral(x), out=out, backend=backend).grad_input, want
    )
