"""Every kernel compiled for GPUs that are not here: Triton and its assembler need none.

A second or less for each. What is asked of the machine code: blocks that wait for each other fit
as the plan says, the next slab comes by asynchronous copies, nothing large is spilled.
"""

import hashlib
import itertools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cuda_plans import COLUMN_KERNELS, COPYING, KNOWN, launches, plan, resident_blocks

from normgrad.backends.base import unknown_to_fast
from normgrad.backends.cuda.plan import forms
from normgrad.cli.plan import program_of
from normgrad.core.operators import OPERATORS, RESULTS
from normgrad.core.spec import Op, Spec, TensorSpec

triton = pytest.importorskip("triton")
launch = pytest.importorskip("normgrad.backends.cuda.run.launch")
pytestmark = pytest.mark.skipif(launch.interpreting(), reason="the interpreter compiles nothing")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

# One request for each kernel and each shape of its code.
PLANES = (
    ("batch_norm_backward", "64x256x56x56", "bfloat16"),
    ("batch_norm_backward", "64x256x56x56", "float32"),
    (
        "batch_norm_backward",
        "256x2048x7x7",
        "bfloat16",
    ),  # channels taken together, planes side by side
    ("batch_norm_backward", "256x2048x7x7", "float32"),
    ("batch_norm_backward", "64x1024x14x14", "float16"),  # in one block
    ("batch_norm_backward", "64x1024x14x14", "float32"),
    ("batch_norm_backward", "256x64x21x21", "float16"),  # planes of 7 KB
    ("batch_norm_backward", "256x256x14x14", "float32"),  # planes of one channel side by side
    ("group_norm_backward", "64x256x56x56", "bfloat16"),
    ("group_norm_backward", "8x320x64x64", "float32"),
    (
        "batch_norm_backward",
        "2x64x128x128x128",
        "bfloat16",
    ),  # more tiles than shared memory has room for
    ("batch_norm_backward", "256x64x112x112", "float16"),
    ("batch_norm_backward", "256x64x112x112", "float32"),  # by bulk copies
    ("batch_norm_backward", "2x64x128x128x128", "float32"),
    ("group_norm_backward", "1x512x512x512", "float32"),
    ("group_norm_backward", "1x512x512x512", "bfloat16"),
    ("group_norm_backward", "2x320x64x64", "float16"),
    ("group_norm_backward", "4x512x128x128", "bfloat16"),
)
WINDOWS = (  # planes that start anywhere
    ("batch_norm_backward", "2x256x129x129", "bfloat16"),
    ("batch_norm_backward", "1x2048x113x165", "float16"),
    ("batch_norm_backward", "32x64x149x149", "float32"),
    ("batch_norm_backward", "8x64x513x513", "bfloat16"),
    ("group_norm_backward", "2x64x401x601", "float32"),
    ("group_norm_backward", "1x128x513x513", "bfloat16"),
)
COLUMNS = (
    (
        "batch_norm_backward",
        "64x256x56x56",
        "bfloat16",
        "channels-last",
    ),  # as many tiles as there is room
    ("batch_norm_backward", "64x256x56x56", "float32", "channels-last"),
    ("group_norm_backward", "64x256x56x56", "bfloat16", "channels-last"),
    (
        "group_norm_backward",
        "64x256x56x56",
        "float32",
        "channels-last",
    ),  # two blocks a multiprocessor
    ("group_norm_backward", "64x640x32x32", "float32", "channels-last"),
    ("batch_norm_backward", "64x512x28x28", "float16", "channels-last"),  # totals of two columns
    ("batch_norm_backward", "256x2048x7x7", "float32", "channels-last"),  # small teams
    ("batch_norm_backward", "131072x256", "float32"),
    (
        "group_norm_backward",
        "16x320x64x64",
        "bfloat16",
        "channels-last",
    ),  # groups that lie in two blocks
    ("group_norm_backward", "2x960x64x64", "float16", "channels-last"),
    ("batch_norm_backward", "64x64x112x112", "bfloat16", "channels-last"),  # streamed
    ("batch_norm_backward", "16x256x128x128", "float16", "channels-last"),
    (
        "group_norm_backward",
        "1x512x512x512",
        "float32",
        "channels-last",
    ),  # a tile more in shared memory
    ("group_norm_backward", "1x512x512x512", "float16", "channels-last"),  # groups of whole vectors
    ("group_norm_backward", "2x64x512x512", "float32", "channels-last"),  # all of the shared memory
)
SLABS = (
    ("group_norm_backward", "64x512x7x7", "bfloat16"),  # in a warp
    ("group_norm_backward", "64x1024x14x14", "float32"),  # across a block
    ("group_norm_backward", "64x320x17x17", "float16"),  # sets that start anywhere
    ("group_norm_backward", "16384x512", "bfloat16"),  # several samples in a set
    ("group_norm_backward", "128x32x100x100", "float32"),  # one channel in a group
)
RINGS = (
    ("layer_norm_backward", "16384x4096", "bfloat16"),
    ("layer_norm_backward", "8192x8192", "float16"),  # as many registers as there are
    ("layer_norm_backward", "8192x3840", "bfloat16"),
    ("layer_norm_backward", "16383x1024", "bfloat16"),  # sets that are not full
    ("layer_norm_backward", "65536x640", "float32"),
    ("layer_norm_backward", "65536x256", "bfloat16"),
    ("layer_norm_backward", "8192x7936", "float32"),
    ("layer_norm_backward", "16384x1600", "bfloat16"),  # the last tile in part
    ("layer_norm_backward", "65536x508", "float16"),  # 32 elements of a row in a thread
    ("layer_norm_backward", "131072x128", "float32"),
    ("layer_norm_backward", "300000x20", "bfloat16"),
    ("layer_norm_backward", "16384x2352", "bfloat16"),  # two rows in a set, cut
    ("layer_norm_backward", "8192x1023", "float16"),  # sets that start anywhere
    ("layer_norm_backward", "65537x97", "bfloat16"),  # data that end there
    ("layer_norm_backward", "8191x1023", "float32"),
    ("rms_norm_backward", "16384x4096", "bfloat16"),
    *SLABS,
)
WHOLE_ROWS = (
    ("layer_norm_backward", "16384x4096", "bfloat16"),
    ("layer_norm_backward", "8192x5120", "bfloat16"),
    ("layer_norm_backward", "8192x8192", "float32"),
    ("layer_norm_backward", "65536x768", "bfloat16"),
    ("layer_norm_backward", "16384x3072", "bfloat16"),  # three tiles
    ("layer_norm_backward", "8192x6144", "float16"),
    ("layer_norm_backward", "32768x1536", "bfloat16"),
    ("layer_norm_backward", "131072x128", "float32"),
    ("layer_norm_backward", "5000x1999", "float16"),
)
ROWS = (
    ("layer_norm_backward", "4096x16384", "bfloat16"),
    ("layer_norm_backward", "4096x16384", "float32"),
    ("layer_norm_backward", "8192x9000", "float16"),
    ("layer_norm_backward", "1024x65536", "bfloat16"),  # two warps
    ("layer_norm_backward", "64x262144", "bfloat16"),  # four
    ("layer_norm_backward", "16x100001", "float32"),  # uneven parts
    ("rms_norm_backward", "4096x16384", "bfloat16"),
)
FORWARD = (
    ("batch_norm", "128x256x56x56", "bfloat16"),
    ("batch_norm", "64x256x56x56", "float32"),
    ("batch_norm", "256x2048x7x7", "bfloat16"),  # channels taken together
    ("batch_norm", "32x64x149x149", "float32"),  # windows
    ("group_norm", "128x256x56x56", "bfloat16"),
    ("group_norm", "8x320x64x64", "float32"),
    ("batch_norm", "64x512x28x28", "bfloat16", "channels-last"),
    ("batch_norm", "64x256x56x56", "float32", "channels-last"),  # totals of columns
    ("group_norm", "128x256x56x56", "bfloat16", "channels-last"),
    ("group_norm", "16x320x64x64", "float16", "channels-last"),  # groups in two blocks
    ("layer_norm", "16384x4096", "bfloat16"),
    ("layer_norm", "131072x128", "bfloat16"),  # in a warp
    ("layer_norm", "8191x1023", "float32"),  # sets that start anywhere
    ("rms_norm", "8192x8192", "float32"),
    ("layer_norm", "4096x16384", "bfloat16"),  # rows in registers
    ("layer_norm", "512x262144", "bfloat16"),  # two passes
    ("batch_norm", "128x256x56x56", "float64"),
    ("batch_norm", "64x64x112x112", "bfloat16", "channels-last"),
    ("group_norm", "64x320x17x17", "bfloat16", "contiguous", "t4"),
    ("batch_norm_stats", "64x512x7x7", "float32"),
    ("batch_norm_elemt", "64x256x56x56", "bfloat16"),
)
OTHERS = (
    ("batch_norm_backward", "64x256x56x56", "float64"),
    ("group_norm_backward", "2x320x64x64", "bfloat16", "channels-last", "t4"),
    ("batch_norm_elemt_backward", "64x256x56x56", "bfloat16"),
    ("layer_norm_backward", "8192x8192", "float32"),
    ("layer_norm_backward", "65537x300", "bfloat16", "contiguous", "a100"),  # a masked tile
    ("layer_norm_backward", "16x2097152", "float32"),
    ("rms_norm_backward", "8192x8192", "float32"),
    ("rms_norm_backward", "16x2097152", "float32"),
    ("layer_norm_backward", "4096x16384", "bfloat16", "contiguous", "t4"),
    ("group_norm_backward", "64x320x17x17", "bfloat16", "contiguous", "t4"),
    ("batch_norm_reduce_backward", "64x512x7x7", "float32"),  # planes as columns
    ("batch_norm_elemt_backward", "64x512x7x7", "bfloat16"),
    ("batch_norm_reduce_backward", "32x768x17x17", "bfloat16"),  # windows
    ("batch_norm_elemt_backward", "1x2048x113x165", "bfloat16"),
)


