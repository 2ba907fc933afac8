"""Writes docs/explanation/measurements.md from the runs kept in benchmarks/results.

    python benchmarks/performance_page.py

Every figure of the page is one that a run printed; rows that fall short are shown like the others.
"""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from normgrad.bench.record import Record, Row, geometric_mean, read_json
from normgrad.bench.suites import sizes_text, suite

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "explanation" / "measurements.md"
# Least share of the three-stream floor at 64 MB and more, by operator and layout: the goals.
GOALS = {
    ("batch_norm_elemt_backward", "contiguous"): 0.92,
    ("batch_norm_elemt_backward", "channels-last"): 0.92,
    ("layer_norm_backward", "contiguous"): 0.88,
    ("batch_norm_backward", "contiguous"): 0.85,
    ("batch_norm_backward", "channels-last"): 0.80,
    ("group_norm_backward", "contiguous"): 0.85,
    ("group_norm_backward", "channels-last"): 0.75,
}
# Bytes an H200 can keep: tiles of 384 KB on each multiprocessor (docs/contributors/gpu.md), at
# the very best all of its L2 cache too.
ON_CHIP = 132 * 384 * 1024 + 60_000_000
PEERS = ("torch", "compile", "liger", "flaggems", "cudnn")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """All of it."""
    return "\n".join([*h200(), "", *forward("h200"), *cpu(), "", *forward("cpu"), *one_thread()])


def share(row: Row) -> float:
    """Of the floor."""
    assert row.floor_share is not None  # every row of these runs was timed
    return row.floor_share


def sizes(row: Row) -> str:
    """The shape alone, without groups and normalized axes."""
    return sizes_text(row.shape, None, None)


def h200() -> Iterator[str]:
    """The GPU's part."""
    run, before = read_json(RESULTS / "h200.json"), read_json(RESULTS / "h200-before.json")
    rows, packages = run.rows, run.environment["packages"]
    wrong = sum(not row.verified for row in rows)
    copies = [part["copy_gbps"] for part in run.settings["runs"]]
    yield "# All measurements"
    yield "## On an NVIDIA H200"
    yield (
        "`normgrad bench --backend cuda --suite h200`, one operator after another from "
        f"{run.settings['started']} on, {run.environment['gpu']}, torch {packages['torch']}, "
        f"Triton {packages['triton']}, Liger {packages['liger-kernel']}, FlagGems "
        f"{packages['flag-gems']}. Copies {min(copies):.0f} to {max(copies):.0f} GB/s (read plus "
        "written). Medians, L2 written over before every run, every result checked against float64 "
        f"first; {wrong or 'none'} of "
        "ours was wrong. *Share*: of what the copy speed allows for reading x and dy once and "
        "writing dx once. Peers: their time over ours, both allocating; under 1 they are faster. "
        "*Host*: Python's time for a call, ours and torch's, both allocating."
    )
    yield ""
    yield (
        "In italics: peers that this run had no time to prepare, over ours of then, from runs of "
        f"{before.settings['started']} and 2026-11-18 08:11 UTC "
        "(`benchmarks/results/h200-before.json`). `!`: the peer's result is outside 16 times the "
        "budget."
    )
    yield ""
    known = {row.key: row for row in before.rows}
    yield middle(rows, known)
    yield ""
    yield from goals(rows)
    yield ""
    yield hosts(rows)
    yield ""
    yield "The picture of it: `benchmarks/results/h200.png`."
    yield ""
    yield from table(rows, known)
    yield ""
    yield from odd_planes()


def forward(machine: str) -> Iterator[str]:
    """Forward passes, and RMS norm both ways: a run of their own, once there is one."""
    kept = RESULTS / f"{machine}-forward.json"
    if not kept.exists():
        return
    run = read_json(kept)
    packages = run.environment["packages"]
    gpu = machine == "h200"
    yield "### Forward passes and RMS norm" + (", NVIDIA H200" if gpu else ", two cores of a CPU")
    yield (
        f"`normgrad bench --suite forward --backend {'cuda' if gpu else 'cpu'}`, "
        f"{run.settings['started']}, {run.environment['gpu' if gpu else 'cpu']}, torch "
        f"{packages['torch']}, copy {run.copy_gbps:.0f} GB/s. *Share*: of what the copy speed "
        "allows for reading x and writing y once (RMS norm backward: reading x and dy, writing "
        "dx). Baselines: their time over ours, both allocating."
    )
    yield ""
    yield "| type | " + " | ".join(f"over {peer}" for peer in PEERS if _took_part(run, peer)) + " |"
    yield "|" + "---|" * (1 + sum(_took_part(run, peer) for peer in PEERS))
    for dtype in dict.fromkeys(row.dtype for row in run.rows):
        cells = [dtype]
        for peer in PEERS:
            if _took_part(run, peer):
                rows = [row for row in run.rows if row.dtype == dtype]
                ratios = [one for row in rows if (one := row.speedup(peer, wrong_too=True))]
                slower = sum(one < 1 for one in ratios)
                mean = geometric_mean(ratios) if ratios else math.nan
                cells.append(f"{mean:.2f} in {len(ratios)} rows, {slower} of them below 1")
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield from table(run.rows)
    yield ""


