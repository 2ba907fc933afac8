"""The judge of fused forms: the formula in the compute type passes, wrong ones are caught."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from normgrad import verify
from normgrad.arrays import host_memory
from normgrad.backends.reference import activations
from normgrad.backends.reference.backend import evaluate
from normgrad.core.operators import DATA

CASES = tuple(case for case in verify.CASES if case.fused)
DTYPES = ("float16", "float32")


def without(role):
    return lambda spec, of: (
        replace(spec, **{role: None}),
        {name: one for name, one in of.items() if name != role},
    )


def with_option(**options):
    return lambda spec, of: (replace(spec, **options), of)


def changed(role, change):
    return lambda spec, of: (spec, of | {role: change(of[role])} if role in of else of)


def shortcut_first(spec, of):
    """A residual of the norm's input in the place of one of its output."""
    if "shortcut" not in of or "dy" in of:
        return spec, of
    rest = {name: one for name, one in of.items() if name != "shortcut"}
    return replace(spec, shortcut=None, mask=None), rest | {"x": of["x"] + of["shortcut"]}


def reversed_bits(mask):
    bits = activations.unpacked(mask, 8 * mask.shape[-1]).reshape(*mask.shape, 8)
    return activations.packed(bits[..., ::-1]).reshape(mask.shape)


# How many (case, type) pairs must catch each mistake, and one that must be among them.
CAUGHT = {
    "no-activation": (500, "batch_norm/gelu", with_option(activation=None, mask=None)),
    "relu-for-all": (550, "layer_norm/hardswish", with_option(activation="relu")),
    "gelu-for-all": (640, "layer_norm/gelu_tanh", with_option(activation="gelu")),
    "usual-slope": (8, "layer_norm_backward/leaky_relu", with_option(negative_slope=0.01)),
    "bias-forgotten": (470, "batch_norm_backward/silu", without("beta")),
    "sum-forgotten": (30, "layer_norm_backward/residual", without("dsum")),
    "residual-forgotten": (30, "rms_norm/residual", changed("residual", np.zeros_like)),
    "shortcut-forgotten": (110, "batch_norm/shortcut-None", changed("shortcut", np.zeros_like)),
    "shortcut-before-the-norm": (85, "batch_norm_elemt/shortcut-silu", shortcut_first),
    "bits-reversed": (12, "batch_norm_backward/shortcut-relu-mask", changed("mask", reversed_bits)),
    "the-next-sample's": (
        80,
        "group_norm/each-sample",
        changed("gamma", lambda gamma: np.roll(gamma, 1, axis=0)),
    ),
}


@functools.cache
def known(case, dtype):
    problem = verify.make_problem(case, dtype)
    return problem, verify.expected(problem)


def computed(problem, mistake=None):
    """Results in float32, as kernels make them, or wrong in one way."""
    spec, geometry = problem.spec, problem.geometry
    of = {}
    for role, host in problem.operands.items():
        values = host.values
        if spec.operator.axes == "groups" and role in DATA:
            values = np.moveaxis(values, problem.case.channel_axis, 1)
        values = values if role in ("counter", "mask") else values.reshape(geometry.shape_of(role))
        of[role] = values.astype(np.float32)
    wrong, of = mistake(spec, of) if mistake else (spec, of)
    with np.errstate(all="ignore"):
        values = evaluate(wrong, geometry, of)
    results = {}
    for role in problem.measured:
        tensor = spec.present(role)
        value = values.get(role, np.zeros(tensor.shape))
        value = np.broadcast_to(value, geometry.shape) if role in DATA else value
        narrow = host_memory.narrow(np.float64(value).reshape(tensor.shape), tensor.dtype)
        results[role] = host_memory.widen(narrow, tensor.dtype)
        if role in DATA and spec.operator.axes == "groups":
            results[role] = np.moveaxis(results[role], 1, problem.case.channel_axis)
    return results


def test_the_formula_in_float32_passes_every_case():
    for case in CASES:
        for dtype in DTYPES:
            problem, truth = known(case, dtype)
            for measured in verify.judge(problem, computed(problem), truth):
                assert measured.ok, (case.name, dtype, measured)


@pytest.mark.parametrize("wrong", CAUGHT)
def test_a_wrong_one_is_caught(wrong):
    least, named, mistake = CAUGHT[wrong]
    found = set()
    for case in CASES:
        for dtype in DTYPES:
            problem, truth = known(case, dtype)
            results = computed(problem, mistake)
            if not all(one.ok for one in verify.judge(problem, results, truth)):
                found.add(f"{case.name} {dtype}")
    print(f"{wrong}: caught by {len(found)} of {len(CASES) * len(DTYPES)}")
    assert len(found) >= least
    assert named in {name.partition(" ")[0] for name in found}
