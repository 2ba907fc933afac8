"""Which results share memory with what, which need copies: decided before anything is written."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from normgrad.arrays import host_memory
from normgrad.arrays.kinds import View
from normgrad.core.errors import OverlapError
from normgrad.core.operators import DATA
from normgrad.core.plan import Plan, make_plan
from normgrad.core.spec import TensorSpec, dense_like

# How much work NumPy may spend on an exact answer; past it we assume the worst and use a copy.
_MAX_WORK = 1_000_000


def results_needing_copies(
    results: Mapping[str, View], operands: Mapping[str, View], names: Mapping[str, str]
) -> set[str]:
    """The results that must be computed elsewhere and copied, because an operand lies under them.

    ``dx`` over the very view of ``x`` or ``dy`` is computed in place: each element is read before
    it is written. Two results over each other cannot both be right: that is an error.
    """
    needing_copies = set()
    written = [(role, view, *_extent(view)) for role, view in results.items()]
    under = [(role, view, *_extent(view)) for role, view in operands.items()]
    for index, (role, result, low, high) in enumerate(written):
        for other_role, other, other_low, other_high in written[:index]:
            if low < other_high and other_low < high and _share(result, other):
                rule = f"must not share memory with {{{other_role}}}"
                raise OverlapError(role, rule, f"address {result.address:#x}", names)
        for other_role, operand, other_low, other_high in under:
            if not (low < other_high and other_low < high):  # nearly always, and cheap to see
                continue
            in_place = may_replace(role, other_role) and _same(result, operand)
            if not in_place and _share(result, operand):
                needing_copies.add(role)
    return needing_copies


def check_updates(
    updates: Sequence[str],
    operands: Mapping[str, View],
    results: Mapping[str, View],
    names: Mapping[str, str],
) -> None:
    """Operands that are written in place lie apart from everything else."""
    written = {role: operands[role] for role in updates if role in operands}
    others = {role: view for role, view in operands.items() if role not in written}
    for role in results_needing_copies({**results, **written}, others, names) & written.keys():
        rule = "must not share memory with another argument"
        raise OverlapError(role, rule, "one that does", names)


def may_replace(result: str, other: str) -> bool:
    """Whether a result may be the very view of an operand: each element is read first."""
    return result in DATA and other in DATA


def through_copies(plan: Plan, copied: Iterable[str]) -> tuple[Plan, dict[str, TensorSpec]]:
    """The plan with some results in new memory instead, laid out alike, and how they lie there."""
    fresh = {role: dense_like(plan.spec.present(role)) for role in sorted(copied)}
    return make_plan(plan.spec.with_tensors(fresh), plan.backend.name), fresh


def _extent(view: View) -> tuple[int, int]:
    low, high = host_memory.byte_range(view.tensor)
    return view.address + low, view.address + high


def _same(first: View, second: View) -> bool:
    return first.address == second.address and first.tensor == second.tensor


def _share(first: View, second: View) -> bool:
    if first.device != second.device:
        return False
    try:
        # Only the addresses are looked at: device memory is never touched.
        return bool(
            np.shares_memory(
                host_memory.view(first.address, first.tensor),
                host_memory.view(second.address, second.tensor),
                max_work=_MAX_WORK,
            )
        )
    except np.exceptions.TooHardError:
        return True
