"""The kernels in Triton's interpreter against the float64 truth, on a machine without a GPU.

Each run has a process of its own: what a kernel is gets decided when Triton is imported. Kernels
whose blocks wait for each other run in two phases, all sums before all gradients; the device that
is planned for has two multiprocessors, so that small cases have teams and loops too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import normgrad
from normgrad import verify
from normgrad.spec import Op

pytest.importorskip("torch")
pytest.importorskip("triton")
SOURCE = str(Path(normgrad.__file__).parent.parent)


def interpreted(*arguments, codes=(0,)):
    """Run Python with Triton's interpreter."""
    folders = os.pathsep.join([SOURCE, str(Path(__file__).parent)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": folders}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode in codes, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def check(op, dtype, tmp_path, codes=(0,)):
    """The rows of ``normgrad check``."""
    path = tmp_path / "report.json"
    words = ["check", "--backend", "cuda", "--op", op, "--dtype", dtype, "--json", str(path)]
    interpreted("-m", "normgrad", *words, codes=codes)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    assert len(rows) == len(verify.select(op))
    return rows


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *((op.value, "float32") for op in Op),
        ("layer_norm", "float16"),
        ("batch_norm_elemt", "float16"),
        ("batch_norm_elemt", "float64"),
    ],
)
def test_every_case_is_within_its_budget(op, dtype, tmp_path):
    for row in check(op, dtype, tmp_path):
        assert row["verdict"] == "PASS", row


@pytest.mark.parametrize("op", ["batch_norm", "layer_norm"])
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


def compare(name, dtype, shape, statistics, *before, **options):
    call = getattr(functional, f"{name}_norm_backward")
    x = (100 + 3 * rng.standard_normal(shape)).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    mean = np.full(statistics, 100, dtype)
    rstd = np.full(statistics, 0.3, dtype)
    weights = before[0] if before else (shape[1],)
    gamma = (1 + rng.standard_normal(weights)).astype(dtype)
    small = [np.full(weights, np.nan, dtype) for _ in range(2)]

    def run(dy, x, dx, backend):
        out = (dx, *(one.copy() for one in small))
        if name == "batch":
            return call(dy, x, gamma, None, None, mean, rstd, out=out, backend=backend)
        return call(dy, x, *before, mean, rstd, gamma, out=out, backend=backend, **options)

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
    compare("group", dtype, (2, 6, 70), (2 * 3,), num_groups=3)
print("done")
"""


def test_dx_over_x_and_over_dy():
    assert interpreted("-c", IN_PLACE).strip() == "done"


STAYING = """
import numpy as np
from host_mail import HostMail
from normgrad import functional
from normgrad.backends.cuda import backend

rng = np.random.default_rng(4)
mail = backend.BACKEND.interpreted_mail = HostMail()
shapes = ((5, 13001, "f4"), (7, 13001, "f4"), (2, 12800, "f4"), (13, 9000, "f2"), (11, 1536, "f2"))
for rows, cols, dtype in shapes:
    x = (100 + 3 * rng.standard_normal((rows, cols))).astype(dtype)
    dy = rng.standard_normal((rows, cols)).astype(dtype)
    mean, rstd = np.full(rows, 100, "f4"), np.full(rows, 0.3, "f4")
    gamma = rng.standard_normal(cols).astype(dtype)
    call = functional.layer_norm_backward
    got, want = (call(dy, x, cols, mean, rstd, gamma, backend=b) for b in ("cuda", "reference"))
    for one, other in zip(got, want):
        # Half a unit of float16, where the truth is rounded too.
        near = 2e-5 if dtype == "f4" else 6e-4
        assert np.abs(one.astype("f8") - other).max() <= near * np.abs(other).max()
assert mail.taken == 5, mail.taken
print("done")
"""


def test_rows_in_teams_clear_the_words_of_the_call_before():
    assert interpreted("-c", STAYING).strip() == "done"


AHEAD = """
from normgrad import verify
from normgrad.backends.cuda import rows_plan
from normgrad.plan import make_plan
from normgrad.spec import Op

