"""Gradients behind a shortcut.

With ReLU's mask, where a schedule takes that, one launch does all: 4 + 1/16 trips. Else first what
of dy goes through the activation, then all else of that. The first launch writes the gradient of
the shortcut, which is what the norm's gradient is made of: 5 + 1/16 trips with ReLU's mask where
data stay on chip, 6 + 1/16 would be two passes. What an activation would round twice is kept in the
type of the arithmetic meanwhile.
"""

from collections.abc import Callable
from dataclasses import replace

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.apply import add_apply
from normgrad.backends.cuda.plan.columns import resident_columns
from normgrad.backends.cuda.plan.layout import lay_out
from normgrad.backends.cuda.plan.planes import resident_planes
from normgrad.backends.cuda.plan.program import Builder, Program, Ref, copy_of
from normgrad.backends.cuda.plan.realign import with_places
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Spec, TensorSpec, dense_like

# Slopes of 0 and 1: what goes through them is dy or 0.
_EXACT = (None, "relu", "relu6")
Make = Callable[[Spec, Geometry, str, Device], Program]


def has_shortcut(spec: Spec) -> bool:
    """Whether a gradient is one behind a shortcut."""
    return not spec.operator.forward and (spec.shortcut or spec.mask) is not None


def through_shortcut(
    spec: Spec, geometry: Geometry, compute: str, device: Device, make: Make
) -> Program:
    """The launches; ``make`` plans a request without a shortcut."""
    rest = {"beta": None, "shortcut": None, "mask": None, "dshortcut": None}
    plain = replace(spec.with_tensors(rest), activation=None)
    given = spec.present("dy")
    seen, found = given, Ref("dy", 0, given.dtype)
    builder = Builder(spec, compute)
    wants = [role for role in spec.wanted if role != "dshortcut"]
    whole = _with_bits(spec, geometry, compute, device)
    if whole is not None:
        return whole
    if spec.activation is None and spec.mask is None:  # dy is all that goes through
        if spec.dshortcut is not None:
            _copy(builder, found, given, spec.dshortcut)
    else:
        exact = spec.activation in _EXACT
        dtype = given.dtype if exact else compute
        there = spec.dshortcut
        direct = exact and there is not None and there.dtype == dtype and is_dense_like(there)
        seen = there if direct and there else _dense(spec.x, dtype)
        found = Ref("dshortcut", 0, dtype) if direct else builder.scratch(seen.size, dtype)
        _through(builder, geometry, seen, found)
        if spec.dshortcut is not None and not direct:
            _copy(builder, found, seen, spec.dshortcut)
    if not wants:
        return builder.finish("a shortcut's gradient")
    program = make(plain.with_tensors({"dy": seen}), geometry, compute, device)
    for step in program.steps:
        moved = with_places(step, {"dy": found, "": Ref("", builder.used, "")})
        builder.steps.append(moved)
    builder.used += program.workspace_bytes
    builder.words = program.words
    return builder.finish(f"a shortcut's gradient, {program.strategy}")


def _with_bits(spec: Spec, geometry: Geometry, compute: str, device: Device) -> Program | None:
    """One launch, if a mask says what goes through and a schedule keeps the data on chip."""
    if spec.mask is None or spec.dx is None or not spec.training:
        return None
    rest = {"beta": None, "shortcut": None}
    builder = Builder(replace(spec.with_tensors(rest), activation=None), compute)
    layout = lay_out(builder, geometry)
    plan_resident = {"planes": resident_planes, "columns": resident_columns}[layout.family]
    if not plan_resident(builder, geometry, layout, device):
        return None
    return builder.finish(f"resident {layout.family} with a shortcut's gradient")


def is_dense_like(tensor: TensorSpec) -> bool:
    """Whether the elements lie side by side in any order."""
    return tensor.strides == dense_like(tensor).strides


def _dense(tensor: TensorSpec, dtype: str) -> TensorSpec:
    return dense_like(tensor)._replace(dtype=dtype)


def _copy(builder: Builder, source: Ref, one: TensorSpec, other: TensorSpec) -> None:
    target = Ref("dshortcut", 0, other.dtype)
    builder.steps.append(copy_of(source, target, one.shape, one.strides, other.strides))


def _through(builder: Builder, geometry: Geometry, seen: TensorSpec, found: Ref) -> None:
    """What of dy goes through the activation, to where it is wanted."""
    spec = builder.spec
    results = dict.fromkeys(("dgamma", "dbeta", "dshortcut"))
    inner = Builder(spec.with_tensors({**results, "dx": seen}), builder.compute)
    inner.formula = inner.formula.replace("gradient", "slope", 1)
    layout = lay_out(inner, geometry)
    add_apply(inner, geometry, layout, None, correct=False)
    program = inner.finish("")
    places = {"dx": found, "": Ref("", builder.used, "")}
    builder.steps += [with_places(step, places) for step in program.steps]
    builder.used += program.workspace_bytes
