"""Every rule about a call, by the words of its message; nothing is written when one is broken.

A row: operator, exception, the words, and what differs from a good call. Rows stay lines.
"""

# ruff: noqa: E501

import pickle

import numpy as np
import pytest
import torch
from foreign_arrays import Foreign

import normgrad as ng
from neutral import neutral
from normgrad.arrays import dlpack
from normgrad.core.errors import BackendError

F = np.float32


def arr(*shape, dtype=F):
    return np.ones(shape, dtype)


X = arr(2, 4, 3)
GOOD = {
    "batch": {"grad_out": X, "input": X, "mean": arr(4), "rstd": arr(4), "weight": arr(4)},
    "reduce": {"grad_out": X, "input": X, "mean": arr(4), "rstd": arr(4), "weight": arr(4)},
    "elemt": {
        "grad_out": X,
        "input": X,
        "mean": arr(4),
        "rstd": arr(4),
        "sum_dy": arr(4),
        "sum_dy_xmu": arr(4),
        "count": np.array([6], np.int32),
        "weight": arr(4),
    },
    "layer": {
        "grad_out": X,
        "input": X,
        "mean": arr(2),
        "rstd": arr(2),
        "normalized_shape": (4, 3),
        "weight": arr(4, 3),
    },
    "group": {
        "grad_out": X,
        "input": X,
        "mean": arr(2, 2),
        "rstd": arr(2, 2),
        "num_groups": 2,
        "weight": arr(4),
    },
}
CALLS = {
    "batch": ng.batch_norm_backward,
    "reduce": ng.batch_norm_reduce_backward,
    "elemt": ng.batch_norm_elemt_backward,
    "layer": ng.layer_norm_backward,
    "group": ng.group_norm_backward,
}
OUT = {
    "batch": [(2, 4, 3), (4,), (4,)],
    "reduce": [(4,), (4,), (4,), (4,)],
    "elemt": [(2, 4, 3)],
    "layer": [(2, 4, 3), (4, 3), (4, 3)],
    "group": [(2, 4, 3), (4,), (4,)],
}
NINE = (1,) * 9
READ_ONLY = arr(2, 4, 3)
READ_ONLY.flags.writeable = False
UNALIGNED = np.zeros(4 * 24 + 1, np.uint8)[1:].view(F).reshape(2, 4, 3)
SELF_OVERLAP = np.lib.stride_tricks.as_strided(arr(30), (2, 4, 3), (4, 4, 4))
HUGE = np.broadcast_to(np.float32(1), (2**28, 4, 2**28))  # 2**60 bytes of one number
ONE = arr(4)
BOTH = arr(8)
SPARSE = torch.ones(2, 4, 3).to_sparse()
META = torch.ones(2, 4, 3, device="meta")
FLOAT_NAMES = "float16, bfloat16, float32, float64"


class NoConsumer:
    """Speaks DLPack but has nothing that takes an array back."""

    def __dlpack__(self, **options):
        return X.__dlpack__(**options)

    def __dlpack_device__(self):
        return X.__dlpack_device__()


class Elsewhere(NoConsumer):
    def __dlpack_device__(self):
        return (8, 0)  # Metal


class Broken(NoConsumer):
    def __dlpack__(self, **options):
        raise BufferError("not today")


class NoCapsule(NoConsumer):
    def __dlpack__(self, **options):
        return "capsule"


class Packed(Foreign):
    def __dlpack__(self, **options):
        capsule = super().__dlpack__()
        managed = dlpack._Managed.from_address(dlpack._get_pointer(capsule, b"dltensor"))
        managed.tensor.dtype.lanes = 4
        return capsule


class Gone(Foreign):
    def __dlpack__(self, **options):
        capsule = super().__dlpack__()
        managed = dlpack._Managed.from_address(dlpack._get_pointer(capsule, b"dltensor"))
        managed.tensor.data = None
        return capsule


