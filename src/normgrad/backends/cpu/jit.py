"""The one compilation policy: flags, the disk cache, and what replaces it without a compiler."""

import contextlib
import functools
import gc
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numba
from llvmlite import binding
from numba import types

from normgrad.backends.cpu.compiler import KernelCompiler, PartCompiler
from normgrad.backends.cpu.compiling import COMPILING
from normgrad.core import fork_safe_lock

# Without the compiler kernels run as plain Python on checked memory (see `checked`).
ENABLED: Final = not numba.config.DISABLE_JIT

# Sums are blocked by hand, so nothing may be reassociated; a product and a sum may become one.
_FLAGS: Final = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}

# Leaving out steps of Numba's was tried with Python 3.11 to 3.13. Newer ones, which have another
# bytecode, take them all: the same kernels, 2.5 times as long to compile.
_OWN_STEPS: Final = sys.version_info < (3, 14)

# Kernels' parts are called by compiled code alone: without the wrappers for Python and C a small
# one takes 12 ms to compile instead of 36.
_PART: Final = {
    **_FLAGS,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
    **({"pipeline_class": PartCompiler} if _OWN_STEPS else {}),
}

inner = numba.njit(**_PART)
# For what is called for each slab, row or column: calls cost as much as what they do. Instance norm
# of 16x64x8x8 in float32 takes 60 us without, 38 with; loops over data gain nothing, or lose. What
# such a part calls is inlined into it, `inner` or not: Numba hands the flag down. Without that the
# slabs' task takes about as long to compile, instance norm 1.3 of its time and 10000x8 rows 1.26.
inlined = numba.njit(**_PART, forceinline=True)

_BLOCK = types.CPointer(types.int64)
# Parameter block, addresses, workspace, argument, index of the task and of the thread's next one.
TASK_SIGNATURE: Final = types.int32(_BLOCK, _BLOCK, *[types.int64] * 4)
# Parameter block, addresses, workspace, counters that threads share.
DRIVER_SIGNATURE: Final = types.int32(_BLOCK, _BLOCK, types.int64, types.int64)
# The same as integers, the boxes where helpers wait, how many those are, how many are wanted.
RUN_WITH_HELPERS_SIGNATURE: Final = types.int32(*[types.int64] * 7)
HELPER_LOOP_SIGNATURE: Final = types.int32(types.int64)
# A job, OpenMP's entry, what its threads run, how many those are.
LEAD_TEAM_SIGNATURE: Final = types.int64(*[types.int64] * 4)
TAKE_PART_SIGNATURE: Final = types.void(types.int64)

_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH  # modes that let others write

# Numba's own lock is held inside it: a child that was forked meanwhile could never compile.
_lock = fork_safe_lock.lock()


def compiled(signature: Any, function: Callable[..., int]) -> Any:
    """A function with a C address, taken from the disk cache where it is there."""
    with _lock:  # Numba reads the folder from a global setting, when it is asked to cache
        folder = cache_folder()
        own = folder and folder / _digest(_identity(function).encode())
        if own and not _made_private(own):
            own = None
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(own or "")
        try:
            with COMPILING.kernel(own and folder) as kernel, _without_collecting():
                if own:
                    try:
                        made = _compile(signature, function, cache=True)
                        kernel.was_kept = made.cache_hits > 0
                        return made
                    except Exception:  # a full disk, or a file cut short: pickle raises any
                        shutil.rmtree(own, ignore_errors=True)  # or every process would meet it
                return _compile(signature, function, cache=False)
        finally:
            numba.config.CACHE_DIR = before


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Numba makes many objects that stay: to look through them all took a sixth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _compile(signature: Any, function: Callable[..., int], *, cache: bool) -> Any:
    options: dict[str, Any] = {"pipeline_class": KernelCompiler} if _OWN_STEPS else {}
    made = numba.cfunc(
        signature, cache=cache, error_model="numpy", fastmath={"contract"}, **options
    )
    return made(function)


def _identity(function: Callable[..., int]) -> str:
    """What tells a function from all others: where it stands, and the formats that it is for.

    Each has a folder of its own. Numba numbers the files of all formats in one index, without a
    lock: two processes that save at once take the same number, and a third runs the wrong kernel.
    """
    cells = getattr(function, "__closure__", None) or ()
    formats = [cell.cell_contents for cell in cells]
    return f"{function.__module__}.{function.__qualname__} {formats}"


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@functools.cache
def cache_folder() -> Path | None:
    """Where compiled kernels are kept: the first of three places that can be written.

    The folder's name carries a digest of these sources, of Numba's version and of the processor:
    no other version reads it, and no other machine with the same home.
    """
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    target = f"{numba.__version__} {host} {numba.config.CPU_NAME} {numba.config.CPU_FEATURES}"
    name = f"normgrad-cpu-{_digest(*sources, target.encode())}"
    for place in (_chosen, _temporary):
        try:
            folder = place()
        except OSError:  # there is none, or it is relative to a directory that was removed
            continue
        if folder is not None and _made_private(folder / name):
            return folder / name
    return None


def _chosen() -> Path | None:
    """The folder that the user names, or one in his home; resolved, as links may change."""
    if numba.config.CACHE_DIR:
        return Path(numba.config.CACHE_DIR).resolve()
    if (caches := os.environ.get("XDG_CACHE_HOME")) and Path(caches).is_absolute():
        own = Path(caches) / "normgrad"
    else:
        own = Path(os.path.expanduser("~/.cache")) / "normgrad"  # noqa: PTH111 (never raises)
    # A user without a home has `~` itself, which would be a folder in the current directory.
    if not own.is_absolute():
        return None
    own = own.resolve()
    # A home where files belong to a group of one user is 0775; one for everybody is a mistake, as
    # caches that were made with a mask of 0.
    if not _made_private(own) or _others_may_move_from(own.parent, stat.S_IWOTH):
        return None
    return own


def _temporary() -> Path | None:
    """A folder of ours in the temporary one, where everybody can make folders."""
    parent = Path(tempfile.gettempdir()).resolve()
    if _others_may_move_from(parent, _BY_OTHERS):
        return None
    user = getattr(os, "getuid", lambda: "user")()
    own = parent / f"normgrad-{user}"
    return own if _made_private(own) else None


def _others_may_move_from(parent: Path, writers: int) -> bool:
    """Whether a folder in it, private or not, may be replaced; the sticky bit prevents that."""
    mode = parent.stat().st_mode
    return bool(hasattr(os, "getuid") and mode & writers and not mode & stat.S_ISVTX)


def _made_private(folder: Path) -> bool:
    """Whether a folder is there and ours alone, made if need be: its files will be executed.

    A link is nobody's: who made it may point it to another folder at any time.
    """
    try:
        missing = [folder, *folder.parents]
        while missing and missing[-1].exists():
            missing.pop()
        for one in reversed(missing):
            one.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode):
            return False
        if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & _BY_OTHERS):
            return False
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
