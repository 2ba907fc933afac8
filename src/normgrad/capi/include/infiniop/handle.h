/* Handles. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_HANDLE_H
#define NORMGRAD_INFINIOP_HANDLE_H

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a handle begins; it is made by the library alone. */
struct InfiniopHandle {
    int device;
    int device_id;
};

typedef struct InfiniopHandle* infiniopHandle_t;

/* A handle of the device that is the calling thread's. */
infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle_ptr);
infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

#ifdef __cplusplus
}
#endif

#endif
