"""What is measured: named lists of rows, each an operator on one shape, type and layout."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from normgrad.core.dtypes import FLOATS
from normgrad.core.errors import OptionError
from normgrad.core.operators import OPERATORS
from normgrad.core.spec import Op, TensorSpec
from normgrad.core.validate import validate_data
from normgrad.verify.cases import USUAL_LAYOUTS, Case, Layout
from normgrad.verify.problem import request

LAYOUTS: Final = USUAL_LAYOUTS
GROUPS = 32
_CPU_TYPES = ("float32", "bfloat16", "float16")
_GPU_TYPES = ("bfloat16", "float32")


def sizes_text(shape: Sequence[int], groups: int | None, normalized: int | None) -> str:
    """Sizes as in the tables."""
    text = "x".join(map(str, shape))
    if groups is not None:
        return f"{text} G{groups}"
    return f"{text} last {normalized}" if (normalized or 1) > 1 else text


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of a benchmark: a case and the type of its data."""

    case: Case
    dtype: str

    @property
    def groups(self) -> int | None:
        """Of group norm."""
        return self.case.num_groups if OPERATORS[self.case.op].axes == "groups" else None

    @property
    def normalized(self) -> int | None:
        """How many last axes, where those are normalized."""
        return self.case.normalized if OPERATORS[self.case.op].axes == "rows" else None

    @property
    def shape(self) -> str:
        """Sizes as text, with what the operator needs besides."""
        return sizes_text(self.case.shape, self.groups, self.normalized)

    @property
    def mask(self) -> str:
        """The wanted results as bits."""
        return "".join("01"[bit] for bit in self.case.wanted)

    @property
    def name(self) -> str:
        """What tells this row from all others."""
        parts = [self.case.op.value, self.shape, self.dtype, self.case.layout]
        if self.case.form:
            parts.append(self.case.form)
        if "0" in self.mask:
            parts.append(f"mask {self.mask}")
        return " ".join(parts)

    @property
    def data_bytes(self) -> int:
        """The bytes of x, which are those of dy and dx too."""
        return math.prod(self.case.shape) * FLOATS[self.dtype].itemsize

    @property
    def streams(self) -> float:
        """How often a tensor of x's size must cross the memory bus, at least.

        All three gradients need x, dy and dx once; parameter gradients alone x and dy; the bias
        gradient alone dy; an inference dx alone dy and dx. A forward pass needs x and y. A sum or a
        shortcut is one more, in or out; a mask has a bit an element.
        """
        wanted = dict(zip(self.case.results, self.case.wanted, strict=True))
        bits = 1 / (8 * FLOATS[self.dtype].itemsize)
        more = {"none": 0.0, "values": 1.0, "mask": bits}[self.case.shortcut]
        if OPERATORS[self.case.op].forward:
            more += wanted.get("sum", False) + self.case.residual + (self.case.shortcut == "mask")
            return int(any(wanted.values())) + int(wanted.get("y", False)) + more
        more += wanted.get("dshortcut", False) + self.case.residual
        writes = wanted.get("dx", False)
        needs_x = any(wanted.get(role) for role in ("dgamma", "sum_dy_xmu")) or (
            writes and self.case.training
        )
        return int(any(wanted.values())) + int(needs_x) + int(writes) + more


def rows(
    op: Op,
    shapes: str,
    dtypes: Iterable[str],
    layouts: Iterable[Layout] = LAYOUTS[:1],
    mask: tuple[bool, ...] = (),
    groups: int = GROUPS,
    normalized: int = 1,
) -> Iterator[Workload]:
    """Rows for shapes written as in the tables: ``32x64x56x56, 1024x256``."""
    if "variances" in OPERATORS[op].takes:
        raise OptionError("op", "must have data of a size worth measuring", op)
    for text, layout, dtype in product(shapes.split(","), layouts, dtypes):
        shape = parse_shape(text)
        # Two axes lie in one order only, and rows have no channels.
        if layout == "channels-last" and (len(shape) < 3 or OPERATORS[op].axes == "rows"):
            continue
        if not 1 <= normalized <= len(shape):
            raise OptionError("normalized", f"must be from 1 to {len(shape)} axes", normalized)
        case = Case(
            id=text.strip(),
            op=op,
            shape=shape,
            layout=layout,
            num_groups=groups if OPERATORS[op].axes == "groups" else 1,
            normalized=normalized,
            mask=mask,
            statistic="variance" if op is Op.BATCH_NORM_STATS else "invstd",  # as it gives it
        )
        data = TensorSpec.contiguous(shape, dtype)
        validate_data(request(case, dict.fromkeys(OPERATORS[op].data_in, data), {}))
        yield Workload(case, dtype)


