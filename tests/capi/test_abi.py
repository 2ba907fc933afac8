"""Headers: valid C11 and C++11, the published values, sizes and prototypes."""

import re
import subprocess
from enum import IntEnum
from pathlib import Path

import pytest

from normgrad.aclnn import constants as acl
from normgrad.aclnn.status import Status
from normgrad.capi import signatures
from normgrad.core.spec import ROLES
from normgrad.infiniop import constants as infini

HERE = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")
LANGUAGES = {"c11": ("gcc", "c"), "c++11": ("g++", "cpp"), "c++17": ("g++", "cpp")}
ENUMS = (
    *(acl.aclDataType, acl.aclFormat, acl.aclrtMemcpyKind, acl.aclrtMemMallocPolicy),
    *(
        acl.aclSysParamOpt,
        acl.aclrtRunMode,
        acl.aclrtMemAttr,
        acl.aclrtEventRecordedStatus,
        Status,
        infini.infiniStatus_t,
        infini.infiniDevice_t,
    ),
    *(
        infini.infiniDtype_t,
        infini.infinirtMemcpyKind_t,
        infini.infinirtEventStatus_t,
        infini.infinirtEventFlags_t,
    ),
)
SIZES = {
    "aclnnStatus": 4,
    "aclError": 4,
    "aclrtStream": 8,
    "aclrtContext": 8,
    "aclFloat16": 2,
    "aclDataType": 4,
    "aclFormat": 4,
    "infiniStatus_t": 4,
    "infiniDtype_t": 4,
    "infiniopHandle_t": 8,
    "infinirtStream_t": 8,
}
# Programs include what they need, not only the header of all.
HEADERS = (
    *("acl/acl.h", "acl/acl_base.h", "acl/acl_rt.h", "aclnn/acl_meta.h", "aclnn/aclnn_base.h"),
    *("infinicore.h", "infinirt.h", "infiniop.h", "infiniop/handle.h"),
    *("infiniop/operator_descriptor.h", "infiniop/tensor_descriptor.h"),
    "infiniop/ops/batch_norm_backward.h",
)


def includes(*names):
    listed = names or signatures.headers()
    return "".join(f'#include "{name}"\n' for name in listed)


def compiles(text, standard, folder, *flags):
    command, suffix = LANGUAGES[standard]
    source = folder / f"program.{suffix}"
    source.write_text(text)
    line = [command, f"-std={standard}", *STRICT, str(source), *flags, "-o", str(folder / "out")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", HEADERS)
def test_headers_have_the_vendors_names(name):
    assert name in signatures.headers()


@pytest.mark.parametrize("standard", LANGUAGES)
def test_every_header_stands_alone(capi, tmp_path, standard):
    for name in signatures.headers():
        twice = includes(name, name) + "int only;\n"
        compiles(twice, standard, tmp_path, f"-I{capi.prefix}/include", "-c")


@pytest.mark.parametrize("standard", [key for key in LANGUAGES if "++" in key])
def test_every_header_inside_of_extern_c(capi, tmp_path, standard):
    for name in signatures.headers():
        wrapped = f'extern "C" {{\n{includes(name)}}}\nint only;\n'
        compiles(wrapped, standard, tmp_path, f"-I{capi.prefix}/include", "-c")


@pytest.mark.parametrize("standard", LANGUAGES)
def test_values_sizes_and_prototypes(capi, tmp_path, standard):
    word = "_Static_assert" if standard == "c11" else "static_assert"
    lines = [includes(), "#include <stdio.h>"]
    for enum in ENUMS:
        assert issubclass(enum, IntEnum)
        lines += [f'{word}({m.name} == {m.value}, "{m.name}");' for m in enum]
    lines += [f'{word}(sizeof({name}) == {size}, "{name}");' for name, size in SIZES.items()]
    for struct in ("InfiniopHandle", "InfiniopDescriptor"):
        for field, offset in (("device", 0), ("device_id", 4)):
            lines.append(f'{word}(offsetof(struct {struct}, {field}) == {offset}, "{struct}");')
    lines.append(
        "#define CHECK(result, name, arguments) extern result (*const p_##name) arguments;"
    )
    lines.append('#include "signatures.inc"\n#undef CHECK')
    lines.append(
        "#define CHECK(result, name, arguments) result (*const p_##name) arguments = name;"
    )
    lines.append('#include "signatures.inc"')
    lines.append("int main(void) { return 0; }")
    flags = [f"-I{HERE}", f"-I{capi.prefix}/include"]
    flags += [f"-L{capi.prefix}/lib64", f"-L{capi.prefix}/lib", "-lascendcl", "-linfiniop"]
    # Linked, too: every function that the headers promise is in the library.
    compiles("\n".join(lines) + "\n", standard, tmp_path, *flags)


def test_the_published_list_is_whole():
    listed = re.findall(r"CHECK\([\w*\s]+?,\s(\w+),", (HERE / "signatures.inc").read_text())
    ours = {"infiniGetRecentErrMsg"}
    assert {function.name for function in signatures.functions()} - ours == set(listed)


def test_only_the_interface_is_exported(capi):
    shown = subprocess.run(
        ["nm", "-D", "--defined-only", str(capi.prefix / "lib64" / "libascendcl.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[-1] for line in shown.splitlines()}
    assert exported == {function.name for function in signatures.functions()}


def test_headers_carry_the_names_of_the_python_constants():
    text = "".join(signatures.headers().values())
    for enum in ENUMS:
        for member in enum:
            assert re.search(rf"\b{member.name}\b", text), member.name


def test_python_has_the_numbers_of_the_headers():
    text = "".join(signatures.headers().values())
    numbers = re.findall(r"^#define (ACL\w+) (\d+)$", text, re.MULTILINE)
    assert len(numbers) > 10
    for name, value in numbers:
        assert getattr(acl, name) == int(value), name


def test_the_library_counts_the_roles_as_the_core_does():
    header = (signatures.SOURCES / "host.h").read_text()
    assert re.findall(r"NORMGRAD_ROLES = (\d+)", header) == [str(len(ROLES))]
    assert set(re.findall(r"int64_t \w+\[(\d+)\]", header)) == {str(len(ROLES))}