class Later(NoConsumer):
    def __dlpack__(self, **options):
        capsule = X.__dlpack__(max_version=(1, 0))
        at = dlpack._get_pointer(capsule, b"dltensor_versioned")
        dlpack._ManagedVersioned.from_address(at).major = 2
        return capsule


T, V = TypeError, ValueError
ROWS = [
    # arrays
    ("batch", T, "grad_out must be a NumPy array, a torch tensor or an array that speaks DLPack, got a list", {"grad_out": [1.0]}),
    ("batch", T, "grad_out must be a NumPy array, .* got a NoneType", {"grad_out": None}),
    ("batch", T, "input must be a NumPy array, .* got a float", {"input": 3.0}),
    ("batch", T, "weight must be a NumPy array, .* got a str", {"weight": "w"}),
    ("batch", T, "rstd must be a NumPy array, .* got a int", {"rstd": 1}),
    ("batch", T, "variance must be a NumPy array, .* got a list", {"rstd": None, "variance": [1]}),
    ("batch", T, "input must be a NumPy array, .* got a MaskedArray", {"input": np.ma.ones((2, 4, 3), F)}),
    ("layer", T, "weight must be a NumPy array, .* got a dict", {"weight": {}}),
    ("batch", T, "input must be a dense tensor, got layout torch.sparse_coo", {"input": SPARSE}),
    ("batch", V, "input must be on the CPU or an NVIDIA GPU, got device meta", {"input": META}),
    ("batch", V, "grad_out must be on the CPU or an NVIDIA GPU, got DLPack device type 8, number 0", {"grad_out": Elsewhere()}),
    ("batch", T, "grad_out must be readable through DLPack, got a Broken that says BufferError: not today", {"grad_out": Broken()}),
    ("batch", T, "grad_out must give an unused DLPack capsule, got str", {"grad_out": NoCapsule()}),
    ("batch", T, r"grad_out must have data in memory, got a Gone of shape \(2, 4, 3\) without", {"grad_out": Gone.of(X, "float32")}),
    ("batch", T, "grad_out must be lent by DLPack 1.0, as was asked for, got version 2.0", {"grad_out": Later()}),
    ("batch", T, "input must come from a library with from_dlpack, .* got a NoConsumer", {"input": NoConsumer(), "out": None}),
    # types
    ("batch", T, f"input must be of type {FLOAT_NAMES}, got int32", {"input": X.astype(np.int32)}),
    ("batch", T, f"grad_out must be of type {FLOAT_NAMES}, got bool", {"grad_out": X.astype(bool)}),
    ("batch", T, f"grad_out must be of type {FLOAT_NAMES}, got complex64", {"grad_out": X.astype(np.complex64)}),
    ("batch", T, f"input must be of type {FLOAT_NAMES}, got >f4", {"input": X.astype(">f4")}),
    ("batch", T, f"grad_out must be of type {FLOAT_NAMES}, got float32x4", {"grad_out": Packed.of(X, "float32")}),
    ("batch", T, f"grad_out must be of type {FLOAT_NAMES}, got bfloat16x4", {"grad_out": Packed.of(X, "bfloat16")}),
    ("batch", T, f"weight must be of type {FLOAT_NAMES}, got int64", {"weight": torch.ones(4, dtype=torch.int64)}),
    ("batch", T, f"mean must be of type {FLOAT_NAMES}, got uint8", {"mean": arr(4, dtype=np.uint8)}),
    ("batch", T, f"variance must be of type {FLOAT_NAMES}, got int8", {"rstd": None, "variance": arr(4, dtype=np.int8), "training": False}),
    ("elemt", T, f"count must be of type {FLOAT_NAMES}, int32, int64, got uint8", {"count": arr(1, dtype=np.uint8)}),
    ("elemt", T, f"sum_dy must be of type {FLOAT_NAMES}, got int32", {"sum_dy": arr(4, dtype=np.int32)}),
    ("batch", T, f"param_grad_dtype must be one of {FLOAT_NAMES}, got 'int32'", {"param_grad_dtype": "int32"}),
    ("batch", T, "param_grad_dtype must be one of .*, got <class 'float'>", {"param_grad_dtype": float}),
    # operands that have no default
    ("reduce", V, r"mean must be given \(one element for each channel, as the forward pass saved it\), got None", {"mean": None}),
    ("reduce", V, r"rstd or variance= with eps= must be given \(one element for each channel, .*\), got None", {"rstd": None}),
    ("elemt", V, "sum_dy must be given, got None", {"sum_dy": None}),
    ("elemt", V, "sum_dy_xmu must be given, got None", {"sum_dy_xmu": None}),
    ("elemt", V, "count must be given, got None", {"count": None}),
    ("layer", V, r"rstd or variance= with eps= must be given \(one element for each row, .*\), got None", {"rstd": None}),
    ("group", V, r"mean must be given \(one element for each sample and group, .*\), got None", {"mean": None}),
    # options
    ("batch", V, "eps must be finite and not negative, got -1.0", {"eps": -1}),
    ("batch", V, "eps must be finite and not negative, got nan", {"eps": float("nan")}),
    ("batch", V, "eps must be a number, got '1e-5'", {"eps": "1e-5"}),
    ("batch", V, "eps must be a number, got None", {"eps": None}),
    ("batch", V, "eps must be a number, got 10000", {"eps": 10**400}),
    ("batch", V, "training must be True or False, got 'no'", {"training": "no"}),
    ("batch", V, "training must be True or False, got 1", {"training": 1}),
    ("batch", V, r"channel_axis must be an axis of input, whose shape is \(2, 4, 3\), got 3", {"channel_axis": 3}),
    ("batch", V, "channel_axis must be an axis of input, .* got -4", {"channel_axis": -4}),
    ("group", V, "channel_axis must be an axis of input, .* got 3", {"channel_axis": 3}),
    ("group", V, "channel_axis must be an axis of input, .* got -4", {"channel_axis": -4}),
    ("batch", V, "channel_axis must be an integer, got 1.0", {"channel_axis": 1.0}),
    ("batch", V, "channel_axis must be an integer, got None", {"channel_axis": None}),
    ("group", V, "num_groups must be positive, got 0", {"num_groups": 0}),
    ("group", V, "num_groups must be positive, got -2", {"num_groups": -2}),
    ("group", V, "num_groups must be an integer, got '2'", {"num_groups": "2"}),
    ("group", V, "num_groups must divide the number of channels, 4, got 3", {"num_groups": 3}),
    ("layer", V, r"normalized_shape must have at least one axis, got \(\)", {"normalized_shape": ()}),
    ("layer", V, r"normalized_shape must be the tail of input's shape \(2, 4, 3\), got \(3, 4\)", {"normalized_shape": (3, 4)}),
    ("layer", V, r"normalized_shape must be the tail of input's shape .* got \(1, 2, 4, 3\)", {"normalized_shape": (1, 2, 4, 3)}),
    ("layer", V, "normalized_shape must be an integer or a sequence of integers, got 3.0", {"normalized_shape": 3.0}),
    ("layer", V, "normalized_shape must be an integer or a sequence of integers, got '43'", {"normalized_shape": "43"}),
    ("layer", V, "normalized_shape must be an integer or a sequence of integers, got None", {"normalized_shape": None}),
    ("batch", V, r"output_mask must be 3 booleans, got \(True, True\)", {"output_mask": (True, True)}),
    ("batch", V, r"output_mask must be 3 booleans, got \[1, 0, 1\]", {"output_mask": [1, 0, 1]}),
    ("batch", V, "output_mask must be 3 booleans, got True", {"output_mask": True}),
    ("batch", V, "output_mask must be 3 booleans, got 'yes'", {"output_mask": "yes"}),
    ("reduce", V, "output_mask must be 4 booleans, got", {"output_mask": (True,) * 3}),
    ("batch", V, "backend must be None or one of 'reference', 'cpu', 'cuda', got 'tpu'", {"backend": "tpu"}),
    ("batch", V, r"backend must be None or one of .* got \['cpu'\]", {"backend": ["cpu"]}),
    ("batch", V, "got 'gpu': did you mean 'cuda'?", {"backend": "gpu"}),
    ("batch", V, "got 'CUDA': did you mean 'cuda'?", {"backend": "CUDA"}),
    ("batch", V, "got 'swish': did you mean 'silu'?", {"activation": "swish"}),
    ("layer", V, "got 'gelu_new': did you mean 'gelu_tanh'?", {"activation": "gelu_new"}),
    # ranks and shapes of the data
    ("batch", V, r"input must have 2 to 8 axes, got shape \(\)", {"grad_out": arr(), "input": arr()}),
    ("batch", V, r"input must have 2 to 8 axes, got shape \(4,\)", {"grad_out": arr(4), "input": arr(4)}),
    ("batch", V, r"input must have 2 to 8 axes, got shape \(4,\)", {"grad_out": arr(4), "input": arr(4), "channel_axis": 0}),
    ("batch", V, "input must have 2 to 8 axes, got shape", {"grad_out": arr(*NINE), "input": arr(*NINE)}),
    ("reduce", V, r"input must have 2 to 8 axes, got shape \(4,\)", {"input": arr(4)}),
    ("elemt", V, r"input must have 2 to 8 axes, got shape \(\)", {"input": arr()}),
    ("layer", V, r"input must have 1 to 8 axes, got shape \(\)", {"input": arr()}),
    ("layer", V, "input must have 1 to 8 axes, got shape", {"input": arr(*NINE)}),
    ("group", V, r"input must have 2 to 8 axes, got shape \(4,\)", {"input": arr(4)}),
    ("group", V, "input must have 2 to 8 axes, got shape", {"input": arr(*NINE)}),
    ("batch", V, r"grad_out must have the shape of input, \(2, 4, 3\), got shape \(2, 4\)", {"grad_out": arr(2, 4)}),
    ("layer", V, r"grad_out must have the shape of input, .* got shape \(2, 3, 4\)", {"grad_out": arr(2, 3, 4)}),
    ("group", V, r"grad_out must have the shape of input, .* got shape \(2, 4, 1\)", {"grad_out": arr(2, 4, 1)}),
    ("elemt", V, r"input must have at least one channel, got shape \(2, 0, 3\)", {"grad_out": arr(2, 0, 3), "input": arr(2, 0, 3)}),
    ("batch", V, r"grad_out must have and span less than 2\*\*57 bytes, got shape", {"grad_out": HUGE, "input": HUGE}),
    # shapes of the vectors
    ("batch", V, r"weight must be 1-d with one element for each of the 4 channels of input, got shape \(3,\)", {"weight": arr(3)}),
    ("batch", V, r"weight must be 1-d .* got shape \(4, 1\)", {"weight": arr(4, 1)}),
    ("batch", V, r"mean must be 1-d .* got shape \(\)", {"mean": arr()}),
    ("batch", V, r"mean must be 1-d .* got shape \(0,\)", {"mean": arr(0)}),
    ("batch", V, r"rstd must be 1-d .* got shape \(5,\)", {"rstd": arr(5)}),
    ("batch", V, r"mean must be 1-d .* got shape \(5,\)", {"mean": arr(5), "training": False}),
    ("batch", V, r"variance must be 1-d .* got shape \(1,\)", {"rstd": None, "variance": arr(1), "training": False}),
    ("elemt", V, r"sum_dy must be 1-d .* got shape \(1,\)", {"sum_dy": arr(1)}),
    ("elemt", V, r"sum_dy_xmu must be 1-d .* got shape \(5,\)", {"sum_dy_xmu": arr(5)}),
    ("elemt", V, "count must have at most 8 axes, got shape", {"count": arr(*NINE)}),
    ("layer", V, r"mean must have one element for each of the 2 rows of input, got 3 \(shape \(3,\)\)", {"mean": arr(3)}),
    ("layer", V, r"rstd must have the shape of mean, \(2,\), got shape \(2, 1\)", {"rstd": arr(2, 1)}),
    ("layer", V, "mean must have at most 8 axes, got shape", {"mean": arr(*NINE, 2)}),
    ("layer", V, r"weight must have the shape \(4, 3\) of normalized_shape, got shape \(12,\)", {"weight": arr(12)}),
    ("group", V, r"mean must have 4 elements, one for each sample and group, got 2 \(shape \(2,\)\)", {"mean": arr(2)}),
    ("group", V, r"rstd must have the shape of mean, \(2, 2\), got shape \(4,\)", {"rstd": arr(4)}),
    ("group", V, r"weight must have 4 elements, one for each channel, got 2 \(shape \(2,\)\)", {"weight": arr(2)}),
    # preallocated results
    ("batch", T, "out must be a tuple of 3: grad_input, grad_weight, grad_bias, got 2 of them", {"out": (X, ONE)}),
    ("batch", T, "out must be a tuple of 3: .* got ndarray", {"out": arr(2, 4, 3)}),
    ("reduce", T, "out must be a tuple of 4: sum_dy, sum_dy_xmu, grad_weight, grad_bias, got 3 of them", {"out": (ONE,) * 3}),
    ("elemt", T, "out must be a NumPy array, .* got a tuple", {"out": (arr(2, 4, 3),)}),
    ("batch", V, "out's grad_bias must be an array, as output_mask says, got None", {"out": (arr(2, 4, 3), arr(4), None)}),
    ("batch", V, "out's grad_weight must be None, as output_mask says, got a ndarray", {"out": (arr(2, 4, 3), arr(4), None), "output_mask": (True, False, False)}),
    ("batch", T, "out's grad_input must be a NumPy array, .* got a list", {"out": ([], arr(4), arr(4))}),
    ("batch", T, "out's grad_input must be writable, got a read-only array", {"out": (READ_ONLY, arr(4), arr(4))}),
    ("elemt", T, "out must be writable, got a read-only array", {"out": READ_ONLY}),
    ("batch", T, "out's grad_input must be aligned to its elements, got address 0x", {"out": (UNALIGNED, arr(4), arr(4))}),
    ("batch", V, r"out's grad_weight must be on the CPU or an NVIDIA GPU, got device meta", {"out": (arr(2, 4, 3), META, arr(4))}),
    ("batch", V, r"grad_input must have the shape \(2, 4, 3\), got shape \(2, 12\)", {"out": (arr(2, 12), arr(4), arr(4))}),
    ("batch", V, r"grad_weight must have the shape \(4,\), got shape \(5,\)", {"out": (arr(2, 4, 3), arr(5), arr(4))}),
    ("layer", V, r"grad_bias must have the shape \(4, 3\), got shape \(12,\)", {"out": (arr(2, 4, 3), arr(4, 3), arr(12))}),
    ("group", V, r"grad_bias must have the shape \(4,\), got shape \(2, 2\)", {"out": (arr(2, 4, 3), arr(4), arr(2, 2))}),
    ("reduce", V, r"sum_dy must have the shape \(4,\), got shape \(3,\)", {"out": (arr(3), arr(4), arr(4), arr(4))}),
    ("batch", T, "grad_input must be of type float32, got float64", {"out": (arr(2, 4, 3, dtype=float), arr(4), arr(4))}),
    ("batch", T, "grad_weight must be of type float32, got float16", {"out": (arr(2, 4, 3), arr(4, dtype=np.float16), arr(4))}),
    ("batch", T, "grad_weight must be of type float64, got float32", {"out": (arr(2, 4, 3), arr(4), arr(4)), "param_grad_dtype": "float64"}),
    ("reduce", T, "sum_dy must be of type float32 or float64, got float16", {"out": (arr(4, dtype=np.float16), arr(4), arr(4), arr(4))}),
    ("batch", V, "grad_input must not have two elements at one address, got strides", {"out": (SELF_OVERLAP, arr(4), arr(4))}),
    ("batch", V, "grad_bias must not share memory with grad_weight, got address 0x", {"out": (arr(2, 4, 3), ONE, ONE)}),
    ("batch", V, "grad_bias must not share memory with grad_weight, got address 0x", {"out": (arr(2, 4, 3), BOTH[:4], BOTH[3:7])}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "kind", "words", "changes"), ROWS, ids=[f"{row[0]}: {row[2][:50]}" for row in ROWS]
)
def test_message(op, kind, words, changes):
    results = [np.full(shape, 7.0, F) for shape in OUT[op]]
    arguments = {**GOOD[op], "out": results[0] if op == "elemt" else tuple(results), **changes}
    inputs = {name: one.copy() for name, one in GOOD[op].items() if isinstance(one, np.ndarray)}
    with pytest.raises(kind, match=words) as caught:
        CALLS[op](**arguments)
    assert isinstance(caught.value, ng.NormgradError)
    assert all((one == 7.0).all() for one in results)
    given = arguments["out"] if isinstance(arguments["out"], tuple) else (arguments["out"],)
    for one in given:  # the row's own results hold their ones or sevens still
        if isinstance(one, np.ndarray):
            assert np.isin(one, [0.0, 1.0, 7.0]).all()
    for name, before in inputs.items():
        np.testing.assert_array_equal(before, GOOD[op][name])


