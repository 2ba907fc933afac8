"""Activations, residuals, shortcuts and weights of each sample, without a GPU.

The judge has their named cases (`test_cuda_interpreter`). Here: that both passes see the same bits
of what an activation gets, over all numbers of 16 bits; and what compiled kernels take.
"""

import math
from dataclasses import replace

import pytest
from cuda_plans import KNOWN, kernels, launches, resident_blocks
from interpreted import interpreted

from normgrad.backends.cuda.plan.tuned import columns as tuned
from normgrad.bench.suites import rows
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.spec import Op, TensorSpec

pytest.importorskip("torch")
pytest.importorskip("triton")

ALL_NUMBERS = """
import numpy as np
import torch
import normgrad as ng

every = torch.arange(65536, dtype=torch.int32).to(torch.int16)


def last(data):
    return data.movedim(1, -1).contiguous().movedim(-1, 1)


def check(name, dtype, order, beta):
    # As operators by themselves: z in float32, its rounding decides; slopes of 0, 1 and .25.
    x = order(every.view(dtype).reshape(32, 8, 256).clone())
    mean, rstd, ones = torch.full((8,), 0.5), torch.full((8,), 3.0), order(torch.ones_like(x))
    weight = 2.0 ** torch.tensor([-126, -120, -40, -26, -24, -20, 0, 1]) * -1.5
    bias = torch.full((8,), beta)
    given = dict(weight=weight, bias=bias, activation=name, negative_slope=0.25, backend="cuda")
    z = x.float() - 0.5
    z = z * (3.0 * weight)[:, None] + beta
    seen = z.to(dtype)
    y = torch.where(seen <= 0, z * 0.25 if name == "leaky_relu" else torch.zeros_like(z), z)
    slope = torch.where(seen <= 0, 0.25 if name == "leaky_relu" else 0.0, 1.0)
    if name == "relu6":
        y, slope = torch.where(seen >= 6, 6.0, y), torch.where(seen >= 6, 0.0, slope)
    got = ng.batch_norm_elemt(x, mean, rstd, **given)
    if dtype == torch.float16:  # the interpreter cuts bfloat16 off
        assert torch.equal(got.nan_to_num(7.0), y.to(dtype).nan_to_num(7.0)), name
    assert torch.equal(got.isnan(), y.isnan())
    back = ng.batch_norm_reduce_backward(order(torch.ones_like(x)), x, mean, rstd, **given)
    assert torch.equal(back.sum_dy, slope.sum((0, 2))), (name, back.sum_dy)
    dx = ng.batch_norm_backward(ones, x, mean, rstd, training=False, **given)[0]
    open_ones = (dx.float() != 0)[:, 6:]  # others are too small for float16
    assert torch.equal(open_ones, (slope != 0)[:, 6:]), name


for dtype in (torch.float16, torch.bfloat16):
    for order in (torch.Tensor.contiguous, last):
        for name in ("relu", "relu6", "leaky_relu"):
            for beta in (0.0, 2.0 ** -25, 6.0):
                check(name, dtype, order, beta)
print("done")
"""

# Statistics are made of the numbers: a unit is open in the gradient where y is not 0.
COUNTED = """
import numpy as np
import normgrad as ng

x = np.arange(65536, dtype=np.uint16).view(np.float16)
x = np.where(np.isfinite(x), x, 1).astype(np.float16)
last = lambda data: np.moveaxis(np.ascontiguousarray(np.moveaxis(data, 1, -1)), -1, 1)


def compare(forward, backward, data, *reach, count, **given):
    weight = (2.0 ** -np.arange(count) % 2.0**-30 * -1.0 + 2.0**-24).astype("f4")
    bias = np.full(count, 2.0**-26, "f4")
    given |= dict(weight=weight, bias=bias, activation="relu", backend="cuda")
    made = forward(data, *reach, **given)
    ones = np.ones_like(data)
    found = backward(ones, data, made.mean, made.rstd, *reach, **given)
    axes = (0,) if data.ndim == 2 else (0, 2)
    want = (made.output != 0).sum(axis=axes)
    np.testing.assert_array_equal(found.grad_bias, want)
    assert 0 < want.sum() < data.size


for order in (np.ascontiguousarray, last):
    for shape in ((8, 16, 512), (2, 16, 2048), (64, 16, 64), (1, 16, 4096)):
        data = order(x.reshape(shape))
        compare(ng.batch_norm, ng.batch_norm_backward, data, count=16)
        compare(ng.group_norm, ng.group_norm_backward, data, 4, count=16)
for columns in (32, 512, 1024, 16384, 32768):
    data = x.reshape(-1, columns)
    compare(ng.layer_norm, ng.layer_norm_backward, data, columns, count=columns)
print("done")
"""


def test_relu_is_decided_on_the_rounded_number_of_all_there_are():
    assert interpreted("-c", ALL_NUMBERS).strip() == "done"


def test_both_passes_are_open_alike():
    assert interpreted("-c", COUNTED).strip() == "done"


