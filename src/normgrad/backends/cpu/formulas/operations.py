"""Operations of `vectors` for formulas: on numbers, or on stand-ins that leave instructions."""

from collections.abc import Callable
from typing import Any, Final

from normgrad.backends.cpu import vectors


def operation(function: Any) -> Callable[..., Any]:
    """One of them; constants may stand behind the first number."""

    def applied(*values: Any) -> Any:
        apply = next((one.apply for one in values if hasattr(one, "apply")), None)
        return apply(function, values) if apply else function(*values)

    return applied


absolute: Final = operation(vectors.absolute)
any_above: Final = operation(vectors.any_above)
as_stored: Final = operation(vectors.as_stored)
at_most: Final = operation(vectors.at_most)
bits_above: Final = operation(vectors.bits_above)
fma: Final = operation(vectors.fma)
in_float32: Final = operation(vectors.in_float32)
in_type_of: Final = operation(vectors.in_type_of)
kept: Final = operation(vectors.kept)
kept_where: Final = operation(vectors.kept_where)
times_power: Final = operation(vectors.times_power)


def is_wide(values: Any) -> bool:
    """Whether lanes are float64."""
    kind = getattr(values, "kind", None)
    return bool(kind.wide) if kind is not None else values.dtype.itemsize == 8
