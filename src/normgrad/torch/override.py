"""``enable()``: torch's own backward operators computed by us, in an unchanged program."""

import sys
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import torch

from normgrad import backends, forks, options
from normgrad.errors import NormgradError, OptionError
from normgrad.torch import adapters, cpu_sync, inductor
from normgrad.torch.counting import count
from normgrad.torch.library import open_library

BACKWARD: Final = (
    "native_batch_norm_backward",
    "cudnn_batch_norm_backward",
    "native_layer_norm_backward",
    "native_group_norm_backward",
    "batch_norm_backward_reduce",
    "batch_norm_backward_elemt",
)
# What torch has on CUDA only.
CPU_FORWARD: Final = ("batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_elemt")
_ONLY_CUDA: Final = ("cudnn_batch_norm_backward",)
_CACHED_REFUSALS: Final = 1024  # per operator


class _Wish:
    """A call of ``enable`` or ``disable`` that was not undone."""

    def __init__(
        self, on: bool, backend: str | None, *, compiled: bool = False, scoped: bool = False
    ) -> None:
        self.on = on
        self.backend = backend
        self.compiled = compiled  # also what torch.compile makes meanwhile
        self.scoped = scoped  # until the end of a with statement


_NOTHING: Final = _Wish(False, None)


class _State:
    """What is registered now, and for whom."""

    lock = forks.lock()
    library: Any = None  # may be there while nothing is wished: see _follow
    now: _Wish = _NOTHING  # the last of the wishes, which counts
    wishes: Final[list[_Wish]] = []


class enable:  # noqa: N801  (used as a function, and in a with statement)
    """Override torch's backward operators, for CPU and CUDA, until ``disable()``.

    In a ``with`` statement: until its end, which brings back what was before; where several
    overlap, in threads say, until the end of the last. An object may be used in several statements.
    ``backend`` names one for all calls; by default it is the fast one of each device ("cpu" or
    "cuda"). What it refuses goes to torch's own kernel; ``report()`` tells.

    ``compiled``: what ``torch.compile`` makes meanwhile calls our operators too, and goes on doing
    so. Imports its compiler, which takes a second.
    """

    def __init__(self, *, backend: str | None = None, compiled: bool = False) -> None:
        options.choice("backend", backend, backends.NAMES, none=True)
        if options.flag("compiled", compiled) and backend is not None:
            rule = "must be left out where compiled=True, which takes the fast one of each device"
            raise OptionError("backend", rule, repr(backend))
        self._call = _Wish(True, backend, compiled=bool(compiled))
        self._statements: list[_Wish] = []  # that are running
        with _State.lock:
            # The last one may be the start of a with statement to come; those before it are over.
            stay = [one for one in _State.wishes if one.scoped or one is _State.wishes[-1]]
            _follow([*stay, self._call])

    def __enter__(self) -> Self:
        call = self._call
        statement = _Wish(True, call.backend, compiled=call.compiled, scoped=True)
        with _State.lock:
            # The call was the start of this statement, or of one that is over.
            _follow([*(one for one in _State.wishes if one is not self._call), statement])
            self._statements.append(statement)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _State.lock:
            wishes = _State.wishes
            ended = self._statements.pop() if self._statements else self._call
            if ended not in wishes:
                return
            place = wishes.index(ended)
            # What was wished inside ends here too, but for statements that are still running.
            _follow([*wishes[:place], *(one for one in wishes[place + 1 :] if one.scoped)])


def disable() -> None:
    """Give torch its own backward operators back."""
    with _State.lock:
        running = [one for one in _State.wishes if one.scoped]
        _follow([*running, _NOTHING] if running else [])


def enabled() -> bool:
    """Whether torch's backward operators are ours now."""
    return _State.now.on


def _follow(wishes: list[_Wish]) -> None:
    """Take these for all that is wished."""
    now = wishes[-1] if wishes else _NOTHING
    (inductor.take_over if now.compiled else inductor.give_back)()
    if now.on and _State.library is None:
        _State.library = _register()
    _State.now = now
    _State.wishes[:] = wishes
    # Torch frees what is taken away, also while a thread is about to call it. Where there may be
    # one, our kernels stay and call torch's: 9 us for a small layer norm, torch by itself 5.
    if not now.on and _State.library is not None and _alone():
        _State.library._destroy()
        _State.library = None


def _alone() -> bool:
    """Whether no other thread can be in a backward pass: none runs Python, nor works for us."""
    return len(sys._current_frames()) == 1 and torch._C._current_graph_task_id() == -1


def _register() -> Any:
    # Kernels are looked up before ours shadow them.
    library = open_library("aten", "IMPL")
    with warnings.catch_warnings():
        # Torch says once that a kernel was replaced: that is what the user asked for.
        warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
        for name in BACKWARD:
            for key in ("CPU", "CUDA"):
                original = _kernel(name, key)
                if original is not None:
                    library.impl(name, _ours(name, key, original), key, with_keyset=True)
                elif key == "CPU" and name not in _ONLY_CUDA:
                    library.impl(name, _ours(name, key, None), key, with_keyset=True)
        for name in CPU_FORWARD:
            if _kernel(name, "CPU") is None:
                library.impl(name, _lent(name), "CPU")
    return library


def _kernel(name: str, key: str) -> Any:
    """Torch's kernel for an operator; None where it has none."""
    try:
        return torch.library.get_kernel(f"aten::{name}", key)
    except RuntimeError:
        return None


def _ours(name: str, key: str, original: Any) -> Callable[..., Any]:
    compute = getattr(adapters, name)
    device = key.lower()
    taken = (name, device, "normgrad", "")
    # Why torch took a call, by what its arguments look like: finding out takes 150 us each time.
    refused: dict[Any, str] = {}

    # No guard for the device: the backend launches on that of the tensors.
    def kernel(keyset: Any, *args: Any) -> Any:
        now = _State.now
        if not now.on:
            if original is None:
                raise _missing(name)
            return original.call_boxed(keyset, *args)
        backend = now.backend or device
        reason = refused.get(_looks(backend, args)) if refused else None
        if reason is None:
            try:
                results = compute(backend, *args)
            except NormgradError as error:
                if original is None:
                    raise
                reason = str(error)
                if len(refused) < _CACHED_REFUSALS:
                    refused[_looks(backend, args)] = reason
            else:
                count(taken)
                return results
        count((name, device, "torch", reason))
        return original.call_boxed(keyset, *args)

    return kernel


def _lent(name: str) -> Callable[..., Any]:
    """A forward operator that torch has on the CPU while we are enabled."""
    compute = getattr(cpu_sync, name)

    def kernel(*args: Any) -> Any:
        if not _State.now.on:
            raise _missing(name)
        return compute(*args)

    return kernel


def _missing(name: str) -> NotImplementedError:
    """What torch raises for an operator that it does not have."""
    return NotImplementedError(
        f"torch has no aten::{name} for the CPU: normgrad lends its own while "
        "normgrad.torch.enable() holds"
    )


def _looks(backend: str, args: Sequence[Any]) -> tuple[Any, ...]:
    """Everything about a call that decides whether we take it."""
    return backend, *[
        (one.shape, one.stride(), one.dtype, one.device)
        if isinstance(one, torch.Tensor)
        else tuple(one)
        if isinstance(one, list)
        else one
        for one in args
    ]
