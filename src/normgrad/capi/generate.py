"""C code that follows from the headers: a table of functions, and their bodies."""

import re
from typing import Final

from normgrad.capi.signatures import SOURCES, Function, functions, headers, operators
from normgrad.infiniop.operators import OPERATORS

# What a function returns when Python cannot be reached.
_NO_PYTHON: Final = {
    "aclError": "ACL_ERROR_INTERNAL_ERROR",
    "aclnnStatus": "ACLNN_ERR_INNER",
    "infiniStatus_t": "INFINI_STATUS_INTERNAL_ERROR",
    "const char*": '""',
    "size_t": "0",
}
_MESSAGES: Final = ("aclGetRecentErrMsg", "infiniGetRecentErrMsg")
NATIVE: Final = ("aclFloatToFloat16", "aclFloat16ToFloat")  # C's own: float16.c
# infiniop's computations; a place in this list is an operator's number.
COMPUTE: Final = {f"infiniop{one.name}": one for one in OPERATORS}


def bridged() -> tuple[Function, ...]:
    """The functions that Python implements: all but two that return a message, and C's own."""
    others = (*_MESSAGES, *NATIVE)
    return tuple(function for function in functions() if function.name not in others)


def table() -> str:
    """The struct with a pointer to each function of Python's side."""
    lines = [f"    {f.bridge_result} (*{f.name})({_bridge_types(f)});" for f in bridged()]
    body = "\n".join(lines)
    recent = "    int (*recent)(uintptr_t buffer, size_t size);"
    return f"struct normgrad_table {{\n{body}\n{recent}\n}};\n"


def table_header() -> str:
    """``table.h``."""
    return (
        "#ifndef NORMGRAD_TABLE_H\n#define NORMGRAD_TABLE_H\n"
        "#include <stdbool.h>\n#include <stddef.h>\n#include <stdint.h>\n"
        f"{table()}extern struct normgrad_table normgrad_table;\n#endif\n"
    )


def forwards() -> str:
    """``forward.c``: the exported functions."""
    includes = [f'#include "{place}"' for place in headers()]
    parts = [*includes, '#include "run.h"', '#include "table.h"', ""]
    parts.append('#define EXPORT __attribute__((visibility("default")))')
    parts += [_forward(function) for function in functions() if function.name not in NATIVE]
    return "\n".join(parts) + "\n"


def _forward(function: Function) -> str:
    declared = ", ".join(f"{p.type} {p.name}" for p in function.parameters) or "void"
    head = f"EXPORT {function.result} {function.name}({declared})\n{{\n    NORMGRAD_WHOLE;\n"
    if function.name in _MESSAGES:
        return f"{head}    return normgrad_recent();\n}}\n"
    refused = _NO_PYTHON.get(function.result, "NULL")
    call = f"normgrad_table.{function.name}({_casts(function)})"
    lines = ["    if (!normgrad_ready())", f"        return {refused};"]
    if function.is_stage_two:
        arguments = ", ".join(p.name for p in function.parameters)
        number = operators().index(function.name)
        lines += [
            f"    aclnnStatus status = normgrad_stage_two({number}, {arguments});",
            "    if (status != NORMGRAD_TO_PYTHON)",
            "        return status;",
        ]
    elif function.name in COMPUTE:
        desc, workspace, size, *data, stream = [p.name for p in function.parameters]
        roles = ", ".join(map(str, COMPUTE[function.name].slots))
        number = list(COMPUTE).index(function.name)
        lines += [
            f"    const void* const data[] = {{{', '.join(data)}}};",
            f"    static const int8_t roles[] = {{{roles}}};",
            "    int to_python;",
            f"    infiniStatus_t status = normgrad_infiniop({number}, {desc}, {workspace}, {size}, "
            f"data, roles, {len(data)}, {stream}, &to_python);",
            "    if (!to_python)",
            "        return status;",
        ]
    lines += [
        f"    {function.result} answer = ({function.result}){call};",
        "    normgrad_watch_exit();",
        "    return answer;",
    ]
    return head + "\n".join(lines) + "\n}\n"


def _casts(function: Function) -> str:
    return ", ".join(f"({p.bridge}){p.name}" for p in function.parameters)


def _bridge_types(function: Function) -> str:
    return ", ".join(f"{p.bridge} {p.name}" for p in function.parameters) or "void"


def bridge_cdef() -> str:
    """What cffi must know: the shared structs, the library's functions, and those in Python."""
    shared = (SOURCES / "host.h").read_text(encoding="utf-8")
    begin, end = "/* cffi: begin */", "/* cffi: end */"
    structs = re.sub(
        r"/\*.*?\*/", "", shared.partition(begin)[2].partition(end)[0], flags=re.DOTALL
    )
    host = [f"{result} {name}({arguments});" for result, name, arguments in _host_functions()]
    python = [
        f'extern "Python" {f.bridge_result} py_{f.name}({_bridge_types(f)});' for f in bridged()
    ]
    python.append('extern "Python" int py_recent(uintptr_t buffer, size_t size);')
    host.append("void* malloc(size_t size);")
    host.append("void normgrad_fill(uintptr_t host, uintptr_t table);")
    return "\n".join([structs, *host, *python])


def bridge_source() -> str:
    """The C code beside cffi's own: calls into the library, and the table's filling."""
    calls = []
    for result, name, arguments in _host_functions():
        words = "" if arguments == "void" else arguments
        names = ", ".join(re.findall(r"(\w+)(?:,|$)", words))
        kept = "" if result == "void" else "return "
        calls.append(f"static {result} {name}({arguments}) {{ {kept}host->{name}({names}); }}")
    fills = [f"    table->{f.name} = py_{f.name};" for f in bridged()]
    declared = [f"static {f.bridge_result} py_{f.name}({_bridge_types(f)});" for f in bridged()]
    return "\n".join(
        [
            "#include <stdlib.h>",
            '#include "host.h"',
            '#include "table.h"',
            "static const struct normgrad_host* host;",
            *calls,
            *declared,
            "static int py_recent(uintptr_t buffer, size_t size);",
            "static void normgrad_fill(uintptr_t host_address, uintptr_t table_address)",
            "{",
            "    struct normgrad_table* table = (struct normgrad_table*)table_address;",
            "    host = (const struct normgrad_host*)host_address;",
            *fills,
            "    table->recent = py_recent;",
            "}",
        ]
    )


def _host_functions() -> list[tuple[str, str, str]]:
    """The members of ``struct normgrad_host``."""
    text = (SOURCES / "host.h").read_text(encoding="utf-8")
    body = re.search(r"struct normgrad_host \{(.*?)\n\};", text, re.DOTALL)
    assert body is not None
    return re.findall(r"(\w+) \(\*(\w+)\)\((.*?)\);", body[1])
