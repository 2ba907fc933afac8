"""What spawned ranks do. One spawn serves many checks: a process takes seconds to import torch."""

import copy
import datetime
import gc
import io
import itertools
import os
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from closeness import assert_near, off_centre
from torch import nn

import normgrad.torch as ours
from normgrad.torch import nodes

SPLITS = {
    1: [(7,)],
    2: [(4, 4), (7, 1), (5, 0), (0, 3)],
    4: [(2, 2, 2, 2), (5, 0, 1, 3), (0, 0, 4, 0)],
}
SHAPE = (6, 5, 4)


def start(rank, world, path):
    """Join the others through a file; a rank may be late by the compilation of a kernel."""
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{path}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=180),
    )


def _share(tensor, split, rank):
    begin = sum(split[:rank])
    return tensor[begin : begin + split[rank]]


def _layer(kind, dtype, **options):
    layer = kind(SHAPE[0], **options).to(dtype)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(1 + 0.5 * torch.randn(SHAPE[0], generator=generator))
    return layer


def _summed(tensor, group=None):
    tensor = tensor.double().clone()
    dist.all_reduce(tensor, group=group)
    return tensor


def _activation(activation=None, negative_slope=0.01):
    if activation is None:
        return nn.Identity()
    if activation == "leaky_relu":
        return nn.LeakyReLU(negative_slope)
    return getattr(nn.functional, activation)


def compare(
    rank, split, dtype, *, channels_last=False, compiled=False, group=None, after=None, **options
):
    """Two steps against one process with the joined batch, in float64."""
    layer = _layer(ours.SyncBatchNorm, dtype, **options, **(after or {}))
    layer.process_group = group
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    twin = _layer(nn.BatchNorm2d, torch.float64, **options)
    act = _activation(**(after or {}))
    twin.load_state_dict(layer.state_dict())
    for step in range(2):
        x, dy = off_centre((sum(split), *SHAPE), dtype, seed=step)
        mine = _share(x, split, rank)
        if channels_last:
            mine = mine.contiguous(memory_format=torch.channels_last)
        mine = mine.clone().requires_grad_()
        joined = x.double().clone().requires_grad_()
        y, want = run(mine), act(twin(joined))
        y.backward(_share(dy, split, rank))
        want.backward(dy.double())
        # The tolerance is relative to the whole batch: a rank's share may be all small.
        for got, wanted in ((y, want), (mine.grad, joined.grad)):
            assert got.dtype == dtype
            padded = wanted.detach().clone()
            begin = sum(split[:rank])
            padded[begin : begin + split[rank]] = got.detach().double()
            assert_near(padded, wanted, dtype)
            if channels_last and split[rank]:
                assert got.is_contiguous(memory_format=torch.channels_last)
    for got, wanted in zip(layer.parameters(), twin.parameters(), strict=True):
        assert_near(_summed(got.grad, group), wanted.grad, dtype)
    for got, wanted in zip(layer.buffers(), twin.buffers(), strict=True):
        assert_near(got, wanted, dtype)


def agree_with_one_process(rank, world, path):
    """Every split, the types, layouts, options."""
    start(rank, world, path)
    for split in SPLITS[world]:
        for dtype in (torch.float64, torch.float32):
            compare(rank, split, dtype)
    for dtype in (torch.float16, torch.bfloat16):
        compare(rank, SPLITS[world][-1], dtype)
    split = SPLITS[world][-1]
    compare(rank, split, torch.float32, channels_last=True)
    compare(rank, split, torch.float32, momentum=None)
    compare(rank, split, torch.float32, affine=False)
    compare(rank, split, torch.float32, track_running_stats=False)
    if world == 2:
        compare(rank, split, torch.float32, compiled=True)
        activated(rank, split)
        fused_models(rank)
        counts_are_exact(rank)
        one_collective_each_way(rank)
        training_between_inference_and_its_backward(rank)
        refusals_come_before_the_collective(rank)
        nobody_has_data(rank)
        exported(rank)
        the_example_tells_that_ranks_differ(rank)
        data_parallel(rank)
        torchs_own_function(rank)
    if world == 4:
        of_groups(rank)
    dist.barrier()
    dist.destroy_process_group()


def data_parallel_alone(model, x):
    """A backward pass of DistributedDataParallel in a group of this process alone.

    The wrapper is gone before the group: where it owns that last, torch waits, with Python's lock
    held, for a thread that may be waiting for the lock.
    """

    def step():
        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped(x).square().sum().backward()

    store = torch.distributed.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        step()
        gc.collect()
    finally:
        dist.destroy_process_group()


