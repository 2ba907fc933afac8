"""Which kernels a request takes, what a mask saves, and how tiles and teams are cut: no GPU."""

from dataclasses import replace

import pytest
from cuda_plans import COLUMN_KERNELS, COPYING, MASKS, SUITE, kernels, launches, plan, roles

from normgrad import verify
from normgrad.backends.cuda.device import KNOWN
from normgrad.backends.cuda.plan.program import Fill
from normgrad.backends.cuda.plan.tiles import alignment, cut, cut_into_teams, power_of_two
from normgrad.bench import suites
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.operators import OPERATORS
from normgrad.core.spec import Op, Spec, TensorSpec


@pytest.mark.parametrize(
    ("request_", "strategy"),
    [
        (("batch_norm_backward", "64x256x56x56"), "resident planes"),
        (("batch_norm_backward", "64x256x56x56", "float32"), "resident planes"),
        (("batch_norm_backward", "64x256x56x56", "float64"), "two passes (planes)"),
        (("batch_norm_backward", "64x2048x7x7"), "resident planes"),
        (("batch_norm_backward", "2x64x128x128x128"), "resident planes"),
        (("batch_norm_backward", "2x64x128x128x128", "float32"), "resident planes"),
        (
            ("batch_norm_backward", "64x64x112x112", "bfloat16", "contiguous", "t4"),
            "two passes (planes)",
        ),
        (
            ("batch_norm_backward", "20x6x65536", "float32", "contiguous", "rtx4090"),
            "two passes (planes)",
        ),
        (("batch_norm_backward", "2x256x129x129"), "resident planes"),  # in windows
        (("batch_norm_backward", "3x129x129x129"), "two passes (planes)"),  # data that end anywhere
        (
            ("batch_norm_backward", "1x512x31x31"),
            "whole slabs in a ring",
        ),  # one sample: instance norm
        (("batch_norm_backward", "131072x256"), "resident columns"),
        (("batch_norm_backward", "131072x256", "float64"), "two passes (columns)"),
        (("batch_norm_backward", "64x256x56x56", "float32", "channels-last"), "resident columns"),
        (("batch_norm_backward", "64x1024x14x14", "bfloat16", "channels-last"), "resident columns"),
        (("group_norm_backward", "64x256x56x56", "bfloat16", "channels-last"), "resident columns"),
        (("group_norm_backward", "2x960x64x64", "bfloat16", "channels-last"), "resident columns"),
        (("group_norm_backward", "131072x64"), "whole slabs in a ring"),  # images of one pixel
        (("group_norm_backward", "131072x64", "float64"), "two passes (columns)"),
        (("group_norm_backward", "64x512x7x7"), "whole slabs in a ring"),
        (("group_norm_backward", "64x320x17x17", "float32"), "whole slabs in a ring"),
        (("group_norm_backward", "16x1280x16x16"), "resident planes"),  # too long for it
        (("group_norm_backward", "3x32x7x7", "float32"), "whole slabs in a ring"),
        (
            ("group_norm_backward", "8x320x64x64", "float32", "channels-last", "t4"),
            "two passes (columns)",
        ),
        (("batch_norm_reduce_backward", "64x256x56x56"), "sums (planes)"),
        (
            ("batch_norm_reduce_backward", "64x256x56x56", "float32", "channels-last"),
            "sums (columns)",
        ),
        (("batch_norm_elemt_backward", "64x256x56x56"), "elements (planes)"),
        (
            ("batch_norm_elemt_backward", "64x256x56x56", "float32", "channels-last"),
            "elements (columns)",
        ),
        (("group_norm_backward", "64x256x56x56"), "resident planes"),
        (("group_norm_backward", "1x128x1024x1024"), "resident planes"),
        (("group_norm_backward", "1x128x1024x1024", "float32"), "resident planes"),
        (
            ("group_norm_backward", "1x512x512x512", "float32", "contiguous", "a100"),
            "two passes (planes)",
        ),
        (("layer_norm_backward", "16384x4096"), "whole rows in a ring, 132 programs"),
        (("layer_norm_backward", "16384x4095"), "whole rows in a ring, 132 programs"),
        (("layer_norm_backward", "300x640", "float32"), "whole rows in a ring, 75 programs"),
        (("layer_norm_backward", "65536x512", "float32"), "whole rows, 396 programs"),
        (
            ("layer_norm_backward", "16384x4096", "float32", "contiguous", "a100"),
            "whole rows, 108 programs",
        ),
        (("layer_norm_backward", "3x64"), "whole rows in a ring, 1 programs"),
        (("layer_norm_backward", "3x63"), "whole rows in a ring, 1 programs"),
        (("layer_norm_backward", "65536x300"), "whole rows in a ring, 264 programs"),
        (("layer_norm_backward", "65537x300"), "whole rows in a ring, 264 programs"),
        (
            ("layer_norm_backward", "65537x300", "bfloat16", "contiguous", "a100"),
            "whole rows, 216 programs",
        ),
        (("layer_norm_backward", "16383x4095"), "whole rows in a ring, 132 programs"),
        (("layer_norm_backward", "16384x3072"), "whole rows in a ring, 132 programs"),
        (("layer_norm_backward", "128x12288"), "resident rows, 88 teams"),
        (("layer_norm_backward", "1024x12288"), "resident rows, 88 teams"),
        (("layer_norm_backward", "1024x65536"), "resident rows, 16 teams"),
        (("layer_norm_backward", "4096x16384"), "resident rows, 66 teams"),
        (("layer_norm_backward", "4096x16384", "float32"), "resident rows, 33 teams"),
        (("layer_norm_backward", "4096x16384", "bfloat16", "contiguous", "t4"), "long rows"),
        (("layer_norm_backward", "16x2097152"), "long rows"),
        (("layer_norm_backward", "64x512", "float64"), "long rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_which_strategy(request_, strategy):
    assert plan(*request_).strategy == strategy


def test_small_shapes_take_one_or_two_launches():
    assert len(plan("batch_norm_backward", "4x8x5x5").steps) == 1
    assert len(plan("layer_norm_backward", "64x256").steps) == 2
    assert len(plan("group_norm_backward", "2x32x8x8").steps) == 2


def test_data_of_nothing_set_the_parameters_to_0():
    spec = verify.make_problem(*verify.select("batch_norm_backward", "empty-batch"), "float32").spec
    program = program_of(spec, KNOWN["h200"])
    assert program.strategy == "zeros"
    assert [roles(step) for step in program.steps] == [{"dgamma"}, {"dbeta"}]
    assert all(isinstance(step, Fill) and step.value == 0 for step in program.steps)


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_a_mask_saves_launches_and_streams(layout):
    for op in ("batch_norm_backward", "group_norm_backward"):
        made = [plan(op, "64x256x56x56", layout=layout, mask=mask) for mask in MASKS]
        everything, gradient, parameters, bias = made
        assert all("dx" not in roles(step) for one in (parameters, bias) for step in one.steps)
        assert all(not roles(step) & {"dgamma", "dbeta"} for step in gradient.steps)
        assert len(gradient.steps) <= len(everything.steps)
        for one in (parameters, bias):
            assert one.strategy.startswith("sums")
            assert len(one.steps) == 2
            data = [step for step in one.steps if roles(step) & {"x", "dy"}]
            assert len(data) == 1  # two streams
        assert "dgamma" not in roles(bias.steps[-1])
        assert all("x" not in roles(step) for step in bias.steps)  # one stream


def test_a_mask_saves_launches_of_layer_norm():
    everything, gradient, parameters, bias = (
        plan("layer_norm_backward", "4096x4096", mask=mask) for mask in MASKS
    )
    assert all("x" not in roles(step) for step in bias.steps)
    assert kernels(everything) == ["clear_words", "whole_rows"]
    assert kernels(gradient) == ["whole_rows"]
    assert gradient.workspace_bytes == 0
    assert kernels(parameters) == ["clear_words", "whole_rows"]
    assert dict(launches(parameters)[1].arguments)["dx"] is None
    assert kernels(bias) == ["clear_words", "layer_rows"]  # the ring reads x too
    long_gradient, long_parameters = (
        plan("layer_norm_backward", "4096x16384", mask=mask) for mask in MASKS[1:3]
    )
    assert kernels(long_gradient) == ["clear_words", "layer_teams"]
    assert kernels(long_parameters) == ["row_apply"]  # narrow strips: nothing to join


def the_windows(*request, **options):
    sizes = (dict(step.constants) for step in launches(plan(*request, **options)))
    return [one["WINDOW"] for one in sizes if "WINDOW" in one]


def test_planes_that_start_anywhere_are_read_by_whole_vectors():
    for op in (
        "batch_norm_backward",
        "group_norm_backward",
        "batch_norm_elemt_backward",
        "batch_norm_reduce_backward",
    ):
        for dtype, window in (("bfloat16", 8), ("float32", 4)):
            assert the_windows(op, "2x64x129x129", dtype) == [window]
            assert the_windows(op, "2x64x128x128", dtype) == [0]
            # The last vector would reach behind the data.
            assert set(the_windows(op, "3x33x129x129", dtype, groups=3)) <= {0}
    assert the_windows("batch_norm_backward", "2x64x129x129", "float64") in ([0], [0, 0])
    assert the_windows("batch_norm_backward", "64x64x129x129", device="t4") == [8, 8]  # two passes
    # By copies of 8 bytes if planes are small, and some channels together if they are tiny.
    assert the_windows("batch_norm_backward", "32x256x30x30") == [0]
    assert the_windows("batch_norm_backward", "16x512x1500") == [8]
    assert the_windows("batch_norm_backward", "64x512x7x7") == [0]


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_inference_reads_what_it_needs(layout):
    cases = verify.select("batch_norm_backward", f"mask-100-{layout}-inference")
    (step,) = program_of(spec_of(*cases, "float32"), KNOWN["h200"]).steps
    assert dict(step.arguments)["x"] is None  # two streams: dy and dx
    assert not dict(step.constants)["CORRECT"]
    cases = verify.select("batch_norm_backward", f"mask-111-{layout}-inference")
    sums, finish, apply = program_of(spec_of(*cases, "float32"), KNOWN["h200"]).steps
    assert {"x", "dy"} <= roles(sums)
    assert roles(finish) >= {"dgamma", "dbeta"}
    assert dict(apply.arguments)["x"] is None


def test_odd_strides_cost_a_copy_and_channels_last_do_not():
    def copies(name, *, wanted):
        spec = verify.make_problem(*verify.select("batch_norm_backward", name), "float32").spec
        program = program_of(spec, KNOWN["h200"])
        assert kernels(program).count("strided_copy") == wanted, name

    # The cases' dx is contiguous here: x and dy that lie otherwise are packed, dx is not.
    copies("nchw", wanted=0)
    copies("two-axes", wanted=0)
    copies("flipped", wanted=2)
    (workload,) = (
        one for one in SUITE if one.name == "batch_norm_backward 64x256x56x56 float32 channels-last"
    )
    assert "strided_copy" not in kernels(
        program_of(spec_of(workload.case, "float32"), KNOWN["h200"])
    )


@pytest.mark.parametrize(
    "op", [Op.BATCH_NORM_BACKWARD, Op.GROUP_NORM_BACKWARD, Op.BATCH_NORM_ELEMT_BACKWARD]
)
@pytest.mark.parametrize(("of_x", "family"), [("contiguous", "planes"), ("last", "columns")])
def test_who_lies_otherwise_than_x_is_transposed(op, of_x, family):
    """And nobody else: x and dx stay where they are."""
    shape = (64, 256, 56, 56)
    strides = {"contiguous": (802816, 3136, 56, 1), "last": (802816, 1, 14336, 256)}
    lying = {name: TensorSpec(shape, steps, "bfloat16") for name, steps in strides.items()}
    other = lying["last" if of_x == "contiguous" else "contiguous"]
    same = spec_of(verify.Case(id="same", op=op, shape=shape, num_groups=32), "bfloat16")
    same = replace(same, x=lying[of_x], dy=lying[of_x], dx=lying[of_x])
    ours = kernels(program_of(same, KNOWN["h200"]))
    assert "transposed_copy" not in ours
    assert any(family.removesuffix("s") in one or "row_ring" in one for one in ours)
    for role, wanted in (("dy", ["transposed_copy", *ours]), ("dx", [*ours, "transposed_copy"])):
        mixed = program_of(replace(same, **{role: other}), KNOWN["h200"])
        assert kernels(mixed) == wanted, role


def test_workspaces_are_small():
    """The words of the blocks, partial sums; never a copy of the data of a usual layout."""
    for workload in SUITE:
        spec = spec_of(workload.case, workload.dtype)
        assert program_of(spec, KNOWN["h200"]).workspace_bytes <= 16 << 20, workload.name
    assert plan("batch_norm_backward", "64x256x56x56").workspace_bytes < 64 << 10
    assert plan("batch_norm_elemt_backward", "64x256x56x56").workspace_bytes == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "width"),
    [
        ("4x960x128x128", "bfloat16", 240),  # 8 groups of 60 bytes: 15 sectors
        ("4x960x128x128", "float32", 120),
        ("4x640x128x128", "bfloat16", 320),
        ("2x960x64x64", "bfloat16", 960),  # whole rows
    ],
)
def test_slabs_of_uneven_groups_end_at_sectors(shape, dtype, width):
    (step,) = (
        one
        for one in launches(plan("group_norm_backward", shape, dtype, "channels-last"))
        if one.kernel in COLUMN_KERNELS
    )
    found = dict(step.arguments)["width"] * dict(step.constants)["ALIGN"]
    assert found == width


def test_slabs_of_uneven_channels_that_would_end_inside_of_sectors():
    odd = plan("batch_norm_backward", "64x728x37x37", "bfloat16", "channels-last")
    assert odd.strategy == "two passes (columns)"
    even = plan("batch_norm_backward", "64x736x37x37", "bfloat16", "channels-last")
    assert even.strategy == "resident columns"


@pytest.mark.parametrize(
    ("shape", "dtype", "warps"), [("16x1024x14x14", "float32", 4), ("32x512x14x14", "bfloat16", 8)]
)
def test_one_round_of_small_blocks_unless_each_has_many_words(shape, dtype, warps):
    found = launches(plan("batch_norm_backward", shape, dtype, "channels-last"))
    assert {one.warps for one in found if one.kernel in COLUMN_KERNELS} == {warps}


@pytest.mark.parametrize(
    ("request_", "when"),
    [
        # Measured to pay, and measured to lose.
        (
            ("batch_norm_backward", "256x2048x7x7", "float32", "channels-last"),
            {"REQUEST_AFTER_PUBLISH": True},
        ),
        (
            ("batch_norm_backward", "256x2048x7x7", "bfloat16", "channels-last"),
            {"REQUEST_AFTER_PUBLISH": True},
        ),
        (
            ("group_norm_backward", "64x256x56x56", "bfloat16", "channels-last"),
            {"REQUEST_AFTER_PUBLISH": True},
        ),
        (
            ("group_norm_backward", "64x256x56x56", "float32", "channels-last"),
            {"REQUEST_AFTER_PUBLISH": False},
        ),
        (
            ("group_norm_backward", "32x320x64x64", "float32", "channels-last"),
            {"REQUEST_AFTER_PUBLISH": False},
        ),
        (
            ("batch_norm_backward", "64x1024x14x14", "bfloat16", "channels-last"),
            {"REQUEST_AFTER_PUBLISH": False},
        ),
        (
            ("batch_norm_backward", "64x256x56x56", "bfloat16", "channels-last"),
            {"L2_TILES": 8, "TOTALS_COLUMNS": 1},
        ),
        (
            ("batch_norm_backward", "64x256x56x56", "float32", "channels-last"),
            {"L2_TILES": 16, "TOTALS_COLUMNS": 1},
        ),
        (
            ("batch_norm_backward", "64x512x28x28", "float32", "channels-last"),
            {"L2_TILES": 8, "TOTALS_COLUMNS": 0},
        ),
        (
            ("batch_norm_backward", "32x256x56x56", "bfloat16", "channels-last"),
            {"L2_TILES": 8, "TOTALS_COLUMNS": 0},
        ),
        (
            ("batch_norm_backward", "64x2048x7x7", "float32", "channels-last"),
            {"L2_TILES": 0, "REQUEST_AFTER_PUBLISH": False},
        ),
        (("batch_norm_backward", "131072x256"), {"FIXED": 10, "COLS": 128}),
        (("batch_norm_backward", "131072x256", "float32"), {"FIXED": 10, "COLS": 64}),
        (("batch_norm_backward", "256x64x112x112", "float32"), {"REQUEST_AFTER_PUBLISH": True}),
        (("batch_norm_backward", "2x64x128x128x128", "float32"), {"REQUEST_AFTER_PUBLISH": False}),
        (("batch_norm_backward", "64x256x56x56", "float32"), {"REQUEST_AFTER_PUBLISH": False}),
        (("group_norm_backward", "4x512x128x128"), {"REQUEST_AFTER_PUBLISH": True}),
        (("group_norm_backward", "1x512x512x512", "float32"), {"REQUEST_AFTER_PUBLISH": False}),
    ],
    ids=str,
)
def test_when_the_next_slab_is_asked_for(request_, when):
    (step,) = (one for one in launches(plan(*request_)) if one.kernel in COPYING)
    sizes = dict(step.constants)
    assert {name: sizes[name] for name in when} == when


def test_teams_of_rows_need_the_registers_of_the_gpus_that_are_known():
    (workload,) = suites.rows(Op.LAYER_NORM_BACKWARD, "4096x16384", ("bfloat16",))
    spec = spec_of(workload.case, "bfloat16")
    few = replace(KNOWN["h200"], registers=32768)
    assert "layer_teams" in kernels(program_of(spec, KNOWN["h200"]))
    assert "layer_teams" not in kernels(program_of(spec, few))


def test_tiles():
    assert [power_of_two(n) for n in (0, 1, 2, 3, 1024, 1025)] == [1, 1, 2, 4, 1024, 2048]
    assert [alignment(2, n) for n in (8, 12, 49, 0)] == [8, 4, 1, 8]
    assert alignment(4, 64, 6) == 2
    for run in (1, 49, 64, 196, 784, 3136, 12544, 65536, 100003):
        padded = {cols: -(-run // cols) * cols for cols in (64, 128, 256, 512, 1024)}
        assert padded[cut(run, 1024)] <= 1.05 * min(padded.values())


@pytest.mark.parametrize("resident", [1, 2, 7, 132, 528])
@pytest.mark.parametrize("slabs", [1, 2, 3, 64, 1000])
def test_teams_share_rows_evenly(resident, slabs):
    for rows in (1, 2, 31, 32, 33, 500, 4096):
        found = cut_into_teams(rows, 32, 8, slabs, resident)
        if rows > 32 * resident:
            assert found is None
            continue
        assert found.team * found.teams <= resident
        assert found.share <= 32
        assert (found.team - 1) * found.share < rows <= found.team * found.share
        assert found.teams * (found.rounds - 1) < slabs <= found.teams * found.rounds


def test_the_requests_for_gpus_launch_every_kernel_that_waits():
    """What repeats, streams and graphs are tested with."""
    calls = pytest.importorskip("cuda_calls")
    met = {}
    for request in calls.WAITING.values():
        for step in launches(plan(*request)):
            if step.cooperative:
                met.setdefault(step.kernel, []).append(dict(step.constants))
    assert set(met) == COPYING
    slabs = met["planes.plane_slabs"]
    assert any(one["CHUNKS"] > one["DEPTH"] for one in slabs)  # some of it in registers
    assert any(one["BLOCK_CHANNELS"] > 1 for one in slabs)
    assert any(one["SM_COUNTERS"] for one in slabs)
    assert {one["GROUP"] for one in slabs if one["WINDOW"]} == {0, 1}
    bulk = [one for one in slabs if one["BULK"]]
    assert {(one["GROUP"], one["SOLO"]) for one in bulk} == {(0, 0), (1, 0), (1, 1)}
    columns = met["columns.column_slabs"]
    assert any(one["TOTALS_COLUMNS"] for one in columns)
    assert any(one["GROUP"] for one in columns)


def expanded(op, shape, last=False):
    """A request whose dy is one number, expanded to the shape of x."""
    x = TensorSpec.contiguous(shape, "bfloat16")
    if last:
        stored = TensorSpec.contiguous((shape[0], *shape[2:], shape[1]), "bfloat16")
        x = stored.move_axis(len(shape) - 1, 1)
    rows = OPERATORS[op].axes == "rows"
    statistics = {"rows": shape[0], "groups": 32 * shape[0], "channels": shape[1]}
    line = TensorSpec.contiguous((statistics[OPERATORS[op].axes],), "float32")
    return Spec(
        op=op,
        dy=TensorSpec(shape, (0,) * len(shape), "bfloat16"),
        x=x,
        mean=line,
        rstd=line,
        dx=x,
        normalized_shape=shape[1:] if rows else (),
        num_groups=32 if OPERATORS[op].axes == "groups" else 1,
        device="cuda:0",
    )


@pytest.mark.parametrize(
    "spec",
    [
        expanded(Op.LAYER_NORM_BACKWARD, (1 << 20, 1 << 13)),
        expanded(Op.GROUP_NORM_BACKWARD, (1 << 10, 256, 256, 128)),
        expanded(Op.GROUP_NORM_BACKWARD, (1 << 10, 256, 256, 128), last=True),
        expanded(Op.BATCH_NORM_BACKWARD, (1 << 10, 256, 256, 128)),
        expanded(Op.BATCH_NORM_BACKWARD, (1 << 10, 256, 256, 128), last=True),
    ],
    ids=lambda spec: f"{spec.op} {spec.x.strides}",
)
def test_one_number_for_all_takes_no_memory(spec):
    """As torch's gradient of a sum has it: 16 GiB were asked for."""
    assert program_of(spec, KNOWN["h200"]).workspace_bytes <= 256 << 20
