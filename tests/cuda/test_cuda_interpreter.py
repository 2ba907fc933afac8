"""The kernels in Triton's interpreter against the float64 truth, on a machine without a GPU.

Each run has a process of its own: what a kernel is gets decided when Triton is imported. Kernels
whose blocks wait for each other run in phases, all sums before all gradients; the device that is
planned for has few multiprocessors, so that small cases have teams and loops too.
"""

import json
from pathlib import Path

import pytest
from interpreted import interpreted

from normgrad import verify
from normgrad.backends.base import unknown_to_fast
from normgrad.backends.cuda.plan.forms import TAKEN
from normgrad.core.spec import Op

pytest.importorskip("torch")
pytest.importorskip("triton")


def check(op, dtype, tmp_path, codes=(0,)):
    """The rows of ``normgrad check``."""
    path = tmp_path / "report.json"
    words = ["check", "--backend", "cuda", "--op", op, "--dtype", dtype, "--json", str(path)]
    interpreted("-m", "normgrad", *words, codes=codes)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == len(verify.select(op))
    return rows


SLOW = pytest.mark.slow(6)
QUICK = [Op.BATCH_NORM_BACKWARD, Op.LAYER_NORM_BACKWARD, Op.GROUP_NORM_BACKWARD, Op.LAYER_NORM]
SWEPT = [(op.value, "float32") for op in Op if unknown_to_fast(op, TAKEN) is None]
SWEPT += [("layer_norm_backward", "float16"), ("batch_norm_elemt_backward", "float16")]
SWEPT += [("batch_norm_elemt_backward", "float64")]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        one if one in [(op, "float32") for op in QUICK] else pytest.param(*one, marks=SLOW)
        for one in SWEPT
    ],
)
def test_every_case_is_within_its_budget(op, dtype, tmp_path):
    for row in check(op, dtype, tmp_path):
        assert row["verdict"] == "PASS", row


@pytest.mark.slow(6)
def test_both_interfaces_are_within_their_bounds():
    """Also what no public function has: DeepNorm, a scaled Swish, a biased running variance."""
    script = Path(__file__).parent.parent / "interfaces" / "judged_calls.py"
    assert interpreted(str(script), "2") == "done\n"


@pytest.mark.slow(11)
@pytest.mark.parametrize("op", ["batch_norm_backward", "layer_norm_backward"])
def test_bfloat16_within_twice_the_budget(op, tmp_path):
    """The interpreter cuts float32 off where a GPU rounds to the nearest: one unit, not half."""
    rows = check(op, "bfloat16", tmp_path, codes=(0, 1))
    shares = {row["case"]: row["share"] for row in rows}
    assert all(share is not None and share <= 2.0 for share in shares.values()), shares
    assert max(shares.values()) > 1.0, "the interpreter rounds now: check it as the other types"


IN_PLACE = """
import numpy as np
from normgrad import functional

rng = np.random.default_rng(3)


def compare(name, dtype, shape, statistics, *reach):
    call = getattr(functional, f"{name}_norm_backward")
    x = (100 + 3 * rng.standard_normal(shape)).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    mean = np.full(statistics, 100, dtype)
    rstd = np.full(statistics, 0.3, dtype)
    weights = reach[0] if name == "layer" else (shape[1],)
    gamma = (1 + rng.standard_normal(weights)).astype(dtype)
    small = [np.full(weights, np.nan, dtype) for _ in range(2)]

    def run(dy, x, dx, backend):
        out = (dx, *(one.copy() for one in small))
        return call(dy, x, mean, rstd, *reach, weight=gamma, out=out, backend=backend)[:3]

    want = run(dy, x, np.full_like(x, np.nan), "reference")
    for over in ("x", "dy"):
        mine = {"x": x.copy(), "dy": dy.copy()}
        got = run(mine["dy"], mine["x"], mine[over], "cuda")
        assert got[0] is mine[over]
        for one, other in zip(got, want):
            scale = np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * scale)


compare("layer", "f4", (3, 13001), (3,), (13001,))  # parameters take a pass of their own
compare("layer", "f4", (45, 768), (45,), (768,))  # rows come through a ring
for dtype in ("f4", "f8"):  # in float64 all data are read twice
    compare("layer", dtype, (3, 96), (3,), (96,))
    compare("batch", dtype, (4, 6, 35), (6,))
    compare("group", dtype, (2, 6, 70), (2 * 3,), 3)
print("done")
"""


