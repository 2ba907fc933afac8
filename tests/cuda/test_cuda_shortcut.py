"""Batch norm with a shortcut whose data stay on chip, in Triton's interpreter.

Blocks so small that small data have many tiles, teams and rounds; bytes around all results and the
workspace, which must stay as they are; masks at odd addresses. A mask of the forward pass goes
into the backward pass and must have the reference's bits.
"""

import pytest
from interpreted import interpreted

pytest.importorskip("torch")
pytest.importorskip("triton")

PROGRAM = """
import itertools
import numpy as np
import torch
from host_areas import HostAreas
import normgrad as ng
from normgrad.backends.cuda import backend, device
from normgrad.backends.cuda.plan import column_cuts
from normgrad.backends.cuda.plan.tiles import Block
from normgrad.backends.cuda.plan.tuned import columns as tuned
from normgrad.backends.cuda.run import interpret
from normgrad.calls import cached_calls, dispatch
from normgrad.core.plan import _make_plan

backend.INTERPRETER = device.Device("tiny", 90, 2, 65536, 26 << 10, 2048)
GUARD = 4096
NEAR = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # that cuts off here
run = interpret.interpret
areas = itertools.cycle([HostAreas(), None])
met = []


def guarded(program, spec, addresses, workspace, _):
    met.append(program)
    size = (program.unaligned or program).workspace_bytes
    memory = np.full(size + 2 * GUARD, 0x5A, np.uint8)
    run(program, spec, addresses, memory.ctypes.data + GUARD, next(areas))
    assert (memory[:GUARD] == 0x5A).all() and (memory[-GUARD:] == 0x5A).all(), program


interpret.interpret = guarded


def forget():
    _make_plan.cache_clear()
    for module in (cached_calls, dispatch):
        for value in vars(module).values():
            getattr(value, "cache_clear", int)()


def last(data):
    return data.movedim(1, -1).contiguous().movedim(-1, 1)


class Results:
    # New ones with bytes around them; data lie as they are asked to, so far off 16 bytes.

    def __init__(self):
        self.all = []

    def new(self, shape, dtype, order=None, off=0):
        size = int(np.prod(shape)) * dtype.itemsize
        memory = torch.full((size + 2 * GUARD + 64,), 0xA5, dtype=torch.uint8)
        start = -memory.data_ptr() % 16 + GUARD + off
        made = memory[start : start + size].view(dtype)
        made.fill_(float("nan") if dtype.is_floating_point else 0x5A)
        self.all.append((memory, start, start + size))
        if order is last:
            return made.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
        return made.view(shape)

    def untouched(self):
        for memory, start, stop in self.all:
            assert (memory[:start] == 0xA5).all() and (memory[stop:] == 0xA5).all()


def same(got, want, dtype):
    assert not got.isnan().any()
    apart = (got.double() - want.double()).abs().max()
    assert apart <= NEAR[dtype] * want.double().abs().max(), apart


def compare(shape, dtype, order, activation="relu", off=0):
    # Forward and back: what each pass gives, on the reference's mask.
    random = np.random.default_rng(len(shape) + shape[0])
    some = lambda *sizes: torch.from_numpy(random.standard_normal(sizes).astype("f4"))
    x, r, dy = (order(one.to(dtype)) for one in (5 + 3 * some(*shape), some(*shape), some(*shape)))
    gamma, beta = some(shape[1]), some(shape[1])
    if off:
        moved = Results()
        x, r, dy = (moved.new(shape, dtype, order, off).copy_(one) for one in (x, r, dy))
    masks = activation == "relu"
    given = {"weight": gamma, "bias": beta, "activation": activation}
    want = ng.batch_norm(x, shortcut=r, **given, backend="reference")
    results = Results()
    line = lambda: results.new((shape[1],), torch.float32)
    out = [results.new(shape, dtype, order, off), line(), line()]
    if masks:
        out.append(results.new(tuple(want.mask.shape), torch.uint8, off=3))
    running = [torch.ones(shape[1]) for _ in range(2)]
    names = dict(zip(("running_mean", "running_var"), running))
    got = ng.batch_norm(x, shortcut=r, **given, **names, out=out, backend="cuda")
    forward = met[-1].strategy
    results.untouched()
    same(got.output, want.output, dtype)
    same(got.mean, want.mean, torch.float32)
    same(got.rstd, want.rstd, torch.float32)
    count = x.numel() / shape[1]
    unbiased = x.double().movedim(1, 0).reshape(shape[1], -1).var(1)
    assert (running[1] - 0.9 - 0.1 * unbiased).abs().max() < 1e-4 * unbiased.max()
    if not masks:
        return forward, None, [got.output]
    assert torch.equal(got.mask, want.mask), "bits of the mask"
    statistics = want.mean.float(), want.rstd.float()
    given |= {"mask": got.mask}
    del given["bias"]
    want = ng.batch_norm_backward(dy, x, *statistics, **given, backend="reference")
    out = [results.new(shape, dtype, order, off), line(), line()]
    out.append(results.new(shape, dtype, order, off))
    found = ng.batch_norm_backward(dy, x, *statistics, **given, out=out, backend="cuda")
    results.untouched()
    assert torch.equal(found.grad_shortcut, want.grad_shortcut.to(dtype)), "what goes through"
    for one, other in zip(found[:3], want[:3]):
        same(one, other, dtype)
    less = {"output_mask": (True, False, True, False)}
    again = ng.batch_norm_backward(dy, x, *statistics, **given, **less, backend="cuda")
    assert torch.equal(again.grad_input, found.grad_input)
    assert torch.equal(again.grad_bias, found.grad_bias)
    assert again.grad_shortcut is None and again.grad_weight is None
    return forward, met[-1].strategy, [got.output, *found[:4]]
"""

