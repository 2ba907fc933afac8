"""On a GPU: graphs, streams, threads, no waiting, other work beside."""

import warnings

import pytest
from cuda_calls import (
    GPU,
    copied,
    differences,
    each_request,
    each_waiting,
    in_two_threads,
    make,
    poison,
    run,
    sleep,
    torch,
)

pytestmark = GPU


@pytest.fixture
def no_torch_synchronization():
    """torch raises where one of its own calls would wait for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not see all of them
        yield lambda: torch.cuda.set_sync_debug_mode("error")
    torch.cuda.set_sync_debug_mode(before)


@each_request
@pytest.mark.parametrize("given", [True, False], ids=["given results", "new results"])
def test_a_captured_graph(request_, given):
    problem, other = make(*request_), make(*request_, seed=1)
    out = problem.poisoned() if given else None
    wanted = [copied(run(one, out)) for one in (problem, other)]
    assert int(differences(*wanted)) > 0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run(problem, out)
    originals = copied(problem.operands)
    for source, want in (
        (originals, wanted[0]),
        (other.operands, wanted[1]),
        (originals, wanted[0]),
    ):
        for role, tensor in source.items():
            problem.operands[role].copy_(tensor)
        for _ in range(3):
            poison(results)
            graph.replay()
            assert int(differences(results, want)) == 0


@each_request
def test_two_threads_with_a_stream_each(request_):
    """Calls that run at the same time share nothing."""
    made = [make(*request_, seed=seed) for seed in (0, 1)]
    wanted = [copied(run(problem)) for problem in made]
    outs = [problem.poisoned() for problem in made]
    torch.cuda.synchronize()

    def work(place):
        problem, want, out = made[place], wanted[place], outs[place]
        with torch.cuda.stream(torch.cuda.Stream()):
            wrong = torch.zeros((), dtype=torch.int64, device="cuda")
            for turn in range(50):
                results = run(problem, out if turn % 2 else None)
                wrong += differences(results, want)
                poison(results)
            return int(wrong)

    assert in_two_threads(work) == {0: 0, 1: 0}


@each_request
def test_on_the_callers_stream_without_waiting(request_, no_torch_synchronization):
    problem, other = make(*request_), make(*request_, seed=1)
    out = problem.poisoned()
    want = copied(run(other, out))
    stream = torch.cuda.Stream()
    done = torch.cuda.Event()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):  # the stream's own memory, which may wait to be had
        run(problem, out)
        run(problem)
    torch.cuda.synchronize()
    no_torch_synchronization()
    with torch.cuda.stream(stream):
        sleep(0.2)
        # Only calls on this very stream come after these copies.
        for role, tensor in other.operands.items():
            problem.operands[role].copy_(tensor, non_blocking=True)
        results = run(problem, out)
        fresh = run(problem)
        done.record()
    assert not done.query(), "the call waited for the GPU"
    torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    assert [int(differences(one, want)) for one in (results, fresh)] == [0, 0]


@each_waiting
def test_blocks_that_wait_beside_other_work(request_):
    """Other kernels hold places on the GPU that the plan counted on: it waits, and goes on."""
    problem = make(*request_)
    want = copied(run(problem))
    torch.cuda.synchronize()
    beside = [torch.cuda.Stream() for _ in range(6)]
    matrix = torch.randn(2048, 2048, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for turn in range(10):
        for place, stream in enumerate(beside):
            with torch.cuda.stream(stream):
                if place < 4:
                    sleep(0.002 * (place + 1))
                else:
                    for _ in range(4):
                        torch.mm(matrix, matrix)
        results = run(problem)
        wrong += differences(results, want)
        if turn % 3 == 0:  # and one that starts while ours is running
            with torch.cuda.stream(beside[0]):
                torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    assert int(wrong) == 0


@each_waiting
def test_blocks_that_wait_on_many_streams_at_once(request_):
    """Each takes the whole GPU: one after another, in whatever order.

    Once one run in 60 was wrong, and none of 200 on one stream.
    """
    problem = make(*request_)
    want = copied(run(problem))
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(4)]
    counts = []
    for _ in range(60):
        for stream in streams:
            with torch.cuda.stream(stream):
                counts.append(differences(run(problem), want))
    torch.cuda.synchronize()
    assert int(torch.stack(counts).sum()) == 0
