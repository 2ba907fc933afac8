"""Several plans, one after the other: what one writes into scratch memory the next one reads."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from normgrad.arrays.host_memory import ALIGNMENT, aligned
from normgrad.arrays.kinds import View
from normgrad.arrays.overlap import results_needing_copies
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, SLOT, Spec, TensorSpec
from normgrad.device import Memory
from normgrad.device.launch import Arrangement, Bound, Part, Placed, Span

_NOWHERE = Span(0, 0, 0)  # scratch memory has its address when the chain runs


class Step(NamedTuple):
    """A request, and which of its roles are scratch tensors, by their names."""

    spec: Spec
    scratch: Mapping[str, str]
    roles: Mapping[str, str] = {}  # roles that the whole chain calls otherwise


class _Bound(NamedTuple):
    """A step over the caller's memory; its scratch tensors, by slot, lie at offsets."""

    launch: Bound
    scratch: tuple[tuple[int, int], ...]
    offset: int  # of its own workspace


class ChainLaunch(NamedTuple):
    """Everything that a run of a chain needs but scratch memory and a stream."""

    addresses: tuple[int | None, ...]
    workspace_bytes: int
    steps: tuple[_Bound, ...]
    copies: tuple[tuple[int, int, TensorSpec, TensorSpec], ...]  # offset, address, from, to

    def plans(self) -> Sequence[Part]:
        """All of them, where nothing must be copied besides."""
        found = [one for step in self.steps for one in step.launch.plans()]
        if self.copies or len(found) < len(self.steps):
            return ()
        pairs = zip(found, self.steps, strict=True)
        return [part._replace(scratch=one.scratch, offset=one.offset) for part, one in pairs]

    def at(self, addresses: tuple[int | None, ...]) -> "ChainLaunch":
        """A chain is no part of another."""
        raise NotImplementedError

    def run(self, memory: Memory, workspace: int | None, stream: int) -> None:
        """Compute. ``workspace`` has ``workspace_bytes`` at any address."""
        assert workspace is not None
        base = aligned(workspace)
        for step in self.steps:
            addresses = list(step.launch.addresses)
            for slot, offset in step.scratch:
                addresses[slot] = base + offset
            step.launch.at(tuple(addresses)).run(memory, base + step.offset, stream)
        for offset, address, scratch, target in self.copies:
            memory.copy_view(address, target, base + offset, scratch, stream)


class Chain(Arrangement):
    """Plans in a row, and what must be looked at before they are bound to addresses.

    ``copies`` are scratch tensors that are results, too: they are copied to the slot of a role.
    """

    __slots__ = ("copies", "offsets", "room", "steps")

    def __init__(
        self,
        steps: Sequence[Step],
        names: Mapping[str, str],
        copies: Mapping[str, tuple[str, TensorSpec]],
    ) -> None:
        self.steps = [(Arrangement(make_plan(step.spec), names), step) for step in steps]
        super().__init__(self.steps[-1][0].plan, names)
        self.copies = copies
        self.offsets: dict[str, tuple[int, TensorSpec]] = {}
        self.room = 0
        for step in steps:
            for role, name in step.scratch.items():
                if name not in self.offsets:
                    tensor = step.spec.present(role)
                    self.offsets[name] = self.room, tensor
                    self.room += aligned(max(tensor.size, 1) * ITEMSIZE[tensor.dtype])
        own = sum(aligned(one.workspace_bytes) for one, _ in self.steps)
        self.workspace_bytes = self.room + own + ALIGNMENT

    def bind(self, spans: Sequence[Placed | None]) -> Bound:
        """The launch over this memory; ``spans`` are in the order of ``ROLES``."""
        bound = []
        at = self.room
        for arrangement, step in self.steps:
            own: list[Placed | None] = [None] * len(ROLES)
            spec = step.spec
            for role in (*spec.operands, *spec.wanted):
                there = SLOT[step.roles.get(role, role)]
                own[SLOT[role]] = _NOWHERE if role in step.scratch else spans[there]
            launch = arrangement.bind(own)
            places = tuple((SLOT[role], self.offsets[one][0]) for role, one in step.scratch.items())
            bound.append(_Bound(launch, places, at))
            at += aligned(launch.workspace_bytes)
        addresses = tuple([None if span is None else span.address for span in spans])
        results = dict(self.copies.values())
        for _, step in self.steps:
            for role in step.spec.wanted:
                if role not in step.scratch:
                    results[step.roles.get(role, role)] = step.spec.present(role)
        views = {
            role: View(tensor, addresses[SLOT[role]] or 0, self.plan.spec.device, None)
            for role, tensor in results.items()
        }
        # Two results over each other cannot both be right.
        results_needing_copies(views, {}, self.names)
        copies = [
            (*self.offsets[name][:1], views[role].address, self.offsets[name][1], target)
            for name, (role, target) in self.copies.items()
        ]
        return ChainLaunch(addresses, at + ALIGNMENT, tuple(bound), tuple(copies))