def asked(
    op: Op,
    shapes: Sequence[str],
    dtypes: Sequence[str],
    layouts: Sequence[Layout],
    groups: int | None = None,
    normalized: int | None = None,
    mask: str | None = None,
) -> list[Workload]:
    """The rows of a command line that names shapes; each option must have an effect."""
    for name, value, owner in (
        ("groups", groups, "groups"),
        ("normalized", normalized, "rows"),
    ):
        if value is not None and OPERATORS[op].axes != owner:
            others = " and ".join(one for one, row in OPERATORS.items() if row.axes == owner)
            raise OptionError(name, f"must be left out for all but {others}", value)
    groups = GROUPS if groups is None else groups
    normalized = 1 if normalized is None else normalized
    listed = ",".join("x".join(map(str, parse_shape(text))) for text in shapes)
    found = list(rows(op, listed, dtypes, layouts, (), groups, normalized))
    if not found:
        rule = "must be contiguous for rows and for two axes"
        raise OptionError("layout", rule, ", ".join(layouts))
    return found if mask is None else masked(found, mask)


def masked(workloads: Iterable[Workload], bits: str) -> list[Workload]:
    """The rows with these results wanted alone, as ``110``; other operators' rows drop out."""
    if not bits or set(bits) - {"0", "1"} or "1" not in bits:
        raise OptionError("mask", "must be bits with at least one 1, as 110", bits)
    mask = tuple(bit == "1" for bit in bits)
    listed = list(workloads)
    found = [
        Workload(dataclasses.replace(one.case, mask=mask), one.dtype)
        for one in listed
        if len(one.case.results) == len(mask)
    ]
    if listed and not found:
        results = dict.fromkeys(", ".join(one.case.results) for one in listed)
        raise OptionError("mask", f"must have a bit for each of {'; or of '.join(results)}", bits)
    return found


def parse_shape(text: str) -> tuple[int, ...]:
    """``32x64x56x56`` as sizes. People write ``(4096, 1024)`` too, which is one shape."""
    bare = text.lower().strip(" ()[]")
    splits = [[part.strip() for part in bare.split(joint)] for joint in ("x", ",", "*", None)]
    parts = next((parts for parts in splits if all(map(str.isdecimal, parts))), [])
    if not parts:
        rule = "must be sizes of one shape joined by x, as in 32x64x56x56"
        raise OptionError("shape", rule, text)
    shape = tuple(map(int, parts))
    if not all(size > 0 for size in shape):
        raise OptionError("shape", "must have positive sizes", text)
    if math.prod(shape) >= 2**60:  # of eight bytes each: no address space has more
        raise OptionError("shape", "must have fewer than 2**60 elements", text)
    return shape


def _cpu() -> Iterator[Workload]:
    """The table of targets for a CPU: three types, both layouts."""
    batch = "32x64x56x56, 32x256x14x14, 8x256x56x56, 64x512x7x7, 16x16x8x48, 1024x256"
    yield from rows(Op.BATCH_NORM_BACKWARD, batch, _CPU_TYPES, LAYOUTS)
    yield from rows(Op.BATCH_NORM_BACKWARD, "2x64x32x32x32, 20x6x65536", _CPU_TYPES, LAYOUTS)
    layer = "4096x1024, 8192x4096, 16384x768, 512x12288, 131072x128, 8x50x768"
    yield from rows(Op.LAYER_NORM_BACKWARD, layer, _CPU_TYPES)
    yield from rows(Op.LAYER_NORM_BACKWARD, "64x3x32x32", _CPU_TYPES, normalized=3)
    yield from rows(Op.RMS_NORM_BACKWARD, layer, _CPU_TYPES)
    group = "2x320x64x64, 8x640x32x32, 16x1280x16x16, 1x128x256x256, 64x256x14x14"
    yield from rows(Op.GROUP_NORM_BACKWARD, group, _CPU_TYPES, LAYOUTS)
    yield from rows(Op.BATCH_NORM_ELEMT_BACKWARD, "32x64x56x56, 8x256x56x56", _CPU_TYPES, LAYOUTS)
    yield from rows(Op.BATCH_NORM, batch, _CPU_TYPES, LAYOUTS)
    for op in (Op.LAYER_NORM, Op.RMS_NORM):
        yield from rows(op, layer, _CPU_TYPES)
    yield from rows(Op.GROUP_NORM, group, _CPU_TYPES, LAYOUTS)
    for op in (Op.BATCH_NORM_STATS, Op.BATCH_NORM_ELEMT):
        yield from rows(op, "32x64x56x56", _CPU_TYPES, LAYOUTS)


