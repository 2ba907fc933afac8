"""One page that holds a whole run: plots, tables and where it was measured."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from normgrad.bench import plots
from normgrad.bench.record import Record, Row
from normgrad.html_page import Cell, environment_table, page, section, table

_LEGEND: Final = (
    "<p><b>limit</b>: the time of copying the same bytes. <b>ms</b>: median time of a call into "
    "given memory; <b>new</b>: into memory that the call allocates, as the others do. <b>+-</b>: "
    "half of the runs lie in a range of this width. <b>of limit</b>: limit over ms. <b>call</b>: "
    "Python's part of a call. <b>peak</b>: how far memory rises. <b>error/bound</b>: the worst "
    "error over the most that rounding may cause; up to 1 is right. <b>times</b>: theirs over "
    "ours, both into new memory; <i>equal</i> or <i>noisy</i> where runs vary by more than the "
    "difference.</p>\n"
)


def save(record: Record, path: Path) -> None:
    """Write the page; it needs nothing besides itself."""
    path.write_text(render(record), encoding="utf-8")


def render(record: Record) -> str:
    """The page as text."""
    settings = record.settings
    lead = (
        f"{len(record.rows)} rows on {escape(str(settings.get('device', 'this machine')))}, "
        f"measured {escape(str(settings.get('started', 'at an unknown time')))}. "
        f"Copy in the same run: {record.copy_gbps:.0f} GB/s, bytes read plus written. "
    )
    if record.bad_rows:
        lead += f"{len(record.bad_rows)} of our results are wrong or refused."
    elif record.our_rows:
        lead += "Every result of ours is right."
    parts = [f"<p>{lead}</p>", section("Summary", _summary(record))]
    missing = plots.unavailable()
    if missing:
        parts.append(section("Plots", f"<p>Not drawn: {escape(missing)}.</p>"))
    else:
        parts += [section(title, f"<figure>{svg}</figure>") for title, svg in plots.inline(record)]
    parts.append(section("Rows", _rows(record)))
    notes = _notes(record)
    if notes:
        parts.append(section("What could not be measured, or was wrong", notes))
    parts.append(section("Where", environment_table({**record.environment, "run": settings})))
    return page("normgrad bench", parts)


def _summary(record: Record) -> str:
    rows: list[Sequence[str | Cell]] = []
    for peer in record.peer_names:
        both, given = record.geomeans(peer), record.geomeans(peer, given=True)
        for dtype in both:
            slower = [
                row
                for row in record.rows
                if row.dtype == dtype
                and (times := row.speedup(peer))
                and times < 1
                and not row.undecided(peer)
            ]
            style = "bad" if slower else ""
            rows.append(
                (
                    peer,
                    dtype,
                    f"{both[dtype]:.2f}",
                    f"{given[dtype]:.2f}",
                    Cell(str(len(slower)), style),
                )
            )
    rows += [(peer, reason, "", "", "") for peer, reason in record.absent_peers.items()]
    if not rows:
        return "<p>No peer was asked for.</p>"
    header = ("beside", "type", "we are faster, times", "with results given to us")
    return table((*header, "rows where it is faster"), rows)


def _rows(record: Record) -> str:
    peers = record.peer_names
    ours = bool(record.our_rows)
    header = ["operator", "shape", "type", "layout", "mask", "MB", "limit ms"]
    if ours:
        header += ["ms", "+-", "of limit", "new ms", "call µs", "peak MB", "error/bound"]
    for peer in peers:
        header += [f"{peer} ms", "+-"] + (["times"] if ours else [])
    return _LEGEND + table(header, [_row(row, peers, ours) for row in record.rows])


def _row(row: Row, peers: list[str], ours: bool) -> list[str | Cell]:
    cells: list[str | Cell] = [row.op, row.size, row.dtype, row.layout, row.mask]
    cells += [f"{row.megabytes:.1f}", f"{row.floor_ms:.4f}"]
    if ours:
        if row.median_ms is None or row.floor_share is None:
            word = "wrong" if row.fault == "wrong" else "refused"
            cells += [Cell(word, "bad"), "", "", "", "", ""]
        else:
            cells += [f"{row.median_ms:.4f}", f"{row.spread or 0:.0%}", f"{row.floor_share:.1%}"]
            cells += ["" if row.alloc_ms is None else f"{row.alloc_ms:.4f}"]
            cells += ["" if row.host_us is None else f"{row.host_us:.1f}"]
            cells += ["" if row.memory_peak is None else f"{row.memory_peak / 1e6:.1f}"]
        cells.append("" if row.budget_share is None else f"{row.budget_share:.2f}")
    for peer in peers:
        if peer in row.peers:
            cells.append(f"{row.peers[peer]:.4f}")
        elif peer in row.wrong_peers:
            cells.append(Cell(f"{row.wrong_peers[peer]:.4f} (wrong)", "bad"))
        else:
            wrong = row.peer_faults.get(peer) == "wrong"
            cells.append(Cell("wrong", "bad") if wrong else "–")
        spread = row.peer_spread.get(peer)
        cells.append("" if spread is None else f"{spread:.0%}")
        if ours:
            cells.append(_times(row, peer))
    return cells


def _times(row: Row, peer: str) -> Cell:
    times, word = row.speedup(peer), row.undecided(peer)
    if times is None or word is not None:
        return Cell(word or "")
    return Cell(f"{times:.2f}", "good" if times >= 1 else "bad")


def _notes(record: Record) -> str:
    listed = []
    for row in record.rows:
        if row.error:
            listed.append((row.backend, row.key, row.error))
        if row.same_bits is False:
            listed.append((row.backend, row.key, "different bits after the timed runs"))
        listed += [(peer, row.key, reason) for peer, reason in row.peer_errors.items()]
    return table(("who", "row", "why"), listed) if listed else ""
