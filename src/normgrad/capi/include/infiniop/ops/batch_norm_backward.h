/* The gradient of batch normalization in training. Part of normgrad. */
#ifndef NORMGRAD_INFINIOP_BATCH_NORM_BACKWARD_H
#define NORMGRAD_INFINIOP_BATCH_NORM_BACKWARD_H

#include "infiniop/operator_descriptor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct InfiniopDescriptor* infiniopBatchNormBackwardDescriptor_t;

/* The tensor descriptors may be destroyed right after. A failure leaves *desc_ptr untouched. */
infiniStatus_t infiniopCreateBatchNormBackwardDescriptor(
    infiniopHandle_t handle, infiniopBatchNormBackwardDescriptor_t* desc_ptr,
    infiniopTensorDescriptor_t grad_input_desc, infiniopTensorDescriptor_t grad_weight_desc,
    infiniopTensorDescriptor_t grad_bias_desc, infiniopTensorDescriptor_t input_desc,
    infiniopTensorDescriptor_t grad_output_desc, infiniopTensorDescriptor_t weight_desc,
    infiniopTensorDescriptor_t running_mean_desc, infiniopTensorDescriptor_t running_var_desc);
infiniStatus_t infiniopGetBatchNormBackwardWorkspaceSize(
    infiniopBatchNormBackwardDescriptor_t desc, size_t* size);

/* A descriptor serves any number of computations, also from several threads at once. */
infiniStatus_t infiniopBatchNormBackward(
    infiniopBatchNormBackwardDescriptor_t desc, void* workspace, size_t workspace_size,
    void* grad_input, void* grad_weight, void* grad_bias, const void* input,
    const void* grad_output, const void* weight, const void* running_mean,
    const void* running_var, void* stream);
infiniStatus_t infiniopDestroyBatchNormBackwardDescriptor(
    infiniopBatchNormBackwardDescriptor_t desc);

#ifdef __cplusplus
}
#endif

#endif