def activated(rank, split):
    """An activation in the same node."""
    for name in ("relu", "relu6", "silu", "gelu", "hardswish", "leaky_relu"):
        compare(rank, split, torch.float64, after={"activation": name})
    after = {"activation": "silu"}
    compare(rank, split, torch.bfloat16, after=after)
    compare(rank, split, torch.float32, channels_last=True, after=after)
    compare(rank, split, torch.float32, affine=False, after=after)
    more = {"activation": "leaky_relu", "negative_slope": 0.3}
    compare(rank, split, torch.float32, compiled=True, after=more)


def fused_models(rank):
    """``fuse`` takes synchronized norms with their activation; numbers of one process."""
    split = (5, 2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm2d(6), nn.SiLU(), nn.Conv2d(6, 6, 1, bias=False))
    twin = copy.deepcopy(model).double()
    ours.convert_sync_batchnorm(model)
    found = ours.fuse(model)
    assert [one.node for one in found] == ["SyncBatchNorm + SiLU"]
    made, whole = [], nodes.one_node
    nodes.one_node = lambda *args: made.append(args[1]) or whole(*args)
    nodes.Small.taken = True
    try:
        x, dy = off_centre((7, *SHAPE), torch.float32)
        mine = _share(x, split, rank).clone().requires_grad_()
        joined = x.double().requires_grad_()
        wrapped = nn.parallel.DistributedDataParallel(model)
        wrapped(mine).backward(_share(dy, split, rank))
        twin(joined).backward(dy.double())
    finally:
        nodes.one_node, nodes.Small.taken = whole, False
    assert made == ["sync"]
    assert_near(mine.grad, _share(joined.grad, split, rank), torch.float32)
    for got, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        # DDP averages.
        assert_near(2 * got.grad, wanted.grad, torch.float32)


def counts_are_exact(rank):
    """2**24 + 1 values per channel on one rank, 1 on the other: float32 would lose both units."""
    size = 2**24 + 1 if rank == 0 else 1
    x = torch.zeros(1, 1, size, dtype=torch.bfloat16)
    group = dist.group.WORLD.group_name
    *_, count = torch.ops.normgrad.sync_batch_norm(x, None, None, 1e-5, group)
    assert count.item() == 2**24 + 2


def one_collective_each_way(rank):
    """The profiler sees every collective of gloo."""
    layer = ours.SyncBatchNorm(6)
    x = torch.randn(3, 6, 4, requires_grad=True)
    for direction in ("forward", "backward"):
        with torch.profiler.profile() as profile:
            if direction == "forward":
                y = layer(x)
            else:
                y.sum().backward()
        names = [event.name for event in profile.events() if event.name.startswith("c10d::")]
        assert len(names) == 1, names


def training_between_inference_and_its_backward(rank):
    """As with batch norm."""
    layer = ours.SyncBatchNorm(4, affine=False)
    x = torch.randn(3, 4, requires_grad=True)
    y = layer.eval()(x)
    layer.train()(x)
    y.sum().backward()


def refusals_come_before_the_collective(rank):
    """On a rank without data too: other numbers of channels, no eps, other types."""
    layer = ours.SyncBatchNorm(4, affine=False)
    with pytest.raises(RuntimeError, match="running_mean should contain 1 elements not 4"):
        layer(torch.randn(3 - 3 * rank, 1))
    with pytest.raises(RuntimeError, match="weight should contain 3 elements not 4"):
        ours.SyncBatchNorm(4, track_running_stats=False)(torch.randn(3 - 3 * rank, 3))
    with pytest.raises(RuntimeError, match="input should have a floating type of 16, 32 or 64"):
        layer(torch.ones(3 - 3 * rank, 4, dtype=torch.int64))
    layer.eps = 0.0
    with pytest.raises(ValueError, match="eps must be above 0 where a batch has its own"):
        layer(torch.randn(3 - 3 * rank, 4))
    layer = ours.SyncBatchNorm(4).half()
    for dtype in (torch.bfloat16, torch.float32):
        with pytest.raises(RuntimeError, match=f"weight of {dtype} data should have type torch.fl"):
            layer(torch.randn(3 - 3 * rank, 4).to(dtype))


def nobody_has_data(rank):
    """All ranks empty: nothing to learn, nothing broken."""
    layer = ours.SyncBatchNorm(6)
    x = torch.randn(0, 6, 4, requires_grad=True)
    layer(x).sum().backward()
    assert torch.equal(layer.running_mean, torch.zeros(6))
    assert torch.equal(layer.running_var, torch.ones(6))
    assert torch.equal(layer.weight.grad, torch.zeros(6))


