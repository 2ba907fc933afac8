"""What a run leaves behind: rows and where they were measured, as JSON or CSV."""

import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from normgrad.bench.suites import LAYOUTS, Workload, sizes_text
from normgrad.core.dtypes import FLOATS
from normgrad.core.errors import NormgradError, OptionError, printable
from normgrad.core.spec import Op

# The words that a row may have where tables and pictures know only these.
_WORDS: Final = {"op": tuple(Op), "dtype": tuple(FLOATS), "layout": LAYOUTS}


# Why somebody has no time in a row, or one that does not count.
Fault = Literal["wrong", "not offered", "skipped", "failed"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
# Up to this relative spread of two times a difference inside it is called equal, beyond it noisy.
QUIET: Final = 0.05
# Types as in the tables.
SHORT_TYPES: Final = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of some ratios, at least one."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def within(ratio: float, margin: float) -> bool:
    """Whether two times are as near to each other as this, whichever is the longer."""
    return 1 / (1 + margin) <= ratio <= 1 + margin


@dataclass(slots=True)
class Row:
    """One workload: ours under both allocation policies, and the peers, in milliseconds.

    A time is None where nothing was timed; faults and errors, ours and the peers', say why.
    """

    op: str
    shape: list[int]
    dtype: str
    layout: str
    mask: str
    backend: str
    groups: int | None = None
    normalized: int | None = None
    megabytes: float = 0.0  # of x, 10**6 bytes
    floor_ms: float = 0.0  # the streams it needs at copy speed
    verified: bool = False
    budget_share: float | None = None  # worst error over budget
    same_bits: bool | None = None  # after all timed runs
    median_ms: float | None = None  # results given with out=
    best_ms: float | None = None
    spread: float | None = None
    alloc_ms: float | None = None  # results allocated by the call, as the peers do
    alloc_spread: float | None = None
    floor_share: float | None = None
    copy_gbps: float | None = None  # on a CPU: of copies directly before and after this row
    gbps: float | None = None  # the streams over median_ms
    host_us: float | None = None
    memory_peak: int | None = None  # bytes, results included
    load: float | None = None  # of the machine when it was measured: processes that want to run
    fault: Fault | None = None
    error: str | None = None  # the fault in words
    form: str = ""  # what a fused call has besides the norm
    peers: dict[str, float] = field(default_factory=dict)
    peer_best_ms: dict[str, float] = field(default_factory=dict)
    peer_spread: dict[str, float] = field(default_factory=dict)
    peer_host_us: dict[str, float] = field(default_factory=dict)
    peer_memory: dict[str, int | None] = field(default_factory=dict)
    peer_budget_share: dict[str, float] = field(default_factory=dict)
    peer_faults: dict[str, Fault] = field(default_factory=dict)
    peer_errors: dict[str, str] = field(default_factory=dict)
    wrong_peers: dict[str, float] = field(default_factory=dict)  # timed though wrong, on request

    @classmethod
    def of(cls, workload: Workload, backend: str) -> "Row":
        """A row before it is measured."""
        case = workload.case
        return cls(
            op=case.op.value,
            shape=list(case.shape),
            dtype=workload.dtype,
            layout=case.layout,
            mask=workload.mask,
            backend=backend,
            groups=workload.groups,
            normalized=workload.normalized,
            form=case.form,
            megabytes=workload.data_bytes / 1e6,
        )

    @property
    def key(self) -> str:
        """The same text for the same work, whoever measured it."""
        return f"{self.op} {self.size} {self.dtype} {self.layout} {self.mask}"

    @property
    def size(self) -> str:
        """Sizes as in the tables, and what a fused call has besides."""
        text = sizes_text(self.shape, self.groups, self.normalized)
        return f"{text} + {self.form}" if self.form else text

    @property
    def right_ms(self) -> float | None:
        """Our time; None where our result is wrong, has different bits later or was not timed."""
        return self.median_ms if self.verified and self.same_bits is not False else None

    def set_fault(self, fault: Fault, words: str, peer: str | None = None) -> None:
        """Ours, or a peer's. An exception that it raised is named in the words already."""
        error = words if fault == "failed" else f"{fault}: {words}"
        if peer is None:
            self.fault, self.error = fault, error
        else:
            self.peer_faults[peer], self.peer_errors[peer] = fault, error

    def peer_ms(self, peer: str, *, wrong_too: bool = False) -> float | None:
        """A peer's time; ``wrong_too``: also where its result is wrong."""
        return self.peers.get(peer) or (self.wrong_peers.get(peer) if wrong_too else None)

    def speedup(self, peer: str, *, wrong_too: bool = False) -> float | None:
        """How many times faster than a peer, both allocating."""
        mine, theirs = self.alloc_ms or self.median_ms, self.peer_ms(peer, wrong_too=wrong_too)
        return theirs / mine if mine and theirs else None

    @property
    def scattered(self) -> bool:
        """Whether half of our runs lie further apart than their middle: the time says little."""
        return ((self.alloc_spread if self.alloc_ms else self.spread) or 0.0) > 1.0

    def undecided(self, peer: str) -> Literal["equal", "noisy"] | None:
        """Whether runs vary by more than the difference to a peer: then a ratio says nothing."""
        times = self.speedup(peer)
        mine = self.alloc_spread if self.alloc_ms else self.spread
        noise = (mine or 0.0) + self.peer_spread.get(peer, 0.0)
        if times is None or not within(times, noise):
            return None
        return "equal" if noise <= QUIET else "noisy"


@dataclass(slots=True)
class Record:
    """A run."""

    environment: dict[str, Any]
    copy_gbps: float
    rows: list[Row] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    absent_peers: dict[str, str] = field(default_factory=dict)

    @property
    def peer_names(self) -> list[str]:
        """Every peer that was asked in some row: first those that were timed."""
        timed = [name for row in self.rows for name in row.peers]
        others = [name for row in self.rows for name in (*row.wrong_peers, *row.peer_faults)]
        return list(dict.fromkeys(timed + others))

    @property
    def our_rows(self) -> list[Row]:
        """Those in which we took part, and not the peers alone."""
        return [row for row in self.rows if row.backend != "none"]

    @property
    def bad_rows(self) -> list[Row]:
        """Those where our result is wrong or could not be had."""
        return [row for row in self.our_rows if row.right_ms is None]

    def raise_copy(self, gbps: float) -> None:
        """Take a faster copy, measured later in the same run, for all rows."""
        if gbps <= self.copy_gbps:
            return
        for row in self.rows:
            row.floor_ms *= self.copy_gbps / gbps
            if row.median_ms:
                row.floor_share = row.floor_ms / row.median_ms
        self.copy_gbps = gbps

    def geomeans(
        self, peer: str, *, given: bool = False, wrong_too: bool = False
    ) -> dict[str, float]:
        """Geometric mean of the speed-up over a peer by type.

        ``given``: ours with out=. ``wrong_too``: with rows where the peer's result is wrong.
        """
        by_type: dict[str, list[float]] = {}
        for row in self.rows:
            mine = row.median_ms if given else row.alloc_ms
            theirs = row.peer_ms(peer, wrong_too=wrong_too)
            if mine and theirs and row.median_ms and row.alloc_ms:
                by_type.setdefault(row.dtype, []).append(theirs / mine)
        return {dtype: geometric_mean(ratios) for dtype, ratios in by_type.items()}

    def write_json(self, path: Path) -> None:
        """All of it. Written beside and moved, so that a killed run leaves the last whole file.

        In place where nothing can be made beside it.
        """
        text = json.dumps(_finite(asdict(self)), indent=1) + "\n"
        if path.exists() and not path.is_file():  # /dev/null must stay what it is
            path.write_text(text, encoding="utf-8")
            return
        path = path.resolve()  # a link stays one
        beside = path.with_name(path.name + ".part")
        try:
            beside.open("ab").close()
        except OSError:  # a folder that is not ours, a name too long, a folder of that name
            path.write_text(text, encoding="utf-8")
            return
        try:
            beside.write_text(text, encoding="utf-8")
        except OSError:  # a full disk
            beside.unlink(missing_ok=True)
            raise
        beside.replace(path)

    def write_csv(self, path: Path) -> None:
        """A line for each row, a column for each peer, one more where it was timed though wrong."""
        plain = [one.name for one in fields(Row) if "peer" not in one.name]
        peers = self.peer_names
        wrong = [name for name in peers if any(name in row.wrong_peers for row in self.rows)]
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            names = [f"{name}_ms" for name in peers] + [f"{name}_wrong_ms" for name in wrong]
            writer.writerow([*plain, *names])
            for row in self.rows:
                own = [row.size if name == "shape" else getattr(row, name) for name in plain]
                theirs = [row.peers.get(name) for name in peers]
                theirs += [row.wrong_peers.get(name) for name in wrong]
                writer.writerow([*own, *theirs])


def read_json(path: Path) -> Record:
    """A run that was written before, by this version or another."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        fault = _misfit(data, Record)
        if fault is None:
            for place, row in enumerate(data["rows"], 1):
                fault = fault or _misfit(row, Row, f"row {place}: ")
    except FileNotFoundError:
        raise NormgradError(f"there is no file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        fault = f"{type(error).__name__}: {error}"
    if fault is not None:
        raise OptionError(str(path), "must be JSON that `normgrad bench --json` wrote", fault)
    data = _printable(data)
    known = {one.name for one in fields(Row)}
    rows = [
        Row(**{name: value for name, value in row.items() if name in known}) for row in data["rows"]
    ]
    for row in rows:
        _add_faults(row)
    more = (data.get("settings", {}), data.get("absent_peers", {}))
    return Record(data["environment"], data["copy_gbps"], rows, *more)


def _printable(value: Any) -> Any:
    """Texts without control characters, which a terminal would obey and no picture can have."""
    if isinstance(value, dict):
        return {printable(name): _printable(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_printable(entry) for entry in value]
    return printable(value) if isinstance(value, str) else value


def _add_faults(row: Row) -> None:
    """To rows of the versions that had them only as the beginnings of the errors."""
    if row.error is not None and row.fault is None:
        row.fault = _fault_in(row.error)
    for peer, error in row.peer_errors.items():
        row.peer_faults.setdefault(peer, _fault_in(error))


def _fault_in(error: str) -> Fault:
    begin = error.partition(":")[0]
    return next((fault for fault in FAULTS if fault == begin), "failed")


def _misfit(data: Any, kind: type[Row | Record], where: str = "") -> str | None:
    """Why this cannot be a row or a record, or None; names that are not known are left alone."""
    if not isinstance(data, dict):
        return f"{where}{data!r:.80}"
    for one in fields(kind):
        if one.name not in data:
            has_default = one.default is not MISSING or one.default_factory is not MISSING
            if not has_default or one.name == "rows":
                return f"{where}no {one.name!r}"
            continue
        value = data[one.name]
        if not _fits(value, one.type) or value not in _WORDS.get(one.name, (value,)):
            return f"{where}{one.name} {value!r:.80}"
    times = [data.get(name) for name in ("copy_gbps", "median_ms", "alloc_ms")]
    for name in ("peers", "wrong_peers"):
        times += data.get(name, {}).values()
    return f"{where}a time or speed of 0" if 0 in times else None


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value from JSON is of a field's type.

    No number in a record is negative, and none, integers included, is beyond a float.
    """
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return value in inner
    if get_origin(kind) in (UnionType, Union):
        return any(_fits(value, one) for one in inner)
    if get_origin(kind) is list:
        # Rows are looked at one by one, to be named.
        return isinstance(value, list) and (inner == (Row,) or all(_fits(x, *inner) for x in value))
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_fits(x, inner[1]) for x in value.values())
    if kind is float or kind is int:
        number = isinstance(value, int if kind is int else (int, float))
        return number and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    return kind is Any or isinstance(value, kind)


def _finite(value: Any) -> Any:
    """JSON has no infinity: a share that is infinite becomes a very large number."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_finite(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else math.copysign(1e308, value)
    return value
