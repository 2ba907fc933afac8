"""What the library runs once, as soon as it has an interpreter."""

import importlib.machinery
import importlib.util
import os
from pathlib import Path
from types import ModuleType

import normgrad
from normgrad.capi import signatures
from normgrad.capi.bridge.functions import fill
from normgrad.capi.bridge.handles import Handles
from normgrad.device import memory


def start(library: str, version: str, digest: str, host: int, table: int) -> None:
    """Check that library and package belong together, then fill the library's table."""
    if version != normgrad.__version__ or digest != signatures.digest():
        built, here = f"{version} ({digest})", f"{normgrad.__version__} ({signatures.digest()})"
        msg = f"{library} was built by normgrad {built}, this is {here}: run 'normgrad build-capi'"
        raise RuntimeError(msg)
    # A C program may pass memory that it got elsewhere: addresses are looked up only on demand.
    memory.checked = os.environ.get("NORMGRAD_CHECKED") == "1"
    module = _load(Path(library).parent / "normgrad")
    fill(Handles(module.ffi, module.lib))
    module.lib.normgrad_fill(host, table)


def _load(folder: Path) -> ModuleType:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    path = folder / f"{signatures.MODULE}{suffix}"
    spec = importlib.util.spec_from_file_location(signatures.MODULE, path)
    if spec is None or spec.loader is None or not path.exists():
        msg = f"{path} is missing: run 'normgrad build-capi'"
        raise ImportError(msg)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