def fused(op, shape, dtype="bfloat16", layout="contiguous", **options):
    """The program of a fused request on an H200; tensors besides by role."""
    (workload,) = rows(Op(op), shape, (dtype,), (layout,))
    names = {"activation": options.pop("activation", None)}
    fields = ("normalized_shape", "biased")
    shapes = {name: options.pop(name) for name in fields if name in options}
    spec = replace(spec_of(replace(workload.case, **names), dtype), **names)
    tensors = {role: spec.x if one == "x" else one for role, one in options.items()}
    return program_of(replace(spec.with_tensors(tensors), **shapes), KNOWN["h200"])


def test_what_a_shortcut_takes():
    shape = "64x256x56x56"
    mask = TensorSpec.contiguous((64, 256, 392), "uint8")
    forward = fused("batch_norm", shape, activation="relu", shortcut="x", mask=mask)
    assert kernels(forward) == ["plane_sums", "finish_statistics", "plane_apply"]
    given = {"beta": None, "mask": mask, "dshortcut": "x"}
    backward = fused("batch_norm_backward", shape, activation="relu", **given)
    assert kernels(backward) == ["plane_apply", "clear_words", "plane_slabs"]
    first, *_, last = launches(backward)
    assert dict(first.arguments)["dx"] == dict(last.arguments)["dy"]  # nothing is kept besides
    assert dict(first.arguments)["x"].role == "x"


