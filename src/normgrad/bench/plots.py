"""Pictures of a run: bandwidth against size under the copy line, and speed-ups over the peers."""

import io
import math
from pathlib import Path
from typing import Any

from normgrad.backends.base import unusable
from normgrad.bench.record import SHORT_TYPES, Record, Row, geometric_mean

# Colours that hold on white and on near-black; text and grid are replaced in HTML.
COLOURS = {"bfloat16": "#d9730d", "float16": "#2f9e6e", "float32": "#3b7dd8", "float64": "#9a5fc9"}
PEER_COLOURS = ("#3b7dd8", "#d9730d", "#2f9e6e", "#c2477f", "#9a5fc9", "#8a8a3a")
INK, GRID = "#1f2328", "#c9ced6"
_TITLES = {
    "batch_norm_backward": "batch norm",
    "batch_norm_reduce_backward": "batch norm, reduce",
    "batch_norm_elemt_backward": "batch norm, element stage",
    "layer_norm_backward": "layer norm",
    "rms_norm_backward": "RMS norm",
    "group_norm_backward": "group norm",
    "batch_norm": "batch norm, forward",
    "batch_norm_stats": "batch norm, statistics",
    "batch_norm_gather_stats": "batch norm, joined statistics",
    "batch_norm_elemt": "batch norm, element stage forward",
    "layer_norm": "layer norm, forward",
    "rms_norm": "RMS norm, forward",
    "group_norm": "group norm, forward",
}
# Up to here each row has bars of its own, beyond each operator and type.
_MAX_SINGLE_BARS = 16


def unavailable() -> str | None:
    """Why nothing can be drawn, or None."""
    return unusable("matplotlib")


def save(record: Record, path: Path) -> None:
    """Both pictures in one file; the suffix says which format."""
    pyplot = _pyplot()
    parts = [draw for draw in (_bandwidth, _speedups) if _has(record, draw)]
    if not parts:
        parts = [_nothing]
    heights = [_height(record, draw) for draw in parts]
    figure = pyplot.figure(figsize=(13, sum(heights)), layout="constrained")
    panels = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)[:, 0]
    for panel, draw in zip(panels, parts, strict=True):
        draw(panel, record)
    figure.savefig(path, dpi=140, metadata=_metadata(path.suffix.lower()))
    pyplot.close(figure)


def inline(record: Record) -> list[tuple[str, str]]:
    """Titles and SVG texts that take the colours of the page around them."""
    pyplot = _pyplot()
    made = []
    for title, draw in (("Bandwidth", _bandwidth), ("Speed-up over the peers", _speedups)):
        if not _has(record, draw):
            continue
        figure = pyplot.figure(figsize=(13, _height(record, draw)), layout="constrained")
        draw(figure, record)
        made.append((title, _themed(figure, pyplot)))
    return made