def test_a_good_call_of_each_operator_passes():
    for op, call in CALLS.items():
        call(**GOOD[op])


def test_the_first_broken_rule_speaks():
    """Types come before options, options before ranks, ranks before shapes."""
    broken = {"input": arr(4, dtype=np.int32), "eps": -1.0, "weight": arr(9)}
    broken |= {"mean": arr(4), "rstd": arr(4)}
    with pytest.raises(ng.DtypeError, match="input must be of type"):
        ng.batch_norm_backward(X, **broken)
    with pytest.raises(ng.OptionError, match="eps"):
        ng.batch_norm_backward(X, **{**broken, "input": arr(4)})
    with pytest.raises(ng.ShapeError, match="2 to 8 axes"):
        ng.batch_norm_backward(X, arr(4), *neutral(X), weight=arr(9))
    with pytest.raises(ng.ShapeError, match="weight"):
        ng.batch_norm_backward(X, X, *neutral(X), weight=arr(9))


def test_a_message_can_be_told_in_other_names():
    with pytest.raises(ng.ArgumentError) as caught:
        ng.batch_norm_backward(X[:1], X, *neutral(X))
    said = caught.value.render({"dy": "gradOut", "x": "self"})
    assert said == "gradOut must have the shape of self, (2, 4, 3), got shape (1, 4, 3)"


