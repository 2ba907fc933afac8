"""The runtime subset: start and end, devices, contexts and streams; and the status table."""

import ast
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from aclnn_calls import said

import normgrad.aclnn.runtime
from normgrad import aclnn
from normgrad.device import memory
from normgrad.device.host import HostMemory


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(normgrad.aclnn.runtime, "_PROCESS", normgrad.aclnn.runtime._Process())
    monkeypatch.setattr(normgrad.aclnn.runtime, "_THREAD", normgrad.aclnn.runtime._Thread())


def test_every_status_has_a_sentence():
    assert set(aclnn.SENTENCES) == set(aclnn.Status)
    assert all(text.endswith(".") and len(text) > 15 for text in aclnn.SENTENCES.values())
    assert len(set(aclnn.SENTENCES.values())) == len(aclnn.Status)


def test_every_status_named_in_the_code_is_in_the_table():
    folder = Path(aclnn.__file__).parent
    named = {
        node.attr
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith(("ACLNN_ERR", "ACL_ERROR"))
    }
    assert named <= {status.name for status in aclnn.Status}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ACL_SUCCESS", 0),
        ("ACLNN_ERR_PARAM_NULLPTR", 161001),
        ("ACLNN_ERR_PARAM_INVALID", 161002),
        ("ACLNN_ERR_RUNTIME_ERROR", 361001),
        ("ACLNN_ERR_INNER", 561000),
        ("ACLNN_ERR_INNER_FIND_KERNEL_ERROR", 561003),
        ("ACLNN_ERR_INNER_CREATE_EXECUTOR", 561101),
        ("ACLNN_ERR_INNER_NULLPTR", 561103),
        ("ACL_ERROR_INVALID_PARAM", 100000),
        ("ACL_ERROR_UNINITIALIZE", 100001),
        ("ACL_ERROR_REPEAT_INITIALIZE", 100002),
        ("ACL_ERROR_BAD_ALLOC", 200000),
        ("ACL_ERROR_INTERNAL_ERROR", 500000),
        ("ACL_ERROR_FAILURE", 500001),
        ("ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID", 107006),
        ("ACL_ERROR_RT_STREAM_SYNC_TIMEOUT", 507046),
    ],
)
def test_statuses_have_their_documented_values(name, value):
    assert aclnn.Status[name] == value


def test_constants_have_their_documented_values():
    dtypes = {
        "DT_UNDEFINED": -1, "FLOAT": 0, "FLOAT16": 1, "INT8": 2, "INT32": 3, "UINT8": 4,
        "INT16": 6, "UINT16": 7, "UINT32": 8, "INT64": 9, "UINT64": 10, "DOUBLE": 11, "BOOL": 12,
        "STRING": 13, "COMPLEX64": 16, "COMPLEX128": 17, "BF16": 27, "INT4": 29, "UINT1": 30,
        "COMPLEX32": 33, "HIFLOAT8": 34, "FLOAT8_E5M2": 35, "FLOAT8_E4M3FN": 36,
        "FLOAT8_E8M0": 37, "FLOAT6_E3M2": 38, "FLOAT6_E2M3": 39, "FLOAT4_E2M1": 40,
        "FLOAT4_E1M2": 41,
    }  # fmt: skip
    formats = {
        "FORMAT_UNDEFINED": -1, "FORMAT_NCHW": 0, "FORMAT_NHWC": 1, "FORMAT_ND": 2,
        "FORMAT_NC1HWC0": 3, "FORMAT_FRACTAL_Z": 4, "FORMAT_HWCN": 16, "FORMAT_NDHWC": 27,
        "FORMAT_FRACTAL_NZ": 29, "FORMAT_NCDHW": 30, "FORMAT_NDC1HWC0": 32, "FRACTAL_Z_3D": 33,
        "FORMAT_NC": 35, "FORMAT_NCL": 47,
    }  # fmt: skip
    others = {
        "MEMCPY_HOST_TO_HOST": 0, "MEMCPY_HOST_TO_DEVICE": 1, "MEMCPY_DEVICE_TO_HOST": 2,
        "MEMCPY_DEVICE_TO_DEVICE": 3, "MEM_MALLOC_HUGE_FIRST": 0, "MEM_MALLOC_HUGE_ONLY": 1,
        "MEMCPY_DEFAULT": 4, "MEMCPY_INTER_DEVICE_TO_DEVICE": 7,
        "MEM_MALLOC_NORMAL_ONLY": 2, "MEM_MALLOC_HUGE_FIRST_P2P": 3,
        "MEM_MALLOC_HUGE1G_ONLY_P2P": 7, "MEM_TYPE_LOW_BAND_WIDTH": 256,
        "MEM_TYPE_HIGH_BAND_WIDTH": 4096, "OPT_DETERMINISTIC": 0, "DEVICE": 0, "HOST": 1,
    }  # fmt: skip
    for name, value in (dtypes | formats | others).items():
        assert getattr(aclnn, f"ACL_{name}") == value
    assert len(aclnn.aclDataType) == len(dtypes)
    assert len(aclnn.aclFormat) == len(formats)