def test_dx_over_x_and_over_dy():
    assert interpreted("-c", IN_PLACE).strip() == "done"


MIXED = """
import numpy as np
from normgrad import functional

rng = np.random.default_rng(5)
orders = (np.ascontiguousarray, lambda a: np.moveaxis(np.moveaxis(a, 1, 3).copy(), 3, 1))
for shape, dtype in (((2, 70, 9, 11), "f4"), ((1, 8, 8, 8), "f2"), ((3, 65, 1, 64), "f8")):
    x, dy = ((1 + rng.standard_normal(shape)).astype(dtype) for _ in range(2))
    mean, rstd = (rng.random(shape[1]).astype("f4") for _ in range(2))
    for of_x in orders:
        found = []
        for of_dy in orders:
            for of_dx in orders:
                dx = of_dx(np.full(shape, np.nan, dtype))
                call = functional.batch_norm_backward
                data = of_dy(dy), of_x(x)
                call(*data, mean, rstd, out=(dx, None, None), output_mask=(True, False, False),
                     backend="cuda")
                found.append(dx)
        assert all((one == found[0]).all() for one in found)
print("done")
"""


def test_orders_of_dy_and_dx_change_no_bits():
    assert interpreted("-c", MIXED).strip() == "done"


STAYING = """
import numpy as np
from host_areas import HostAreas
from normgrad import functional
from normgrad.backends.cuda import backend

rng = np.random.default_rng(4)
areas = backend.BACKEND.interpreted_areas = HostAreas()
shapes = ((5, 13001, "f4"), (7, 13001, "f4"), (2, 12800, "f4"), (13, 9000, "f2"), (11, 1536, "f2"))
for rows, cols, dtype in shapes:
    x = (100 + 3 * rng.standard_normal((rows, cols))).astype(dtype)
    dy = rng.standard_normal((rows, cols)).astype(dtype)
    mean, rstd = np.full(rows, 100, "f4"), np.full(rows, 0.3, "f4")
    gamma = rng.standard_normal(cols).astype(dtype)
    call = functional.layer_norm_backward
    got, want = (
        call(dy, x, mean, rstd, cols, weight=gamma, backend=b)[:3] for b in ("cuda", "reference")
    )
    for one, other in zip(got, want):
        # Half a unit of float16, where the truth is rounded too.
        near = 2e-5 if dtype == "f4" else 6e-4
        assert np.abs(one.astype("f8") - other).max() <= near * np.abs(other).max()
assert areas.taken == 5, areas.taken
print("done")
"""


@pytest.mark.slow(9)
def test_rows_in_teams_clear_the_words_of_the_call_before():
    assert interpreted("-c", STAYING).strip() == "done"


FOLDED = """
from normgrad import verify
from normgrad.backends.cuda.plan import apply
from normgrad.backends.cuda.plan import sums
from normgrad.backends.cuda.plan.tuned import columns as tuned
from normgrad.backends.base import unknown_to_fast
from normgrad.core.spec import Op

found = []
fold = sums.fold
sums.fold = lambda *given: (made := fold(*given), found.append(made[1]))[0]
apply.fold = sums.fold
tuned.TWO_PASSES_US = -1e9
PLANS = (
    (Op.BATCH_NORM_BACKWARD, {}),
    (Op.BATCH_NORM_BACKWARD, {"training": False}),
    (Op.BATCH_NORM_REDUCE_BACKWARD, {}),
    (Op.BATCH_NORM_ELEMT_BACKWARD, {}),
    (Op.GROUP_NORM_BACKWARD, {"num_groups": 1}),
    (Op.GROUP_NORM_BACKWARD, {"num_groups": 3}),
)
# Rows that fold for sums of 64 columns and elements of 256, with vectors of all widths.
SHAPES = {
    (1, 3, 16, 16): {64, 256},
    (3, 6, 16, 8): {32, 128},
    (2, 24, 8, 4): {8, 32},
    (1, 96, 8, 8): {2, 8},
    (1, 33, 16, 16): {64, 256},
    (2, 96, 3, 2): {2, 1},  # too few rows for elements
}
for shape, times in SHAPES.items():
    for op, options in PLANS:
        for dtype in ("float32", "float16"):
            case = verify.Case(id="folded", op=op, shape=shape, layout="channels-last", **options)
            problem = verify.make_problem(case, dtype, 0)
            found.clear()
            for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
                assert measured.ok, (shape, op, dtype, measured)
            assert set(found) <= times, (shape, op, found)
            if dtype == "float16" and op is Op.BATCH_NORM_BACKWARD and not options:
                assert set(found) == times, (shape, found)
            if dtype == "float16" or shape[1] % 4:  # else elements are taken as they lie
                assert found, (shape, op)
print("done")
"""


