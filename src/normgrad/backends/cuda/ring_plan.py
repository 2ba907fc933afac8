"""Layer norm with rows that come through a ring in shared memory: who takes what."""

from dataclasses import dataclass
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.program import Argument, Builder, Ref
from normgrad.backends.cuda.tiles import (
    THREADS,
    alignment,
    blocks_per_multiprocessor,
    ceil_div,
    power_of_two,
)
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry

Data = dict[str, tuple[Ref, int] | None]  # memory and the step between rows, by role


@dataclass(frozen=True, slots=True)
class Ring:
    """A block: its part of a row in ``chunks`` tiles of ``cols`` columns, ``rows`` rows a step."""

    warps: int
    cols: int
    chunks: int = 1
    rows: int = 1
    lanes: int = 32
    across: int = 0  # warps side by side; 0 for all
    per: int = 1  # blocks of a multiprocessor
    ring: int = 0  # steps that there is room for; 0 for as many as fit
    lag: int = 0
    registers: int | None = None
    poll: int = 0  # words of a row that a warp (32) or a block polls; 0 for a block
    team: int = 0
    early: bool = True
    late: bool = False
    hint: str = ""


def ring_rows(
    builder: Builder, geometry: Geometry, device: Device, data: Data, ring: Ring
) -> tuple[Ref | None, int]:
    """Launch it; the partial sums of the parameters, and how many there are."""
    rows, cols = geometry.outer, geometry.channels
    spec = builder.spec
    wants = spec.dgamma is not None or spec.dbeta is not None
    dy, x, dx = data["dy"], data["x"], data["dx"]
    assert dy is not None
    assert x is not None
    present = [one for one in data.values() if one is not None]
    itemsizes = [ITEMSIZE[dy[0].dtype], ITEMSIZE[x[0].dtype]]
    itemsize = max(ITEMSIZE[ref.dtype] for ref, _ in present)
    align = alignment(itemsize, cols, *(step for _, step in present))
    vector = 16 // max(itemsizes)
    team = ring.team or ceil_div(cols, ring.cols * ring.chunks)
    width = ceil_div(ceil_div(cols, team), vector) * vector
    solo = team == 1 or dx is None
    teams = min(ceil_div(rows, ring.rows), ring.per * device.multiprocessors // team)
    step_bytes = ring.rows * ring.cols * ring.chunks * sum(itemsizes)
    room = device.shared_bytes // ring.per - 1024 - 2048
    depth = ring.ring or min(room // step_bytes, 12)
    words = None if solo else builder.scratch(rows * team, "uint64")
    if words is not None:
        if ring.late:
            builder.launch(
                "ring.fill_words",
                (ceil_div(rows * team, 1024),),
                {"words": words, "count": rows * team},
                {"BLOCK": 1024},
            )
        else:
            builder.fill(words, rows * team, 0xFF)
    partials = builder.scratch(2 * teams * cols, "float32") if wants else None
    early = ring.early and device.capability >= 90
    arguments: dict[str, Argument] = {
        "dy": dy[0],
        "x": x[0],
        "dx": dx[0] if dx else None,
        "mean": builder.vector("mean"),
        "rstd": builder.vector("rstd"),
        "gamma": builder.vector("gamma"),
        "partials": partials,
        "words": words,
        "rows": rows,
        "cols": cols // align,
        "width": width // align,
        "team": team,
        "teams": teams,
        "dy_row": dy[1] // align,
        "x_row": x[1] // align,
        "dx_row": dx[1] // align if dx else 0,
    }
    threads = ring.warps * THREADS
    constants: dict[str, Any] = {
        "ROWS": ring.rows,
        "COLS": ring.cols,
        "CHUNKS": ring.chunks,
        "RING": depth,
        "LAG": 0 if solo else ring.lag,
        "LANES": ring.lanes,
        "ACROSS": ring.across or ring.warps,
        "VECTOR": vector,
        "WARPS": ring.warps,
        "TEAM": max(power_of_two(team), ring.poll or threads),
        "SOLO": solo,
        "EVEN": cols == team * ring.cols * ring.chunks,
        "ALIGN": align,
        "EARLY": early,
        "HINT": ring.hint,
        "LATE": ring.late and not solo,
        "PHASE": 0,
    }
    builder.launch(
        "ring.layer_ring",
        (team * teams,),
        arguments,
        constants,
        warps=ring.warps,
        registers=ring.registers,
        cooperative=not solo,
        early=ring.late and not solo,
    )
    return partials, teams
