"""Straight-line Python for one request on plain tensors, generated once.

The general path looks up roles and results in tables, which costs a short call more than its work.
"""

import itertools
import linecache
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from normgrad.arrays.host_memory import ask_huge_pages
from normgrad.core.spec import ROLES

_NUMBERS: Final = itertools.count(1)


class Result(NamedTuple):
    """A tensor to be made; of one that the caller gives, the slot alone."""

    slot: int
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dtype: Any = None
    make: Callable[[], Any] | None = None  # in a way of its own
    huge: int = 0  # bytes that are to be on huge pages


class Fallbacks(NamedTuple):
    """What a call needs besides its launch."""

    general: Callable[..., tuple[Any, ...] | None]  # of (operands, out), for all else
    empty: Callable[..., Any]  # a tensor of this shape, strides and type
    # Whether one of these operands has no memory; asked where an address is 0.
    gone: Callable[..., bool] = lambda arrays: False


class Given(NamedTuple):
    """What calls into given results need besides."""

    # Whether a call may write at these addresses, of all that is there in the order of slots.
    apart: Callable[[tuple[int, ...]], bool]
    tell: Callable[[tuple[Any, ...]], object]  # autograd what was written


class CallSource:
    """A function of (operands, out) that makes results and returns them, line by line.

    Operands are ``a0``, ``a1`` and so on, results ``r7``; their addresses ``p0``, ``p1``, ``p7``.
    It returns None where an operand has no memory, and with results that are given, in ``out``,
    where they are not apart.
    """

    def __init__(
        self,
        operands: Sequence[bool],
        results: Sequence[Result | None],
        fallbacks: Fallbacks,
        given: Given | None = None,
    ) -> None:
        self.names: dict[str, Any] = {"ask_huge_pages": ask_huge_pages, **fallbacks._asdict()}
        self.slots = {slot for slot, here in enumerate(operands) if here}
        self.lines = [f"{', '.join(f'a{slot}' for slot in range(len(operands)))}, = arrays"]
        self.lines += [f"p{slot} = a{slot}.data_ptr()" for slot in sorted(self.slots)]
        self._results = [one for one in results if one is not None]
        answer = ", ".join("None" if one is None else f"r{one.slot}" for one in results)
        self.ending = [f"return ({answer},)"]
        self._given = given is not None
        if given is not None:
            self._take(results, given)
        else:
            there = " and ".join(f"p{slot}" for slot in sorted(self.slots))
            self.lines.append(f"if not ({there}) and gone(arrays): return None")

    def results(self, unless: str | None = None) -> None:
        """Make new results; where ``unless`` holds of the addresses until then, call in general."""
        if unless is not None:
            self.lines.append(f"if {unless}: return general(arrays, out)")
        if self._given:
            return
        names = self.names
        for slot, shape, strides, dtype, make, huge in self._results:
            self.slots.add(slot)
            if make:
                names[f"make{slot}"] = make
                self.lines += [f"r{slot} = make{slot}()", f"p{slot} = r{slot}.data_ptr()"]
                continue
            names |= {f"shape{slot}": shape, f"strides{slot}": strides, f"dtype{slot}": dtype}
            self.lines.append(f"r{slot} = empty(shape{slot}, strides{slot}, dtype{slot})")
            self.lines.append(f"p{slot} = r{slot}.data_ptr()")
            if huge:
                self.lines.append(f"ask_huge_pages(p{slot}, {huge})")

    def _take(self, results: Sequence[Result | None], given: Given) -> None:
        """Results from ``out``. What was apart at the addresses of the last call still is.

        Whichever thread set ``last``, and between which lines: all of it was found apart.
        """
        self.names |= {**given._asdict(), "last": None}
        slots = [one.slot for one in self._results]
        self.slots |= set(slots)
        taken = ", ".join("_" if one is None else f"r{one.slot}" for one in results)
        here = ", ".join(f"p{slot}" for slot in sorted(self.slots))
        self.lines += ["global last", f"{taken}, = out"]
        self.lines += [f"p{slot} = r{slot}.data_ptr()" for slot in slots]
        self.lines += [
            f"here = ({here},)",
            "if here != last:",
            "    if not apart(here):",
            "        return None",
            "    last = here",
        ]
        self.ending.insert(0, f"tell(({', '.join(f'r{slot}' for slot in slots)},))")

    def addresses(self, absent: str) -> str:
        """All roles' addresses."""
        slots = range(len(ROLES))
        return ", ".join(f"p{slot}" if slot in self.slots else absent for slot in slots)

    def literal(self, value: Any) -> str:
        """A constant, by a name if need be."""
        if value is None or type(value) in (bool, int):
            return repr(value)
        name = f"constant{len(self.names)}"
        self.names[name] = value
        return name

    def made(self) -> Callable[..., tuple[Any, ...]]:
        """The function."""
        text = "\n    ".join(["def call(arrays, out):", *self.lines, *self.ending])
        # A name of its own, under which tracebacks find the lines.
        file = f"<normgrad: call {next(_NUMBERS)}, written out>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), self.names)
        call: Callable[..., tuple[Any, ...]] = self.names["call"]
        weakref.finalize(call, linecache.cache.pop, file, None)
        return call
