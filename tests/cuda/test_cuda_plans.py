"""Kernel plans as pure functions: no GPU, no Triton."""

import dataclasses
from types import SimpleNamespace

import pytest
from cuda_plans import (
    BYTES,
    COLUMN_KERNELS,
    MASKS,
    SUITE,
    blocks_of,
    kernels,
    launches,
    plan,
    resident_blocks,
    roles,
    tile_bytes,
)

from normgrad import verify
from normgrad.backends.cuda.device import INTERPRETER, KNOWN, device_of
from normgrad.backends.cuda.plan.program import Builder, Fill
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.spec import DATA, ROLES

COPIES = {"copy.flat_copy", "copy.strided_copy", "copy.transposed_copy"}
ELEMENTS = {"apply.plane_apply", "apply.column_apply"}
DEVICES = {**KNOWN, "interpreter": INTERPRETER}


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
            words = dict(step.arguments).get("sum_words")
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
            assert (
                sizes["REGISTER_TILES"]
                <= sizes["CHUNKS"]
                <= sizes["DEPTH"] + sizes["REGISTER_TILES"]
            ), name
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
                assert given["arrivals"] == words, name
                words += sizes["JOINS_AT_END"]
                if sizes["SM_COUNTERS"]:  # counters for the teams and for each multiprocessor
                    assert sizes["SM_COUNTERS"] >= device.multiprocessors, name
                    words += given["teams"] + sizes["SM_COUNTERS"]
                assert cleared(program, step) == (given["sum_words"], words), name
    assert (seen > 5) == device.copies_ahead


def test_partial_sums_are_joined(known):
    """All of them, where blocks wait for each other at the end; else by a launch."""
    _, found = known
    seen = 0
    for name, program in found.items():
        for step in launches(program):
            given, sizes = dict(step.arguments), dict(step.constants)
            if "JOINS_AT_END" not in sizes:
                continue
            last = launches(program)[-1].kernel
            assert sizes["JOINS_AT_END"] or given["partials"] is None or "finish" in last, name
            if not sizes["JOINS_AT_END"]:
                continue
            seen += 1
            assert given["dgamma"] or given["dbeta"], name
            assert step.cooperative, name
            count = given.get("programs") or given.get("teams")
            if step.kernel == "row_ring.whole_rows":
                count = given["parts"] * sizes["SAMPLES"]
            if "JOIN_CHANNELS" in sizes:
                planes = step.kernel == "planes.plane_slabs"
                samples = given["slabs"] // given["split"] if planes else given["images"]
                if sizes["EACH"]:  # those of each sample are joined by themselves
                    samples = 1
                count = samples * given["pieces" if planes else "parts"]
            assert sizes["JOIN_STEPS"] * sizes.get("JOIN_ROWS", sizes.get("JOIN_PARTS")) >= count, (
                name
            )
            tile = sizes.get("JOIN_ROWS", 1) * sizes.get("JOIN_COLUMNS", 1)
            tile *= sizes.get("JOIN_PARTS", 1) * sizes.get("JOIN_CHANNELS", 1)
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
    step = launches(plan("group_norm_backward", shape, dtype, groups=groups))[-1]
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
            assert sizes["FULL_SETS"] <= (count == height)
            last = first + count == rows
            assert sizes["SHIFTED"] or not first * size % 16
            assert sizes["SHIFTED"] or last or not count * size % 16
            covered += range(first, first + count)
        steps = len(range(start, rows, stride))
        assert sizes["AGAIN"] or steps * height <= sizes["STATISTICS_ROWS"]
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
            assert given["arrivals"] == words, name
            assert cleared(program, step) == (given["sum_words"], words + sizes["JOINS_AT_END"]), (
                name
            )
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
            width = given["width"] * align
            assert given["pieces"] * cols >= width, name
            assert given["split"] * given["width"] >= given["channels"], name
            assert given["slabs"] == given["images"] * given["split"], name
            assert given["teams"] <= given["slabs"], name
            assert given["bins"] * group == width, name
            if "FIXED" in sizes:
                tiles = sizes["FIXED"] + sizes["REGISTER_TILES"] + given["stream"]
                assert sizes["FIXED"] + sizes["REGISTER_TILES"] >= sizes["DEPTH"], name
                assert given["stream"] >= sizes["DEPTH"], name
            else:
                tiles = sizes["CHUNKS"]
                assert (
                    sizes["REGISTER_TILES"] <= tiles <= sizes["DEPTH"] + sizes["REGISTER_TILES"]
                ), name
            assert given["parts"] * tiles * sizes["ROWS"] >= given["rows"], name
            # Groups that a block's columns lie in, and blocks that a group's columns lie in.
            for start in range(0, width, cols):
                last = min(start + cols, width) - 1
                assert last // group - start // group < sizes["BINS"], name
            for start in range(0, width, group):
                assert (start + group - 1) // cols - start // cols < sizes["SPANS"], name
            own = sizes["TOTALS_COLUMNS"]
            each, rest = divmod(sizes["STEP"] * (own or sizes["BINS"]), 32 * step.warps)
            assert 1 <= each <= 16, name
            assert rest == 0, name
            if step.cooperative:
                assert own == 0 or own * given["parts"] >= cols == given["bins"], name
                parts = given["parts"] + (own > 0)
                words = given["slabs"] * parts * sizes["SPANS"] * given["bins"]
                words = 0 if sizes.get("SOLO") else words
                assert given["arrivals"] == words, name
                assert cleared(program, step) == (
                    given["sum_words"],
                    words + sizes["JOINS_AT_END"],
                ), name
    assert bool(seen) == device.copies_ahead
    if device is KNOWN["h200"]:
        assert seen == COLUMN_KERNELS