def strip(groups: dict[str, list[float]]) -> str:
    """Errors over bounds as dots, a line for each group, on a logarithmic axis; SVG text."""
    pyplot = _pyplot()
    figure = pyplot.figure(figsize=(13, 1.1 + 0.26 * len(groups)), layout="constrained")
    axes = figure.subplots()
    for place, shares in enumerate(groups.values()):
        shown = [min(max(share, 1e-6), 1e6) for share in shares]
        colours = ["#c62f2f" if share > 1 else "#3b7dd8" for share in shares]
        axes.scatter(shown, [place] * len(shown), s=16, c=colours, alpha=0.7, linewidths=0)
    axes.axvline(1.0, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    axes.set_xscale("log")
    _plain_log_ticks(axes.xaxis)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.set_xlabel(
        "worst error of a case over its bound; what lies right of the dashed line is wrong"
    )
    axes.grid(True, axis="x")
    return _themed(figure, pyplot)


def _themed(figure: Any, pyplot: Any) -> str:
    """The figure as SVG whose text and grid take the page's colours."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata=_metadata(".svg"))
    pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor").replace(GRID, "var(--grid)")


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {
            "font.size": 9,
            "svg.fonttype": "none",
            "svg.hashsalt": "normgrad",
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.titlesize": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.color": GRID,
            "grid.linewidth": 0.6,
            "text.parse_math": False,  # a record may have a `$` in a name
            "legend.frameon": False,
        }
    )
    return pyplot


def _metadata(suffix: str) -> dict[str, Any]:
    return {"Date": None} if suffix == ".svg" else {}


def _has(record: Record, draw: Any) -> bool:
    if draw is _speedups:
        return any(row.speedup(peer) for row in record.rows for peer in row.peers)
    return any(row.median_ms or row.peers for row in record.rows)


def _height(record: Record, draw: Any) -> float:
    if draw is _speedups:
        return 1.4 + 0.155 * sum(len(bars) + 0.8 for _, bars in _bars(record))
    operators = len({row.op for row in record.rows})
    return 3.6 * max(math.ceil(operators / 3), 1)  # a run without rows has a picture that says so


def _nothing(panel: Any, record: Record) -> None:
    panel.text(0.5, 0.5, "no row was timed", ha="center", va="center")


def _bandwidth(panel: Any, record: Record) -> None:
    operators = [op for op in _TITLES if any(row.op == op for row in record.rows)]
    columns = min(len(operators), 3)
    lines = math.ceil(len(operators) / columns)
    axes = panel.subplots(lines, columns, squeeze=False, sharey=True, sharex=True)
    series = {label: style for row in record.rows for label, style, _ in _points(row, record)}
    top = record.copy_gbps
    for place, op in zip(axes.flat, operators, strict=False):
        for label, style in series.items():
            points = [
                (row.megabytes, gbps)
                for row in record.rows
                for name, _, gbps in _points(row, record)
                if row.op == op and name == label
            ]
            if points:
                place.scatter(*zip(*points, strict=True), s=26, linewidths=1.3, alpha=0.9, **style)
                top = max(top, *(gbps for _, gbps in points))
        place.axhline(record.copy_gbps, color=INK, linewidth=1, linestyle=(0, (5, 3)))
        place.set_xscale("log")
        place.set_title(_TITLES[op])
        place.grid(True, which="major")
        place.tick_params(labelbottom=True, labelleft=True)
    for place in axes.flat[len(operators) :]:
        place.set_visible(False)
    sizes = [row.megabytes for row in record.rows if row.megabytes]
    if sizes:
        axes[0, 0].set_xlim(min(sizes) / 1.7, max(sizes) * 1.7)
    for place in axes.flat:
        _plain_log_ticks(place.xaxis)
    axes[0, 0].set_ylim(0, top * 1.12)
    panel.supxlabel("size of x, MB", fontsize=9)
    panel.supylabel("bytes that must move / time, GB/s", fontsize=9)
    _legend(panel, series, record)


def _legend(panel: Any, series: dict[str, dict[str, Any]], record: Record) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=style["marker"],
            markerfacecolor=style["facecolors"],
            markeredgecolor=style["edgecolors"],
            label=label,
        )
        for label, style in series.items()
    ]
    copy = f"copy in the same run, {record.copy_gbps:.0f} GB/s"
    handles.append(Line2D([], [], color=INK, linewidth=1, linestyle=(0, (5, 3)), label=copy))
    panel.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 5))


def _points(row: Row, record: Record) -> list[tuple[str, dict[str, Any], float]]:
    """Label, style and bandwidth: ours, or the peers' where ours was not measured at all."""
    marker = "o" if row.layout == "contiguous" else "s"
    if record.our_rows:
        if row.gbps is None:
            return []
        colour = COLOURS[row.dtype]
        label = f"{row.backend} {SHORT_TYPES[row.dtype]}, {row.layout}"
        face = colour if row.layout == "contiguous" else "none"
        return [(label, {"marker": marker, "facecolors": face, "edgecolors": colour}, row.gbps)]
    found = []
    for peer, milliseconds in row.peers.items():
        colour = PEER_COLOURS[record.peer_names.index(peer) % len(PEER_COLOURS)]
        style = {"marker": marker, "facecolors": "none", "edgecolors": colour}
        label = f"{peer}, {row.layout}"
        found.append((label, style, row.floor_ms / milliseconds * record.copy_gbps))
    return found


def _plain_log_ticks(axis: Any, most: float = 30) -> None:
    """Numbers as we write them: 1, 2, 5, 10 where the axis spans no more than ``most``."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    wide = high / max(low, 1e-9) > most
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _bars(record: Record) -> list[tuple[str, dict[str, tuple[float, float, float]]]]:
    """Groups of bars: per peer the (geometric) mean speed-up, the least and the greatest."""
    timed = [row for row in record.rows if any(row.speedup(peer) for peer in row.peers)]
    timed.sort(key=lambda row: list(_TITLES).index(row.op))
    groups: dict[str, list[Row]] = {}
    for row in timed:
        label = f"{_TITLES[row.op]} {SHORT_TYPES[row.dtype]}"
        label += "" if row.layout == "contiguous" else ", channels-last"
        if len(timed) <= _MAX_SINGLE_BARS:
            label += f" {row.size}" + (f" mask {row.mask}" if "0" in row.mask else "")
        groups.setdefault(label, []).append(row)
    made = []
    for label, rows in groups.items():
        bars = {}
        for peer in record.peer_names:
            times = [ratio for row in rows if (ratio := row.speedup(peer))]
            if times:
                bars[peer] = (geometric_mean(times), min(times), max(times))
        made.append((f"{label} ({len(rows)} rows)" if len(rows) > 1 else label, bars))
    return made


def _speedups(panel: Any, record: Record) -> None:
    groups = _bars(record)
    axes = panel.subplots(1, 1)
    names = record.peer_names
    ticks: list[tuple[float, str]] = []
    place = 0.0
    spans = [(low, high) for _, bars in groups for _, low, high in bars.values()]
    shown: set[str] = set()
    for label, bars in groups:
        first = place
        for peer, (mean, low, high) in bars.items():
            colour = PEER_COLOURS[names.index(peer) % len(PEER_COLOURS)]
            legend = None if peer in shown else peer
            shown.add(peer)
            axes.barh(place, mean - 1, left=1, height=0.86, color=colour, label=legend)
            if high > low:
                axes.plot([low, high], [place, place], color=INK, linewidth=1.1, marker="|")
            axes.annotate(
                f"{mean:.2f}x",
                (high, place),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
            place += 1
        ticks.append(((first + place - 1) / 2, label))
        place += 0.8
    axes.axvline(1.0, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(place - 0.8, -0.8)
    # Logarithmic, from equal speed on: one peer that is 60 times slower hides no other.
    axes.set_xscale("log")
    axes.set_xlim(0.9 * min(1, *map(min, spans)), 1.3 * max(1.5, *map(max, spans)))
    _plain_log_ticks(axes.xaxis, most=1000)
    axes.set_xlabel("times faster than the peer, both allocating; the dashed line is equal speed")
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    bars_are = " (bars: geometric mean; whiskers: least and greatest)"
    several = any(high > low for low, high in spans)
    panel.legend(loc="outside upper center", ncols=len(names) or 1)
    axes.set_title("speed-up" + (bars_are if several else ""))
