"""How data lie in memory, as the kernels see it: planes (channels first) or columns (last)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from normgrad.backends.cuda.plan.program import Argument, Builder, Ref
from normgrad.backends.cuda.plan.tiles import ceil_div, typical_batch
from normgrad.core.dtypes import ITEMSIZE
from normgrad.core.geometry import Geometry, has_channel_axis, reshaped_strides
from normgrad.core.operators import STATISTICS
from normgrad.core.spec import DATA, TensorSpec, row_major
from normgrad.core.validate import mask_shape

_MANY_COLUMNS = 1 << 30  # kernels count columns in 32 bits


@dataclass(frozen=True, slots=True)
class Data:
    """A data tensor over (outer, channels, inner)."""

    ref: Ref
    outer: int  # strides in elements
    channel: int
    inner: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The data of a request in one family."""

    family: Literal["planes", "columns"]
    outer: int
    channels: int
    inner: int
    dy: Data  # x again where that is all that is read
    x: Data
    dx: Data | None  # the data that are written
    batch_independent: bool  # statistics are per sample: cuts may not depend on the batch size
    shortcut: Data | None = None  # or where its gradient goes

    @property
    def tensors(self) -> tuple[Data, ...]:
        """Those that take part."""
        besides = (one for one in (self.dx, self.shortcut) if one is not None)
        return (self.dy, self.x, *besides)

    def operands(self, builder: Builder, *, results: bool) -> dict[str, Ref | None]:
        """What a kernel of whole slabs reads and writes; its parameter gradients if wanted."""
        assert self.dx is not None
        data = {"dy": self.gradient, "x": self.x.ref, "dx": self.dx.ref}
        vectors = {role: builder.vector(role) for role in ("gamma", "beta")}
        made = self.gradient is None
        statistics = builder.result if made else builder.vector
        vectors |= {role: statistics(role) for role in STATISTICS}
        sums = {role: builder.result(role) if results else None for role in ("dgamma", "dbeta")}
        return data | vectors | sums

    @property
    def shortcut_ref(self) -> Ref | None:
        """The shortcut or its gradient, where there is one."""
        return None if self.shortcut is None else self.shortcut.ref

    @property
    def gradient(self) -> Ref | None:
        """Dy, where it is read."""
        return None if self.dy is self.x else self.dy.ref

    def of_each(self, change: Callable[[Data], Data]) -> "Layout":
        """The same with all tensors changed."""
        x = change(self.x)
        dy = x if self.dy is self.x else change(self.dy)
        dx, shortcut = (None if one is None else change(one) for one in (self.dx, self.shortcut))
        return replace(self, dy=dy, x=x, dx=dx, shortcut=shortcut)

    @property
    def packed(self) -> bool:
        """Whether planes lie one after another in all tensors."""
        sizes = (self.outer, self.channels, self.inner)
        dense = row_major(sizes)
        steps = [(one.outer, one.channel, one.inner) for one in self.tensors]
        return all(
            size == 1 or step == wanted
            for found in steps
            for size, step, wanted in zip(sizes, found, dense, strict=True)
        )

    @property
    def window(self) -> int:
        """Elements of 16 bytes, if planes are best read by those, wherever they start; else 0.

        Vectors at their ends have elements of the planes around, so planes must lie one after
        another, and the last vector must not reach behind them all: behind the first sample, if
        how its sums are made is not to depend on how many there are.
        """
        itemsizes = {ITEMSIZE[one.ref.dtype] for one in self.tensors}
        itemsize = max(itemsizes)
        odd = self.family == "planes" and self.inner * itemsize % 16
        samples = 1 if self.batch_independent else self.outer
        whole = samples * self.channels * self.inner * itemsize % 16 == 0
        fits = len(itemsizes) == 1 and itemsize <= 4 and whole and self.packed
        return 16 // itemsize if odd and fits else 0

    @property
    def typical(self) -> int:
        """Samples to cut the data for: those there are, or as many whatever there are."""
        if not self.batch_independent or self.dx is None:
            return self.outer
        itemsize = max(ITEMSIZE[one.ref.dtype] for one in self.tensors)
        return typical_batch(self.channels * self.inner * itemsize)

    @property
    def span(self) -> int:
        """Elements of a plane's window, wherever it starts; of the plane where it has none."""
        window = self.window
        return ceil_div(self.inner + window - 1, window) * window if window else self.inner

    @property
    def tile_bytes(self) -> int:
        """Of an element of x and, where it is read, one of dy."""
        gradient = self.gradient
        return ITEMSIZE[self.x.ref.dtype] + (ITEMSIZE[gradient.dtype] if gradient else 0)

    @property
    def same_strides(self) -> bool:
        """Whether one offset serves all tensors."""
        return len({(one.outer, one.channel, one.inner) for one in self.tensors}) == 1


