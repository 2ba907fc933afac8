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
    ACL_FORMAT_NCHW,
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
    case = replace(case, both_statistics=page.op is Op.BATCH_NORM_BACKWARD)
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
    for one in _untyped(page):
        want = ACL_SUCCESS if _may_differ(page, one) else INVALID
        made[f"{one.name} alone F16"] = (want, _set(one.name, dtype=ACL_FLOAT16))
    for first in [one for one in page.parameters if one.when == "outputMask[0]"]:
        made["outputMask of two"] = (INVALID, _set("outputMask", value=[True, True]))
        unwanted = _set("outputMask", value=[False, True, True])
        made["unwanted result null"] = (
            ACL_SUCCESS,
            _together(unwanted, _set(first.name, value=None)),
        )
    return made | _of_rules(page) | _of_types(page) | _of_product(page, product)


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


def _untyped(page: Page) -> list[Argument]:
    """The tensors that have no types of their own."""
    return [
        one
        for one in _usual(page)
        if one.kind == "tensor" and one.value is not None and not page.parameter(one.name).types
    ]


# Types may differ: of every tensor, of those that are no data, of some.
_FREE = ("BatchNormElemtBackward", "BatchNormStats", "BatchNormGatherStatsWithCounts")
_FREE_VECTORS = ("BatchNorm", "BatchNormElemt", "BatchNormReduceBackward")
_FREE_TENSORS = ("meanOutOptional", "rstdOutOptional", "x1", "x2")


def _may_differ(page: Page, one: Argument) -> bool:
    """Whether a tensor may be F16 where all else is F32."""
    name = page.name.removeprefix("aclnn")
    if name in _FREE_VECTORS:
        return one.role not in DATA
    return name in _FREE or (one.name in _FREE_TENSORS and not page.one_type)


# Where formats are looked at, and must be one.
_ONE_FORMAT = (
    *("aclnnBatchNorm", "aclnnBatchNormBackward", "aclnnBatchNormElemt"),
    *("aclnnBatchNormReduceBackward", "aclnnGroupNorm"),
)
_FORMATS = (*_ONE_FORMAT, *(f"aclnn{name}" for name in _FREE))
_NINE = (1, 1, 1, 1, 1, 1, 1, 6, 4)


def _of_rules(page: Page) -> dict[str, tuple[int, Change]]:
    """What the page's numbers, arrays and formats ask for besides."""
    arguments = {one.name: one for one in _usual(page)}
    data = [one.name for one in arguments.values() if one.role in ("dy", "x", "dx", "y")]
    made: dict[str, tuple[int, Change]] = {}
    if page.name in _FORMATS:
        first, *others = data if "input" not in arguments else dict.fromkeys(["input", *data])
        private = (_set(name, form=ACL_FORMAT_NC1HWC0) for name in (first, *others))
        made["private format"] = (INVALID, _together(*private))
        if page.name in _ONE_FORMAT:
            made["two formats"] = (INVALID, _set(others[0], form=ACL_FORMAT_NCHW))
    if page.channels_last:
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
    made |= _of_parameters(page, arguments)
    if page.name == "aclnnAddRmsNorm":
        made["xOut null"] = (NULLPTR, _set("xOut", value=None))  # without it no rstdOut
    if "implMode" in arguments:
        made["implMode 3"] = (INVALID, _set("implMode", value=3))
        made["implMode 2 with F32"] = (INVALID, _set("implMode", value=2))
    return made


def _of_parameters(page: Page, arguments: dict[str, Argument]) -> dict[str, tuple[int, Change]]:
    """Parameters of other axes, numbers out of range."""
    made: dict[str, tuple[int, Change]] = {}
    gamma = arguments.get("gamma")
    if gamma is not None and page.parameter("gamma").shape == "tail":
        made["gamma without axes"] = (page.shape_error, _shaped("gamma", ()))
        made["gamma of three axes"] = (page.shape_error, _shaped("gamma", (1, 6, 4)))
    if gamma is not None and OPERATORS[page.op].axes == "groups" and "HxW" not in arguments:
        made["gamma of two axes"] = (INVALID, _shaped("gamma", (6, 1)))
    if "weightOptional" in arguments:
        made["weight of each sample"] = (INVALID, _shaped("weightOptional", (2, 1, 4)))
        made["input without axes"] = (INVALID, _shaped("input", ()))
    if "biasOptional" in arguments and "x1" in arguments:
        made["biasOptional of another shape"] = (page.shape_error, _shaped("biasOptional", (6,)))
    if page.op is Op.GROUP_NORM:
        want = ACL_SUCCESS if page.name == "aclnnGroupNormSwish" else INVALID
        made["eps 0"] = (want, _set("eps", value=0.0))
    if "numGroups" in arguments:
        made["numGroups 0"] = (INVALID, _set("numGroups", value=0))
    return made


def _of_types(page: Page) -> dict[str, tuple[int, Change]]:
    """Data of F16 beside vectors of F32, of which some are not: types that must be alike."""
    half = [_set(one.name, dtype=ACL_FLOAT16) for one in _untyped(page) if one.role in DATA]
    made: dict[str, tuple[int, Change]] = {}
    for name, others in _ALIKE.get(page.name.removeprefix("aclnn"), {}).items():
        made[name] = (INVALID, _together(*half, *(_narrow(one) for one in others)))
    if page.op is Op.BATCH_NORM_BACKWARD:
        wrong = _set("gradWeight", dtype=ACL_BF16)
        made["gradWeight of neither weight's type nor F32"] = (INVALID, _together(*half, wrong))
        made["weight of private format"] = (INVALID, _set("weight", form=ACL_FORMAT_NC1HWC0))
    if page.op is Op.LAYER_NORM_BACKWARD and "outputMask" in {one.name for one in page.parameters}:
        statistics = _together(_narrow("mean"), _narrow("rstd"))
        made["statistics narrower than input"] = (INVALID, statistics)
    if "counter" in {one.role for one in page.parameters}:
        name = next(one.name for one in page.parameters if one.role == "counter")
        made[f"{name} of type FLOAT8_E4M3FN"] = (INVALID, _set(name, dtype=ACL_FLOAT8_E4M3FN))
    return made


def _narrow(name: str) -> Change:
    """A tensor of F16, also one that the usual call leaves out: layer norm's bias."""
    absent = HostArray(np.ones(4, np.float32), "float32")
    return lambda arguments: {
        name: replace(arguments[name], dtype=ACL_FLOAT16, value=arguments[name].value or absent)
    }


_LAYER: dict[str, tuple[str, ...]] = {
    "biasOptional of F16, weightOptional of F32": ("biasOptional",)
}
_ALIKE: dict[str, dict[str, tuple[str, ...]]] = {
    "BatchNormBackward": {
        "runningVar of F16, runningMean of F32": ("runningVar",),
        "saveInvstd of F16, saveMean of F32": ("saveInvstd",),
        "gradBias of F16, gradWeight of F32": ("weight", "gradBias"),
    },
    "LayerNorm": _LAYER,
    "LayerNormWithImplMode": _LAYER,
    "LayerNormBackward": _LAYER,
    "GroupNormBackward": {"rstd of F16, mean of F32": ("rstd",)},
}


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
