"""Runs parameter blocks through the one compiled entry, from Python with helping threads."""

import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from normgrad import hostmem
from normgrad.backends.base import Compiled
from normgrad.backends.cpu import driver, jit, pool, tasks, team
from normgrad.backends.cpu.program import Config
from normgrad.spec import ROLES
from normgrad.written import Result, Source

if TYPE_CHECKING:
    from normgrad.plan import Plan

# Below this many elements (about 80 us of work) waking a helper costs more than it gives: its
# turn at the interpreter lock comes 20 us late and more.
PARALLEL_ELEMENTS = 262144
# From this size on torch's threads, which wait for work, are worth it.
TEAM_ELEMENTS = 131072
# What each thread should have to do at least.
THREAD_ELEMENTS = 32768
# Scratch memory that a thread keeps at most; larger ones hold copies of tensors.
KEPT_BYTES = 4 << 20

_Addresses = ctypes.c_int64 * len(ROLES)
_Sync = ctypes.c_int64 * (driver.SYNC_BYTES // 8)
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
    given = _Addresses(*[address or 0 for address in addresses])
    if not _shared(config, given, workspace or 0):
        _entry()(config.block, given, workspace or 0, None)
    del owner


def _shared(config: Config, given: Any, workspace: int) -> bool:
    """Run a parameter block on several threads; False where it is not worth it."""
    if config.elements < TEAM_ELEMENTS or (threads := pool.thread_count()) <= 1:
        return False
    sync, small = _Sync(), config.elements < PARALLEL_ELEMENTS
    if team.TEAM.run(config.block, given, workspace, sync, threads, small=small):
        return True
    if small:
        return False
    pool.POOL.run(config.block, given, workspace, sync, _worthwhile(config, threads) - 1)
    return True


def written(
    plan: "Plan", operands: Sequence[bool], results: Sequence[Result | None]
) -> Callable[..., tuple[Any, ...]] | None:
    """A call in kept scratch memory: 2 us less of 10."""
    import torch

    config, nbytes = plan.config, plan.workspace_bytes
    assert isinstance(config, Config)
    if not jit.ENABLED or plan.idle or nbytes > KEPT_BYTES:
        return None
    source = Source(operands, results)
    source.names |= {"entry": _entry(), "block": config.block, "addresses": _Addresses}
    source.names |= {"scratch": _scratch, "empty_like": torch.empty_like}
    workspace = f"scratch({nbytes})[1]" if nbytes else "0"
    source.lines += [f"w = {workspace}", f"given = addresses({source.addresses('0')})"]
    if config.elements >= TEAM_ELEMENTS:
        source.names |= {"shared": _shared, "config": config}
        source.lines += ["if shared(config, given, w):", f"    {source.answer}"]
    source.lines.append("entry(block, given, w, None)")
    return source.made()


class _Kept(threading.local):
    """Scratch memory of a thread, for its next call."""

    owner: Any = None
    address = 0
    room = 0


_kept = _Kept()


def _scratch(nbytes: int) -> tuple[Any, int]:
    """What owns so many bytes, and their address, at a multiple of a cache line."""
    if nbytes <= _kept.room:
        return _kept.owner, _kept.address
    owner = np.empty(nbytes + 64, np.uint8)
    address = -(-owner.ctypes.data // 64) * 64
    if nbytes <= KEPT_BYTES:
        _kept.owner, _kept.address, _kept.room = owner, address, nbytes
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
    return min(threads, -(-config.elements // THREAD_ELEMENTS))


def _interpret(
    plan: "Plan", config: Config, addresses: Sequence[int | None], workspace: int
) -> None:
    """Without the compiler: the same kernels as plain Python, every access checked."""
    from normgrad.backends.cpu.checked import memory

    spec = plan.spec
    scratch = (workspace, workspace + plan.workspace_bytes)
    readable, writable = [scratch], [scratch]
    for role in (*spec.operands, *spec.wanted):
        tensor: Any = spec.tensor(role)
        address = addresses[ROLES.index(role)]
        if tensor.size and address is not None:
            low, high = hostmem.byte_range(tensor)
            kind = writable if role in spec.wanted else readable
            kind.append((address + low, address + high))
    with memory(readable, writable), np.errstate(all="ignore"):
        drive: Any = driver.drive
        drive(config.block, [address or 0 for address in addresses], workspace, 0)
