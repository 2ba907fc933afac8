"""Plans of the copies that operands with other strides need."""

import itertools
import random

import pytest
from cuda_plans import launches

from normgrad.backends.cuda.device import KNOWN
from normgrad.backends.cuda.plan.program import Builder, Ref, copy_of
from normgrad.cli.plan import program_of
from normgrad.core.geometry import joined_axes
from normgrad.core.spec import Op, Spec, TensorSpec, row_major


@pytest.mark.parametrize("seed", range(20))
def test_axes_of_a_copy_are_joined_where_both_sides_allow(seed):
    """The same pairs of offsets in the same order, from as few axes as can be."""
    pick = random.Random(seed)
    shape = tuple(pick.choice((1, 2, 3, 4)) for _ in range(pick.randint(0, 5)))
    dense = row_major(shape)
    reads = tuple(pick.choice((step, step, 0, 2 * step)) for step in dense)
    joined = joined_axes(shape, reads, dense) or [(1, 1, 1)]

    def offsets(sizes, steps):
        every = itertools.product(*(range(size) for size in sizes))
        return [sum(at * step for at, step in zip(place, steps, strict=True)) for place in every]

    sizes, sources, targets = zip(*joined, strict=True)
    assert offsets(sizes, sources) == offsets(shape, reads)
    assert offsets(sizes, targets) == offsets(shape, dense)
    if all(read == step for read, step in zip(reads, dense, strict=True)):
        assert len(joined) == 1


@pytest.mark.parametrize(
    ("shape", "strides", "wide"),
    [
        ((3 << 30,), (1,), True),
        ((1 << 31, 2), (0, 1), True),
        ((1 << 20, 1 << 10), (1 << 40, 1), False),
        ((), (), False),
    ],
)
def test_copies_count_in_as_many_bits_as_they_need(shape, strides, wide):
    tensor = TensorSpec(shape, strides, "float32")
    places = Ref("x", 0, "float32"), Ref("", 0, "float32")
    step = copy_of(*places, shape, strides, row_major(shape))
    given, sizes = dict(step.arguments), dict(step.constants)
    assert sizes["WIDE"] == wide
    if step.kernel == "copy.flat_copy":
        assert given["count"] == tensor.size <= step.grid[0] * sizes["BLOCK"]
        return
    assert given["rows"] * given["cols"] == tensor.size
    assert step.grid[0] * sizes["ROWS"] * sizes["COLS"] >= tensor.size


@pytest.mark.parametrize(
    ("shape", "strides", "kernel", "size"),
    [
        ((4, 6, 5, 7), (210, 35, 7, 1), "flat_copy", 840),
        ((4, 6, 5, 7), (210, 1, 42, 6), "flat_copy", 840),
        ((4, 6, 5, 7), (210, 0, 7, 1), "strided_copy", 665),
        ((4, 6), (1, 5), "strided_copy", 29),
    ],
)
def test_data_at_odd_addresses_are_copied_as_they_lie(shape, strides, kernel, size):
    """In the order of memory, gaps left alone, what is repeated once."""
    x, line = TensorSpec.contiguous(shape, "float32"), TensorSpec.contiguous(shape[1:2], "float32")
    dy = TensorSpec(shape, strides, "float32")
    spec = Spec(op=Op.BATCH_NORM_BACKWARD, dy=dy, x=x, mean=line, rstd=line, dx=x, device="cuda:0")
    builder = Builder(spec, "float32")
    place = builder.move("dy")
    (step,) = builder.steps
    assert step.kernel == f"copy.{kernel}"
    assert builder.used == -(-size * 4 // 256) * 256
    assert (dict(step.arguments)["source"].role, dict(step.arguments)["target"]) == ("dy", place)


def test_an_expanded_gradient_is_copied_by_rows():
    """What the backward of a mean over the sequence gives to layer norm."""
    shape = (4, 16, 64)
    x, line = TensorSpec.contiguous(shape, "float32"), TensorSpec.contiguous((64,), "float32")
    rows = TensorSpec.contiguous((64,), "float32")
    dy = TensorSpec(shape, (64, 0, 1), "float32")
    operands = {"dy": dy, "x": x, "mean": rows, "rstd": rows, "gamma": line, "dx": x}
    spec = Spec(op=Op.LAYER_NORM_BACKWARD, normalized_shape=(64,), device="cuda:0", **operands)
    copy = launches(program_of(spec, KNOWN["h200"]))[0]
    assert copy.kernel == "copy.strided_copy"
    given, sizes = dict(copy.arguments), dict(copy.constants)
    assert (given["rows"], given["cols"], sizes["AXES"]) == (64, 64, 2)
    assert (sizes["UNIT_READ"], sizes["UNIT_WRITE"]) == (True, True)
