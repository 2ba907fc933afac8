"""The two functions of an operator, made of its page: signature, docstring and all."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Final

from normgrad.aclnn.executor import StageOneAnswer, no_stage_one, stage_one, stage_two
from normgrad.aclnn.status import OPERATOR_CODES, Status, operator_status, reports
from normgrad.aclnn.table import SHAPES, Page, Parameter

StageOne = Callable[..., StageOneAnswer]
StageTwo = Callable[[int | None, int, Any, Any], Status]

_ANNOTATIONS: Final = {
    "sizes": "aclIntArray | None",
    "mask": "aclBoolArray | None",
    "bool": "bool",
    "int": "int",
    "int32": "int",
    "double": "float",
    "text": "str | None",
}
_WIDTH: Final = 90  # of a docstring's lines

_STAGE_1: Final = """\
Stage 1 of {name}: check everything and plan; nothing is written.

{title}{notes}

Args:
{arguments}

Returns:
    0, the bytes of workspace that stage 2 needs, and an executor; else a status, 0 and None:
    161001 for null where something must be given, 161002 for a broken rule{shapes}, 561003 where
    the product lacks the operator. ``aclGetRecentErrMsg()`` names argument, rule and value.

Example:
    >>> def of(*shape):
    ...     return aclnn.tensor(np.ones(shape, np.float32))
    >>> status, size, executor = aclnn.{name}GetWorkspaceSize(
{example}
    ... )
    >>> int(status)
    0
"""

_STAGE_2: Final = """\
Stage 2 of {name}: compute the results that were asked for.

The executor is spent by it, unless it was made repeatable.

Args:
    workspace: Device memory of as many bytes as stage 1 said; null where it said 0.
    workspaceSize: How many bytes there are.
    executor: Of ``{name}GetWorkspaceSize``.
    stream: Of ``aclrtCreateStream``, or null for the default stream.

Returns:
    0; 161001 for a null executor, or null where bytes are needed; 161002 for too small a
    workspace or an executor of another operator; 361001 where memory, a tensor or the stream is
    gone; 561103 for a spent executor.

Example:
    >>> aclnn.{name}(None, 0, None, None)
    <Status.ACLNN_ERR_PARAM_NULLPTR: 161001>
"""


def stages(page: Page) -> tuple[StageOne, StageTwo]:
    """Stage 1 and stage 2 under the page's name."""
    signature = inspect.Signature(
        [
            inspect.Parameter(
                one.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                annotation=_ANNOTATIONS.get(one.kind, "aclTensor | None"),
            )
            for one in page.parameters
        ],
        return_annotation="StageOneAnswer",
    )
    count = len(page.parameters)

    def first(*args: Any, **kwargs: Any) -> StageOneAnswer:
        if kwargs or len(args) != count:
            args = signature.bind(*args, **kwargs).args
        return stage_one(page, args)

    def second(workspace: int | None, workspaceSize: int, executor: Any, stream: Any) -> Status:
        return stage_two(page.name, workspace, workspaceSize, executor, stream)

    _name(first, f"{page.name}GetWorkspaceSize", _first_text(page))
    _name(second, page.name, _STAGE_2.format(name=page.name))
    made = reports(*OPERATOR_CODES, no_stage_one)(first)
    made.__signature__ = signature  # type: ignore[attr-defined]
    return made, operator_status(second)


def _name(function: Callable[..., Any], name: str, text: str) -> None:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "normgrad.aclnn"
    function.__doc__ = text


def _first_text(page: Page) -> str:
    return _STAGE_1.format(
        name=page.name,
        title=textwrap.fill(f"{page.title}.", _WIDTH),
        notes=f"\n\n{textwrap.fill(page.notes, _WIDTH)}" if page.notes else "",
        arguments="\n".join(_described(one) for one in page.parameters),
        shapes="" if page.shape_error == 161002 else f", {int(page.shape_error)} for a shape",
        example="\n".join(f"    ...     {_example(one)},  # {one.name}" for one in page.parameters),
    )


def _described(one: Parameter) -> str:
    return textwrap.fill(
        f"{one.name}: {one.about}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
    )


def _example(one: Parameter) -> str:
    if one.is_tensor and not (one.role or one.required):
        return "None"
    if one.is_tensor:
        return f"of{SHAPES[one.shape][1]}".replace(",)", ")")
    if one.kind in ("mask", "sizes"):
        make = {"mask": "aclCreateBoolArray", "sizes": "aclCreateIntArray"}[one.kind]
        return f"aclnn.{make}({list(one.example)}, {len(one.example)})"
    return repr(one.example)