COLUMNS = (
    PROGRAM
    + """
tuned.LEAST_ROW_BYTES = 16
tuned.TWO_PASSES_US = 1e9  # they would be taken
every = column_cuts.cuts
column_cuts._blocks = lambda data: (
    (Block(1, 512, 6, 128, held=1, beside=2), Block(1, 512, 4, 128, held=2, beside=3),
     Block(2, 1024, 9, 128, held=3, beside=3))
    if data.tensors == 1
    else (Block(1, 512, 6, 128, held=1), Block(1, 512, 5, 128, held=2),
          Block(2, 1024, 7, 128, held=3), Block(2, 512, 9, 128, held=3, most=12))
)


def kind(cut):
    few = cut.tiles - cut.held <= 5
    more = cut.tiles > cut.depth
    return (cut.team > 1, cut.totals_columns, cut.rounds > 1, few, cut.held > 0, more,
            cut.requests_after_publish, cut.l2_tiles > 0)


def sweep(shape, dtype, **options):
    # All kinds of cuts there are.
    seen = {1: [], 2: []}
    column_cuts.cuts = lambda data, device: (
        seen[data.tensors].extend(every(data, device)) or seen[data.tensors][:1])
    forget()
    compare(shape, dtype, last, **options)
    kinds = {number: {kind(cut): cut for cut in cuts} for number, cuts in seen.items()}
    for turn in range(max(map(len, kinds.values()))):
        cuts = {number: list(one.values()) for number, one in kinds.items() if one}
        column_cuts.cuts = lambda data, device: [cuts[data.tensors][turn % len(cuts[data.tensors])]]
        forget()
        forward, back, _ = compare(shape, dtype, last, **options)
        assert forward == "resident columns with a shortcut", forward
        assert back in (None, "resident columns with a shortcut's gradient"), back
    return sum(map(len, kinds.values()))


SHAPES
print("done")
"""
)
SHAPES = {
    "float32": """
found = sweep((57, 72), torch.float32) + sweep((350, 40), torch.float32)
found += sweep((3, 20, 7, 11), torch.float32)  # vectors of 16 bytes, bytes in part
found += sweep((40, 72), torch.float32, activation="silu") + sweep((9, 30), torch.float32)
assert found > 20, found
tuned.MANY_WORDS = tuned.MOST_WORDS = 0  # totals of columns
sweep((57, 72), torch.float32)
""",
    "16 bits": """
found = sweep((350, 40), torch.float16) + sweep((57, 72), torch.bfloat16)
found += sweep((3, 20, 7, 11), torch.float16)  # copies of 8 bytes
found += sweep((64, 30), torch.bfloat16) + sweep((40, 72), torch.float16, activation=None)
assert found > 20, found
# Wherever data start, the bits are the same.
column_cuts.cuts = every
for dtype in (torch.float32, torch.float16):
    forget()
    forward, back, want = compare((57, 72), dtype, last)
    assert "resident" in forward and "resident" in back
    _, _, got = compare((57, 72), dtype, last, off=dtype.itemsize)
    assert all(torch.equal(one, other) for one, other in zip(got, want))
""",
}


@pytest.mark.slow(60)
@pytest.mark.parametrize("types", list(SHAPES))
def test_columns_with_a_shortcut(types):
    program = COLUMNS.replace("SHAPES\n", SHAPES[types])
    assert interpreted("-c", program).strip() == "done"
