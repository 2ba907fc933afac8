/* Devices, streams and memory. Part of normgrad. */
#ifndef NORMGRAD_INFINIRT_H
#define NORMGRAD_INFINIRT_H

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void* infinirtStream_t;

typedef enum {
    INFINIRT_MEMCPY_H2H = 0,
    INFINIRT_MEMCPY_H2D = 1,
    INFINIRT_MEMCPY_D2H = 2,
    INFINIRT_MEMCPY_D2D = 3
} infinirtMemcpyKind_t;

infiniStatus_t infinirtInit(void);

/* The device belongs to the calling thread; it is CPU 0 at first. Either pointer may be null. */
infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
infiniStatus_t infinirtGetDevice(infiniDevice_t* device, int* device_id);
infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int* count);
infiniStatus_t infinirtDeviceSynchronize(void);

infiniStatus_t infinirtStreamCreate(infinirtStream_t* stream);
infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);
infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);

infiniStatus_t infinirtMalloc(void** ptr, size_t size);
infiniStatus_t infinirtFree(void* ptr);
infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind);
infiniStatus_t infinirtMemcpyAsync(void* dst, const void* src, size_t size,
                                   infinirtMemcpyKind_t kind, infinirtStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
