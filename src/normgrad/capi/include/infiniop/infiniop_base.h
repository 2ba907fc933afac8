/* Handles and tensor descriptors. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_BASE_H
#define NORMGRAD_INFINIOP_BASE_H

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a handle and an operator's descriptor begin; they are made by the library alone. */
struct InfiniopHandle {
    int device;
    int device_id;
};
struct InfiniopDescriptor {
    int device;
    int device_id;
};
struct InfiniopTensorDescriptor;

typedef infiniStatus_t infiniopStatus_t; /* what the published destroy function returns */
typedef struct InfiniopHandle* infiniopHandle_t;
typedef struct InfiniopTensorDescriptor* infiniopTensorDescriptor_t;

/* A handle of the device that is the calling thread's. */
infiniStatus_t infiniopCreateHandle(infiniopHandle_t* handle_ptr);
infiniStatus_t infiniopDestroyHandle(infiniopHandle_t handle);

/* Shape and strides are copied; strides count elements, null means contiguous. */
infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc_ptr, size_t ndim,
                                              const size_t* shape, const ptrdiff_t* strides,
                                              infiniDtype_t dtype);
infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);

#ifdef __cplusplus
}
#endif

#endif