rows_plan._ROUNDS = 0
for shape in ((803, 64), (301, 512), (7, 8192)):
    case = verify.Case(id="ahead", op=Op.LAYER_NORM, shape=shape)
    problem = verify.make_problem(case, "float32", 0)
    for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
        assert measured.ok, (shape, measured)
    kernel = next(s for s in make_plan(problem.spec, "cuda").config.steps if "layer" in s.kernel)
    assert dict(kernel.constants)["AHEAD"], shape
print("done")
"""


def test_rows_that_come_to_registers_ahead():
    assert interpreted("-c", AHEAD).strip() == "done"


RING = """
import dataclasses
import numpy as np
from host_mail import HostMail
from normgrad import functional
from normgrad.backends.cuda import backend, device, row_ring_plan
from normgrad.backends.cuda.kernels import bulk_stand_in, row_ring


def copy_inside(to, source, count):
    starts = [one.ctypes.data for one in (wide, dy)]
    ends = [one.ctypes.data + one.nbytes for one in (wide, dy)]
    assert any(a <= source and source + count <= b for a, b in zip(starts, ends)), "past the data"
    copy(to, source, count)


copy, bulk_stand_in._copy = bulk_stand_in._copy, copy_inside
called = []
start = row_ring.start_barriers
row_ring.start_barriers = lambda *given: (called.append(1), start(*given))[1]
rng = np.random.default_rng(6)
mail = HostMail()
backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, multiprocessors=2)
row_ring_plan._NOTED = 256  # statistics are fetched more than once for 2100 rows
# (rows, columns, room between rows): full sets and others, blocks of 8, 4 and 2 warps; then the
# last tile in part, rows in a warp or in parts of one, whole and cut, sets that start anywhere and
# data that end there.
shapes = (
    (70, 2048, 0), (71, 256, 0), (37, 640, 16), (5, 1280, 8),
    (64, 768, 0), (19, 5120, 0), (2100, 256, 0),
    (21, 1600, 0), (13, 5000, 8), (90, 128, 0), (1100, 40, 0), (76, 300, 0), (36, 444, 0),
    (300, 20, 0), (256, 4, 0), (72, 130, 0), (45, 320, 16), (96, 33, 0),
    (40, 1023, 0), (24, 2001, 0), (16, 301, 0), (8, 5003, 0),
    (13, 1023, 0), (71, 301, 0), (5, 2001, 0), (3, 1, 0), (37, 130, 0),
)
for number, (rows, cols, gap) in enumerate(shapes):
    for dtype in ("f4", "f2"):
        if dtype == "f4" and cols == 256:
            continue
        wide = (100 + 3 * rng.standard_normal((rows, cols + gap))).astype(dtype)
        x, dy = wide[:, :cols], rng.standard_normal((rows, cols)).astype(dtype)
        kind = "f2" if number in (0, 5) else "f4"  # of statistics
        mean, rstd = np.full(rows, 100, kind), rng.uniform(0.2, 0.4, rows).astype(kind)
        gamma = None if number == 1 else rng.standard_normal(cols).astype(dtype)
        mask = (True, number != 2, number != 3)
        backend.BACKEND.interpreted_mail = mail if number % 2 else None
        near = 2e-5 if dtype == "f4" else 6e-4  # half a unit of float16
        called.clear()
        got, want = (
            functional.layer_norm_backward(
                dy, x, cols, mean, rstd, gamma, output_mask=mask, backend=name
            )
            for name in ("cuda", "reference")
        )
        assert called, (rows, cols, dtype)
        for one, other in zip(got, want):
            assert (one is None) == (other is None)
            if one is not None:
                gone = np.abs(one.astype("f8") - other).max()
                assert gone <= near * np.abs(other).max(), (rows, cols, dtype, gone)
print("done")
"""


def test_rows_that_come_through_a_ring():
    assert interpreted("-c", RING).strip() == "done"


GROUPS = """
import dataclasses
from host_mail import HostMail
from normgrad import verify
from normgrad.backends.cuda import backend, device, row_ring_plan
from normgrad.plan import make_plan
from normgrad.spec import Op

