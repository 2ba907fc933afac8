"""What aclnn's stages must answer to wrong calls, as the product that is set has it."""

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from normgrad.aclnn.constants import (
    ACL_BF16,
    ACL_FLOAT8_E4M3FN,
    ACL_FLOAT16,
    ACL_FORMAT_NC1HWC0,
    ACL_FORMAT_NHWC,
    ACL_INT32,
)
from normgrad.aclnn.products import SETTINGS, Product
from normgrad.aclnn.status import ACL_SUCCESS, INVALID, NO_KERNEL, NULLPTR, SPENT
from normgrad.aclnn.table import Page
from normgrad.core.operators import DATA, OPERATORS, Op
from normgrad.verify.cases import Case
from normgrad.verify.clib.aclnn_call import (
    PARAMETERS_GIVEN,
    WIDER_ON_950,
    WIDER_WITH_BF16,
    Argument,
    arguments_of,
    takes_wider_vectors,
)
from normgrad.verify.clib.job import answered, arrays_of
from normgrad.verify.foreign import Outcome
from normgrad.verify.problem import HostArray, make_problem

if TYPE_CHECKING:
    from normgrad.verify.clib.aclnn import Aclnn

_MARK = 0x5A5A
Change = Callable[[dict[str, Argument]], dict[str, Argument]]


def calls(page: Page) -> list[str]:
    """The names of an operator's checks."""
    product = SETTINGS.product
    whole = [name for name in _WHOLE if product.key not in page.lacks or name != _TWICE]
    return [*changes(page, product), *whole]


def check(library: "Aclnn", page: Page, call: str, blank: Outcome) -> Outcome:
    """One of them."""
    arguments = {one.name: one for one in _usual(page)}
    if call in _WHOLE:
        return _WHOLE[call](library, page.name, list(arguments.values()), blank)
    want, change = changes(page, SETTINGS.product)[call]
    changed = list({**arguments, **change(arguments)}.values())
    placed = library.place(changed)
    size, executor = ctypes.c_uint64(_MARK), ctypes.c_void_p(_MARK)
    with library.prepared(changed, placed) as values:
        name = f"{page.name}GetWorkspaceSize"
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


@functools.cache
def _usual(page: Page) -> tuple[Argument, ...]:
    """A valid call: 2 samples, 6 channels in 3 groups, 4 positions."""
    axes = OPERATORS[page.op].axes
    case = Case(id="status", op=page.op, shape=(2, 6, 4), num_groups=3 if axes == "groups" else 1)
    names = {one.role or one.name for one in page.parameters}
    added = "residual" in names and "alpha" not in names
    case = replace(case, running=page.op is Op.BATCH_NORM, residual=added)
    case = replace(case, activation=page.activation)
    if page.op is Op.BATCH_NORM_GATHER_STATS:
        case = replace(case, shape=(3, 6), running=True, counts_dtype="float32")
    problem = make_problem(case, "float32")
    return tuple(arguments_of(page, problem.case, arrays_of(problem)))


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


def _longer(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] + 1)


@functools.cache
def changes(page: Page, product: Product) -> dict[str, tuple[int, Change]]:
    """Stage 1 with one thing wrong: the status it must return, and the change."""
    if product.key in page.lacks:
        return _lacking(page)
    made: dict[str, tuple[int, Change]] = {"all in order": (ACL_SUCCESS, lambda arguments: {})}
    lonely = len([one for one in _usual(page) if one.role in DATA and one.value is not None]) == 1
    for one in _usual(page):
        if one.kind in ("tensor", "mask", "sizes") and one.value is not None:
            left_out = not one.required and (product.mixed or page.name not in PARAMETERS_GIVEN)
            want = ACL_SUCCESS if left_out else NULLPTR
            made[f"{one.name} null"] = (want, _set(one.name, value=None))
        if one.kind == "tensor" and one.value is not None and one.role != "counter":
            made[f"{one.name} of type INT32"] = (INVALID, _set(one.name, dtype=ACL_INT32))
            shape = page.parameter(one.name).shape
            longer = _longer(one.value.tensor.shape)
            words = "of another shape" if shape == "data" else "too long"
            if one.role and not (lonely and one.role == "x"):  # nothing says what its shape must be
                made[f"{one.name} {words}"] = (page.shape_error, _shaped(one.name, longer))
    data = next(one.name for one in _usual(page) if one.role in ("dy", "x"))
    made[f"{data} of type FLOAT8_E4M3FN"] = (INVALID, _set(data, dtype=ACL_FLOAT8_E4M3FN))
    alone = any(one.role in ("dx", "y", "dy") for one in _usual(page) if one.name != data)
    if alone and page.name not in _MIXED:
        made[f"{data} alone F16"] = (INVALID, _set(data, dtype=ACL_FLOAT16))
    for first in [one for one in page.parameters if one.when == "outputMask[0]"]:
        made["outputMask of two"] = (INVALID, _set("outputMask", value=[True, True]))
        unwanted = _set("outputMask", value=[False, True, True])
        made["unwanted result null"] = (
            ACL_SUCCESS,
            _together(unwanted, _set(first.name, value=None)),
        )
    return made | _of_rules(page) | _of_product(page, product)


def _lacking(page: Page) -> dict[str, tuple[int, Change]]:
    """An operator that the product lacks: null is found before that, all else is not looked at."""
    first = page.tensors[0][1].name
    return {
        "on this product": (NO_KERNEL, lambda arguments: {}),
        f"{first} null": (NULLPTR, _set(first, value=None)),
        f"{first} of type INT32": (NO_KERNEL, _set(first, dtype=ACL_INT32)),
    }


