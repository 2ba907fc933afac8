"""Draws the diagrams of the docs: how a slab stays on chip, the two-stage call, the road of a call.

python benchmarks/drawings.py
"""

from collections.abc import Sequence

from pictures import PICTURES, svg, text

LINE = 20  # from one line of text to the next


def main() -> None:
    """Write all of them."""
    PICTURES.mkdir(exist_ok=True)
    for name, drawing in (
        ("slab.svg", slab()),
        ("two-stage.svg", two_stage()),
        ("road.svg", road()),
    ):
        (PICTURES / name).write_text(drawing, encoding="utf-8")


def slab() -> str:
    """Five trips over the memory bus, or three."""
    title = "What shares statistics stays on chip"
    parts = [text(16, 28, title, "title")]
    for x, kind, heading in ((16, "c1", "two kernels: 5 trips"), (350, "c0", "normgrad: 3 trips")):
        parts += [text(x, 62, heading), *box(x, 78, 314, 36, ["GPU memory: x, dy, dx"], "soft")]
        first = ["add up", "the sums"] if kind == "c1" else ["keep x and dy,", "add up the sums"]
        parts += box(x, 180, 150, 62, first, kind)
        parts += box(x + 164, 180, 150, 62, ["apply the formula"], kind)
        parts += arrow(x + 30, 114, x + 30, 178)
        parts.append(text(x + 38, 152, "2: x, dy", "small"))
        if kind == "c1":
            parts += arrow(x + 184, 114, x + 184, 178)
            parts.append(text(x + 192, 140, "2: x, dy", "small"))
        parts += arrow(x + 294, 178, x + 294, 116)
        parts.append(text(x + 240, 166, "1: dx", "small"))
        parts += arrow(x + 150, 211, x + 162, 211)
    words = (
        "What shares statistics is one channel of all images (batch norm), one group of an image",
        "(group norm) or one row (layer norm). Several blocks hold it together in shared memory",
        "and registers, and exchange their sums.",
    )
    parts += [text(16, 272 + 18 * place, line, "small") for place, line in enumerate(words)]
    return svg(680, 326, title, parts)


def two_stage() -> str:
    """The calls of an aclnn program and what each does."""
    parts = [text(16, 28, "The two-stage call", "title")]
    parts += box(16, 48, 190, 66, ["aclnnXxx", "GetWorkspaceSize"], "c1")
    parts += box(16, 174, 190, 66, ["aclrtMalloc", "(the workspace)"], "c1")
    parts += box(16, 300, 190, 66, ["aclnnXxx"], "c1")
    parts += arrow(111, 114, 111, 172)
    parts += [text(120, 148, "status, bytes, executor", "small")]
    parts += arrow(111, 240, 111, 298)
    parts += [text(120, 274, "workspace, executor, stream", "small")]
    parts += box(
        330,
        48,
        334,
        86,
        ["checks every argument", "plans: kernel, tasks, scratch bytes", "writes nothing"],
        "soft",
    )
    parts += box(
        330,
        174,
        334,
        66,
        ["memory with an owner: freed twice,", "used late, too small are found"],
        "soft",
    )
    parts += box(
        330, 300, 334, 66, ["runs the plan on the stream", "the executor is spent"], "soft"
    )
    for y in (81, 207, 333):
        parts += arrow(206, y, 328, y)
    parts += [text(16, 398, "Left: your program. Right: normgrad.", "small")]
    return svg(680, 414, "The two-stage call", parts)


STOPS = (
    ("functional.py", "your arguments, by name"),
    ("calls/dispatch.py", "arrays become addresses; a call seen before skips to 6"),
    ("core/validate.py", "every rule, once; an error names the argument"),
    ("core/plan.py", "the first backend that supports the request"),
    ("backends/*/plan/", "shapes decide: schedule, tiles, tasks, scratch bytes"),
    ("cpu/engine.py, cuda/run/", "threads take tasks, or kernels are launched"),
    ("backends/*/schedules/", "which element when, and what stays in cache or on chip"),
    ("backends/*/formulas", "the line of arithmetic"),
)


def road() -> str:
    """From a call to the arithmetic."""
    parts = [text(16, 28, "From layer_norm_backward(...) to the arithmetic", "title")]
    for stop, (where, what) in enumerate(STOPS):
        y = 46 + stop * 56
        parts += box(16, y, 220, 38, [where], "c1" if stop < 5 else "c0")
        parts.append(text(252, y + 24, f"{stop + 1}  {what}", "small"))
        if stop:
            parts += arrow(126, y - 18, 126, y - 2)
    below = 46 + len(STOPS) * 56
    parts += [
        text(
            16,
            below + 6,
            "Blue: once for each request, then remembered. Green: every call.",
            "small",
        )
    ]
    return svg(680, below + 22, "From a call to the arithmetic", parts)


def box(
    x: float, y: float, width: float, height: float, lines: Sequence[str], kind: str
) -> list[str]:
    """A box with lines of text in its middle."""
    first = y + height / 2 + 5 - LINE * (len(lines) - 1) / 2
    dark = "" if kind == "soft" else "on"
    return [
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>',
        *(
            text(x + width / 2, first + LINE * place, line, f"small middle {dark}".strip())
            for place, line in enumerate(lines)
        ),
    ]


def arrow(x1: float, y1: float, x2: float, y2: float) -> list[str]:
    """A line with a head at its end; straight down, up or right."""
    if x1 == x2:
        back = 7 if y1 < y2 else -7
        head = f"{x2},{y2} {x2 - 4},{y2 - back} {x2 + 4},{y2 - back}"
    else:
        head = f"{x2},{y2} {x2 - 7},{y2 - 4} {x2 - 7},{y2 + 4}"
    return [
        f'<line class="edge" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>',
        f'<polygon class="head" points="{head}"/>',
    ]


if __name__ == "__main__":
    main()
