"""A C program that calls every operator rightly and then wrongly, made of the operators' tables."""

from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.table import SHAPES
from normgrad.infiniop.operators import OPERATORS
from normgrad.infiniop.table import SHAPES as INFINI_SHAPES

HEAD = """
#include "acl/acl.h"
#include "infinirt.h"
%s
#include <stdio.h>
#include <stdlib.h>

static int wrong;
static void expect(const char* what, long got, long want)
{
    if (got != want) {
        printf("%%s: %%ld, should be %%ld: %%s\\n", what, got, want, aclGetRecentErrMsg());
        wrong++;
    }
}
static void refused(const char* what, long got)
{
    if (!got) {
        printf("%%s: was accepted\\n", what);
        wrong++;
    }
}
static int checked;
/* Exactly as many bytes: one more is seen. In checked mode memory has an owner. */
static void* room(size_t size)
{
    void* made = NULL;
    if (!checked)
        return malloc(size);
    aclrtMalloc(&made, size, ACL_MEM_MALLOC_NORMAL_ONLY);
    return made;
}
static void give_back(void* made)
{
    if (!checked)
        free(made);
    else if (made)
        aclrtFree(made);
}
static float* numbers(int count)
{
    float* made = room((size_t)count * sizeof *made);
    for (int i = 0; i < count; i++)
        made[i] = 1.0f + (float)(i %% 7);
    return made;
}
static aclTensor* tensor(const int64_t* shape, int rank, void* data)
{
    return aclCreateTensor(shape, (uint64_t)rank, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape,
                           (uint64_t)rank, data);
}
"""


def count(shape):
    total = 1
    for size in shape:
        total *= size
    return total


def aclnn(page):
    """One function: a right call, then wrong ones; each frees what it took."""
    lines = [f"static void {page.name}_misused(void)", "{"]
    names = []
    for one in page.parameters:
        if one.is_tensor:
            shape = SHAPES[one.shape][1]
            listed = ", ".join(map(str, shape))
            lines.append(f"    const int64_t {one.name}_shape[] = {{{listed}}};")
            lines.append(f"    float* {one.name}_data = numbers({count(shape)});")
            made = f"tensor({one.name}_shape, {len(shape)}, {one.name}_data)"
            lines.append(f"    aclTensor* {one.name} = {made};")
            names.append(one.name)
        elif one.kind in ("mask", "sizes"):
            kind = {"mask": "bool", "sizes": "int64_t"}[one.kind]
            create = {"mask": "aclCreateBoolArray", "sizes": "aclCreateIntArray"}[one.kind]
            values = ", ".join(str(value).lower() for value in one.example)
            lines.append(f"    const {kind} {one.name}_values[] = {{{values}}};")
            what = create.replace("Create", "")
            lines.append(
                f"    {what}* {one.name} = {create}({one.name}_values, {len(one.example)});"
            )
            names.append(one.name)
        else:
            names.append(f'"{one.example}"' if one.kind == "text" else str(one.example).lower())
    names = [f"(char*){name}" if name.startswith('"') else name for name in names]
    lines += [
        "    uint64_t size = 77;",
        "    aclOpExecutor* executor = NULL;",
        f'    expect("{page.name}", {stage(page, names)}, 0);',
        "    void* workspace = size ? room(size) : NULL;",
        f'    expect("{page.name} 2", {page.name}(workspace, size, executor, NULL), 0);',
        f'    expect("{page.name} spent", {page.name}(workspace, size, executor, NULL), 561103);',
        f'    expect("{page.name} null", {page.name}(workspace, size, NULL, NULL), 161001);',
        f'    refused("{page.name} no executor", {page.name}(workspace, size, '
        "(aclOpExecutor*)workspace, NULL));",
    ]
    for place, one in page.pointers:
        for bad in ("(void*)0x1234", "(void*)executor", "(void*)(uintptr_t)-8"):
            call = stage(page, [bad if at == place else name for at, name in enumerate(names)])
            lines.append(f'    refused("{page.name} {one.name} {bad}", {call});')
    lines += [
        "    size = 77;",
        f'    expect("{page.name} no size", {stage(page, names, "NULL")}, 161001);',
        f'    expect("{page.name} nowhere", {stage(page, names, "&size", "NULL")}, 161001);',
        '    expect("untouched", (long)size, 77);',
        f'    expect("{page.name} once more", {stage(page, names)}, 0);',
    ]
    last = [one.name for one in page.parameters if one.is_tensor][-1]
    lines += [
        f"    aclDestroyTensor({last});",  # it still serves the executor
        f'    refused("{page.name} destroyed", {stage(page, names, "&size", "&other")});',
        f'    expect("{page.name} after", {page.name}(workspace, size, executor, NULL), '
        "checked ? 361001 : 0);",
        "    give_back(workspace);",
    ]
    for one in page.parameters:
        if one.is_tensor:
            if one.name != last:
                lines.append(f"    aclDestroyTensor({one.name});")
            lines.append(f"    give_back({one.name}_data);")
        elif one.kind in ("mask", "sizes"):
            kind = {"mask": "Bool", "sizes": "Int"}[one.kind]
            lines.append(f"    aclDestroy{kind}Array({one.name});")
    lines.insert(2, "    aclOpExecutor* other = NULL;")
    return "\n".join([*lines, "}"])


