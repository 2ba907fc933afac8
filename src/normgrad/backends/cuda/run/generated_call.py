"""A call on plain CUDA tensors written out: see `normgrad.calls.generated_call`.

For data at multiples of 16 bytes and the default stream; all else goes the general road.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from normgrad.backends.cuda.plan.program import SLOTS, Ref
from normgrad.backends.cuda.run.exchange_areas import Mail
from normgrad.backends.cuda.run.launch import Ready
from normgrad.calls.generated_call import Source


class Site(NamedTuple):
    """Where a call runs, and what stays there from call to call."""

    gpu: int
    current: Callable[[], int]  # GPU
    stream: Callable[[int], int]
    scratch: Callable[[int, int], int]  # of a GPU, so many bytes
    post: Callable[[int], Mail]  # words between blocks


def write(
    source: Source,
    launches: Sequence[Ready],
    touched: Sequence[int],  # slots whose addresses count
    sizes: tuple[int, int],  # bytes of scratch memory, words
    site: Site,
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
        source.lines += ["mail = post(gpu)", "try:"]
        source.lines += [f"    words, stale, left = mail.take({words})"]
        source.lines += [f"    {line}" for line in calls]
        source.lines += ["except BaseException:", "    mail.forget()", "    raise"]
    else:
        source.lines += calls
    return source.made()


_PLACES = {"": "w", "mail": "words", "stale": "stale", "stale_words": "left"}


def _call(source: Source, number: int, step: Ready) -> str:
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