@pytest.fixture(scope="module", autouse=True)
def kept_cache(pytestconfig):
    """One for all processes and runs, as long as these sources and this Triton are the same."""
    sources = sorted(Path(launch.__file__).parents[1].rglob("*.py"))
    versions = [triton.__version__.encode(), *(path.read_bytes() for path in sources)]
    name = f"triton-{hashlib.sha256(b''.join(versions)).hexdigest()[:16]}"
    folder = pytestconfig.cache.mkdir("kernels")
    for other in folder.iterdir():
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder / name))
        yield


def tool(name, *arguments):
    command = [str(TOOLS / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


@dataclass(frozen=True)
class Compiled:
    """Triton's record of a step, its resources, and what the disassembler reads: 0.4 s each."""

    metadata: Any
    registers: int
    stack: int
    path: Path

    @property
    def code(self):
        return tool("nvdisasm", "-c", self.path)


@pytest.fixture
def compiled(tmp_path):
    """A step as machine code."""
    number = itertools.count()

    def build(step, capability, aligned=launch.Aligned.ALL):
        made = launch.compile_step(step, capability, aligned)
        takes_what_a_launcher_gives(step, made.asm["ptx"])
        path = tmp_path / f"{next(number)}.cubin"
        path.write_bytes(made.asm["cubin"])
        usage = re.search(r"REG:(\d+) STACK:(\d+)", tool("cuobjdump", "-res-usage", path))
        return Compiled(made.metadata, *map(int, usage.groups()), path)

    return build


def takes_what_a_launcher_gives(step, code):
    """The arguments that are no constants, in their order, and two addresses of Triton's."""
    types = launch.signature_of(step)
    names = launch.kernel_of(step.kernel).arg_names
    given = [types[name] for name in names if name in types]
    bits = ["64" if one[0] == "*" or one.endswith("64") else "32" for one in given]
    entry = code[code.index(".entry") :]
    assert re.findall(r"\.param \.[bfus](\d+)", entry[: entry.index("{")]) == [*bits, "64", "64"]


# Odd sizes: channels taken together with long rows, large teams, a plane in one row.
UNUSUAL = (
    ("batch_norm_backward", "256x64x21x21", "bfloat16"),
    ("batch_norm_backward", "4096x64x3x3", "float32"),
    ("group_norm_backward", "4x96x31x33", "float32", "channels-last"),
    ("group_norm_backward", "16x1280x16x16", "bfloat16", "channels-last"),
)


def the_resident(program):
    (step,) = (one for one in launches(program) if one.kernel in COPYING)
    return step


def tile(step):
    sizes = dict(step.constants)
    names = (
        "ROWS",
        "COLS",
        "CHUNK",
        "CHUNKS",
        "STAGES",
        "WARPS",
        "DEPTH",
        "REGISTER_TILES",
        "FIXED",
        "RING",
    )
    return [
        sizes.get(name)
        for name in (*names, "BLOCK_CHANNELS", "BINS", "STEP", "TOTALS_COLUMNS", "SLOT", "PIXELS")
    ]


@pytest.mark.slow(3)
@pytest.mark.parametrize("request_", [*PLANES, *WINDOWS, *COLUMNS, *ROWS, *RINGS], ids=" ".join)
def test_resident_kernels_on_hopper(request_, compiled):
    step = the_resident(plan(*request_))
    made = compiled(step, 90)
    assert made.metadata.launch_cooperative_grid == step.cooperative
    assert made.registers <= step.registers
    assert made.stack == 0, "spilled registers go to memory on every slab"
    code = made.code
    copies = "UBLKCP" if step.ring and step.kernel not in COLUMN_KERNELS else "LDGSTS"
    assert copies in code, "the next slab is not fetched by asynchronous copies"
    if request_ in WINDOWS:
        assert dict(step.constants)["WINDOW"]
        assert set(re.findall(r"LDGSTS[.\w]*", code)) == {"LDGSTS.E.BYPASS.128"}
        assert "STG.E.128" in code, "dx is written by elements"


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    "request_",
    [*PLANES, *WINDOWS, *COLUMNS[:3], COLUMNS[6], *UNUSUAL, *ROWS, *RINGS, *WHOLE_ROWS],
    ids=" ".join,
)
def test_the_plan_knows_how_much_shared_memory_a_block_takes(request_, compiled):
    """It plans before anything is compiled; a grid that does not fit fails to launch."""
    known = {}
    for name, device in KNOWN.items():
        for one in launches(plan(*request_, device=name)):
            if one.cooperative:
                size = str(tile(one))
                if size not in known:  # of one shape for most devices
                    known[size] = compiled(one, device.capability).metadata.shared
                assert one.grid[0] <= resident_blocks(device, one, known[size]), name


FEWER = [
    (one, bits) for one in RINGS for bits in ("100", "110", "011") if len(RESULTS[one[0]]) == 3
]
FEWER += [(one, bits) for one in RINGS for bits in ("10", "01") if len(RESULTS[one[0]]) == 2]
FEWER += [(one, "010") for one in SLABS]


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("request_", "bits"),
    FEWER,
    ids=lambda one: one if isinstance(one, str) else " ".join(one),
)
def test_rings_with_fewer_results(request_, bits, compiled):
    """A ring is found behind other shared memory: there must be some."""
    step = the_resident(plan(*request_, mask=tuple(bit == "1" for bit in bits)))
    made = compiled(step, 90)
    assert step.ring < made.metadata.shared
    assert made.registers <= step.registers
    assert made.stack == 0


