"""How many processors there are."""

import os


def cores() -> int:
    """Those that this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
