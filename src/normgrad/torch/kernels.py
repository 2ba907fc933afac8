"""Our kernels in torch's tables: what takes an operator, and what only counts its calls."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from normgrad.core.errors import NormgradError
from normgrad.torch import adapters, cpu_sync, forward_adapters
from normgrad.torch.counting import Fate, count
from normgrad.torch.library import open_library
from normgrad.torch.too_small import LEAST, LEAST_FORWARD, LEAST_RMS_NORM
from normgrad.torch.wishes import NORMS, State

# By the place of the input among the arguments.
BACKWARD: Final = {
    "native_batch_norm_backward": 1,
    "batch_norm_backward": 1,
    "cudnn_batch_norm_backward": 0,
    "native_layer_norm_backward": 1,
    "native_group_norm_backward": 1,
    "batch_norm_backward_reduce": 1,
    "batch_norm_backward_elemt": 1,
    "_fused_rms_norm_backward": 1,
}
FORWARD: Final = {
    "native_batch_norm": 0,
    "_batch_norm_with_update": 0,
    "cudnn_batch_norm": 0,
    "native_layer_norm": 0,
    "native_group_norm": 0,
    "_fused_rms_norm": 0,
    "batch_norm_stats": 0,
    "batch_norm_elemt": 0,
}
# What torch has on CUDA only.
CPU_FORWARD: Final = ("batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_elemt")
_ONLY_CUDA: Final = ("cudnn_batch_norm", "cudnn_batch_norm_backward")
# There it may be cuDNN's, whose backward pass reads what only its forward pass writes.
_ONLY_CPU: Final = ("_batch_norm_with_update",)
_REPLACED: Final = "(?s).*Overriding a previously registered kernel"
_Kernel = Callable[..., Any]
_CACHED_REFUSALS: Final = 1024  # per operator
# Tensors that torch has kernels of their own for, and why we leave them to those.
_UNTAKEN: Final = {
    "MkldnnCPU": "mkldnn tensors have no strides: to_dense() makes one that has",
    "NestedTensorCPU": "nested tensors have no shape: layout=torch.jagged makes ones that we take",
    "NestedTensorCUDA": "nested tensors have no shape: layout=torch.jagged makes ones that we take",
}
_IN_PIECES: Final = (
    "torch takes group norm's backward pass apart under create_graph=True, in torch.func and where "
    "mean or rstd has a gradient: normgrad.torch.convert(model) makes modules that we take"
)


def register() -> Any:
    """Put our kernels into torch's tables, until the library that this returns is destroyed."""
    _keep_in_pieces()
    # Kernels are looked up before ours shadow them.
    found = {
        (name, key): _torchs(name, key)
        for key in ("CPU", "CUDA")
        for name in (*BACKWARD, *FORWARD)
        if name not in (_ONLY_CUDA if key == "CPU" else _ONLY_CPU)
    }
    _kept["backward"] = found["cudnn_batch_norm_backward", "CUDA"]
    library = open_library("aten", "IMPL")
    with warnings.catch_warnings():
        # Torch says once that a kernel was replaced: that is what the user asked for.
        warnings.filterwarnings("ignore", message=_REPLACED)
        for (name, key), original in found.items():
            if original is not None or (key == "CPU" and name in BACKWARD):
                library.impl(name, _ours(name, key, original), key, with_keyset=True)
        for name in BACKWARD:
            for key, reason in _UNTAKEN.items():
                original = _kernel(name, key)
                if original is not None:
                    fate = (name, _device(key), "torch", reason)
                    library.impl(name, _counted(fate, original), key, with_keyset=True)
        for key in ("AutogradCPU", "AutogradCUDA"):
            original = _kernel("native_group_norm", key)
            if original is not None:
                watched = _watched(_device(key), original)
                library.impl("native_group_norm", watched, key, with_keyset=True)
        for name in CPU_FORWARD:
            if _kernel(name, "CPU") is None:
                library.impl(name, _lent(name), "CPU")
    return library


_ALL: Final[tuple[int, Fate]] = (0, ("", "", "", ""))


def _kernel(name: str, key: str) -> Any:
    """Torch's kernel for an operator; None where it has none."""
    try:
        # Parsed: among torch's names in Python MkldnnCPU is missing.
        number: Any = torch._C._parse_dispatch_key(key)
        return torch.library.get_kernel(f"aten::{name}", number)
    except RuntimeError:
        return None


def _torchs(name: str, key: str) -> _Kernel | None:
    """Torch's kernel as a function; cuDNN's backward pass, if it has its notes."""
    kernel = _kernel(name, key)
    if kernel is None:
        return None
    boxed: _Kernel = kernel.call_boxed
    if name != "cudnn_batch_norm_backward":
        return boxed
    plain = _kernel("native_batch_norm_backward", key).call_boxed

    def backward(keyset: Any, *args: Any) -> Any:
        x, dy, weight, running_mean, running_var, mean, rstd, eps, reserve = args
        if reserve.numel():
            return boxed(keyset, *args)
        statistics = (running_mean, running_var, mean, rstd)
        return plain(keyset, dy, x, weight, *statistics, True, eps, [True, True, True])

    return backward


