"""Planes that start anywhere, read by whole vectors, in Triton's interpreter."""

import pytest
from interpreted import interpreted

pytest.importorskip("torch")
pytest.importorskip("triton")

# (op, shape, options): one vector and many, planes of one row and of several, teams and blocks
# alone; starts of all kinds, since a plane's length is odd, or twice or four times that.
PLANS = """
from normgrad.core.spec import Op

half = (True, False, True)
PLANS = (
    (Op.BATCH_NORM_BACKWARD, (2, 8, 23, 23), {}),
    (Op.BATCH_NORM_BACKWARD, (8, 3, 37, 31), {"mask": half}),
    (Op.BATCH_NORM_BACKWARD, (8, 4, 34, 31), {"statistic": "variance"}),
    (Op.BATCH_NORM_BACKWARD, (4, 2, 65, 65), {"weight": False}),
    (Op.BATCH_NORM_BACKWARD, (8, 7, 37, 31), {"training": False}),
    (Op.BATCH_NORM_ELEMT_BACKWARD, (8, 3, 37, 31), {}),
    (Op.BATCH_NORM_ELEMT_BACKWARD, (8, 3, 1017), {}),  # a program a plane: the last writes last
    (Op.BATCH_NORM_REDUCE_BACKWARD, (8, 3, 37, 31), {}),
    (Op.BATCH_NORM_REDUCE_BACKWARD, (16, 5, 9, 9), {}),
    (Op.GROUP_NORM_BACKWARD, (2, 8, 33, 33), {"num_groups": 4}),
    (Op.GROUP_NORM_BACKWARD, (8, 8, 23, 25), {"num_groups": 1, "mask": half}),
    (Op.GROUP_NORM_BACKWARD, (1, 8, 37, 31), {"num_groups": 8}),
    (Op.GROUP_NORM_BACKWARD, (8, 8, 9, 15), {"num_groups": 2}),
)
"""

RIGHT = """
import math

from normgrad import verify
from normgrad.backends.cuda.plan import strategies
from normgrad.core.plan import _make_plan, make_plan

strategies.group_rows = lambda *given: False
resident = strategies.resident_planes
for keep in (resident, lambda *given: False):  # on chip, then two passes
    strategies.resident_planes = keep
    _make_plan.cache_clear()
    for number, (op, shape, options) in enumerate(PLANS):
        for dtype in ("float32", "float16"):
            case = verify.Case(id="window", op=op, shape=shape, **options)
            problem = verify.make_problem(case, dtype, number)
            for measured in verify.judge(problem, verify.run_backend(problem, "cuda")):
                assert measured.ok, (op, shape, options, dtype, measured)
            steps = make_plan(problem.spec, "cuda").config.steps
            found = [dict(step.constants).get("WINDOW") for step in steps]
            short = keep is resident and math.prod(shape[2:]) < 512  # on chip by elements
            assert any(found) or short, (op, shape, dtype)
print("done")
"""


@pytest.mark.slow(20)
def test_planes_that_start_anywhere():
    assert interpreted("-c", PLANS + RIGHT).strip() == "done"


NEIGHBOURS = """
import numpy as np
from normgrad import functional
from normgrad.backends.cuda.plan import strategies
from normgrad.core.plan import _make_plan

strategies.group_rows = lambda *given: False
resident = strategies.resident_planes
rng = np.random.default_rng(5)
for keep in (resident, lambda *given: False):
    strategies.resident_planes = keep
    _make_plan.cache_clear()
    for bad in (np.nan, np.inf):
        for dtype in ("f4", "f2"):
            x, dy = (rng.standard_normal((2, 8, 23, 23)).astype(dtype) for _ in range(2))
            stats = np.zeros(8, "f4"), np.ones(8, "f4")
            x[:, 3] = bad
            dy[:, 5] = bad
            call = functional.batch_norm_backward
            got = call(dy, x, *stats, backend="cuda")
            fine = [0, 1, 2, 4, 6, 7]
            assert np.isfinite(got[0][:, fine]).all()
            assert all(np.isfinite(one[fine]).all() for one in got[1:3])
            assert not np.isfinite(got[0][:, 3]).any() and not np.isfinite(got[2][5])
print("done")
"""


def test_what_is_not_finite_stays_in_its_channel():
    """Vectors at the ends of a plane have elements of the planes around."""
    assert interpreted("-c", NEIGHBOURS).strip() == "done"
