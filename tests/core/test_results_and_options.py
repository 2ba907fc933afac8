"""What results look like, and the spellings of options that lead to them."""

import ml_dtypes
import numpy as np
import pytest
import torch

import normgrad as ng
from neutral import neutral

RNG = np.random.default_rng(3)


def data(*shape):
    return RNG.standard_normal(shape) + 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bit_data_with_float32_statistics(dtype):
    narrow = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    dy, x = (data(4, 3, 5).astype(narrow) for _ in range(2))
    weight, mean, invstd = (data(3).astype(np.float32) for _ in range(3))
    got = ng.batch_norm_backward(dy, x, mean, invstd, weight=weight)
    assert [str(one.dtype) for one in got[:3]] == [dtype, "float32", "float32"]
    bare = ng.batch_norm_backward(dy, x, mean, invstd)
    assert [str(one.dtype) for one in bare[:3]] == [dtype] * 3


def results(returned):
    """All of them but the gradient of a shortcut, which these operators have none of."""
    return returned[:3] if isinstance(returned, ng.Gradients) else returned


HALF = {
    "batch": lambda dy, x, one, **options: ng.batch_norm_backward(
        dy, x, one, one, weight=one, **options
    ),
    "reduce": lambda dy, x, one, **options: ng.batch_norm_reduce_backward(
        dy, x, one, one, weight=one, **options
    ),
    "layer": lambda dy, x, one, **options: ng.layer_norm_backward(
        dy, x, dy[:, 0], dy[:, 1], 3, weight=one, **options
    ),
    "group": lambda dy, x, one, **options: ng.group_norm_backward(
        dy, x, dy[:, 0], dy[:, 1], 1, weight=one, **options
    ),
}


@pytest.mark.parametrize(
    "wish",
    ["float32", np.float32, np.dtype("f4"), torch.float32],
    ids=["name", "type", "dtype", "torch"],
)
@pytest.mark.parametrize("op", HALF)
def test_parameter_gradients_in_float32_on_request(op, wish):
    operands = [data(*shape).astype(np.float16) for shape in ((4, 3), (4, 3), (3,))]
    *others, dgamma, dbeta = results(HALF[op](*operands, param_grad_dtype=wish))
    assert [str(one.dtype) for one in (dgamma, dbeta)] == ["float32", "float32"]
    out = [np.empty_like(one) for one in (*others, dgamma, dbeta)]
    same = HALF[op](*operands, out=out)  # float32 needs no further word in out=
    np.testing.assert_array_equal(same.grad_weight, dgamma)
    assert [str(one.dtype) for one in results(HALF[op](*operands))[-2:]] == ["float16", "float16"]


def test_sums_of_the_reduction_are_wide():
    dy, x, vector = data(4, 3), data(4, 3), data(3)
    half = [one.astype(np.float16) for one in (dy, x, vector, vector)]
    got = ng.batch_norm_reduce_backward(*half)
    assert [str(one.dtype) for one in got] == ["float32", "float32", "float16", "float16"]
    full = ng.batch_norm_reduce_backward(dy, x, vector, vector)
    assert [str(one.dtype) for one in full] == ["float64"] * 4


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1)])
@pytest.mark.parametrize("op", ["batch", "group", "elemt", "layer"])
def test_channels_last_stays_channels_last(shape, op):
    x = torch.randn(shape).to(memory_format=torch.channels_last)
    dy, vector = torch.randn(shape), torch.ones(shape[1])
    if op == "batch":
        got = ng.batch_norm_backward(dy, x, *neutral(x)).grad_input
    elif op == "group":
        stat = torch.ones(shape[0])
        got = ng.group_norm_backward(dy, x, stat, stat, 1).grad_input
    elif op == "layer":
        stat = torch.ones(shape[:3])
        got = ng.layer_norm_backward(dy, x, stat, stat, shape[3]).grad_input
    else:
        counter = torch.tensor([4])
        got = ng.batch_norm_elemt_backward(dy, x, vector, vector, vector, vector, counter)
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert got.stride() == x.stride()


