"""Layer norm with rows that come through a ring in shared memory: who takes what."""

from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.program import Argument, Builder, Ref
from normgrad.backends.cuda.tiles import THREADS, alignment, ceil_div
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry

Data = dict[str, tuple[Ref, int] | None]  # memory and the step between rows, by role
_SPARE = 1536  # bytes of shared memory: 1024 for the driver, the rest for sums across warps


@dataclass(frozen=True, slots=True)
class Ring:
    """A block: its part of a row in ``chunks`` tiles of ``cols`` columns, ``rows`` rows a step."""

    warps: int
    cols: int
    chunks: int
    rows: int = 1
    across: int = 0  # warps side by side; 0 for all
    lanes: int = 32
    per: int = 1  # blocks of a multiprocessor
    lag: int = 0  # steps between the sums and the gradient; 0 for a row in one block
    vector: int = 0
    keep: bool = True  # gamma in registers

    @property
    def registers(self) -> int:
        """Of a thread, so that ``per`` blocks run at once."""
        return min(255, 65536 // (self.per * self.warps * THREADS) // 8 * 8)


def choose_ring(builder: Builder, geometry: Geometry, device: Device, data: Data) -> "Ring | None":
    """The measured best, with as many blocks a multiprocessor as fit; None for other kernels."""
    dy, x = data["dy"], data["x"]
    assert dy is not None
    assert x is not None
    cols = geometry.channels
    present = [one for one in data.values() if one is not None]
    itemsizes = [ITEMSIZE[dy[0].dtype], ITEMSIZE[x[0].dtype]]
    align = alignment(
        max(ITEMSIZE[ref.dtype] for ref, _ in present), cols, *(n for _, n in present)
    )
    if builder.compute != "float32" or not device.copies_ahead:
        return None
    if align * min(itemsizes) < 4:  # the least that an asynchronous copy takes
        return None
    ring = _measured(cols, narrow=max(itemsizes) == 2)
    if ring is None:
        return None
    team = ceil_div(cols, ring.cols * ring.chunks)
    while ring.per > 1 and _depth(ring, device, sum(itemsizes)) < ring.lag + 2:
        ring = replace(ring, per=ring.per // 2)
    fits = team <= min(ring.warps * THREADS, ring.per * device.multiprocessors)
    return ring if fits and _depth(ring, device, sum(itemsizes)) >= ring.lag + 2 else None


def _measured(cols: int, *, narrow: bool) -> "Ring | None":
    """What was best on an H200 for 2-byte (narrow) and 4-byte elements."""
    if cols <= 4096:
        return None
    if narrow:
        if cols > 8192:
            return Ring(warps=4, cols=1024, chunks=4, per=2, lag=2)
        if cols <= 5120:
            return Ring(warps=4, cols=1024, chunks=5, per=2)
        return Ring(warps=8, cols=2048, chunks=ceil_div(cols, 2048))
    if cols > 8192:
        return Ring(warps=8, cols=1024, chunks=2, per=2, lag=3)
    return Ring(warps=8, cols=1024, chunks=ceil_div(cols, 1024))


def _depth(ring: Ring, device: Device, element_bytes: int) -> int:
    """Steps that there is room for, 12 at most."""
    step = ring.rows * (ring.cols * ring.chunks * element_bytes + 8)
    gamma = 0 if ring.keep else 4 * ring.cols * ring.chunks
    return min((device.shared_bytes // ring.per - _SPARE - gamma) // step, 12)


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
    align = alignment(
        max(ITEMSIZE[ref.dtype] for ref, _ in present), cols, *(n for _, n in present)
    )
    vector = ring.vector or 16 // max(itemsizes)
    team = ceil_div(cols, ring.cols * ring.chunks)
    width = ceil_div(ceil_div(cols, team), vector) * vector
    solo = team == 1 or dx is None
    teams = min(ceil_div(rows, ring.rows), ring.per * device.multiprocessors // team)
    depth = _depth(ring, device, sum(itemsizes))
    words = None if solo else builder.scratch(rows * team, "uint64")
    early = words is not None and device.starts_early
    partials = builder.scratch(2 * teams * cols, "float32") if wants else None
    arguments: dict[str, Argument] = {
        "dy": dy[0],
        "x": x[0],
        "dx": dx[0] if dx else None,
        "mean": _statistic(builder, "mean"),
        "rstd": _statistic(builder, "rstd"),
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
        "SOLO": solo,
        "KEEP": ring.keep,
        "EVEN": cols == team * ring.cols * ring.chunks,
        "ALIGN": align,
        "EARLY": early,
        "NEXT": wants and device.starts_early,
        "PHASE": 0,
    }
    if words is not None:  # directly before the launch, which must meet no unfinished copy
        builder.clear(words, rows * team, early=early)
    builder.launch(
        "ring.layer_ring",
        (team * teams,),
        arguments,
        constants,
        warps=ring.warps,
        registers=ring.registers,
        cooperative=not solo,
        early=early,
    )
    return partials, teams


def _statistic(builder: Builder, role: str) -> Ref | None:
    """A vector in float32, the least that an asynchronous copy takes."""
    ref = builder.vector(role)
    return ref if ref is None or ref.dtype == "float32" else builder.pack(role, "float32")