def with_shortcut(op, shape, dtype="bfloat16"):
    """A request in channels last, with ReLU's mask."""
    samples, channels, *sizes = map(int, shape.split("x"))
    mask = TensorSpec.contiguous((samples * math.prod(sizes), -(-channels // 8)), "uint8")
    given = {"beta": None, "dshortcut": "x"} if "backward" in op else {"shortcut": "x"}
    return fused(op, shape, dtype, "channels-last", activation="relu", mask=mask, **given)


def test_what_a_shortcut_takes_in_channels_last():
    for op, kind in (
        ("batch_norm", "shortcut"),
        ("batch_norm_backward", "shortcut's gradient"),
    ):
        program = with_shortcut(op, "64x256x56x56")
        assert program.strategy == f"resident columns with a {kind}"
        assert kernels(program) == ["clear_words", "column_slabs"]
        given = dict(launches(program)[-1].arguments)
        assert given["shortcut"].role == ("shortcut" if op == "batch_norm" else "dshortcut")
        assert given["bits"].role == "mask"
        assert program.workspace_bytes < 1 << 20
    # When a held tile is written, nothing of the shortcut is asked for any more.
    assert all(block.held <= block.beside for block in tuned.OF_ONE_TENSOR_AND_SHORTCUT)
    # What does not fit: forward two passes, backward a pass of its own.
    for op, strategy in (
        ("batch_norm", "two passes (columns)"),
        ("batch_norm_backward", "a shortcut's gradient, two passes (columns)"),
    ):
        assert with_shortcut(op, "512x64x112x112").strategy == strategy


def test_what_a_residual_takes():
    for op, given in (
        ("layer_norm", {"residual": "x", "sum": "x"}),
        ("rms_norm_backward", {"beta": None, "dsum": "x"}),
    ):
        assert kernels(fused(op, "16384x4096", **given))[-1] in {"layer_rows", "finish_rows"}
        assert kernels(fused(op, "16x262144", **given))[-1] in {"row_apply", "finish_rows"}


COMPILED = (
    *(
        ("batch_norm_backward", "64x256x56x56", "bfloat16", "contiguous", name)
        for name in ("relu", "silu")
    ),
    ("batch_norm_backward", "64x256x56x56", "float32", "contiguous", "relu"),
    ("batch_norm_backward", "256x2048x7x7", "float32", "contiguous", "silu"),
    ("batch_norm_backward", "64x1024x14x14", "float16", "contiguous", "hardswish"),
    ("group_norm_backward", "64x256x56x56", "bfloat16", "contiguous", "silu"),
    ("batch_norm_backward", "64x256x56x56", "bfloat16", "channels-last", "relu"),
    ("group_norm_backward", "64x256x56x56", "bfloat16", "channels-last", "silu"),
    ("group_norm_backward", "64x256x56x56", "bfloat16", "contiguous", "swish"),
    ("group_norm_backward", "64x256x56x56", "bfloat16", "channels-last", "swish"),
    ("group_norm", "128x256x56x56", "bfloat16", "channels-last", "swish"),
    ("layer_norm_backward", "16384x4096", "bfloat16", "contiguous", "gelu"),
    ("layer_norm_backward", "4096x16384", "bfloat16", "contiguous", "gelu_tanh"),
    ("layer_norm", "16384x4096", "bfloat16", "contiguous", "gelu"),
    ("batch_norm", "128x256x56x56", "bfloat16", "contiguous", "relu"),
    ("group_norm", "128x256x56x56", "bfloat16", "channels-last", "silu"),
)


@pytest.mark.parametrize("request_", COMPILED, ids=" ".join)
def test_activations_spill_nothing(request_, tmp_path):
    test = pytest.importorskip("test_cuda_compile")
    if test.launch.interpreting():
        pytest.skip("the interpreter compiles nothing")
    *words, name = request_
    spills_nothing(test, fused(*words, activation=name), tmp_path)


# Each kind of block, one step or two, held tiles or none, in float32 and 16 bits.
SHORTCUTS = [
    (op, shape, dtype)
    for op in ("batch_norm", "batch_norm_backward")
    for dtype in ("bfloat16", "float32")
    for shape in ("64x256x56x56", "64x512x28x28", "256x2048x7x7", "64x2048x7x7", "64x1024x14x14")
]


@pytest.mark.slow(3)
@pytest.mark.parametrize("request_", SHORTCUTS, ids=" ".join)
def test_shortcuts_spill_nothing(request_, tmp_path):
    test = pytest.importorskip("test_cuda_compile")
    if test.launch.interpreting():
        pytest.skip("the interpreter compiles nothing")
    program = with_shortcut(*request_)
    assert "resident columns with a shortcut" in program.strategy
    spills_nothing(test, program, tmp_path)


def spills_nothing(test, program, tmp_path):
    """And blocks that wait for each other fit on an H200."""
    for step in launches(program):
        made = test.launch.compile_step(step, 90)
        path = tmp_path / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])
        usage = test.tool("cuobjdump", "-res-usage", path)
        assert "STACK:0" in usage, (step.kernel, usage)
        if step.cooperative:
            assert step.grid[0] <= resident_blocks(KNOWN["h200"], step, made.metadata.shared)


def line(*shape):
    return TensorSpec.contiguous(shape, "float32")


MASK, MASK_LAST = (
    TensorSpec.contiguous(shape, "uint8") for shape in ((64, 256, 392), (200704, 32))
)
FORMS = (
    *(("batch_norm", shape, {"layout": layout, "biased": True, "running_mean": line(256),
                             "running_var": line(256)})
      for shape, layout in (("64x256x56x56", "contiguous"), ("64x256x56x56", "channels-last"),
                            ("64x256x14x14", "contiguous"))),
    ("layer_norm", "16384x4096", {"residual": "x", "sum": "x"}),
    ("layer_norm", "16384x1024", {"residual": "x", "sum": "x", "activation": "silu"}),
    ("rms_norm", "512x262144", {"residual": "x", "sum": "x"}),
    ("layer_norm_backward", "16384x4096", {"beta": None, "dsum": "x"}),
    ("rms_norm_backward", "8192x8192", {"dsum": "x"}),
    ("rms_norm_backward", "4096x16384", {"dsum": "x"}),
    ("batch_norm", "64x256x56x56", {"shortcut": "x", "activation": "relu", "mask": MASK}),
    ("batch_norm", "64x256x56x56", {"shortcut": "x", "activation": "silu"}),
    ("batch_norm_backward", "64x256x56x56",
     {"beta": None, "activation": "relu", "mask": MASK, "dshortcut": "x"}),
    ("batch_norm_backward", "64x256x56x56",
     {"activation": "silu", "shortcut": "x", "dshortcut": "x"}),
    *((op, "32x256x1024", {"normalized_shape": (1024,), **given}) for op, given in (
        ("layer_norm", {"gamma": line(32, 1, 1024), "beta": line(32, 1, 1024)}),
        ("layer_norm_backward", {"gamma": line(32, 1, 1024), "beta": None,
                                 "dgamma": line(32, 1, 1024), "dbeta": line(32, 1, 1024)}),
    )),
    *((op, "16x320x64x64", {"layout": layout, **given})
      for layout in ("contiguous", "channels-last") for op, given in (
        ("group_norm", {"gamma": line(16, 320), "beta": line(16, 320), "activation": "silu"}),
        ("group_norm_backward", {"gamma": line(16, 320), "beta": line(16, 320),
                                 "dgamma": line(16, 320), "dbeta": line(16, 320),
                                 "activation": "silu"}),
    )),
)  # fmt: skip
LAST = (
    ("batch_norm", {"shortcut": "x", "activation": "relu", "mask": MASK_LAST}),
    ("batch_norm_backward",
     {"beta": None, "activation": "relu", "mask": MASK_LAST, "dshortcut": "x"}),
)  # fmt: skip


@pytest.mark.parametrize(
    ("op", "shape", "given"),
    [*FORMS, *((op, "64x256x56x56", {"layout": "channels-last", **one}) for op, one in LAST)],
    ids=lambda one: one if isinstance(one, str) else "-".join(one),
)
def test_forms_compile(op, shape, given, tmp_path):
    test = pytest.importorskip("test_cuda_compile")
    if test.launch.interpreting():
        pytest.skip("the interpreter compiles nothing")
    for step in launches(fused(op, shape, **given)):
        made = test.launch.compile_step(step, 90)
        test.takes_what_a_launcher_gives(step, made.asm["ptx"])
        path = tmp_path / "kernel.cubin"
        path.write_bytes(made.asm["cubin"])
        usage = test.tool("cuobjdump", "-res-usage", path)
        spilled = int(usage.partition("STACK:")[2].split()[0])
        assert spilled <= (0 if not step.cooperative else 48), (step.kernel, usage)
        assert made.metadata.shared <= 227 << 10
