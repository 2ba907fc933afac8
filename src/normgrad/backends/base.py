"""What a backend is."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from normgrad.core.spec import Op

if TYPE_CHECKING:
    from normgrad.calls.generated_call import CallSource
    from normgrad.core.geometry import Geometry
    from normgrad.core.plan import Plan
    from normgrad.core.spec import Spec

# What the fast backends compute: any other operator would get the gradients of one of these.
_FAST: Final = (
    Op.BATCH_NORM_BACKWARD,
    Op.BATCH_NORM_REDUCE_BACKWARD,
    Op.BATCH_NORM_ELEMT_BACKWARD,
    Op.LAYER_NORM_BACKWARD,
    Op.GROUP_NORM_BACKWARD,
)


def unknown_to_fast(op: str, also: Sequence[str] = ()) -> str | None:
    """Why a fast backend refuses an operator, or None. ``also`` has what it alone computes."""
    return None if op in _FAST or op in also else f"it has no {op}"


def fused_form(spec: "Spec", taken: Sequence[str] = ()) -> str | None:
    """What of a fused request a fast backend does not take, or None."""
    forms = {
        "activation": spec.activation is not None,
        "residual": spec.residual is not None or spec.dsum is not None,
        "shortcut": (spec.shortcut or spec.mask) is not None,
        "weights of each sample": spec.samples > 1,
    }
    absent = [name for name, here in forms.items() if here and name not in taken]
    return f"it has no {spec.op} with {' and '.join(absent)}" if absent else None


def not_on_host(device: str) -> str | None:
    """Why a backend of the host refuses arrays that are elsewhere, or None."""
    return None if device == "cpu" else f"it reads host memory only, the arrays are on {device}"


@functools.cache
def broken(package: str) -> str | None:
    """Why an installed package cannot be imported, or None. Asked by who would import it next."""
    try:
        importlib.import_module(package)
    except Exception as error:  # ImportError, or OSError of a shared library, or its own
        return f"{package} cannot be imported: {type(error).__name__}: {error}"
    return None


def missing(package: str, named: str = "") -> str | None:
    """That a package is not installed and what to do, or None. Nothing is imported."""
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed: pip install {named or package}"
    return None


def unusable(package: str) -> str | None:
    """Why a package cannot be used, or None: then it is imported."""
    return missing(package) or broken(package)


class Compiled(NamedTuple):
    """A plan as C code can run it: ``int32_t entry(block, addresses, workspace, sync)``.

    ``addresses`` are in the order of ``ROLES``. Threads that call the entry with one ``sync`` of
    ``sync_bytes`` zeros share the work; with a null one the caller does it all. ``helpers`` is how
    many more threads the size is worth. The plan owns ``block``.
    """

    entry: int
    block: int
    helpers: int
    sync_bytes: int


class Backend(Protocol):
    """One way to compute a plan. It trusts the plan: everything is validated before."""

    name: str

    def unavailable(self) -> str | None:
        """Why it cannot work in this process, or None."""

    def refuses(self, spec: "Spec", geometry: "Geometry") -> str | None:
        """Why it cannot take this request, or None."""

    def configure(self, spec: "Spec", geometry: "Geometry", compute: str) -> tuple[object, int]:
        """Its settings for this request, frozen and printable, and the scratch bytes it needs."""
        ...

    def run(
        self,
        plan: "Plan",
        addresses: Sequence[int | None],
        workspace: int | None,
        stream: int,
    ) -> None:
        """Write every wanted result. See ``Plan.run`` for the arguments."""


class Offers(Protocol):
    """What a backend may have besides, for callers who cannot wait. Each is looked up by name."""

    def compiled(self, plan: "Plan") -> Compiled | None:
        """The plan for callers outside Python."""

    def generate_call(
        self,
        plan: "Plan",
        source: "Callable[[], CallSource]",
        scratch: Callable[[int, int], int],
    ) -> Callable[..., tuple[Any, ...]] | None:
        """A plan's calls on plain torch tensors as one function of (operands, out), or None yet.

        ``scratch`` finds memory that stays, from the number of a GPU and of bytes.
        """
