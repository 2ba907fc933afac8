"""Draws the pictures of README and site from the runs kept in benchmarks/results.

    python benchmarks/pictures.py

SVG without a library: text that can be searched, two colour schemes, a few kilobytes each.
"""

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from normgrad.bench.record import Record, geometric_mean, read_json

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PICTURES = HERE.parent / "docs" / "pictures"
WIDTH = 680
LEFT = 190  # where bars begin
BAR, GAP = 17, 14
STYLE = """
  text { font: 15px system-ui, sans-serif; fill: #24292f }
  .small { font-size: 13px }
  .title { font-size: 17px; font-weight: 600 }
  .right { text-anchor: end }
  .middle { text-anchor: middle }
  .on { fill: #ffffff }
  .soft { fill: #e8ecf1 }
  .edge { stroke: #57606a; stroke-width: 1.5 }
  .head { fill: #57606a }
  .line { stroke: #24292f; stroke-dasharray: 4 3 }
  .page { fill: #ffffff }
  .c0 { fill: #1a7f5a } .c1 { fill: #3b7dd8 } .c2 { fill: #9a5cc6 } .c3 { fill: #d0741c }
  .c4 { fill: #c2447a }
  @media (prefers-color-scheme: dark) {
    text { fill: #d7dde4 } .page { fill: #14181d } .line { stroke: #d7dde4 }
    .on { fill: #10151a } .soft { fill: #2a323b } .edge { stroke: #9aa4af } .head { fill: #9aa4af }
    .c0 { fill: #35a87f } .c1 { fill: #5c9af0 } .c2 { fill: #b583dc } .c3 { fill: #e0924a }
    .c4 { fill: #d9709c }
  }"""
BASELINES = {
    "torch": "PyTorch",
    "compile": "torch.compile",
    "liger": "Liger",
    "flaggems": "FlagGems",
    "cudnn": "cuDNN",
}
OPERATORS = {
    "batch norm": ("batch_norm_backward",),
    "layer norm": ("layer_norm_backward",),
    "group norm": ("group_norm_backward",),
    "synchronized halves": ("batch_norm_reduce_backward", "batch_norm_elemt_backward"),
}
Bars = list[tuple[str, float, str]]  # class, length, what stands behind it


def main() -> None:
    """Write all of them."""
    PICTURES.mkdir(exist_ok=True)
    run = read_json(RESULTS / "h200.json")
    (PICTURES / "speed.svg").write_text(speed(run), encoding="utf-8")
    steps = json.loads((RESULTS / "h200-train-step.json").read_text(encoding="utf-8"))
    (PICTURES / "steps.svg").write_text(whole_steps(steps["rows"]), encoding="utf-8")


def speed(run: Record) -> str:
    """How many times as long the others take, by operator."""
    groups: list[tuple[str, Bars]] = []
    for title, ops in OPERATORS.items():
        bars: Bars = []
        for place, baseline in enumerate(BASELINES):
            rows = [row for row in run.rows if row.op in ops]
            times = [one for row in rows if (one := row.speedup(baseline, wrong_too=True))]
            if times:
                mean = geometric_mean(times)
                bars.append((f"c{place}", mean, f"{mean:.1f}x ({len(times)} cases)"))
        groups.append((title, bars))
    date = str(run.settings["started"])[:10]
    return chart(
        "Backward pass on an H200: their time over ours",
        f"geometric means, both allocating results; normgrad is the dashed line; {date}",
        groups,
        list(BASELINES.values()),
    )


def whole_steps(rows: Sequence[dict[str, object]]) -> str:
    """Whole training steps: torch's time over that with enable()."""
    modes = ("eager", "captured", "compiled")
    groups: dict[str, Bars] = {}
    for row in rows:
        layout = "channels last" if row["channels_last"] else "channels first"
        if row["model"] == "transformer":
            layout = ""
        kind = "bf16" if row["precision"] == "bf16 autocast" else "float32"
        title = " ".join(filter(None, (str(row["model"]), kind, layout)))
        gain = float(str(row["gain"]))
        bar = (f"c{modes.index(str(row['mode']))}", gain, f"{gain:.2f}x")
        groups.setdefault(title, []).append(bar)
    return chart(
        "Whole training steps on an H200: speed-up by enable()",
        "forward, backward and optimizer; torch alone is the dashed line; 2026-11-18",
        list(groups.items()),
        ["eager", "as a CUDA graph", "torch.compile, as a CUDA graph"],
        left=235,
    )


def chart(
    title: str,
    subtitle: str,
    groups: Iterable[tuple[str, Bars]],
    legend: Sequence[str],
    left: int = LEFT,
) -> str:
    """Groups of bars from 0, with a dashed line at 1."""
    groups = list(groups)
    longest = max(length for _, bars in groups for _, length, _ in bars)
    scale = (WIDTH - left - 150) / longest
    parts = [text(16, 28, title, "title"), text(16, 50, subtitle, "small")]
    x = 16
    for place, label in enumerate(legend):
        parts += [f'<rect class="c{place}" x="{x}" y="64" width="13" height="13"/>']
        parts += [text(x + 18, 76, label, "small")]
        x += 40 + 7 * len(label)
    y = 98
    top = y
    for name, bars in groups:
        height = BAR * len(bars)
        parts.append(text(left - 12, y + height / 2 + 5, name, "right"))
        for place, (colour, length, label) in enumerate(bars):
            at = y + place * BAR
            parts.append(
                f'<rect class="{colour}" x="{left}" y="{at}" width="{scale * length:.1f}" '
                f'height="{BAR - 3}"/>'
            )
            parts.append(text(left + scale * length + 6, at + 12, label, "small"))
        y += height + GAP
    one = left + scale
    parts.append(f'<line class="line" x1="{one:.1f}" y1="{top - 6}" x2="{one:.1f}" y2="{y - 6}"/>')
    return svg(WIDTH, y + 4, title, parts)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words at a place."""
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}">{html.escape(words)}</text>'


def svg(width: int, height: float, title: str, parts: Iterable[str]) -> str:
    """The file."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}" '
        f'width="{width}" height="{height:.0f}" role="img">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}\n</style>\n"
        f'<rect class="page" width="{width}" height="{height:.0f}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    main()
