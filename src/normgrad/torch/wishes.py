"""What is wished now: which of torch's operators are to be ours, and how."""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

from normgrad.core import fork_safe_lock

NORMS: Final = ("batch_norm", "layer_norm", "group_norm", "rms_norm")


class Wish:
    """A call of ``enable`` or ``disable`` that was not undone."""

    def __init__(
        self,
        on: bool,
        backend: str | None,
        *,
        compiled: bool = False,
        scoped: bool = False,
        forward: bool = True,
        norms: Collection[str] = NORMS,
    ) -> None:
        self.on = on
        self.backend = backend
        self.forward = forward  # or backward operators alone
        self.norms = frozenset(norms)  # that are taken
        self.compiled = compiled  # also what torch.compile makes meanwhile
        self.scoped = scoped  # until the end of a with statement
        self.calls_before: Counter[str] = Counter()  # by whom they were taken, when it began


NOTHING: Final = Wish(False, None)


class State:
    """What is registered now, and for whom."""

    lock = fork_safe_lock.lock()
    reserves = False  # whether cuDNN's backward pass may be called without its own notes
    library: Any = None  # may be there while nothing is wished: see `override`
    now: Wish = NOTHING  # the last of the wishes, which counts
    wishes: Final[list[Wish]] = []
