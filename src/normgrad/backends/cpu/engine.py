"""Runs parameter blocks through the one compiled entry, from Python with helping threads."""

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrad.arrays import host_memory
from normgrad.backends.base import Compiled
from normgrad.backends.cpu import jit, tasks
from normgrad.backends.cpu.plan import ceil_div, slots
from normgrad.backends.cpu.plan.program import Config
from normgrad.backends.cpu.threads import driver, pool, team
from normgrad.calls.generated_call import CallSource
from normgrad.core.spec import ROLES, SLOT

if TYPE_CHECKING:
    from normgrad.core.plan import Plan

# Below this many elements (about 80 us of work) waking a helper costs more than it gives: its
# turn at the interpreter lock comes 20 us late and more.
PARALLEL_ELEMENTS = 262144
# From this size on torch's threads, which wait for work, are worth it.
TEAM_ELEMENTS = 65536
# Up to this size each thread of torch's begins in its own part of the tasks, where its cache has
# what the last call left there: 98304 elements 14.6 us, 22.6 taken in turns, 21.1 alone.
SPLIT_ELEMENTS = 524288
# What each thread should have to do at least.
THREAD_ELEMENTS = 32768
# Scratch memory that a thread keeps at most; larger ones hold copies of tensors.
KEPT_BYTES = 4 << 20

# Packed: an array of ctypes' takes 1 us to make of numbers, bytes 0.2.
_addresses = struct.Struct(f"{len(ROLES)}Q").pack
# What threads share of a call: a head, addresses, counters. A copy of packed ones takes 0.6 us to
# make, of numbers 1.8.
_GIVEN_AT = 8 * slots.JOB_HEAD
_SYNC_AT = _GIVEN_AT + 8 * len(ROLES)
_packed = struct.Struct(f"{slots.JOB_HEAD + len(ROLES)}Q{driver.SYNC_BYTES}x").pack
_job = (ctypes.c_int64 * ((_SYNC_AT + driver.SYNC_BYTES) // 8)).from_buffer_copy
_Entry = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
)


def entry_address() -> int:
    """The C address of ``int32_t run(params, addresses, workspace, sync)``.

    ``params`` is the address of a plan's ``config.block``, ``addresses`` points to one for each of
    ``ROLES`` (0 where there is none), ``workspace`` to the plan's bytes at a multiple of 64. With a
    null ``sync`` the calling thread does all the work: no Python, no lock, no other thread.
    """
    return int(tasks.compiled_driver().address)


@functools.cache
def _entry() -> Callable[..., int]:
    return _Entry(entry_address())


def run(plan: "Plan", addresses: Sequence[int | None], workspace: int | None) -> None:
    """Compute a plan of this backend."""
    config = plan.config
    assert isinstance(config, Config)
    owner = None
    if plan.workspace_bytes and not workspace:
        owner, workspace = _scratch(plan.workspace_bytes)
    if not jit.ENABLED:
        _interpret(plan, config, addresses, workspace or 0)
        return
    given = [address or 0 for address in addresses]
    if config.elements < TEAM_ELEMENTS:
        _entry()(config.block, _addresses(*given), workspace or 0, None)
    else:
        _share(config, _job(_packed(*_head(config, workspace or 0), *given)))
    del owner


def _head(config: Config, workspace: int) -> tuple[int, ...]:
    """What a job begins with: its first four words, and room for the others."""
    block = ctypes.addressof(config.block)
    return block, _GIVEN_AT, workspace, _SYNC_AT, *[0] * (slots.JOB_HEAD - slots.JOB_CALLER)


def _share(config: Config, job: Any) -> None:
    """Run a job on as many threads as are worth it."""
    threads, small = pool.thread_count(), config.elements < PARALLEL_ELEMENTS
    if config.elements <= SPLIT_ELEMENTS:
        job[slots.JOB_PARTS] = min(threads, driver.MOST_PARTS)
    if threads > 1 and team.TEAM.run(job, threads, small=small):
        return
    here, workspace = ctypes.addressof(job), job[slots.JOB_WORKSPACE]
    given, sync = here + _GIVEN_AT, here + _SYNC_AT
    if small or threads <= 1:
        _entry()(config.block, given, workspace, None)
    else:
        pool.POOL.run(config.block, given, workspace, sync, _worthwhile(config, threads) - 1)


def generate_call(
    plan: "Plan", source: Callable[[], CallSource]
) -> Callable[..., tuple[Any, ...]] | None:
    """A call in kept scratch memory: 2 us less of 10."""
    config, nbytes = plan.config, plan.workspace_bytes
    assert isinstance(config, Config)
    if not jit.ENABLED or plan.idle or nbytes > KEPT_BYTES:
        return None
    call = source()
    call.results()
    call.names |= {"scratch": _scratch, "config": config}
    # Keep a reference: a re-entrant call (a signal handler's) may replace this thread's scratch
    # memory while this one uses it.
    call.lines.append(f"owner, w = scratch({nbytes})" if nbytes else "w = 0")
    given = call.addresses("0")
    block, given_at, _, *rest = _head(config, 0)
    if config.elements < TEAM_ELEMENTS:
        call.names |= {"entry": _entry(), "addresses": _addresses}
        call.lines.append(f"entry({block}, addresses({given}), w, None)")
    else:
        call.names |= {"share": _share, "job": _job, "packed": _packed}
        head = ", ".join(map(str, (block, given_at, "w", *rest)))
        call.lines.append(f"share(config, job(packed({head}, {given})))")
    return call.made()


class _Kept(threading.local):
    """Scratch memory of a thread, for its next call."""

    held: tuple[Any, int, int] = (None, 0, 0)  # what owns it, its address, its bytes


_kept = _Kept()


def _scratch(nbytes: int) -> tuple[Any, int]:
    """What owns so many bytes, and their address, at a multiple of a cache line."""
    owner, address, room = _kept.held
    if nbytes <= room:
        return owner, address
    owner, address = host_memory.aligned_bytes(nbytes)
    if nbytes <= KEPT_BYTES:
        _kept.held = owner, address, nbytes
    return owner, address


def compiled(plan: "Plan") -> Compiled | None:
    """The plan as C runs it."""
    config = plan.config
    assert isinstance(config, Config)
    if not jit.ENABLED:
        return None
    helpers = 0
    if config.elements >= PARALLEL_ELEMENTS:
        helpers = _worthwhile(config, pool.thread_count()) - 1
    block = ctypes.addressof(config.block)
    return Compiled(entry_address(), block, helpers, driver.SYNC_BYTES)


def _worthwhile(config: Config, threads: int) -> int:
    return min(threads, ceil_div(config.elements, THREAD_ELEMENTS))


def _interpret(
    plan: "Plan", config: Config, addresses: Sequence[int | None], workspace: int
) -> None:
    """Without the compiler: the same kernels as plain Python, every access checked."""
    from normgrad.backends.cpu.vectors.checked import memory

    spec = plan.spec
    scratch = (workspace, workspace + plan.workspace_bytes)
    readable, writable = [scratch], [scratch]
    for role in (*spec.operands, *spec.wanted):
        tensor = spec.present(role)
        address = addresses[SLOT[role]]
        if tensor.size and address is not None:
            low, high = host_memory.byte_range(tensor)
            kind = writable if role in spec.wanted else readable
            kind.append((address + low, address + high))
            if role == "dshortcut":  # what the norm's gradient is made of
                readable.append((address + low, address + high))
            if role in spec.updated:
                writable.append((address + low, address + high))
    with memory(readable, writable), np.errstate(all="ignore"):
        drive: Any = driver.drive
        drive(config.block, [address or 0 for address in addresses], workspace, 0)
