"""How data lie in memory, as the kernels see it: planes (channels first) or columns (last)."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from normgrad.backends.cuda.program import Argument, Builder, Ref
from normgrad.backends.cuda.tiles import ceil_div, typical_batch
from normgrad.dtypes import ITEMSIZE
from normgrad.geometry import Geometry, has_channel_axis, reshaped_strides
from normgrad.spec import DATA, TensorSpec, row_major

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
    dy: Data
    x: Data
    dx: Data | None
    own: bool  # samples have sums of their own, which must not depend on those around

    @property
    def tensors(self) -> tuple[Data, ...]:
        """Those that take part."""
        return (self.dy, self.x) if self.dx is None else (self.dy, self.x, self.dx)

    def operands(self, builder: Builder, *, results: bool) -> dict[str, Ref | None]:
        """What a kernel of whole slabs reads and writes; its parameter gradients if wanted."""
        assert self.dx is not None
        data = {"dy": self.dy.ref, "x": self.x.ref, "dx": self.dx.ref}
        vectors = {role: builder.vector(role) for role in ("mean", "rstd", "gamma")}
        sums = {role: builder.result(role) if results else None for role in ("dgamma", "dbeta")}
        return data | vectors | sums

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
        samples = 1 if self.own else self.outer
        whole = samples * self.channels * self.inner * itemsize % 16 == 0
        fits = len(itemsizes) == 1 and itemsize <= 4 and whole and self.packed
        return 16 // itemsize if odd and fits else 0

    @property
    def typical(self) -> int:
        """Samples to cut the data for: those there are, or as many whatever there are."""
        if not self.own or self.dx is None:
            return self.outer
        itemsize = max(ITEMSIZE[one.ref.dtype] for one in self.tensors)
        return typical_batch(self.channels * self.inner * itemsize)

    @property
    def span(self) -> int:
        """Elements of a plane's window, wherever it starts; of the plane where it has none."""
        window = self.window
        return ceil_div(self.inner + window - 1, window) * window if window else self.inner

    @property
    def both_bytes(self) -> int:
        """Of an element of x and one of dy."""
        return ITEMSIZE[self.x.ref.dtype] + ITEMSIZE[self.dy.ref.dtype]

    @property
    def same_strides(self) -> bool:
        """Whether one offset serves all tensors."""
        return len({(one.outer, one.channel, one.inner) for one in self.tensors}) == 1


def lay_out(builder: Builder, geometry: Geometry) -> Layout:
    """See all data in one family, with copies where they do not agree on one."""
    spec = builder.spec
    roles = DATA if spec.dx is not None else DATA[:2]
    channels = geometry.groups * geometry.channels
    sizes = (geometry.outer, channels, geometry.inner)
    steps = {role: _steps(spec.present(role), sizes) for role in roles}
    families = {role: _families(found, sizes, geometry) for role, found in steps.items()}
    # x decides, since dx lies like it as a rule; dy where x must be copied anyhow.
    agreed = all("columns" in one for one in families.values())
    wished = "columns" in (families["x"] or families["dy"]) and has_channel_axis(spec)
    columns = geometry.inner == 1 or agreed or wished
    family: Literal["planes", "columns"] = "columns" if columns else "planes"
    last = family == "columns" and geometry.inner > 1
    dense = (channels * geometry.inner, *((1, channels) if last else (geometry.inner, 1)))
    data = {}
    for role, found in steps.items():
        if found is not None and family in families[role]:
            data[role] = Data(Ref(role, 0, spec.present(role).dtype), *found)
        elif role == "dx":
            data[role] = Data(builder.bounce(role, channels_last=last), *dense)
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
    own = geometry.statistic == "row"
    return Layout(family, outer, channels, inner, data["dy"], data["x"], data.get("dx"), own)


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

    dx = None if layout.dx is None else row(layout.dx)
    made = replace(layout, family="columns", outer=1, channels=layout.channels * pixels, dx=dx)
    return replace(made, inner=layout.outer, dy=row(layout.dy), x=row(layout.x)), pixels


def fold(layout: Layout, cols: int) -> tuple[Layout, int]:
    """As many rows side by side as fill tiles of ``cols`` columns, and how many that are.

    Then no thread is idle, and all vectors are of 16 bytes whatever the channels: the element stage
    of 64x320x56x56 in bfloat16 takes 128 us as it lies on an H200, 92 folded.
    """
    channels = layout.channels
    times = cols // math.gcd(cols, channels)
    packed = all(one.inner == channels for one in layout.tensors)
    if channels & (channels - 1) == 0 or not packed or layout.inner % times:
        return layout, 1

    def wider(data: Data) -> Data:
        return replace(data, inner=data.inner * times)

    dx = None if layout.dx is None else wider(layout.dx)
    made = replace(layout, channels=channels * times, inner=layout.inner // times, dx=dx)
    return replace(made, dy=wider(layout.dy), x=wider(layout.x)), times


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
