"""aclnnBatchNormBackward as a C program would call it: device memory, two stages, copies back."""

import sys

import numpy as np

from normgrad import aclnn


def must(status: int) -> None:
    if status != aclnn.ACL_SUCCESS:
        sys.exit(f"{status}: {aclnn.aclGetRecentErrMsg()}")


class OnDevice:
    """An array's copy in device memory, and the aclTensor over it."""

    def __init__(self, values: np.ndarray) -> None:
        self.host = np.ascontiguousarray(values, np.float32)
        size, shape = self.host.nbytes, self.host.shape
        status, self.pointer = aclnn.aclrtMalloc(size, aclnn.ACL_MEM_MALLOC_HUGE_FIRST)
        must(status)
        kind = aclnn.ACL_MEMCPY_HOST_TO_DEVICE
        must(aclnn.aclrtMemcpy(self.pointer, size, self.host, size, kind))
        self.tensor = aclnn.aclCreateTensor(
            shape,
            len(shape),
            aclnn.ACL_FLOAT,
            None,  # contiguous
            0,
            aclnn.ACL_FORMAT_ND,
            shape,
            len(shape),
            self.pointer,
        )

    def values(self) -> np.ndarray:
        """The array, copied back."""
        size, kind = self.host.nbytes, aclnn.ACL_MEMCPY_DEVICE_TO_HOST
        must(aclnn.aclrtMemcpy(self.host, size, self.pointer, size, kind))
        return self.host

    def free(self) -> None:
        """The tensor first, its memory after it."""
        must(aclnn.aclDestroyTensor(self.tensor))
        must(aclnn.aclrtFree(self.pointer))


def main() -> None:
    must(aclnn.aclInit(None))
    must(aclnn.aclrtSetDevice(0))
    status, stream = aclnn.aclrtCreateStream()
    must(status)

    data = np.arange(8).reshape(1, 2, 4)
    grad_out, x = OnDevice(data), OnDevice(data)
    weight, save_mean, save_invstd = (OnDevice(np.full(2, value)) for value in (1, 0, 1))
    grad_input, grad_weight, grad_bias = (OnDevice(np.full(s, np.nan)) for s in ((1, 2, 4), 2, 2))
    mask = aclnn.aclCreateBoolArray([True, True, True], 3)

    status, workspace_size, executor = aclnn.aclnnBatchNormBackwardGetWorkspaceSize(
        grad_out.tensor,
        x.tensor,
        weight.tensor,
        None,  # runningMean and runningVar are for inference
        None,
        save_mean.tensor,
        save_invstd.tensor,
        True,
        1e-5,
        mask,
        grad_input.tensor,
        grad_weight.tensor,
        grad_bias.tensor,
    )
    must(status)
    workspace = 0
    if workspace_size > 0:
        status, workspace = aclnn.aclrtMalloc(workspace_size)
        must(status)
    must(aclnn.aclnnBatchNormBackward(workspace, workspace_size, executor, stream))
    must(aclnn.aclrtSynchronizeStream(stream))

    print("grad_input ", *grad_input.values().ravel())
    print("grad_weight", *grad_weight.values())
    print("grad_bias  ", *grad_bias.values())

    for each in (grad_out, x, weight, save_mean, save_invstd, grad_input, grad_weight, grad_bias):
        each.free()
    if workspace:
        must(aclnn.aclrtFree(workspace))
    must(aclnn.aclDestroyBoolArray(mask))
    must(aclnn.aclrtDestroyStream(stream))
    must(aclnn.aclrtResetDevice(0))
    must(aclnn.aclFinalize())


if __name__ == "__main__":
    main()
