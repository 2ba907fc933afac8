"""What every operator's page promises, and the rules of the forward operators by their words."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from aclnn_calls import run, said

import normgrad
from normgrad import aclnn
from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.table import SHAPES

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
TYPES = {aclnn.ACL_FLOAT: F32, aclnn.ACL_FLOAT16: F16, aclnn.ACL_INT32: np.dtype(np.int32)}
BY_NAME = {page.name.removeprefix("aclnn"): page for page in PAGES}
# Activations are the reference backend's on machines whose fast one has none, which warns.
pytestmark = pytest.mark.filterwarnings("ignore::normgrad.core.errors.FallbackWarning")
EVERY = pytest.mark.parametrize("page", PAGES, ids=list(BY_NAME))
HANDLES = [
    pytest.param(page, one, id=f"{name}-{one.name}")
    for name, page in BY_NAME.items()
    for _, one in page.pointers
]


def arrays_of(page, dtype=F32, vectors=None, seed=0):
    """A valid call's arrays: data around 10, statistics that are positive, results of nan."""
    rng = np.random.default_rng(seed)
    vectors = dtype if vectors is None else vectors
    made = {}
    for _, one in page.tensors:
        if not (one.role or one.required):
            continue  # what no kernel takes
        shape = SHAPES[one.shape][1]
        big = one.shape in ("data", "ranks")
        values = 10 + 3 * rng.standard_normal(shape) if big else 0.5 + rng.random(shape)
        kind = TYPES[one.types[0]] if one.types else dtype if big else vectors
        made[one.name] = values.astype(kind)
        if one.kind == "out":
            made[one.name][...] = np.nan
    return made


def arguments(page, arrays, **changes):
    """In order; an array for a tensor, a tuple for an array, a value for the rest."""
    values = []
    for one in page.parameters:
        value = changes.get(one.name, arrays.get(one.name, one.example))
        if isinstance(value, np.ndarray):
            value = aclnn.tensor(value)
        elif one.kind == "mask" and value is not None:
            value = aclnn.aclCreateBoolArray(list(value), len(value))
        elif one.kind == "sizes" and value is not None:
            value = aclnn.aclCreateIntArray(list(value), len(value))
        values.append(value)
    return values


def first_stage(page, arrays=None, **changes):
    arrays = arrays_of(page) if arrays is None else arrays
    stage = getattr(aclnn, f"{page.name}GetWorkspaceSize")
    return stage(*arguments(page, arrays, **changes))


def accepted(page, arrays=None, **changes):
    status, _, executor = first_stage(page, arrays, **changes)
    assert status == 0, said()
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0


def refused(page, status, words, arrays=None, **changes):
    assert first_stage(page, arrays, **changes) == (status, 0, None), said()
    assert said().startswith(f"{page.name}GetWorkspaceSize: ")
    for word in words if isinstance(words, tuple) else (words,):
        assert word in said(), said()


def compute(page, arrays, **changes):
    status, size, executor = first_stage(page, arrays, **changes)
    assert status == 0, said()
    assert run(page.name, executor, size) == 0, said()


@EVERY
def test_a_valid_call(page):
    arrays = arrays_of(page)
    compute(page, arrays)
    assert all(np.isfinite(array).all() for array in arrays.values())


@EVERY
def test_arguments_by_keyword(page):
    values = dict(
        zip((one.name for one in page.parameters), arguments(page, arrays_of(page)), strict=True)
    )
    status, _, executor = getattr(aclnn, f"{page.name}GetWorkspaceSize")(**values)
    assert status == 0, said()
    assert aclnn.aclDestroyAclOpExecutor(executor) == 0


@pytest.mark.parametrize(("page", "one"), HANDLES)
def test_null(page, one):
    if (page.name, one.name) == ("aclnnAddRmsNorm", "xOut"):
        refused(page, 161001, "xOut must not be null where rstdOut is given", xOut=None)
        accepted(page, xOut=None, rstdOut=None)
    elif one.required:
        refused(page, 161001, f"{one.name} must not be null", **{one.name: None})
    else:
        accepted(page, **{one.name: None})


@EVERY
def test_results_that_nothing_asks_for_are_not_looked_at(page):
    asked = [one for one in page.parameters if one.when]
    for one in asked:
        name, _, bit = one.when.rstrip("]").partition("[")
        value = tuple(place != int(bit) for place in range(3)) if bit else False
        together = {other.name: None for other in asked if other.when == one.when}
        accepted(page, **{name: value}, **together)


@pytest.mark.parametrize(("page", "key"), list(itertools.product(PAGES, aclnn.PRODUCTS)))
def test_products(page, key):
    aclnn.set_product(key)
    if key not in page.lacks:
        accepted(page)
        return
    words = f"{aclnn.PRODUCTS[key].title} has no {page.name}"
    refused(page, 561003, words)
    # Nulls are found before the product, everything else after it.
    name = page.tensors[0][1].name
    refused(page, 161001, f"{name} must not be null", **{name: None})
    refused(page, 561003, words, **{name: np.zeros((2, 6, 4), np.int8)})


