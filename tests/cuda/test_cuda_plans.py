"""Kernel plans as pure functions: no GPU, no Triton."""

import dataclasses

import pytest
from cuda_plans import (
    BYTES,
    COLUMN_KERNELS,
    COPYING,
    blocks_of,
    kernels,
    launches,
    plan,
    resident_blocks,
    roles,
    tile_bytes,
)

from normgrad import verify
from normgrad.backends.cuda.device import INTERPRETER, KNOWN
from normgrad.backends.cuda.program import Builder, Fill, Ref
from normgrad.backends.cuda.tiles import alignment, cut, power_of_two, share_out
from normgrad.bench.suites import suite
from normgrad.cli.plan import program_of, spec_of
from normgrad.spec import RESULTS, ROLES

DEVICES = {**KNOWN, "interpreter": INTERPRETER}
SUITE = suite("h200", "cuda")
MASKS = ((True, True, True), (True, False, False), (False, True, True), (False, False, True))


def programs(device):
    """Every program of the suite, and every one of the named cases, in two types."""
    for workload in SUITE:
        yield workload.name, program_of(spec_of(workload.case, workload.dtype), DEVICES[device])
    for case in verify.CASES:
        for dtype in ("float16", "float64"):
            spec = verify.make_problem(case, dtype).spec
            yield f"{case.name} {dtype}", program_of(spec, DEVICES[device])


@pytest.fixture(scope="module", params=list(DEVICES))
def known(request):
    """(device, all its programs by name)."""
    return DEVICES[request.param], dict(programs(request.param))


@pytest.mark.parametrize("workload", SUITE, ids=lambda workload: workload.name)
def test_the_same_request_gives_the_same_program(workload):
    first, second = (
        program_of(spec_of(workload.case, workload.dtype), KNOWN["h200"]) for _ in range(2)
    )
    assert first is not second
    assert first == second
    assert hash(first) == hash(second)
    assert str(first) == str(second)


def test_blocks_that_wait_for_each_other_all_fit(known):
    device, found = known
    if device.name == INTERPRETER.name:
        pytest.skip("its blocks run one after another")
    waiting = 0
    for name, program in found.items():
        for step in launches(program):
            words = dict(step.arguments).get("words")
            if step.kernel == "copy.clear_words":
                continue
            assert step.cooperative == (words is not None), name
            if step.cooperative:
                waiting += 1
                assert step.grid[0] <= resident_blocks(device, step, tile_bytes(step)), name
                assert step.grid == (blocks_of(step), 1, 1), name
    assert waiting > 10


def cleared(program, step):
    """The words that the step before a launch sets all bits of, and how many."""
    before = program.steps[program.steps.index(step) - 1]
    if isinstance(before, Fill):
        assert before.value == 0xFF  # no sum has these bits
        return before.target, before.nbytes // 8
    assert before.kernel == "copy.clear_words"
    return tuple(dict(before.arguments).values())


