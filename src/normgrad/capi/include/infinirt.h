/* Devices, streams and memory. Part of normgrad. */
#ifndef NORMGRAD_INFINIRT_H
#define NORMGRAD_INFINIRT_H

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef void* infinirtStream_t;
typedef void* infinirtEvent_t;

typedef enum {
    INFINIRT_MEMCPY_H2H = 0,
    INFINIRT_MEMCPY_H2D = 1,
    INFINIRT_MEMCPY_D2H = 2,
    INFINIRT_MEMCPY_D2D = 3
} infinirtMemcpyKind_t;

typedef enum {
    INFINIRT_EVENT_COMPLETE = 0,
    INFINIRT_EVENT_NOT_READY = 1
} infinirtEventStatus_t;

/* Without influence. */
typedef enum {
    INFINIRT_EVENT_DEFAULT = 0,
    INFINIRT_EVENT_DISABLE_TIMING = 1,
    INFINIRT_EVENT_BLOCKING_SYNC = 2
} infinirtEventFlags_t;

infiniStatus_t infinirtInit(void);

/* The device belongs to the calling thread; it is CPU 0 at first. Either pointer may be null. */
infiniStatus_t infinirtSetDevice(infiniDevice_t device, int device_id);
infiniStatus_t infinirtGetDevice(infiniDevice_t* device, int* device_id);
infiniStatus_t infinirtGetDeviceCount(infiniDevice_t device, int* count);
/* Of INFINI_DEVICE_TYPE_COUNT kinds; 0 for those that are not ours. */
infiniStatus_t infinirtGetAllDeviceCount(int* count_array);
infiniStatus_t infinirtDeviceSynchronize(void);

infiniStatus_t infinirtStreamCreate(infinirtStream_t* stream);
infiniStatus_t infinirtStreamDestroy(infinirtStream_t stream);
infiniStatus_t infinirtStreamSynchronize(infinirtStream_t stream);

infiniStatus_t infinirtStreamWaitEvent(infinirtStream_t stream, infinirtEvent_t event);

infiniStatus_t infinirtEventCreate(infinirtEvent_t* event_ptr);
infiniStatus_t infinirtEventCreateWithFlags(infinirtEvent_t* event_ptr, uint32_t flags);
infiniStatus_t infinirtEventRecord(infinirtEvent_t event, infinirtStream_t stream);
infiniStatus_t infinirtEventQuery(infinirtEvent_t event, infinirtEventStatus_t* status_ptr);
infiniStatus_t infinirtEventSynchronize(infinirtEvent_t event);
infiniStatus_t infinirtEventDestroy(infinirtEvent_t event);
infiniStatus_t infinirtEventElapsedTime(float* ms_ptr, infinirtEvent_t start, infinirtEvent_t end);

infiniStatus_t infinirtMalloc(void** ptr, size_t size);
infiniStatus_t infinirtFree(void* ptr);
infiniStatus_t infinirtMallocHost(void** ptr, size_t size);
infiniStatus_t infinirtFreeHost(void* ptr);
infiniStatus_t infinirtMallocAsync(void** ptr, size_t size, infinirtStream_t stream);
infiniStatus_t infinirtFreeAsync(void* ptr, infinirtStream_t stream); /* waits for the stream */
infiniStatus_t infinirtMemcpy(void* dst, const void* src, size_t size, infinirtMemcpyKind_t kind);
infiniStatus_t infinirtMemcpyAsync(void* dst, const void* src, size_t size,
                                   infinirtMemcpyKind_t kind, infinirtStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
