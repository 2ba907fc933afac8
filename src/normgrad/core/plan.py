"""From a request to something that can run: validated, canonical, with a backend chosen."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

from normgrad import backends
from normgrad.backends.base import Compiled
from normgrad.core.dtypes import compute_dtype
from normgrad.core.errors import BackendError, warn_once
from normgrad.core.geometry import Geometry, geometry_of
from normgrad.core.spec import Spec
from normgrad.core.validate import validate

# Plans are small (a few kilobytes); a training program meets some hundreds of shapes.
_CACHED_PLANS = 4096


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that will run: geometry, backend, the backend's own settings, scratch memory."""

    spec: Spec
    geometry: Geometry
    compute: str  # the type of all arithmetic; a backend may use a wider one
    backend: "backends.Backend" = field(repr=False)
    config: object  # what the backend decided; frozen and printable
    workspace_bytes: int
    idle: bool  # no result is wanted

    def run(
        self, addresses: Sequence[int | None], workspace: int | None = None, stream: int = 0
    ) -> None:
        """Compute. Addresses are in the order of ``spec.ROLES``, that of the first element each.

        ``dx`` may be the very view of ``x`` or ``dy``; no other operand may overlap a result.
        """
        if not self.idle:
            self.backend.run(self, addresses, workspace, stream)

    def compiled(self) -> Compiled | None:
        """The plan for callers outside Python, where its backend has such a thing."""
        offer = getattr(self.backend, "compiled", None)
        return None if offer is None or self.idle else offer(self)


def make_plan(spec: Spec, backend: str | None = None) -> Plan:
    """Validate a request and choose who computes it. Equal requests share one plan."""
    return _make_plan(spec, backend)


def arithmetic(spec: Spec) -> str:
    """The type of all arithmetic, from those of the operands and of the wanted results."""
    roles = [role for role in (*spec.operands, *spec.wanted) if role != "counter"]
    return compute_dtype(tuple(spec.present(role).dtype for role in roles))


@functools.lru_cache(maxsize=_CACHED_PLANS)
def _make_plan(spec: Spec, backend: str | None) -> Plan:
    backends.chosen(backend)
    validate(spec)
    geometry = geometry_of(spec)
    compute = arithmetic(spec)
    reasons: dict[str, str] = {}
    for name in (backend,) if backend else backends.preference(spec.device):
        chosen = backends.get(name)
        reason = chosen.unavailable() or chosen.refuses(spec, geometry)
        if reason is None:
            if reasons:
                listed = "; ".join(f"{one}: {why}" for one, why in reasons.items())
                warn_once(
                    f"computing on the {name} backend, some 50 times slower, because a faster one "
                    f"does not work here ({listed}); backend={name!r} asks for it without a warning"
                )
            config, workspace_bytes = chosen.configure(spec, geometry, compute)
            return Plan(spec, geometry, compute, chosen, config, workspace_bytes, not spec.wanted)
        reasons[name] = reason
    raise BackendError(f"{spec.op} on {spec.device}", reasons)