def test_init_and_finalize():
    assert aclnn.aclFinalize() == 100001
    assert aclnn.aclInit(None) == 0
    assert aclnn.aclInit(None) == 100002
    assert "aclInit was called before" in said()
    assert aclnn.aclFinalize() == 0
    assert aclnn.aclFinalize() == 100001


def test_devices():
    assert aclnn.aclrtGetDeviceCount() == (0, 1)
    assert aclnn.aclrtGetDevice()[0] == 107002
    assert "call aclrtSetDevice first" in said()
    for wrong in (1, -1, "0"):
        assert aclnn.aclrtSetDevice(wrong) == 107001
    assert "deviceId must be 0 to 0, got '0'" in said()
    assert aclnn.aclrtSetDevice(np.int64(0)) == 0
    assert aclnn.aclrtGetDevice() == (0, 0)
    assert aclnn.aclrtResetDevice(np.uint8(0)) == 0
    assert aclnn.aclrtMalloc(16)[0] == 107002


def test_a_device_is_given_up_by_the_last_of_its_users(device):
    def work():
        statuses.extend((aclnn.aclrtSetDevice(0), aclnn.aclrtResetDevice(0)))

    statuses = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert statuses == [0, 0]
    status, pointer = aclnn.aclrtMalloc(16)  # the worker took back what it had set, not ours
    assert status == 0, said()
    assert aclnn.aclrtFree(pointer) == 0
    assert aclnn.aclrtSetDevice(0) == 0
    context = aclnn.aclrtGetCurrentContext()[1]
    assert aclnn.aclrtResetDevice(0) == 0
    assert aclnn.aclrtGetCurrentContext() == (0, context)
    assert aclnn.aclrtResetDevice(0) == 0
    assert aclnn.aclrtGetCurrentContext() == (107002, None)
    assert aclnn.aclrtSetCurrentContext(context) == 107002


def test_a_reset_without_a_set_is_success_and_takes_nothing():
    assert [aclnn.aclrtResetDevice(0) for _ in range(3)] == [0, 0, 0]
    assert aclnn.aclrtSetDevice(0) == 0
    assert aclnn.aclrtGetDevice() == (0, 0)


def test_users_outlive_a_destroyed_context_and_finalize(device):
    assert aclnn.aclrtSetDevice(0) == 0
    assert aclnn.aclrtDestroyContext(aclnn.aclrtGetCurrentContext()[1]) == 0
    assert (aclnn.aclInit(None), aclnn.aclFinalize()) == (0, 0)
    assert aclnn.aclrtSetDevice(0) == 0
    assert [aclnn.aclrtResetDevice(0) for _ in range(2)] == [0, 0]
    assert aclnn.aclrtGetDevice() == (0, 0)
    assert aclnn.aclrtResetDevice(0) == 0
    assert aclnn.aclrtGetDevice() == (107002, None)


def test_a_thread_without_a_device_shares_that_of_the_process(device):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(aclnn.aclrtGetDevice()))
    thread.start()
    thread.join()
    assert seen == [(0, 0)]


