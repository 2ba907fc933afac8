"""Group norm of small images: slabs as rows that come by bulk copies.

A block has some groups of every so many samples. With one block for each slab, and a barrier of it
for each sum, small slabs would take as long as large ones: 64x512x7x7 in 32 groups in bfloat16 took
208 us.
"""

from dataclasses import dataclass, replace
from typing import Any

from normgrad.backends.cuda.device import Device
from normgrad.backends.cuda.plan.layout import Layout
from normgrad.backends.cuda.plan.program import Builder
from normgrad.backends.cuda.plan.row_ring import (
    MANY_ROWS,
    RowSets,
    Shape,
    cut_across,
    in_a_warp,
    launch_ring,
    placed,
    rows_of_a_set,
    sets_fit,
    sets_of,
    takes_bulk,
)
from normgrad.backends.cuda.plan.tiles import ceil_div
from normgrad.backends.cuda.plan.tuned import rows as tuned
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry


@dataclass(frozen=True, slots=True)
class _Shares:
    """``parts`` blocks share the samples of each set of groups."""

    sets: RowSets
    samples: int  # side by side in a set, if it has room for some
    parts: int
    times: int  # sets of a block, at most

    def programs(self, groups: int) -> int:
        """Blocks in all."""
        return ceil_div(groups, self.sets.rows) * self.parts

    def even(self, outer: int, groups: int) -> bool:
        """Whether all sets are full."""
        if self.samples == 1:
            return groups % self.sets.rows == 0
        return self.samples * groups == self.sets.rows and outer % self.samples == 0

    def busiest(self, groups: int, device: Device) -> int:
        """Slabs of the multiprocessor that has most."""
        blocks = ceil_div(self.programs(groups), device.multiprocessors)
        return blocks * self.times * min(self.sets.rows, groups * self.samples)


def group_rows(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> bool:
    """Launch, if the slabs are such rows."""
    found = _choose(builder, geometry, layout, device)
    if found is None:
        return False
    sets, groups = found.sets, geometry.groups
    rows = geometry.outer * groups
    dy = None if layout.gradient is None else layout.dy
    roles = {"dy": dy, "x": layout.x, "dx": layout.dx}
    constants: dict[str, Any] = {
        "PIXELS": geometry.inner,
        "SAMPLES": found.samples,
        "PACKED": True,
        "FULL_SETS": found.even(geometry.outer, groups),
        "AGAIN": 0 < sets.statistics_rows < found.times * sets.rows,
    }
    launch_ring(
        builder,
        device,
        {role: None if one is None else (one.ref, sets.cols) for role, one in roles.items()},
        sets,
        {"rows": rows, "groups": groups, "parts": found.parts},
        constants,
        found.programs(groups),
        layout.channels,
    )
    return True


def _choose(builder: Builder, geometry: Geometry, layout: Layout, device: Device) -> _Shares | None:
    """Blocks of which none has much more to do than others; None where slabs are no such rows."""
    if geometry.statistic != "row" or not layout.packed or geometry.samples > 1:
        return None
    spec = builder.spec
    wants_x = spec.dgamma is not None or spec.activation is not None or spec.operator.forward
    if layout.dx is None and not wants_x:
        return None  # dbeta needs no x, which is read here
    rows, cols = geometry.outer * geometry.groups, geometry.channels * geometry.inner
    dy, x = layout.dy.ref, layout.x.ref
    itemsize = ITEMSIZE[x.dtype]
    if not takes_bulk(builder, device, dy, x) or rows >= MANY_ROWS:
        return None
    shapes = [in_a_warp(cols, itemsize)]
    if cols > tuned.GROUP_WARP_COLUMNS:
        most = tuned.INSTANCE_ELEMENTS if geometry.channels == 1 else tuned.GROUP_ELEMENTS
        cuts = (cut_across(cols, itemsize, [block], most) for block in tuned.GROUP_BLOCKS)
        shapes = [shape for shape in cuts if shape is not None]
    # How a slab is added up must not depend on how many samples there are.
    typical = replace(geometry, outer=layout.typical)
    tensors = len(builder.spec.operator.data_in)
    tried = [(shape, _shared_out(shape, typical, itemsize, device, tensors)) for shape in shapes]
    able = [
        (one.busiest(geometry.groups, device), shape, one.sets.statistics_rows)
        for shape, one in tried
        if one is not None and sets_fit(one.sets, device)
    ]
    if not able:
        return None
    _, shape, statistics_rows = min(able, key=lambda one: one[0])
    found = _shared_out(shape, geometry, itemsize, device, tensors)
    assert found is not None
    return replace(
        found,
        sets=replace(found.sets, statistics_rows=min(found.sets.statistics_rows, statistics_rows)),
    )


def _shared_out(
    shape: Shape, geometry: Geometry, itemsize: int, device: Device, tensors: int
) -> _Shares | None:
    """As many parts as run at once; None if there are too many groups."""
    groups, cols = geometry.groups, geometry.channels * geometry.inner
    height = rows_of_a_set(shape, cols, groups)
    samples = max(1, height // groups)
    units = ceil_div(geometry.outer, samples)
    parts = min(units, shape[3] * device.multiprocessors // ceil_div(groups, height))
    if parts == 0:
        return None
    times = ceil_div(units, parts)
    sets = sets_of(shape, height, times * height, cols, itemsize, tensors)
    sets = placed(sets, geometry.outer * groups, groups * samples, min(height, groups * samples))
    return _Shares(sets, samples, ceil_div(units, times), times)
