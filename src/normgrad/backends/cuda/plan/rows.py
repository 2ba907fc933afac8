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
from normgrad.backends.cuda.plan.row_ring import choose_sets, is_short_forward, ring_rows
from normgrad.backends.cuda.plan.row_teams import choose_ring, ring_teams, team_rows
from normgrad.backends.cuda.plan.tiles import (
    DRIVER_BYTES,
    THREADS,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
)
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Spec


def plan_rows(builder: Builder, geometry: Geometry, device: Device) -> Program:
    """Rows in registers of a block, or on chip in several; else two passes."""
    cols = geometry.channels
    data = rows_of(builder, geometry)
    if data["dx"] is None and cols > tuned.TEAM_COLUMNS:
        long_rows(builder, geometry, device, data, reads_x=_reads_x(builder))
        return builder.finish("sums of columns")
    plain = is_plain(geometry, data)
    ring = (
        choose_ring(builder, geometry, device, data)
        if cols > tuned.TEAM_COLUMNS and plain
        else None
    )
    whole = builder.compute == "float32" and cols <= (
        tuned.LONGEST if plain else tuned.TEAM_COLUMNS
    )
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
    """A row as tiles of a power of two of columns: (columns, tiles)."""
    best = (power_of_two(cols), 1)
    if cols > 2 * tuned.LONG_CHUNK:
        return tuned.LONG_CHUNK, ceil_div(cols, tuned.LONG_CHUNK)
    waste = best[0] / cols
    chunk = best[0] // 2
    if waste <= tuned.WASTE:
        return best
    while chunk >= least:
        count = ceil_div(cols, chunk)
        if count > tuned.MOST_CHUNKS:
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
    """Few warps for short rows and uneven ones, three small tiles for rows of that length."""
    vector, few_columns = 16 // itemsize, tuned.FOUR_WARPS_COLUMNS
    chunk, chunks = chunks_of(cols, 32 * vector)
    three = chunks == 1 and itemsize == 2 and few_columns < cols <= 3 * chunk // 4
    if three:
        chunk, chunks = chunk // 4, 3
    uneven = chunks > 1 and chunk < tuned.LONG_CHUNK
    if chunk == 2 * tuned.LONG_CHUNK and itemsize == 2:
        chunk, chunks = tuned.LONG_CHUNK, 2
    width = chunk * chunks
    few = width <= few_columns or (uneven and not (three and chunk > few_columns))
    warps = 16 if width > tuned.EIGHT_WARPS_COLUMNS else 4 if few else 8
    per = 2 if chunks > 1 or rows * cols < tuned.MANY_ELEMENTS else 3
    if warps >= 8 or (uneven and itemsize == 4):
        per = 1
    vectors = tuned.VECTORS_IN_THREE if three else tuned.VECTORS
    held = vectors * vector * warps * THREADS
    # However few rows there are: what a row's sums are may not depend on it.
    tile_rows = min(max(1, power_of_two(held // width + 1) // 2), 32)
    most = 3 if warps == 4 else 1
    ahead = chunk == cols and _ahead(
        spec, cols, rows // (tile_rows * most * device.multiprocessors)
    )
    if ahead:
        per = most
    registers = min(255, device.registers // (per * warps * THREADS))
    if per == 3:  # 3 programs of 4 warps need registers for all
        registers = tuned.THREE_PROGRAMS_REGISTERS
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
        share = max(1, min(programs, (rows // samples) // tuned.SAMPLE_ROWS))
        programs = samples * share
    partials = builder.scratch(2 * programs * cols, "float32") if wants else None
    joins = wants and tiles.warps < tuned.WARPS_WITHOUT_JOIN and tiles.fits and samples == 1
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
        arguments[role] = builder.result(role) if joins else None
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "ROWS": tiles.rows,
        "CHUNK": tiles.chunk,
        "CHUNKS": tiles.chunks,
        "ALIGN": align,
        "STAGES": tiles.stages,
        "COMPUTE": builder.compute,
        "VARIANCE": False,
        "PRELOAD_ROWS": tiles.ahead,
        "FOLD": tiles.rows > 1 and tiles.chunk >= tiles.warps * THREADS * (16 // itemsize),
        "WARPS": tiles.warps,
        **joint_sums(programs, cols, programs, tiles.warps, joins=joins),
        "PHASE": 0,
    }
    builder.launch_teams(
        "rows.layer_rows",
        (programs,),
        arguments,
        constants,
        words=0,
        joins=joins,
        starts_early=device.starts_early,
        warps=tiles.warps,
        registers=tiles.registers,
    )
    if not joins:
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
    if builder.compute != "float32" or cols > tuned.LONGEST_FORWARD:
        return None
    align, itemsize = row_sizes(geometry, data)
    size, centred = cols * itemsize, builder.spec.operator.centred
    ring = (centred and is_short_forward(cols, itemsize)) or size >= tuned.FORWARD_RING_BYTES
    ring = ring and is_plain(geometry, data)
    sets = choose_sets(builder, geometry, device, data) if ring else None
    if sets is not None:
        return ring_rows(builder, geometry, device, data, sets)
    chunk, chunks = chunks_of(cols, THREADS * 16 // itemsize)
    width = chunk * chunks
    warps = max(4, power_of_two(ceil_div(width, tuned.FORWARD_ELEMENTS * THREADS)))
    tile_rows = max(1, warps * THREADS * tuned.FORWARD_ELEMENTS // power_of_two(width))
    share = ceil_div(rows // geometry.samples, tile_rows)
    programs = geometry.samples * share
    if geometry.samples == 1:
        programs = min(programs, tuned.FORWARD_PROGRAMS * device.multiprocessors)
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
        "STAGES": tuned.FORWARD_STAGES,
        "COMPUTE": builder.compute,
        "VARIANCE": builder.spec.rstd_is == "variance",
        "PRELOAD_ROWS": False,
        "FOLD": False,
        "WARPS": warps,
        **joint_sums(1, cols, 1, warps, joins=False),
        "PHASE": 0,
    }
    builder.launch_teams(
        "rows.layer_rows", (programs,), arguments, constants,
        words=0, joins=False, starts_early=False, warps=warps,
    )  # fmt: skip
    return programs


def _ahead(spec: Spec, cols: int, rounds: int) -> bool:
    """Whether the next rows come to registers by plain loads, past shared memory."""
    floats = spec.x.dtype == spec.present("dy").dtype == "float32" and spec.dx is not None
    longer = cols == tuned.AHEAD_COLUMNS_TOO and spec.activation is None
    lengths = cols <= tuned.AHEAD_COLUMNS or longer
    return floats and spec.dsum is None and lengths and rounds >= tuned.AHEAD_ROUNDS


def _stages(device: Device, elements: int, size: int) -> int:
    """How far ahead rows are fetched: by two if there is room for as many."""
    room = device.shared_bytes - DRIVER_BYTES
    return next((stages for stages in tuned.STAGES if _shared(stages, elements, size) <= room), 1)


def _shared(stages: int, elements: int, size: int) -> int:
    """Shared memory of a block, at most: rows fetched ahead, and sums across warps."""
    return max(stages - 1, 0) * elements * size + (8 << 10)