def test_contexts():
    status, context = aclnn.aclrtCreateContext(0)
    assert status == 0
    assert aclnn.aclrtGetCurrentContext() == (0, context)
    assert aclnn.aclrtDestroyContext(context) == 0
    assert aclnn.aclrtDestroyContext(context) == 107002
    assert aclnn.aclrtSetCurrentContext(context) == 107002
    for null in (None, 0):
        assert aclnn.aclrtSetCurrentContext(null) == 100000
        assert aclnn.aclrtDestroyContext(null) == 100000
    assert aclnn.aclrtCreateContext(7) == (107001, None)


def test_a_destroyed_default_context_is_not_used_again(device):
    status, context = aclnn.aclrtGetCurrentContext()
    assert status == 0
    assert aclnn.aclrtDestroyContext(context) == 0
    assert aclnn.aclrtGetCurrentContext() == (107002, None)
    assert aclnn.aclrtMalloc(16) == (107002, 0)
    assert aclnn.aclrtDestroyContext(context) == 107002
    assert aclnn.aclrtSetDevice(0) == 0
    status, new = aclnn.aclrtGetCurrentContext()
    assert status == 0
    assert new is not context
    assert aclnn.aclrtSetCurrentContext(new) == 0


def test_streams(device):
    status, stream = aclnn.aclrtCreateStream()
    assert status == 0
    assert aclnn.aclrtSynchronizeStream(stream) == 0
    assert aclnn.aclrtSynchronizeStream(None) == 0
    assert aclnn.aclrtSynchronizeDevice() == 0
    assert aclnn.aclrtDestroyStream(stream) == 0
    assert aclnn.aclrtDestroyStream(stream) == 107003
    assert aclnn.aclrtSynchronizeStream(stream) == 107003
    for null in (None, 0, np.uint64(0)):
        assert aclnn.aclrtDestroyStream(null) == 100000
        assert aclnn.aclrtSynchronizeStream(null) == 0
    assert aclnn.aclrtSynchronizeStream(np.zeros(2)) == 107003
    assert "stream must be alive, got a ndarray" in said()


def test_programs_run_beside_the_device():
    assert aclnn.aclrtGetRunMode() == (0, aclnn.ACL_HOST)


def test_waiting_for_a_stream_no_longer_than_told(monkeypatch, device):
    stream = aclnn.aclrtCreateStream()[1]
    for timeout in (-1, 0, 1, np.int32(20)):
        assert aclnn.aclrtSynchronizeStreamWithTimeout(stream, timeout) == 0
        assert aclnn.aclrtSynchronizeStreamWithTimeout(None, timeout) == 0
    for wrong in (-2, 1.5, None):
        assert aclnn.aclrtSynchronizeStreamWithTimeout(stream, wrong) == 100000
    looks = []

    class Busy(HostMemory):
        def finished(self, stream):
            looks.append(stream)
            return len(looks) > 5

    monkeypatch.setitem(normgrad.device._MEMORIES, "cpu", Busy())
    assert aclnn.aclrtSynchronizeStreamWithTimeout(stream, 10_000) == 0
    assert len(looks) == 6
    monkeypatch.setattr(Busy, "finished", lambda *_: False)
    assert aclnn.aclrtSynchronizeStreamWithTimeout(stream, 2) == 507046
    assert "the stream still had work after 2 ms" in said()
    assert aclnn.aclrtDestroyStream(stream) == 0
    assert aclnn.aclrtSynchronizeStreamWithTimeout(stream, 2) == 107003


def test_determinism_is_stored(device):
    assert aclnn.aclrtCtxGetSysParamOpt(aclnn.ACL_OPT_DETERMINISTIC) == (0, 0)
    for value in range(4):
        assert aclnn.aclrtCtxSetSysParamOpt(0, value) == 0
        assert aclnn.aclrtCtxGetSysParamOpt(0) == (0, value)
    assert aclnn.aclrtCtxSetSysParamOpt(0, 4) == 100000
    assert aclnn.aclrtCtxSetSysParamOpt(1, 0) == 100000
    assert aclnn.aclrtCtxGetSysParamOpt(9) == (100000, None)


