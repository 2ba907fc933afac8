"""Layer norm's plans."""

from dataclasses import dataclass
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.joins import finish_rows, joint_sums
from normgrad.backends.cuda.plan.long_rows import long_rows
from normgrad.backends.cuda.plan.program import Argument, Builder, Program
from normgrad.backends.cuda.plan.row_data import (
    RowData,
    is_plain,
    row_besides,
    row_operands,
    row_sizes,
    rows_of,
)
from normgrad.backends.cuda.plan.row_ring import SHORT_FORWARD, choose_sets, ring_rows
from normgrad.backends.cuda.plan.row_teams import choose_ring, ring_teams, team_rows
from normgrad.backends.cuda.plan.tiles import (
    DRIVER_BYTES,
    THREADS,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
)
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Spec

_ROUNDS = 8  # of rows in registers, for the next to come straight there
_LONGEST = 12288  # columns that a block of 16 warps keeps in registers with their sums
# More columns than these go to teams, where there can be any: 8192x12288 in bfloat16 reads 90 %
# instead of 74, 4096x10240 77 instead of 62 (float32 90 and 87), 1024x12288 48 and 46 (70 and 64);
# 512x12288 the same, 128x12288 takes 19.0 us instead of 17.5 (float32 18.3 and 19.5).
_LONG = 8192
_LONGEST_FORWARD = 32768
_EACH = 32  # elements of a thread, forward
# Programs of a multiprocessor, forward: each takes its rows once. 16384x4096 takes 93.8 us so in
# bfloat16 on an H200, 108 to 132 in 4 or 8 that go on; 65536x768 70.5, 87 to 90.
_PER = 1 << 20
_RING = 16 << 10  # bytes of a row, at least, that comes through a ring, forward
_STAGES = 1
# Rows of a program, at least, where each sample has weights of its own: their sums are 4 % of what
# is read and written in 16 bits. How many samples there are has no say: a sample's gradients are
# made alike in all batches.
_ROWS_EACH = 32


def plan_rows(builder: Builder, geometry: Geometry, device: Device) -> Program:
    """Rows in registers of a block, or on chip in several; else two passes."""
    cols = geometry.channels
    data = rows_of(builder, geometry)
    if data["dx"] is None and cols > _LONG:
        long_rows(builder, geometry, device, data, reads_x=_reads_x(builder))
        return builder.finish("sums of columns")
    plain = is_plain(geometry, data)
    ring = choose_ring(builder, geometry, device, data) if cols > _LONG and plain else None
    whole = builder.compute == "float32" and cols <= (_LONGEST if plain else _LONG)
    if ring is not None:
        count = ring_teams(ring, geometry, device, data)
        team_rows(builder, geometry, device, data, ring, count)
        return builder.finish(f"resident rows, {count} teams")
    sets = choose_sets(builder, geometry, device, data) if whole and plain else None
    if sets is not None:
        programs = ring_rows(builder, geometry, device, data, sets)
        return builder.finish(f"whole rows in a ring, {programs} programs")
    if whole:
        programs = _whole_rows(builder, geometry, device, data)
        return builder.finish(f"whole rows, {programs} programs")
    long_rows(builder, geometry, device, data, reads_x=_reads_x(builder))
    return builder.finish("long rows")


def _reads_x(builder: Builder) -> bool:
    """Whether anything but dbeta is wanted, or an activation's slope."""
    spec = builder.spec
    return spec.dx is not None or spec.dgamma is not None or spec.activation is not None


def chunks_of(cols: int, least: int) -> tuple[int, int]:
    """A row as tiles of a power of two of columns: (columns, tiles).

    One tile, unless it would waste more than two fifths; long rows are cut into tiles of 4096.
    """
    best = (power_of_two(cols), 1)
    if cols > 8192:
        return 4096, ceil_div(cols, 4096)
    waste = best[0] / cols
    chunk = best[0] // 2
    if waste <= 1.4:
        return best
    while chunk >= least:
        count = ceil_div(cols, chunk)
        if count > 8:
            break
        if count * chunk / cols < waste:
            best, waste = (chunk, count), count * chunk / cols
        chunk //= 2
    return best


@dataclass(frozen=True, slots=True)
class _Tiles:
    """How programs take whole rows: sets of ``rows``, each row in ``chunks`` tiles of ``chunk``."""

    rows: int
    chunk: int
    chunks: int
    warps: int
    programs: int
    registers: int
    stages: int  # of what is fetched ahead into shared memory
    ahead: bool  # or into registers
    fits: bool  # all programs run at once


