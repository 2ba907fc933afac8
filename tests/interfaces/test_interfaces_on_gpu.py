"""Both interfaces over GPU memory. Needs torch with CUDA and nothing else of the test suite."""

import numpy as np
import pytest

from normgrad import aclnn, batch_norm, batch_norm_backward, infiniop, layer_norm, rms_norm
from normgrad.core.spec import TensorSpec
from normgrad.device import memory_of

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]
H2D, D2H, D2D = 1, 2, 3


def test_bytes_there_and_back():
    memory = memory_of("cuda:0")
    owner, address = memory.allocate(64)
    held, other = memory.allocate(64)
    data, back = np.arange(8.0), np.zeros(8)
    memory.copy(address, data.ctypes.data, 64, H2D, 0)
    memory.copy(other, address, 64, D2D, 0)
    memory.fill(address, 0, 64, 0)
    memory.copy(back.ctypes.data, other, 64, D2H, 0)
    np.testing.assert_array_equal(back, data)
    memory.copy(back.ctypes.data, address, 64, D2H, 0)
    np.testing.assert_array_equal(back, np.zeros(8))
    memory.synchronize(0)
    memory.synchronize(None)
    del owner, held


@pytest.mark.parametrize("strides", [(4, 1), (1, 3), (-4, 1), (-4, -1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_views_are_copied(strides, dtype):
    kind = getattr(torch, dtype)
    source = torch.arange(12, dtype=kind, device="cuda").reshape(3, 4)
    target = torch.zeros(20, dtype=kind, device="cuda")
    start = -min(0, 2 * strides[0]) - min(0, 3 * strides[1])
    address = target.data_ptr() + start * target.element_size()
    memory = memory_of("cuda:0")
    owner, stream = memory.new_stream()
    torch.cuda.synchronize()
    memory.copy_view(
        address,
        TensorSpec((3, 4), strides, dtype),
        source.data_ptr(),
        TensorSpec.contiguous((3, 4), dtype),
        stream,
    )
    memory.synchronize(stream)
    expected = np.zeros(20)
    for row in range(3):
        for column in range(4):
            expected[start + row * strides[0] + column * strides[1]] = 4 * row + column
    np.testing.assert_array_equal(target.double().cpu().numpy(), expected)
    del owner


def problem(shape=(8, 16, 33)):
    rng = np.random.default_rng(0)
    dy, x = ((100 + 3 * rng.standard_normal(shape)).astype(np.float32) for _ in range(2))
    weight, mean, variance = (0.5 + rng.random(shape[1]).astype(np.float32) for _ in range(3))
    return dy, x, weight, mean, variance


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("shift", [0, 4])
def test_aclnn_from_memory_to_memory(monkeypatch, shift):
    """With ``shift`` gradInput lies over input, one element on: it goes through the workspace."""
    monkeypatch.setenv("NORMGRAD_DEVICE", "cuda")
    assert aclnn.aclrtSetDevice(0) == 0, aclnn.aclGetRecentErrMsg()
    status, stream = aclnn.aclrtCreateStream()
    assert status == 0
    dy, x, weight, mean, variance = problem()
    invstd = 1 / np.sqrt(variance)
    pointers = []

    def place(array, room=0):
        status, pointer = aclnn.aclrtMalloc(array.nbytes + room)
        assert status == 0
        assert aclnn.aclrtMemcpy(pointer, array.nbytes, array, array.nbytes, H2D) == 0
        pointers.append(pointer)
        return pointer

    def over(pointer, shape):
        return aclnn.aclCreateTensor(shape, len(shape), 0, None, 0, 2, shape, len(shape), pointer)

    x_at = place(x, room=4)
    result = x_at + shift if shift else place(np.full_like(x, np.nan))
    small = [place(np.full(16, np.nan, np.float32)) for _ in range(2)]
    status, size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        over(place(dy), x.shape),
        over(x_at, x.shape),
        over(place(weight), (16,)),
        None,
        None,
        over(place(mean), (16,)),
        over(place(invstd), (16,)),
        True,
        1e-5,
        aclnn.aclCreateBoolArray([True] * 3, 3),
        over(result, x.shape),
        *(over(pointer, (16,)) for pointer in small),
    )
    assert status == 0, aclnn.aclGetRecentErrMsg()
    workspace = aclnn.aclrtMalloc(size)[1] if size else None
    status = aclnn.aclnnBatchNormBackward(workspace, size, executor, stream)
    assert status == 0, aclnn.aclGetRecentErrMsg()
    assert aclnn.aclrtSynchronizeStream(stream) == 0
    expected = batch_norm_backward(dy, x, mean, invstd, weight=weight)[:3]
    for pointer, want in zip((result, *small), expected, strict=True):
        got = np.full_like(want, np.nan)
        assert aclnn.aclrtMemcpy(got, got.nbytes, pointer, got.nbytes, D2H) == 0
        close(got, want)
    for pointer in pointers:
        assert aclnn.aclrtFree(pointer) == 0
    assert aclnn.aclrtDestroyStream(stream) == 0


def test_infiniop_over_torch_tensors():
    assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_NVIDIA, 0) == 0
    try:
        handle = infiniop.infiniopCreateHandle()[1]
        dy, x, weight, mean, variance = problem()
        expected = batch_norm_backward(dy, x, mean, variance=variance, eps=0.0, weight=weight)[:3]
        results = [np.full_like(want, np.nan) for want in expected]
        arrays = [
            torch.from_numpy(array).cuda() for array in (*results, x, dy, weight, mean, variance)
        ]
        arrays[1] = arrays[5]  # grad_weight over weight: through memory of our own
        tensors = [
            infiniop.infiniopCreateTensorDescriptor(
                array.dim(), tuple(array.shape), None, infiniop.INFINI_DTYPE_F32
            )[1]
            for array in arrays
        ]
        status, desc = infiniop.infiniopCreateBatchNormBackwardDescriptor(handle, *tensors)
        assert status == 0, infiniop.recent_error()
        size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(desc)[1]
        status, workspace = infiniop.infinirtMalloc(size)
        assert status == 0
        torch.cuda.synchronize()
        status, stream = infiniop.infinirtStreamCreate()
        assert status == 0
        addresses = [array.data_ptr() for array in arrays]
        status = infiniop.infiniopBatchNormBackward(desc, workspace, size, *addresses, stream)
        assert status == 0, infiniop.recent_error()
        assert infiniop.infinirtStreamSynchronize(stream) == 0
        for got, want in zip(arrays, expected, strict=False):
            close(got.cpu().numpy(), want)
        assert infiniop.infinirtFree(workspace) == 0
        assert infiniop.infinirtStreamDestroy(stream) == 0
    finally:
        assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_CPU, 0) == 0


