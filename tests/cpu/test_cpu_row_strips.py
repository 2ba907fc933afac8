"""Layer norm of few long rows without dx: strips of columns down all rows."""

import numpy as np
import pytest

from normgrad import verify
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

pytest.importorskip("numba")
SUMS, DGAMMA, DBETA = (False, True, True), (False, True, False), (False, False, True)


def phases(shape, mask, dtype="float32"):
    case = verify.Case(id="strips", op=Op.LAYER_NORM_BACKWARD, shape=shape, mask=mask)
    return [one.split()[0] for one in make_plan(spec_of(case, dtype), "cpu").config.phases]


def test_which_rows_are_taken_in_strips():
    assert phases((20, 65536), SUMS) == ["column_blocks_of_rows", "join_rows"]
    assert phases((8, 4096), DGAMMA) == ["column_blocks_of_rows", "join_rows"]
    assert phases((8, 4096), DBETA) == ["column_blocks_of_rows", "join_rows"]
    for shape, mask in (
        ((20, 65536), (True, True, True)),
        ((7, 65536), SUMS),
        ((129, 65536), SUMS),  # one float32 sum would have too many terms
        ((20, 4095), SUMS),
    ):
        assert "column_blocks_of_rows" not in phases(shape, mask), shape


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_parameter_gradients_of_few_long_rows(dtype):
    # Rows by fours and left over; columns that fill strips, vectors, or neither.
    for shape in ((8, 4096), (21, 5003), (128, 4100), (11, 20000)):
        for mask in (SUMS, DGAMMA, DBETA):
            case = verify.Case(id="strips", op=Op.LAYER_NORM_BACKWARD, shape=shape, mask=mask)
            problem = verify.make_problem(case, dtype, 0)
            for measured in verify.judge(problem, verify.run_backend(problem, "cpu")):
                assert measured.ok, (shape, mask, measured)
            assert "column_blocks_of_rows" in phases(shape, mask, dtype)


def test_rows_with_gaps_and_results_with_strides():
    case = verify.Case(id="gaps", op=Op.LAYER_NORM_BACKWARD, shape=(9, 7983), mask=SUMS)
    problem = verify.make_problem(case, "float32")
    arrays = {role: host.array for role, host in problem.operands.items()}
    for role in ("dy", "x"):
        wide = np.full((9, 9000), np.nan, "f4")
        wide[:, 17:8000] = arrays[role]
        arrays[role] = wide[:, 17:8000]
    room = np.full((2, 2, 7983), np.nan, "f4")
    out = (None, room[0, 1], np.full(3 * 7983, np.nan, "f4")[::3])
    verify.call(problem, arrays, out, "cpu")
    results = dict(zip(problem.wanted, map(np.float64, out[1:]), strict=True))
    for measured in verify.judge(problem, results):
        assert measured.ok, measured
    assert np.isnan(room[0, 0]).all()
    assert np.isnan(room[1]).all()


def test_strips_stay_in_bounds(stay_in_bounds):
    """Strips so narrow that small data have several."""
    shapes, mask = ((8, 96), (9, 131), (14, 200)), (False, True, True)
    cases = [("layer_norm_backward", {"shape": shape, "mask": mask}) for shape in shapes]
    stay_in_bounds({"ROW_STRIP": 48}, "column_blocks_of_rows", cases)
