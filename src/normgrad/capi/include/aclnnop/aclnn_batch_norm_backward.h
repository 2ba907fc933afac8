/* aclnnBatchNormBackward. Part of normgrad. */
#ifndef NORMGRAD_ACLNNOP_BATCH_NORM_BACKWARD_H
#define NORMGRAD_ACLNNOP_BATCH_NORM_BACKWARD_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stage 1 validates and plans; a failure leaves *workspaceSize and *executor untouched. */
aclnnStatus aclnnBatchNormBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* weight,
    const aclTensor* runningMean, const aclTensor* runningVar, const aclTensor* saveMean,
    const aclTensor* saveInvstd, bool training, double eps, const aclBoolArray* outputMask,
    aclTensor* gradInput, aclTensor* gradWeight, aclTensor* gradBias, uint64_t* workspaceSize,
    aclOpExecutor** executor);

/* Stage 2 computes. The executor is spent by it unless it was made repeatable. */
aclnnStatus aclnnBatchNormBackward(
    void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
