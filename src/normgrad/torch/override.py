"""``enable()``: torch's own backward operators computed by us, in an unchanged program."""

import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import torch

from normgrad import backends, forks
from normgrad.errors import NormgradError, OptionError
from normgrad.torch import adapters, cpu_sync
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


class _State:
    """What is registered now."""

    lock = forks.lock()
    library: Any = None
    backend: str | None = None


class enable:  # noqa: N801  (used as a function, and in a with statement)
    """Override torch's backward operators, for CPU and CUDA, until ``disable()``.

    In a ``with`` statement: until its end, which brings back what was before. ``backend`` names one
    for all calls; by default it is the fast one of each device ("cpu" or "cuda"). What it refuses
    goes to torch's own kernel; ``report()`` tells.
    """

    def __init__(self, *, backend: str | None = None) -> None:
        if backend is not None and backend not in backends.NAMES:
            known = ", ".join(repr(name) for name in backends.NAMES)
            raise OptionError("backend", f"must be None or one of {known}", repr(backend))
        with _State.lock:
            self._before = (_State.library is not None, _State.backend)
            _switch(True, backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _switch(*self._before)


def disable() -> None:
    """Give torch its own backward operators back."""
    _switch(False, None)


def enabled() -> bool:
    """Whether torch's backward operators are ours now."""
    return _State.library is not None


def _switch(on: bool, backend: str | None) -> None:
    with _State.lock:
        _State.backend = backend
        if on and _State.library is None:
            _State.library = _register()
        elif not on and _State.library is not None:
            _State.library._destroy()
            _State.library = None


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
                library.impl(name, getattr(cpu_sync, name), "CPU")
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
        backend = _State.backend or device
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