mail = HostMail()
backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, multiprocessors=2)
row_ring_plan._NOTED = 128  # statistics are fetched more than once for 70 samples
# (shape, groups): slabs in a warp, in parts of one and across a block; groups that fill no set,
# instance norm, channels of more than 256 pixels, a sample for each block and many; then sets
# that start anywhere, and no pixels, with several samples in a set, which they may not fill; data
# that end anywhere.
shapes = (
    ("70x16x7x7", 4), ("3x24x7x7", 6), ("5x10x4x4", 5), ("9x64x5x5", 2), ("4x6x20x20", 2),
    ("2x8x33x10", 2), ("70x8x2x4", 8), ("6x7x4x4", 7), ("3x3x32x32", 3), ("11x4x30x30", 4),
    ("2x40x6x6", 40), ("1x16x3x3", 4), ("8x20x17x17", 4), ("16x15x7x7", 3), ("8x5x9x9", 5),
    ("70x64", 4), ("71x64", 4), ("48x48", 6), ("33x16", 16), ("9x512", 2),
    ("7x3x5x7", 3), ("331x6x1x3", 3), ("21x15", 5), ("5x27x2x2", 27), ("3x2x17x15", 1),
)
for number, (text, groups) in enumerate(shapes):
    shape = tuple(map(int, text.split("x")))
    mask = {2: (True, False, True), 3: (True, False, False), 7: (True, True, False)}
    for dtype in ("float32", "float16"):
        case = verify.Case(
            id=text, op=Op.GROUP_NORM, shape=shape, num_groups=groups, mask=mask.get(number, ()),
            weight=number != 4,
        )
        problem = verify.make_problem(case, dtype, number)
        backend.BACKEND.interpreted_mail = mail if number % 2 else None
        for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
            assert measured.ok, (text, groups, dtype, measured)
        steps = make_plan(problem.spec, "cuda").config.steps
        assert any(step.kernel == "row_ring.whole_rows" for step in steps), (text, dtype)
print("done")
"""


def test_slabs_that_come_through_a_ring():
    assert interpreted("-c", GROUPS).strip() == "done"


PARTS = """
import dataclasses
from normgrad import verify
from normgrad.backends.cuda import backend, device
from normgrad.plan import make_plan
from normgrad.spec import Op

backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, multiprocessors=2)
sums, dgamma, dbeta = (False, True, True), (False, True, False), (False, False, True)
# (op, shape, options, the kernel meant)
PLANS = (
    # Planes as columns: sums of tiny ones, elements of those that are no multiple of 16 bytes.
    *((Op.BATCH_NORM, (70, 3, 3, 3), {"mask": mask}, "column_sums") for mask in (sums, dgamma)),
    (Op.BATCH_NORM_REDUCE, (5, 6, 7, 7), {}, "column_sums"),
    (Op.BATCH_NORM_REDUCE, (1, 5, 7, 9), {}, "column_sums"),
    (Op.BATCH_NORM_REDUCE, (3, 4, 9, 9), {}, "plane_sums"),
    (Op.BATCH_NORM_ELEMT, (5, 6, 7, 7), {}, "column_apply"),
    (Op.BATCH_NORM_ELEMT, (1, 3, 17, 17), {}, "column_apply"),
    (Op.BATCH_NORM, (3, 70, 3, 5), {"training": False}, "column_apply"),
    # Several channels of samples in a block; x is read where dgamma is wanted.
    (Op.GROUP_NORM, (3, 40, 7, 7), {"num_groups": 4, "mask": dbeta}, "unit_sums"),
    (Op.GROUP_NORM, (2, 9, 33, 33), {"num_groups": 1, "mask": sums}, "plane_sums"),
    (Op.GROUP_NORM, (2, 18, 31, 31), {"num_groups": 2, "mask": sums}, "unit_sums"),
    # Slabs through the ring without dx.
    (Op.GROUP_NORM, (6, 16, 7, 7), {"num_groups": 4, "mask": sums}, "whole_rows"),
    (Op.GROUP_NORM, (16, 8, 4, 4), {"num_groups": 8, "mask": dgamma}, "whole_rows"),
    (Op.GROUP_NORM, (33, 16), {"num_groups": 4, "mask": sums}, "whole_rows"),
    # Few long rows, in parts; all their parameter gradients by one block, or by several.
    (Op.LAYER_NORM, (3, 13000), {"mask": sums}, "row_apply"),
    (Op.LAYER_NORM, (19, 13001), {"mask": sums}, "row_apply"),
)
for op, shape, options, kernel in PLANS:
    for dtype in ("float32", "float16"):
        case = verify.Case(id="parts", op=op, shape=shape, **options)
        problem = verify.make_problem(case, dtype, 0)
        for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
            assert measured.ok, (op, shape, options, dtype, measured)
        steps = make_plan(problem.spec, "cuda").config.steps
        assert any(step.kernel.endswith(kernel) for step in steps), (op, shape, options, dtype)
