"""Which results share memory with what: decided before anything is written."""

from collections.abc import Mapping

import numpy as np

from normgrad import hostmem
from normgrad.arrays import View
from normgrad.errors import OverlapError

# How much work NumPy may spend on an exact answer; past it we assume the worst and use a copy.
_MAX_WORK = 1_000_000


def needs_bounce(
    results: Mapping[str, View], operands: Mapping[str, View], names: Mapping[str, str]
) -> set[str]:
    """The results that must be computed elsewhere and copied, because an operand lies under them.

    ``dx`` over the very view of ``x`` or ``dy`` is computed in place: each element is read before
    it is written. Two results over each other cannot both be right: that is an error.
    """
    bounce: set[str] = set()
    listed = list(results.items())
    # Most calls have nothing in common: 30 comparisons of numbers say so within microseconds.
    spans = [_span(view) for view in (*results.values(), *operands.values())]
    starts = [span for span in spans[: len(listed)] if span[0] < span[1]]
    if not any(
        span is not start and span[0] < start[1] and start[0] < span[1]
        for start in starts
        for span in spans
    ):
        return bounce
    for index, (role, result) in enumerate(listed):
        for other_role, other in listed[:index]:
            if _share(result, other):
                rule = f"must not share memory with {{{other_role}}}"
                raise OverlapError(role, rule, f"address {result.address:#x}", names)
        for other_role, operand in operands.items():
            in_place = role == "dx" and other_role in ("x", "dy") and _same(result, operand)
            if not in_place and _share(result, operand):
                bounce.add(role)
    return bounce


def _span(view: View) -> tuple[int, int]:
    low, high = hostmem.byte_range(view.tensor)
    return (view.address + low, view.address + high)


def _same(first: View, second: View) -> bool:
    return first.address == second.address and first.tensor == second.tensor


def _share(first: View, second: View) -> bool:
    if first.tensor.size == 0 or second.tensor.size == 0 or first.device != second.device:
        return False
    low, high = _span(first)
    other_low, other_high = _span(second)
    if high <= other_low or other_high <= low:
        return False
    try:
        # Only the addresses are looked at: device memory is never touched.
        return bool(
            np.shares_memory(
                hostmem.view(first.address, first.tensor),
                hostmem.view(second.address, second.tensor),
                max_work=_MAX_WORK,
            )
        )
    except np.exceptions.TooHardError:
        return True