def test_slabs_are_covered(known):
    """Every row of every slab has its block."""
    device, found = known
    seen = 0
    for name, program in found.items():
        for step in launches(program):
            if step.kernel != "planes.plane_slabs":
                continue
            given, sizes = dict(step.arguments), dict(step.constants)
            seen += 1
            abreast = sizes["COLS"] // sizes["PLANE"] if sizes["PLANE"] else 1
            assert given["share"] <= abreast * sizes["ROWS"] * sizes["CHUNKS"], name
            if sizes["PLANE"]:
                assert (given["pieces"], given["piece"]) == (1, given["run"]), name
                assert given["run"] * sizes["ALIGN"] == sizes["PLANE"] <= sizes["COLS"], name
            if sizes["BLOCK_CHANNELS"] > 1:
                assert sizes["BLOCK_CHANNELS"] * sizes["PIXELS"] == sizes["PLANE"], name
            assert sizes["HELD"] <= sizes["CHUNKS"] <= sizes["DEPTH"] + sizes["HELD"], name
            for row in (0, 1, given["pieces"] - 1, given["pieces"], given["rows"] - 1):
                made = row * (given["magic"] % (1 << 32)) >> 32 if given["magic"] else row
                assert made == row // given["pieces"], name
            assert given["team"] * given["share"] >= given["rows"], name
            assert given["teams"] <= given["slabs"], name
            # Each piece of a plane that is a row, with what is left over in the last.
            window = sizes["WINDOW"]
            piece, run = given["piece"] * (window or sizes["ALIGN"]), given["run"] * sizes["ALIGN"]
            # Wherever in a vector the plane starts.
            assert given["pieces"] * piece >= run + max(0, window - 1), name
            assert piece <= sizes["COLS"], name
            assert sizes["TEAM"] >= given["team"], name
            assert sizes["TEAM"] * sizes["BLOCK_CHANNELS"] >= 32 * step.warps, name
            if step.cooperative:
                words = given["slabs"] * sizes["COPIES"] * given["team"] * sizes["BLOCK_CHANNELS"]
                words = 0 if sizes["SOLO"] else words
                assert given["tally"] == words, name
                words += sizes["MEETS"]
                if sizes["SEATS"]:  # counters for the teams and for each multiprocessor
                    assert sizes["SEATS"] >= device.multiprocessors, name
                    words += given["teams"] + sizes["SEATS"]
                assert cleared(program, step) == (given["words"], words), name
    assert (seen > 5) == device.copies_ahead


