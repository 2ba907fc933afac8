"""Programs for layer norm with chosen variants: made, checked, timed."""
import sys, time, torch
from normgrad.backends.cuda import rows_plan
from normgrad.backends.cuda.ring_plan import Ring, ring_rows

from normgrad.backends.cuda.device import Device, H200
from normgrad.backends.cuda.program import Builder, Program, Launch, Fill
from normgrad.backends.cuda.launch import run_program, _SLOTS
from normgrad.bench.suites import rows as suite_rows
from normgrad.cli.plan import spec_of
from normgrad.geometry import geometry_of
from normgrad.spec import ROLES, Op

import functools
from normgrad.backends.cuda import launch as _launch
_launch._prepare = functools.cache(_launch._prepare)  # many programs share steps
DT = {"bf16": "bfloat16", "f32": "float32"}

def request(shape, dt):
    (w,) = suite_rows(Op.LAYER_NORM, "x".join(map(str, shape)), (DT[dt],), ("contiguous",))
    spec = spec_of(w.case, DT[dt])
    return spec, geometry_of(spec)

def ring_program(shape, dt, ring, tile=(128, 16, 4), early=True, device=H200):
    spec, g = request(shape, dt)
    b = Builder(spec, "float32")
    data = {r: rows_plan._rows(b, r, g.outer, g.channels) for r in ("dy", "x", "dx")}
    part, teams = ring_rows(b, g, device, data, ring)
    rows_plan.finish_rows(b, part, teams, g.channels, early, tile)
    return b.finish("ring")

def old_program(shape, dt, tile=(128, 16, 4), early=True, device=H200):
    import dataclasses
    spec, g = request(shape, dt)
    b = Builder(spec, "float32")
    keep = rows_plan.finish_rows
    def fin(builder, partials, programs, cols, e, t=None): keep(builder, partials, programs, cols, e and early, tile)
    rows_plan.finish_rows = fin
    try:
        p = rows_plan.plan_rows(b, g, device)
    finally:
        rows_plan.finish_rows = keep
    return p
