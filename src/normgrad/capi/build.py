"""Makes the C libraries on the user's machine, for the interpreter that runs this."""

import contextlib
import importlib.util
import io
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, Final

import normgrad
from normgrad.capi import generate, packages, signatures
from normgrad.core.errors import NormgradError

LIBRARY: Final = "libnormgrad_capi.so"
# The names that programs link, in the folders where they look: all of them are one library, so
# that a process never has two. It has no soname: a program keeps the name it was linked with.
LINKS: Final = {
    "lib64": ("libascendcl.so", "libnnopbase.so", "libopapi_nn.so", "libopapi.so"),
    "lib": ("libinfiniop.so", "libinfinirt.so"),
}
_FLAGS: Final = (
    *("-std=c11", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", "-Werror=implicit-function-declaration"),
)
# What would end a path early: in -Wl and in a RPATH, in CMake's lists, as quotes of pkg-config's.
_BREAKING: Final = ",:;'\"\\"


class BuildError(NormgradError):
    """The libraries cannot be built here, or were not."""


def default_prefix() -> Path | None:
    """``NORMGRAD_CAPI_PREFIX``, else inside the virtual environment, else in the user's folder.

    None for a user who has none, as in a container that runs under a number.
    """
    wish = os.environ.get("NORMGRAD_CAPI_PREFIX")
    if wish:
        return Path(wish)
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix) / "normgrad-capi"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".local" / "share" / "normgrad" / f"capi-{sys.implementation.cache_tag}"


def prefix_option(prefix: Path) -> str:
    """What the two commands must be told about an absolute prefix; nothing of the default."""
    default = default_prefix()
    return "" if default and prefix == default.absolute() else f" --prefix {prefix}"


def compiler() -> list[str]:
    """The C compiler: ``CC``, else cc, gcc or clang. Raises where there is none."""
    wish = os.environ.get("CC", "")
    try:
        words = shlex.split(wish)
    except ValueError as error:
        msg = f"CC must be a command, got {wish!r}: {error}"
        raise BuildError(msg) from error
    for command in [words] if words else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    msg = "there is no C compiler: install gcc or clang, or set CC"
    if words:
        msg = f"CC must be a C compiler, got {wish!r}: there is no program {words[0]!r}"
    raise BuildError(msg)


def checked_prefix(prefix: Path | None) -> Path:
    """The absolute path; raises where there is none or the flags made of it would not work."""
    if prefix is None:
        msg = "this user has no home directory: give --prefix DIR, or set NORMGRAD_CAPI_PREFIX"
        raise BuildError(msg)
    prefix = prefix.absolute()
    if any(character.isspace() or character in _BREAKING for character in str(prefix)):
        listed = f"no spaces and none of {_BREAKING}"
        msg = f"the prefix must have {listed}, they break compiler flags: {str(prefix)!r}"
        raise BuildError(msg)
    if prefix.exists() and not prefix.is_dir():
        msg = f"the prefix must be a directory, or none yet, got a file: {str(prefix)!r}"
        raise BuildError(msg)
    return prefix


def build(prefix: Path, extra_flags: tuple[str, ...] = ()) -> None:
    """Write headers, libraries, pkg-config file and CMake package under ``prefix``.

    What is there stays as it is until everything has been made.
    """
    prefix = checked_prefix(prefix)
    if sys.platform != "linux" or sys.maxsize < 2**32:
        msg = f"the C libraries need 64-bit Linux, this is {sys.platform}"
        raise BuildError(msg)
    include = sysconfig.get_paths()["include"]
    command = [*compiler(), *_FLAGS, *extra_flags, f"-I{include}"]
    if not (Path(include) / "Python.h").exists():
        msg = f"there is no Python.h in {include}: install Python's development files"
        raise BuildError(msg)
    ffi = _ffi()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_sources(folder)
        library = _compile_library(command, folder)
        module = _compile_module(command, folder, ffi)
        _install(prefix, library, module)


