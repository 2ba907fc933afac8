"""How other tools find the libraries: flags, a pkg-config file and a CMake package."""

from pathlib import Path
from typing import Final

import normgrad

ACLNN: Final = ("ascendcl", "nnopbase", "opapi_nn")
INFINIOP: Final = ("infiniop", "infinirt")
_CMAKE = "normgrad-capi"


def compile_flags(prefix: Path) -> list[str]:
    """For the compiler."""
    return [f"-I{prefix}/include"]


def link_flags(prefix: Path, *, aclnn: bool = True, infiniop: bool = True) -> list[str]:
    """For the linker; a program finds the libraries again without LD_LIBRARY_PATH."""
    flags = []
    for asked, folder, names in ((aclnn, "lib64", ACLNN), (infiniop, "lib", INFINIOP)):
        if asked:
            flags += [f"-L{prefix}/{folder}", f"-Wl,-rpath,{prefix}/{folder}"]
            flags += [f"-l{name}" for name in names]
    return flags


def write(prefix: Path) -> None:
    """The pkg-config files and the CMake package."""
    folder = prefix / "lib64" / "pkgconfig"
    folder.mkdir(parents=True, exist_ok=True)
    for name, aclnn, infiniop in (
        ("normgrad-capi", True, True),
        ("normgrad-aclnn", True, False),
        ("normgrad-infiniop", False, True),
    ):
        libs = link_flags(Path("${prefix}"), aclnn=aclnn, infiniop=infiniop)
        text = f"""\
prefix={prefix}

Name: {name}
Description: Gradients of normalization layers behind the aclnn and infiniop interfaces
Version: {normgrad.__version__}
Cflags: {" ".join(compile_flags(Path("${prefix}")))}
Libs: {" ".join(libs)}
"""
        (folder / f"{name}.pc").write_text(text, encoding="utf-8")
    folder = prefix / "lib64" / "cmake" / _CMAKE
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{_CMAKE}-config.cmake").write_text(_CONFIG, encoding="utf-8")
    version = _VERSION.replace("@VERSION@", normgrad.__version__)
    (folder / f"{_CMAKE}-config-version.cmake").write_text(version, encoding="utf-8")


# Interface targets: a program keeps the names of the libraries that it was linked with.
_CONFIG = """\
get_filename_component(_normgrad "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_part aclnn infiniop)
  if(NOT TARGET normgrad::${_part})
    add_library(normgrad::${_part} INTERFACE IMPORTED)
    set_property(TARGET normgrad::${_part} PROPERTY
      INTERFACE_INCLUDE_DIRECTORIES "${_normgrad}/include")
  endif()
endforeach()
set_property(TARGET normgrad::aclnn PROPERTY INTERFACE_LINK_LIBRARIES
  "${_normgrad}/lib64/libascendcl.so;${_normgrad}/lib64/libnnopbase.so;\
${_normgrad}/lib64/libopapi_nn.so")
set_property(TARGET normgrad::infiniop PROPERTY INTERFACE_LINK_LIBRARIES
  "${_normgrad}/lib/libinfiniop.so;${_normgrad}/lib/libinfinirt.so")
unset(_normgrad)
unset(_part)
"""

_VERSION = """\
set(PACKAGE_VERSION "@VERSION@")
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
endif()
"""