def one_thread() -> Iterator[str]:
    """Forward passes on a busy machine: time of the processor, on one thread."""
    run = json.loads((RESULTS / "cpu-forward-one-thread.json").read_text(encoding="utf-8"))
    packages = run["environment"]["packages"]
    yield "### Forward passes and RMS norm, one thread of a CPU"
    yield (
        f"`benchmarks/forward_one_thread.py`, {run['date']}, {run['environment']['cpu']}, torch "
        f"{packages['torch']}. The machine was busy with other work, so this is the time of the "
        "processor, in ms, on one thread each; both make their results. *ratio*: torch's time over "
        "ours; under 1 torch is faster. Torch has no operator for RMS norm's backward pass on the "
        "CPU: it is autograd's. No run of forward passes on two threads nor on an H200 is kept yet."
    )
    yield ""
    for kind in ("float32", "bfloat16", "float16"):
        ratios = [
            torchs / ours
            for op, _, dtype, _, ours, torchs in run["rows"]
            if dtype == kind and not op.startswith("rms")
        ]
        slower = sum(one < 1 for one in ratios)
        yield (
            f"- {kind}: {geometric_mean(ratios):.2f} times torch without RMS norm, geometric mean "
            f"of {len(ratios)} rows, {slower} of them slower than torch"
        )
    yield ""
    rows = [
        (op, layout, [shape, dtype, f"{ours:.3f}", f"{torchs:.3f}", f"{torchs / ours:.2f}"])
        for op, shape, dtype, layout, ours, torchs in run["rows"]
    ]
    yield from tables(("ours", "torch", "ratio"), sorted(rows, key=lambda one: one[:2]))


def _took_part(run: Record, peer: str) -> bool:
    return any(row.peer_ms(peer, wrong_too=True) for row in run.rows)


def odd_planes() -> Iterator[str]:
    """Shapes beyond the goals: planes that start at no multiple of 16 bytes."""
    run = read_json(RESULTS / "deeplab.json")
    yield "### Odd planes"
    yield (
        f"`normgrad bench --backend cuda --suite deeplab`, {run.settings['started']}, the same "
        f"machine, copy {run.copy_gbps:.0f} GB/s: batch norms of DeepLab on crops of 513x513, "
        "whose planes start anywhere."
    )
    yield ""
    yield from table(run.rows)


def table(rows: list[Row], before: dict[str, Row] | None = None) -> Iterator[str]:
    """Every row, with the peers that took part, in this run or one before."""
    before = before or {}
    timed = [*rows, *before.values()]
    peers = [peer for peer in PEERS if any(row.peer_ms(peer, wrong_too=True) for row in timed)]
    found = []
    for row in sorted(rows, key=lambda one: (one.op, one.layout, one.dtype)):
        theirs = row.peer_host_us.get("torch")
        cells = [
            sizes(row),
            row.dtype,
            f"{row.median_ms:.4f}",
            f"{share(row):.0%}",
            f"{row.host_us:.0f}" + (f" / {theirs:.0f}" if theirs else ""),
            *(ratio(row, peer, before.get(row.key)) for peer in peers),
        ]
        found.append((row.op, row.layout, cells))
    yield from tables(("ms", "share", "host us", *peers), found)


def tables(columns: Iterable[str], rows: Iterable[tuple[str, str, list[str]]]) -> Iterator[str]:
    """One for each operator and layout, of rows that begin with a shape and a type."""
    heads = ("shape", "type", *columns)
    for (op, layout), group in itertools.groupby(rows, key=lambda one: one[:2]):
        yield f"**{op}**, {layout}"
        yield ""
        yield "| " + " | ".join(heads) + " |"
        yield "|" + "---|" * len(heads)
        for _, _, cells in group:
            yield "| " + " | ".join(cells) + " |"
        yield ""