@pytest.mark.slow(2)
@pytest.mark.parametrize("request_", OTHERS, ids=" ".join)
def test_other_kernels_on_hopper(request_, compiled):
    for step in launches(plan(*request_)):
        made = compiled(step, 90)
        assert made.stack == 0, step.kernel
        assert made.registers * 32 * step.warps <= 65536, step.kernel
        assert made.metadata.shared <= 227 << 10, step.kernel
        if dict(step.constants).get("STAGES", 1) > 1:
            assert "LDGSTS" in made.code, step.kernel


@pytest.mark.slow(2)
@pytest.mark.parametrize("request_", FORWARD, ids=" ".join)
def test_forward_kernels_on_hopper(request_, compiled):
    """What stays on chip is read by asynchronous copies; 48 bytes of spills are the most known."""
    for step in launches(plan(*request_)):
        made = compiled(step, 90)
        assert made.stack <= (48 if step.cooperative else 0), step.kernel
        assert made.registers <= (step.registers or 255)
        if step.cooperative:
            assert step.grid[0] <= resident_blocks(KNOWN["h200"], step, made.metadata.shared)
        if step.kernel in COPYING:
            copies = "LDGSTS" if step.kernel != "row_ring.whole_rows" else "UBLKCP"
            assert copies in made.code