def test_contiguous_stays_contiguous_where_sizes_are_one():
    """Strides of axes of size 1 decide which memory format torch sees."""
    x = torch.randn(2, 1, 3, 1)
    assert ng.batch_norm_backward(x, x, *neutral(x)).grad_input.stride() == x.stride()


def test_any_channel_axis_is_the_same_operator():
    dy, x = data(2, 5, 6, 4), data(2, 5, 6, 4)
    weight, mean, rstd = data(4), data(4), data(4)
    stat = data(2, 2)
    moved = [np.moveaxis(one, 3, 1) for one in (dy, x)]
    for axis in (3, -1):
        last = ng.batch_norm_backward(dy, x, mean, rstd, weight=weight, channel_axis=axis)
        first = ng.batch_norm_backward(*moved, mean, rstd, weight=weight)
        np.testing.assert_allclose(np.moveaxis(last.grad_input, 3, 1), first.grad_input)
        last = ng.group_norm_backward(dy, x, stat, stat, 2, weight=weight, channel_axis=axis)
        first = ng.group_norm_backward(*moved, stat, stat, 2, weight=weight)
        np.testing.assert_allclose(np.moveaxis(last.grad_input, 3, 1), first.grad_input)
        np.testing.assert_allclose(last.grad_weight, first.grad_weight)


@pytest.mark.parametrize("mask", [np.array([True, False, True]), [True, False, True]])
def test_masks_of_numpy_and_lists(mask):
    got = ng.batch_norm_backward(data(2, 3), data(2, 3), *neutral(data(2, 3)), output_mask=mask)
    assert got.grad_weight is None
    assert got.grad_input is not None


@pytest.mark.parametrize("shape", [4, np.int64(4), np.array(4), [4], (4,), torch.Size([4])])
def test_spellings_of_a_normalized_shape(shape):
    dy, x, stat = data(3, 4), data(3, 4), data(3)
    got = ng.layer_norm_backward(dy, x, stat, stat, shape)
    np.testing.assert_array_equal(
        got.grad_input, ng.layer_norm_backward(dy, x, stat, stat, 4).grad_input
    )


def test_a_list_serves_as_out():
    out = [np.empty((2, 3)), None, np.empty(3)]
    got = ng.batch_norm_backward(
        data(2, 3), data(2, 3), *neutral(data(2, 3)), output_mask=(True, False, True), out=out
    )
    assert got.grad_input is out[0]
    assert got.grad_weight is None


@pytest.mark.parametrize("kind", [torch.ones, np.ones], ids=["torch", "numpy"])
def test_out_that_is_no_sequence(kind):
    x = kind((2, 3))
    with pytest.raises(ng.ArrayTypeError, match="out must be a tuple of 3"):
        ng.batch_norm_backward(x, x, *neutral(x), out=5)


def test_autograd_learns_what_was_written():
    x = torch.randn(2, 3)
    leaf = torch.randn(2, 3, requires_grad=True)
    saved = torch.randn(2, 3)
    product = leaf * saved  # keeps `saved` for its own backward pass
    ng.batch_norm_backward(x, x, *neutral(x), out=(saved, torch.empty(3), torch.empty(3)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_a_result_that_requires_grad():
    x = torch.randn(2, 3)
    out = (torch.full((2, 3), 7.0, requires_grad=True), torch.empty(3), torch.empty(3))
    with pytest.raises(ng.ArrayTypeError, match="out's grad_input must not require grad"):
        ng.batch_norm_backward(x, x, *neutral(x), out=out)
    assert (out[0] == 7).all()
    with torch.no_grad():
        ng.batch_norm_backward(x, x, *neutral(x), out=out)
    assert (out[0] != 7).all()
    with torch.inference_mode():
        inner = tuple(torch.empty(shape) for shape in ((2, 3), (3,), (3,)))
        ng.batch_norm_backward(x, x, *neutral(x), out=inner)
    assert torch.equal(inner[0], out[0])