def middle(rows: list[Row], before: dict[str, Row]) -> str:
    """Ours and torch's share in the middle of all rows."""
    ours = statistics.median(share(row) for row in rows)
    shares = [torch_share(row) or torch_share(before[row.key]) for row in rows]
    torchs = statistics.median(filter(None, shares))
    text = f"In the middle of {len(rows)} rows ours is {ours:.0%}, torch's {torchs:.0%}."
    measured = {row.key for row in rows}
    known = {row.op for row in rows}  # an operator that came later has a run of its own
    asked = [one for one in suite("h200", "cuda") if one.case.op in known]
    left = [one.name for one in asked if Row.of(one, "cuda").key not in measured]
    return text + (f" Time ran out before {len(left)}: {', '.join(left)}." if left else "")


def torch_share(row: Row) -> float:
    """What torch reaches of the floor; 0 where it was not timed."""
    time = row.peer_ms("torch", wrong_too=True)
    return row.floor_ms / time if time else 0.0


def reach(row: Row) -> float:
    """The largest share that channels-last data can have on an H200.

    Shorter segments than 128 bytes are read at half speed. So columns of 128 bytes of x and of dy
    are what must be on chip between the sums and the gradient, or are read twice.
    """
    rows = math.prod(row.shape[2:]) * (row.shape[0] if row.op == "batch_norm" else 1)
    slab = 2 * 128 * rows
    return 3 / (3 + 2 * (1 - min(1, ON_CHIP / slab)))


def hosts(rows: list[Row]) -> str:
    """How long the host is busy with a call."""
    parts = []
    for op in dict.fromkeys(row.op for row in rows):
        both = [
            (row.host_us, row.peer_host_us["torch"])
            for row in rows
            if row.op == op and row.host_us is not None and "torch" in row.peer_host_us
        ]
        if both:
            ours, theirs = ([pair[side] for pair in both] for side in (0, 1))
            parts.append(
                f"{op} {min(ours):.0f} to {max(ours):.0f} us (torch {min(theirs):.0f} to "
                f"{max(theirs):.0f}; no more than torch in "
                f"{sum(one <= other for one, other in both)} of {len(both)})"
            )
    return "Host time of a call: " + "; ".join(parts) + "."


def goals(listed: list[Row]) -> Iterator[str]:
    """What was asked of large data, and what came out."""
    yield "| at 64 MB and more | rows | goal | met | least | greatest |"
    yield "|---|---|---|---|---|---|"
    for (op, layout), goal in GOALS.items():
        shares = [
            share(row)
            for row in listed
            if (row.op, row.layout) == (op, layout) and row.megabytes >= 64
        ]
        met = sum(one >= goal for one in shares)
        yield (
            f"| {op}, {layout} | {len(shares)} | {goal:.0%} | {met} | {min(shares):.0%} "
            f"| {max(shares):.0%} |"
        )
    beyond = [
        row
        for row in listed
        if row.layout == "channels-last"
        and row.megabytes >= 64
        and row.op in ("batch_norm_backward", "group_norm_backward")
        and reach(row) < GOALS[row.op, row.layout]
    ]
    most = ", ".join(f"{row.op} {sizes(row)} {row.dtype} {reach(row):.0%}" for row in beyond)
    yield ""
    yield (
        f"Of the channels-last rows {len(beyond)} cannot reach the goal on this chip: what they "
        f"need between sums and gradient exceeds the {ON_CHIP / 1e6:.0f} MB of its registers, "
        f"shared memory and L2 cache, and the rest is read twice. At the speed of the copy, which "
        f"passes that only read may exceed a little, they have at most: {most}."
    )
    timed = [row for row in listed if row.peers]
    lost = [row for row in timed if any(faster_peers(row))]
    yield ""
    yield (
        f"Some peer is faster in {len(lost)} of {len(timed)} rows: "
        + "; ".join(
            f"{row.op} {sizes(row)} {row.dtype} {row.layout} ({', '.join(faster_peers(row))})"
            for row in lost
        )
        + "."
    )


def faster_peers(row: Row) -> Iterator[str]:
    """Their names, and their time over ours."""
    for peer in row.peers:
        times = row.speedup(peer)
        if times is not None and times < 1:
            yield f"{peer} {times:.2f}"


def ratio(row: Row, peer: str, before: Row | None = None) -> str:
    """A peer's time over ours, or in italics that of a run before."""
    times = row.speedup(peer, wrong_too=True)
    if times is None:
        return "-" if before is None or (old := ratio(before, peer)) == "-" else f"*{old}*"
    return f"{times:.2f}" + ("" if peer in row.peers else " !")


