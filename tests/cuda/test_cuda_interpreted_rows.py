"""Rows and slabs that come whole, and sums and elements of uneven data, in Triton's interpreter."""

import pytest
from interpreted import interpreted

pytest.importorskip("torch")
pytest.importorskip("triton")

AHEAD = """
from normgrad import verify
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

tuned.AHEAD_ROUNDS = 0
for shape in ((803, 64), (301, 512), (7, 8192)):
    case = verify.Case(id="ahead", op=Op.LAYER_NORM_BACKWARD, shape=shape)
    problem = verify.make_problem(case, "float32", 0)
    for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
        assert measured.ok, (shape, measured)
    kernel = next(s for s in make_plan(problem.spec, "cuda").config.steps if "layer" in s.kernel)
    assert dict(kernel.constants)["PRELOAD_ROWS"], shape
print("done")
"""


def test_rows_that_come_to_registers_ahead():
    assert interpreted("-c", AHEAD).strip() == "done"


RING = """
import dataclasses
import numpy as np
from host_areas import HostAreas
from normgrad import functional
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.backends.cuda.pieces import bulk_stand_in
from normgrad.backends.cuda.schedules import row_ring as kernels


def copy_inside(to, source, count):
    starts = [one.ctypes.data for one in (wide, dy)]
    ends = [one.ctypes.data + one.nbytes for one in (wide, dy)]
    assert any(a <= source and source + count <= b for a, b in zip(starts, ends)), "past the data"
    copy(to, source, count)


copy, bulk_stand_in._copy = bulk_stand_in._copy, copy_inside
called = []
start = kernels.start_barriers
kernels.start_barriers = lambda *given: (called.append(1), start(*given))[1]
rng = np.random.default_rng(6)
areas = HostAreas()
backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, multiprocessors=2)
tuned.STATISTICS_ROWS = 256  # statistics are fetched more than once for 2100 rows
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
        backend.BACKEND.interpreted_areas = areas if number % 2 else None
        near = 2e-5 if dtype == "f4" else 6e-4  # half a unit of float16
        called.clear()
        got, want = (
            functional.layer_norm_backward(
                dy, x, mean, rstd, cols, weight=gamma, output_mask=mask, backend=name
            )[:3]
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


@pytest.mark.slow(15)
def test_rows_that_come_through_a_ring():
    assert interpreted("-c", RING).strip() == "done"


GROUPS = """
import dataclasses
from host_areas import HostAreas
from normgrad import verify
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

areas = HostAreas()
backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, multiprocessors=2)
tuned.STATISTICS_ROWS = 128  # statistics are fetched more than once for 70 samples
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
            id=text,
            op=Op.GROUP_NORM_BACKWARD,
            shape=shape,
            num_groups=groups,
            mask=mask.get(number, ()),
            weight=number != 4,
        )
        problem = verify.make_problem(case, dtype, number)
        backend.BACKEND.interpreted_areas = areas if number % 2 else None
        for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
            assert measured.ok, (text, groups, dtype, measured)
        steps = make_plan(problem.spec, "cuda").config.steps
        assert any(step.kernel == "row_ring.whole_rows" for step in steps), (text, dtype)
print("done")
"""


@pytest.mark.slow(12)
def test_slabs_that_come_through_a_ring():
    assert interpreted("-c", GROUPS).strip() == "done"


PARTS = """
import dataclasses
from normgrad import verify
from normgrad.backends.cuda import backend, device
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

backend.INTERPRETER = dataclasses.replace(device.INTERPRETER, multiprocessors=2)
sums, dgamma, dbeta = (False, True, True), (False, True, False), (False, False, True)
# (op, shape, options, the kernel meant)
PLANS = (
    # Planes as columns: sums of tiny ones, elements of those that are no multiple of 16 bytes.
    *(
        (Op.BATCH_NORM_BACKWARD, (70, 3, 3, 3), {"mask": mask}, "column_sums")
        for mask in (sums, dgamma)
    ),
    (Op.BATCH_NORM_REDUCE_BACKWARD, (5, 6, 7, 7), {}, "column_sums"),
    (Op.BATCH_NORM_REDUCE_BACKWARD, (1, 5, 7, 9), {}, "column_sums"),
    (Op.BATCH_NORM_REDUCE_BACKWARD, (3, 4, 9, 9), {}, "plane_sums"),
    (Op.BATCH_NORM_ELEMT_BACKWARD, (5, 6, 7, 7), {}, "column_apply"),
    (Op.BATCH_NORM_ELEMT_BACKWARD, (1, 3, 17, 17), {}, "column_apply"),
    # One sample is instance norm.
    (Op.BATCH_NORM_BACKWARD, (1, 37, 31, 2), {}, "whole_rows"),
    (Op.BATCH_NORM_BACKWARD, (1, 5, 7, 9), {"mask": sums}, "whole_rows"),
    (Op.BATCH_NORM_BACKWARD, (1, 12, 30, 30), {"statistic": "variance"}, "plane_slabs"),
    # Parameter gradients alone of rows that come through the ring, or in strips of columns.
    (Op.LAYER_NORM_BACKWARD, (70, 768), {"mask": sums}, "whole_rows"),
    (Op.LAYER_NORM_BACKWARD, (301, 40), {"mask": dgamma}, "whole_rows"),
    (Op.LAYER_NORM_BACKWARD, (70, 9000), {"mask": sums}, "row_apply"),
    (Op.LAYER_NORM_BACKWARD, (520, 8200), {"mask": dgamma}, "row_apply"),
    (Op.LAYER_NORM_BACKWARD, (70, 9001), {"mask": dbeta}, "row_apply"),
    (Op.BATCH_NORM_BACKWARD, (3, 70, 3, 5), {"training": False}, "column_apply"),
    # Several channels of samples in a block; x is read where dgamma is wanted.
    (Op.GROUP_NORM_BACKWARD, (3, 40, 7, 7), {"num_groups": 4, "mask": dbeta}, "unit_sums"),
    (Op.GROUP_NORM_BACKWARD, (2, 9, 33, 33), {"num_groups": 1, "mask": sums}, "plane_sums"),
    (Op.GROUP_NORM_BACKWARD, (2, 18, 31, 31), {"num_groups": 2, "mask": sums}, "unit_sums"),
    # Slabs through the ring without dx.
    (Op.GROUP_NORM_BACKWARD, (6, 16, 7, 7), {"num_groups": 4, "mask": sums}, "whole_rows"),
    (Op.GROUP_NORM_BACKWARD, (16, 8, 4, 4), {"num_groups": 8, "mask": dgamma}, "whole_rows"),
    (Op.GROUP_NORM_BACKWARD, (33, 16), {"num_groups": 4, "mask": sums}, "whole_rows"),
    # Few long rows, in parts; all their parameter gradients by one block, or by several.
    (Op.LAYER_NORM_BACKWARD, (3, 13000), {"mask": sums}, "row_apply"),
    (Op.LAYER_NORM_BACKWARD, (19, 13001), {"mask": sums}, "row_apply"),
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
    case = verify.Case(id="long", op=Op.LAYER_NORM_BACKWARD, shape=shape)
    problem = verify.make_problem(case, "float64", 0)
    for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
        assert measured.ok, (shape, measured)
    kernels = [step.kernel for step in make_plan(problem.spec, "cuda").config.steps]
    assert ("finish.finish_groups" in kernels) == (shape[1] > 8192), kernels
print("done")
"""


@pytest.mark.slow(14)
def test_sums_and_elements_of_uneven_data():
    assert interpreted("-c", PARTS).strip() == "done"