@pytest.mark.parametrize(
    ("page", "one"),
    [
        pytest.param(page, one, id=f"{name}-{one.name}")
        for name, page in BY_NAME.items()
        for _, one in page.tensors
    ],
)
def test_types(page, one):
    wrong = np.zeros(SHAPES[one.shape][1], np.int64)
    refused(
        page,
        161002,
        (f"{one.name} must be of type ACL_FLOAT", "got ACL_INT64"),
        **{one.name: wrong},
    )
    aclnn.set_product("atlas-training")
    if "atlas-training" not in page.lacks and not one.types:
        half = np.zeros(SHAPES[one.shape][1], BF16)
        refused(page, 161002, f"{one.name} must be of type", **{one.name: half})


@EVERY
def test_read_only_results(page):
    for _, one in page.tensors:
        if one.kind == "out":
            fixed = arrays_of(page)[one.name]
            fixed.flags.writeable = False
            refused(page, 161002, f"{one.name} must be writable", **{one.name: fixed})


@EVERY
def test_a_result_over_an_operand(page):
    """Results of the data's shape may be the data; the rest is unchanged by it."""
    results = [one.name for _, one in page.tensors if one.kind == "out" and one.shape == "data"]
    operands = [
        one.name for _, one in page.tensors if one.kind == "in" and one.shape == "data" and one.role
    ]
    for result, operand in itertools.product(results, operands):
        apart, shared = arrays_of(page), arrays_of(page)
        compute(page, apart)
        shared[result] = shared[operand]
        compute(page, shared)
        for _, one in page.tensors:
            if one.kind == "out":
                np.testing.assert_array_equal(shared[one.name], apart[one.name])


PAIRS = [(F32, F32), (F16, F16), (F16, F32), (BF16, BF16), (BF16, F32)]


def near(got, want):
    """Statistics in 16 bits, of which the functional API has the 32 that they are rounded from."""
    if got.dtype == want.dtype:
        agree(got, want)
    else:
        step = float(ml_dtypes.finfo(got.dtype).eps)
        wide = np.float64(want).reshape(got.shape)
        np.testing.assert_allclose(np.float64(got), wide, rtol=step / 2 + 1e-6)


def agree(got, want):
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got.view(np.uint8), want.reshape(got.shape).view(np.uint8))


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(data, vectors, training):
    page, arrays = BY_NAME["BatchNorm"], arrays_of(BY_NAME["BatchNorm"], data, vectors)
    x, weight, bias, mean, var, y, save_mean, save_invstd = arrays.values()
    running = {"running_mean": mean.copy(), "running_var": var.copy()}
    want = normgrad.batch_norm(
        x, weight=weight, bias=bias, **running, training=training, momentum=0.2, eps=1e-3
    )
    compute(page, arrays, training=training, momentum=0.2, eps=1e-3)
    agree(y, want.output)
    agree(mean, running["running_mean"])
    agree(var, running["running_var"])
    if training:
        near(save_mean, want.mean)
        near(save_invstd, want.rstd)
    else:  # never written
        assert np.isnan(save_mean).all()
        assert np.isnan(save_invstd).all()


def test_batch_norm_without_vectors():
    page = BY_NAME["BatchNorm"]
    nulls = dict.fromkeys(("weight", "bias", "runningMean", "runningVar"))
    for training in (True, False):
        arrays = arrays_of(page)
        compute(page, arrays, training=training, **nulls)
        x, y = arrays["input"], arrays["output"]
        want = (
            normgrad.batch_norm(x).output
            if training
            else normgrad.batch_norm_elemt(
                x, np.zeros(6, np.float32), variance=np.ones(6, np.float32), eps=1e-5
            )
        )
        agree(y, want)


@pytest.mark.parametrize("product", [key for key in aclnn.PRODUCTS if key.startswith("atlas")])
def test_batch_norm_saves_the_variance_elsewhere(product):
    page = BY_NAME["BatchNorm"]
    aclnn.set_product(product)
    if product in page.lacks:
        return
    arrays = arrays_of(page)
    compute(page, arrays, eps=0.5)
    want = np.var(np.float64(arrays["input"]), axis=(0, 2))
    np.testing.assert_allclose(arrays["saveInvstd"], want, rtol=1e-6)


