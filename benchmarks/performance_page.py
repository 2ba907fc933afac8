"""Writes docs/performance.md from the runs kept in benchmarks/results.

    python benchmarks/performance_page.py

Every figure of the page is one that a run printed; rows that fall short are shown like the others.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "performance.md"
# Runs after the first measured some rows again; theirs count.
H200_RUNS = ("h200.json", "h200-group-norm.json", "h200-elements.json", "h200-long-row.json")
# Least share of the three-stream floor at 64 MB and more, by operator and layout: the goals.
GOALS = {
    ("batch_norm_elemt", "contiguous"): 0.92,
    ("batch_norm_elemt", "channels-last"): 0.92,
    ("layer_norm", "contiguous"): 0.88,
    ("batch_norm", "contiguous"): 0.85,
    ("batch_norm", "channels-last"): 0.80,
    ("group_norm", "contiguous"): 0.85,
    ("group_norm", "channels-last"): 0.75,
}
PEERS = ("torch", "compile", "liger", "flaggems", "cudnn")

Row = dict[str, Any]


def main() -> None:
    """Write the page."""
    PAGE.write_text("\n".join([*h200(), "", *cpu(), ""]), encoding="utf-8")


def load(name: str) -> dict[str, Any]:
    """A run."""
    run: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return run


def key(row: Row) -> tuple[object, ...]:
    """What tells a row from all others."""
    return row["op"], tuple(row["shape"]), row["dtype"], row["layout"], row["mask"]


def h200() -> Iterator[str]:
    """The GPU's part."""
    runs = [load(name) for name in H200_RUNS]
    rows: dict[tuple[object, ...], Row] = {}
    for number, run in enumerate(runs):
        for row in run["rows"]:
            older = rows.get(key(row), {}).get("peers", {})
            rows[key(row)] = {**row, "peers": {**older, **row["peers"]}, "run": number}
    first = runs[0]
    packages = first["environment"]["packages"]
    yield "# Performance"
    yield "## On an NVIDIA H200"
    yield (
        f"`normgrad bench --backend cuda --suite h200`, {first['settings']['started']}, "
        f"{first['environment']['gpu']}, torch {packages['torch']}, Triton {packages['triton']}, "
        f"Liger {packages['liger-kernel']}, FlagGems {packages['flag-gems']}. Copy "
        f"{first['copy_gbps']:.0f} GB/s (read plus written). Medians, L2 written over before every "
        "run, every result checked against float64 first; none of ours was wrong. *Share*: of what "
        "the copy speed allows for reading x and dy once and writing dx once. Peers: their time "
        "over ours, both allocating; under 1 they are faster. `!`: the peer's result was outside "
        "16 times the budget. †: measured again in a later run of the same day, after a fix (the "
        "columns compile and flaggems are the first run's). *Host us*: Python's time per call with "
        "`out=`, before a later cut of it that no GPU run has seen yet."
    )
    yield ""
    yield from goals(rows.values())
    yield ""
    yield "The picture of the first run: `benchmarks/results/h200.png`."
    yield ""
    yield "| op | shape | type | layout | ms | share | host us | " + " | ".join(PEERS) + " |"
    yield "|" + "---|" * (7 + len(PEERS))
    for row in sorted(rows.values(), key=lambda one: (one["op"], one["layout"], one["dtype"])):
        mark = "†" if row["run"] else ""
        cells = [
            row["op"],
            "x".join(map(str, row["shape"])),
            row["dtype"],
            row["layout"],
            f"{row['median_ms']:.4f}{mark}",
            f"{row['floor_share']:.0%}",
            f"{row['host_us']:.0f}",
            *(ratio(row, peer) for peer in PEERS),
        ]
        yield "| " + " | ".join(cells) + " |"


