"""A plan with its addresses: which results may be written in place, and which need copies."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from normgrad.arrays.host_memory import ALIGNMENT, aligned
from normgrad.arrays.kinds import View
from normgrad.arrays.overlap import (
    check_updates,
    may_replace,
    results_needing_copies,
    through_copies,
)
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.plan import Plan
from normgrad.core.spec import SLOT, TensorSpec
from normgrad.device import Memory
from normgrad.device.failures import fail

_ADDRESSES: Final = 2**63  # kernels count them in int64; no program has one beyond


class Placed(Protocol):
    """Where a tensor lies: its first element, and the bytes it covers."""

    @property
    def address(self) -> int:
        """The first element."""

    @property
    def low(self) -> int:
        """The first byte."""

    @property
    def high(self) -> int:
        """One past the last byte."""


class Span(NamedTuple):
    """A place without a tensor object."""

    address: int
    low: int
    high: int


def check_place(status: IntEnum, name: str, place: Placed, itemsize: int) -> None:
    """The status for bytes that no memory has, and for elements that none begins at."""
    if not 0 < place.low < place.high <= _ADDRESSES:
        got = f"bytes {place.low:#x} to {place.high:#x}"
        fail(status, f"{name} must lie where addresses reach, 0 to {_ADDRESSES:#x}, got {got}")
    if place.address % itemsize:
        rule = f"must begin at a multiple of {itemsize} bytes"
        fail(status, f"{name} {rule}, got address {place.address:#x}")


class Move(NamedTuple):
    """A result that is computed in scratch memory and then copied to its place."""

    slot: int
    offset: int
    scratch: TensorSpec
    target: TensorSpec


class Part(NamedTuple):
    """A plan with its addresses; scratch tensors of others, by slot, lie at offsets."""

    plan: Plan
    addresses: tuple[int | None, ...]
    scratch: tuple[tuple[int, int], ...] = ()
    offset: int = 0  # of its own workspace


class Bound(Protocol):
    """What a run needs but scratch memory and a stream: of one plan, or of several in a row."""

    @property
    def addresses(self) -> tuple[int | None, ...]:
        """The first elements, in the order of ``ROLES``."""

    @property
    def workspace_bytes(self) -> int:
        """How much scratch memory a run needs."""

    def plans(self) -> Sequence[Part]:
        """The plans that are all the work, in order; none where there is more."""

    def at(self, addresses: tuple[int | None, ...]) -> "Bound":
        """The same over other memory."""
        ...

    def run(self, memory: Memory, workspace: int | None, stream: int) -> None:
        """Compute. ``workspace`` has ``workspace_bytes`` at any address."""


class Launch(NamedTuple):
    """Everything a run needs but scratch memory and a stream."""

    plan: Plan
    addresses: tuple[int | None, ...]
    workspace_bytes: int
    moves: tuple[Move, ...]

    def plans(self) -> Sequence[Part]:
        """The plan, where nothing must be moved."""
        return () if self.moves else (Part(self.plan, self.addresses),)

    def at(self, addresses: tuple[int | None, ...]) -> "Launch":
        """The same over other memory."""
        return self._replace(addresses=addresses)

    def run(self, memory: Memory, workspace: int | None, stream: int) -> None:
        """Compute. ``workspace`` has ``workspace_bytes`` at any address."""
        if workspace:
            workspace = aligned(workspace)
        if not self.moves:
            self.plan.run(self.addresses, workspace, stream)
            return
        assert workspace is not None
        addresses = list(self.addresses)
        for move in self.moves:
            addresses[move.slot] = workspace + move.offset
        self.plan.run(addresses, workspace, stream)
        for move in self.moves:
            target = self.addresses[move.slot]
            assert target is not None
            memory.copy_view(target, move.target, workspace + move.offset, move.scratch, stream)


class Arrangement:
    """A plan, and what must be looked at before it is bound to addresses. Made once for a plan."""

    __slots__ = ("meetings", "names", "plan", "workspace_bytes")

    def __init__(self, plan: Plan, names: Mapping[str, str]) -> None:
        self.plan = plan
        self.names = names
        self.workspace_bytes = _padded(plan.workspace_bytes)  # for tensors that do not meet
        # Pairs of slots that must not meet, and whether the very same view may.
        self.meetings = _meetings(plan)

    def bind(self, spans: Sequence[Placed | None]) -> Bound:
        """The launch over this memory; ``spans`` are in the order of ``ROLES``.

        Raises OverlapError where two results lie over each other.
        """
        addresses = tuple([None if span is None else span.address for span in spans])
        for result, other, same_view in self.meetings:
            one, two = spans[result], spans[other]
            if (
                one is not None
                and two is not None
                and one.low < two.high
                and two.low < one.high
                and not (same_view and one.address == two.address)
            ):
                return _through_copies(self.plan, addresses, self.names)
        return Launch(self.plan, addresses, self.workspace_bytes, ())


def _padded(nbytes: int) -> int:
    """Room to begin at a cache line wherever the caller's memory begins."""
    return nbytes + ALIGNMENT if nbytes else 0


def _meetings(plan: Plan) -> tuple[tuple[int, int, bool], ...]:
    """Pairs (what is written, another tensor) that may not meet; True where the same view may."""
    spec = plan.spec
    pairs = []
    for index, role in enumerate(spec.wanted):
        others = (*spec.wanted[:index], *spec.operands)
        for other in others:
            alike = may_replace(role, other) and spec.tensor(other) == spec.tensor(role)
            pairs.append((SLOT[role], SLOT[other], alike))
    for index, role in enumerate(spec.updated):
        apart = (*spec.updated[:index], *(one for one in spec.operands if one not in spec.updated))
        pairs += [(SLOT[role], SLOT[other], False) for other in apart]
    return tuple(pairs)


def _through_copies(
    plan: Plan, addresses: tuple[int | None, ...], names: Mapping[str, str]
) -> Launch:
    spec = plan.spec

    def views(roles: tuple[str, ...]) -> dict[str, View]:
        return {
            role: View(spec.present(role), addresses[SLOT[role]] or 0, spec.device, None)
            for role in roles
        }

    if spec.updated:
        check_updates(spec.updated, views(spec.operands), views(spec.wanted), names)
    copied = results_needing_copies(views(spec.wanted), views(spec.operands), names)
    if not copied:  # the ranges meet, the elements do not
        return Launch(plan, addresses, _padded(plan.workspace_bytes), ())
    plan, scratch = through_copies(plan, copied)
    offset = aligned(plan.workspace_bytes)
    moves = []
    for role, tensor in scratch.items():
        moves.append(Move(SLOT[role], offset, tensor, spec.present(role)))
        offset += aligned(tensor.size * ITEMSIZE[tensor.dtype])
    return Launch(plan, addresses, _padded(offset), tuple(moves))
