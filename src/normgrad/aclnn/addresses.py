"""Other memory under the tensors of an executor, which is kept for many stages 2."""

from typing import Any

from normgrad.aclnn.executor import CLAIM, aclOpExecutor, check_usable
from normgrad.aclnn.status import (
    ACL_SUCCESS,
    INVALID,
    NULLPTR,
    OPERATOR_CODES,
    SPENT,
    Status,
    fail,
    operator_status,
    reports,
)
from normgrad.aclnn.tensors import aclTensor, living
from normgrad.device.failures import is_null, whole

AddressAnswer = tuple[Status, int]


def _no_address(status: Status) -> AddressAnswer:
    return status, 0


@operator_status
def aclSetInputTensorAddr(
    executor: aclOpExecutor | None, index: int, tensor: aclTensor | None, addr: int | None
) -> Status:
    """Put an operand of an executor over other memory.

    Stage 2 looks at all addresses anew: what stage 1 refuses about memory, it refuses then.

    Args:
        executor: Of stage 1, made repeatable.
        index: The operand's number; the tensor says as much, so it is not looked at.
        tensor: The very tensor that stage 1 got. It lies there for all who ask it.
        addr: The address of its memory, from which its offset counts.

    Returns:
        0; 561103 for a null tensor, and for a null or spent executor, 161002 for a destroyed
        tensor or one that the executor was not made with.

    Example:
        >>> made = aclnn.aclCreateTensor((3,), 1, aclnn.ACL_FLOAT, None, 0, 2, (3,), 1, None)
        >>> aclnn.aclSetInputTensorAddr(None, 0, made, 4096)  # no executor, but the tensor moves
        <Status.ACLNN_ERR_INNER_NULLPTR: 561103>
        >>> made.address
        4096
    """
    return _put(executor, index, tensor, addr)


@operator_status
def aclSetOutputTensorAddr(
    executor: aclOpExecutor | None, index: int, tensor: aclTensor | None, addr: int | None
) -> Status:
    """Put a result of an executor over other memory.

    Args:
        executor: Of stage 1, made repeatable.
        index: The result's number, which is not looked at.
        tensor: The very tensor that stage 1 got.
        addr: The address of its memory.

    Returns:
        As ``aclSetInputTensorAddr``.

    Example:
        >>> aclnn.aclSetOutputTensorAddr(None, 0, None, 4096)
        <Status.ACLNN_ERR_INNER_NULLPTR: 561103>
    """
    return _put(executor, index, tensor, addr)


@operator_status
def aclSetTensorAddr(
    executor: aclOpExecutor | None, index: int, tensor: aclTensor | None, addr: int | None
) -> Status:
    """Put an operand or a result of an executor over other memory.

    Args:
        executor: Of stage 1, made repeatable.
        index: The tensor's number, which is not looked at.
        tensor: The very tensor that stage 1 got.
        addr: The address of its memory.

    Returns:
        As ``aclSetInputTensorAddr``.

    Example:
        >>> aclnn.aclSetTensorAddr(None, 0, None, 4096)
        <Status.ACLNN_ERR_INNER_NULLPTR: 561103>
    """
    return _put(executor, index, tensor, addr)


# The same under their names of old.
AclSetInputTensorAddr = aclSetInputTensorAddr
AclSetOutputTensorAddr = aclSetOutputTensorAddr
AclSetTensorAddr = aclSetTensorAddr


@operator_status
def aclSetRawTensorAddr(tensor: aclTensor | None, addr: int | None) -> Status:
    """Put a tensor over other memory, for the stages 1 to come.

    Args:
        tensor: The tensor. Executors that have it learn of it by ``aclSetTensorAddr``.
        addr: The address of its memory.

    Returns:
        0; 161001 for a null tensor, 161002 for a destroyed one.

    Example:
        >>> made = aclnn.aclCreateTensor((3,), 1, aclnn.ACL_FLOAT, None, 0, 2, (3,), 1, None)
        >>> aclnn.aclSetRawTensorAddr(made, 4096)
        <Status.ACL_SUCCESS: 0>
    """
    if is_null(tensor):
        fail(NULLPTR, "tensor must not be null")
    _lie(tensor, addr)
    return ACL_SUCCESS


@reports(*OPERATOR_CODES, _no_address)
def aclGetRawTensorAddr(tensor: aclTensor | None) -> AddressAnswer:
    """The address of a tensor's memory, from which its offset counts.

    Args:
        tensor: The tensor.

    Returns:
        0 and the address, 0 for none; 161001 and 0 for null, 161002 for a destroyed tensor.

    Example:
        >>> made = aclnn.aclCreateTensor((3,), 1, aclnn.ACL_FLOAT, None, 2, 2, (5,), 1, 4096)
        >>> aclnn.aclGetRawTensorAddr(made)
        (<Status.ACL_SUCCESS: 0>, 4096)
    """
    if is_null(tensor):
        fail(NULLPTR, "tensor must not be null")
    return ACL_SUCCESS, living(tensor, "tensor", aclTensor).data


def _put(executor: Any, index: Any, tensor: Any, addr: Any) -> Status:
    if is_null(tensor):
        fail(SPENT, "tensor must not be null")
    whole(INVALID, "index", index)
    moved = _lie(tensor, addr)  # before the executor is looked at, as in the vendor's library
    with CLAIM:
        kept = check_usable(executor)
        if not kept.holds(moved):
            fail(INVALID, f"tensor must be one that this executor of {kept.name} was made with")
        kept.launch = None
    return ACL_SUCCESS


def _lie(tensor: Any, addr: Any) -> aclTensor:
    moved: aclTensor = living(tensor, "tensor", aclTensor)
    moved.lie(0 if is_null(addr) else whole(INVALID, "addr", addr), None)
    return moved
