"""What fused calls have besides: operands by role, and the options of an activation."""

from collections.abc import Sequence
from typing import Any, Final

from normgrad.arrays.kinds import Array
from normgrad.core import options
from normgrad.core.operators import ACTIVATIONS, ALSO_ACTIVATIONS, SLOT

NEGATIVE_SLOPE: Final = 0.01  # torch's
_NONE: Final = (None, NEGATIVE_SLOPE)


def fused_operands(arrays: Sequence[Array | None], **roles: Array | None) -> tuple[Any, ...]:
    """Operands in the order of the roles, with more of them."""
    placed = dict(enumerate(arrays)) | {SLOT[role]: array for role, array in roles.items()}
    last = max(slot for slot, array in placed.items() if array is not None)
    return tuple([placed.get(slot) for slot in range(max(last, 1) + 1)])


def after_norm(activation: str | None, negative_slope: float) -> tuple[str | None, float]:
    """The settings of an activation; a slope that none reads is the usual one."""
    if activation is None and negative_slope.__class__ is float:
        return _NONE
    options.choice("activation", activation, ACTIVATIONS, none=True, also=ALSO_ACTIVATIONS)
    slope = options.number("negative_slope", negative_slope)
    return activation, slope if activation == "leaky_relu" else NEGATIVE_SLOPE


def one_more(mask: Sequence[bool], usual: int) -> Sequence[bool]:
    """A mask with the result that a fused call has besides, which is wanted if nobody says so."""
    try:
        return (*mask, True) if len(mask) == usual else mask
    except TypeError:  # no sequence, which is said later
        return mask