def _tiles(spec: Spec, rows: int, cols: int, itemsize: int, device: Device, tensors: int) -> _Tiles:
    """Measured on an H200.

    4 warps up to 1024 columns (and for uneven rows), 8 up to 8192, with 32 elements a thread; more
    programs a multiprocessor only where there is much to do. Each has partial sums: 8192x5120 in
    float32 reads 93 % with one, 89 with two (bfloat16: 73, 81). In 16 bits rows that fill three
    quarters of a tile have three small ones, 48 elements a thread: 16384x3072 reads 85 % instead of
    77, 8192x6144 84 instead of 77.
    """
    vector = 16 // itemsize
    chunk, chunks = chunks_of(cols, 32 * vector)
    three = chunks == 1 and itemsize == 2 and 1024 < cols <= 3 * chunk // 4
    if three:
        chunk, chunks = chunk // 4, 3
    uneven = chunks > 1 and chunk < 4096
    if chunk == 8192 and itemsize == 2:
        chunk, chunks = 4096, 2  # 88.7 % instead of 87.9 for 8192x8192
    width = chunk * chunks
    few = width <= 1024 or (uneven and not (three and chunk > 1024))
    warps = 16 if width > 8192 else 4 if few else 8
    per = 2 if chunks > 1 or rows * cols < 1 << 25 else 3
    if warps >= 8 or (uneven and itemsize == 4):
        per = 1
    held = (6 if three else 4) * vector * warps * THREADS
    # However few rows there are: what a row's sums are may not depend on it.
    tile_rows = min(max(1, power_of_two(held // width + 1) // 2), 32)
    most = 3 if warps == 4 else 1
    ahead = chunk == cols and _ahead(
        spec, cols, rows // (tile_rows * most * device.multiprocessors)
    )
    if ahead:
        per = most
    # 3 programs of 4 warps need registers for all: the compiler would take 180.
    registers = 168 if per == 3 else min(255, device.registers // (per * warps * THREADS))
    size = tensors * itemsize
    stages = 1 if ahead else _stages(device, tile_rows * width, size)
    shared = _shared(stages, tile_rows * width, size)
    fit = blocks_per_multiprocessor(device, warps, registers, shared)
    programs = min(ceil_div(rows, tile_rows), per * device.multiprocessors)
    fits = programs <= fit * device.multiprocessors
    return _Tiles(tile_rows, chunk, chunks, warps, programs, registers, stages, ahead, fits)


def _whole_rows(builder: Builder, geometry: Geometry, device: Device, data: RowData) -> int:
    rows, cols = geometry.outer, geometry.channels
    wants = builder.wants_parameters
    align, itemsize = row_sizes(geometry, data)
    samples = geometry.samples
    tensors = 2 if data["residual"] is None else 3
    tiles = _tiles(builder.spec, rows // samples, cols, itemsize, device, tensors)
    programs, share = tiles.programs, 0
    if samples > 1:  # however many samples there are
        share = max(1, min(programs, (rows // samples) // _ROWS_EACH))
        programs = samples * share
    partials = builder.scratch(2 * programs * cols, "float32") if wants else None
    # 16 warps leave few registers: 1024x12288 takes 5 us less with a launch of its own.
    meets = wants and tiles.warps < 16 and tiles.fits and samples == 1
    arguments: dict[str, Argument] = {
        **row_operands(data, align),
        **row_besides(data, align, "residual", "total"),
        **_of_samples(geometry, share),
        "mean": builder.vector("mean"),
        "rstd": builder.vector("rstd"),
        "gamma": builder.vector("gamma"),
        "beta": builder.vector("beta"),
        "partials": partials,
        "rows": rows,
        "cols": cols // align,
        "programs": programs,
        "eps": None,
    }
    if not _reads_x(builder):
        arguments["x"] = None
    for role in ("dgamma", "dbeta"):
        arguments[role] = builder.result(role) if meets else None
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "ROWS": tiles.rows,
        "CHUNK": tiles.chunk,
        "CHUNKS": tiles.chunks,
        "ALIGN": align,
        "STAGES": tiles.stages,
        "COMPUTE": builder.compute,
        "VARIANCE": False,
        "AHEAD": tiles.ahead,
        "FOLD": tiles.rows > 1 and tiles.chunk >= tiles.warps * THREADS * (16 // itemsize),
        "WARPS": tiles.warps,
        **joint_sums(programs, cols, programs, tiles.warps, meets=meets),
        "PHASE": 0,
    }
    builder.launch_teams(
        "rows.layer_rows",
        (programs,),
        arguments,
        constants,
        words=0,
        meets=meets,
        starts_early=device.starts_early,
        warps=tiles.warps,
        registers=tiles.registers,
    )
    if not meets:
        finish_rows(builder, partials, share or programs, cols, samples)
    return programs


def _of_samples(geometry: Geometry, share: int) -> dict[str, Argument]:
    """Rows of a sample that has weights of its own, and programs of it."""
    several = geometry.samples > 1
    each = geometry.outer // geometry.samples if several else None
    return {"each": each, "share": share if several else None}


def norm_rows(builder: Builder, geometry: Geometry, device: Device, data: RowData) -> int | None:
    """Forward, in registers of a block: returns how many programs; None where rows are too long."""
    rows, cols = geometry.outer, geometry.channels
    if builder.compute != "float32" or cols > _LONGEST_FORWARD:
        return None
    align, itemsize = row_sizes(geometry, data)
    size, centred = cols * itemsize, builder.spec.operator.centred
    short = centred and itemsize == 2 and SHORT_FORWARD[0] <= size < SHORT_FORWARD[1]
    ring = short or size >= _RING
    ring = ring and is_plain(geometry, data)
    sets = choose_sets(builder, geometry, device, data) if ring else None
    if sets is not None:
        return ring_rows(builder, geometry, device, data, sets)
    chunk, chunks = chunks_of(cols, THREADS * 16 // itemsize)
    width = chunk * chunks
    warps = max(4, power_of_two(ceil_div(width, _EACH * THREADS)))
    tile_rows = max(1, warps * THREADS * _EACH // power_of_two(width))
    share = ceil_div(rows // geometry.samples, tile_rows)
    programs = geometry.samples * share
    if geometry.samples == 1:
        programs = min(programs, _PER * device.multiprocessors)
    arguments: dict[str, Argument] = {
        **row_operands(data, align),
        **row_besides(data, align, "residual", "total"),
        **_of_samples(geometry, share),
        "mean": builder.result("mean") if centred else None,
        "rstd": builder.result("rstd"),
        "gamma": builder.vector("gamma"),
        "beta": builder.vector("beta"),
        "partials": None,
        "dgamma": None,
        "dbeta": None,
        "rows": rows,
        "cols": cols // align,
        "programs": programs,
        "eps": builder.spec.eps,
    }
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "ROWS": tile_rows,
        "CHUNK": chunk,
        "CHUNKS": chunks,
        "ALIGN": align,
        "STAGES": _STAGES,
        "COMPUTE": builder.compute,
        "VARIANCE": builder.spec.rstd_is == "variance",
        "AHEAD": False,
        "FOLD": False,
        "WARPS": warps,
        **joint_sums(1, cols, 1, warps, meets=False),
        "PHASE": 0,
    }
    builder.launch_teams(
        "rows.layer_rows", (programs,), arguments, constants,
        words=0, meets=False, starts_early=False, warps=warps,
    )  # fmt: skip
    return programs


def _ahead(spec: Spec, cols: int, rounds: int) -> bool:
    """Whether the next rows come to registers by plain loads, past shared memory.

    Measured on an H200 in float32: 131072x128 takes 55.7 us instead of 58.8, 65536x512 102.5
    instead of 108.7, 8192x8192 198 instead of 205. Rows of 4096 take 236 us instead of 199: too
    little is under way. So it is with 16 bits (16384x4096: 121 instead of 107), and in few rounds
    (4096x1024: 21.2 instead of 19.8).
    """
    floats = spec.x.dtype == spec.present("dy").dtype == "float32" and spec.dx is not None
    # With an activation rows of 8192 spill 96 bytes.
    lengths = cols <= 1024 or (cols == 8192 and spec.activation is None)
    return floats and spec.dsum is None and lengths and rounds >= _ROUNDS


def _stages(device: Device, elements: int, size: int) -> int:
    """How far ahead rows are fetched: by two if x and dy, ``size`` bytes, fit shared memory twice.

    By three or four nearly everything takes 1 to 5 us more: that many rows are written at the end,
    when nothing is left to read.
    """
    room = device.shared_bytes - DRIVER_BYTES
    return next((stages for stages in (3, 2) if _shared(stages, elements, size) <= room), 1)


def _shared(stages: int, elements: int, size: int) -> int:
    """Shared memory of a block, at most: rows fetched ahead, and sums across warps."""
    return max(stages - 1, 0) * elements * size + (8 << 10)