def _h200() -> Iterator[Workload]:
    """The table of targets for an H200: the rows measured first, then further ones."""
    layer = "16384x1024, 16384x4096, 8192x8192, 65536x768"
    yield from rows(Op.LAYER_NORM_BACKWARD, layer, ("bfloat16",))
    yield from rows(Op.LAYER_NORM_BACKWARD, "16384x4096, 8192x8192", ("float32",))
    batch = "64x64x112x112, 64x256x56x56, 64x512x28x28, 64x1024x14x14, 64x2048x7x7, 256x64x56x56"
    yield from rows(Op.BATCH_NORM_BACKWARD, batch, ("bfloat16",), LAYOUTS)
    yield from rows(Op.BATCH_NORM_BACKWARD, "64x256x56x56, 64x64x112x112", ("float32",), LAYOUTS)
    group = "2x320x64x64, 8x640x32x32, 16x1280x16x16, 4x512x128x128, 2x128x512x512"
    yield from rows(Op.GROUP_NORM_BACKWARD, group, ("bfloat16",))
    yield from rows(
        Op.BATCH_NORM_ELEMT_BACKWARD, "64x256x56x56, 256x64x112x112", _GPU_TYPES, LAYOUTS
    )
    yield from rows(Op.BATCH_NORM_REDUCE_BACKWARD, "64x256x56x56", _GPU_TYPES, LAYOUTS)
    layer = "4096x4096, 4096x16384, 8192x5120, 1024x12288, 2048x32768, 32768x256, 131072x128"
    yield from rows(Op.LAYER_NORM_BACKWARD, layer, _GPU_TYPES)
    batch = "256x64x112x112, 256x256x56x56, 256x512x28x28, 256x2048x7x7, 32x256x56x56"
    yield from rows(Op.BATCH_NORM_BACKWARD, batch, _GPU_TYPES, LAYOUTS)
    batch = "20x6x65536, 131072x256, 2x64x128x128x128"
    yield from rows(Op.BATCH_NORM_BACKWARD, batch, _GPU_TYPES, LAYOUTS)
    group = "2x640x32x32, 2x960x64x64, 8x320x64x64, 16x320x64x64, 1x512x512x512"
    yield from rows(Op.GROUP_NORM_BACKWARD, group, _GPU_TYPES, LAYOUTS)
    yield from rows(Op.GROUP_NORM_BACKWARD, "1x128x1024x1024, 64x256x56x56", _GPU_TYPES, LAYOUTS)
    rms = "131072x128, 65536x768, 16384x1024, 16384x4096, 8192x8192, 4096x16384"
    yield from rows(Op.RMS_NORM_BACKWARD, rms, _GPU_TYPES)
    batch = "64x256x56x56, 64x64x112x112, 64x512x28x28, 64x1024x14x14, 128x256x56x56, 131072x256"
    yield from rows(Op.BATCH_NORM, batch, _GPU_TYPES, LAYOUTS)
    for op in (Op.LAYER_NORM, Op.RMS_NORM):
        yield from rows(op, rms, _GPU_TYPES)
    group = "8x640x32x32, 4x512x128x128, 2x128x512x512, 16x320x64x64, 64x256x56x56"
    yield from rows(Op.GROUP_NORM, group, _GPU_TYPES, LAYOUTS)
    for op in (Op.BATCH_NORM_STATS, Op.BATCH_NORM_ELEMT):
        yield from rows(op, "64x256x56x56", _GPU_TYPES, LAYOUTS)


def _quick() -> Iterator[Workload]:
    """One usual shape for each operator: a minute or less."""
    for op in (Op.BATCH_NORM_BACKWARD, Op.BATCH_NORM_REDUCE_BACKWARD, Op.BATCH_NORM_ELEMT_BACKWARD):
        yield from rows(op, "32x64x56x56", _GPU_TYPES)
    yield from rows(Op.BATCH_NORM_BACKWARD, "32x64x56x56", _GPU_TYPES, LAYOUTS[1:])
    for op in (Op.LAYER_NORM_BACKWARD, Op.RMS_NORM_BACKWARD):
        yield from rows(op, "4096x1024", _GPU_TYPES)
    yield from rows(Op.GROUP_NORM_BACKWARD, "8x640x32x32", _GPU_TYPES, LAYOUTS)
    yield from rows(Op.BATCH_NORM, "32x64x56x56", _GPU_TYPES, LAYOUTS)
    for op in (Op.LAYER_NORM, Op.RMS_NORM):
        yield from rows(op, "4096x1024", _GPU_TYPES)
    yield from rows(Op.GROUP_NORM, "8x640x32x32", _GPU_TYPES, LAYOUTS)