def test_a_gpu_is_what_torch_says_of_it(monkeypatch):
    said = SimpleNamespace(
        name="NVIDIA GeForce RTX 5090",
        major=12,
        minor=0,
        multi_processor_count=170,
        regs_per_multiprocessor=65536,
        shared_memory_per_multiprocessor=100 << 10,
        max_threads_per_multi_processor=1536,
    )
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: said)
    assert device_of.__wrapped__(0) == KNOWN["rtx5090"]


def test_slabs_of_51_megabytes_stay_on_an_h200_and_stream_on_an_a100():
    found = {}
    for device in ("h200", "a100"):
        steps = launches(
            plan("batch_norm_backward", "64x256x56x56", layout="channels-last", device=device)
        )
        (found[device],) = (step for step in steps if step.kernel in COLUMN_KERNELS)
    sizes = dict(found["h200"].constants)
    assert [sizes[name] for name in ("CHUNKS", "DEPTH", "REGISTER_TILES", "TOTALS_COLUMNS")] == [
        48,
        27,
        21,
        1,
    ]
    assert found["a100"].kernel == "column_streams.column_streams"


@pytest.mark.parametrize(
    ("request_", "tiles"),
    [
        (("batch_norm_backward", "131072x256", "bfloat16"), (9, 10, 0)),
        (("batch_norm_backward", "131072x256", "float32"), (11, 10, 0)),
        (
            ("batch_norm_backward", "20x6x65536", "float32", "channels-last"),
            (8, 10, 0),
        ),  # copies of 8 bytes
        (("group_norm_backward", "1x512x512x512", "bfloat16", "channels-last"), (10, 10, 3)),
        (("group_norm_backward", "1x512x512x512", "float32", "channels-last"), (11, 11, 3)),
        (("group_norm_backward", "1x480x256x256", "float32", "channels-last"), (9, 11, 0)),
    ],
    ids=str,
)
def test_how_much_of_a_stream_stays(request_, tiles):
    """In registers, in shared memory; and what the L2 cache is to fetch of the next slab."""
    (step,) = (one for one in launches(plan(*request_)) if one.kernel in COLUMN_KERNELS)
    sizes = dict(step.constants)
    assert step.kernel == "column_streams.column_streams"
    assert tuple(sizes[name] for name in ("REGISTER_TILES", "FIXED", "L2_TILES")) == tiles
    assert sizes["DEPTH"] == 3


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
                waits_first = step.kernel.startswith("finish.finish_")
                assert waits_first or before.kernel == "copy.clear_words", name
    assert bool(early) == (device.capability >= 90)


def test_programs_for_any_address_are_the_same_on_copies(known):
    """What is copied asynchronously lies in the workspace there, at multiples of 16 bytes."""
    _, found = known
    for name, program in found.items():
        used = {step.kernel for step in launches(program)}
        if program.unaligned is None:
            assert used <= {*COPIES, "copy.add_counts"} | ELEMENTS, name
            continue
        steps = [step for step in program.unaligned.steps if roles(step) & set(DATA)]
        assert {step.kernel for step in steps} <= COPIES, name
        read = [roles(step) & set(DATA) for step in program.steps if not is_copy(step)]
        more = len(program.unaligned.steps) - len(program.steps)
        assert more == len(set().union(*read)), name
        same = [step.kernel for step in launches(program.unaligned) if not is_copy(step)]
        assert same == [step.kernel for step in launches(program) if not is_copy(step)], name


def is_copy(step):
    return getattr(step, "kernel", "") in COPIES


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
    assert kernels(plan("batch_norm_elemt_backward", "1x3x300000001", "bfloat16")) == [
        "column_apply"
    ]
    assert kernels(plan("batch_norm_elemt_backward", "1x3x800000001", "bfloat16")) == [
        "plane_apply"
    ]


def test_more_samples_than_an_axis_of_a_grid_has():
    program = plan("group_norm_backward", "131072x64", "float64")
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
            for ref in step.refs:
                if ref.role == "":
                    # The second of two sums starts right after the first.
                    assert ref.offset % BYTES[ref.dtype] == 0, name
                    assert 0 <= ref.offset < program.workspace_bytes, name
                    starts.add(ref.offset)
        assert bool(starts) == (program.workspace_bytes > 0), name
    for workload in SUITE:
        for mask in MASKS if len(workload.case.results) == 3 else ((),):
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


def test_arguments_are_the_parameters_of_the_kernels():
    """Each of them, each once: the interpreter and the compiler would find fewer mistakes."""
    launch = pytest.importorskip("normgrad.backends.cuda.run.launch")
    pytest.importorskip("triton")
    for name, program in programs("h200"):
        for step in (*launches(program), *launches(program.unaligned or program)):
            given = [one for one, _ in (*step.arguments, *step.constants)]
            assert sorted(given) == sorted(launch.kernel_of(step.kernel).arg_names), (name, step)