def test_soc_name_follows_the_product():
    names = set()
    for key in aclnn.PRODUCTS:
        aclnn.set_product(key)
        names.add(aclnn.aclrtGetSocName())
    aclnn.set_product("ascend950")
    assert len(names) == len(aclnn.PRODUCTS) == 6


@pytest.mark.parametrize("setting", ["tpu", "cuda:", "cuda:first", "cudax"])
def test_bad_device_setting_is_a_status(monkeypatch, setting):
    monkeypatch.setenv("NORMGRAD_DEVICE", setting)
    assert aclnn.aclrtSetDevice(0) == 500000
    assert f"NORMGRAD_DEVICE must be cpu, cuda or cuda:N, got '{setting}'" in said()


@pytest.fixture
def three_gpus(monkeypatch):
    """Memory that only says where it would be: the GPUs on which something was allocated."""
    used = []

    class Named:
        def __init__(self, name):
            self.device = name

        def allocate(self, nbytes):
            used.append(self.device)
            return None, 4096 * len(used)

    fakes = {f"cuda:{number}": Named(f"cuda:{number}") for number in range(3)}
    monkeypatch.setattr(normgrad.device, "_MEMORIES", fakes)
    monkeypatch.setattr(memory, "DEVICE", memory.Allocations("device"))  # not to be remembered
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    return used


@pytest.mark.parametrize("size", [2**63, 2**64 - 1])
def test_more_bytes_than_torch_counts_are_want_of_memory(monkeypatch, three_gpus, size):
    # Without a GPU: torch refuses such a size before it looks at the device.
    from normgrad.device.cuda import CudaMemory

    gpu = CudaMemory("cuda:0")
    gpu.device = "meta"
    monkeypatch.setenv("NORMGRAD_DEVICE", "cuda")
    monkeypatch.setitem(normgrad.device._MEMORIES, "cuda:0", gpu)
    assert aclnn.aclrtSetDevice(0) == 0
    assert aclnn.aclrtMalloc(size) == (200000, 0)
    assert said() == f"aclrtMalloc: not enough memory: {size} bytes cannot be had on meta"


def place_of_new_tensor():
    return aclnn.aclCreateTensor((2,), 1, 0, None, 0, 2, (2,), 1, 4096).kind.device


@pytest.mark.parametrize(("setting", "first"), [("cuda", 0), ("cuda:0", 0), ("cuda:1", 1)])
def test_gpus_are_counted_from_the_one_that_is_named(monkeypatch, three_gpus, setting, first):
    monkeypatch.setenv("NORMGRAD_DEVICE", setting)
    assert aclnn.aclrtGetDeviceCount() == (0, 3 - first)
    assert place_of_new_tensor() == f"cuda:{first}"  # before any device is set
    for number in range(3 - first):
        assert aclnn.aclrtSetDevice(number) == 0
        assert aclnn.aclrtGetDevice() == (0, number)
        pointer = aclnn.aclrtMalloc(16)[1]
        assert three_gpus[-1] == place_of_new_tensor() == f"cuda:{first + number}"
        assert aclnn.aclrtFree(pointer) == 0
    assert aclnn.aclrtSetDevice(3 - first) == 107001


def test_memory_of_another_gpu_is_told(monkeypatch, three_gpus):
    monkeypatch.setenv("NORMGRAD_DEVICE", "cuda")
    assert aclnn.aclrtSetDevice(0) == 0
    pointer = aclnn.aclrtMalloc(16)[1]
    assert aclnn.aclrtSetDevice(1) == 0
    assert aclnn.aclrtMemset(pointer, 16, 0, 16) == 100000
    assert said().endswith("which is on cuda:0, not on cuda:1")
    assert aclnn.aclrtFree(pointer) == 0


def test_tensors_of_a_thread_without_a_device_are_where_its_memory_is(monkeypatch, three_gpus):
    monkeypatch.setenv("NORMGRAD_DEVICE", "cuda")
    assert aclnn.aclrtSetDevice(1) == 0
    seen = []

    def work():
        pointer = aclnn.aclrtMalloc(16)[1]
        seen.append((three_gpus[-1], place_of_new_tensor(), aclnn.aclrtFree(pointer)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [("cuda:1", "cuda:1", 0)]