def stage(page, names, size="&size", executor="&executor"):
    casts = [
        f"({one.declared}){name}" if name.startswith("(void*)") else name
        for one, name in zip(page.parameters, names, strict=True)
    ]
    return f"{page.name}GetWorkspaceSize({', '.join(casts)}, {size}, {executor})"


def infiniop(operator):
    """The same of infiniop's four functions."""
    name, tensors = operator.name, operator.tensors
    lines = [f"static void infiniop{name}_misused(void)", "{", "    infiniopHandle_t handle;"]
    lines.append("    infiniopCreateHandle(&handle);")
    for one in tensors:
        shape = INFINI_SHAPES[one.shape][1]
        listed = ", ".join(map(str, shape))
        lines += [
            f"    const size_t {one.name}_shape[] = {{{listed}}};",
            f"    float* {one.name} = numbers({count(shape)});",
            f"    infiniopTensorDescriptor_t {one.name}_desc;",
            f"    infiniopCreateTensorDescriptor(&{one.name}_desc, {len(shape)}, "
            f"{one.name}_shape, NULL, INFINI_DTYPE_F32);",
        ]
    numbers = "".join(f", {one.example}f" for one in operator.numbers)
    described = [f"{one.name}_desc" for one in tensors]
    make = f"infiniopCreate{name}Descriptor"
    data = [one.name for one in tensors]
    lines += [
        f"    {operator.descriptor} desc = NULL, other = NULL;",
        "    size_t size = 0;",
        f'    expect("{name}", {make}(handle, &desc, {", ".join(described)}{numbers}), 0);',
        f'    expect("{name} size", infiniopGet{name}WorkspaceSize(desc, &size), 0);',
        "    void* workspace = size ? room(size) : NULL;",
        f'    expect("{name} run", {run(name, data)}, 0);',
        f'    expect("{name} short", size ? {run(name, data, size="size - 1")} : 13, 13);',
        f'    expect("{name} null", {run(name, data, desc="NULL")}, 3);',
    ]
    for place, one in enumerate(tensors):
        for bad in ("NULL", "(void*)1"):
            call = run(name, [bad if at == place else each for at, each in enumerate(data)])
            lines.append(f'    expect("{name} {one.name} {bad}", {call}, 3);')
        null = ("NULL",) if one.required else ()
        for bad in (*null, "(infiniopTensorDescriptor_t)desc", "(infiniopTensorDescriptor_t)8"):
            given = [bad if at == place else each for at, each in enumerate(described)]
            call = f"{make}(handle, &other, {', '.join(given)}{numbers})"
            lines.append(f'    expect("{name} {one.name}_desc {bad}", {call}, 3);')
    lines += [
        f'    expect("{name} untouched", other == NULL, 1);',
        "    for (int i = 0; i < 2; i++)",
        f'        expect("{name} destroy", infiniopDestroy{name}Descriptor(desc), i ? 3 : 0);',
        f'    expect("{name} destroyed", {run(name, data)}, 3);',
        "    give_back(workspace);",
    ]
    for one in tensors:
        lines.append(f"    infiniopDestroyTensorDescriptor({one.name}_desc);")
        lines.append(f"    give_back({one.name});")
    return "\n".join([*lines, "    infiniopDestroyHandle(handle);", "}"])


def run(name, data, desc="desc", size="size"):
    return f"infiniop{name}({desc}, workspace, {size}, {', '.join(data)}, NULL)"


def program(places):
    """The whole program; ``places`` are the headers."""
    includes = "\n".join(f'#include "{place}"' for place in places)
    functions = [aclnn(page) for page in PAGES] + [infiniop(one) for one in OPERATORS]
    calls = [f"    {page.name}_misused();" for page in PAGES]
    calls += [f"    infiniop{one.name}_misused();" for one in OPERATORS]
    body = "\n".join(calls)
    end = '    printf(wrong ? "%d wrong\\n" : "right\\n", wrong);\n    return wrong != 0;\n}\n'
    start = "    checked = getenv(\"NORMGRAD_CHECKED\")[0] == '1';\n    aclrtSetDevice(0);"
    main = f"int main(void)\n{{\n{start}\n{body}\n{end}"
    return "\n\n".join([HEAD % includes, *functions, main])