def _saved_and_loaded(program):
    """With buffers of its own."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def exported(rank):
    """A program that trains: its buffers move, also when it was saved and made functional."""
    for strict, momentum in itertools.product((False, True), (0.1, None)):
        layer = ours.SyncBatchNorm(6, momentum=momentum)
        x = torch.randn(3 + rank, 6, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own functions, that they will go away
            program = torch.export.export(layer, (x,), strict=strict)
            functional = program.run_decompositions()
            runs = [_saved_and_loaded(one).module() for one in (program, functional)]
        assert sorted(functional.graph_signature.buffers_to_mutate.values()) == [
            "num_batches_tracked",
            "running_mean",
            "running_var",
        ]
        for _ in range(2):
            y = layer(x)
            for run in runs:
                torch.testing.assert_close(run(x), y)
        for run in runs:
            for name, buffer in layer.named_buffers():
                torch.testing.assert_close(getattr(run, name), buffer)


def the_example_tells_that_ranks_differ(rank):
    """In the first number of many, and nobody waits for a rank that has seen enough."""
    from sync_batch_norm import same_everywhere

    model = nn.Sequential(nn.LayerNorm(3), nn.LayerNorm(3))
    assert same_everywhere(model)
    model[0].weight.data[0] += rank
    assert not same_everywhere(model)


def data_parallel(rank):
    """A model under DDP with its batch split unevenly, against one process."""
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9, 4)
    )
    twin = nn.Sequential(*body).double()
    twin.load_state_dict(body.state_dict())
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9, 4)
    )
    ddp = nn.parallel.DistributedDataParallel(ours.convert_sync_batchnorm(model))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    single = torch.optim.SGD(twin.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(9)
    split = (5, 2)
    for _ in range(3):
        x = torch.randn(7, 3, 5, 5, generator=generator)
        # DDP averages over ranks: with the sum over samples times the number of ranks it is a sum.
        (ddp(_share(x, split, rank)).square().sum() * 2 / 7).backward()
        (twin(x.double()).square().sum() / 7).backward()
        for one, other in ((optimizer, ddp), (single, twin)):
            one.step()
            other.zero_grad()
    for got, wanted in zip(model.parameters(), twin.parameters(), strict=True):
        assert_near(got, wanted, torch.float32)
    assert_near(model[1].running_var, twin[1].running_var, torch.float32)


def torchs_own_function(rank):
    """With ``enable()`` torch's own synchronized function runs on the CPU."""
    from torch.nn.modules._functions import SyncBatchNorm as Function

    split = (5, 2)
    x, dy = off_centre((7, *SHAPE), torch.float32)
    mine = _share(x, split, rank).clone().requires_grad_()
    weight = torch.ones(SHAPE[0], requires_grad=True)
    joined = x.double().requires_grad_()
    twin = nn.BatchNorm2d(SHAPE[0]).double()
    twin(joined).backward(dy.double())
    buffers = (torch.zeros(SHAPE[0]), torch.ones(SHAPE[0]))
    group = dist.group.WORLD
    with ours.enable(backend="reference"):
        y = Function.apply(
            mine,
            weight,
            torch.zeros_like(weight),
            *buffers,
            1e-5,
            0.1,
            group,
            dist.get_world_size(),
        )
        y.backward(_share(dy, split, rank))
    assert_near(mine.grad, _share(joined.grad, split, rank), torch.float32)
    assert_near(buffers[1], twin.running_var, torch.float32)


def of_groups(rank):
    """Two groups of two, each with its own statistics."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    place = rank // 2
    compare(rank % 2, [(3, 1), (0, 5)][place], torch.float32, group=groups[place])


def one_rank_dies(rank, world, path, results):
    """Rank 1 leaves without a word; what does rank 0 see?"""
    start(rank, world, path)
    layer = ours.SyncBatchNorm(3)
    layer(torch.randn(4, 3))
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    dist.barrier()
    if rank == 1:
        os._exit(0)
    try:
        layer(torch.randn(4, 3))
    except RuntimeError as error:
        same = all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
        results.put((type(error).__name__, str(error), same))
    else:
        results.put(("nothing", "", False))
    results.close()
    results.join_thread()
    os._exit(0)


def one_rank_hangs(rank, world, path, results):
    """Rank 1 never comes to the backward pass; the collective's own timeout ends the wait."""
    start(rank, world, path)
    group = dist.new_group(timeout=datetime.timedelta(seconds=4))
    dist.barrier()
    layer = ours.SyncBatchNorm(3, process_group=group)
    x = torch.randn(4, 3, requires_grad=True)
    y = layer(x)
    if rank == 1:
        time.sleep(60)  # the test ends it
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    try:
        y.square().sum().backward()
    except RuntimeError as error:
        same = all(torch.equal(before[name], value) for name, value in layer.state_dict().items())
        untouched = x.grad is None and layer.weight.grad is None
        results.put((type(error).__name__, str(error), same and untouched))
    else:
        results.put(("nothing", "", False))
    results.close()
    results.join_thread()
    os._exit(0)
