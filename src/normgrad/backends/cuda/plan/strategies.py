"""Which kernels compute a request."""

import dataclasses

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.apply import add_apply
from normgrad.backends.cuda.plan.columns import resident_columns
from normgrad.backends.cuda.plan.forward import plan_forward
from normgrad.backends.cuda.plan.group_ring import group_rows
from normgrad.backends.cuda.plan.layout import Layout, lay_out
from normgrad.backends.cuda.plan.planes import resident_planes
from normgrad.backends.cuda.plan.program import Builder, Launch, Program, Step
from normgrad.backends.cuda.plan.realign import on_aligned_copies
from normgrad.backends.cuda.plan.rows import plan_rows
from normgrad.backends.cuda.plan.shortcut import has_shortcut, through_shortcut
from normgrad.backends.cuda.plan.sums import add_finish, add_sums
from normgrad.backends.cuda.plan.tiles import WIDE
from normgrad.core.geometry import Geometry
from normgrad.core.spec import Op, Spec

_ELEMENTWISE = ("copy.", "apply.plane_apply", "apply.column_apply")


def too_many(geometry: Geometry) -> str | None:
    """Why there is no plan: a grid ends at 2**31 - 1 blocks, and columns are 32-bit numbers."""
    limits = {"statistics": (1 << 31) - 1, "parameters": WIDE - 1}
    for name, most in limits.items():
        count: int = getattr(geometry, name)
        if count > most:
            return f"it takes up to {most} {name}, there are {count}"
    return None


def make_program(spec: Spec, geometry: Geometry, compute: str, device: Device) -> Program:
    """The kernel plan: a pure function of its arguments."""
    program = _make(spec, geometry, compute, device)
    if not any(_adds_up(step) for step in program.steps):
        return program
    return dataclasses.replace(program, unaligned=on_aligned_copies(program, spec))


def _adds_up(step: Step) -> bool:
    """Whether the address of data has a say in the order of a sum.

    The compiler deals out wide loads to threads otherwise than narrow ones.
    """
    return isinstance(step, Launch) and not step.kernel.startswith(_ELEMENTWISE)


def _make(spec: Spec, geometry: Geometry, compute: str, device: Device) -> Program:
    builder = Builder(spec, compute)
    if spec.operator.forward:
        return plan_forward(builder, geometry, device)
    if geometry.size == 0:
        return _zeros(builder)
    if has_shortcut(spec):
        return through_shortcut(spec, geometry, compute, device, _make)
    if spec.operator.axes == "rows":
        return plan_rows(builder, geometry, device)
    layout = lay_out(builder, geometry)
    sums_wanted = any(role != "dx" for role in spec.wanted)
    corrected = spec.op is not Op.BATCH_NORM_ELEMT_BACKWARD and spec.training
    needs_totals = corrected and spec.dx is not None
    viewed = _as_instance_norm(builder, geometry, layout)
    if corrected and group_rows(builder, viewed, layout, device):
        return builder.finish("whole slabs in a ring")
    if spec.dx is not None and corrected:
        plan_resident = {"planes": resident_planes, "columns": resident_columns}[layout.family]
        if plan_resident(builder, geometry, layout, device):
            return builder.finish(f"resident {layout.family}")
    name = "elements"
    totals = None
    if spec.op is not Op.BATCH_NORM_ELEMT_BACKWARD and (sums_wanted or needs_totals):
        name = "sums" if spec.dx is None else "two passes"
        reads_x = needs_totals or not {"dgamma", "sum_dy_xmu"}.isdisjoint(spec.wanted)
        reads_x = reads_x or spec.activation is not None
        partials, splits = add_sums(builder, geometry, layout, device, reads_x=reads_x)
        totals = add_finish(builder, geometry, layout, device, partials, splits, needs_totals)
    if spec.dx is not None:
        add_apply(builder, geometry, layout, totals, correct=corrected or totals is None)
    return builder.finish(f"{name} ({layout.family})")


def _as_instance_norm(builder: Builder, geometry: Geometry, layout: Layout) -> Geometry:
    """Batch norm of one sample is instance norm, whose small planes come as rows of a ring."""
    spec = builder.spec
    if (
        spec.op is not Op.BATCH_NORM_BACKWARD
        or spec.rstd_is == "variance"
        or layout.family != "planes"
    ):
        return geometry
    if geometry.outer > 1:
        return geometry
    return Geometry(1, layout.channels, 1, geometry.inner, "row")


def _zeros(builder: Builder) -> Program:
    """Nothing to add up: parameter gradients are 0."""
    for role in builder.spec.wanted:
        tensor = builder.spec.tensor(role)
        target = builder.result(role)
        if tensor is not None and target is not None and tensor.size:
            builder.fill(target, tensor.size, 0)
    return builder.finish("zeros")