def _write_sources(folder: Path) -> None:
    signatures.write_headers(folder / "include")
    for source in signatures.SOURCES.glob("*.[ch]"):
        shutil.copy(source, folder)
    (folder / "table.h").write_text(generate.table_header(), encoding="utf-8")
    (folder / "forward.c").write_text(generate.forwards(), encoding="utf-8")
    built = {
        "EXECUTABLE": sys.executable,
        "LIBPYTHON": str(libpython()),
        "PYTHON": sysconfig.get_python_version(),
        "ROOTS": os.pathsep.join(_roots()),
        "VERSION": normgrad.__version__,
        "DIGEST": signatures.digest(),
    }
    lines = [f"#define NORMGRAD_{name} {_c_string(text)}\n" for name, text in built.items()]
    (folder / "built.h").write_text("".join(lines), encoding="utf-8")


def _roots() -> list[str]:
    """Where normgrad and what it needs are imported from: PYTHONPATH will not be asked again."""
    roots = [str(Path(normgrad.__file__).absolute().parent.parent)]
    for name in ("numpy", "_cffi_backend", "cffi", "numba", "torch", "triton"):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            place = Path(found.origin).absolute().parent
            roots.append(str(place.parent if found.submodule_search_locations else place))
    return list(dict.fromkeys(roots))


def libpython() -> Path:
    """The shared library of this interpreter; without one only Python itself can use ours."""
    name = sysconfig.get_config_var("INSTSONAME") or sysconfig.get_config_var("LDLIBRARY") or ""
    folders = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders.append(f"/usr/lib/{multiarch}")
    if ".so" not in name:
        name = f"libpython{sysconfig.get_python_version()}.so.1.0"
    for folder in folders:
        if folder and (Path(folder) / name).exists():
            return Path(folder) / name
    return Path(name)  # the loader may know more


def has_libpython() -> bool:
    """Whether a program without Python can start it."""
    return libpython().is_absolute()


def _compile_library(command: list[str], folder: Path) -> Path:
    sources = sorted(folder.glob("*.c"))
    target = folder / LIBRARY
    _run(
        [
            *command,
            f"-I{folder / 'include'}",
            f"-I{folder}",
            *map(str, sources),
            *("-shared", "-Wl,-z,defs", "-Wl,-z,nodelete", "-ldl", "-lm", "-o", str(target)),
        ]
    )
    return target


def _ffi() -> Any:
    try:
        from cffi import FFI
    except ImportError as error:
        msg = f"cffi is missing ({error}): pip install cffi"
        raise BuildError(msg) from error
    return FFI()


def _compile_module(command: list[str], folder: Path, ffi: Any) -> Path:
    ffi.cdef(generate.bridge_cdef())
    ffi.set_source(signatures.MODULE, generate.bridge_source())
    source = folder / f"{signatures.MODULE}.c"
    with contextlib.redirect_stdout(io.StringIO()):
        ffi.emit_c_code(str(source))
    target = folder / f"{signatures.MODULE}{sysconfig.get_config_var('EXT_SUFFIX')}"
    quiet = ["-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Wno-unused-function"]
    _run([*command, *quiet, f"-I{folder}", str(source), "-shared", "-o", str(target)])
    return target


def _install(prefix: Path, library: Path, module: Path) -> None:
    """All of it beside its place first, where a full disk harms nothing, then moved."""
    prefix.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=prefix) as name:
        made = Path(name)
        signatures.write_headers(made / "include")
        packages.write(made)
        folder = made / "lib64" / "normgrad"
        folder.mkdir(parents=True)
        shutil.copy(module, folder)
        shutil.copy(library, made / "lib64")
        _link(made)
        files = [path.relative_to(made) for path in made.rglob("*") if path.is_file()]
        for file in files:
            (prefix / file).parent.mkdir(parents=True, exist_ok=True)
            if (prefix / file).is_dir():
                msg = f"{prefix / file} is a folder: a file must go there"
                raise BuildError(msg)
        files.sort(key=lambda file: file.name == LIBRARY)  # the last: where it is, all the rest is
        for file in files:
            (made / file).replace(prefix / file)  # a running program keeps the old one


def _link(prefix: Path) -> None:
    for folder, names in LINKS.items():
        for name in names:
            place = prefix / folder / name
            place.symlink_to(LIBRARY if folder == "lib64" else f"../lib64/{LIBRARY}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{shlex.join(command)} failed:\n{done.stderr}"
        raise BuildError(msg)


def _c_string(text: str) -> str:
    escaped = "".join(f"\\{byte:03o}" for byte in os.fsencode(text))
    return f'"{escaped}"'
