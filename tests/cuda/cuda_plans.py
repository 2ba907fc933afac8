"""Programs for tests, on GPUs that need not be here."""

from normgrad.backends.cuda.device import KNOWN
from normgrad.backends.cuda.plan.program import Launch
from normgrad.bench.suites import rows, suite
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.spec import Op

SUITE = suite("h200", "cuda")
MASKS = ((True, True, True), (True, False, False), (False, True, True), (False, False, True))
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "uint64": 8}
# What the blocks of a multiprocessor share: CUDA C guide, table of compute capabilities. (threads,
# blocks)
LIMITS = {75: (1024, 16), 80: (2048, 32), 86: (1536, 16), 89: (1536, 24), 90: (2048, 32)}
LIMITS |= {100: (2048, 32), 120: (1536, 24)}


def plan(op, shape, dtype="bfloat16", layout="contiguous", device="h200", **options):
    """The program for a request written as in the bench's tables."""
    (workload,) = rows(Op(op), shape, (dtype,), (layout,), **options)
    return program_of(spec_of(workload.case, dtype), KNOWN[device])


COLUMN_KERNELS = {"columns.column_slabs", "column_streams.column_streams"}
# Kernels that copy asynchronously.
COPYING = {"planes.plane_slabs", "row_ring.whole_rows", "row_teams.layer_teams", *COLUMN_KERNELS}


def launches(program):
    return [step for step in program.steps if isinstance(step, Launch)]


def kernels(program):
    """The names of the kernels, without their modules."""
    return [step.kernel.partition(".")[2] for step in launches(program)]


def roles(step):
    """The tensors of the caller that a step touches."""
    return {ref.role for ref in step.refs if ref.role}


def blocks_of(step):
    """How many blocks a waiting launch has, by its sizes."""
    given = dict(step.arguments)
    if step.kernel == "row_ring.whole_rows":
        sets = -(-(given["groups"] or 1) // dict(step.constants)["ROWS"])
        return given["parts"] * sets
    return given.get("programs") or given["team"] * given["teams"]


def tile_bytes(step):
    """The bytes of x and dy that a block holds."""
    if step.ring:
        return step.ring
    given, sizes = dict(step.arguments), dict(step.constants)
    each = sum(BYTES[given[role].dtype] for role in ("x", "dy") if given[role])
    if "STAGES" in sizes:
        return (sizes["STAGES"] - 1) * sizes["ROWS"] * sizes["CHUNK"] * sizes["CHUNKS"] * each
    tiles = sizes["RING"] * sizes["CHUNKS"] if "RING" in sizes else sizes.get("DEPTH", 1)
    tiles += sizes.get("FIXED", 0)
    return tiles * sizes.get("ROWS", 1) * sizes["COLS"] * each


def resident_blocks(device, step, shared):
    """How many blocks of a launch run at once on a whole device."""
    threads, blocks = LIMITS[device.capability]
    size = 32 * step.warps
    # CUDA keeps 1 KB of shared memory for itself in each block (from compute capability 8.0 on).
    by_shared = device.shared_bytes // (shared + 1024)
    by_registers = device.registers // (size * step.registers)
    return min(by_shared, by_registers, threads // size, blocks) * device.multiprocessors
