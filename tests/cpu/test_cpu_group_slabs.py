"""Group norm channels first: slabs split into units of several channels, or taken whole."""

import itertools

import pytest

from normgrad import verify
from normgrad.backends.cpu.plan import tuned
from normgrad.cli.plan import spec_of
from normgrad.core.plan import make_plan
from normgrad.core.spec import Op

pytest.importorskip("numba")

# Channels by the dozen in a unit and fewer in the last one; whole slabs of short, longer and very
# long channels, which are summed in parts; parts of a channel; with dx past the cache.
SHAPES = {
    (2, 70, 33, 31): "sum_pieces",
    (1, 131, 5, 101): "sum_pieces",
    (9, 41, 41, 40): "slabs",
    (40, 7, 13, 5): "slabs",
    (9, 1, 190, 190): "slabs",
    (1, 3, 190, 190): "sum_pieces",
    (3, 90, 115, 115): "sum_pieces",
}
MASKS = [mask for mask in itertools.product((False, True), repeat=3) if any(mask)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_slabs_of_group_norm(shape, dtype):
    for mask in MASKS if dtype == "float32" and shape[0] < 3 else MASKS[-1:]:
        case = verify.Case(
            id="slabs", op=Op.GROUP_NORM_BACKWARD, shape=shape, num_groups=1, mask=mask
        )
        problem = verify.make_problem(case, dtype, 0)
        for measured in verify.judge(problem, verify.run_backend(problem, "cpu")):
            assert measured.ok, (mask, measured)
    phases = make_plan(spec_of(case, dtype), "cpu").config.phases
    assert phases[0].split()[0] == SHAPES[shape]


def test_units_stay_in_bounds(stay_in_bounds):
    """Units so small that small data have several."""
    shapes = ((2, 10, 5, 7), (1, 9, 8, 4), (1, 3, 70, 2), (2, 5, 1, 33), (8, 6, 10, 7))
    cases = [("group_norm_backward", {"shape": shape, "num_groups": 1}) for shape in shapes]
    stay_in_bounds({"TASK_ELEMENTS": 64, "NEAR_SLAB": 0}, "sum_pieces", cases)


def test_groups_as_rows_stay_in_bounds(stay_in_bounds):
    """Blocks of rows, of which the last is not full; instance norm; one pixel; gaps."""
    everything, sums, gradient = (True, True, True), (False, True, True), (True, False, False)
    bias = (False, False, True)
    plans = (
        ((21, 8, 3, 3), 2, everything), ((4, 6, 6, 5), 6, everything), ((5, 4, 2, 4), 2, sums),
        ((9, 4, 3, 3), 2, gradient), ((6, 4, 3, 3), 1, bias), ((19, 40), 2, everything),
        ((2, 12), 4, everything), ((11, 6), 6, sums), ((7, 35), 5, gradient), ((1, 10), 2, bias),
    )  # fmt: skip
    cases = [
        (
            "group_norm_backward",
            {"shape": shape, "num_groups": groups, "mask": mask, "weight": weight},
        )
        for shape, groups, mask in plans
        for weight in (True, False)
    ]
    stay_in_bounds({"BLOCK_ROWS": 8}, "rows", cases, first=False)


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"), [((70, 48, 5, 5), 4), ((300, 96), 6), ((33, 7, 4, 5), 7)], ids=str
)
def test_groups_as_rows(shape, groups, mask):
    case = verify.Case(
        id="rows", op=Op.GROUP_NORM_BACKWARD, shape=shape, num_groups=groups, mask=mask
    )
    for dtype in ("float32", "bfloat16", "float16"):
        problem = verify.make_problem(case, dtype, 0)
        for measured in verify.judge(problem, verify.run_backend(problem, "cpu")):
            assert measured.ok, (dtype, measured)
    phases = make_plan(spec_of(case, "float32"), "cpu").config.phases
    named = [phase.split()[0] for phase in phases]
    assert "rows" in named
    wants = any(mask[1:])
    assert ("join_channels" in named) == (wants and len(shape) > 2)
    assert ("join_rows" in named) == (wants and len(shape) == 2)


def test_which_groups_are_rows():
    """Few pixels; groups that have gaps are not."""

    def rows(shape, **options):
        case = verify.Case(
            id="rows", op=Op.GROUP_NORM_BACKWARD, shape=shape, num_groups=4, **options
        )
        phases = make_plan(spec_of(case, "float32"), "cpu").config.phases
        return any(phase.startswith("rows") for phase in phases)

    assert rows((8, 32, 5, 6))
    assert not rows((8, 32, 4, 8))
    assert rows((1, 32, 5, 6))  # however many samples there are: bits must not depend on it
    assert rows((2, 32))
    assert not rows((8, 4096, 5, 5))
    assert not rows((8, 32, 5, 5), layout="channels-last")


def test_a_unit_has_many_short_channels():
    """A task for each would take longer to hand out than to do."""
    case = verify.Case(id="units", op=Op.GROUP_NORM_BACKWARD, shape=(4, 384, 14, 14), num_groups=1)
    phases = make_plan(spec_of(case, "float32"), "cpu").config.phases
    assert phases[0] == "sum_pieces x 12"
    assert phases[2] == "write_pieces x 12"


def test_units_or_whole_slabs_agree(monkeypatch, forget_plans):
    """The sums of a channel are the same bits, and so are the parameter gradients."""
    case = verify.Case(id="both", op=Op.GROUP_NORM_BACKWARD, shape=(10, 40, 41, 41), num_groups=1)
    problem = verify.make_problem(case, "float32", 0)
    whole = verify.run_backend(problem, "cpu")
    monkeypatch.setattr(tuned, "NEAR_SLAB", 0)
    forget_plans()
    assert make_plan(spec_of(case, "float32"), "cpu").config.phases[0].startswith("sum_pieces")
    split = verify.run_backend(problem, "cpu")
    monkeypatch.undo()
    forget_plans()
    assert make_plan(spec_of(case, "float32"), "cpu").config.phases[0].startswith("slabs")
    for role in ("dgamma", "dbeta"):
        assert whole[role].tobytes() == split[role].tobytes()
