"""``normgrad bench``: how far from the speed of memory, and from the others."""

import argparse
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from normgrad import backends
from normgrad.backends.base import unusable
from normgrad.bench import peers, suites, text
from normgrad.bench.suites import Workload
from normgrad.cli import rules, terminal, words
from normgrad.cli.env import environment
from normgrad.core.dtypes import FLOATS
from normgrad.core.errors import NormgradError, OptionError
from normgrad.core.operators import OPERATORS
from normgrad.core.spec import Op

if TYPE_CHECKING:
    from normgrad.bench.record import Record, Row
    from normgrad.bench.session import Session


EXAMPLES: Final = (
    "normgrad bench --op layer_norm --shape 4096x1024 --dtype bf16 --peers torch",
    "normgrad bench --suite resnet50 --peers torch,compile --json run.json --plot run.svg",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    _add_measuring(parser)
    result = parser.add_argument_group("result")
    result.add_argument(
        "--from", metavar="JSON", dest="source", type=Path, help="measure nothing: show this run"
    )
    result.add_argument("--json", metavar="FILE", type=Path, help="written after every row")
    result.add_argument("--csv", metavar="FILE", type=Path, help="a line for each row")
    result.add_argument("--plot", metavar="FILE", type=Path, help="out.svg or out.png")
    result.add_argument("--html", metavar="FILE", type=Path, help="one self-contained page")
    result.add_argument("-v", "--verbose", action="store_true", help="a table with all figures")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    """Those that say what to measure, and how."""
    what = parser.add_argument_group("what")
    what.add_argument(
        "--suite",
        type=words.one_of(suites.SUITES),
        help=f"a named list of rows: {', '.join(suites.SUITES)}",
    )
    what.add_argument(
        "--op",
        type=words.operators,
        action="extend",
        help=f"{', '.join(Op)}, or a family such as layernorm",
    )
    what.add_argument(
        "--shape", action="append", help="instead of a suite, as 32x64x56x56; may be repeated"
    )
    what.add_argument("--dtype", type=words.dtypes, action="extend", help=f"of {', '.join(FLOATS)}")
    what.add_argument(
        "--layout", type=words.layout, action="append", help=f"of {', '.join(suites.LAYOUTS)}"
    )
    what.add_argument("--mask", help="wanted results as bits, as 100 for the input gradient")
    what.add_argument("--groups", type=int, help=f"of group norm ({suites.GROUPS})")
    what.add_argument("--normalized", type=int, help="how many last axes of layer norm (1)")
    who = parser.add_argument_group("who")
    who.add_argument(
        "--backend",
        type=words.bench_backend,
        help=f"one of {', '.join(backends.NAMES)}; default: the best; none: peers alone",
    )
    who.add_argument(
        "--peers", default="", help=f"whom else to measure, of {','.join(peers.NAMES)}"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--repeats", type=int, default=30, help="timed runs of each, at least 1 (30)")
    how.add_argument(
        "--run-seconds", type=float, default=1.0, help="at most, for each; 0: the fewest runs (1)"
    )
    how.add_argument(
        "--limit-seconds", type=float, default=30.0, help="to get a first result; 0: no limit (30)"
    )
    how.add_argument(
        "--peer-seconds",
        type=float,
        default=90.0,
        help="to prepare a peer's rows, all told; 0: no limit (90)",
    )
    how.add_argument("--budget-seconds", type=float, help="no new row after this time; 0: no limit")
    how.add_argument(
        "--time-wrong-peers", action="store_true", help="time them all the same, marked with !"
    )
    how.add_argument("--seed", type=int, default=0, help="other random numbers")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write; 1 if one of our results was wrong or could not be had."""
    if args.plot is not None:
        _check_plot(args.plot)
    return _show(args) if args.source else _measure(args)


def _measure(args: argparse.Namespace) -> int:
    """Row by row: what is there when it is stopped is shown and written."""
    reason = unusable("torch")
    if reason is not None:
        raise NormgradError(f"the data are made by torch: {reason}")
    import torch

    backend = _backend(args.backend)
    on_gpu = torch.cuda.is_available() if backend is None else backend == "cuda"
    device = "cuda:0" if on_gpu else "cpu"
    workloads = _workloads(args, backend, device)
    terminal.note("measuring how fast memory is copied")
    session, record = _start(args, backend, device)
    for line in text.heading(record, len(workloads)):
        terminal.say(line)
    started = time.monotonic()
    names = [peer.name for peer in session.peers]
    table = text.Table(backend is not None, names, verbose=args.verbose)
    lines = terminal.Lines(table.columns)
    fault, stopped = None, False
    for place, workload in enumerate(workloads, 1):
        session.doing = functools.partial(_doing, f"{place} of {len(workloads)}", workload.name)
        if args.budget_seconds and time.monotonic() - started > args.budget_seconds:
            left = len(workloads) - len(record.rows)
            fault = f"{left} rows were not measured: --budget-seconds {args.budget_seconds:g}"
            break
        try:
            row = session.measure(workload)
        except NormgradError as error:
            fault, stopped = f"stopped at {workload.name}: {error}", True
            break
        except KeyboardInterrupt:  # what is there is shown and written
            fault, stopped = f"interrupted at {workload.name}", True
            break
        record.rows.append(row)
        _add(lines, table, row)
        if args.json:
            try:
                _write_json(args.json, record)
            except OSError as error:  # a full disk: the rows that are there are shown
                fault, stopped = f"stopped after {workload.name}: {error}", True
                break
    if not stopped:
        terminal.note("measuring how fast memory is copied, again")
        _copy_again(session, record)
    _conclude(args, record)
    if fault:
        terminal.say(fault)
    _write(args, record)
    bad = record.bad_rows
    terminal.say(f"{len(record.rows)} rows, {len(bad)} of ours wrong or refused")
    return 1 if bad or not record.rows or stopped else 0


def _doing(place: str, name: str, what: str) -> None:
    terminal.note(f"row {place}: {what}: {name}")


def _add(lines: terminal.Lines, table: text.Table, row: "Row") -> None:
    title = table.title(row)
    if title:
        terminal.say(title)
    lines.add(table.cells(row))


def _conclude(args: argparse.Namespace, record: "Record") -> None:
    if record.rows and not args.verbose:
        for line in text.legend():
            terminal.say(line)
    for line in text.notes(record):
        terminal.say(line)


def _check_plot(path: Path) -> None:
    """Minutes of work should not end without the picture that they were for."""
    from normgrad.bench import plots

    if path.suffix.lower() not in (".svg", ".png"):
        raise OptionError("--plot", "must end in .svg or .png", path)
    reason = plots.unavailable()
    if reason is not None:
        raise OptionError("--plot", "needs matplotlib", f"{path} ({reason})")


def _copy_again(session: "Session", record: "Record") -> None:
    """The copy after the last row; the faster of the two is the limit of every row."""
    again = session.timer.copy_gbps()
    record.settings |= {"copy_gbps_before": record.copy_gbps, "copy_gbps_after": again}
    if again > record.copy_gbps:
        record.raise_copy(again)
        terminal.say(f"copy after the last row: {again:.0f} GB/s, faster: files have it instead")


def _show(args: argparse.Namespace) -> int:
    """The table, notes and pictures of a run that was written before."""
    from normgrad.bench.record import read_json

    plain = argparse.ArgumentParser()
    _add_measuring(plain)
    for name, default in vars(plain.parse_args([])).items():
        value = getattr(args, name)
        if value != default:
            rule = "must be left out with --from, which measures nothing"
            raise OptionError(f"--{name.replace('_', '-')}", rule, value)
    record = read_json(args.source)
    for line in text.heading(record, len(record.rows)):
        terminal.say(line)
    table = text.Table(bool(record.our_rows), record.peer_names, verbose=args.verbose)
    lines = terminal.Lines(table.columns)
    for row in record.rows:
        _add(lines, table, row)
    _conclude(args, record)
    _write(args, record)
    return 1 if record.bad_rows else 0


def _backend(name: str | None) -> str | None:
    if name == "none":
        return None
    if name is None:
        order = (*backends.preference("cuda"), *backends.preference("cpu"))
        return next(each for each in order if backends.get(each).unavailable() is None)
    reason = backends.get(name).unavailable()
    if reason is not None:
        raise OptionError("--backend", "must be one that works here", f"{name} ({reason})")
    return name


def _workloads(args: argparse.Namespace, backend: str | None, device: str) -> list[Workload]:
    if args.shape:
        if args.op is None:
            raise OptionError("--op", "must be given with --shape", None)
        if args.suite is not None:
            raise OptionError("--suite", "must be left out with --shape", args.suite)
        dtypes = args.dtype or ["float32"]
        layouts = args.layout or ["contiguous"]
        sizes = (args.groups, args.normalized, args.mask)
        ops = list(dict.fromkeys(args.op))
        if len(ops) > 1:  # of a family those that have data of a size
            ops = [op for op in ops if "variances" not in OPERATORS[op].takes]
        return [one for op in ops for one in suites.asked(op, args.shape, dtypes, layouts, *sizes)]
    for name in ("groups", "normalized"):
        if getattr(args, name) is not None:
            rule = "must be left out without --shape: the rows of a suite have their own"
            raise OptionError(f"--{name}", rule, getattr(args, name))
    default = "quick" if backend == "reference" else "all"
    found = [
        one
        for one in suites.suite(args.suite or default, device)
        if (args.op is None or one.case.op in args.op)
        and (args.dtype is None or one.dtype in args.dtype)
        and (args.layout is None or one.case.layout in args.layout)
    ]
    if not found:
        raise OptionError("the options", "must leave at least one row", "none")
    return found if args.mask is None else suites.masked(found, args.mask)


def _start(args: argparse.Namespace, backend: str | None, device: str) -> "tuple[Session, Record]":
    import torch

    from normgrad.bench import timing
    from normgrad.bench.record import Record
    from normgrad.bench.session import Session
    from normgrad.bench.truth import PEER_ALLOWANCE, PEER_RELATIVE

    names = [name.strip() for name in args.peers.split(",") if name.strip()]
    asked = {name: peers.get(name) for name in dict.fromkeys(names)}
    absent = {
        name: reason
        for name, peer in asked.items()
        if (reason := peer.unavailable(device)) is not None
    }
    if backend is None and len(absent) == len(asked):
        listed = "; ".join(f"{name}: {reason}" for name, reason in absent.items())
        raise OptionError("--peers", "must name somebody to measure", listed or "nobody")
    timer = timing.timer(device, args.repeats, args.run_seconds)
    session = Session(
        backend=backend,
        device=device,
        peers=[peer for name, peer in asked.items() if name not in absent],
        timer=timer,
        copy_gbps=timer.copy_gbps(),
        seconds_per_contender=args.limit_seconds,
        seed=args.seed,
        time_wrong_peers=args.time_wrong_peers,
        seconds_per_peer=args.peer_seconds,
    )
    settings = {
        "device": device,
        "suite": args.suite,
        "repeats": args.repeats,
        "seed": args.seed,
        "torch_threads": torch.get_num_threads(),
        "l2": "written over before every run" if device != "cpu" else "as the run before left it",
        "peer_allowance": PEER_ALLOWANCE,
        "peer_relative": PEER_RELATIVE,
        "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }
    record = Record(environment(), session.copy_gbps, [], settings, absent)
    return session, record


def _write_json(path: Path, record: "Record") -> None:
    with rules.writing(path):
        record.write_json(path)


def _write(args: argparse.Namespace, record: "Record") -> None:
    written = []
    if args.json:
        _write_json(args.json, record)
        written.append(args.json)
    if args.csv:
        with rules.writing(args.csv):
            record.write_csv(args.csv)
        written.append(args.csv)
    if args.plot:
        from normgrad.bench import plots

        with rules.writing(args.plot):
            plots.save(record, args.plot)
        written.append(args.plot)
    if args.html:
        from normgrad.bench import html

        with rules.writing(args.html):
            html.save(record, args.html)
        written.append(args.html)
    for path in written:
        terminal.say(f"wrote {path}")
