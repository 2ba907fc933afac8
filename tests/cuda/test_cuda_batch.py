"""How a sample's own sums are made does not depend on how many samples there are, or on where they
start in memory."""

import pytest
from interpreted import interpreted

from normgrad.backends.cuda.device import KNOWN
from normgrad.backends.cuda.plan.program import Launch
from normgrad.bench import suites
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.spec import Op

pytest.importorskip("torch")
pytest.importorskip("triton")

# What a slab's sums are made of and in which order, by kernel. The rest is who works when, and how
# what is read gets there.
TILES = ("ROWS", "COLS", "VECTOR", "WARPS")
TEAMS = ("rows", "share", "pieces", "team", "SOLO", *TILES)
COLUMNS = (
    "rows",
    "parts",
    "width",
    "bins",
    "pieces",
    "BINS",
    "SPANS",
    "STEP",
    "TOTALS_COLUMNS",
    *TILES,
)
DECIDE = {
    "row_ring.whole_rows": ("CHUNK", "CHUNKS", "STACKED", "SAMPLES", "PIXELS", *TILES),
    "planes.plane_slabs": ("piece", "TEAM", "WINDOW", "CHUNKS", *TEAMS),
    "columns.column_slabs": ("CHUNKS", "SOLO", *COLUMNS),
    "column_streams.column_streams": ("stream", "REGISTER_TILES", "FIXED", *COLUMNS),
    "sums.plane_sums": ("splits", "planes", "pieces", "run", "WINDOW", *TILES),
    "sums.column_sums": ("splits", "blocks", "rows", "times", *TILES),
    "sums.unit_sums": ("run", *TILES),
    "finish.finish_groups": ("splits", "CHANNELS", "SPLITS"),
    "finish.finish_statistics": ("parts", "UNITS", "PARTS"),
}
# What adds up nothing, or nothing of dx.
OTHERS = ("copy.", "apply.", "finish.finish_parameters")
SHAPES = ("320x64x64", "640x32x32", "256x56x56", "1280x16x16", "512x14x14", "512x7x7", "96x17x17",
          "64x129x129", "128x512x512", "48x5", "30x9x9", "33x23x25", "512x1")  # fmt: skip
SAMPLES = (1, 2, 3, 5, 7, 8, 12, 16, 33, 64, 200)


def sums_of(op, shape, dtype, layout, device, groups):
    """All that decides on the bits of dx, or of y."""
    (workload,) = suites.rows(op, shape, (dtype,), (layout,), groups=groups)
    program = program_of(spec_of(workload.case, dtype), device)
    made = []
    for step in program.steps:
        if not isinstance(step, Launch) or step.kernel.startswith(OTHERS):
            continue
        sizes = dict(step.arguments) | dict(step.constants)
        made.append((step.kernel, [(name, sizes.get(name)) for name in DECIDE[step.kernel]]))
    return made


@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
@pytest.mark.parametrize("name", ["h200", "a100", "rtx3060", "t4"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("op", [Op.GROUP_NORM_BACKWARD, Op.GROUP_NORM])
def test_groups_are_cut_alike_for_any_number_of_samples(op, dtype, name, layout):
    for size in SHAPES:
        if layout == "channels-last" and size.count("x") < 2:
            continue
        channels = int(size.partition("x")[0])
        for groups in {1, 3 if channels % 3 == 0 else 2 if channels % 2 == 0 else 1, channels}:
            first, *others = (
                sums_of(op, f"{count}x{size}", dtype, layout, KNOWN[name], groups)
                for count in SAMPLES
            )
            for count, other in zip(SAMPLES[1:], others, strict=True):
                assert other == first, (size, groups, count)


SLICES = """
import numpy as np
import normgrad as ng
from normgrad.backends.cuda import backend, device

rng = np.random.default_rng(3)


def last(array):
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)


def compare(shape, gradient, view=np.ascontiguousarray, dtype="f4"):
    x, dy = (view(rng.standard_normal(shape).astype(dtype)) for _ in range(2))
    made = gradient(dy, x)
    whole = made(slice(None))
    for some in ((0, 1), (1, 3)):
        got = made(slice(*some))
        assert np.isfinite(got).all()
        assert got.tobytes() == whole[slice(*some)].tobytes(), (shape, dtype, some)


def group(groups):
    def gradient(dy, x):
        mean, rstd = rng.random((2, len(x), groups)).astype("f4")
        gamma = rng.random(x.shape[1]).astype("f4")

        def made(some):
            operands = dy[some], x[some], mean[some], rstd[some], groups
            return ng.group_norm_backward(*operands, weight=gamma, backend="cuda").grad_input

        return made

    return gradient


def layer(dy, x):
    mean, rstd = rng.random((2, len(x))).astype("f4")

    def made(some):
        operands = dy[some], x[some], mean[some], rstd[some], x.shape[1]
        return ng.layer_norm_backward(*operands, backend="cuda").grad_input

    return made


for columns in (64, 65, 300):
    compare((4, columns), layer)
compare((4, 257), layer, dtype="f2")
for view in (np.ascontiguousarray, last):
    backend.INTERPRETER = device.INTERPRETER
    compare((4, 15, 5, 5), group(3), view)
    backend.INTERPRETER = device.Device("small", 80, 3, 65536, 60 << 10, 2048)  # no ring
    compare((4, 12, 40, 5), group(3), view)
    compare((4, 4, 23, 23), group(2), view, "f2")
    backend.INTERPRETER = device.Device("old", 75, 3, 65536, 60 << 10, 1024)  # two passes
    compare((4, 4, 40, 31), group(2), view)
for view in (np.ascontiguousarray, last):
    forward = lambda _, x: lambda some: ng.group_norm(x[some], 3, backend="cuda").output
    for backend.INTERPRETER in (
        device.INTERPRETER,
        device.Device("small", 80, 3, 65536, 60 << 10, 2048),
        device.Device("old", 75, 3, 65536, 60 << 10, 1024),
    ):
        compare((4, 15, 5, 5), forward, view)
        compare((4, 12, 40, 5), forward, view, "f2")
for columns in (64, 65, 300, 2050):
    rows = lambda _, x: lambda some: ng.layer_norm(x[some], x.shape[1], backend="cuda").output
    compare((4, columns), rows)
print("done")
"""


@pytest.mark.slow(8)
def test_slices_of_a_batch_have_its_bits():
    """Also those that start at no multiple of 16 bytes, whose statistics do not either."""
    assert interpreted("-c", SLICES).strip() == "done"
