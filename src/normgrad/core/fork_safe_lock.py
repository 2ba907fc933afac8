"""Locks that a forked child finds free."""

import os
import threading


def lock() -> "threading.RLock":
    """A lock for work that must be whole in a child: a fork waits until nobody else holds it.

    The child has only the thread that forked; what another one held would be held for ever. One
    that may be taken twice, as its holder may be the one who forks.
    """
    made = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=made.acquire, after_in_parent=made.release, after_in_child=made.release
        )
    return made
