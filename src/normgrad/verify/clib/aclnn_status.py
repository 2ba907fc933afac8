"""What aclnn's stages must answer to wrong calls (products: Ascend 950, the widest)."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from normgrad.aclnn.constants import ACL_FLOAT16, ACL_FORMAT_NC1HWC0, ACL_INT32
from normgrad.aclnn.status import ACL_SUCCESS, INVALID, NULLPTR, SPENT
from normgrad.spec import Op
from normgrad.verify.cases import Case
from normgrad.verify.clib.aclnn_call import Argument, arguments_of
from normgrad.verify.clib.job import answered, arrays_of
from normgrad.verify.foreign import Outcome
from normgrad.verify.problem import HostArray, make_problem

if TYPE_CHECKING:
    from normgrad.verify.clib.aclnn import Aclnn

_CASES = {
    Op.BATCH_NORM: Case(id="status", op=Op.BATCH_NORM, shape=(2, 3, 4)),
    Op.BATCH_NORM_ELEMT: Case(id="status", op=Op.BATCH_NORM_ELEMT, shape=(2, 3, 4)),
    Op.LAYER_NORM: Case(id="status", op=Op.LAYER_NORM, shape=(2, 3, 4)),
    Op.GROUP_NORM: Case(id="status", op=Op.GROUP_NORM, shape=(2, 6, 4), num_groups=3),
}
_MARK = 0x5A5A
Change = Callable[[dict[str, Argument]], dict[str, Argument]]


def calls(op: Op) -> list[str]:
    """The names of an operator's checks."""
    return [*_changes(op), *_WHOLE]


def check(library: "Aclnn", op: Op, call: str, blank: Outcome) -> Outcome:
    """One of them."""
    arguments = {one.name: one for one in _usual(op)}
    if call in _WHOLE:
        return _WHOLE[call](library, op, list(arguments.values()), blank)
    want, change = _changes(op)[call]
    changed = list({**arguments, **change(arguments)}.values())
    placed = library.place(changed)
    size, executor = ctypes.c_uint64(_MARK), ctypes.c_void_p(_MARK)
    with library.prepared(changed, placed) as values:
        name = f"{_name(op)}GetWorkspaceSize"
        plan = (*values, ctypes.byref(size), ctypes.byref(executor))
        code = int(library.function(name)(*plan))
        note = ""
        if code == ACL_SUCCESS:
            library.function("aclDestroyAclOpExecutor")(executor)
        elif size.value != _MARK or executor.value != _MARK:
            note = "workspaceSize or executor was written"
        elif not library.message():
            note = "aclGetRecentErrMsg has no words for it"
        written = [name for name, memory in placed.items() if memory.touched()]
        if written:
            note = f"stage 1 wrote to {', '.join(written)}"
    for memory in placed.values():
        memory.free()
    return answered(blank, code, want, note)


def _usual(op: Op) -> list[Argument]:
    problem = make_problem(_CASES[op], "float32")
    return arguments_of(problem.case, arrays_of(problem))


def _name(op: Op) -> str:
    from normgrad.verify.clib.aclnn import NAMES

    return NAMES[op]


def _set(name: str, **fields: object) -> Change:
    return lambda arguments: {name: replace(arguments[name], **fields)}  # type: ignore[arg-type]


def _shaped(name: str, shape: tuple[int, ...]) -> Change:
    return _set(name, value=HostArray(np.ones(shape, np.float32), "float32"))


def _together(*changes: Change) -> Change:
    def change(arguments: dict[str, Argument]) -> dict[str, Argument]:
        made: dict[str, Argument] = {}
        for one in changes:
            made |= one(arguments)
        return made

    return change


def _changes(op: Op) -> dict[str, tuple[int, Change]]:
    """Stage 1 with one thing wrong: the status it must return, and the change."""
    made: dict[str, tuple[int, Change]] = {"all in order": (ACL_SUCCESS, lambda arguments: {})}
    for one in _usual(op):
        if one.kind in ("tensor", "mask", "sizes"):
            want = NULLPTR if one.required else ACL_SUCCESS
            if one.value is not None:
                made[f"{one.name} null"] = (want, _set(one.name, value=None))
        if one.kind == "tensor" and one.value is not None and one.name != "counter":
            made[f"{one.name} of type INT32"] = (INVALID, _set(one.name, dtype=ACL_INT32))
    made["gradOut of another shape"] = (INVALID, _shaped("gradOut", (2, 5, 4)))
    if op is not Op.BATCH_NORM_ELEMT:
        made["outputMask of two"] = (INVALID, _set("outputMask", value=[True, True]))
        made["gradOut alone F16"] = (INVALID, _set("gradOut", dtype=ACL_FLOAT16))
        first = next(one.name for one in _usual(op) if one.role == "dx")
        unwanted = _together(_set("outputMask", value=[False, True, True]), _set(first, value=None))
        made["unwanted result null"] = (ACL_SUCCESS, unwanted)
    return made | _SPECIAL[op]