for shape in ((3, 9000), (1, 5000), (40, 3000)):
    case = verify.Case(id="long", op=Op.LAYER_NORM, shape=shape)
    problem = verify.make_problem(case, "float64", 0)
    for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
        assert measured.ok, (shape, measured)
    kernels = [step.kernel for step in make_plan(problem.spec, "cuda").config.steps]
    assert ("sums.finish_groups" in kernels) == (shape[0] < 8), kernels
print("done")
"""


def test_sums_and_elements_of_uneven_data():
    assert interpreted("-c", PARTS).strip() == "done"


FOLDED = """
from normgrad import verify
from normgrad.backends.cuda import apply_plan, resident_columns, sums_plan
from normgrad.spec import Op

found = []
fold = sums_plan.fold
sums_plan.fold = lambda *given: (made := fold(*given), found.append(made[1]))[0]
apply_plan.fold = sums_plan.fold
resident_columns._TWO_PASSES = -1e9
PLANS = (
    (Op.BATCH_NORM, {}),
    (Op.BATCH_NORM, {"training": False}),
    (Op.BATCH_NORM_REDUCE, {}),
    (Op.BATCH_NORM_ELEMT, {}),
    (Op.GROUP_NORM, {"num_groups": 1}),
    (Op.GROUP_NORM, {"num_groups": 3}),
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
            if dtype == "float16" and op is Op.BATCH_NORM and not options:
                assert set(found) == times, (shape, found)
            if dtype == "float16" or shape[1] % 4:  # else elements are taken as they lie
                assert found, (shape, op)
print("done")
"""


def test_rows_of_few_channels_side_by_side():
    assert interpreted("-c", FOLDED).strip() == "done"


MANY_SAMPLES = """
from normgrad import verify
from normgrad.backends.cuda import parameters
from normgrad.plan import make_plan
from normgrad.spec import Op

parameters.THREADS = 1  # tiles of 32 parts
case = verify.Case(id="many", op=Op.GROUP_NORM, shape=(53, 48, 4), num_groups=2)
problem = verify.make_problem(case, "float32", 0)
for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
    assert measured.ok, measured
last = dict(make_plan(problem.spec, "cuda").config.steps[-1].constants)
assert last["TIMES"] > 1, last
print("done")
"""


def test_more_partials_than_a_block_takes_at_once():
    assert interpreted("-c", MANY_SAMPLES).strip() == "done"


COLUMNS = """
import itertools
import numpy as np
from host_mail import HostMail
from normgrad import functional
from normgrad.backends.cuda import backend, device, interpret, resident_columns
from normgrad.backends.cuda.tiles import Block

# Blocks so small that small data have many tiles, parts, pieces and rounds.
resident_columns._LEAST_BYTES = 16
resident_columns._TWO_PASSES = 1e9  # they would be taken
resident_columns._blocks = lambda data: (
    Block(1, 512, 6, 128, held=1),
    Block(1, 512, 5, 128, held=2),
    Block(2, 1024, 9, 128, held=3),
    Block(2, 512, 9, 128, held=3, most=12),
)
backend.INTERPRETER = device.Device("tiny", 90, 2, 65536, 26 << 10)
rng = np.random.default_rng(5)
every, run = resident_columns.cuts, interpret.interpret
GUARD = 4096


posts = itertools.cycle([HostMail(), None])


def guarded(program, spec, addresses, workspace, _):
    assert program.strategy == "resident columns"
    memory = np.full(program.workspace_bytes + 2 * GUARD, 0x5A, np.uint8)
    run(program, spec, addresses, memory.ctypes.data + GUARD, next(posts))
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
            return call(dy, x, gamma, None, None, mean, rstd, out=out, backend=backend)
        call = functional.group_norm_backward
        return call(dy, x, mean, rstd, gamma, num_groups=groups, out=out, backend=backend)

    want = results("reference")
    seen = []
    resident_columns.cuts = lambda *data: seen.extend(every(*data)) or seen[:1]
    forget()
    results("cuda")
    assert len(seen) >= len(wanted)
    for number, kind in enumerate(wanted):
        cut = next((one for one in reversed(seen) if kind(one)), None)
        assert cut, (shape, number)
        resident_columns.cuts = lambda *data: [cut]
        forget()
        for one, other in zip(results("cuda"), want):
            near = 2e-5 if one.dtype == "f4" else 6e-4
            assert np.abs(one.astype("f8") - other).max() <= near * np.abs(other).max(), cut


def forget():
    # Plans and calls that are known.
    import normgrad.dispatch, normgrad.plan

    for module in (normgrad.dispatch, normgrad.plan):
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
# The place of a tile goes to a tile of one slab, or (few of them) of one of two.
last_of = lambda cut: (cut.tiles - 1 + cut.depth) // cut.tiles
one = lambda cut: held(cut) and (cut.held + cut.depth) // cut.tiles == last_of(cut)
two = lambda cut: held(cut) and (cut.held + cut.depth) // cut.tiles < last_of(cut)
compare((57, 72), None, (streams, few))
compare((350, 40), None, (many, again))
compare((350, 40), None, (one, two, many, again), "f2")
compare((3, 20, 7, 11), None, (whole,))
compare((2, 40, 5, 9), 4, (streams, pieces))
compare((2, 24, 40), 2, (lambda cut: whole(cut) and not cut.held, pieces))
compare((3, 24, 70), 2, (few, full))
compare((5, 16, 9), 8, (lambda cut: cut.team == 1,))
resident_columns._MANY_WORDS = 0
totals = [lambda cut, kind=kind: cut.own > 1 and kind(cut) for kind in (streams, few)]
compare((57, 72), None, totals)
print("done")
"""


def test_columns_in_many_small_tiles():
    """With bytes around the workspace that must stay as they are."""
    assert interpreted("-c", COLUMNS).strip() == "done"


SMALL_IMAGES = """
import numpy as np
from normgrad import functional
from normgrad.backends.cuda import backend, device, interpret, resident
from normgrad.backends.cuda.tiles import Block

# Lines of 64 vectors: few images make many tiles, teams and rounds.
line = Block(2, 1024, 4, 128, held=2, most=5, ahead=True)
resident._flat_blocks = lambda *_: ((line, 1), (line, 1 << 30))
backend.INTERPRETER = device.Device("tiny", 90, 3, 65536, 24 << 10)
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
        return call(dy, x, gamma, None, None, mean, rstd, out=out, backend=backend)

    for one, other in zip(results("cuda"), results("reference")):
        one, other = one.astype("f8"), other.astype("f8")
        budget = 2e-5 if dtype == "f4" else 2e-3
        assert np.abs(one - other).max() <= budget * np.abs(other).max(), shape
    assert wanted.items() <= seen[-1].items(), (shape, seen[-1])


# Channels of one plane and planes of one line; teams of several blocks; one row left over.
compare((5, 12, 7, 7), "f4", BLOCK_CHANNELS=4, PLANE=196, SOLO=True, HELD=1)
compare((5, 48, 7, 7), "f4", PLANE=196, SOLO=True, HELD=2, CHUNKS=5, DEPTH=4, teams=6)
compare((19, 36, 5, 5), "f4", BLOCK_CHANNELS=4, PLANE=100, team=2, HELD=2, CHUNKS=5, DEPTH=4)
compare((17, 32, 2, 2), "f2", BLOCK_CHANNELS=16, PLANE=64)
compare((60, 40, 3, 3), "f2", BLOCK_CHANNELS=8, PLANE=72, team=2, HELD=2)
compare((50, 7, 6, 6), "f4", BLOCK_CHANNELS=1, PLANE=36, team=2, HELD=2)
compare((13, 3, 10, 5), "f2", BLOCK_CHANNELS=1, PLANE=50, ALIGN=2)
print("done")
"""


def test_planes_of_small_images_side_by_side():
    assert interpreted("-c", SMALL_IMAGES).strip() == "done"


def test_random_requests_on_small_devices():
    path = Path(__file__).with_name("random_requests.py")
    resident, _, count = interpreted(str(path), "44").split()
    assert int(resident) > int(count) // 2