def _resnet50() -> Iterator[Workload]:
    """Every distinct batch norm of ResNet-50, 32 images."""
    sizes = "64x112x112 64x56x56 256x56x56 128x56x56 128x28x28 512x28x28 256x28x28 256x14x14 "
    sizes += "1024x14x14 512x14x14 512x7x7 2048x7x7"
    shapes = ",".join(f"32x{size}" for size in sizes.split())
    yield from rows(Op.BATCH_NORM_BACKWARD, shapes, _GPU_TYPES, LAYOUTS)


def _deeplab() -> Iterator[Workload]:
    """Batch norms of DeepLab on crops of 513x513, 8 images: planes that start anywhere."""
    sizes = "64x257x257 64x129x129 256x129x129 128x65x65 512x65x65 256x33x33 1024x33x33 2048x33x33"
    shapes = ",".join(f"8x{size}" for size in sizes.split())
    yield from rows(Op.BATCH_NORM_BACKWARD, shapes, _GPU_TYPES)


def _sd_unet() -> Iterator[Workload]:
    """Every distinct group norm of Stable Diffusion 1.5's U-Net, two latents of 64x64."""
    sizes = "320x64x64 640x64x64 960x64x64 320x32x32 640x32x32 960x32x32 1280x32x32 1920x32x32 "
    sizes += "640x16x16 1280x16x16 1920x16x16 2560x16x16 1280x8x8 2560x8x8"
    shapes = ",".join(f"2x{size}" for size in sizes.split())
    yield from rows(Op.GROUP_NORM_BACKWARD, shapes, _GPU_TYPES, LAYOUTS)


def _llm() -> Iterator[Workload]:
    """Layer norms of language models from GPT-2 to GPT-3, 4096 tokens."""
    widths = (768, 1024, 1280, 1600, 2048, 2560, 4096, 5120, 8192, 12288)
    shapes = ",".join(f"4096x{width}" for width in widths)
    yield from rows(Op.LAYER_NORM_BACKWARD, shapes, _GPU_TYPES)


def _fused() -> Iterator[Workload]:
    """Norms with what stands around them in models, forward and backward: 51 MB of 16 bits."""

    def fused(listed: Iterable[Workload], **options: Any) -> Iterator[Workload]:
        for one in listed:
            yield Workload(dataclasses.replace(one.case, **options), one.dtype)

    image, rows_of = "32x256x56x56", "16384x1600"
    for op in (Op.BATCH_NORM, Op.BATCH_NORM_BACKWARD):
        images = list(rows(op, image, _GPU_TYPES, LAYOUTS))
        yield from images
        for name in ("relu", "silu", "hardswish"):
            yield from fused(images, activation=name)
        yield from fused(images, activation="relu", shortcut="mask")
        yield from fused(images, activation="relu", shortcut="values")
    for op in (Op.GROUP_NORM, Op.GROUP_NORM_BACKWARD):
        images = list(rows(op, image, _GPU_TYPES, LAYOUTS))
        yield from images
        yield from fused(images, activation="silu")
        yield from fused(images, each_sample=True)
    for op in (Op.LAYER_NORM, Op.LAYER_NORM_BACKWARD, Op.RMS_NORM, Op.RMS_NORM_BACKWARD):
        plain = list(rows(op, rows_of, _GPU_TYPES))
        yield from plain
        yield from fused(plain, residual=True)
        yield from fused(plain, activation="gelu")
        sampled = rows(op, "16x1024x1600", _GPU_TYPES)
        yield from fused(sampled, each_sample=True)


_SUITES: Final = {
    "quick": _quick,
    "cpu": _cpu,
    "h200": _h200,
    "resnet50": _resnet50,
    "deeplab": _deeplab,
    "sd-unet": _sd_unet,
    "llm": _llm,
    "fused": _fused,
}
SUITES: Final = (*_SUITES, "all", "forward")


def suite(name: str, device: str) -> tuple[Workload, ...]:
    """A suite by name; ``all`` is the table of targets for the kind of device.

    ``forward`` has its rows of forward passes, and those of RMS norm both ways.
    """
    table = "h200" if device.startswith("cuda") else "cpu"
    found = tuple(dict.fromkeys(_SUITES[table if name in ("all", "forward") else name]()))
    if name != "forward":
        return found
    ops = [op for op, one in OPERATORS.items() if one.forward or not one.centred]
    return tuple(one for one in found if one.case.op in ops)
