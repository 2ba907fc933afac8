"""On a GPU: a gradient of a sample's own does not depend on what there is beside it."""

import pytest
from cuda_calls import GPU, torch

import normgrad

pytestmark = GPU
TYPES = [torch.bfloat16, torch.float32]


def data(shape, dtype):
    torch.manual_seed(7)
    return [(torch.randn(shape, device="cuda") * 3 + 5).to(dtype) for _ in range(2)]


def assert_slices_agree(gradient, samples):
    whole = gradient(slice(samples))
    assert whole.isfinite().all()
    ends = {1, 2, 3, 5, 9, samples // 4, samples - 1} - {0}
    # Those from 1 and 3 on start at no multiple of 16 bytes where samples are odd.
    for some in (*map(slice, sorted(ends)), slice(1, 2), slice(1, samples), slice(3, samples)):
        assert torch.equal(gradient(some), whole[some]), some


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(4096, 7), (4096, 64), (4096, 100), (131072, 128), (4096, 256), (4096, 300), (4096, 1001),
     (2048, 4096), (4096, 8192), (512, 12288), (300, 10241), (128, 32768), (16, 1048576)],
)  # fmt: skip
def test_rows(rows, columns, dtype):
    x, dy = data((rows, columns), dtype)
    mean, rstd = x.float().mean(1).to(dtype), (1 / x.float().std(1)).to(dtype)
    gamma = torch.randn(columns, device="cuda").to(dtype)

    def gradient(some):
        return normgrad.layer_norm_backward(
            dy[some], x[some], mean[some], rstd[some], columns, weight=gamma
        ).grad_input

    assert_slices_agree(gradient, rows)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels-first", "channels-last"])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((64, 64, 7, 7), 8), ((64, 256, 14, 14), 32), ((64, 256, 14, 14), 256), ((64, 96), 6),
     ((64, 512, 14, 14), 32), ((64, 30, 5, 5), 3), ((64, 33, 3, 3), 11), ((32, 320, 64, 64), 32),
     ((64, 256, 56, 56), 32), ((64, 640, 32, 32), 32), ((64, 1280, 16, 16), 32),
     ((16, 64, 129, 129), 8), ((12, 6, 101, 103), 2), ((4, 128, 512, 512), 32),
     ((4, 3, 1000, 1000), 1), ((64, 728, 37, 37), 8)],
)  # fmt: skip
def test_groups(shape, groups, last, dtype):
    x, dy = data(shape, dtype)
    if last and len(shape) == 4:
        x, dy = (one.to(memory_format=torch.channels_last) for one in (x, dy))
    mean, rstd = (torch.rand(shape[0], groups, device="cuda").to(dtype) + 0.5 for _ in range(2))
    gamma = torch.randn(shape[1], device="cuda").to(dtype)

    def gradient(some):
        return normgrad.group_norm_backward(
            dy[some], x[some], mean[some], rstd[some], groups, weight=gamma
        ).grad_input

    assert_slices_agree(gradient, shape[0])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["channels-first", "channels-last"])
@pytest.mark.parametrize("shape", [(64, 64, 7, 7), (32, 64, 56, 56), (16, 6, 129, 129)], ids=str)
def test_elements(shape, last, dtype):
    x, dy = data(shape, dtype)
    if last:
        x, dy = (one.to(memory_format=torch.channels_last) for one in (x, dy))
    mean, rstd, gamma, one, other = torch.rand(5, shape[1], device="cuda")
    count = torch.tensor([1000], device="cuda", dtype=torch.int32)

    def stage(some):
        return normgrad.batch_norm_elemt_backward(
            dy[some], x[some], mean, rstd, one, other, count, weight=gamma
        )

    def inference(some):
        return normgrad.batch_norm_backward(
            dy[some], x[some], mean, weight=gamma, variance=rstd, training=False
        ).grad_input

    assert_slices_agree(stage, shape[0])
    assert_slices_agree(inference, shape[0])