@pytest.mark.slow(5)
def test_rows_of_few_channels_side_by_side():
    assert interpreted("-c", FOLDED).strip() == "done"


MANY_SAMPLES = """
import contextlib
from triton.runtime import interpreter
from normgrad import verify
from normgrad.backends.cuda.run import interpret
from normgrad.backends.cuda.plan import joins
from normgrad.core.plan import make_plan
from normgrad.backends.base import unknown_to_fast
from normgrad.core.spec import Op

joins.THREADS = 1  # tiles of 32 parts
case = verify.Case(id="many", op=Op.GROUP_NORM_BACKWARD, shape=(53, 48, 4), num_groups=2)
problem = verify.make_problem(case, "float32", 0)
before = interpreter.interpreter_builder.options, interpreter._patch_lang
results = verify.run_backend(problem, "cuda")
for measured in verify.judge(problem, results):
    assert measured.ok, measured
# What is left out of Triton's interpreter has no effect, and is back after a launch.
assert before == (interpreter.interpreter_builder.options, interpreter._patch_lang)
interpret._nothing_in_vain = contextlib.nullcontext
for role, slowly in verify.run_backend(problem, "cuda").items():
    assert slowly.tobytes() == results[role].tobytes(), role
last = dict(make_plan(problem.spec, "cuda").config.steps[-1].constants)
assert last["JOIN_STEPS"] > 1, last
print("done")
"""


@pytest.mark.slow(4)
def test_more_partials_than_a_block_takes_at_once():
    assert interpreted("-c", MANY_SAMPLES).strip() == "done"


