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

def finish_with(tile, early):
    """finish_rows with another tile."""
    def fin(b, partials, programs, cols, *, early=early):
        keep_fin(b, partials, programs, cols, early=early)
        if partials is None or tile is None: return
        import dataclasses
        last = b.steps.pop(); c = dict(last.constants)
        c |= {"PROGRAMS": tile[0], "TIMES": -(-programs // tile[0]), "COLS": tile[1]}
        b.steps.append(dataclasses.replace(last, grid=(-(-cols // tile[1]), 1, 1), constants=tuple(c.items()), warps=tile[2]))
    return fin
keep_fin = rows_plan.finish_rows

def ring_program(shape, dt, ring, tile=None, early=True, device=H200):
    spec, g = request(shape, dt)
    b = Builder(spec, "float32")
    data = {r: rows_plan._rows(b, r, g.outer, g.channels) for r in ("dy", "x", "dx")}
    part, teams = ring_rows(b, g, device, data, ring)
    finish_with(tile, early)(b, part, teams, g.channels, early=early)
    return b.finish("ring")

def plan_program(shape, dt, ring, tile=None, device=H200):
    spec, g = request(shape, dt)
    rows_plan.finish_rows = finish_with(tile, True)
    try:
        return rows_plan.plan_rows(Builder(spec, "float32"), g, device, ring=ring)
    finally:
        rows_plan.finish_rows = keep_fin