_NINE = (1, 1, 1, 1, 1, 1, 1, 3, 4)
_SPECIAL: dict[Op, dict[str, tuple[int, Change]]] = {
    Op.BATCH_NORM: {
        "private format": (INVALID, _set("input", form=ACL_FORMAT_NC1HWC0)),
        "weight too long": (INVALID, _shaped("weight", (4,))),
        "saveMean too short": (INVALID, _shaped("saveMean", (2,))),
        "gradWeight too long": (INVALID, _shaped("gradWeight", (4,))),
        "gradInput of another shape": (INVALID, _shaped("gradInput", (2, 3, 5))),
        "one axis": (
            INVALID,
            _together(*(_shaped(name, (3,)) for name in ("gradOut", "input", "gradInput"))),
        ),
        "nine axes": (
            INVALID,
            _together(*(_shaped(name, _NINE) for name in ("gradOut", "input", "gradInput"))),
        ),
    },
    Op.BATCH_NORM_ELEMT: {
        "mean too short": (INVALID, _shaped("mean", (2,))),
        "sumDy of two axes": (INVALID, _shaped("sumDy", (1, 3))),
        "gradInput of another shape": (INVALID, _shaped("gradInput", (2, 3, 5))),
        "no channels": (
            INVALID,
            _together(
                *(_shaped(name, (2, 0, 4)) for name in ("gradOut", "input", "gradInput")),
                *(_shaped(name, (0,)) for name in ("mean", "invstd", "sumDy", "sumDyXmu")),
                _set("weight", value=None),
            ),
        ),
    },
    Op.LAYER_NORM: {
        "normalizedShape empty": (INVALID, _set("normalizedShape", value=[])),
        "normalizedShape not the tail": (INVALID, _set("normalizedShape", value=[3])),
        "normalizedShape too long": (INVALID, _set("normalizedShape", value=[1, 2, 3, 4])),
        "mean too short": (INVALID, _shaped("mean", (2, 1, 1))),
        "weightOptional too long": (INVALID, _shaped("weightOptional", (5,))),
        "gradWeightOut too long": (INVALID, _shaped("gradWeightOut", (5,))),
    },
    Op.GROUP_NORM: {
        "group 0": (INVALID, _set("group", value=0)),
        "group that does not divide C": (INVALID, _set("group", value=4)),
        "N negative": (INVALID, _set("N", value=-2)),
        "HxW off": (INVALID, _set("HxW", value=5)),
        "mean too short": (INVALID, _shaped("mean", (2, 2))),
        "gamma too long": (INVALID, _shaped("gamma", (7,))),
        "gradGammaOut too long": (INVALID, _shaped("gradGammaOut", (7,))),
    },
}


def _null_out(which: int) -> Callable[["Aclnn", Op, list[Argument], Outcome], Outcome]:
    """Stage 1 without a place for the size (0) or for the executor (1)."""

    def call(library: "Aclnn", op: Op, arguments: list[Argument], blank: Outcome) -> Outcome:
        placed = library.place(arguments)
        targets = [ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_void_p())]
        targets[which] = ctypes.c_void_p()  # type: ignore[call-overload]
        with library.prepared(arguments, placed) as values:
            code = int(library.function(f"{_name(op)}GetWorkspaceSize")(*values, *targets))
        return answered(blank, code, NULLPTR)

    return call


def _stage_two_null(library: "Aclnn", op: Op, arguments: list[Argument], blank: Outcome) -> Outcome:
    null = ctypes.c_void_p()
    code = int(library.function(_name(op))(null, ctypes.c_uint64(0), null, library.stream))
    return answered(blank, code, NULLPTR)


def _stage_two_twice(
    library: "Aclnn", op: Op, arguments: list[Argument], blank: Outcome
) -> Outcome:
    """A spent executor is an error, never a crash."""
    placed = library.place(arguments)
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    with library.prepared(arguments, placed) as values:
        plan = (*values, ctypes.byref(size), ctypes.byref(executor))
        code = int(library.function(f"{_name(op)}GetWorkspaceSize")(*plan))
        if code != ACL_SUCCESS:
            return answered(blank, code, ACL_SUCCESS)
        workspace = ctypes.c_void_p(library.malloc(max(size.value, 1)))
        run = library.function(_name(op))
        run(workspace, size, executor, library.stream)
        code = int(run(workspace, size, executor, library.stream))
    return answered(blank, code, SPENT)


_WHOLE: dict[str, Callable[["Aclnn", Op, list[Argument], Outcome], Outcome]] = {
    "workspaceSize null": _null_out(0),
    "executor null": _null_out(1),
    "stage 2 with a null executor": _stage_two_null,
    "stage 2 twice": _stage_two_twice,
}
