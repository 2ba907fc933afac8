"""infiniopBatchNormBackward: a handle, descriptors, and the addresses of NumPy arrays."""

import numpy as np
from numpy.typing import NDArray

from normgrad import infiniop

NAMES = (
    "grad_input",
    "grad_weight",
    "grad_bias",
    "input",
    "grad_output",
    "weight",
    "running_mean",
    "running_var",
)


def must(status: int) -> None:
    if status != infiniop.INFINI_STATUS_SUCCESS:
        raise SystemExit(f"{status}: {infiniop.recent_error()}")


def main() -> None:
    data = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    arrays: dict[str, NDArray[np.float32]]
    arrays = {name: np.full(2, np.nan, np.float32) for name in NAMES}
    arrays |= {"grad_input": np.full_like(data, np.nan), "input": data, "grad_output": data}
    arrays["weight"][:], arrays["running_mean"][:], arrays["running_var"][:] = 1, 0, 1

    must(infiniop.infinirtSetDevice(infiniop.INFINI_DEVICE_CPU, 0))
    status, handle = infiniop.infiniopCreateHandle()
    must(status)
    tensors = []
    for array in arrays.values():
        status, tensor = infiniop.infiniopCreateTensorDescriptor(
            array.ndim, array.shape, None, infiniop.INFINI_DTYPE_F32
        )
        must(status)
        tensors.append(tensor)
    status, desc = infiniop.infiniopCreateBatchNormBackwardDescriptor(handle, *tensors)
    must(status)
    for tensor in tensors:
        must(infiniop.infiniopDestroyTensorDescriptor(tensor))

    status, size = infiniop.infiniopGetBatchNormBackwardWorkspaceSize(desc)
    must(status)
    status, workspace = infiniop.infinirtMalloc(size)
    must(status)
    stream = None
    pointers = [*(array.ctypes.data for array in arrays.values()), stream]
    must(infiniop.infiniopBatchNormBackward(desc, workspace, size, *pointers))
    for name in NAMES[:3]:
        print(f"{name:11}", *arrays[name].ravel())

    must(infiniop.infinirtFree(workspace))
    must(infiniop.infiniopDestroyBatchNormBackwardDescriptor(desc))
    must(infiniop.infiniopDestroyHandle(handle))


if __name__ == "__main__":
    main()