def _of_product(page: Page, product: Product) -> dict[str, tuple[int, Change]]:
    """What products differ in: types, wider vectors, channels that come last."""
    arguments = [one for one in _usual(page) if one.kind == "tensor" and one.value is not None]
    usual = [one for one in arguments if not page.parameter(one.name).types]
    data = [one.name for one in usual if one.role in DATA]
    made: dict[str, tuple[int, Change]] = {}
    if ACL_BF16 not in product.floats:
        for one in usual:
            made[f"{one.name} of type BF16"] = (INVALID, _set(one.name, dtype=ACL_BF16))
    if page.name in (*WIDER_ON_950, *WIDER_WITH_BF16):
        want = ACL_SUCCESS if takes_wider_vectors(page, product) else INVALID
        made["data of F16, vectors of F32"] = (
            want,
            _together(*(_set(name, dtype=ACL_FLOAT16) for name in data)),
        )
    if page.channels_last:
        want = ACL_SUCCESS if product.channels_last else INVALID
        moved = HostArray(np.ones((2, 4, 6), np.float32), "float32")
        last = _together(*(_set(name, form=ACL_FORMAT_NHWC, value=moved) for name in data))
        made["channels last"] = (want, last)
    return made


_MIXED = ("aclnnBatchNormElemtBackward", "aclnnAddLayerNorm")  # types may differ
_NINE = (1, 1, 1, 1, 1, 1, 1, 6, 4)


def _of_rules(page: Page) -> dict[str, tuple[int, Change]]:
    """What the page's numbers, arrays and formats ask for besides."""
    arguments = {one.name: one for one in _usual(page)}
    data = [one.name for one in arguments.values() if one.role in ("dy", "x", "dx", "y")]
    made: dict[str, tuple[int, Change]] = {}
    if page.channels_last:
        made["private format"] = (INVALID, _set("input", form=ACL_FORMAT_NC1HWC0))
        made["one axis"] = (INVALID, _together(*(_shaped(name, (6,)) for name in data)))
        made["nine axes"] = (INVALID, _together(*(_shaped(name, _NINE) for name in data)))
    if page.needs_channels:
        vectors = [one.name for one in page.parameters if one.is_tensor and one.shape == "channels"]
        empty = [*(_shaped(name, (2, 0, 4)) for name in data)]
        empty += [_shaped(name, (0,)) for name in vectors if arguments[name].value is not None]
        made["no channels"] = (INVALID, _together(*empty))
    if "normalizedShape" in arguments:
        made["normalizedShape empty"] = (INVALID, _set("normalizedShape", value=[]))
        made["normalizedShape not the tail"] = (INVALID, _set("normalizedShape", value=[3]))
        made["normalizedShape too long"] = (INVALID, _set("normalizedShape", value=[1, 2, 6, 4]))
    if "group" in arguments:
        made["group 0"] = (INVALID, _set("group", value=0))
        made["group that does not divide C"] = (INVALID, _set("group", value=4))
    if "HxW" in arguments:
        made["N negative"] = (INVALID, _set("N", value=-2))
        made["HxW off"] = (INVALID, _set("HxW", value=5))
    if page.name == "aclnnAddRmsNorm":
        made["xOut null"] = (NULLPTR, _set("xOut", value=None))  # without it no rstdOut
    if "implMode" in arguments:
        made["implMode 3"] = (INVALID, _set("implMode", value=3))
        made["implMode 2 with F32"] = (INVALID, _set("implMode", value=2))
    return made


def _null_out(which: int) -> Callable[["Aclnn", str, list[Argument], Outcome], Outcome]:
    """Stage 1 without a place for the size (0) or for the executor (1)."""

    def call(library: "Aclnn", name: str, arguments: list[Argument], blank: Outcome) -> Outcome:
        placed = library.place(arguments)
        targets = [ctypes.byref(ctypes.c_uint64()), ctypes.byref(ctypes.c_void_p())]
        targets[which] = ctypes.c_void_p()  # type: ignore[call-overload]
        with library.prepared(arguments, placed) as values:
            code = int(library.function(f"{name}GetWorkspaceSize")(*values, *targets))
        return answered(blank, code, NULLPTR)

    return call


def _stage_two_null(
    library: "Aclnn", name: str, arguments: list[Argument], blank: Outcome
) -> Outcome:
    null = ctypes.c_void_p()
    code = int(library.function(name)(null, ctypes.c_uint64(0), null, library.stream))
    return answered(blank, code, NULLPTR)


def _stage_two_twice(
    library: "Aclnn", name: str, arguments: list[Argument], blank: Outcome
) -> Outcome:
    """A spent executor is an error, never a crash."""
    placed = library.place(arguments)
    size, executor = ctypes.c_uint64(), ctypes.c_void_p()
    with library.prepared(arguments, placed) as values:
        plan = (*values, ctypes.byref(size), ctypes.byref(executor))
        code = int(library.function(f"{name}GetWorkspaceSize")(*plan))
        if code != ACL_SUCCESS:
            return answered(blank, code, ACL_SUCCESS)
        workspace = ctypes.c_void_p(library.malloc(max(size.value, 1)))
        run = library.function(name)
        run(workspace, size, executor, library.stream)
        code = int(run(workspace, size, executor, library.stream))
    return answered(blank, code, SPENT)


_TWICE = "stage 2 twice"
_WHOLE: dict[str, Callable[["Aclnn", str, list[Argument], Outcome], Outcome]] = {
    "workspaceSize null": _null_out(0),
    "executor null": _null_out(1),
    "stage 2 with a null executor": _stage_two_null,
    _TWICE: _stage_two_twice,
}