FORWARD = {
    "BatchNorm": lambda x, w, b, more: batch_norm_of(x, w, b, *more),
    "LayerNorm": lambda x, w, b, more: layer_norm_of(x, w, b),
    "RMSNorm": lambda x, w, b, more: (rms_norm(x, x.shape[-1], weight=w, eps=1e-5).output,),
    "AddRMSNorm": lambda x, w, b, more: add_rms_norm_of(x, w, more[0]),
}


def batch_norm_of(x, w, b, mean, var):
    """With momentum .25, and the biased variance in the running one."""
    y = batch_norm(x, weight=w, bias=b, eps=1e-5).output
    axes, keep = (0, 2), 0.75
    return y, keep * mean + 0.25 * x.mean(axes), keep * var + 0.25 * x.var(axes)


def layer_norm_of(x, w, b):
    made = layer_norm(x, x.shape[-1], weight=w, bias=b, eps=1e-5)
    plain = layer_norm(x, x.shape[-1], eps=1e-5)
    return made.output, plain.output, 1 / made.rstd[..., 0]


def add_rms_norm_of(x, w, other):
    made = rms_norm(x, x.shape[-1], weight=w, residual=other, eps=1e-5)
    return made.output, made.sum


@pytest.mark.parametrize("name", FORWARD)
def test_infiniop_forward_over_torch_tensors(name):
    assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_NVIDIA, 0) == 0
    try:
        _, x, w, b, var = problem()
        rows = name != "BatchNorm"
        if rows:
            w, b = (np.random.default_rng(1).random(x.shape[-1]).astype(np.float32) for _ in "wb")
        more = (b * 2, var) if name == "BatchNorm" else (x[::-1].copy(),)
        want = FORWARD[name](x, w, b, more)
        results = [np.full(one.shape, np.nan, np.float32) for one in want]
        operands = {
            "BatchNorm": (x, w, b),
            "LayerNorm": (x, w, b),
            "RMSNorm": (x, w),
            "AddRMSNorm": (x, *more, w),
        }[name]
        if name == "BatchNorm":
            results[1:] = more  # updated
        arrays = [torch.from_numpy(np.ascontiguousarray(one)).cuda() for one in results]
        arrays += [torch.from_numpy(np.ascontiguousarray(one)).cuda() for one in operands]
        tensors = [
            infiniop.infiniopCreateTensorDescriptor(
                one.dim(), tuple(one.shape), None, infiniop.INFINI_DTYPE_F32
            )[1]
            for one in arrays
        ]
        numbers = (0.25, 1e-5) if name == "BatchNorm" else (1e-5,)
        handle = infiniop.infiniopCreateHandle()[1]
        create = getattr(infiniop, f"infiniopCreate{name}Descriptor")
        status, desc = create(handle, *tensors, *numbers)
        assert status == 0, infiniop.recent_error()
        size = getattr(infiniop, f"infiniopGet{name}WorkspaceSize")(desc)[1]
        workspace = infiniop.infinirtMalloc(size)[1] if size else None
        torch.cuda.synchronize()
        addresses = [one.data_ptr() for one in arrays]
        status = getattr(infiniop, f"infiniop{name}")(desc, workspace, size, *addresses, None)
        assert status == 0, infiniop.recent_error()
        assert infiniop.infinirtDeviceSynchronize() == 0
        for got, right in zip(arrays, want, strict=False):
            close(got.cpu().numpy(), right)
        assert infiniop.infinirtFree(workspace) == 0
    finally:
        assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_CPU, 0) == 0


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setenv("NORMGRAD_DEVICE", "cuda")
    assert aclnn.aclrtSetDevice(0) == 0, aclnn.aclGetRecentErrMsg()