COLUMNS = """
import itertools
import numpy as np
from host_areas import HostAreas
from normgrad import functional
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.run import interpret
from normgrad.backends.cuda.plan import column_cuts
from normgrad.backends.cuda.plan.tiles import Block
from normgrad.backends.cuda.plan.tuned import columns as tuned
from normgrad.calls import cached_calls, dispatch
from normgrad.core import plan

# Blocks so small that small data have many tiles, parts, pieces and rounds.
tuned.LEAST_ROW_BYTES = 16
tuned.TWO_PASSES_US = 1e9  # they would be taken
tuned.FINE_TILES, tuned.FINE_WARPS, tuned.FINE_BYTES = 12, 2, 512
column_cuts._blocks = lambda data: (
    Block(1, 512, 6, 128, held=1),
    Block(1, 512, 5, 128, held=2),
    Block(2, 1024, 9, 128, held=3),
    Block(2, 512, 9, 128, held=3, most=12),
)
backend.INTERPRETER = device.Device("tiny", 90, 2, 65536, 26 << 10, 2048)
rng = np.random.default_rng(5)
every, run = column_cuts.cuts, interpret.interpret
# Cuts of the samples there are: `test_cuda_batch` looks at those for any number.
column_cuts.settle = lambda data, device, _: column_cuts.choose(data, device)
GUARD = 4096


areas = itertools.cycle([HostAreas(), None])


def guarded(program, spec, addresses, workspace, _):
    assert program.strategy == "resident columns"
    memory = np.full(program.workspace_bytes + 2 * GUARD, 0x5A, np.uint8)
    run(program, spec, addresses, memory.ctypes.data + GUARD, next(areas))
    assert (memory[:GUARD] == 0x5A).all() and (memory[-GUARD:] == 0x5A).all(), program


interpret.interpret = guarded


def compare(shape, groups, wanted, dtype="f4"):
    channels, samples = shape[1], shape[0]
    size = channels if groups is None else samples * groups
    last = lambda array: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
    x = last((5 + 3 * rng.standard_normal(shape)).astype(dtype))
    dy = last(rng.standard_normal(shape).astype(dtype))
    mean = (5 + 0.1 * rng.standard_normal(size)).astype("f4")
    rstd = (0.3 + 0.01 * rng.standard_normal(size)).astype("f4")
    gamma = rng.standard_normal(channels).astype("f4")

    def results(backend):
        small = [np.full(channels, np.nan, "f4") for _ in range(2)]
        out = (last(np.full(shape, np.nan, dtype)), *small)
        if groups is None:
            call = functional.batch_norm_backward
            return call(dy, x, mean, rstd, weight=gamma, out=out, backend=backend)[:3]
        call = functional.group_norm_backward
        return call(dy, x, mean, rstd, groups, weight=gamma, out=out, backend=backend)[:3]

    want = results("reference")
    seen = []
    column_cuts.cuts = lambda *data: seen.extend(every(*data)) or seen[:1]
    forget()
    results("cuda")
    assert len(seen) >= len(wanted)
    for number, kind in enumerate(wanted):
        cut = next((one for one in reversed(seen) if kind(one)), None)
        assert cut, (shape, number)
        column_cuts.cuts = lambda *data: [cut]
        forget()
        for one, other in zip(results("cuda"), want):
            near = 2e-5 if one.dtype == "f4" else 6e-4
            assert np.abs(one.astype("f8") - other).max() <= near * np.abs(other).max(), cut


def forget():
    # Plans and calls that are known.
    for module in (cached_calls, dispatch, plan):
        for value in vars(module).values():
            getattr(value, "cache_clear", int)()


streams = lambda cut: cut.fixed > 0 and cut.held > 0 and cut.parts > 1
whole = lambda cut: not cut.streams and cut.parts > 1
pieces = lambda cut: cut.spans > 1
# Tiles in registers, the others unrolled or in a loop; more tiles than shared memory has room for.
held = lambda cut: whole(cut) and cut.held > 0 and cut.rounds > 1
few = lambda cut: held(cut) and cut.tiles - cut.held <= 5
many = lambda cut: held(cut) and cut.tiles - cut.held > 5
full = lambda cut: held(cut) and cut.tiles > cut.depth
again = lambda cut: streams(cut) and cut.rounds > 1
alike = lambda cut: again(cut) and cut.whole and cut.l2_tiles > 0
# The next slab is asked for when the sums are published, or the L2 cache is to fetch it then.
late = lambda cut: held(cut) and cut.requests_after_publish
fetched = lambda cut: held(cut) and cut.l2_tiles > 0
# The place of a tile goes to a tile of one slab, or (few of them) of one of two.
last_of = lambda cut: (cut.tiles - 1 + cut.depth) // cut.tiles
one = lambda cut: held(cut) and (cut.held + cut.depth) // cut.tiles == last_of(cut)
two = lambda cut: held(cut) and (cut.held + cut.depth) // cut.tiles < last_of(cut)
compare((57, 72), None, (streams, few))
compare((350, 40), None, (many, again))
compare((350, 40), None, (one, two, many, again), "f2")
for dtype in ("f4", "f2"):
    compare((350, 40), None, (late,), dtype)
    compare((380, 40), None, (fetched,), dtype)
    compare((3, 16, 600), 2, (alike,), dtype)
compare((3, 24, 330), 2, (late,))
compare((3, 20, 7, 11), None, (whole,))
compare((2, 40, 5, 9), 4, (streams, pieces))
compare((2, 24, 40), 2, (lambda cut: whole(cut) and not cut.held, pieces))
compare((3, 24, 70), 2, (few, full))
compare((5, 16, 9), 8, (lambda cut: cut.team == 1,))
tuned.MANY_WORDS = tuned.MOST_WORDS = 0
totals = [lambda cut, kind=kind: cut.totals_columns > 1 and kind(cut) for kind in (streams, few)]
compare((57, 72), None, totals)
print("done")
"""


@pytest.mark.slow(90)
def test_columns_in_many_small_tiles():
    """With bytes around the workspace that must stay as they are."""
    assert interpreted("-c", COLUMNS).strip() == "done"