def test_batch_norm_of_channels_last():
    page = BY_NAME["BatchNorm"]
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 6)).astype(np.float32)
    y = np.full_like(x, np.nan)
    tensors = {
        "input": aclnn.tensor(x, aclnn.ACL_FORMAT_NHWC),
        "output": aclnn.tensor(y, aclnn.ACL_FORMAT_NHWC),
    }
    arrays = arrays_of(page)
    compute(page, arrays, **tensors)
    want = normgrad.batch_norm(
        x, weight=arrays["weight"], bias=arrays["bias"], eps=1e-5, channel_axis=3
    )
    agree(y, want.output)
    aclnn.set_product("atlas-a2")
    refused(page, 161002, "input must not have its channels last on Atlas A2", **tensors)
    mixed = {**tensors, "output": y}
    refused(page, 161002, "output must have the format of input, ACL_FORMAT_NHWC", **mixed)


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
@pytest.mark.parametrize("name", ["LayerNorm", "LayerNormWithImplMode"])
def test_layer_norm(name, data, vectors):
    page = BY_NAME[name]
    arrays = arrays_of(page, data, vectors)
    x, weight, bias, y, mean, rstd = arrays.values()
    want = normgrad.layer_norm(x, 4, weight=weight, bias=bias, eps=1e-3)
    compute(page, arrays, eps=1e-3)
    agree(y, want.output)
    near(mean, want.mean)
    near(rstd, want.rstd)


@pytest.mark.parametrize("mode", [-1, 3])
def test_impl_mode(mode):
    page = BY_NAME["LayerNormWithImplMode"]
    refused(page, 161002, f"implMode must be 0, 1 or 2, got {mode}", implMode=mode)
    refused(page, 161002, "input must be of type ACL_FLOAT16 where implMode is 2", implMode=2)
    accepted(page, arrays_of(page, F16), implMode=2)
    words = "weightOptional must be of type ACL_FLOAT16 where implMode is 2, got ACL_FLOAT"
    refused(page, 161002, words, arrays_of(page, F16, F32), implMode=2)
    for value in (1 << 40, "1"):
        refused(page, 161002, "implMode must be an int", implMode=value)


def test_layer_norm_types():
    page = BY_NAME["LayerNorm"]
    half = np.ones(4, np.float16)
    words = "weightOptional must be of type ACL_FLOAT, got ACL_FLOAT16"
    refused(page, 161002, words, weightOptional=half)
    words = "biasOptional must have the type of weightOptional"
    refused(page, 161002, words, arrays_of(page, F16, F32), biasOptional=half)
    words = "out must have the type of input"
    refused(page, 161002, words, out=np.ones((2, 6, 4), np.float16))


@pytest.mark.parametrize("name", ["LayerNorm", "LayerNormBackward"])
def test_no_weight_of_each_sample(name):
    words = "weightOptional must have the shape (4,) of normalizedShape, got shape (2, 1, 4)"
    refused(BY_NAME[name], 161002, words, weightOptional=np.ones((2, 1, 4), F32))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_group_norm(dtype):
    page = BY_NAME["GroupNorm"]
    arrays = arrays_of(page, dtype)
    x, weight, bias, y, mean, rstd = arrays.values()
    want = normgrad.group_norm(x, 3, weight=weight, bias=bias, eps=1e-3)
    compute(page, arrays, eps=1e-3)
    agree(y, want.output)
    near(mean, want.mean)
    near(rstd, want.rstd)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eps": 0.0}, "eps must be positive, got 0.0"),
        ({"eps": float("nan")}, "eps must be positive, got nan"),
        ({"group": 0}, "group must be positive, got 0"),
        ({"group": 4}, "meanOut must have the shape (N, group), (2, 4)"),
        ({"N": 3}, "N must be 2, as the shape of self, (2, 6, 4), says, got 3"),
        ({"C": 5}, "C must be 6"),
        ({"HxW": -4}, "HxW must be 4"),
        ({"gamma": np.ones((6, 1), F32)}, "gamma must have one axis, got shape (6, 1)"),
        ({"beta": np.ones(7, F32)}, "beta must have 6 elements"),
        ({"meanOut": np.ones(6, F32)}, "meanOut must have the shape (N, group), (2, 3)"),
        ({"gamma": np.ones(6, F16)}, "gamma must have the type of self, ACL_FLOAT"),
        ({"out": np.ones((2, 24), F32)}, "out must have the shape"),
    ],
)
def test_group_norms_rules(changes, words):
    refused(BY_NAME["GroupNorm"], 161002, words, **changes)


def test_group_norm_that_does_not_divide():
    statistics = {name: np.ones((2, 4), F32) for name in ("meanOut", "rstdOut")}
    words = "group must divide the number of channels, 6, got 4"
    refused(BY_NAME["GroupNorm"], 161002, words, group=4, **statistics)


