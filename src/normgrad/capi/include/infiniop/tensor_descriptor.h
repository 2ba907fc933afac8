/* Tensor descriptors. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_TENSOR_DESCRIPTOR_H
#define NORMGRAD_INFINIOP_TENSOR_DESCRIPTOR_H

#include "infinicore.h"

#ifdef __cplusplus
extern "C" {
#endif

struct InfiniopTensorDescriptor;

typedef struct InfiniopTensorDescriptor* infiniopTensorDescriptor_t;

/* Shape and strides are copied; strides count elements, null means contiguous. */
infiniStatus_t infiniopCreateTensorDescriptor(infiniopTensorDescriptor_t* desc_ptr, size_t ndim,
                                              const size_t* shape, const ptrdiff_t* strides,
                                              infiniDtype_t dtype);
infiniStatus_t infiniopDestroyTensorDescriptor(infiniopTensorDescriptor_t desc);

#ifdef __cplusplus
}
#endif

#endif
