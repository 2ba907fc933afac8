"""A record as lines of text: the table of a run, and what it has no room for."""

import os
from collections.abc import Iterator
from typing import Final

from normgrad.bench.record import SHORT_TYPES, Record, Row
from normgrad.core.operators import OPERATORS

Columns = list[tuple[str, int]]

# Programs that want to run, for each core, from which on times say little; our threads are one. At
# 6 of them torch's small operators took 100 times as long: its threads wait for each other.
_BUSY: Final = 2.0

_LEGEND: Final = (
    "ms: median of the runs, results allocated by the call; +-: half of the runs lie in a range of",
    "this width; copy: the time to copy the same bytes over that of ours; times: theirs over ours.",
)


def heading(record: Record, rows: int) -> Iterator[str]:
    """Where it was measured, and by whom not."""
    device = record.settings.get("device", "a device without a name")
    yield f"{device}: {rows} rows, copy {record.copy_gbps:.0f} GB/s (read plus written)"
    for name, reason in record.absent_peers.items():
        yield f"peer {name} is not measured: {reason}"


class Table:
    """The lines of a table whose rows come one by one; short ones in 80 columns with one peer."""

    def __init__(self, record_ours: bool, peers: list[str], *, verbose: bool) -> None:
        self.ours, self.peers, self.verbose = record_ours, peers, verbose
        self._op = ""

    @property
    def columns(self) -> Columns:
        """Names and widths, fixed so that rows can be printed one by one."""
        if self.verbose:
            columns = [("operator", 27), ("shape", 20), ("type", 4), ("layout", 13)]
            columns += [("MB", 6), ("floor ms", 8)]
            ours = [("out= ms", 8), ("+-", 4), ("floor", 6), ("alloc ms", 8), ("host us", 7)]
        else:
            columns = [("shape", 16), ("type", 4), ("channels", 8)]
            ours = [("ours ms", 8), ("+-", 4), ("copy", 5)]
        columns += ours if self.ours else []
        for peer in self.peers:
            columns += [(f"{peer} ms", 8), ("+-", 4)]
            columns += [("times", 6)] if self.ours else []
        return columns

    def title(self, row: Row) -> str | None:
        """The line before a row of another operator than the last."""
        new = not self.verbose and row.op != self._op
        self._op = row.op
        return f"{row.op}:" if new else None

    def cells(self, row: Row) -> list[str]:
        """One row under that header."""
        shape = row.size + (f" m{row.mask}" if "0" in row.mask else "")
        kind = SHORT_TYPES[row.dtype]
        if self.verbose:
            line = [row.op, shape, kind, row.layout, f"{row.megabytes:.1f}", f"{row.floor_ms:.4f}"]
        else:
            last = "last" if row.layout == "channels-last" else "first"
            line = [shape, kind, "-" if _of_rows(row) else last]
        line += self._ours(row) if self.ours else []
        for peer in self.peers:
            line += _peer(row, peer)
            line += [_times(row, peer)] if self.ours else []
        return line

    def _ours(self, row: Row) -> list[str]:
        if row.median_ms is None:
            word = "WRONG" if row.fault == "wrong" else "refused"
            return [word, *[""] * (4 if self.verbose else 2)]
        if self.verbose:
            line = [_milliseconds(row.median_ms), _spread(row.spread)]
            line += [_shown(row.floor_share, ".1%"), _milliseconds(row.alloc_ms)]
            return [*line, _shown(row.host_us, ".1f")]
        time = row.alloc_ms or row.median_ms
        spread = row.alloc_spread if row.alloc_ms else row.spread
        share = "noisy" if row.scattered else f"{row.floor_ms / time:.0%}"
        return [_milliseconds(time), _spread(spread), share]


def _of_rows(row: Row) -> bool:
    return next(one.axes for op, one in OPERATORS.items() if op == row.op) == "rows"


def _peer(row: Row, peer: str) -> list[str]:
    spread = _spread(row.peer_spread.get(peer))
    if peer in row.peers:
        return [_milliseconds(row.peers[peer]), spread]
    if peer in row.wrong_peers:
        return [f"{_milliseconds(row.wrong_peers[peer])}!", spread]
    fault = row.peer_faults.get(peer, "not offered")
    return [{"wrong": "WRONG", "not offered": "-"}.get(fault, fault), ""]


def _times(row: Row, peer: str) -> str:
    """How many times faster, where that can be told."""
    times = row.speedup(peer)
    if times is None:
        return ""
    return row.undecided(peer) or f"{times:.2f}x"


def _milliseconds(value: float | None) -> str:
    """Four digits: 0.01234, 1.234, 1234."""
    if value is None:
        return ""
    whole = len(str(int(value))) if value >= 1 else 0
    return f"{value:.{max(0, 4 - whole)}f}"


def _spread(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}" if value < 10 else ">999%"


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def notes(record: Record) -> Iterator[str]:
    """What the table has no room for."""
    for row in record.rows:
        if row.error:
            yield f"{row.backend}: {row.key}: {row.error}"
        if row.same_bits is False:
            yield f"{row.backend}: {row.key}: WRONG: different bits after the timed runs"
        for name, reason in row.peer_errors.items():
            if row.peer_faults.get(name) not in ("not offered", "skipped"):
                yield f"{name}: {row.key}: {reason}"
    for name in record.peer_names:
        both, given = record.geomeans(name), record.geomeans(name, given=True)
        for dtype, times in both.items():
            compared = [row for row in record.rows if row.dtype == dtype and row.speedup(name)]
            if all(row.undecided(name) for row in compared):
                yield f"geometric mean over {name}, {dtype}: too little or too noisy to tell"
                continue
            yield (
                f"geometric mean over {name}, {dtype}: {times:.2f}x both allocating, "
                f"{given[dtype]:.2f}x with out= given"
            )
    for name in dict.fromkeys(name for row in record.rows for name in row.wrong_peers):
        both = record.geomeans(name, wrong_too=True)
        given = record.geomeans(name, given=True, wrong_too=True)
        for dtype, times in both.items():
            yield (
                f"the same with the rows where {name} is wrong, {dtype}: {times:.2f}x and "
                f"{given[dtype]:.2f}x"
            )
    yield from _noise(record)


def _noise(record: Record) -> Iterator[str]:
    """Why some rows have no ratio, or one that is not to be trusted."""
    cores = record.environment.get("cores")
    if not isinstance(cores, int) or cores < 1:  # a record comes from anywhere
        cores = os.cpu_count() or 1
    load = max((row.load or 0.0 for row in record.rows), default=0.0)
    if load > _BUSY * cores:
        yield (
            f"busy: load {load:.1f} on {cores} cores: threads wait for other programs; times, and "
            "what is made of them, may be far off"
        )
    words = [(row, row.undecided(peer)) for row in record.rows for peer in record.peer_names]
    noisy = [row for row, word in words if word == "noisy"]
    noisy += [row for row in record.rows if row.scattered]  # the copy's column
    if noisy:
        loads = [row.load for row in noisy if row.load is not None]
        when = f"; load {max(loads):.1f} on {cores} cores" if loads else ""
        words_of = "runs differ by more than what is compared, too noisy to tell"
        yield f"noisy, {len(noisy)} times: {words_of}{when}"
    if any(word == "equal" for _, word in words):
        yield "equal: the difference is smaller than what runs differ by, and that is little"


def legend() -> tuple[str, ...]:
    """What the columns of a short table are."""
    return _LEGEND
