"""A call on plain CUDA tensors written out: see `normgrad.calls.generated_call`.

For data at multiples of 16 bytes and the default stream; all else takes the general path.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normgrad.backends.cuda.plan.program import AREAS, SLOTS, Ref
from normgrad.backends.cuda.run.exchange_areas import ExchangeAreas
from normgrad.backends.cuda.run.launch import Ready
from normgrad.calls.generated_call import CallSource


class LaunchSite(NamedTuple):
    """Where a call runs, and what stays there from call to call."""

    gpu: int
    current: Callable[[], int]  # GPU
    stream: Callable[[int], int]
    scratch: Callable[[int, int], int]  # of a GPU, so many bytes
    areas_of: Callable[[int], ExchangeAreas]  # words between blocks


def write(
    source: CallSource,
    launches: Sequence[Ready],
    touched: Sequence[int],  # slots whose addresses count
    sizes: tuple[int, int],  # bytes of scratch memory, words
    site: LaunchSite,
) -> Callable[..., tuple[Any, ...]]:
    """Finish a call with its launches."""
    nbytes, words = sizes
    source.names |= site._asdict()
    # Where there is nothing to do no address counts; a new result's is a multiple of 512.
    bits = " | ".join(f"p{slot}" for slot in touched if slot in source.slots) or "0"
    source.results(unless=f"stream(gpu) or current() != gpu or ({bits}) & 15")
    if nbytes:
        source.lines.append(f"w = scratch(gpu, {nbytes})")
    calls = [_call(source, number, step) for number, step in enumerate(launches)]
    if words:
        source.lines += ["areas = areas_of(gpu)", "try:"]
        source.lines += [f"    {', '.join(AREAS)} = areas.next_area({words})"]
        source.lines += [f"    {line}" for line in calls]
        source.lines += ["except BaseException:", "    areas.forget()", "    raise"]
    else:
        source.lines += calls
    return source.made()


_PLACES = {"": "w", **{name: name for name in AREAS}}


def _call(source: CallSource, number: int, step: Ready) -> str:
    """The launch of a step."""
    source.names[f"launch{number}"] = step.launch
    given = [
        _place(value) if isinstance(value, Ref) else source.literal(value)
        for value in (*step.fixed, *step.arguments)
    ]
    grid = ", ".join(map(str, step.grid))
    return f"launch{number}({grid}, 0, {', '.join(given)})"


def _place(ref: Ref) -> str:
    place = _PLACES.get(ref.role) or f"p{SLOTS[ref.role]}"
    return f"{place} + {ref.offset}" if ref.offset else place