@pytest.mark.parametrize(
    "changes", [{"backend": "nobody"}, {"input": arr(2, 3, 4)}, {"grad_out": 1}, {"eps": "x"}]
)
def test_an_error_survives_the_way_from_another_process(changes):
    with pytest.raises(ng.NormgradError) as caught:
        ng.batch_norm_backward(**GOOD["batch"] | changes)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (type(caught.value), str(caught.value))


def test_no_backend_is_an_error_that_survives_it_too():
    error = BackendError("layer_norm on cpu", {"cuda": "it has no GPU", "cpu": "it is off"})
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == "no backend takes layer_norm on cpu (cuda: it has no GPU; cpu: it is off)"
    assert copied.reasons == error.reasons


def test_options_are_keywords_only():
    words = "takes 4 arguments by position .* give the others by name, such as weight="
    with pytest.raises(ng.CallError, match=words):
        ng.batch_norm_backward(*GOOD["batch"].values(), True)


def test_a_long_value_is_one_line():
    class Model:
        def __repr__(self):
            return "Model(\n  (0): Linear()\n  (1): Linear()\n)"

    with pytest.raises(ng.OptionError) as caught:
        ng.layer_norm_backward(*[np.ones((2, 3))] * 4, Model())
    assert str(caught.value).endswith("got Model( (0): Linear() (1): Linear() )")
