"""aclnnLayerNormBackward: each line of the page's tables, by its words."""

import functools

import aclnn_calls
import numpy as np
import pytest
from aclnn_calls import BF16, F16, F32, LAYER_NORM, arguments, compute, sizes, tensor

from normgrad import aclnn

OUTPUTS = aclnn_calls.OUTPUTS[LAYER_NORM]
PARAMETERS = ("weightOptional", "biasOptional")


check = functools.partial(aclnn_calls.check, LAYER_NORM)
fine = functools.partial(aclnn_calls.fine, LAYER_NORM)


@pytest.mark.parametrize("names", [("weightOptional",), ("biasOptional",), PARAMETERS])
def test_optional_tensors_may_be_null(names):
    fine(**dict.fromkeys(names))


@pytest.mark.parametrize("name", ["gradOut", "input", "mean", "rstd", *PARAMETERS])
def test_dtype_outside_the_supported_range(name):
    shape = {"gradOut": (2, 3, 4), "input": (2, 3, 4), "mean": (2, 3, 1), "rstd": (2, 3, 1)}
    wrong = tensor(shape.get(name, (4,)), aclnn.ACL_DOUBLE)
    words = (f"{name} must be of type ACL_FLOAT or ACL_FLOAT16 or ACL_BF16", "got ACL_DOUBLE")
    check(161002, words, **{name: wrong})


@pytest.mark.parametrize("product", ["atlas-inference", "atlas-training"])
def test_no_bf16_on_atlas_inference_and_training(product):
    aclnn.set_product(product)
    fine(F32)
    fine(F16)
    check(161002, "gradOut must be of type ACL_FLOAT or ACL_FLOAT16 on Atlas", BF16)
    check(161002, "mean must be of type ACL_FLOAT or ACL_FLOAT16", F16, BF16)


def test_grad_out_and_input_differ_in_dtype():
    words = "gradOut must have the type of input, ACL_FLOAT, got ACL_FLOAT16"
    check(161002, words, gradOut=tensor((2, 3, 4), F16))


def test_mean_and_rstd_differ_in_dtype():
    words = "rstd must have the type of mean, ACL_FLOAT, got ACL_FLOAT16"
    check(161002, words, rstd=tensor((2, 3, 1), F16))


def test_statistics_narrower_than_input():
    words = "mean must not be narrower than input, ACL_FLOAT, got ACL_FLOAT16"
    check(161002, words, F32, F16)


@pytest.mark.parametrize(
    ("data", "vectors"),
    [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32), (F16, BF16)],
)
def test_statistics_of_input_or_wider(data, vectors):
    fine(data, vectors)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_not_of_inputs_type_or_f32(name):
    check(161002, f"{name} must be of type ACL_FLOAT, got", **{name: tensor((4,), F16)})
    words = f"{name} must be of type ACL_FLOAT16 or ACL_FLOAT, got ACL_BF16"
    check(161002, words, F16, **{name: tensor((4,), BF16)})


@pytest.mark.parametrize("data", [F16, BF16])
def test_parameters_of_inputs_type_or_f32(data):
    fine(data)
    wide = {name: tensor((4,), F32) for name in (*PARAMETERS, "gradWeightOut", "gradBiasOut")}
    fine(data, **wide)


def test_weight_and_bias_differ():
    words = "biasOptional must have the type of weightOptional, ACL_FLOAT16, got ACL_FLOAT"
    check(161002, words, F16, biasOptional=tensor((4,), F32))


def test_grad_input_not_of_inputs_type():
    words = "gradInputOut must have the type of input, ACL_FLOAT16, got ACL_FLOAT"
    check(161002, words, F16, gradInputOut=tensor((2, 3, 4), F32))


@pytest.mark.parametrize("name", ["gradWeightOut", "gradBiasOut"])
def test_param_grads_of_weights_type_or_f32(name):
    fine(F16, **{name: tensor((4,), F32)})
    words = f"{name} must be of type ACL_FLOAT16 or ACL_FLOAT, got ACL_BF16"
    check(161002, words, F16, **{name: tensor((4,), BF16)})
    check(161002, words, F16, **{name: tensor((4,), BF16)}, weightOptional=None)
    wide = {key: tensor((4,), F32) for key in (*PARAMETERS, "gradWeightOut", "gradBiasOut")}
    words = f"{name} must be of type ACL_FLOAT, got ACL_FLOAT16"
    check(161002, words, F16, **{**wide, name: tensor((4,), F16)})
    fine(F16, **{name: tensor((4,), F16)}, weightOptional=None)


