"""How a caller and its helpers meet, in compiled code: no interpreter lock stands between them.

A helper waits at a box of its own. A caller fills free boxes, works itself, and afterwards takes
back what no helper has begun: nobody waits for a thread that is not running. Through Python a
helper began 14 to 18 us after the call (two turns at the interpreter lock), so it takes about 3.
"""

from normgrad.backends.cpu.plan import slots
from normgrad.backends.cpu.threads import driver
from normgrad.backends.cpu.threads.sharing import (
    CPUS,
    add_atomic,
    at_address,
    call_parallel,
    keep_off,
    lock,
    moment,
    pause,
    replace_atomic,
    sleep,
    this_cpu,
    this_thread,
    unlock,
    wake,
)

# A box: a state, the four arguments of `drive`, which thread waits there and off which processor it
# is kept, then the system's lock and signal.
BOX_BYTES = 256
LOCK_AT = 64
SIGNAL_AT = 128
_STATE, _PARAMS, _ADDRESSES, _WORKSPACE, _SYNC, THREAD, OFF = range(7)
# Added to four times a number that every job raises: nobody mistakes a later job for an earlier.
_FREE, _FILLING, _READY, _TAKEN = range(4)

# How often a helper looks for the end of a phase before it leaves, about 100 us. It never gives its
# core away in between: on a busy machine it would get it back milliseconds later, and the caller
# cannot return while a helper is with its job.
_PATIENCE = 4096

# Nanoseconds that no job with parts takes.
_LONG = 400_000
# Clocks of Linux.
_MONOTONIC, _THREAD_TIME = 1, 3


def run_with_helpers(params, addresses, workspace, sync, boxes, count, helpers):
    """`drive`, here and in up to so many helpers as are free."""
    cpu = this_cpu()
    for index in range(count):
        address = boxes + index * BOX_BYTES
        state = add_atomic(address, 0)
        if helpers > 0 and state % 4 == _FREE and replace_atomic(address, state, state + _FILLING):
            box = at_address(address)
            box[_PARAMS] = params
            box[_ADDRESSES] = addresses
            box[_WORKSPACE] = workspace
            box[_SYNC] = sync
            # Linux likes to wake a helper where its caller runs, and then it waits for 4 ms: after
            # a pause of 10 ms two calls of three were alone, 2.4 ms instead of 1.4.
            if box[OFF] != cpu and 0 <= cpu < CPUS and box[THREAD] > 0:
                keep_off(box[THREAD], cpu)
                box[OFF] = cpu
            add_atomic(address, _READY - _FILLING)
            lock(address + LOCK_AT)  # a helper that saw the old state sleeps by now
            unlock(address + LOCK_AT)
            wake(address + SIGNAL_AT)
            helpers -= 1
    status = driver.share(at_address(params), at_address(addresses), workspace, sync, 0, 0, 1)
    for index in range(count):
        address = boxes + index * BOX_BYTES
        box = at_address(address)
        looks = 0
        while True:
            # The state first: a box that was ready then and is ours now was ours then.
            state = add_atomic(address, 0)
            if state % 4 < _READY or box[_SYNC] != sync:
                break
            if state % 4 == _READY and replace_atomic(address, state, state + 4 - _READY):
                break
            looks += 1
            pause(looks > driver.LOOKS)
    return status


def helper_loop(address):
    """What a helper does, for ever."""
    box = at_address(address)
    while True:
        lock(address + LOCK_AT)
        while add_atomic(address, 0) % 4 != _READY:
            sleep(address + SIGNAL_AT, address + LOCK_AT)
        unlock(address + LOCK_AT)
        state = add_atomic(address, 0)
        if state % 4 == _READY and replace_atomic(address, state, state + _TAKEN - _READY):
            params, addresses = at_address(box[_PARAMS]), at_address(box[_ADDRESSES])
            driver.share(params, addresses, box[_WORKSPACE], box[_SYNC], _PATIENCE, 0, 1)
            add_atomic(address, 4 - _TAKEN)
    return 0


def lead_team(address, parallel, work, threads):
    """A job on OpenMP's threads; for how many nanoseconds one of them or another did not run."""
    job = at_address(address)
    job[slots.JOB_ADDRESSES] += address
    job[slots.JOB_SYNC] += address
    job[slots.JOB_CALLER] = this_thread()
    job[slots.JOB_BEGUN] = moment(_MONOTONIC)
    call_parallel(parallel, work, address, threads)
    if job[slots.JOB_PARTS]:
        return max(job[slots.JOB_AWAY], moment(_MONOTONIC) - job[slots.JOB_BEGUN] - _LONG)
    return job[slots.JOB_AWAY]


def take_part(address):
    """What each thread of a team does with a job: the four arguments of `drive`, and more."""
    job = at_address(address)
    params, addresses = at_address(job[slots.JOB_PARAMS]), at_address(job[slots.JOB_ADDRESSES])
    workspace, sync = job[slots.JOB_WORKSPACE], job[slots.JOB_SYNC]
    leads = this_thread() == job[slots.JOB_CALLER]
    patience = 0 if leads else _PATIENCE
    if job[slots.JOB_PARTS]:
        # A thread's own time takes two calls of the system, 2 us: here only who comes late counts.
        add_atomic(address + 8 * slots.JOB_AWAY, moment(_MONOTONIC) - job[slots.JOB_BEGUN])
        part = 0 if leads else 1 + add_atomic(address + 8 * slots.JOB_CAME, 1)
        driver.share(params, addresses, workspace, sync, patience, part, job[slots.JOB_PARTS])
        return
    before = moment(_THREAD_TIME)
    driver.share(params, addresses, workspace, sync, patience, 0, 1)
    worked = moment(_THREAD_TIME) - before
    add_atomic(address + 8 * slots.JOB_AWAY, moment(_MONOTONIC) - job[slots.JOB_BEGUN] - worked)
