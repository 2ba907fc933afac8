"""On a GPU: the same bits every time, at any address, over the operands, in any workspace."""

import dataclasses
import math

import pytest
from cuda_calls import GPU, copied, differences, each_request, make, poison, replaced, run, torch

from normgrad.bench import truth
from normgrad.bench.suites import suite
from normgrad.core.plan import make_plan
from normgrad.core.spec import ROLES, dense_like

pytestmark = GPU
SMALL = [one for one in suite("h200", "cuda") if one.data_bytes < 64 << 20]


def assert_right(problem, results):
    reason, _ = truth.wrong(problem, truth.truth(problem), results, 1.0)
    assert reason is None, reason


@each_request
def test_200_repeats_give_the_same_bits(request_):
    problem = make(*request_)
    out = problem.poisoned()
    first = copied(run(problem, out))
    assert_right(problem, first)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(200):
        given = {str(place): tensor for place, tensor in enumerate(out) if tensor is not None}
        poison(given)
        wrong += differences(run(problem, out), first)
    assert int(wrong) == 0


@pytest.mark.parametrize("workload", SMALL, ids=lambda workload: workload.name)
def test_every_shape_of_the_suite_below_64_mb(workload):
    problem = make(workload.case.op.value, workload.case.id, workload.dtype, workload.case.layout)
    assert problem.workload == workload
    assert_right(problem, run(problem, problem.poisoned()))


def shifted(tensor):
    """Room for the same, one element on: no multiple of 4, 8 or 16 bytes any more."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
    moved = room[1:].as_strided(tensor.shape, tensor.stride(), 1)
    assert moved.data_ptr() % 16
    return moved


@each_request
@pytest.mark.parametrize("roles", [("x",), ("dy",), ("x", "dy", "gamma", "mean")], ids="+".join)
def test_data_at_odd_addresses(request_, roles):
    problem = make(*request_)
    moved = {role: shifted(problem.operands[role]).copy_(problem.operands[role]) for role in roles}
    assert_right(problem, run(replaced(problem, **moved), problem.poisoned()))


@each_request
@pytest.mark.parametrize("over", ["x", "dy"])
def test_dx_over_an_operand(request_, over):
    problem = make(*request_)
    if "dx" not in problem.result_dtypes:
        pytest.skip("the operator has no dx")
    want = run(problem)
    mine = replaced(problem, **{over: problem.operands[over].clone()})
    _, *others = problem.poisoned()
    for _ in range(4):  # the last two are written out
        mine.operands[over].copy_(problem.operands[over])
        poison({str(place): one for place, one in enumerate(others) if one is not None})
        got = run(mine, (mine.operands[over], *others))
        assert got["dx"] is mine.operands[over]
        assert int(differences(got, want)) == 0


@each_request
def test_given_results_by_turns(request_):
    """In two places, at odd addresses, on another stream: right, and autograd learns it."""
    problem = make(*request_)
    outs = [problem.poisoned() for _ in range(2)]
    outs.append(tuple(None if one is None else shifted(one) for one in outs[0]))
    side, first = torch.cuda.Stream(), {}
    for turn in range(18):
        place = turn // 2 % 3
        given = {str(slot): one for slot, one in enumerate(outs[place]) if one is not None}
        poison(given)
        before = [one._version for one in given.values()]
        torch.cuda.synchronize()
        with torch.cuda.stream(side if turn % 5 == 4 else torch.cuda.default_stream()):
            got = run(problem, outs[place])
        torch.cuda.synchronize()
        assert [one._version for one in given.values()] == [one + 1 for one in before]
        if place not in first:
            assert_right(problem, got)
        assert int(differences(got, first.setdefault(place, copied(got)))) == 0


@each_request
@pytest.mark.parametrize("filling", [0x00, 0x7F, 0xFF])
def test_any_workspace_of_the_caller(request_, filling):
    """What it held does not matter, and nothing is written beside it."""
    problem = make(*request_)
    want = run(problem)
    spec = dataclasses.replace(problem.spec, device="cuda:0")
    if spec.dx is not None:
        spec = dataclasses.replace(spec, dx=dense_like(spec.x))
    plan = make_plan(spec, "cuda")
    guard = 256
    room = torch.full((plan.workspace_bytes + 2 * guard,), 0xA5, dtype=torch.uint8, device="cuda")
    room[guard : guard + plan.workspace_bytes] = filling
    got = {role: torch.full_like(tensor, math.nan) for role, tensor in want.items()}
    held = {**problem.operands, **got}
    addresses = [held[role].data_ptr() if role in held else None for role in ROLES]
    stream = torch.cuda.current_stream().cuda_stream
    plan.run(addresses, room.data_ptr() + guard, stream)
    assert int(differences(got, want)) == 0
    assert int((room[:guard] != 0xA5).sum()) == 0
    assert int((room[guard + plan.workspace_bytes :] != 0xA5).sum()) == 0