@pytest.mark.parametrize("form", [aclnn.ACL_FORMAT_NHWC, aclnn.ACL_FORMAT_NC1HWC0])
def test_group_norm_formats(form):
    page, arrays = BY_NAME["GroupNorm"], arrays_of(BY_NAME["GroupNorm"])
    tagged = {name: aclnn.tensor(arrays[name], form) for name in ("self", "out")}
    refused(page, 161002, "self must have its channels at axis 1", **tagged)
    words = "out must have the format of self, ACL_FORMAT_ND"
    refused(page, 161002, words, out=tagged["out"])


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
def test_rms_norm(data, vectors):
    page = BY_NAME["RmsNorm"]
    arrays = arrays_of(page, data, vectors)
    x, gamma, y, rstd = arrays.values()
    want = normgrad.rms_norm(x, 4, weight=gamma, eps=1e-3)
    compute(page, arrays, epsilon=1e-3)
    agree(y, want.output)
    agree(rstd, want.rstd)
    page = BY_NAME["RmsNormGrad"]
    arrays = arrays_of(page, data, vectors)
    dy, x, rstd, gamma, dx, dgamma = arrays.values()
    got = normgrad.rms_norm_backward(dy, x, rstd, 4, weight=gamma, param_grad_dtype="float32")
    compute(page, arrays)
    agree(dx, got.grad_input)
    agree(dgamma, got.grad_weight)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_gemma_rms_norm(dtype):
    page = BY_NAME["GemmaRmsNorm"]
    arrays = arrays_of(page, dtype)
    x, gamma, y, rstd = arrays.values()
    want = normgrad.rms_norm(x, 4, weight=gamma, weight_offset=1.0, eps=1e-3)
    compute(page, arrays, epsilon=1e-3)
    agree(y, want.output)
    agree(rstd, want.rstd)
    other = F32 if dtype != F32 else F16
    words = "gamma must have the type of x"
    refused(page, 161002, words, arrays_of(page, dtype), gamma=np.ones(4, other))


def test_rms_norm_over_two_axes():
    page = BY_NAME["RmsNorm"]
    arrays = arrays_of(page)
    arrays |= {"gamma": np.ones((6, 4), F32), "rstdOut": np.ones((2, 1, 1), F32)}
    compute(page, arrays)
    agree(arrays["yOut"], normgrad.rms_norm(arrays["x"], (6, 4), eps=1e-6).output)
    words = "rstdOut must have the shape (2, 1, 1), x's with ones for the axes of gamma"
    refused(page, 561002, words, arrays, rstdOut=np.ones((2, 6, 1), F32))


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"gamma": np.ones((), F32)}, 561002, "gamma must have at least one axis"),
        ({"gamma": np.ones(5, F32)}, 561002, "gamma's shape must be the tail of x's shape"),
        ({"yOut": np.ones((2, 6, 5), F32)}, 561002, "yOut must have the shape (2, 6, 4)"),
        ({"rstdOut": np.ones(12, F32)}, 561002, "rstdOut must have the shape (2, 6, 1)"),
        ({"rstdOut": np.ones((2, 6, 1), F16)}, 161002, "rstdOut must be of type ACL_FLOAT, got"),
        ({"yOut": np.ones((2, 6, 4), F16)}, 161002, "yOut must have the type of x"),
        ({"gamma": np.ones(4, F16)}, 161002, "gamma must be of type ACL_FLOAT on Ascend 950"),
        ({"epsilon": -1.0}, 161002, "epsilon must be finite and not negative, got -1.0"),
    ],
)
def test_rms_norms_rules(changes, status, words):
    refused(BY_NAME["RmsNorm"], status, words, **changes)


def test_rms_norm_mixes_no_types_on_atlas_inference():
    aclnn.set_product("atlas-inference")
    page = BY_NAME["RmsNorm"]
    accepted(page, arrays_of(page, F16))
    words = "gamma must be of type ACL_FLOAT16 on Atlas inference"
    refused(page, 161002, words, arrays_of(page, F16, F32))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("left_out", [(), ("rstdOut",), ("rstdOut", "xOut")])
def test_add_rms_norm(dtype, left_out):
    page = BY_NAME["AddRmsNorm"]
    arrays = arrays_of(page, dtype)
    a, b, gamma, y, rstd, total = arrays.values()
    want = normgrad.rms_norm(a, 4, weight=gamma, residual=b, eps=1e-3)
    compute(page, arrays, epsilon=1e-3, **dict.fromkeys(left_out))
    agree(y, want.output)
    if "rstdOut" not in left_out:
        agree(rstd, want.rstd)
    if "xOut" not in left_out:
        agree(total, want.sum)