def lay_out(builder: Builder, geometry: Geometry) -> Layout:
    """See all data in one family, with copies where they do not agree on one."""
    spec = builder.spec
    roles = (*spec.data_in, *(role for role in spec.wanted if role in DATA))
    channels = geometry.groups * geometry.channels
    sizes = (geometry.outer, channels, geometry.inner)
    steps = {role: _steps(spec.present(role), sizes) for role in roles}
    families = {role: _families(found, sizes, geometry) for role, found in steps.items()}
    # x decides, since dx lies like it as a rule; dy where x must be copied anyhow.
    agreed = all("columns" in one for one in families.values())
    wished = "columns" in (families["x"] or families[roles[0]]) and has_channel_axis(spec)
    columns = geometry.inner == 1 or agreed or wished
    if spec.mask is not None:  # whose bytes lie so
        columns = len(mask_shape(spec)) == 2
    family: Literal["planes", "columns"] = "columns" if columns else "planes"
    last = family == "columns" and geometry.inner > 1
    dense = (channels * geometry.inner, *((1, channels) if last else (geometry.inner, 1)))
    data = {}
    for role, found in steps.items():
        if found is not None and family in families[role]:
            data[role] = Data(Ref(role, 0, spec.present(role).dtype), *found)
        elif found is not None and _repeats(found, sizes) and role not in spec.results:
            merged = geometry.statistic == "channel" and last
            data[role] = _thin(builder, role, found, sizes, family, merged=merged)
        elif role in spec.results:
            data[role] = Data(builder.staging_result(role, channels_last=last), *dense)
        else:
            data[role] = Data(builder.pack(role, channels_last=last), *dense)
    outer, inner = geometry.outer, geometry.inner
    if family == "columns" and geometry.statistic == "channel":
        # Rows of all images follow each other: one long column of rows.
        data = {
            role: Data(one.ref, 0, 1, one.inner if inner > 1 else one.outer)
            for role, one in data.items()
        }
        outer, inner = 1, outer * inner
    batch_independent = geometry.statistic == "row"
    written = data.get("dx") or data.get("y")
    return Layout(
        family, outer, channels, inner, data[roles[0]], data["x"], written, batch_independent,
        data.get("shortcut") or data.get("dshortcut"),
    )  # fmt: skip


def _repeats(steps: tuple[int, int, int], sizes: tuple[int, int, int]) -> bool:
    """Whether an axis repeats the same elements."""
    return any(step == 0 and size > 1 for step, size in zip(steps, sizes, strict=True))


def _thin(
    builder: Builder,
    role: str,
    steps: tuple[int, int, int],
    sizes: tuple[int, int, int],
    family: str,
    *,
    merged: bool,
) -> Data:
    """A copy that has what is repeated once, but for the axis that is to be contiguous.

    One number that is expanded to the data's shape becomes a plane or a row, not 16 GiB. Where rows
    of all images are ``merged``, either both axes of them are repeated or none.
    """
    order = (0, 2, 1) if family == "columns" else (0, 1, 2)
    whole = {order[-1]} | ({0, 2} if merged and (steps[0] or steps[2]) else set())
    kept = [size if steps[axis] or axis in whole else 1 for axis, size in enumerate(sizes)]
    shape = tuple(kept[axis] for axis in order)
    ref = builder.pack_view(role, shape, tuple(steps[axis] for axis in order))
    dense = dict(zip(order, row_major(shape), strict=True))
    outer, channel, inner = (dense[axis] if kept[axis] > 1 else 0 for axis in range(3))
    return Data(ref, outer, channel or int(order[-1] == 1), inner or int(order[-1] == 2))


def flatten(layout: Layout) -> tuple[Layout, int]:
    """Planes of batch norm as columns, one for each pixel: (the same data, pixels of a channel).

    Samples become rows whose columns are contiguous, whatever the size of a plane.
    """
    pixels = layout.inner
    packed = all(one.channel == pixels and one.inner == 1 for one in layout.tensors)
    if layout.family != "planes" or not packed or layout.channels * pixels >= _MANY_COLUMNS:
        return layout, 1

    def row(data: Data) -> Data:
        return replace(data, outer=0, channel=1, inner=data.outer)

    made = replace(layout, family="columns", outer=1, channels=layout.channels * pixels)
    return replace(made.of_each(row), inner=layout.outer), pixels


def fold(layout: Layout, cols: int) -> tuple[Layout, int]:
    """As many rows side by side as fill tiles of ``cols`` columns, and how many that are.

    Then no thread is idle, and all vectors are of 16 bytes whatever the channels.
    """
    channels = layout.channels
    times = cols // math.gcd(cols, channels)
    packed = all(one.inner == channels for one in layout.tensors)
    if channels & (channels - 1) == 0 or not packed or layout.inner % times:
        return layout, 1

    def wider(data: Data) -> Data:
        return replace(data, inner=data.inner * times)

    made = replace(layout, channels=channels * times, inner=layout.inner // times)
    return made.of_each(wider), times


def run_of(layout: Layout, times: int) -> int:
    """Channels that are neighbours wherever rows start: what parameters are loaded in."""
    return math.gcd(layout.channels // times, 8)


def folded(layout: Layout, times: int, align: int) -> dict[str, Argument]:
    """Sizes of rows that lie side by side."""
    period = layout.channels // times // run_of(layout, times) if times > 1 else None
    return {"channels": layout.channels // align, "period": period}


def _steps(tensor: TensorSpec, sizes: tuple[int, int, int]) -> tuple[int, int, int] | None:
    found = reshaped_strides(tensor, sizes)
    return None if found is None else (found[0], found[1], found[2])


def _families(
    steps: tuple[int, int, int] | None, sizes: tuple[int, int, int], geometry: Geometry
) -> tuple[str, ...]:
    """Which families a tensor can be seen in without a copy."""
    if steps is None:
        return ()
    outer_step, channel_step, inner_step = steps
    outer, channels, inner = sizes
    if min(steps) < 0:
        return ()
    unit_channels = channel_step == 1 or channels == 1
    if inner == 1:
        return ("columns",) if unit_channels else ()
    if inner_step == 1:
        return ("planes",)
    # Batch norm sums over all rows of all images, so these must step evenly.
    even = outer == 1 or outer_step == inner * inner_step or geometry.statistic == "row"
    return ("columns",) if unit_channels and inner_step > 0 and even else ()
