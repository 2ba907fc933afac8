"""The storage formats of data, as values that kernels are specialized on."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Format:
    """How numbers lie in memory and in which vectors they are computed with.

    To Numba each instance is a type of its own, so a kernel that takes one is compiled for it.
    """

    name: str  # of the stored type
    code: int  # how parameter blocks spell it
    itemsize: int
    lanes: int  # elements of a compute vector: 64 bytes of the compute type
    wide: bool  # computed in float64

    @property
    def fills_line(self) -> bool:
        """Whether a vector of stored elements is a cache line; of the others two are."""
        return self.lanes * self.itemsize == 64


F16: Final = Format("float16", 0, 2, 16, wide=False)
BF16: Final = Format("bfloat16", 1, 2, 16, wide=False)
F32: Final = Format("float32", 2, 4, 16, wide=False)
F64: Final = Format("float64", 3, 8, 8, wide=True)
# Stored as F32: products of two are exact, and sums have 29 bits to spare.
F32_WIDE: Final = Format("float32", 2, 4, 8, wide=True)
# Parameters in float64 lanes; loaded only.
F16_WIDE: Final = Format("float16", 0, 2, 8, wide=True)
BF16_WIDE: Final = Format("bfloat16", 1, 2, 8, wide=True)

# Counts, read one at a time only.
I32: Final = Format("int32", 4, 4, 0, wide=False)
I64: Final = Format("int64", 5, 8, 0, wide=False)
# Bits that are only moved.
I16: Final = Format("int16", 6, 2, 0, wide=False)

# By the stored type and whether float64 is computed with.
FORMATS: Final = {(fmt.name, fmt.wide): fmt for fmt in (F16, BF16, F32, F64, F32_WIDE)}

# As what a type is stored, by its name.
STORED: Final = {fmt.name: fmt for fmt in (F16, BF16, F32, F64)}
# Every element type that a parameter block may name.
CODES: Final = {fmt.name: fmt.code for fmt in (F16, BF16, F32, F64, I32, I64)}
ABSENT: Final = -1
# The same as plain numbers: in a kernel a format is a type and has no fields.
F16_CODE: Final = F16.code
BF16_CODE: Final = BF16.code
F32_CODE: Final = F32.code
F64_CODE: Final = F64.code
I32_CODE: Final = I32.code