def test_add_rms_norm_of_one_row():
    page, row = BY_NAME["AddRmsNorm"], np.full((1, 4), 2.0, F32)
    arrays = arrays_of(page) | {"gamma": row}
    compute(page, arrays, rstdOut=None)
    want = normgrad.rms_norm(arrays["x1"], 4, weight=row[0], residual=arrays["x2"], eps=1e-6)
    agree(arrays["yOut"], want.output)
    words = "gamma's shape must be the tail of x1's shape"
    ones = np.ones((2, 1, 1), F32)
    refused(page, 161002, words, arrays, rstdOut=ones)
    refused(page, 161002, "rstdOut must have the shape (2, 1, 1), x1's with ones", arrays)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_inplace_add_rms_norm(dtype):
    page = BY_NAME["InplaceAddRmsNorm"]
    arrays = arrays_of(page, dtype)
    one, two, gamma, rstd = arrays.values()
    want = normgrad.rms_norm(one.copy(), 4, weight=gamma, residual=two.copy(), eps=1e-3)
    compute(page, arrays, epsilon=1e-3)
    agree(one, want.output)
    agree(two, want.sum)
    agree(rstd, want.rstd)


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
@pytest.mark.parametrize("additional", [True, False])
def test_add_layer_norm(data, vectors, additional):
    page = BY_NAME["AddLayerNorm"]
    arrays = arrays_of(page, data, vectors)
    one, two, gamma, beta, _, y, mean, rstd, total = arrays.values()
    want = normgrad.layer_norm(one, 4, weight=gamma, bias=beta, residual=two, eps=1e-3)
    changes = {"additionalOutput": additional, "biasOptional": None}
    compute(page, arrays, epsilon=1e-3, **changes)
    agree(y, want.output)
    agree(mean, want.mean)
    agree(rstd, want.rstd)
    assert np.isnan(np.float32(total)).all() if not additional else True
    if additional:
        agree(total, want.sum)


@pytest.mark.parametrize("narrow", [F16, BF16])
def test_add_layer_norm_of_two_types(narrow):
    page = BY_NAME["AddLayerNorm"]
    for name in ("x1", "x2"):
        arrays = arrays_of(page)
        arrays[name] = arrays[name].astype(narrow)
        compute(page, arrays, biasOptional=None)
        total = arrays["x1"].astype(F32) + arrays["x2"].astype(F32)
        np.testing.assert_array_equal(arrays["xOut"], total)
        want = normgrad.layer_norm(total, 4, weight=arrays["gamma"], bias=arrays["beta"], eps=1e-5)
        np.testing.assert_allclose(arrays["yOut"], want.output, rtol=1e-5, atol=1e-5)
        words = "yOut must be of type ACL_FLOAT, the sum's"
        refused(page, 161002, words, arrays, yOut=np.ones((2, 6, 4), narrow))
    other = BF16 if narrow == F16 else F16
    words = "x2 must have the type of x1"
    refused(page, 161002, words, arrays_of(page, narrow), x2=np.ones((2, 6, 4), other))


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
@pytest.mark.parametrize("shape", [(4,), (2, 6, 4)])
@pytest.mark.parametrize("additional", [True, False])
def test_add_layer_norm_of_three(data, vectors, shape, additional):
    page = BY_NAME["AddLayerNorm"]
    arrays = arrays_of(page, data, vectors)
    bias = arrays["biasOptional"] = np.random.default_rng(2).standard_normal(shape).astype(data)
    one, two, gamma, beta = list(arrays.values())[:4]
    total = (one.astype(F32) + two.astype(F32) + bias.astype(F32)).astype(data)
    want = normgrad.layer_norm(total, 4, weight=gamma, bias=beta, eps=1e-3)
    arrays["yOut"] = arrays["x1"]  # in place
    compute(page, arrays, epsilon=1e-3, additionalOutput=additional)
    agree(arrays["yOut"], want.output)
    agree(arrays["meanOut"], want.mean)
    agree(arrays["rstdOut"], want.rstd)
    if additional:
        agree(arrays["xOut"], total)
        refused(page, 161002, "must not share memory with", arrays, xOut=arrays["yOut"])


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("dsum", [True, False])
def test_add_layer_norm_grad(dtype, dsum):
    page = BY_NAME["AddLayerNormGrad"]
    arrays = arrays_of(page, dtype)
    dy, one, two, rstd, mean, gamma, more, dx, dgamma, dbeta = arrays.values()
    total = (one.astype(F32) + two.astype(F32)).astype(dtype)
    want = normgrad.layer_norm_backward(
        dy,
        total,
        mean,
        rstd,
        4,
        weight=gamma,
        grad_sum=more if dsum else None,
        param_grad_dtype="float32",
    )
    compute(page, arrays, **({} if dsum else {"dsumOptional": None}))
    agree(dx, want.grad_input)
    agree(dgamma, want.grad_weight)
    agree(dbeta, want.grad_bias)
    refused(page, 161002, "x2 must have the shape of x1", arrays, x2=np.ones((2, 6, 5), dtype))
    refused(page, 161002, "dy must have the shape of x1", arrays, dy=np.ones((2, 6, 5), dtype))