_kept: Final[dict[str, Any]] = {}


def keep_backward() -> None:
    """Before ours go: a backward pass of cuDNN's may still come whose forward pass was ours."""
    if State.reserves and "library" not in _kept:
        library = open_library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_REPLACED)
            name = "cudnn_batch_norm_backward"
            library.impl(name, _kept["backward"], "CUDA", with_keyset=True)
        _kept["library"] = library


def _keep_in_pieces() -> None:
    """A backward pass for RMS norm on the CPU, for good: what went forward there comes back.

    Torch takes the operator apart there, both ways, until it has a kernel.
    """
    name = "_fused_rms_norm_backward"
    if "in pieces" not in _kept and _kernel(name, "CPU") is None:
        library = open_library("aten", "IMPL")
        library.impl(name, adapters.rms_norm_backward_in_pieces, "CPU")
        _kept["in pieces"] = library


def _device(key: str) -> str:
    return "cuda" if key.endswith("CUDA") else "cpu"


def _ours(name: str, key: str, original: _Kernel | None) -> _Kernel:
    forward = name in FORWARD
    compute = getattr(forward_adapters if forward else adapters, name.lstrip("_"))
    device = _device(key)
    place = (FORWARD if forward else BACKWARD)[name]
    norm = next(one for one in NORMS if one in name)
    left = (name, device, "torch", f"enable() was told to leave {norm}")
    least = {} if original is None else _least(name, device)
    taken = (name, device, "normgrad", "")
    reserves = name == "cudnn_batch_norm"
    # Why torch took a call, by what its arguments look like: finding out takes 150 us each time.
    refused: dict[Any, str] = {}

    # No guard for the device: the backend launches on that of the tensors.
    def kernel(keyset: Any, *args: Any) -> Any:
        now = State.now
        if not now.on or norm not in now.norms or (forward and not now.forward):
            if original is None:
                raise _missing(name)
            if now.on and norm not in now.norms:
                count(left)
            return original(keyset, *args)
        backend = now.backend
        if backend is None:
            x = args[place]
            elements, small = least.get(x.dtype, _ALL)
            if x.numel() < elements:
                count(small)
                assert original is not None  # or `least` were empty
                return original(keyset, *args)
            backend = device
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
                if reserves:
                    State.reserves = True
                count(taken)
                return results
        count((name, device, "torch", reason))
        assert original is not None  # or the error had been raised
        return original(keyset, *args)

    return kernel


def _least(name: str, device: str) -> dict[torch.dtype, tuple[int, Fate]]:
    """By type, from how many elements on we take an operator, and what happens to smaller calls."""
    limits, least = (LEAST_FORWARD if name in FORWARD else LEAST), {}
    if "rms_norm" in name:
        limits = LEAST_RMS_NORM
    for dtype, elements in limits[device].items():
        kind = str(dtype).removeprefix("torch.")
        reason = (
            f"too small to gain: under {elements} elements of {kind} "
            f"(enable(backend={device!r}) takes these too)"
        )
        least[dtype] = (elements, (name, device, "torch", reason))
    return least


def _counted(fate: Fate, original: Any) -> Callable[..., Any]:
    """Torch's own kernel, whose calls are counted while we are enabled."""

    def kernel(keyset: Any, *args: Any) -> Any:
        if State.now.on:
            count(fate)
        return original.call_boxed(keyset, *args)

    return kernel


def _watched(device: str, original: Any) -> Callable[..., Any]:
    """Torch's group norm, of which backward passes are counted that call no operator of its own.

    That costs a forward pass 4 us (a small one takes 7 to 11).
    """
    fate = ("native_group_norm_backward", device, "torch", _IN_PIECES)

    def note(grads: Any) -> None:
        apart = torch.is_grad_enabled() or any(one is not None for one in grads[1:])
        if apart and State.now.on and not torch.compiler.is_compiling():
            count(fate)

    def kernel(keyset: Any, *args: Any) -> Any:
        results = original.call_boxed(keyset, *args)
        if State.now.on:
            node = results[0].grad_fn
            if node is not None:
                node.register_prehook(note)
        return results

    return kernel


def _lent(name: str) -> Callable[..., Any]:
    """A forward operator that torch has on the CPU while we are enabled."""
    compute = getattr(cpu_sync, name)
    taken = (name, "cpu", "normgrad", "")

    def kernel(*args: Any) -> Any:
        if not State.now.on:
            raise _missing(name)
        count(taken)
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
