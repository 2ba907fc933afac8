"""aclnnGroupNormBackward with one executor for several runs."""

import numpy as np

from normgrad import aclnn


def must(status: int) -> None:
    if status:
        raise SystemExit(f"{status}: {aclnn.aclGetRecentErrMsg()}")


def main() -> None:
    data = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    mean = np.array([[6.5], [18.5]], np.float32)
    rstd = np.full((2, 1), 0.2896827, np.float32)
    gamma = np.ones(3, np.float32)
    grad_input, grad_gamma, grad_beta = (np.empty(s, np.float32) for s in ((2, 3, 4), 3, 3))

    status, size, executor = aclnn.aclnnGroupNormBackwardGetWorkspaceSize(
        aclnn.tensor(data),  # gradOut
        aclnn.tensor(data),  # input
        aclnn.tensor(mean),
        aclnn.tensor(rstd),
        aclnn.tensor(gamma),
        2,  # N
        3,  # C
        4,  # HxW
        1,  # group
        aclnn.aclCreateBoolArray([True] * 3, 3),
        aclnn.tensor(grad_input),
        aclnn.tensor(grad_gamma),
        aclnn.tensor(grad_beta),
    )
    must(status)
    must(aclnn.aclSetAclOpExecutorRepeatable(executor))
    must(aclnn.aclrtSetDevice(0))
    workspace = aclnn.aclrtMalloc(size)[1] if size else None
    for _ in range(3):  # the arrays may hold other numbers each time
        grad_input[...], grad_gamma[...], grad_beta[...] = np.nan, np.nan, np.nan
        must(aclnn.aclnnGroupNormBackward(workspace, size, executor, None))
    must(aclnn.aclDestroyAclOpExecutor(executor))
    if workspace:
        must(aclnn.aclrtFree(workspace))

    print("largest grad_input below 1e-5:", bool(np.abs(grad_input).max() < 1e-5))
    print("grad_gamma", *(f"{value:.5f}" for value in grad_gamma))
    print("grad_beta ", *grad_beta)


if __name__ == "__main__":
    main()