def test_grad_out_shape_different():
    words = ("gradOut must have the shape of input, (2, 3, 4)", "got shape (2, 3, 5)")
    check(161002, words, gradOut=tensor((2, 3, 5)))


def test_normalized_shape_empty():
    words = "normalizedShape must have at least one axis, got ()"
    check(161002, words, normalizedShape=sizes())


@pytest.mark.parametrize("name", ["mean", "rstd"])
def test_statistic_count_not_the_product_of_the_rows(name):
    words = (f"{name} must have one element for each of the 6 rows of input", "got 3 (shape (3,))")
    check(161002, words, **{name: tensor((3,))})


@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 6, 1), (2, 3, 1, 1)])
def test_statistics_of_any_shape_alike(shape):
    fine(mean=tensor(shape), rstd=tensor(shape))
    if shape != (6,):
        words = f"rstd must have the shape of mean, {shape}, got shape (6,)"
        check(161002, words, mean=tensor(shape), rstd=tensor((6,)))


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_shape_not_normalized_shape(name):
    words = (f"{name} must have the shape (4,) of normalizedShape", "(2, 2)")
    check(161002, words, **{name: tensor((2, 2))})


@pytest.mark.parametrize("name", ["gradWeightOut", "gradBiasOut"])
def test_param_grad_shape_not_normalized_shape(name):
    check(161002, (f"{name} must have the shape (4,)", "(5,)"), **{name: tensor((5,))})


def test_grad_input_shape_not_inputs():
    words = ("gradInputOut must have the shape (2, 3, 4)", "(6, 4)")
    check(161002, words, gradInputOut=tensor((6, 4)))


def test_input_rank_below_the_length_of_normalized_shape():
    words = ("normalizedShape must be the tail of input's shape (2, 3, 4)", "(1, 2, 3, 4)")
    check(161002, words, normalizedShape=sizes(1, 2, 3, 4))


@pytest.mark.parametrize("tail", [(3,), (4, 3), (2, 3, 5), (12,)])
def test_tail_not_equal_element_by_element(tail):
    words = f"normalizedShape must be the tail of input's shape (2, 3, 4), got {tail}"
    check(161002, words, normalizedShape=sizes(*tail))


@pytest.mark.parametrize("name", ["gradOut", "input", "mean", "rstd", *PARAMETERS, *OUTPUTS])
@pytest.mark.parametrize("shape", [(), (1,) * 9])
def test_rank_outside_1_to_8(name, shape):
    words = f"{name} must have 1 to 8 axes, got shape {shape}"
    check(161002, words, **{name: tensor(shape)})


def test_formats_are_not_looked_at():
    private = tensor((2, 3, 4), F32, aclnn.ACL_FORMAT_FRACTAL_NZ)
    fine(input=private, gradOut=tensor((2, 3, 4), F32, aclnn.ACL_FORMAT_NHWC))


@pytest.mark.parametrize("product", [key for key in aclnn.PRODUCTS if "200i" not in key])
def test_products_with_the_operator(product):
    aclnn.set_product(product)
    fine()


def test_no_columns_write_nothing():
    compute(LAYER_NORM, arguments(LAYER_NORM, shape=(2, 3, 0)))


def test_bias_does_not_change_the_numbers():
    rng = np.random.default_rng(3)
    results = []
    for bias in (None, tensor((4,)), aclnn.tensor(np.full(4, np.nan, np.float32))):
        out = np.full((2, 3, 4), np.nan, np.float32)
        rng = np.random.default_rng(3)
        given = arguments(LAYER_NORM) | {
            "input": aclnn.tensor(rng.random((2, 3, 4), np.float32)),
            "gradOut": aclnn.tensor(rng.random((2, 3, 4), np.float32)),
            "biasOptional": bias,
            "gradInputOut": aclnn.tensor(out),
        }
        compute(LAYER_NORM, given)
        results.append(out)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