SMALL_IMAGES = """
import numpy as np
from normgrad import functional
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.run import interpret
from normgrad.backends.cuda.plan import plane_blocks
from normgrad.backends.cuda.plan.tiles import Block

# Lines of 64 vectors: few images make many tiles, teams and rounds.
line = Block(2, 1024, 4, 128, held=2, most=5, ahead=True)
plane_blocks._flat_blocks = lambda *_: ((line, 1), (line, 1 << 30))
backend.INTERPRETER = device.Device("tiny", 90, 3, 65536, 24 << 10, 2048)
rng = np.random.default_rng(6)
run = interpret.interpret
seen = []


def watched(program, *given):
    step = program.steps[-1]
    seen.append(dict(step.constants) | dict(step.arguments))
    run(program, *given)


interpret.interpret = watched


def compare(shape, dtype, **wanted):
    x = (50 + 3 * rng.standard_normal(shape)).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    mean, gamma = (50 + rng.standard_normal(shape[1]).astype("f4") for _ in range(2))
    rstd = (0.3 + 0.05 * rng.standard_normal(shape[1])).astype("f4")

    def results(backend):
        small = [np.full(shape[1], np.nan, "f4") for _ in range(2)]
        out = (np.full(shape, np.nan, dtype), *small)
        call = functional.batch_norm_backward
        return call(dy, x, mean, rstd, weight=gamma, out=out, backend=backend)[:3]

    for one, other in zip(results("cuda"), results("reference")):
        one, other = one.astype("f8"), other.astype("f8")
        budget = 2e-5 if dtype == "f4" else 2e-3
        assert np.abs(one - other).max() <= budget * np.abs(other).max(), shape
    assert wanted.items() <= seen[-1].items(), (shape, seen[-1])


# Channels of one plane and planes of one line; teams of several blocks; one row left over.
compare((5, 12, 7, 7), "f4", BLOCK_CHANNELS=4, PLANE=196, SOLO=True, REGISTER_TILES=1)
compare((5, 48, 7, 7), "f4", PLANE=196, SOLO=True, REGISTER_TILES=2, CHUNKS=5, DEPTH=4, teams=6)
sizes = {"REGISTER_TILES": 2, "CHUNKS": 5, "DEPTH": 4}
compare((19, 36, 5, 5), "f4", BLOCK_CHANNELS=4, PLANE=100, team=2, **sizes)
compare((17, 32, 2, 2), "f2", BLOCK_CHANNELS=16, PLANE=64)
compare((60, 40, 3, 3), "f2", BLOCK_CHANNELS=8, PLANE=72, team=2, REGISTER_TILES=2)
compare((50, 7, 6, 6), "f4", BLOCK_CHANNELS=1, PLANE=36, team=2, REGISTER_TILES=2)
compare((13, 3, 10, 5), "f2", BLOCK_CHANNELS=1, PLANE=50, ALIGN=2)
print("done")
"""


@pytest.mark.slow(15)
def test_planes_of_small_images_side_by_side():
    assert interpreted("-c", SMALL_IMAGES).strip() == "done"


@pytest.mark.slow(60)
def test_random_requests_on_small_devices():
    path = Path(__file__).with_name("random_requests.py")
    resident, _, count = interpreted(str(path), "44").split()
    assert int(resident) > int(count) // 2


@pytest.mark.slow(15)
def test_offsets_and_counts_beyond_32_bits():
    checks = Path(__file__).with_name("beyond_32_bits.py")
    quiet = ("-p", "no:cacheprovider", "-o", "filterwarnings=ignore::DeprecationWarning")
    assert "15 passed" in interpreted("-m", "pytest", "-q", "--noconftest", *quiet, str(checks))


EXPANDED = """
import numpy as np
from normgrad import functional

rng = np.random.default_rng(3)
last = lambda array: np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def compare(call, *given, **options):
    found, want = (call(*given, backend=one, **options)[:3] for one in ("cuda", "reference"))
    for one, other in zip(found, want):
        scale = max(1, np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * scale)


def some(*shape):
    return (1 + rng.random(shape)).astype("f4")


shape = (3, 6, 5, 7)
# Repeated along all axes, those of images and pixels, all but the samples', the first two.
for axes in ((1, 1, 1, 1), (1, 6, 1, 1), (3, 1, 1, 1), (1, 1, 5, 7)):
    dy = np.broadcast_to(some(*axes), shape)
    for order in (np.ascontiguousarray, last):
        x, gamma = order(some(*shape)), some(6)
        compare(functional.batch_norm_backward, dy, x, some(6), some(6), weight=gamma)
        compare(functional.group_norm_backward, dy, x, some(6), some(6), 2, weight=gamma)
    row = np.broadcast_to(dy[0, 0, 0], (9, 7))
    compare(functional.layer_norm_backward, row, some(9, 7), some(9), some(9), 7)
print("done")
"""


@pytest.mark.slow(10)
def test_operands_that_repeat_what_they_have():
    assert interpreted("-c", EXPANDED).strip() == "done"
