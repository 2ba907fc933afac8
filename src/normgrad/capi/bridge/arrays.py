"""Functions with C arrays among their arguments."""

from collections.abc import Callable
from typing import Any, Final

from normgrad.capi.bridge.handles import Handles
from normgrad.capi.signatures import Function
from normgrad.device.failures import LONGEST

_GETTERS: Final = ("aclGetViewShape", "aclGetViewStrides", "aclGetStorageShape")


def external(
    handles: Handles,
    function: Function,
    target: Callable[..., Any],
    null_result: Callable[[Function, str], int],
) -> Callable[..., Any] | None:
    """The call for C, if the function is one of these."""
    ffi = handles.ffi

    def copied(values: Any, count: int) -> Any:
        if values == ffi.NULL:
            return None
        return ffi.unpack(values, count) if count <= LONGEST else ()  # refused unread

    def made(kind: str, found: Any) -> int:
        if found is None:
            return 0
        handle = handles.new(kind, found)
        if not handle:
            raise MemoryError(f"too many objects of type {function.result} are alive")
        return handle

    def tensor(
        dims: Any,
        rank: int,
        dtype: int,
        strides: Any,
        offset: int,
        format: int,
        storage: Any,
        storage_rank: int,
        data: int,
    ) -> int:
        shape, steps = copied(dims, rank), copied(strides, rank)
        stored = copied(storage, storage_rank)
        arguments = (shape, rank, dtype, steps, offset, format, stored, storage_rank, data)
        return made("TENSOR", target(*arguments))

    def array_of(kind: str) -> Callable[..., int]:
        return lambda values, count: made(kind, target(copied(values, count), count))

    def counts(values: Any) -> int:
        if values == ffi.NULL:
            return null_result(function, function.parameters[0].name)
        status, found = target()
        if status == 0:
            values[0 : len(found)] = found
        return int(status)

    def list_of(kind: str) -> Callable[..., int]:
        def create(values: Any, count: int) -> int:
            pointers = copied(values, count)
            given = None if pointers is None else [handles.find(each) for each in pointers]
            handle = made(kind, target(given, count))
            if handle:
                handles.members[handle] = tuple(each for each in pointers or () if each)
            return handle

        return create

    def destroy_list(pointer: int) -> int:
        status = target(handles.find(pointer))
        if status == 0 and pointer:
            for each in (*handles.members.pop(pointer, ()), pointer):
                handles.end(each)
        return int(status)

    def descriptor(result: Any, rank: int, shape: Any, strides: Any, dtype: int) -> int:
        if result == ffi.NULL:
            return null_result(function, function.parameters[0].name)
        status, found = target(rank, copied(shape, rank), copied(strides, rank), dtype)
        if status == 0:
            handle = handles.new("TENSOR_DESCRIPTOR", found)
            if not handle:
                raise MemoryError("too many tensor descriptors are alive")
            result[0] = handle
        return int(status)

    def getter(pointer: int, values: Any, count: Any) -> int:
        for place, given in ((1, values), (2, count)):
            if given == ffi.NULL:
                return null_result(function, function.parameters[place].name)
        status, items, number = target(handles.find(pointer))
        if status == 0:
            packed = ffi.new("int64_t[]", items)  # before there is memory to lose
            room = handles.lib.malloc(max(number, 1) * 8)  # the caller frees it
            if room == ffi.NULL:
                raise MemoryError(f"{number} numbers")
            ffi.memmove(room, packed, number * 8)
            values[0] = ffi.cast("int64_t*", room)
            count[0] = number
        return int(status)

    calls: dict[str, Callable[..., Any]] = {
        "aclCreateTensor": tensor,
        "aclCreateBoolArray": array_of("BOOL_ARRAY"),
        "aclCreateIntArray": array_of("INT_ARRAY"),
        "aclCreateFloatArray": array_of("FLOAT_ARRAY"),
        "aclCreateScalar": lambda value, dtype: made("SCALAR", target(value, dtype)),
        "aclCreateTensorList": list_of("TENSOR_LIST"),
        "aclCreateScalarList": list_of("SCALAR_LIST"),
        "aclDestroyTensorList": destroy_list,
        "aclDestroyScalarList": destroy_list,
        "infinirtGetAllDeviceCount": counts,
        "infiniopCreateTensorDescriptor": descriptor,
        **dict.fromkeys(_GETTERS, getter),
    }
    return calls.get(function.name)
