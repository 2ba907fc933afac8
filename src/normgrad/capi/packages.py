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
    folder = prefix / "lib" / "pkgconfig"
    folder.mkdir(parents=True, exist_ok=True)
    for name, aclnn, infiniop in (
        ("normgrad-capi", True, True),
        ("normgrad-aclnn", True, False),
        ("normgrad-infiniop", False, True),
    ):
        libs = link_flags(Path("${prefix}"), aclnn=aclnn, infiniop=infiniop)
        # Found from the file's own place: the folder may be moved as a whole.
        text = f"""\
prefix=${{pcfiledir}}/../..

Name: {name}
Description: Gradients of normalization layers behind the aclnn and infiniop interfaces
Version: {normgrad.__version__}
Cflags: {" ".join(compile_flags(Path("${prefix}")))}
Libs: {" ".join(libs)}
"""
        (folder / f"{name}.pc").write_text(text, encoding="utf-8")
    folder = prefix / "lib" / "cmake" / _CMAKE
    folder.mkdir(parents=True, exist_ok=True)
    config = _CONFIG.replace("@ACLNN@", " ".join(ACLNN)).replace("@INFINIOP@", " ".join(INFINIOP))
    (folder / f"{_CMAKE}-config.cmake").write_text(config, encoding="utf-8")
    version = _VERSION.replace("@VERSION@", normgrad.__version__)
    (folder / f"{_CMAKE}-config-version.cmake").write_text(version, encoding="utf-8")


# By name, not by path: a program keeps the names of the libraries that it was linked with. CMake
# looks for packages under lib on every system, under lib64 on some.
_CONFIG = """\
get_filename_component(_normgrad "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_normgrad_aclnn lib64 @ACLNN@)
set(_normgrad_infiniop lib @INFINIOP@)
foreach(_part aclnn infiniop)
  if(NOT TARGET normgrad::${_part})
    list(POP_FRONT _normgrad_${_part} _folder)
    add_library(normgrad::${_part} INTERFACE IMPORTED)
    set_target_properties(normgrad::${_part} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${_normgrad}/include"
      INTERFACE_LINK_DIRECTORIES "${_normgrad}/${_folder}"
      INTERFACE_LINK_OPTIONS "-Wl,-rpath,${_normgrad}/${_folder}"
      INTERFACE_LINK_LIBRARIES "${_normgrad_${_part}}")
  endif()
endforeach()
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
