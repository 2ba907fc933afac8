/* Constants that infinirt and infiniop share. Part of normgrad. */
#ifndef NORMGRAD_INFINICORE_H
#define NORMGRAD_INFINICORE_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    INFINI_STATUS_SUCCESS = 0,
    INFINI_STATUS_INTERNAL_ERROR = 1,
    INFINI_STATUS_NOT_IMPLEMENTED = 2,
    INFINI_STATUS_BAD_PARAM = 3,
    INFINI_STATUS_NULL_POINTER = 4,
    INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED = 5,
    INFINI_STATUS_DEVICE_NOT_FOUND = 6,
    INFINI_STATUS_DEVICE_NOT_INITIALIZED = 7,
    INFINI_STATUS_DEVICE_ARCHITECTURE_NOT_SUPPORTED = 8,
    INFINI_STATUS_BAD_TENSOR_DTYPE = 10,
    INFINI_STATUS_BAD_TENSOR_SHAPE = 11,
    INFINI_STATUS_BAD_TENSOR_STRIDES = 12,
    INFINI_STATUS_INSUFFICIENT_WORKSPACE = 13
} infiniStatus_t;

typedef enum {
    INFINI_DEVICE_CPU = 0,
    INFINI_DEVICE_NVIDIA = 1
} infiniDevice_t;

#define INFINI_DEVICE_TYPE_COUNT 9 /* kinds that have a number; two of them are ours */

typedef enum {
    INFINI_DTYPE_I32 = 5,
    INFINI_DTYPE_I64 = 6,
    INFINI_DTYPE_F16 = 12,
    INFINI_DTYPE_F32 = 13,
    INFINI_DTYPE_F64 = 14,
    INFINI_DTYPE_BF16 = 19
} infiniDtype_t;

#ifdef __cplusplus
extern "C" {
#endif

/* Ours: the sentence for the calling thread's last failure, "" before the first. */
const char* infiniGetRecentErrMsg(void);

#ifdef __cplusplus
}
#endif

#endif