def test_partial_sums_are_joined(known):
    """All of them, where blocks wait for each other at the end; else by a launch."""
    _, found = known
    seen = 0
    for name, program in found.items():
        for step in launches(program):
            given, sizes = dict(step.arguments), dict(step.constants)
            if "MEETS" not in sizes:
                continue
            last = launches(program)[-1].kernel
            assert sizes["MEETS"] or given["partials"] is None or "finish" in last, name
            if not sizes["MEETS"]:
                continue
            seen += 1
            assert given["dgamma"] or given["dbeta"], name
            assert step.cooperative, name
            count = given.get("programs") or given.get("teams")
            if step.kernel == "row_ring.whole_rows":
                count = given["parts"] * sizes["SAMPLES"]
            if "CHANNELS" in sizes:
                planes = step.kernel == "planes.plane_slabs"
                samples = given["slabs"] // given["split"] if planes else given["images"]
                count = samples * given["pieces" if planes else "parts"]
            assert sizes["TIMES"] * sizes.get("DOWN", sizes.get("PARTS")) >= count, name
            tile = sizes.get("DOWN", 1) * sizes.get("WIDTH", 1)
            tile *= sizes.get("PARTS", 1) * sizes.get("CHANNELS", 1)
            assert tile <= 8 * 32 * step.warps, name  # registers
    assert seen > 10


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ("64x512x7x7", 32),
        ("3x33x7x7", 11),
        ("331x6x1x3", 3),
        ("24263x3x5x7", 3),
        ("70x24x5x5", 6),
        ("16384x512", 32),
        ("1001x64", 4),
        ("64x512x14x14", 512),
        ("9x1000x8x8", 1000),
        ("2x7x90x90", 7),
        ("64x320x17x17", 32),
        ("1x64x16x16", 2),
    ],
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_slabs_in_rings_are_covered(shape, groups, dtype):
    """Each by one block, whose sets have the same groups; bulk copies start and end in 16 bytes."""
    step = launches(plan("group_norm", shape, dtype, groups=groups))[-1]
    assert step.kernel == "row_ring.whole_rows"
    given, sizes = dict(step.arguments), dict(step.constants)
    rows, height, parts = given["rows"], sizes["ROWS"], given["parts"]
    size = sizes["COLS"] * BYTES[dtype]
    covered = []
    for program in range(step.grid[0]):
        tall = sizes["SAMPLES"] * groups
        start, stride = program * tall, parts * tall
        if sizes["SAMPLES"] == 1:
            part, block = divmod(program, -(-groups // height))
            start, stride = part * groups + block * height, parts * groups
            tall = min(groups - block * height, height)
        assert start < rows
        for first in range(start, rows, stride):
            count = min(tall, rows - first)
            assert first % groups == start % groups
            assert sizes["EVEN"] <= (count == height)
            last = first + count == rows
            assert sizes["SHIFTED"] or not first * size % 16
            assert sizes["SHIFTED"] or last or not count * size % 16
            covered += range(first, first + count)
        steps = len(range(start, rows, stride))
        assert sizes["AGAIN"] or steps * height <= sizes["NOTED"]
    assert sorted(covered) == list(range(rows))
    assert sizes["RAGGED"] == (rows * size % 16 > 0)
    assert sizes["SAMPLES"] == max(1, height // groups)


def test_rows_of_teams_are_covered(known):
    """Every column has its block, every row its team, and the ring its next step under way."""
    device, found = known
    seen = 0
    for name, program in found.items():
        for step in launches(program):
            if step.kernel != "row_teams.layer_teams":
                continue
            given, sizes = dict(step.arguments), dict(step.constants)
            seen += 1
            assert step.grid == (given["team"] * given["teams"], 1, 1), name
            assert given["team"] * given["width"] >= given["cols"], name
            assert (given["team"] - 1) * given["width"] < given["cols"], name
            assert given["width"] * sizes["ALIGN"] <= sizes["COLS"] * sizes["CHUNKS"], name
            assert given["team"] <= 32 * step.warps, name  # a thread polls one word
            assert given["teams"] <= given["rows"], name
            assert sizes["RING"] >= sizes["LAG"] + 2, name
            words = given["rows"] * given["team"]
            assert given["tally"] == words, name
            assert cleared(program, step) == (given["words"], words + sizes["MEETS"]), name
    assert (seen > 2) == device.copies_ahead


def test_slabs_of_columns_are_covered(known):
    """Every row and column of a slab has its block, every bin of a block its words."""
    device, found = known
    seen = set()
    for name, program in found.items():
        for step in launches(program):
            if step.kernel not in COLUMN_KERNELS:
                continue
            seen.add(step.kernel)
            given, sizes = dict(step.arguments), dict(step.constants)
            align, group, cols = sizes["ALIGN"], sizes["GROUP_SIZE"], sizes["COLS"]
            assert given["team"] == given["parts"] * given["pieces"], name
            assert given["parts"] * given["share"] >= given["rows"], name
            width = given["width"] * align
            assert given["pieces"] * cols >= width, name
            assert given["split"] * given["width"] >= given["channels"], name
            assert given["slabs"] == given["images"] * given["split"], name
            assert given["teams"] <= given["slabs"], name
            assert given["bins"] * group == width, name
            tiles = -(-given["share"] // sizes["ROWS"])
            if "FIXED" in sizes:
                assert sizes["FIXED"] + sizes["HELD"] + given["stream"] == tiles, name
                assert sizes["FIXED"] + sizes["HELD"] >= sizes["DEPTH"], name
                assert given["stream"] >= sizes["DEPTH"], name
            else:
                assert sizes["CHUNKS"] == tiles, name
                assert sizes["HELD"] <= tiles <= sizes["DEPTH"] + sizes["HELD"], name
            # Groups that a block's columns lie in, and blocks that a group's columns lie in.
            for start in range(0, width, cols):
                last = min(start + cols, width) - 1
                assert last // group - start // group < sizes["BINS"], name
            for start in range(0, width, group):
                assert (start + group - 1) // cols - start // cols < sizes["SPANS"], name
            own = sizes["OWN"]
            each, rest = divmod(sizes["STEP"] * (own or sizes["BINS"]), 32 * step.warps)
            assert 1 <= each <= 16, name
            assert rest == 0, name
            if step.cooperative:
                assert own == 0 or own * given["parts"] >= cols == given["bins"], name
                parts = given["parts"] + (own > 0)
                words = given["slabs"] * parts * sizes["SPANS"] * given["bins"]
                words = 0 if sizes.get("SOLO") else words
                assert given["tally"] == words, name
                assert cleared(program, step) == (given["words"], words + sizes["MEETS"]), name
    assert bool(seen) == device.copies_ahead
    if device is KNOWN["h200"]:
        assert seen == COLUMN_KERNELS


def test_slabs_of_51_megabytes_stay_on_an_h200_and_stream_on_an_a100():
    found = {}
    for device in ("h200", "a100"):
        steps = launches(plan("batch_norm", "64x256x56x56", layout="channels-last", device=device))
        (found[device],) = (step for step in steps if step.kernel in COLUMN_KERNELS)
    sizes = dict(found["h200"].constants)
    assert [sizes[name] for name in ("CHUNKS", "DEPTH", "HELD", "OWN")] == [48, 27, 21, 1]
    assert found["a100"].kernel == "column_streams.column_streams"


def test_a_launch_starts_early_only_behind_what_it_may_overtake(known):
    """What comes before must write nothing that is read before the wait: words, or all of it."""
    device, found = known
    early = 0
    for name, program in found.items():
        for before, step in zip((None, *program.steps), program.steps, strict=False):
            if getattr(step, "early", False):
                early += 1
                assert device.capability >= 90, name
                assert before is not None, name
                waits_first = step.kernel.startswith("sums.finish")
                assert waits_first or before.kernel == "copy.clear_words", name
    assert bool(early) == (device.capability >= 90)


def test_programs_for_any_address_need_no_asynchronous_copies(known):
    _, found = known
    for name, program in found.items():
        copying = COPYING & {step.kernel for step in launches(program)}
        assert bool(copying) == (program.unaligned is not None), name
        if program.unaligned is not None:
            assert not COPYING & {step.kernel for step in launches(program.unaligned)}, name


def test_grids_are_what_cuda_takes(known):
    _, found = known
    for name, program in found.items():
        for step in launches(program):
            x, y, z = step.grid
            assert 0 < x < 1 << 31, name
            assert 0 < y < 1 << 16, name
            assert 0 < z < 1 << 16, name
            assert step.warps in (1, 2, 4, 8, 16), name


def test_planes_of_very_many_pixels_are_not_taken_as_columns():
    """Those are counted in 32 bits; planes have offsets of 64."""
    assert kernels(plan("batch_norm_elemt", "1x3x300000001", "bfloat16")) == ["column_apply"]
    assert kernels(plan("batch_norm_elemt", "1x3x800000001", "bfloat16")) == ["plane_apply"]


def test_more_samples_than_an_axis_of_a_grid_has():
    program = plan("group_norm", "131072x64", "float64")
    assert launches(program)[-1].grid == (131072, 1, 1)


def test_nothing_reads_the_data_once_dx_is_written(known):
    """``dx`` may lie over ``x`` or ``dy``; the launch that writes it reads its own elements."""
    _, found = known
    for name, program in found.items():
        writers = [i for i, step in enumerate(program.steps) if "dx" in roles(step)]
        assert len(writers) <= 1, name
        for step in program.steps[writers[0] + 1 :] if writers else ():
            assert not roles(step) & {"x", "dy"}, name


def test_pieces_of_the_workspace_lie_apart_and_inside(known, monkeypatch):
    device, found = known
    pieces = []

    def noted(builder, count, dtype):
        ref = scratch(builder, count, dtype)
        pieces.append((ref.offset, ref.offset + count * BYTES[dtype]))
        return ref

    scratch = Builder.scratch
    monkeypatch.setattr(Builder, "scratch", noted)
    for name, program in found.items():
        starts = set()
        for step in program.steps:
            given = [step.target] if isinstance(step, Fill) else dict(step.arguments).values()
            for ref in given:
                if isinstance(ref, Ref) and ref.role == "":
                    # The second of two sums starts right after the first.
                    assert ref.offset % BYTES[ref.dtype] == 0, name
                    assert 0 <= ref.offset < program.workspace_bytes, name
                    starts.add(ref.offset)
        assert bool(starts) == (program.workspace_bytes > 0), name
    for workload in SUITE:
        for mask in MASKS if len(RESULTS[workload.case.op]) == 3 else ((),):
            pieces.clear()
            case = dataclasses.replace(workload.case, mask=mask)
            program = program_of(spec_of(case, workload.dtype), device)
            programs = [one for one in (program, program.unaligned) if one is not None]
            ends = [0]
            for start, end in pieces:  # one program after another
                assert start >= ends[-1] or start == 0, workload.name
                ends.append(end)
            assert max(ends) <= max(one.workspace_bytes for one in programs), workload.name


def test_every_result_is_written(known):
    """A result that is wanted appears in a step; one that is not does not."""
    device, _ = known
    for case in verify.CASES:
        spec = verify.make_problem(case, "float32").spec
        program = program_of(spec, device)
        sizes = {role: spec.tensor(role).size for role in spec.wanted}
        touched = set().union(*(roles(step) for step in program.steps))
        assert {role for role, size in sizes.items() if size} <= touched, case.name
        assert not touched & (set(spec.results) - set(spec.wanted)), case.name
        assert touched <= set(ROLES)


@pytest.mark.parametrize(
    ("request_", "strategy"),
    [
        (("batch_norm", "64x256x56x56"), "resident planes"),
        (("batch_norm", "64x256x56x56", "float32"), "resident planes"),
        (("batch_norm", "64x256x56x56", "float64"), "two passes (planes)"),
        (("batch_norm", "64x2048x7x7"), "resident planes"),
        (("batch_norm", "2x64x128x128x128"), "resident planes"),
        (("batch_norm", "2x64x128x128x128", "float32"), "resident planes"),
        (("batch_norm", "64x64x112x112", "bfloat16", "contiguous", "t4"), "two passes (planes)"),
        (("batch_norm", "20x6x65536", "float32", "contiguous", "rtx4090"), "two passes (planes)"),
        (("batch_norm", "2x256x129x129"), "resident planes"),  # in windows
        (("batch_norm", "3x129x129x129"), "two passes (planes)"),  # data that end anywhere
        (("batch_norm", "1x512x31x31"), "whole slabs in a ring"),  # one sample: instance norm
        (("batch_norm", "131072x256"), "resident columns"),
        (("batch_norm", "131072x256", "float64"), "two passes (columns)"),
        (("batch_norm", "64x256x56x56", "float32", "channels-last"), "resident columns"),
        (("batch_norm", "64x1024x14x14", "bfloat16", "channels-last"), "resident columns"),
        (("group_norm", "64x256x56x56", "bfloat16", "channels-last"), "resident columns"),
        (("group_norm", "2x960x64x64", "bfloat16", "channels-last"), "resident columns"),
        (("group_norm", "131072x64"), "whole slabs in a ring"),  # images of one pixel
        (("group_norm", "131072x64", "float64"), "two passes (columns)"),
        (("group_norm", "64x512x7x7"), "whole slabs in a ring"),
        (("group_norm", "64x320x17x17", "float32"), "whole slabs in a ring"),
        (("group_norm", "16x1280x16x16"), "resident planes"),  # too long for it
        (("group_norm", "3x32x7x7", "float32"), "whole slabs in a ring"),
        (("group_norm", "8x320x64x64", "float32", "channels-last", "t4"), "two passes (columns)"),
        (("batch_norm_reduce", "64x256x56x56"), "sums (planes)"),
        (("batch_norm_reduce", "64x256x56x56", "float32", "channels-last"), "sums (columns)"),
        (("batch_norm_elemt", "64x256x56x56"), "elements (planes)"),
        (("batch_norm_elemt", "64x256x56x56", "float32", "channels-last"), "elements (columns)"),
        (("group_norm", "64x256x56x56"), "resident planes"),
        (("group_norm", "1x128x1024x1024"), "resident planes"),
        (("group_norm", "1x128x1024x1024", "float32"), "resident planes"),
        (("group_norm", "1x512x512x512", "float32", "contiguous", "a100"), "two passes (planes)"),
        (("layer_norm", "16384x4096"), "whole rows in a ring, 132 programs"),
        (("layer_norm", "16384x4095"), "whole rows in a ring, 132 programs"),
        (("layer_norm", "300x640", "float32"), "whole rows in a ring, 75 programs"),
        (("layer_norm", "65536x512", "float32"), "whole rows, 396 programs"),
        (("layer_norm", "16384x4096", "float32", "contiguous", "a100"), "whole rows, 108 programs"),
        (("layer_norm", "3x64"), "whole rows in a ring, 1 programs"),
        (("layer_norm", "3x63"), "whole rows in a ring, 1 programs"),
        (("layer_norm", "65536x300"), "whole rows in a ring, 264 programs"),
        (("layer_norm", "65537x300"), "whole rows in a ring, 264 programs"),
        (("layer_norm", "65537x300", "bfloat16", "contiguous", "a100"), "whole rows, 216 programs"),
        (("layer_norm", "16383x4095"), "whole rows in a ring, 132 programs"),
        (("layer_norm", "16384x3072"), "whole rows in a ring, 132 programs"),
        (("layer_norm", "128x12288"), "whole rows, 128 programs"),
        (("layer_norm", "1024x12288"), "resident rows, 88 teams"),
        (("layer_norm", "1024x65536"), "resident rows, 16 teams"),
        (("layer_norm", "4096x16384"), "resident rows, 66 teams"),
        (("layer_norm", "4096x16384", "float32"), "resident rows, 33 teams"),
        (("layer_norm", "4096x16384", "bfloat16", "contiguous", "t4"), "long rows"),
        (("layer_norm", "16x2097152"), "long rows"),
        (("layer_norm", "64x512", "float64"), "long rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_which_strategy(request_, strategy):
    assert plan(*request_).strategy == strategy


def test_small_shapes_take_one_or_two_launches():
    assert len(plan("batch_norm", "4x8x5x5").steps) == 1
    assert len(plan("layer_norm", "64x256").steps) == 2
    assert len(plan("group_norm", "2x32x8x8").steps) == 2


def test_data_of_nothing_set_the_parameters_to_0():
    spec = verify.make_problem(*verify.select("batch_norm", "empty-batch"), "float32").spec
    program = program_of(spec, KNOWN["h200"])
    assert program.strategy == "zeros"
    assert [roles(step) for step in program.steps] == [{"dgamma"}, {"dbeta"}]
    assert all(isinstance(step, Fill) and step.value == 0 for step in program.steps)


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_a_mask_saves_launches_and_streams(layout):
    for op in ("batch_norm", "group_norm"):
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
        plan("layer_norm", "4096x4096", mask=mask) for mask in MASKS
    )
    assert all("x" not in roles(step) for step in bias.steps)
    assert kernels(everything) == ["clear_words", "whole_rows"]
    assert kernels(gradient) == ["whole_rows"]
    assert gradient.workspace_bytes == 0
    assert kernels(parameters) == ["clear_words", "whole_rows"]
    assert dict(launches(parameters)[1].arguments)["dx"] is None
    assert kernels(bias) == ["clear_words", "layer_rows"]  # the ring reads x too
    long_gradient, long_parameters = (
        plan("layer_norm", "4096x16384", mask=mask) for mask in MASKS[1:3]
    )
    assert kernels(long_gradient) == ["clear_words", "layer_teams"]
    assert kernels(long_parameters) == ["row_apply"]  # narrow strips: nothing to join


def the_windows(*request, **options):
    sizes = (dict(step.constants) for step in launches(plan(*request, **options)))
    return [one["WINDOW"] for one in sizes if "WINDOW" in one]


def test_planes_that_start_anywhere_are_read_by_whole_vectors():
    for op in ("batch_norm", "group_norm", "batch_norm_elemt", "batch_norm_reduce"):
        for dtype, window in (("bfloat16", 8), ("float32", 4)):
            assert the_windows(op, "2x64x129x129", dtype) == [window]
            assert the_windows(op, "2x64x128x128", dtype) == [0]
            # The last vector would reach behind the data.
            assert set(the_windows(op, "3x33x129x129", dtype, groups=3)) <= {0}
    assert the_windows("batch_norm", "2x64x129x129", "float64") in ([0], [0, 0])
    assert the_windows("batch_norm", "64x64x129x129", device="t4") == [8, 8]  # two passes
    # By copies of 8 bytes if planes are small, and some channels together if they are tiny.
    assert the_windows("batch_norm", "32x256x30x30") == [0]
    assert the_windows("batch_norm", "16x512x1500") == [8]
    assert the_windows("batch_norm", "64x512x7x7") == [0]


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_inference_reads_what_it_needs(layout):
    cases = verify.select("batch_norm", f"mask-100-{layout}-inference")
    (step,) = program_of(spec_of(*cases, "float32"), KNOWN["h200"]).steps
    assert dict(step.arguments)["x"] is None  # two streams: dy and dx
    assert not dict(step.constants)["CORRECT"]
    cases = verify.select("batch_norm", f"mask-111-{layout}-inference")
    sums, finish, apply = program_of(spec_of(*cases, "float32"), KNOWN["h200"]).steps
    assert {"x", "dy"} <= roles(sums)
    assert roles(finish) >= {"dgamma", "dbeta"}
    assert dict(apply.arguments)["x"] is None


def test_odd_strides_cost_a_copy_and_channels_last_do_not():
    def copies(name, *, wanted):
        spec = verify.make_problem(*verify.select("batch_norm", name), "float32").spec
        program = program_of(spec, KNOWN["h200"])
        assert kernels(program).count("strided_copy") == wanted, name

    # The cases' dx is contiguous here: x and dy that lie otherwise are packed, dx is not.
    copies("nchw", wanted=0)
    copies("two-axes", wanted=0)
    copies("flipped", wanted=2)
    (workload,) = (
        one for one in SUITE if one.name == "batch_norm 64x256x56x56 float32 channels-last"
    )
    assert "strided_copy" not in kernels(
        program_of(spec_of(workload.case, "float32"), KNOWN["h200"])
    )


def test_workspaces_are_small():
    """The words of the blocks, partial sums; never a copy of the data of a usual layout."""
    for workload in SUITE:
        spec = spec_of(workload.case, workload.dtype)
        assert program_of(spec, KNOWN["h200"]).workspace_bytes <= 16 << 20, workload.name
    assert plan("batch_norm", "64x256x56x56").workspace_bytes < 64 << 10
    assert plan("batch_norm_elemt", "64x256x56x56").workspace_bytes == 0


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
        found = share_out(rows, 32, 8, slabs, resident)
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
    assert any(one["SEATS"] for one in slabs)
    assert {one["GROUP"] for one in slabs if one["WINDOW"]} == {0, 1}
    bulk = [one for one in slabs if one["BULK"]]
    assert {(one["GROUP"], one["SOLO"]) for one in bulk} == {(0, 0), (1, 0), (1, 1)}
    columns = met["columns.column_slabs"]
    assert any(one["OWN"] for one in columns)
    assert any(one["GROUP"] for one in columns)
