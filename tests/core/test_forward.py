"""Forward functions: what they give and refuse, and that they are pairs with the backward."""

import numpy as np
import pytest
import torch

import normgrad as ng

RNG = np.random.default_rng(7)


def tensor(*shape, dtype=torch.float64):
    return torch.from_numpy(RNG.standard_normal(shape) * 3 + 10).to(dtype)


X = tensor(4, 6, 5, 7)
W, B = tensor(6), tensor(6)
ROWS, RW, RB = tensor(9, 4, 10), tensor(4, 10), tensor(4, 10)
FUNCTIONAL = torch.nn.functional

# A forward function, torch's, and its backward function of (dy, y).
PAIRS = {
    "batch": (
        lambda x, w, b: ng.batch_norm(x, weight=w, bias=b),
        lambda x, w, b: FUNCTIONAL.batch_norm(x, None, None, w, b, training=True),
        lambda dy, x, w, y: ng.batch_norm_backward(dy, x, y.mean, y.rstd, weight=w),
        (X, W, B),
    ),
    "layer": (
        lambda x, w, b: ng.layer_norm(x, (4, 10), weight=w, bias=b),
        lambda x, w, b: FUNCTIONAL.layer_norm(x, (4, 10), w, b),
        lambda dy, x, w, y: ng.layer_norm_backward(dy, x, y.mean, y.rstd, (4, 10), weight=w),
        (ROWS, RW, RB),
    ),
    "group": (
        lambda x, w, b: ng.group_norm(x, 3, weight=w, bias=b),
        lambda x, w, b: FUNCTIONAL.group_norm(x, 3, w, b),
        lambda dy, x, w, y: ng.group_norm_backward(dy, x, y.mean, y.rstd, 3, weight=w),
        (X, W, B),
    ),
    "rms": (
        lambda x, w, b: ng.rms_norm(x, (4, 10), weight=w),
        lambda x, w, b: FUNCTIONAL.rms_norm(x, (4, 10), w),
        lambda dy, x, w, y: ng.rms_norm_backward(dy, x, y.rstd, (4, 10), weight=w),
        (ROWS, RW, RB),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("times", [1, 3])  # the third call goes a shorter way
def test_a_whole_layer_is_torchs(name, times):
    forward, theirs, backward, (x, w, b) = PAIRS[name]
    for _ in range(times):
        ours = forward(x, w, b)
        leaves = [one.clone().requires_grad_() for one in (x, w, b)]
        want = theirs(*leaves)
        torch.testing.assert_close(ours.output, want.detach())
        dy = torch.randn_like(x)
        want.backward(dy)
        grads = backward(dy, x, w, ours)
        torch.testing.assert_close(grads.grad_input, leaves[0].grad)
        torch.testing.assert_close(grads.grad_weight, leaves[1].grad)
        if grads.grad_bias is not None:
            torch.testing.assert_close(grads.grad_bias, leaves[2].grad)


@pytest.mark.parametrize("times", [1, 3])
def test_running_statistics_are_torchs(times):
    ours = [torch.zeros(6).double(), torch.ones(6).double()]
    theirs = [one.clone() for one in ours]
    for turn in range(times):
        ng.batch_norm(X + turn, running_mean=ours[0], running_var=ours[1], momentum=0.3)
        FUNCTIONAL.batch_norm(X + turn, *theirs, training=True, momentum=0.3)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    assert ours[0]._version == times, "autograd was not told"
    inference = ng.batch_norm(X, running_mean=ours[0], running_var=ours[1], training=False)
    torch.testing.assert_close(inference.output, FUNCTIONAL.batch_norm(X, *theirs, training=False))
    assert inference.mean is None
    assert inference.rstd is None


def test_one_running_statistic_alone():
    mean = np.zeros(6)
    y = ng.batch_norm(X.numpy(), running_mean=mean)
    np.testing.assert_allclose(mean, 0.1 * y.mean)


def test_ranks_together_are_one_batch():
    parts = [ng.batch_norm_stats(part) for part in X.split([1, 3])]
    counts = torch.tensor([part.count for part in parts])
    assert counts.tolist() == [35, 105]
    stacked = [torch.stack([part[at] for part in parts]) for at in range(2)]
    running = torch.zeros(6).double(), torch.ones(6).double()
    theirs = [one.clone() for one in running]
    mean, rstd = ng.batch_norm_gather_stats(
        *stacked, counts, running_mean=running[0], running_var=running[1]
    )
    whole = ng.batch_norm(X, weight=W, bias=B, running_mean=theirs[0], running_var=theirs[1])
    torch.testing.assert_close(mean, whole.mean)
    torch.testing.assert_close(rstd, whole.rstd)
    torch.testing.assert_close(running[1], theirs[1])
    y = ng.batch_norm_elemt(X, mean, rstd, weight=W, bias=B)
    torch.testing.assert_close(y, whole.output)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_constant_group_is_its_bias_exactly(backend, dtype):
    x = torch.full((3, 6, 301), 100.3, dtype=dtype)
    bias = torch.arange(6).to(dtype)
    calls = [
        lambda: ng.batch_norm(x, bias=bias, backend=backend),
        lambda: ng.group_norm(x, 2, bias=bias, backend=backend),
        lambda: ng.layer_norm(x.movedim(1, 2).contiguous(), 6, bias=bias, backend=backend),
    ]
    for call in calls:
        y = _offered(call)
        out = y.output if y.output.shape[1] == 6 else y.output.movedim(2, 1)
        assert torch.equal(out, bias[None, :, None].expand_as(out))
    variance = _offered(lambda: ng.batch_norm_stats(x, backend=backend)).variance
    assert not variance.any()


def _offered(call):
    try:
        return call()
    except ng.BackendError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("function", [ng.layer_norm, ng.rms_norm])
def test_over_its_input(function):
    x = np.asarray(RNG.standard_normal((7, 33)), np.float32)
    want, shape = function(x, 33), (7, 1)
    over = x.copy()
    statistics = [np.empty(shape, np.float32) for _ in range(2)]
    out = (over, *statistics) if function is ng.layer_norm else (over, statistics[1])
    got = function(over, 33, out=out)
    assert got.output is over
    np.testing.assert_array_equal(over, want.output)
    np.testing.assert_array_equal(statistics[1], want.rstd)


def test_statistics_that_are_not_wanted():
    out = torch.empty_like(X)
    y = ng.group_norm(X, 2, out=(out, None, None))
    assert y.output is out
    assert y.mean is None
    torch.testing.assert_close(out, FUNCTIONAL.group_norm(X, 2))
    assert ng.layer_norm(X, 7, out=ng.Normalized(out)[:3]).rstd is None


def test_types_of_the_statistics():
    for dtype, want in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        y = ng.layer_norm(ROWS.to(dtype), 10)
        assert (y.output.dtype, y.mean.dtype, y.rstd.dtype) == (dtype, want, want)
        assert y.mean.shape == (9, 4, 1)
    assert ng.group_norm(X, 2).mean.shape == (4, 2)


def test_nothing_and_infinity_stay_in_their_group():
    x = np.asarray(RNG.standard_normal((3, 4, 5)), np.float32)
    x[1, 2, 3] = np.nan
    bad = np.isnan(ng.layer_norm(x, 5).output)
    assert bad[1, 2].all()
    assert bad.sum() == 5
    assert np.isnan(ng.batch_norm(x).output).sum() == 15


BROKEN = {
    "grad": (lambda: ng.layer_norm(ROWS.clone().requires_grad_(), 10), "records? no gradients"),
    "inference": (lambda: ng.batch_norm(X, training=False), "running_mean must be given in inf"),
    "running shape": (
        lambda: ng.batch_norm(X, running_mean=W[:2], running_var=W, training=False),
        r"running_mean must be 1-d with one element for each of the 6 channels",
    ),
    "one element": (
        lambda: ng.batch_norm(X[:1, :, :1, :1], running_mean=W.clone(), running_var=B.clone()),
        "input must have more than one element for each channel where running_var is given",
    ),
    "overlap": (lambda: ng.batch_norm(X, running_mean=W, running_var=W), "must not share memory"),
    "over input": (
        lambda: ng.batch_norm(X, running_var=X.view(-1)[:6]),
        "running_var must not share memory with another argument",
    ),
    "momentum": (lambda: ng.batch_norm(X, momentum=None), "momentum must be a number"),
    "wrong name": (lambda: ng.batch_norm(X, gamma=W), "did you mean weight?"),
    "bias": (lambda: ng.group_norm(X, 2, bias=W[:2]), "bias must have 6 elements"),
    "out": (lambda: ng.layer_norm(ROWS, 10, out=ROWS), "must be a Normalized or a tuple of 3"),
    "elemt": (lambda: ng.batch_norm_elemt(X), "batch_norm_elemt needs mean"),
    "ranks": (
        lambda: ng.batch_norm_gather_stats(X[0, :, :, 0], X[0, :, :, 1], torch.ones(3)),
        "count must have one element for each of the 6 ranks",
    ),
    "variance": (lambda: ng.batch_norm_elemt(X, W, W, variance=W), "variance must be None"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules(name):
    call, words = BROKEN[name]
    with pytest.raises(ng.NormgradError, match=words):
        call()


def test_a_known_call_still_looks_where_it_writes():
    memory = torch.zeros(X.numel() + 12, dtype=torch.float64)
    x, mean, var = memory[:-12].view(X.shape), memory[-12:-6], memory[-6:]
    for _ in range(3):
        ng.batch_norm(x.copy_(X), running_mean=mean, running_var=var)
    with pytest.raises(ng.OverlapError, match="running_mean must not share memory"):
        ng.batch_norm(x, running_mean=memory[100:106], running_var=var)
