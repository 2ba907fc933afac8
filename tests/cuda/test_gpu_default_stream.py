"""On a GPU: calls on the default stream, whose words and scratch memory stay from call to call."""

import random

import pytest
from cuda_calls import (
    GPU,
    REQUESTS,
    WAITING,
    copied,
    differences,
    in_two_threads,
    make,
    poison,
    run,
    torch,
)

from normgrad.backends.cuda.run import launch

pytestmark = GPU
SMALL = {name: request for name, request in REQUESTS.items() if "whole device" not in name}


def made_with_answers(requests):
    """Problems, and what a stream of its own makes of each."""
    problems = {name: make(*request) for name, request in requests.items()}
    torch.cuda.synchronize()  # other streams do not wait for the default one, which makes the data
    with torch.cuda.stream(torch.cuda.Stream()):
        wanted = {name: copied(run(problem)) for name, problem in problems.items()}
    torch.cuda.synchronize()
    return problems, wanted


def test_all_plans_in_any_order():
    problems, wanted = made_with_answers(SMALL)
    pick = random.Random(0)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(300):
        name = pick.choice(list(problems))
        results = run(problems[name])
        wrong += differences(results, wanted[name])
        poison(results)
    assert int(wrong) == 0


def test_two_threads_on_the_default_stream():
    problems, wanted = made_with_answers(SMALL)

    def work(place):
        pick = random.Random(place)
        wrong = torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(150):
            name = pick.choice(list(problems))
            wrong += differences(run(problems[name]), wanted[name])
        return int(wrong)

    assert in_two_threads(work) == {0: 0, 1: 0}


def test_beside_other_streams():
    """The default stream and streams that do not wait for it."""
    problems, wanted = made_with_answers(SMALL)
    streams = [torch.cuda.Stream() for _ in range(2)]
    counts = []
    pick = random.Random(1)
    for _ in range(60):
        for stream in (torch.cuda.default_stream(), *streams):
            name = pick.choice(list(problems))
            with torch.cuda.stream(stream):
                counts.append(differences(run(problems[name]), wanted[name]))
    torch.cuda.synchronize()
    assert int(torch.stack(counts).sum()) == 0


@pytest.mark.parametrize(("when", "shape"), [("before", "8x320x64x64"), ("after", "8x640x64x64")])
def test_a_launch_that_failed(when, shape, monkeypatch):
    """Nobody knows what ran: words are made anew."""
    name = "resident group norm"
    problems, wanted = made_with_answers({name: WAITING[name]})
    problem, want = problems[name], wanted[name]
    prepare, broken = launch._prepare, []

    def fail(step, index, aligned):
        ready = prepare(step, index, aligned)

        def launching(*arguments):
            if when == "after":
                ready.launch(*arguments)
            if broken:
                raise RuntimeError(broken.pop())
            if when == "before":
                ready.launch(*arguments)

        run = launch._runner(launching, *ready[2:])
        return ready._replace(launch=launching, run=run)

    # A plan that no other test has, whose launches can be made to fail.
    other = make("group_norm_backward", shape, "float16")
    monkeypatch.setattr(launch, "_prepare", fail)
    wanted = copied(run(other))
    monkeypatch.undo()
    for _ in range(4):
        broken.append("no")
        with pytest.raises(RuntimeError, match="no"):
            run(other)
        for _ in range(3):
            assert int(differences(run(problem), want)) == 0
            assert int(differences(run(other), wanted)) == 0
