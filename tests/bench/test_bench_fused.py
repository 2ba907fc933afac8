"""Rows of fused calls: named apart, counted in streams, and torch's programs are right by them."""

import dataclasses

import pytest

pytest.importorskip("torch")

from normgrad.bench import problems, suites, truth
from normgrad.bench.contender import NotOffered
from normgrad.bench.peers.torch_eager import PEER
from normgrad.bench.record import Row

SMALL = {
    (32, 256, 56, 56): (2, 32, 6, 6),
    (16384, 1600): (32, 80),
    (16, 1024, 1600): (4, 8, 80),
}
ROWS = suites.suite("fused", "cpu")


def test_rows_are_named_apart():
    assert len({one.name for one in ROWS}) == len(ROWS)
    assert len({Row.of(one, "cpu").key for one in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("op", "form", "streams"),
    [
        ("batch_norm", "relu", 2),
        ("batch_norm", "shortcut mask + relu", 3 + 1 / 16),
        ("batch_norm_backward", "shortcut mask + relu", 4 + 1 / 16),
        ("batch_norm_backward", "shortcut + relu", 5),
        ("layer_norm", "residual", 4),
        ("rms_norm_backward", "residual", 4),
        ("group_norm_backward", "silu", 3),
    ],
)
def test_streams(op, form, streams):
    found = [one for one in ROWS if (one.case.op, one.case.form) == (op, form)]
    sixteen = [one for one in found if one.dtype == "bfloat16"]
    assert sixteen
    assert {one.streams for one in sixteen} == {streams}


# Torch's, of bfloat16 data and a float32 weight.
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight:UserWarning")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_an_eager_program_computes_is_right(dtype):
    right = set()
    for one in ROWS:
        groups = 4 if one.case.num_groups > 1 else 1
        case = dataclasses.replace(one.case, shape=SMALL[one.case.shape], num_groups=groups)
        if one.dtype != dtype:
            continue
        problem = problems.make(suites.Workload(case, dtype), "cpu")
        known = truth.truth(problem)
        try:
            found = PEER.prepare(problem).results()
        except NotOffered:
            continue
        for role, want in known.values.items():
            if role == "mask":
                continue
            # It rounds between its operators, and adds up parameter gradients in 16 bits.
            gone = (found[role].double().reshape(want.shape) - want).norm() / want.norm()
            assert gone < (1e-3 if dtype == "float32" else 0.05), (one.name, role, gone)
        right.add(case.form)
    assert {"", "relu", "silu", "residual", "shortcut + relu"} <= right
