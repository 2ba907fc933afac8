"""The data types the core knows, by name, with the numbers that rounding depends on."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """A binary floating-point format: how wide it is and how it rounds."""

    itemsize: int
    unit_roundoff: float  # half the distance between 1 and the next number
    smallest: float  # the smallest subnormal
    largest: float  # the largest finite number


FLOATS: Final[dict[str, FloatInfo]] = {
    "float16": FloatInfo(2, 2.0**-11, 2.0**-24, 65504.0),
    "bfloat16": FloatInfo(2, 2.0**-8, 2.0**-133, 2.0**127 * (2 - 2.0**-7)),
    "float32": FloatInfo(4, 2.0**-24, 2.0**-149, 2.0**127 * (2 - 2.0**-23)),
    "float64": FloatInfo(8, 2.0**-53, 2.0**-1074, 2.0**1023 * (2 - 2.0**-52)),
}

# Counts may come as integers too (the counter of the element stage).
COUNTS: Final[tuple[str, ...]] = (*FLOATS, "int32", "int64")

ITEMSIZE: Final[dict[str, int]] = {
    **{name: info.itemsize for name, info in FLOATS.items()},
    "int32": 4,
    "int64": 8,
    "uint8": 1,
}


def compute_dtype(dtypes: tuple[str, ...]) -> str:
    """The type of all arithmetic: float32, or float64 as soon as one operand is float64."""
    return "float64" if "float64" in dtypes else "float32"
