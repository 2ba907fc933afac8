"""What the memory of a GPU does while a call runs: reads and writes, sample by sample.

    PYTHONPATH=src python3 benchmarks/timeline.py layer_norm 4096x16384 bfloat16
    PYTHONPATH=src python3 benchmarks/timeline.py batch_norm 64x256x56x56 float32 channels-last

Nsight Compute (``ncu``) samples its counters about every 1.5 us. A wait shows as samples of 0, a
tail as those that fade out, and a multiprocessor that is busy while the memory is not as a high
share of instructions beside low ones of memory. The call runs twice before, so that it is compiled.
"""

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

# Shares of the peak, in percent. That of memory is what the data sheet says; a copy reaches 87.
_SHARE = "{}.avg.pct_of_peak_sustained_elapsed"
_COLUMNS = {
    "read": _SHARE.format("FBSP.TriageCompute.dramc__read_throughput"),
    "written": _SHARE.format("FBSP.TriageCompute.dramc__write_throughput"),
    "instructions": _SHARE.format("TPC.TriageCompute.sm__inst_executed_realtime"),
}
_STALLS = "pmsampling:smsp__warps_issue_stalled_"
_NCU = (
    *("ncu", "--clock-control", "none", "--profile-from-start", "off"),
    *("--section", "PmSampling", "--section", "PmSampling_WarpStates"),
    *("--pm-sampling-interval", "1000", "--print-metric-instances", "values"),
    *("--csv", "--page", "raw"),
)


@dataclass(frozen=True)
class Timeline:
    """One kernel."""

    kernel: str
    microseconds: float
    interval: float  # between samples
    shares: dict[str, list[float]]  # by what they are of
    stalls: dict[str, float]  # why warps waited, as shares of all waiting

    def __str__(self) -> str:
        every = f"a sample every {self.interval:.1f} us"
        lines = [f"{self.kernel}: {self.microseconds:.1f} us, {every}"]
        for name, values in self.shares.items():
            lines.append(f"  {name:13}" + " ".join(f"{value:.0f}" for value in values))
        most = sorted(self.stalls.items(), key=lambda one: -one[1])[:6]
        waits = ", ".join(f"{name} {share:.0%}" for name, share in most)
        return "\n".join([*lines, f"  warps wait for {waits}"])


def read(text: str) -> Iterator[Timeline]:
    """The kernels that ncu reported, one row each below names and units."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    csv.field_size_limit(1 << 30)
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))
    for row in rows[1:]:
        waited = {
            name.removeprefix(_STALLS).partition(".")[0]: _first(value)
            for name, value in row.items()
            if name.startswith(_STALLS)
        }
        total = sum(waited.values()) or 1.0
        yield Timeline(
            row["Kernel Name"],
            _first(row["gpu__time_duration.sum"]) / 1e3,
            _first(row["profiler__pmsampler_interval_time"]) / 1e3,
            _shares(row),
            {name: value / total for name, value in waited.items()},
        )


def _first(cell: str) -> float:
    """The number before the samples."""
    return float(cell.partition(" ")[0].replace(",", ""))


def _samples(cell: str) -> list[float]:
    inside = cell.partition("(")[2].rstrip(")")
    return [float(value.replace(",", "")) for value in inside.split(";") if value.strip()]


def _shares(row: dict[str, str]) -> dict[str, list[float]]:
    """From the first sample with something in it to the last.

    Reads and writes were sampled together, instructions in a run of their own.
    """
    found = {name: _samples(row[column]) for name, column in _COLUMNS.items()}
    for together in (("read", "written"), ("instructions",)):
        all_of_them = zip(*(found[name] for name in together), strict=True)
        some = [place for place, values in enumerate(all_of_them) if max(values) > 0.5]
        for name in together:
            found[name] = found[name][some[0] : some[-1] + 1] if some else []
    return found


def run_call(op: str, shape: str, dtype: str, layout: str) -> None:
    """The call, profiled the third time."""
    import torch

    from normgrad.bench import contender, problems, suites
    from normgrad.core.spec import Op

    layouts = [one for one in suites.LAYOUTS if one == layout]
    (workload,) = suites.rows(Op(op), shape, (dtype,), layouts)
    runner = contender.ours(problems.make(workload, "cuda:0", 0), "cuda", reuse=True)
    for _ in range(2):
        runner.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    runner.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def main(words: list[str]) -> int:
    """Run ncu on this file, print what it saw."""
    if words[:1] == ["--inside"]:
        run_call(*words[1:])
        return 0
    if not 2 <= len(words) <= 4:
        print(__doc__)
        return 2
    request = [*words, *("bfloat16", "contiguous")[len(words) - 2 :]]
    command = [*_NCU, sys.executable, __file__, "--inside", *request]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        print("ncu is not on the PATH: it comes with CUDA, as Nsight Compute")
        return 1
    found = list(read(done.stdout)) if '"Kernel Name"' in done.stdout else []
    if not found:
        print(f"ncu reported no kernel:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return 1
    print(*found, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
