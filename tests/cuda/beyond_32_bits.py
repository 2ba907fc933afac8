"""Offsets and counts beyond 2**31, interpreted on memory of which only some pages are touched.

For a process with Triton's interpreter: `test_cuda_interpreter.py` starts it.
"""

import builtins
import mmap
from dataclasses import replace

import pytest
import torch
from cuda_plans import launches, plan
from triton.runtime import interpreter

import normgrad as ng
from normgrad.backends.cuda.device import KNOWN
from normgrad.backends.cuda.plan.program import Ref
from normgrad.backends.cuda.run.launch import constants_of, kernel_of
from normgrad.bench.suites import rows
from normgrad.cli.plan import program_of, spec_of
from normgrad.core.spec import Op

EDGE = 1 << 31
_NORESERVE = 0x4000


def sparse(count, dtype, before=0):
    """So many zeros that take no memory until they are written, and some elements before them."""
    size = torch.empty(0, dtype=dtype).element_size()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    memory = mmap.mmap(-1, (before + count) * size, flags=flags)
    return torch.frombuffer(memory, dtype=dtype)[before:]


def run_block(step, block, memory, monkeypatch, **changed):
    """One block of a launch, with some constants changed."""
    given = {
        name: memory[name] if isinstance(value, Ref) else value
        for name, value in step.arguments
        if value is not None
    }
    blocks = step.grid[0]
    # The interpreter's own loop over the first axis of a grid.
    monkeypatch.setattr(
        interpreter,
        "range",
        lambda *ends: [block] if ends == (blocks,) else builtins.range(*ends),
        raising=False,
    )
    kernel_of(step.kernel)[step.grid](**given, **constants_of(step) | changed)


@pytest.mark.parametrize("step", [EDGE - 8, EDGE])
def test_small_planes_of_samples_far_apart(step):
    shape, strides = (2, 4, 12, 12), (step, 144, 12, 1)
    x, dy, dx = (sparse(step + 576, torch.float16).as_strided(shape, strides) for _ in range(3))
    x.copy_(torch.randn(shape) + 3)
    dy.copy_(torch.randn(shape))
    gamma, mean, rstd = torch.ones(4), torch.full((4,), 3.0), torch.ones(4)
    sums = torch.empty(4), torch.empty(4)
    operands = dy, x, mean, rstd
    want = ng.batch_norm_backward(*operands, weight=gamma, backend="reference")
    ng.batch_norm_backward(*operands, weight=gamma, out=(dx, *sums), backend="cuda")
    unit = want.grad_input.double().abs() * 2**-10 + 2**-24  # of float16
    assert bool(((dx.double() - want.grad_input.double()).abs() <= unit).all())


@pytest.mark.parametrize("op", ["batch_norm_backward", "batch_norm_elemt_backward"])
@pytest.mark.parametrize("length", [EDGE - (1 << 25), EDGE, EDGE + 1024])
def test_the_last_elements_of_a_long_plane(op, length, monkeypatch):
    mask = {} if op == "batch_norm_elemt_backward" else {"mask": (True, False, False)}
    (*_, step) = launches(plan(op, f"1x1x{length}", "float16", **mask))
    data = {role: sparse(length, torch.float16) for role in ("dy", "x", "dx")}
    data["dy"][-2048:] = 1
    one, none = torch.ones(8), torch.zeros(8)
    small = {
        "mean": none,
        "rstd": one,
        "gamma": one,
        "beta": none,
        "totals": none,
        "first_sum": none,
    }
    small |= {"second_sum": none, "counter": torch.ones(4, dtype=torch.int32)}
    # The second pass goes backwards.
    last = 0 if dict(step.constants)["REVERSE"] else step.grid[0] - 1
    run_block(step, last, data | small, monkeypatch)
    assert data["dx"][-512:].tolist() == [1.0] * 512


def test_the_sums_of_a_long_plane(monkeypatch):
    length = EDGE + 4096
    (workload,) = rows(
        Op.BATCH_NORM_BACKWARD, f"1x1x{length}", ("float16",), mask=(False, True, True)
    )
    many = replace(KNOWN["h200"], multiprocessors=1 << 17)  # so that a block has few tiles
    (step, *_) = launches(program_of(spec_of(workload.case, "float16"), many))
    assert step.kernel == "sums.plane_sums"
    splits, constants = dict(step.arguments)["splits"], dict(step.constants)
    dy = sparse(length, torch.float16)
    dy[-1] = 3
    block = (length - 1) // constants["COLS"] // constants["ROWS"] % splits
    memory = {"dy": dy, "x": dy, "mean": torch.zeros(1), "partials": torch.zeros(2 * splits)}
    run_block(step, block, memory, monkeypatch)
    assert memory["partials"][block] == 3.0


@pytest.mark.parametrize("samples", [EDGE // 512, EDGE // 512 + 1])
@pytest.mark.parametrize(("kernel", "device"), [("parameters", "h200"), ("groups", "a100")])
def test_more_channels_of_samples_than_32_bits_count(samples, kernel, device, monkeypatch):
    mask = (False, False, True) if kernel == "parameters" else (True, False, False)
    options = {"groups": 32, "mask": mask, "device": device}
    found = launches(plan("group_norm_backward", f"{samples}x512", "bfloat16", **options))
    step = next(one for one in found if one.kernel == f"finish.finish_{kernel}")
    before = EDGE + 512  # where a sum that is too large for 32 bits would look
    partials = sparse(2 * samples * 512, torch.float32, before)
    partials[(samples - 1) * 512] = 1.0
    dbeta, totals = torch.zeros(512), sparse(2 * samples * 32, torch.float32)
    memory = {"partials": partials, "dbeta": dbeta, "totals": totals, "gamma": torch.ones(512)}
    memory["rstd"] = sparse(samples * 32, torch.float32, 1 << 27)
    block, many = (samples - 1) * 32, {}
    if kernel == "parameters":
        block, many = (
            0,
            {"JOIN_PARTS": 1 << 18, "JOIN_STEPS": -(-samples // (1 << 18))},
        )  # few rounds
    run_block(step, block, memory, monkeypatch, **many)
    assert (dbeta[0] if kernel == "parameters" else totals[(samples - 1) * 32]) == 1.0


@pytest.mark.parametrize("samples", [EDGE // 8, EDGE // 8 + 1])
def test_the_sums_of_so_many(samples, monkeypatch):
    options = {"groups": 4, "mask": (False, False, True)}
    (step, *_) = launches(plan("group_norm_backward", f"{samples}x8x2", "float16", **options))
    assert step.kernel == "sums.unit_sums"
    dy = sparse(samples * 16, torch.float16, 1 << 26)
    dy[-2:] = 1
    partials = sparse(2 * samples * 8, torch.float32, 1 << 26)
    run_block(step, step.grid[0] - 1, {"dy": dy, "partials": partials}, monkeypatch)
    assert partials[samples * 8 - 1] == 2.0
