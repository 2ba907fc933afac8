"""aclnnLayerNormBackward: a broken call and what it says, then the right one."""

import numpy as np

from normgrad import aclnn


def must(status: int) -> None:
    if status:
        raise SystemExit(f"{status}: {aclnn.aclGetRecentErrMsg()}")


def main() -> None:
    x = np.array([[2, 3], [4, 5]], np.float32)
    mean, rstd = np.array([[2], [3]], np.float32), np.array([[4], [5]], np.float32)
    weight, bias = np.ones(2, np.float32), np.zeros(2, np.float32)
    outputs = [np.full(shape, np.nan, np.float32) for shape in ((2, 2), 2, 2)]
    mask = aclnn.aclCreateBoolArray([True] * 3, 3)

    def stage_one(*normalized_shape: int) -> tuple[int, int, aclnn.aclOpExecutor | None]:
        return aclnn.aclnnLayerNormBackwardGetWorkspaceSize(
            aclnn.tensor(x),
            aclnn.tensor(x),
            aclnn.aclCreateIntArray(normalized_shape, len(normalized_shape)),
            aclnn.tensor(mean),
            aclnn.tensor(rstd),
            aclnn.tensor(weight),
            aclnn.tensor(bias),
            mask,
            *map(aclnn.tensor, outputs),
        )

    status, _, _ = stage_one(3)
    print(int(status), aclnn.aclGetRecentErrMsg())

    status, size, executor = stage_one(2)
    must(status)
    must(aclnn.aclrtSetDevice(0))
    workspace = aclnn.aclrtMalloc(size)[1] if size else None
    must(aclnn.aclnnLayerNormBackward(workspace, size, executor, None))
    if workspace:
        must(aclnn.aclrtFree(workspace))
    for name, values in zip(("grad_input", "grad_weight", "grad_bias"), outputs, strict=True):
        print(f"{name:11}", *values.ravel())


if __name__ == "__main__":
    main()
