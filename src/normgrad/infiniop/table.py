"""What an operator's page says, as data: tensors in order, numbers, rules by their statuses.

Its four functions, their docstrings, the C declarations, the docs' table and what `check --lib`
calls are made of it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from normgrad.core.operators import OPERATORS, SLOT, Op
from normgrad.core.spec import Spec, TensorSpec
from normgrad.device.chain import Step
from normgrad.infiniop.rules import Rule

# Shapes in words, and those of one problem that fits together.
SHAPES: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "data": ("(N, C, L)", (2, 3, 4)),
    "channels": ("(C,)", (3,)),
    "rows": ("(..., D)", (2, 3, 4)),
    "tail": ("(D,)", (4,)),
    "statistics": ("(...)", (2, 3)),
}
Fields = dict[str, Any]
# Plans in a row, and their scratch tensors that are results: role and target.
Steps = tuple[Sequence[Step], Mapping[str, tuple[str, TensorSpec]]]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the functions, by its name, and what it is to the core."""

    name: str
    role: str
    shape: str  # a key of `SHAPES`
    about: str
    written: bool = False
    required: bool = True


@dataclass(frozen=True, slots=True)
class Number:
    """A float after the descriptors, and the field of ``Spec`` that it is."""

    name: str
    role: str
    example: float
    about: str


def _unchanged(tensors: Mapping[str, TensorSpec], fields: Fields) -> None:
    """The request is what roles and numbers say."""


@dataclass(frozen=True, eq=False)  # compared by identity
class Operator:
    """An operator's: the tensors in the order of the functions, the rules in theirs.

    ``rules`` come before the core's rules about shapes, ``stride_rules`` after them. ``adapt``
    changes the fields of the core's request where they do not follow from roles and numbers;
    ``chain`` says what is computed where that request alone does not do.
    """

    name: str
    op: Op
    title: str
    tensors: tuple[Tensor, ...]
    rules: tuple[Rule, ...]
    stride_rules: tuple[Rule, ...]
    numbers: tuple[Number, ...] = ()
    adapt: Callable[[Mapping[str, TensorSpec], Fields], None] = _unchanged
    chain: Callable[[Mapping[str, TensorSpec], Spec], Steps] | None = None
    notes: str = ""

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """The operator's names of roles and fields."""
        return {one.role: one.name for one in self.tensors} | {
            one.role: one.name for one in self.numbers
        }

    @functools.cached_property
    def slots(self) -> tuple[int, ...]:
        """Where the core looks for each tensor."""
        return tuple(SLOT[one.role] for one in self.tensors)

    @property
    def descriptor(self) -> str:
        """The type of its descriptor."""
        return f"infiniop{self.name}Descriptor_t"

    @property
    def results(self) -> tuple[str, ...]:
        """The roles that are written."""
        return OPERATORS[self.op].gives
