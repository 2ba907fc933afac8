"""On a GPU: more than 2**31 elements. Checked on slices, against the float64 reference."""

import pytest
from cuda_calls import GPU, torch
from cuda_plans import plan

from normgrad import functional
from normgrad.backends.cuda.device import device_of

pytestmark = GPU
BF16 = {"dtype": torch.bfloat16, "device": "cuda"}
EDGE = 1 << 31


@pytest.fixture(autouse=True)
def room():
    """Room for three tensors and some; nothing is left behind."""
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def data(*shape):
    """(x, dy) in bfloat16, off-centre, independent; skips where they do not fit with dx."""
    size = torch.Size(shape).numel()
    needed = 3 * 2 * size + (2 << 30)
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"needs {needed >> 30} GiB of free GPU memory")
    generator = torch.Generator("cuda")
    generator.manual_seed(size)
    x = torch.empty(shape, **BF16).normal_(5.0, 3.0, generator=generator)
    dy = torch.empty(shape, **BF16).normal_(0.25, 1.0, generator=generator)
    return x, dy


def vectors(count, *means):
    generator = torch.Generator("cuda")
    generator.manual_seed(count)
    noise = (torch.randn(count, device="cuda", generator=generator) for _ in means)
    return [mean + 0.1 * one for mean, one in zip(means, noise, strict=True)]


def wide(*tensors):
    """float64 copies on the host, where the reference computes."""
    return [tensor.double().cpu() for tensor in tensors]


def close(got, want, relative=2**-8 + 1e-4, absolute=1e-5):
    """One rounding to bfloat16 (2**-8 of the value) and some float32 arithmetic."""
    assert got.shape == want.shape
    error = (got.double().cpu() - want).abs()
    allowed = relative * want.abs() + absolute
    assert bool((error <= allowed).all()), float((error / allowed).max())


def close_sums(got, want, count):
    """Sums of ``count`` terms of size 1, some of which cancel, in float32."""
    close(got, want, relative=1e-5, absolute=1e-6 * count)


def test_element_stage_of_5_billion_elements():
    x, dy = data(5, 1024, 1000, 1000)
    assert x.numel() > 5 * 10**9 > EDGE
    count = 5 * 10**6
    mean, rstd, gamma, first, second = vectors(1024, 5.0, 1.0, 1.0, 0.3, 0.2)
    sums = (first * count, second * count)
    counter = torch.tensor([count], dtype=torch.int32, device="cuda")
    dx = torch.full_like(x, float("nan"))
    functional.batch_norm_elemt_backward(
        dy, x, mean, rstd, *sums, counter, weight=gamma, out=dx, backend="cuda"
    )
    per_image = 1024 * 10**6
    marks = [0, EDGE - 1, EDGE, 2 * EDGE - 1, 2 * EDGE, x.numel() - 1]
    for mark in marks:
        image, channel = mark // per_image, mark % per_image // 10**6
        part = (slice(image, image + 1), slice(channel, channel + 1))
        one = slice(channel, channel + 1)
        small = wide(mean[one], rstd[one], sums[0][one], sums[1][one])
        weight, of_all = wide(gamma[one])[0], counter.cpu()
        want = functional.batch_norm_elemt_backward(
            *wide(dy[part], x[part]), *small, of_all, weight=weight, backend="reference"
        )
        close(dx[part], want)
    assert not bool(torch.isnan(dx.view(-1)[:: 4099 * 7]).any())


@pytest.mark.parametrize(
    ("shape", "strategy"),
    [
        ((256, 1024, 112, 112), "resident planes"),  # 3.3 billion, 6 MB of x for each channel
        ((1024, 256, 96, 128), "two passes (planes)"),  # 3.2 billion, 25 MB
        ((64, 4800, 101, 101), "resident planes"),  # 3.1 billion, in windows
        ((1024, 256, 97, 127), "two passes (planes)"),
    ],
    ids=["resident", "two passes", "resident windows", "two passes in windows"],
)
def test_batch_norm(shape, strategy):
    if device_of(0).multiprocessors >= 132:
        assert plan("batch_norm_backward", "x".join(map(str, shape))).strategy == strategy
    x, dy = data(*shape)
    assert x.numel() > 1.4 * EDGE
    channels, count = shape[1], x.numel() // shape[1]
    mean, rstd, gamma = vectors(channels, 5.0, 1 / 3, 1.0)
    dx = torch.full_like(x, float("nan"))
    small = [torch.full((channels,), float("nan"), device="cuda") for _ in range(2)]
    functional.batch_norm_backward(
        dy, x, mean, rstd, weight=gamma, out=(dx, *small), backend="cuda"
    )
    for channel in (0, channels - 1):
        one = slice(channel, channel + 1)
        *statistics, weight = wide(mean[one], rstd[one], gamma[one])
        want = functional.batch_norm_backward(
            *wide(dy[:, one], x[:, one]),
            *statistics,
            weight=weight,
            backend="reference",
        )
        close(dx[:, one], want.grad_input)
        close_sums(small[0][one], want.grad_weight, count)
        close_sums(small[1][one], want.grad_bias, count)


