"""The place of the cuda backend."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normgrad.geometry import Geometry
    from normgrad.plan import Plan
    from normgrad.spec import Spec


class Absent:
    """Refuses with a reason until its kernels are here."""

    name = "cuda"

    def unavailable(self) -> str | None:
        """Its kernels are not part of this version."""
        return "its kernels are not part of this version"

    def refuses(self, spec: "Spec", geometry: "Geometry") -> str | None:
        """Never asked."""
        return self.unavailable()

    def configure(self, spec: "Spec", geometry: "Geometry", compute: str) -> tuple[object, int]:
        """Never asked."""
        raise NotImplementedError

    def run(
        self, plan: "Plan", addresses: Sequence[int | None], workspace: int | None, stream: int
    ) -> None:
        """Never asked."""
        raise NotImplementedError


BACKEND = Absent()
