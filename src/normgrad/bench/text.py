"""A record as lines of text: the table of a run, and what it has no room for."""

from collections.abc import Iterator

from normgrad.bench.record import SHORT_TYPES, Record, Row


def heading(record: Record, rows: int) -> Iterator[str]:
    """Where it was measured, and by whom not."""
    device = record.settings.get("device", "a device without a name")
    yield f"{device}: {rows} rows, copy {record.copy_gbps:.0f} GB/s (read plus written)"
    for name, reason in record.absent_peers.items():
        yield f"peer {name} is not measured: {reason}"


def header(ours: bool, peers: list[str]) -> list[tuple[str, int]]:
    """Column names and widths, fixed so that rows can be printed one by one."""
    columns = [("operator", 17), ("shape", 20), ("type", 8), ("layout", 13)]
    columns += [("MB", 6), ("floor ms", 8)]
    if ours:
        columns += [("out= ms", 8), ("spread", 6), ("floor", 6), ("alloc ms", 8)]
        columns += [("host us", 7)]
    for peer in peers:
        columns += [(f"{peer} ms", 11)]
        if ours:
            columns += [("times", 6)]
    return columns


def cells(row: Row, ours: bool, peers: list[str]) -> list[str]:
    """One row under that header."""
    kind = SHORT_TYPES[row.dtype]
    shape = row.size + (f" m{row.mask}" if "0" in row.mask else "")
    line = [row.op, shape, kind, row.layout, f"{row.megabytes:.1f}", f"{row.floor_ms:.4f}"]
    if ours:
        if row.median_ms is None:
            line += ["WRONG" if row.fault == "wrong" else "refused"]
            line += ["", "", "", ""]
        else:
            line += [_shown(row.median_ms, ".4f"), _shown(row.spread, ".0%")]
            line += [_shown(row.floor_share, ".1%"), _shown(row.alloc_ms, ".4f")]
            line += [_shown(row.host_us, ".1f")]
    for peer in peers:
        if peer in row.peers:
            line.append(f"{row.peers[peer]:.4f}")
        elif peer in row.wrong_peers:
            line.append(f"{row.wrong_peers[peer]:.4f}!")
        else:
            fault = row.peer_faults.get(peer, "not offered")
            line.append({"wrong": "WRONG", "not offered": "-"}.get(fault, fault))
        if ours:
            times = row.speedup(peer)
            line.append("" if times is None else f"{times:.2f}x")
    return line


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def notes(record: Record) -> Iterator[str]:
    """What the table has no room for."""
    for row in record.rows:
        if row.error:
            yield f"{row.backend}: {row.key}: {row.error}"
        if row.same_bits is False:
            yield f"{row.backend}: {row.key}: WRONG: other bits after the timed runs"
        for name, reason in row.peer_errors.items():
            if row.peer_faults.get(name) not in ("not offered", "skipped"):
                yield f"{name}: {row.key}: {reason}"
    for name in record.peer_names:
        both, given = record.geomeans(name), record.geomeans(name, given=True)
        for dtype, times in both.items():
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
