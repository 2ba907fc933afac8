"""Synchronized batch norm on spawned gloo ranks."""

import itertools

import pytest
import ranks
import torch
import torch.multiprocessing as mp

import normgrad
import normgrad.torch as ours
from normgrad.torch import statistics

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_agree_with_one_process(world, tmp_path):
    mp.spawn(ranks.agree_with_one_process, (world, tmp_path / "meet"), nprocs=world)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (ranks.one_rank_dies, ("closed", "reset", "refused", "Broken")),
        (ranks.one_rank_hangs, ("Timed out", "timed out")),
    ],
)
def test_the_collectives_error_reaches_the_user(what, words, tmp_path):
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=what, args=(rank, 2, tmp_path / "meet", queue)) for rank in range(2)
    ]
    for process in processes:
        process.start()
    try:
        kind, message, untouched = queue.get(timeout=120)
    finally:
        processes[1].kill()
        for process in processes:
            process.join(60)
    assert kind.endswith("Error"), kind
    assert any(word in message for word in words), message
    assert untouched


def test_joining_parts_is_exact_for_any_split():
    """Far from 0 and with parts of very different size; the truth in one piece."""
    torch.manual_seed(0)
    x = torch.randn(1000, 3, dtype=torch.float64) + 1e6
    cuts = (0, 1, 1, 400, 1000)
    parts = [x[a:b] for a, b in itertools.pairwise(cuts)]
    found = [statistics.moments(part) for part in parts]
    joined = statistics.join(
        torch.stack([mean for mean, _ in found]),
        torch.stack([variance for _, variance in found]),
        torch.tensor([len(part) for part in parts]),
    )
    torch.testing.assert_close(joined.mean, x.mean(0), rtol=1e-14, atol=0)
    torch.testing.assert_close(joined.variance, x.var(0, correction=0), rtol=1e-9, atol=0)
    assert joined.total.item() == 1000


def test_what_a_part_without_data_holds_is_not_read():
    mean, variance = torch.tensor([[2.0, 3.0], [torch.nan, torch.inf]]), torch.ones(2, 2)
    joined = statistics.join(mean, variance.where(mean < 9, torch.nan), torch.tensor([5, 0]))
    assert joined.mean.tolist() == [2, 3]
    assert joined.variance.tolist() == [1, 1]


def test_without_processes_it_is_batch_norm():
    x = torch.randn(5, 4, 3)
    layer = ours.SyncBatchNorm(4)
    torch.testing.assert_close(layer(x), torch.nn.BatchNorm1d(4)(x))


def test_an_activation_is_one_of_its_arguments():
    x = torch.randn(5, 4, 3)
    layer = ours.SyncBatchNorm(4, activation="leaky_relu", negative_slope=0.2)
    want = torch.nn.functional.leaky_relu(torch.nn.BatchNorm1d(4)(x), 0.2)
    torch.testing.assert_close(layer(x), want)
    assert repr(layer).endswith("activation=leaky_relu, negative_slope=0.2)")
    assert "activation" not in repr(ours.SyncBatchNorm(4))
    assert [*layer.state_dict()] == [*torch.nn.BatchNorm1d(4).state_dict()]
    with pytest.raises(normgrad.OptionError, match="activation must be"):
        ours.SyncBatchNorm(4, activation="sigmoid")
    # Of a norm that has one already, and of ours with a shortcut.
    norm = ours.BatchNormAct2d(4, "silu")
    x = torch.randn(2, 4, 3, 3)
    want = [norm(x), norm(x, x)]
    ours.convert_sync_batchnorm(norm)
    torch.testing.assert_close([norm(x), norm(x, x)], want)


def test_a_second_derivative_is_refused_in_words(tmp_path):
    x = torch.randn(4, 3, requires_grad=True)
    dy = torch.randn(4, 3, requires_grad=True)
    group = _alone(tmp_path)
    vectors = (torch.zeros(3), torch.ones(3), torch.tensor([4.0]))
    dx, *_ = torch.ops.normgrad.sync_batch_norm_backward(
        dy, x, None, *vectors, [True, False, False], group
    )
    with pytest.raises(NotImplementedError, match="differentiated once only"):
        dx.sum().backward()


@pytest.fixture(autouse=True)
def _leave():
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _alone(tmp_path):
    """A group of this process alone; the operators do not mind."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'alone'}", rank=0, world_size=1
    )
    return torch.distributed.group.WORLD.group_name


def test_a_bias_in_float32_without_a_weight(tmp_path):
    """Its gradient is not rounded to the data's 16 bits, in which this one is infinite."""
    x = torch.randn(4, 3).half().requires_grad_()
    bias = torch.zeros(3, requires_grad=True)
    y, *_ = torch.ops.normgrad.sync_batch_norm(x, None, bias, 1e-5, _alone(tmp_path))
    y.backward(torch.full((4, 3), 3e4, dtype=torch.float16))
    torch.testing.assert_close(bias.grad, torch.full((3,), 12e4))


def test_opcheck_of_the_operators(tmp_path):
    group = _alone(tmp_path)
    x = torch.randn(4, 3, 5, 2).to(memory_format=torch.channels_last).requires_grad_()
    weight, bias = (torch.randn(3, requires_grad=True) for _ in range(2))
    ops = torch.ops.normgrad
    torch.library.opcheck(ops.sync_batch_norm.default, (x, weight, bias, 1e-5, group))
    y, mean, invstd, _, count = ops.sync_batch_norm(x.detach(), weight, bias, 1e-5, group)
    args = (torch.randn_like(y), x.detach(), weight.detach(), mean, invstd, count)
    settings = ([True, True, False], group)
    torch.library.opcheck(ops.sync_batch_norm_backward.default, (*args, *settings))
    after = ("leaky_relu", 0.3)
    torch.library.opcheck(ops.sync_batch_norm.default, (x, weight, bias, 1e-5, group, *after))
    settings = (*settings, bias.detach(), *after)
    torch.library.opcheck(ops.sync_batch_norm_backward.default, (*args, *settings))
    found = (mean, torch.rand(3, dtype=torch.float64), count)
    for batches in (None, torch.tensor(3)):
        args = (torch.zeros(3), torch.ones(3), *found, 0.1, batches)
        torch.library.opcheck(ops.sync_batch_norm_track.default, args)