@pytest.mark.slow(15)
@pytest.mark.parametrize("name", ["a100", "b200", "rtx5090"])
def test_kernels_on_other_gpus(name, compiled):
    """The same Python before and after Hopper, with plans for less shared memory or threads."""
    device = KNOWN[name]
    for request_ in (PLANES[0], PLANES[2], COLUMNS[0], COLUMNS[2], *ROWS[:2], OTHERS[3]):
        for step in launches(plan(*request_, device=name)):
            made = compiled(step, device.capability)
            assert made.registers * 32 * step.warps <= device.registers, step.kernel
            assert made.metadata.shared <= device.shared_bytes - 1024, step.kernel
            if step.cooperative:
                assert step.grid[0] <= resident_blocks(device, step, made.metadata.shared)


@pytest.mark.slow(5)
@pytest.mark.parametrize("shape", ["1x1", "1x3", "1x1x1x3", "3x1x5"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_sizes_of_one(shape, dtype, compiled):
    """A tile may be a single element; rows, groups and parts may be one."""
    for op in filter(lambda one: unknown_to_fast(one, forms.TAKEN) is None, Op):
        if op is Op.BATCH_NORM_GATHER_STATS:  # it has no data
            continue
        options = {"groups": 1} if OPERATORS[op].axes == "groups" else {}
        for step in launches(plan(op.value, shape, dtype, **options)):
            compiled(step, 90)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("role", ["dy", "dx"])
def test_copies_between_orders_are_wide_on_both_sides(compiled, role, dtype):
    """Images of channels last beside contiguous ones; the tile changes hands in shared memory."""
    shape = (8, 256, 56, 56)
    x, line = TensorSpec.contiguous(shape, dtype), TensorSpec.contiguous((256,), "float32")
    last = TensorSpec(shape, (256 * 56 * 56, 1, 56 * 256, 256), dtype)
    data = {"dy": x, "x": x, "dx": x} | {role: last}
    spec = Spec(op=Op.BATCH_NORM_BACKWARD, mean=line, rstd=line, device="cuda:0", **data)
    steps = launches(program_of(spec, KNOWN["h200"]))
    (copy,) = (one for one in steps if one.kernel == "copy.transposed_copy")
    made = compiled(copy, 90)
    for access in ("LDG", "STG"):
        assert re.search(rf"{access}\.E\S*\.128", made.code), access
    assert made.metadata.shared >= 64 * 64 * (2 if dtype == "bfloat16" else 4)
    assert made.stack == 0


def test_data_at_any_address_are_read_one_by_one(compiled):
    """Wide loads from addresses that are no multiples of 16 bytes would fault."""
    (step,) = launches(plan("batch_norm_elemt_backward", "64x256x56x56", "bfloat16"))
    wide = compiled(step, 90).code
    narrow = compiled(step, 90, aligned=launch.Aligned.NONE).code
    assert re.search(r"LDG\.E\S*\.128", wide)
    assert not re.search(r"LDG\.E\S*\.(64|128)", narrow)
    assert not re.search(r"STG\.E\S*\.(64|128)", narrow)


def test_a_step_beyond_the_last_row_does_not_overflow(compiled):
    """Rows just below 2**31: programs go on, and ask for data, up to 12672 rows further."""
    step = launches(plan("layer_norm_backward", "2147483640x1", "float32"))[-1]
    assert dict(step.constants)["PRELOAD_ROWS"]
    assert launch.signature_of(step)["rows"] == "i64"
    compiled(step, 90)


def test_every_kernel_is_compiled_here():
    """A kernel that is added comes into the lists above."""
    from normgrad.backends.cuda import schedules

    written = set()
    for path in Path(schedules.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        entry = re.findall(r"@(?:triton\.)?jit\ndef (\w+)\(\n    (?:dy|partials|source)\b", text)
        written |= {f"{path.stem}.{name}" for name in entry}
    requests = (*PLANES, *COLUMNS, *ROWS, *RINGS, *FORWARD, *OTHERS)
    met = {step.kernel for one in requests for step in launches(plan(*one))}
    met |= {"copy.transposed_copy"}  # above
    met |= {"copy.strided_copy"}  # in the interpreter's cases, as is copy.flat_copy
    called = {"finish.join", "apply.applied"}
    called |= {"row_ring._store_columns", "row_ring._store_channels", "row_ring._sums_of"}
    written -= called
    met -= {"copy.clear_words"}  # in one line
    assert written == met