def test_batch_norm_channels_last():
    """2.2 billion elements in rows of 256."""
    x, dy = (one.permute(0, 3, 1, 2) for one in data(520, 128, 128, 256))
    assert x.numel() > 1.01 * EDGE
    mean, rstd, gamma = vectors(256, 5.0, 1 / 3, 1.0)
    out = (torch.full_like(x, float("nan")), None, None)
    functional.batch_norm_backward(
        dy, x, mean, rstd, weight=gamma, output_mask=(True, False, False), out=out, backend="cuda"
    )
    for one in (slice(0, 1), slice(255, 256)):
        *statistics, weight = wide(mean[one], rstd[one], gamma[one])
        want = functional.batch_norm_backward(
            *wide(dy[:, one], x[:, one]),
            *statistics,
            weight=weight,
            backend="reference",
        )
        close(out[0][:, one], want.grad_input)


def test_layer_norm():
    x, dy = data(600_000, 4096)
    mean, rstd = vectors(600_000, 5.0, 1 / 3)
    (gamma,) = vectors(4096, 1.0)
    dx = torch.full_like(x, float("nan"))
    sums = [torch.full((4096,), float("nan"), device="cuda") for _ in range(2)]
    functional.layer_norm_backward(
        dy, x, mean, rstd, 4096, weight=gamma, out=(dx, *sums), backend="cuda"
    )
    for rows in (slice(0, 3), slice(EDGE // 4096 - 2, EDGE // 4096 + 2), slice(599_990, 600_000)):
        want = functional.layer_norm_backward(
            *wide(dy[rows], x[rows], mean[rows], rstd[rows]),
            4096,
            weight=wide(gamma)[0],
            backend="reference",
        )
        close(dx[rows], want.grad_input)
    # The parameter gradients of some columns depend on nothing else.
    columns = slice(4090, 4096)
    want = functional.layer_norm_backward(
        *wide(dy[:, columns], x[:, columns], mean, rstd),
        6,
        weight=wide(gamma[columns])[0],
        output_mask=(False, True, True),
        backend="reference",
    )
    close_sums(sums[0][columns], want.grad_weight, 600_000)
    close_sums(sums[1][columns], want.grad_bias, 600_000)


def sums_of(x, dy, mean):
    """The sums of dy and of dy * (x - mean) in float64, piece by piece."""
    pieces = zip(x.view(-1).split(1 << 28), dy.view(-1).split(1 << 28), strict=True)
    parts = [(b.double().sum(), (b.double() * (a.double() - mean)).sum()) for a, b in pieces]
    return [sum(float(part[place]) for part in parts) for place in range(2)]


def test_one_plane_of_more_than_2_31_elements():
    x, dy = data(1, 1, EDGE + 4104)
    count = x.numel()
    mean, rstd, gamma = (torch.tensor([value], device="cuda") for value in (5.0, 1 / 3, 1.5))
    dx = torch.full_like(x, float("nan"))
    small = [torch.full((1,), float("nan"), device="cuda") for _ in range(2)]
    functional.batch_norm_backward(
        dy, x, mean, rstd, weight=gamma, out=(dx, *small), backend="cuda"
    )
    first, second = sums_of(x, dy, float(mean))
    close_sums(small[0], torch.tensor([second * float(rstd)]).double(), count)
    close_sums(small[1], torch.tensor([first]).double(), count)
    for mark in (slice(0, 1000), slice(EDGE - 1000, EDGE + 1000), slice(count - 1000, count)):
        wide_x, wide_dy = wide(x.view(-1)[mark], dy.view(-1)[mark])
        xhat = (wide_x - 5.0) * float(rstd)
        inner = wide_dy - first / count - xhat * (second * float(rstd) / count)
        close(dx.view(-1)[mark], 1.5 * float(rstd) * inner)


def test_group_norm_of_more_channels_of_samples():
    """Their sums, in 17 GB of workspace."""
    samples = EDGE // 512 + 1
    if torch.cuda.mem_get_info()[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free GPU memory")
    x, dy = data(samples, 512)
    rows = torch.zeros(samples, 32, device="cuda"), torch.ones(samples, 32, device="cuda")
    out = (None, None, torch.full((512,), float("nan"), device="cuda"))
    functional.group_norm_backward(
        dy, x, *rows, 32, output_mask=(False, False, True), out=out, backend="cuda"
    )
    want = sum(part.double().sum(0) for part in dy.split(1 << 18)).cpu()
    close_sums(out[2], want, samples)