def test_add_layer_norms_rules():
    page = BY_NAME["AddLayerNorm"]
    words = "biasOptional must have the shape of gamma or of x1, (4,) or (2, 6, 4)"
    refused(page, 561002, words, biasOptional=np.ones(6, F32))
    refused(page, 161002, "biasOptional must be of type ACL_FLOAT", biasOptional=np.ones(4, F16))
    words = "meanOut must have the shape (2, 6, 1)"
    refused(page, 561002, words, meanOut=np.ones(12, F32))
    refused(page, 561002, "x2 must have the shape of x1", x2=np.ones((2, 6, 5), F32))
    refused(
        page, 161002, "beta must have the type of gamma", arrays_of(page, F16), beta=np.ones(4, F32)
    )
    refused(page, 161001, "xOut must not be null where additionalOutput is true", xOut=None)


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
@pytest.mark.parametrize("name", ["GroupNormSilu", "GroupNormSiluV2", "GroupNormSwish"])
@pytest.mark.parametrize("active", [True, False])
def test_group_norm_silu(name, data, vectors, active):
    page = BY_NAME[name]
    arrays = arrays_of(page, data, vectors)
    x, gamma, beta, y, mean, rstd = arrays.values()
    switch = {"GroupNormSiluV2": "activateSilu", "GroupNormSwish": "activateSwish"}.get(name)
    if not (active or switch):
        return
    after = "silu" if active else None
    want = normgrad.group_norm(x, 3, weight=gamma, bias=beta, eps=1e-3, activation=after)
    compute(page, arrays, eps=1e-3, **({switch: active} if switch else {}))
    agree(y, want.output)
    near(mean, want.mean)
    near(rstd, want.rstd)


