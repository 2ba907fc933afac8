"""A shortcut behind batch norm: what a mask says is what the values say, to the bit."""

import pytest

import normgrad as ng
from normgrad.core.spec import Op

torch = pytest.importorskip("torch")

SHAPES = [
    ((4, 6, 5, 7), False),
    ((16, 70, 14, 14), False),
    ((16, 70, 14, 14), True),
    ((1031, 7), False),
]


def unpacked(mask, y, last):
    """The bits of a mask, in the shape of the data."""
    bits = (mask[..., None].int() >> torch.arange(8)) & 1
    bits = bits.flatten(-2).bool()
    shape = y.movedim(1, -1).shape if last else y.shape
    length = shape[-1] if last or y.dim() == 2 else y[0, 0].numel()
    bits = bits[..., :length].reshape(shape)
    return bits.movedim(-1, 1) if last else bits


@pytest.mark.slow(20)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("shape", "last"), SHAPES)
def test_a_mask_and_the_values_say_the_same(dtype, shape, last):
    random = torch.Generator().manual_seed(0)
    x, r, dy = (torch.randn(shape, generator=random).to(dtype) for _ in range(3))
    x = 100 + x
    if last:
        x, r, dy = (v.contiguous(memory_format=torch.channels_last) for v in (x, r, dy))
    weight, bias = (torch.rand(shape[1], generator=random) for _ in range(2))
    given = {"weight": weight, "bias": bias, "activation": "relu", "backend": "cpu"}
    made = ng.batch_norm(x, shortcut=r, **given)
    assert torch.equal(unpacked(made.mask, made.output, last), made.output > 0)
    plain = ng.batch_norm(x, weight=weight, bias=bias, backend="cpu")
    torch.testing.assert_close((made.mean, made.rstd), (plain.mean, plain.rstd), rtol=0, atol=0)

    statistics = made.mean, made.rstd
    by_mask = ng.batch_norm_backward(dy, x, *statistics, mask=made.mask, **given)
    by_values = ng.batch_norm_backward(dy, x, *statistics, shortcut=r, **given)
    dz = torch.where(made.output > 0, dy, torch.zeros((), dtype=dtype))
    assert torch.equal(by_mask.grad_shortcut, dz)
    alone = ng.batch_norm_backward(dz, x, *statistics, weight=weight, backend="cpu")
    for one, other, third in zip(by_mask, by_values, alone, strict=True):
        assert torch.equal(one, other)
        assert third is None or torch.equal(one, third)


def test_what_is_not_wanted_changes_no_bit():
    x, r, dy = (torch.randn(8, 5, 33) for _ in range(3))
    given = {"activation": "silu", "shortcut": r, "backend": "cpu"}
    made = ng.batch_norm(x, **given)
    out = torch.empty_like(x), None, None, None
    alone = ng.batch_norm(x, **given, out=out).output
    assert torch.equal(made.output, alone)
    every = ng.batch_norm_backward(dy, x, made.mean, made.rstd, **given)
    for index in (0, 1, 3):  # the bias alone is summed without the data
        mask = [index == one for one in range(4)]
        one = ng.batch_norm_backward(dy, x, made.mean, made.rstd, **given, output_mask=mask)
        assert torch.equal(one[index], every[index])


def test_in_bounds(stay_in_bounds):
    """Runs that are cut, whole and in parts of vectors; rows of channels."""
    cases = [
        (op.value, {"shape": shape, "shortcut": how, "activation": "relu", "layout": layout})
        for op in (Op.BATCH_NORM, Op.BATCH_NORM_BACKWARD)
        for shape in ((2, 5, 70), (3, 21, 2, 2), (9, 17))
        for how in ("values", "mask")
        for layout in ("contiguous", "channels-last", "sliced")
    ]
    stay_in_bounds({"TASK_ELEMENTS": 32}, "with_shortcut", cases, first=False)
