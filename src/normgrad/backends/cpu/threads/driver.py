"""Runs the phases of a parameter block: alone, or together with other threads doing the same.

Every thread that calls ``drive`` with one ``sync`` block takes tasks until none is left, and waits
only for tasks that another has begun. A thread that comes late, even after the caller has gone,
finds everything taken and touches nothing else. Without ``sync`` the calling thread does it all.
"""

from normgrad.backends.cpu import jit
from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.vectors import add_atomic, call_task, pause, set_arithmetic

# Counters of each phase, a cache line apart from the next phase's: tasks done, tasks taken of each
# part.
SYNC_STRIDE = 64
MOST_PARTS = 7
SYNC_BYTES = SYNC_STRIDE * slots.MAX_PHASES
# How often to look before giving the core away: about 2 us.
LOOKS = 64
# Tasks before the end of a phase from which on none is taken before it is begun.
RESERVED = 4
# To nearest, no traps, subnormals are numbers: as threads of x86 begin.
PLAIN = 0x1F80


def drive(params, addresses, workspace, sync):
    """All phases, each after the one before it. Returns 0."""
    return share(params, addresses, workspace, sync, 0, 0, 1)


@jit.inner
def share(params, addresses, workspace, sync, patience, part, parts):
    """`drive`; with some patience who looks so often for others to end a phase leaves.

    All threads compute alike: with torch.set_flush_denormal(True), which is about the caller's own,
    bits depended on who took which task.
    """
    before = set_arithmetic(PLAIN)
    status = take_tasks(params, addresses, workspace, sync, patience, part, parts)
    set_arithmetic(before)
    return status


@jit.inner
def take_tasks(params, addresses, workspace, sync, patience, part, parts):
    """The phases as one thread sees them.

    With several parts a thread begins in its own part of the tasks and then helps in the others:
    what it had in its cache after the last call it finds there again.
    """
    status = 0
    for phase in range(params[slots.PHASES]):
        at = slots.TABLE + phase * slots.PER_PHASE
        function = params[at]
        tasks = params[at + 1]
        argument = params[at + 2]
        if sync == 0:
            for task in range(tasks):
                after = min(task + 1, tasks - 1)
                status |= call_task(function, params, addresses, workspace, argument, task, after)
            continue
        done = sync + phase * SYNC_STRIDE
        for turn in range(part, part + parts):
            here = turn % parts
            taken = done + 8 + 8 * here
            first = tasks * here // parts
            last = tasks * (here + 1) // parts
            task = first + add_atomic(taken, 1)
            while task < last:
                # Taken early, so that a task can ask for the data of the next; not of the last few,
                # which others may begin sooner.
                after = first + add_atomic(taken, 1) if last - task > RESERVED else task
                known = min(after, last - 1)
                status |= call_task(function, params, addresses, workspace, argument, task, known)
                add_atomic(done, 1)
                task = after if after > task else first + add_atomic(taken, 1)
        looks = 0
        while add_atomic(done, 0) < tasks:
            looks += 1
            if looks == patience:
                return status
            pause(patience == 0 and looks > LOOKS)
    return status