@pytest.mark.parametrize("scale", [0.0, -1.3, 2.5, 1e30, -1e38, 1e-30])
def test_scales_of_swish(scale):
    """Against float64, where no product of scale and z overflows; the judge has usual scales."""
    page = BY_NAME["GroupNormSwish"]
    arrays = arrays_of(page)
    x, gamma, beta, y, *_ = arrays.values()
    wide = {"weight": gamma.astype(float), "bias": beta.astype(float)}
    z = normgrad.group_norm(x.astype(float), 3, eps=1e-3, **wide).output
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-np.float64(np.float32(scale)) * z))
    compute(page, arrays, eps=1e-3, swishScale=scale)
    np.testing.assert_allclose(y, z * share, rtol=1e-5, atol=1e-6)
    page = BY_NAME["GroupNormSwishGrad"]
    arrays = arrays_of(page)
    dy, mean, rstd, x, gamma, beta, dx, dgamma, dbeta = arrays.values()
    weight, bias = (one.astype(float)[:, None] for one in (gamma, beta))
    spread = [np.repeat(one, 2, axis=1)[:, :, None].astype(float) for one in (mean, rstd)]
    z = (x - spread[0]) * spread[1] * weight + bias
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-np.float64(np.float32(scale)) * z))
        slope = share * (1 + scale * z * (1 - share))
    want = normgrad.group_norm_backward(
        dy * slope, *(one.astype(float) for one in (x, mean, rstd)), 3, weight=gamma.astype(float)
    )
    compute(page, arrays, swishScale=scale)
    for got, right in zip((dx, dgamma, dbeta), want[:3], strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_group_norm_swish_grad(dtype):
    page = BY_NAME["GroupNormSwishGrad"]
    arrays = arrays_of(page, dtype)
    dy, mean, rstd, x, gamma, beta, dx, dgamma, dbeta = arrays.values()
    want = normgrad.group_norm_backward(
        dy, x, mean, rstd, 3, weight=gamma, bias=beta, activation="silu"
    )
    compute(page, arrays)
    agree(dx, want.grad_input)
    agree(dgamma, want.grad_weight)
    agree(dbeta, want.grad_bias)


@pytest.mark.parametrize(
    ("name", "changes", "status", "words"),
    [
        ("GroupNormSilu", {"eps": 0.0}, 161002, "eps must be positive, got 0.0"),
        ("GroupNormSilu", {"group": -3}, 161002, "group must be positive, got -3"),
        (
            "GroupNormSilu",
            {"meanOut": np.ones(6, F32)},
            161002,
            "meanOut must have the shape (N, gr",
        ),
        (
            "GroupNormSilu",
            {"gamma": np.ones(6, F16)},
            161002,
            "gamma must be of type ACL_FLOAT, got",
        ),
        ("GroupNormSiluV2", {"beta": np.ones(7, F32)}, 161002, "beta must have 6 elements"),
        ("GroupNormSwish", {"swishScale": 1e39}, 161002, "swishScale must be a finite float32"),
        ("GroupNormSwish", {"dataFormatOptional": 7}, 161002, "dataFormatOptional must be text"),
        ("GroupNormSwishGrad", {"swishScale": float("nan")}, 161002, "swishScale must be a finite"),
        ("GroupNormSwishGrad", {"numGroups": 0}, 161002, "numGroups must be positive, got 0"),
        (
            "GroupNormSwishGrad",
            {"mean": np.ones((2, 3), F16)},
            161002,
            "mean must have the type of dy",
        ),
    ],
)
def test_rules_of_group_norm_and_silu(name, changes, status, words):
    refused(BY_NAME[name], status, words, **changes)


ALPHA = np.float32(0.3)


def sum_of(arrays):
    """As it is made: in float32, of a rounded product."""
    return ALPHA * arrays["x"].astype(F32) + arrays["gx"].astype(F32)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("covered", [1, 2])
def test_deep_norm(dtype, covered):
    page = BY_NAME["DeepNorm"]
    arrays = arrays_of(page, dtype)
    tail = (6, 4)[2 - covered :]
    rng = np.random.default_rng(4)
    arrays |= {name: rng.standard_normal(tail).astype(dtype) for name in ("gamma", "beta")}
    statistics = (2, 6, 4)[: 3 - covered] + (1,) * covered
    arrays |= {name: np.full(statistics, np.nan, F32) for name in ("meanOut", "rstdOut")}
    want = normgrad.layer_norm(
        sum_of(arrays), tail, weight=arrays["gamma"], bias=arrays["beta"], eps=1e-3
    )
    compute(page, arrays, alpha=float(ALPHA), epsilon=1e-3)
    agree(arrays["yOut"], want.output.astype(dtype))
    agree(arrays["meanOut"], want.mean)
    agree(arrays["rstdOut"], want.rstd)
    words = "rstdOut must have the shape"
    refused(page, 161002, words, arrays, rstdOut=np.ones(12, F32))


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_deep_norm_grad(dtype):
    page = BY_NAME["DeepNormGrad"]
    arrays = arrays_of(page, dtype)
    want = normgrad.layer_norm_backward(
        arrays["dy"].astype(F32),
        sum_of(arrays),
        arrays["mean"],
        arrays["rstd"],
        4,
        weight=arrays["gamma"],
        param_grad_dtype="float32",
    )
    given = {name: arrays[name].copy() for name in ("dy", "x", "gx")}
    compute(page, arrays, alpha=float(ALPHA))
    agree(arrays["dgxOut"], want.grad_input.astype(dtype))
    agree(arrays["dxOut"], (ALPHA * want.grad_input).astype(dtype))
    agree(arrays["dgammaOut"], want.grad_weight)
    agree(arrays["dbetaOut"], want.grad_bias)
    assert all((arrays[name] == before).all() for name, before in given.items())


@pytest.mark.parametrize("name", ["DeepNorm", "DeepNormGrad"])
def test_deep_norms_rules(name):
    page, alone = BY_NAME[name], np.ones(4, F32)
    for alpha in (float("inf"), float("nan"), -1e39):
        refused(page, 161002, f"alpha must be a finite float32, got {alpha}", alpha=alpha)
    words = "gamma must have fewer axes than x, 3, got shape (2, 6, 4)"
    refused(page, 161002, words, gamma=np.ones((2, 6, 4), F32))
    refused(page, 161002, "x must have 2 to 8 axes, got shape (4,)", x=alone)
    refused(page, 161002, "gx must have the shape of x, (2, 6, 4)", gx=np.ones((2, 6, 5), F32))
    refused(page, 161002, "gamma's shape must be the tail of x's shape", gamma=np.ones(5, F32))
    results = [one.name for one in page.parameters if one.kind == "out" and one.shape == "data"]
    if len(results) > 1:
        shared = arrays_of(page)
        shared[results[1]] = shared[results[0]]
        refused(page, 161002, "must not share memory with", shared)


def test_group_norm_silu_without_parameters():
    page = BY_NAME["GroupNormSilu"]
    arrays = arrays_of(page, F16)
    compute(page, arrays, gamma=None, beta=None, eps=1e-3)
    agree(arrays["out"], normgrad.group_norm(arrays["self"], 3, eps=1e-3, activation="silu").output)
    words = "meanOut must be of type ACL_FLOAT on Ascend 950"  # gamma's
    refused(page, 161002, words, arrays_of(page, F16, F32), meanOut=np.ones((2, 3), F16))
    aclnn.set_product("atlas-a2")
    refused(page, 161001, "gamma must not be null on Atlas A2", gamma=None)
    words = "meanOut must be of type ACL_FLOAT16 on Atlas A2"  # self's
    refused(page, 161002, words, arrays_of(page, F16, F32))


def test_swish_formats_are_not_looked_at():
    page = BY_NAME["GroupNormSwish"]
    for text in (None, 0, "NHWC", b"NCHW"):
        accepted(page, dataFormatOptional=text)


@pytest.mark.parametrize(("data", "vectors"), PAIRS)
def test_synchronized_batch_norm(data, vectors):
    page = BY_NAME["BatchNormStats"]
    arrays = arrays_of(page, data)
    compute(page, arrays, eps=1e-3)
    want = normgrad.batch_norm(arrays["input"], eps=1e-3)
    np.testing.assert_allclose(arrays["mean"], want.mean, rtol=1e-6)
    np.testing.assert_allclose(arrays["invstd"], want.rstd, rtol=1e-6)

    page = BY_NAME["BatchNormElemt"]
    arrays = arrays_of(page, data, vectors)
    x, weight, bias, mean, invstd, y = arrays.values()
    compute(page, arrays)
    agree(y, normgrad.batch_norm_elemt(x, mean, invstd, weight=weight, bias=bias))

    page = BY_NAME["BatchNormReduceBackward"]
    arrays = arrays_of(page, data, vectors)
    dy, x, mean, invstd, weight, *results = arrays.values()
    want = normgrad.batch_norm_reduce_backward(dy, x, mean, invstd, weight=weight)
    compute(page, arrays)
    for got, expected in zip(results, want, strict=True):
        near(got, expected)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_statistics_of_all_ranks(dtype):
    """Each rank's part through Stats, all of them through Gather: as one batch."""
    rng = np.random.default_rng(3)
    ranks = [10 + 3 * rng.standard_normal((size, 6, 4)).astype(F32) for size in (1, 5, 2)]
    means, invstds = np.empty((3, 6), F32), np.empty((3, 6), F32)
    stats = BY_NAME["BatchNormStats"]
    for x, mean, invstd in zip(ranks, means, invstds, strict=True):
        compute(stats, {"input": x, "mean": mean, "invstd": invstd}, eps=1e-3)
    page = BY_NAME["BatchNormGatherStatsWithCounts"]
    arrays = arrays_of(page, dtype) | {"mean": means, "invstd": invstds}
    arrays["counts"] = np.array([4, 20, 8], F32)
    before = {name: arrays[name].astype(F32) for name in ("runningMean", "runningVar")}
    compute(page, arrays, momentum=0.2, eps=1e-3)
    whole = np.concatenate(ranks).astype(np.float64)
    mean, var = whole.mean(axis=(0, 2)), whole.var(axis=(0, 2))
    step = max(float(ml_dtypes.finfo(dtype).eps), 1e-6)
    for name, want in (
        ("meanAll", mean),
        ("invstdAll", 1 / np.sqrt(var + 1e-3)),
        ("runningMean", 0.8 * before["runningMean"] + 0.2 * mean),
        ("runningVar", 0.8 * before["runningVar"] + 0.2 * var * 32 / 31),
    ):
        np.testing.assert_allclose(np.float64(arrays[name]), want, rtol=step)


def test_counts_are_added_exactly():
    page = BY_NAME["BatchNormGatherStatsWithCounts"]
    arrays = arrays_of(page)
    arrays["counts"] = np.array([60000, 60000, 2049], F16)  # together more than float16 has
    compute(page, arrays)
    counts = arrays["counts"].astype(np.float64)[:, None]
    want = (arrays["mean"] * counts).sum(axis=0) / counts.sum()
    np.testing.assert_allclose(arrays["meanAll"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input": np.ones(6, F32)}, "input must have 2 to 8 axes, got shape (6,)"),
        ({"input": np.ones((2, 5), F32)}, "mean must have the shape (ranks, 5)"),
        ({"invstd": np.ones((2, 6), F32)}, "invstd must have the shape of mean, (3, 6)"),
        ({"counts": np.ones((3, 1), F32)}, "counts must have one axis"),
        ({"counts": np.ones(4, F32)}, "counts must have one element for each of the 3 ranks"),
        ({"meanAll": np.ones(7, F32)}, "meanAll must have 6 elements"),
        ({"runningVar": np.ones((6, 1), F32)}, "runningVar must be 1-d"),
    ],
)
def test_gathers_rules(changes, words):
    refused(BY_NAME["BatchNormGatherStatsWithCounts"], 161002, words, **changes)


@pytest.mark.parametrize("name", ["BatchNormStats", "BatchNormElemt", "BatchNormReduceBackward"])
def test_no_channels(name):
    page = BY_NAME[name]
    empty = {
        one.name: np.ones((2, 0, 4) if one.shape == "data" else 0, F32) for _, one in page.tensors
    }
    words = "input must have at least one channel, got shape (2, 0, 4)"
    refused(page, 161002, words, empty)


def test_updates_lie_apart_from_everything():
    page, arrays = BY_NAME["BatchNorm"], arrays_of(BY_NAME["BatchNorm"])
    shared = {**arrays, "runningVar": arrays["runningMean"]}
    refused(page, 161002, "runningVar must not share memory with", shared)
    shared = {**arrays, "runningMean": arrays["weight"]}
    refused(page, 161002, "runningMean must not share memory with another argument", shared)
    accepted(page, shared, training=False)  # read only


def test_empty_data():
    for name in ("BatchNorm", "LayerNorm", "GroupNorm", "RmsNorm"):
        page = BY_NAME[name]
        arrays = arrays_of(page)
        for _, one in page.tensors:
            if one.shape in ("data", "rows", "groups"):
                arrays[one.name] = arrays[one.name][:0]
        compute(page, arrays, **({"N": 0} if name == "GroupNorm" else {}))