def cpu() -> Iterator[str]:
    """The CPU's part."""
    run = read_json(RESULTS / "cpu.json")
    settings, packages = run.settings, run.environment["packages"]
    yield "## On two cores of a CPU"
    yield (
        f"`normgrad bench --backend cpu --peers torch --suite cpu --time-wrong-peers`, "
        f"{settings['started']}, {run.environment['cpu']} "
        f"({run.environment['cpu features']}), torch {packages['torch']}, Numba "
        f"{packages['numba']}, {settings['torch_threads']} threads each. A shared machine: a copy "
        f"gave {settings['copy_gbps_before']:.0f} GB/s before and "
        f"{settings['copy_gbps_after']:.0f} after, so shares scatter; ratios are of interleaved "
        "runs. *share*: of three streams at the best of these; *then*: at the speed of ten copies "
        "directly before and after the row. *ms*: `out=` given; *both allocate*: ours and torch's "
        "time, each with new results (ours of 16 MB and more in memory that earlier ones left, see "
        "[the CPU backend](../contributors/cpu.md)); `!`: torch's result was outside 16 times the "
        "budget."
    )
    yield ""
    yield from summary(run)
    before = read_json(RESULTS / "cpu-before.json")
    yield ""
    yield (
        f"The run before that, of the same version, {before.settings['started']} "
        "(`benchmarks/results/cpu-before.json`). Runs of other days gave 1.6 to 2.2 in float32: "
        "most of the difference is torch's, whose large results are sometimes in fresh pages."
    )
    yield ""
    yield from summary(before)
    yield ""
    yield (
        "Short in nearly every run are data that are read twice, because they exceed the cache and "
        "no result is known before all is read: batch norm 32x64x56x56 in float32 and 20x6x65536, "
        "group norm 1x128x256x256, all channels-last (a model of two passes in C gave 73 to 88 %)."
    )
    again = read_json(RESULTS / "cpu-passive.json")
    yield ""
    yield (
        f"With `OMP_WAIT_POLICY=passive`, {again.settings['started']}: torch's threads sleep "
        "between operators, which costs torch more than us in small rows "
        "(`benchmarks/results/cpu-passive.json`):"
    )
    yield ""
    yield from summary(again)
    newer = read_json(RESULTS / "cpu-zen5.json")
    yield ""
    yield (
        f"The same kernels on two cores of a newer EPYC (Zen 5), {newer.settings['started']} "
        "(`benchmarks/results/cpu-zen5.json`; the row that is slower, by .06 %, is batch "
        "norm 16x16x8x48 in float32). Two runs around it, the second one passive, gave 1.85 and "
        "2.23 in float32, 3.39 and 3.47, 3.50 and 3.66 in 16 bits, and no row slower:"
    )
    yield ""
    yield from summary(newer)
    yield ""
    found = []
    for row in sorted(run.rows, key=lambda one: (one.op, one.layout)):
        torch_ms = row.peer_ms("torch", wrong_too=True)
        mark = "" if "torch" in row.peers else " !"
        both = row.speedup("torch", wrong_too=True)
        cells = [
            sizes(row),
            row.dtype,
            f"{row.median_ms:.3f}",
            f"{share(row):.0%}",
            "-" if (then := near_share(run, row)) is None else f"{then:.0%}",
            f"{row.alloc_ms:.3f}",
            f"{torch_ms:.3f}{mark}" if torch_ms else "-",
            f"{both:.2f}" if both else "-",
        ]
        found.append((row.op, row.layout, cells))
    yield from tables(("ms", "share", "then", "both allocate", "torch", "ratio"), found)


def summary(run: Record) -> Iterator[str]:
    """The goals, and what came out."""
    for dtype, goal in (("float32", 1.8), ("bfloat16", 2.5), ("float16", 2.5)):
        rows = [row for row in run.rows if row.dtype == dtype]
        ratios = [times for row in rows if (times := row.speedup("torch", wrong_too=True))]
        slower = sum(one < 1 for one in ratios)
        yield (
            f"- {dtype}: {geometric_mean(ratios):.2f} times torch (goal {goal}), geometric mean of "
            f"{len(ratios)} rows, {slower} of them slower than torch"
        )
    large = [row for row in run.rows if 3 * row.megabytes > 32]
    whole = sum(share(row) >= 0.85 for row in large)
    near = [then for row in large if (then := near_share(run, row)) is not None]
    around = f", {sum(one >= 0.85 for one in near)} at that of copies around the row"
    yield (
        f"- of {len(large)} rows whose data exceed the last cache (32 MB), {whole} reach 85 % of "
        f"three streams at the speed of the run's best copy, {run.copy_gbps:.0f} GB/s"
        + (around if near else "")
    )


def near_share(run: Record, row: Row) -> float | None:
    """The share of three streams at the copy speed of the same seconds."""
    return None if row.copy_gbps is None else share(row) * run.copy_gbps / row.copy_gbps


if __name__ == "__main__":
    main()
