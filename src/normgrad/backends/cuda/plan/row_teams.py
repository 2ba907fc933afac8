"""Layer norm with rows that teams of blocks share: who takes what."""

from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.joins import joint_sums
from normgrad.backends.cuda.plan.program import Builder, Ref
from normgrad.backends.cuda.plan.row_data import RowData, row_arguments, row_sizes
from normgrad.backends.cuda.plan.tiles import DRIVER_BYTES, THREADS, ceil_div
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry

_SPARE = DRIVER_BYTES + 512  # of shared memory: the rest for sums across warps
_REGISTERS = 65536  # of a multiprocessor: every GPU that copies ahead has so many


@dataclass(frozen=True, slots=True)
class Ring:
    """A block: its part of a row is ``chunks`` tiles, 16 bytes of x for each thread."""

    warps: int
    chunks: int
    per: int  # blocks of a multiprocessor
    lag: int

    @property
    def registers(self) -> int:
        """Of a thread, so that ``per`` blocks run at once."""
        return min(255, _REGISTERS // (self.per * self.warps * THREADS) // 8 * 8)


def _blocks(itemsizes: list[int]) -> tuple[Ring, ...]:
    """Blocks to choose from: the first whose team can poll its words at once."""
    first = (tuned.TEAM_BLOCK_16,) if max(itemsizes) == 2 else ()
    sizes = (*first, *tuned.TEAM_BLOCKS)
    return tuple(Ring(warps, chunks, per, tuned.LAG) for warps, chunks, per in sizes)


def choose_ring(builder: Builder, geometry: Geometry, device: Device, data: RowData) -> Ring | None:
    """As many blocks a multiprocessor as fit; None where teams cannot be."""
    if builder.compute != "float32" or not device.copies_ahead or data["dx"] is None:
        return None
    if device.registers < _REGISTERS:
        return None
    align, itemsizes = _sizes(geometry, data)
    if align * min(itemsizes) < 4:  # the least that an asynchronous copy takes
        return None
    fewer = tuned.FEWER_WITH_SLOPES if builder.slopes else 0
    for block in (replace(one, chunks=one.chunks - fewer) for one in _blocks(itemsizes)):
        per = next(
            (
                p
                for p in range(block.per, 0, -1)
                if _depth(block, p, device, itemsizes) >= tuned.LAG + 2
            ),
            1,
        )
        lag = min(tuned.LAG, _depth(block, per, device, itemsizes) - 2)
        team = ceil_div(geometry.channels, _cols(block, itemsizes) * block.chunks)
        fits = team <= min(block.warps * THREADS, per * device.multiprocessors)
        if fits and lag >= tuned.LEAST_LAG:
            return replace(block, per=per, lag=lag)
    return None


def _sizes(geometry: Geometry, data: RowData) -> tuple[int, list[int]]:
    """Elements that every row starts at a multiple of; the bytes of an element of dy and x."""
    align, _ = row_sizes(geometry, data)
    return align, [ITEMSIZE[one[0].dtype] for one in (data["dy"], data["x"]) if one is not None]


def _cols(ring: Ring, itemsizes: list[int]) -> int:
    """Columns of a tile."""
    return ring.warps * THREADS * (16 // max(itemsizes))


def _depth(ring: Ring, per: int, device: Device, itemsizes: list[int]) -> int:
    """Steps that there is room for with so many blocks a multiprocessor."""
    step = _cols(ring, itemsizes) * ring.chunks * sum(itemsizes) + 8
    return min((device.shared_bytes // per - _SPARE) // step, tuned.MOST_STEPS)


def ring_teams(ring: Ring, geometry: Geometry, device: Device, data: RowData) -> int:
    """How many teams run at once, none without a row."""
    part = _cols(ring, _sizes(geometry, data)[1]) * ring.chunks
    blocks = ring.per * device.multiprocessors
    return min(geometry.outer, blocks // ceil_div(geometry.channels, part))


def team_rows(
    builder: Builder, geometry: Geometry, device: Device, data: RowData, ring: Ring, teams: int
) -> None:
    """Launch so many teams."""
    rows, cols = geometry.outer, geometry.channels
    wants = builder.wants_parameters
    align, itemsizes = _sizes(geometry, data)
    vector = 16 // max(itemsizes)
    part = _cols(ring, itemsizes) * ring.chunks
    team = ceil_div(cols, part)
    width = ceil_div(ceil_div(cols, team), vector) * vector
    partials = builder.scratch(2 * teams * cols, "float32") if wants else None
    arguments = {
        **row_arguments(builder, data, align),
        "beta": builder.vector("beta"),
        "rows": rows,
        "cols": cols // align,
        "mean": _statistic(builder, "mean"),
        "rstd": _statistic(builder, "rstd"),
        "partials": partials,
        "width": width // align,
        "team": team,
        "teams": teams,
    }
    constants: dict[str, Any] = {
        "FORMULA": builder.formula,
        "COLS": part // ring.chunks,
        "CHUNKS": ring.chunks,
        "RING": _depth(ring, ring.per, device, itemsizes),
        "LAG": ring.lag,
        "VECTOR": vector,
        "WARPS": ring.warps,
        "COLS_FILL_TILES": cols == team * part,
        "ALIGN": align,
        **joint_sums(teams, cols, team * teams, ring.warps, joins=wants),
        "PHASE": 0,
    }
    builder.launch_teams(
        "row_teams.layer_teams",
        (team * teams,),
        arguments,
        constants,
        words=rows * team,
        joins=wants,
        starts_early=device.starts_early,
        warps=ring.warps,
        registers=ring.registers,
    )


def _statistic(builder: Builder, role: str) -> Ref | None:
    """A vector in float32, the least that an asynchronous copy takes."""
    ref = builder.vector(role)
    return ref if ref is None or ref.dtype == "float32" else builder.pack(role, "float32")
