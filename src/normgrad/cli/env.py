"""``normgrad env``: what this machine has. It never fails."""

import argparse
import importlib.metadata
import platform
from pathlib import Path
from typing import Final

from normgrad import __version__, backends
from normgrad.backends.base import unusable
from normgrad.core.cpu_count import cores

_PACKAGES = (
    "numpy",
    "ml_dtypes",
    "numba",
    "llvmlite",
    "torch",
    "triton",
    "cffi",
    "matplotlib",
    "jax",
    "cupy",
    "liger-kernel",
    "flag-gems",
)
_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_bf16",
    "avx512_fp16",
    "asimd",
    "sve",
)


EXAMPLES: Final = (
    "normgrad env",
    "normgrad env | grep -A3 backends:",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """No options."""


def run(args: argparse.Namespace) -> int:
    """Print what is known, a line each."""
    for name, value in environment().items():
        if isinstance(value, dict):
            print(f"{name}:")
            for key, entry in value.items():
                print(f"  {key}: {entry}")
        else:
            print(f"{name}: {value}")
    return 0


def environment() -> dict[str, object]:
    """Versions, hardware and backends, as text."""
    return {
        "normgrad": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "cpu": _cpu(),
        "cpu features": " ".join(_features()) or "unknown",
        "cores": cores(),
        "threads": _threads(),
        "gpu": _gpu(),
        "backends": {name: _state(name) for name in backends.NAMES},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except Exception:
        return "not installed"


def _cpuinfo(field: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == field:
            return value.strip()
    return ""


def _cpu() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def _features() -> list[str]:
    present = (_cpuinfo("flags") or _cpuinfo("Features")).split()
    return [feature for feature in _FEATURES if feature in present]


def _threads() -> object:
    """How many a call on the CPU may use."""
    try:
        from normgrad.backends.cpu.threads import pool

        return pool.thread_count()
    except Exception as error:  # no Numba, mostly
        return f"unknown ({error})"


def _gpu() -> str:
    reason = unusable("torch")
    if reason is not None:
        return f"unknown, as {reason}"
    try:
        import torch

        if not torch.cuda.is_available():
            return "none that torch can use"
        properties = torch.cuda.get_device_properties(0)
        return (
            f"{properties.name}, {properties.multi_processor_count} multiprocessors, "
            f"{properties.total_memory >> 30} GiB, CUDA {torch.version.cuda}"
        )
    except Exception as error:
        return f"unknown ({error})"


def _state(name: str) -> str:
    try:
        return backends.get(name).unavailable() or "works"
    except Exception as error:
        return f"broken: {error}"
