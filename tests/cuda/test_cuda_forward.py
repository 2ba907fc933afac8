"""Forward operators on every schedule, in Triton's interpreter; `check` has their cases besides."""

from pathlib import Path

import pytest
from interpreted import interpreted

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.mark.slow(30)
def test_random_planes_in_small_blocks():
    """Teams, rounds, tiles in registers, windows."""
    path = str(Path(__file__).with_name("random_requests.py"))
    resident, _, count = interpreted(path, "33", "forward").split()
    assert int(resident) > int(count) // 2


COLUMNS = """
import itertools
import numpy as np
from host_areas import HostAreas
import normgrad as ng
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.plan import column_cuts
from normgrad.backends.cuda.plan.tiles import Block
from normgrad.backends.cuda.plan.tuned import columns as tuned
from normgrad.backends.cuda.run import interpret
from normgrad.calls import cached_calls, dispatch
from normgrad.core.plan import _make_plan

# Blocks so small that small data have many tiles, parts, pieces and rounds.
tuned.LEAST_ROW_BYTES = 16
tuned.TWO_PASSES_US = 1e9  # they would be taken
column_cuts._blocks = lambda data: (
    Block(1, 512, 6, 128, held=1),
    Block(1, 512, 5, 128, held=2),
    Block(2, 1024, 9, 128, held=3),
)
column_cuts.settle = lambda data, device, _: column_cuts.choose(data, device)
backend.INTERPRETER = device.Device("tiny", 90, 2, 65536, 26 << 10, 2048)
rng = np.random.default_rng(5)
every, run = column_cuts.cuts, interpret.interpret
areas = itertools.cycle([HostAreas(), None])


def resident(program, spec, addresses, workspace, _):
    assert program.strategy == "resident columns"
    run(program, spec, addresses, workspace, next(areas))


interpret.interpret = resident


def forget():
    _make_plan.cache_clear()
    for module in (cached_calls, dispatch):
        for value in vars(module).values():
            getattr(value, "cache_clear", int)()


def last(array):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def kind(cut):
    few = cut.tiles - cut.held <= 5
    return (cut.team > 1, cut.spans > 1, cut.totals_columns, cut.rounds > 1, few)


def compare(shape, groups=None, dtype="f4"):
    x = last((3000 + 3 * rng.standard_normal(shape)).astype(dtype))
    gamma, beta = rng.standard_normal((2, shape[1])).astype("f4")

    def results(backend):
        options = {"weight": gamma, "bias": beta, "backend": backend}
        if groups:
            return ng.group_norm(x, groups, **options)[:3]
        running = np.ones((2, shape[1]), "f4")
        names = dict(zip(("running_mean", "running_var"), running))
        return *ng.batch_norm(x, **names, **options)[:3], *running

    want, seen = results("reference"), []
    column_cuts.cuts = lambda *data: seen.extend(every(*data)) or seen[:1]
    forget()
    results("cuda")
    cuts = {kind(cut): cut for cut in seen if cut.team > 1 or not cut.totals_columns}
    for cut in cuts.values():
        column_cuts.cuts = lambda *data: [cut]
        forget()
        for number, (one, other) in enumerate(zip(results("cuda"), want)):
            near = 1e-3 if dtype == "f2" else 1e-5 if number else 2e-4
            apart = np.abs(one.astype("f8") - other).max()
            assert apart <= near * np.abs(other).max(), (number, cut)
    return len(cuts)


found = compare((57, 72)) + compare((3, 20, 7, 11)) + compare((200, 40), dtype="f2")
found += compare((2, 40, 5, 9), 4) + compare((3, 24, 70), 2) + compare((5, 16, 9), 8)
assert found > 20, found
tuned.MANY_WORDS = tuned.MOST_WORDS = 0  # totals of columns
compare((57, 72))
print("done")
"""


@pytest.mark.slow(40)
def test_columns_in_small_tiles():
    assert interpreted("-c", COLUMNS).strip() == "done"


RING = """
from normgrad import verify
from normgrad.backends.cuda.backend import BACKEND
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.geometry import geometry_of

tuned.FORWARD_RING_BYTES = 0  # short rows too
for op in ("layer_norm", "rms_norm"):
    for case in verify.select(op):
        problem = verify.make_problem(case, "float32", 0)
        if BACKEND.refuses(problem.spec, geometry_of(problem.spec)) is None:
            for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
                assert measured.ok, (case, measured)
print("done")
"""


@pytest.mark.slow(5)
def test_short_rows_in_a_ring():
    assert interpreted("-W", "ignore", "-c", RING).strip() == "done"


IN_PLACE = """
import numpy as np
import normgrad as ng

rng = np.random.default_rng(3)
last = lambda array: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def compare(call, x, *reach, **options):
    want = call(x, *reach, backend="reference", **options)
    mine = x.copy(order="K")
    out = (mine, *(None for one in want[1:3]))
    got = call(mine, *reach, backend="cuda", out=out, **options)
    assert got.output is mine
    np.testing.assert_allclose(mine, want.output, rtol=1e-4, atol=1e-4)


for dtype in ("f4", "f8"):
    for order in (np.ascontiguousarray, last):
        x = order(rng.standard_normal((4, 6, 5, 7)).astype(dtype))
        compare(ng.batch_norm, x)
        compare(ng.group_norm, x, 3)
    for columns in (40, 9001, 40000):
        compare(ng.layer_norm, rng.standard_normal((5, columns)).astype(dtype), columns)
print("done")
"""


def test_y_over_x():
    assert interpreted("-c", IN_PLACE).strip() == "done"


# What a fused activation will be: a formula, of which no schedule knows.
ACTIVATED = """
import numpy as np
import triton
import triton.language as tl
from dataclasses import replace
import normgrad as ng
from normgrad.backends.cuda import formulas
from normgrad.backends.cuda.backend import BACKEND

rng = np.random.default_rng(3)
last = lambda array: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


@triton.jit
def open_ones(t, scale, beta):
    return tl.maximum(t * scale + beta, 0.0)


for name in ("norm", "rms_norm"):
    formulas._FORMULAS[name] = replace(formulas._FORMULAS[name], element=open_ones)


def compare(call, x, *reach, **options):
    want = np.maximum(call(x, *reach, backend="reference", **options).output, 0)
    got = call(x, *reach, backend="cuda", **options).output
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


for dtype in ("f4", "f8"):  # in float64 all data are read twice
    for order in (np.ascontiguousarray, last):
        x, w = order(rng.standard_normal((4, 6, 5, 8)).astype(dtype)), rng.standard_normal(6)
        compare(ng.batch_norm, x, weight=w.astype("f4"), bias=w[::-1].astype("f4"))
        compare(ng.group_norm, x, 3, weight=w.astype("f4"))
    for columns in (40, 20000, 40000):
        x = rng.standard_normal((5, columns)).astype(dtype)
        compare(ng.layer_norm, x, columns)
        compare(ng.rms_norm, x, columns)
print("done")
"""


@pytest.mark.slow(10)
def test_an_activation_is_a_formula_alone():
    assert interpreted("-c", ACTIVATED).strip() == "done"
