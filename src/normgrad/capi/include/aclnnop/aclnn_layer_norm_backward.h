/* aclnnLayerNormBackward. Part of normgrad. */
#ifndef NORMGRAD_ACLNNOP_LAYER_NORM_BACKWARD_H
#define NORMGRAD_ACLNNOP_LAYER_NORM_BACKWARD_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stage 1 validates and plans; a failure leaves *workspaceSize and *executor untouched. */
aclnnStatus aclnnLayerNormBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclIntArray* normalizedShape,
    const aclTensor* mean, const aclTensor* rstd, const aclTensor* weightOptional,
    const aclTensor* biasOptional, const aclBoolArray* outputMask, aclTensor* gradInputOut,
    aclTensor* gradWeightOut, aclTensor* gradBiasOut, uint64_t* workspaceSize,
    aclOpExecutor** executor);

/* Stage 2 computes. The executor is spent by it unless it was made repeatable. */
aclnnStatus aclnnLayerNormBackward(
    void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
