"""aclnnBatchNormElemtBackward straight over NumPy arrays: only the workspace is device memory."""

import numpy as np

from normgrad import aclnn


def vector(*values: float) -> aclnn.aclTensor:
    return aclnn.tensor(np.array(values, np.float32))


def must(status: int) -> None:
    if status:
        raise SystemExit(f"{status}: {aclnn.aclGetRecentErrMsg()}")


def main() -> None:
    data = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    grad_input = np.full_like(data, np.nan)
    status, size, executor = aclnn.aclnnBatchNormElemtBackwardGetWorkspaceSize(
        aclnn.tensor(data),  # gradOut
        aclnn.tensor(data),  # input
        vector(0, 0),  # mean
        vector(1, 1),  # invstd
        vector(1, 1),  # weight
        vector(0, 0),  # sumDy, over all ranks
        vector(1, 1),  # sumDyXmu, over all ranks
        vector(5, 5),  # counter: two ranks with 5 elements each
        aclnn.tensor(grad_input),
    )
    must(status)
    must(aclnn.aclrtSetDevice(0))
    workspace = aclnn.aclrtMalloc(size)[1] if size else None
    must(aclnn.aclnnBatchNormElemtBackward(workspace, size, executor, None))
    if workspace:
        must(aclnn.aclrtFree(workspace))
    print("grad_input", *grad_input.ravel())


if __name__ == "__main__":
    main()