def goals(rows: Iterable[Row]) -> Iterator[str]:
    """What was asked of large data, and what came out."""
    listed = list(rows)
    yield "| at 64 MB and more | rows | goal | met | least | greatest |"
    yield "|---|---|---|---|---|---|"
    for (op, layout), goal in GOALS.items():
        shares = [
            row["floor_share"]
            for row in listed
            if (row["op"], row["layout"]) == (op, layout) and row["megabytes"] >= 64
        ]
        met = sum(share >= goal for share in shares)
        yield (
            f"| {op}, {layout} | {len(shares)} | {goal:.0%} | {met} | {min(shares):.0%} "
            f"| {max(shares):.0%} |"
        )
    timed = [row for row in listed if row["peers"]]
    lost = [row for row in timed if min(filter(None, row["peers"].values())) < row["alloc_ms"]]
    yield ""
    yield (
        f"Some peer is faster in {len(lost)} of {len(timed)} rows: "
        + "; ".join(
            f"{row['op']} {'x'.join(map(str, row['shape']))} {row['dtype']} {row['layout']} "
            f"({', '.join(loser(row))})"
            for row in lost
        )
        + "."
    )


def loser(row: Row) -> Iterator[str]:
    """The peers that are faster in a row."""
    for name, time in row["peers"].items():
        if time and time < row["alloc_ms"]:
            yield f"{name} {time / row['alloc_ms']:.2f}"


def ratio(row: Row, peer: str) -> str:
    """A peer's time over ours."""
    time = row["peers"].get(peer)
    if time:
        return f"{time / row['alloc_ms']:.2f}"
    wrong = row.get("wrong_peers", {}).get(peer)
    return f"{wrong / row['alloc_ms']:.2f} !" if wrong else "-"


def cpu() -> Iterator[str]:
    """The CPU's part."""
    run = load("cpu.json")
    settings, packages = run["settings"], run["environment"]["packages"]
    yield "## On two cores of a CPU"
    yield (
        f"`normgrad bench --backend cpu --peers torch --suite cpu --time-wrong-peers`, "
        f"{settings['started']}, {run['environment']['cpu']} "
        f"({run['environment']['cpu features']}), torch {packages['torch']}, Numba "
        f"{packages['numba']}, {settings['torch_threads']} threads each, with "
        "`OMP_WAIT_POLICY=passive` (else torch's spinning threads cost torch 10 to 30 ms a call on "
        "such a machine). A shared machine: the copy gave "
        f"{settings['copy_gbps_before']:.0f} GB/s before and "
        f"{settings['copy_gbps_after']:.0f} after, so shares scatter; ratios are of interleaved "
        "runs. *ms*: `out=` given; *both allocate*: ours and torch's time, each with new results; "
        "`!`: torch's result was outside 16 times the budget."
    )
    yield ""
    for dtype, goal in (("float32", 1.8), ("bfloat16", 2.5), ("float16", 2.5)):
        ratios = [both for row in run["rows"] if row["dtype"] == dtype and (both := speed_up(row))]
        mean = 1.0
        for one in ratios:
            mean *= one ** (1 / len(ratios))
        slower = sum(one < 1 for one in ratios)
        yield (
            f"- {dtype}: {mean:.2f} times torch (goal {goal}), geometric mean of {len(ratios)} "
            f"rows, {slower} of them slower than torch"
        )
    large = [row for row in run["rows"] if 3 * row["megabytes"] > 32]
    near = sum(row["floor_share"] >= 0.85 for row in large)
    yield (
        f"- of {len(large)} rows whose data exceed the last cache (32 MB), {near} reach 85 % of "
        "three streams at copy speed"
    )
    yield ""
    yield "| op | shape | type | layout | ms | share | both allocate | torch | ratio |"
    yield "|" + "---|" * 9
    for row in run["rows"]:
        torch_ms = row["peers"].get("torch") or row.get("wrong_peers", {}).get("torch")
        mark = "" if row["peers"].get("torch") else " !"
        both = speed_up(row)
        cells = [
            row["op"],
            "x".join(map(str, row["shape"])),
            row["dtype"],
            row["layout"],
            f"{row['median_ms']:.3f}",
            f"{row['floor_share']:.0%}",
            f"{row['alloc_ms']:.3f}",
            f"{torch_ms:.3f}{mark}" if torch_ms else "-",
            f"{both:.2f}" if both else "-",
        ]
        yield "| " + " | ".join(cells) + " |"


def speed_up(row: Row) -> float | None:
    """Torch's time over ours, both allocating."""
    torch_ms = row["peers"].get("torch") or row.get("wrong_peers", {}).get("torch")
    return torch_ms / row["alloc_ms"] if torch_ms else None


if __name__ == "__main__":
    main()