def busy(stream, milliseconds=300):
    """Keep a stream at work; a GPU makes about 2 million cycles in a millisecond."""
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.number)):
        torch.cuda._sleep(2_000_000 * milliseconds)


def test_events_and_limits_of_waiting(gpu):
    stream, other = (aclnn.aclrtCreateStream()[1] for _ in range(2))
    start, end, after = (aclnn.aclrtCreateEvent()[1] for _ in range(3))
    assert aclnn.aclrtQueryEventStatus(start) == (0, 0)
    assert aclnn.aclrtRecordEvent(start, stream) == 0
    busy(stream)
    assert aclnn.aclrtRecordEvent(end, stream) == 0
    assert aclnn.aclrtStreamWaitEvent(other, end) == 0
    assert aclnn.aclrtRecordEvent(after, other) == 0
    assert aclnn.aclrtQueryEventStatus(end) == (0, 0)
    assert aclnn.aclrtEventElapsedTime(start, end) == (107006, 0)
    assert aclnn.aclrtSynchronizeStreamWithTimeout(stream, 5) == 507046
    assert aclnn.aclrtSynchronizeStreamWithTimeout(other, 5) == 507046
    assert aclnn.aclrtSynchronizeStreamWithTimeout(other, 60_000) == 0
    assert aclnn.aclrtQueryEventStatus(end) == (0, 1)
    status, milliseconds = aclnn.aclrtEventElapsedTime(start, end)
    assert (status, 50 < milliseconds < 5000) == (0, True)
    assert aclnn.aclrtEventElapsedTime(end, after)[1] >= 0
    assert aclnn.aclrtResetEvent(end, stream) == 0
    assert aclnn.aclrtQueryEventStatus(end) == (0, 0)
    assert [aclnn.aclrtDestroyEvent(event) for event in (start, end, after)] == [0, 0, 0]
    assert [aclnn.aclrtDestroyStream(each) for each in (stream, other)] == [0, 0]


def test_copies_whose_kind_the_addresses_say(gpu):
    data, back = np.arange(8.0), np.zeros(8)
    one, two = (aclnn.aclrtMalloc(64)[1] for _ in range(2))
    default = aclnn.ACL_MEMCPY_DEFAULT
    assert aclnn.aclrtMemcpy(one, 64, data.ctypes.data, 64, default) == 0
    assert aclnn.aclrtMemcpy(two, 64, one, 64, default) == 0
    assert aclnn.aclrtMemsetAsync(two, 64, 0, 8, None) == 0
    assert aclnn.aclrtMemcpy(back, 64, two, 64, default) == 0
    np.testing.assert_array_equal(back, [0, *data[1:]])
    assert [aclnn.aclrtFree(pointer) for pointer in (one, two)] == [0, 0]


def test_memory_in_numbers_and_too_much_of_it(gpu):
    status, free, total = aclnn.aclrtGetMemInfo(aclnn.ACL_HBM_MEM)
    assert (status, 0 < free <= total) == (0, True)
    assert total == torch.cuda.get_device_properties(0).total_memory
    for size in (1 << 60, 2 * total):
        assert aclnn.aclrtMalloc(size) == (200000, 0)
        words = f"aclrtMalloc: not enough memory: {size} bytes cannot be had on cuda:0"
        assert aclnn.aclGetRecentErrMsg() == words


def test_infinirt_events():
    assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_NVIDIA, 0) == 0
    try:
        stream = infiniop.infinirtStreamCreate()[1]
        start, end = (infiniop.infinirtEventCreate()[1] for _ in range(2))
        assert infiniop.infinirtEventRecord(start, stream) == 0
        busy(stream)
        assert infiniop.infinirtEventRecord(end, stream) == 0
        assert infiniop.infinirtEventQuery(end) == (0, infiniop.INFINIRT_EVENT_NOT_READY)
        assert infiniop.infinirtEventSynchronize(end) == 0
        status, milliseconds = infiniop.infinirtEventElapsedTime(start, end)
        assert (status, 50 < milliseconds < 5000) == (0, True)
        pointer = infiniop.infinirtMallocAsync(64, stream)[1]
        assert infiniop.infinirtFreeAsync(pointer, stream) == 0
        assert infiniop.infinirtStreamDestroy(stream) == 0
        assert infiniop.infinirtGetAllDeviceCount()[1][1] == torch.cuda.device_count()
    finally:
        assert infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_CPU, 0) == 0
