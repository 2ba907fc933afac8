"""aclnnBatchNormElemtBackward: each line of the page's tables, by its words."""

import functools

import aclnn_calls
import numpy as np
import pytest
from aclnn_calls import BF16, ELEMT, F16, F32, accepted, arguments, compute, refused, tensor

from normgrad import aclnn

VECTORS = ("mean", "invstd", "weight", "sumDy", "sumDyXmu")


check = functools.partial(aclnn_calls.check, ELEMT)
fine = functools.partial(aclnn_calls.fine, ELEMT)


def test_weight_may_be_null():
    fine(weight=None)


@pytest.mark.parametrize("name", ["gradOut", "input", *VECTORS, "gradInput"])
def test_dtype_outside_the_supported_range(name):
    shape = (2, 3, 4) if name in ("gradOut", "input", "gradInput") else (3,)
    words = (f"{name} must be of type ACL_FLOAT or ACL_FLOAT16 or ACL_BF16", "got ACL_INT32")
    check(161002, words, **{name: tensor(shape, aclnn.ACL_INT32)})
    aclnn.set_product("atlas-training")
    words = f"{name} must be of type ACL_FLOAT or ACL_FLOAT16 on Atlas training, got ACL_BF16"
    check(161002, words, **{name: tensor(shape, BF16)})


@pytest.mark.parametrize("dtype", [BF16, aclnn.ACL_INT64, aclnn.ACL_DOUBLE])
def test_counter_dtype_outside_the_supported_range(dtype):
    words = ("counter must be of type ACL_FLOAT or ACL_FLOAT16 or ACL_INT32", f"got {dtype.name}")
    check(161002, words, counter=tensor((2,), dtype))


@pytest.mark.parametrize("dtype", [F32, F16, aclnn.ACL_INT32])
def test_counter_dtypes(dtype):
    fine(counter=tensor((2,), dtype))


def test_types_mix_freely():
    changes = {"gradOut": tensor((2, 3, 4), F16), "gradInput": tensor((2, 3, 4), BF16)}
    fine(**changes, mean=tensor((3,), F16), weight=tensor((3,), BF16))


@pytest.mark.parametrize("name", ["gradOut", "input", "gradInput"])
@pytest.mark.parametrize("format", [aclnn.ACL_FORMAT_NC1HWC0, aclnn.ACL_FORMAT_FRACTAL_NZ])
def test_private_format(name, format):
    words = f"{name} must not have a private format, got {format.name}"
    check(161002, words, **{name: tensor((2, 3, 4), F32, format)})


def test_input_rank_below_2():
    changes = {name: tensor((3,)) for name in ("gradOut", "input", "gradInput")}
    check(161002, ("input must have 2 to 8 axes", "got shape (3,)"), **changes)


@pytest.mark.parametrize("name", ["gradOut", "input", "gradInput", "counter"])
def test_rank_above_8(name):
    shape = (2, 3, 4, 1, 1, 1, 1, 1, 1)
    check(161002, (f"{name} must have", f"got shape {shape}"), **{name: tensor(shape)})


def test_channel_axis_of_size_0():
    given = arguments(ELEMT, shape=(2, 0, 4))
    refused(ELEMT, 161002, ("input must have at least one channel", "(2, 0, 4)"), given)


@pytest.mark.parametrize("name", ["gradOut", "gradInput"])
def test_shape_different_from_input(name):
    check(
        161002, (f"{name} must have the shape", "got shape (2, 3, 5)"), **{name: tensor((2, 3, 5))}
    )


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("shape", [(4,), (1, 3), (0,)])
def test_vector_not_of_length_c(name, shape):
    words = (f"{name} must be 1-d with one element for each of the 3 channels", f"{shape}")
    check(161002, words, **{name: tensor(shape)})


@pytest.mark.parametrize("product", ["ascend950", "atlas-a2", "atlas-a3", "atlas-training"])
def test_products_with_the_operator(product):
    aclnn.set_product(product)
    fine()


def run(**changes):
    given = {**arguments(ELEMT), **changes}
    shape = given["input"].kind.tensor.shape
    out = np.full(shape, np.nan, np.float32)
    compute(ELEMT, given | {"gradInput": aclnn.tensor(out)})
    return out


def test_channels_are_at_axis_1_whatever_the_format():
    given = arguments(ELEMT, shape=(2, 3, 4, 5), format=aclnn.ACL_FORMAT_NHWC)
    accepted(ELEMT, given)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2, 2, 1, 1, 1, 1, 1)])
def test_counter_is_summed_whatever_its_shape(shape):
    counts = np.full(shape, 2500, np.int32)
    out = run(counter=aclnn.tensor(counts))
    total = counts.sum()
    expected = (1 - 1 / total) - (1 - 1) * 1 / total
    np.testing.assert_allclose(out, np.full((2, 3, 4), expected), rtol=1e-6)


def test_counts_in_f16_are_added_exactly():
    counts = np.full(40, 2049 - 1, np.float16)  # 81920 together: more than F16 can hold
    out = run(counter=aclnn.tensor(counts), mean=tensor((3,)))
    np.testing.assert_allclose(out, np.full((2, 3, 4), 1 - 1 / 81920), rtol=1e-6)


def test_empty_input_is_success():
    compute(ELEMT, arguments(ELEMT, shape=(0, 3, 4)))


def test_total_count_of_0_is_plain_arithmetic():
    out = run(counter=aclnn.tensor(np.zeros(2, np.int32)))
    assert not np.isfinite(out).any()


def test_worked_numbers():
    shape = (2, 3, 1, 4)

    def vector(*values):
        return aclnn.tensor(np.array(values, np.float32))

    given = arguments(ELEMT, shape=shape)
    out = np.full(shape, np.nan, np.float32)
    given |= {
        "mean": vector(8, 5, 9),
        "invstd": vector(2, 1, 2),
        "weight": vector(1, 1, 4),
        "sumDy": vector(2, 2, 6),
        "sumDyXmu": vector(2, 3, 11),
        "counter": aclnn.tensor(np.array([5, 5, 5], np.int32)),
        "gradInput": aclnn.tensor(out),
    }
    compute(ELEMT, given)
    expected = np.broadcast_to(np.array([9.2, 1.6667, 192.5333])[None, :, None, None], shape)
    np.testing.assert_allclose(out, expected, atol=5e-5)  # four decimals are given
