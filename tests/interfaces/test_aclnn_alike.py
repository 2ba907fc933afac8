"""What operators do alike: null arguments, masks of another length, products that have none, empty
data."""

import numpy as np
import pytest
from aclnn_calls import (
    BATCH_NORM,
    ELEMT,
    GROUP_NORM,
    LAYER_NORM,
    OPERATORS,
    OUTPUTS,
    REQUIRED,
    arguments,
    check,
    compute,
    fine,
    mask,
    refused,
    tensor,
)

from normgrad import aclnn

MASKED = [name for name in OPERATORS if name != ELEMT]


@pytest.mark.parametrize(
    ("operator", "name"), [(each, name) for each in OPERATORS for name in REQUIRED[each]]
)
def test_null_argument_is_161001(operator, name):
    check(operator, 161001, f"{name} must not be null", **{name: None})


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("operator", MASKED)
def test_requested_output_null_is_161001(operator, place):
    name = OUTPUTS[operator][place]
    words = f"{name} must not be null where outputMask[{place}] is true"
    check(operator, 161001, words, **{name: None})
    bits = [True, True, True]
    bits[place] = False
    fine(operator, **{name: None, "outputMask": mask(*bits)})


@pytest.mark.parametrize("bits", [(), (True,), (True, True), (True,) * 4])
@pytest.mark.parametrize("operator", MASKED)
def test_mask_length_not_3(operator, bits):
    words = f"outputMask must have 3 elements, got {len(bits)}"
    check(operator, 161002, words, outputMask=mask(*bits))


@pytest.mark.parametrize(
    ("product", "title", "operator"),
    [
        *(("atlas-200i-500-a2", "Atlas 200I/500 A2", name) for name in OPERATORS),
        *(("atlas-inference", "Atlas inference", name) for name in OPERATORS if name != LAYER_NORM),
    ],
)
def test_product_without_the_operator_is_561003(product, title, operator):
    aclnn.set_product(product)
    words = f"{title} has no {operator}"
    check(operator, 561003, words)
    # Nulls are found before the product, everything else after it.
    check(operator, 161001, "gradOut must not be null", gradOut=None)
    check(operator, 561003, words, gradOut=tensor((2, 3, 4), aclnn.ACL_INT8))


@pytest.mark.parametrize(
    ("operator", "weight", "shape"),
    [
        (BATCH_NORM, "weight", (0, 3, 4)),
        (BATCH_NORM, "weight", (2, 3, 0)),
        (LAYER_NORM, "weightOptional", (0, 3, 4)),
        (GROUP_NORM, "gamma", (0, 3, 4)),
        (GROUP_NORM, "gamma", (2, 3, 0)),
    ],
)
def test_empty_data_fill_param_grads_with_0(operator, weight, shape):
    given = arguments(operator, shape=shape)
    length = given[weight].kind.tensor.shape
    out = {name: np.full(length, np.nan, np.float32) for name in OUTPUTS[operator][1:]}
    given |= {name: aclnn.tensor(array) for name, array in out.items()}
    compute(operator, given)
    for array in out.values():
        np.testing.assert_array_equal(array, np.zeros(length))
    # every check still applies
    refused(operator, 161002, f"{weight} must", {**given, weight: tensor((7,))})
