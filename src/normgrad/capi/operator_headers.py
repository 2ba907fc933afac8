"""The headers that declare the operators, made of the interfaces' tables."""

import functools
import re
import textwrap
from typing import Final

from normgrad.aclnn.pages import PAGES
from normgrad.aclnn.table import Page
from normgrad.infiniop.operators import OPERATORS
from normgrad.infiniop.table import Operator

_WIDTH: Final = 100
_UNBROKEN: Final = "\xa0"  # a space where no line ends
_HEADER: Final = """\
/* {title} Part of normgrad. */
#ifndef NORMGRAD_{guard}_H
#define NORMGRAD_{guard}_H

{includes}
#ifdef __cplusplus
extern "C" {{
#endif

{body}
#ifdef __cplusplus
}}
#endif

#endif
"""
_EVERYTHING: Final = """\
/* Handles, tensor descriptors, and every operator. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_H
#define NORMGRAD_INFINIOP_H

{includes}
#endif
"""
_ACLNN: Final = """\
/* {title}
 * Stage 1 validates and plans; a failure leaves *workspaceSize and *executor untouched. */
{stage_1}

/* Stage 2 computes. The executor is spent by it unless it was made repeatable. */
{stage_2}
"""
_INFINIOP: Final = """\
typedef struct InfiniopDescriptor* {desc};

/* The tensor descriptors may be destroyed right after. A failure leaves *desc_ptr untouched. */
{create}
{size}

/* A descriptor serves any number of computations, also from several threads at once. */
{compute}
{destroy}
"""


def snake(name: str) -> str:
    """An operator's name as files have it: RMSNorm is rms_norm."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def header_of(page: Page) -> str:
    """The file that declares an aclnn operator."""
    name = page.header or snake(page.name.removeprefix("aclnn"))
    return f"aclnnop/aclnn_{name}.h"


@functools.cache
def operator_headers() -> dict[str, str]:
    """Each file's text, by its place among the headers."""
    pages: dict[str, list[Page]] = {}
    for page in PAGES:
        pages.setdefault(header_of(page), []).append(page)
    found = {place: _aclnn(place, listed) for place, listed in pages.items()}
    found |= {f"infiniop/ops/{snake(one.name)}.h": _infiniop(one) for one in OPERATORS}
    includes = ["infiniop/handle.h", "infiniop/tensor_descriptor.h"]
    includes += [place for place in found if place.startswith("infiniop/")]
    found["infiniop.h"] = _EVERYTHING.format(includes=_including(sorted(includes)))
    return found


def _aclnn(place: str, pages: list[Page]) -> str:
    parts = []
    for page in pages:
        arguments = [f"{one.declared} {one.name}" for one in page.parameters]
        arguments += ["uint64_t* workspaceSize", "aclOpExecutor** executor"]
        second = ["void* workspace", "uint64_t workspaceSize", "aclOpExecutor* executor"]
        parts.append(
            _ACLNN.format(
                title=f"{page.title.replace('``', '')}.",
                stage_1=_function("aclnnStatus", f"{page.name}GetWorkspaceSize", arguments),
                stage_2=_function("aclnnStatus", page.name, [*second, "aclrtStream stream"]),
            )
        )
    title = " and ".join(page.name for page in pages)
    return _whole(place, f"{title}.", "\n".join(parts), ["aclnn/aclnn_base.h"])


def _infiniop(operator: Operator) -> str:
    name, desc = operator.name, operator.descriptor
    described = [f"infiniopTensorDescriptor_t {one.name}_desc" for one in operator.tensors]
    numbers = [f"float {one.name}" for one in operator.numbers]
    data = [f"{'' if one.written else 'const '}void* {one.name}" for one in operator.tensors]
    create = ["infiniopHandle_t handle", f"{desc}* desc_ptr", *described, *numbers]
    run = [f"{desc} desc", "void* workspace", "size_t workspace_size", *data, "void* stream"]
    status = "infiniStatus_t"
    body = _INFINIOP.format(
        desc=desc,
        create=_function(status, f"infiniopCreate{name}Descriptor", create),
        size=_function(status, f"infiniopGet{name}WorkspaceSize", [f"{desc} desc", "size_t* size"]),
        compute=_function(status, f"infiniop{name}", run),
        destroy=_function(status, f"infiniopDestroy{name}Descriptor", [f"{desc} desc"]),
    )
    place = f"infiniop/{snake(name)}.h"
    title = f"{operator.title[0].upper()}{operator.title[1:]}."
    return _whole(place, title, body, ["infiniop/operator_descriptor.h"])


def _function(result: str, name: str, arguments: list[str]) -> str:
    whole = [argument.replace(" ", _UNBROKEN) for argument in arguments]
    listed = textwrap.fill(
        f"{', '.join(whole)});", _WIDTH, initial_indent="    ", subsequent_indent="    "
    )
    return f"{result} {name}(\n{listed.replace(_UNBROKEN, ' ')}"


def _whole(place: str, title: str, body: str, includes: list[str]) -> str:
    guard = re.sub(r"\W", "_", place.removesuffix(".h")).upper()
    return _HEADER.format(title=title, guard=guard, includes=_including(includes), body=body)


def _including(places: list[str]) -> str:
    return "".join(f'#include "{place}"\n' for place in places)
