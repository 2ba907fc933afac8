/* aclnnGroupNormBackward. Part of normgrad. */
#ifndef NORMGRAD_ACLNNOP_GROUP_NORM_BACKWARD_H
#define NORMGRAD_ACLNNOP_GROUP_NORM_BACKWARD_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stage 1 validates and plans; a failure leaves *workspaceSize and *executor untouched. */
aclnnStatus aclnnGroupNormBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* mean,
    const aclTensor* rstd, const aclTensor* gamma, int64_t N, int64_t C, int64_t HxW,
    int64_t group, const aclBoolArray* outputMask, aclTensor* gradInput, aclTensor* gradGammaOut,
    aclTensor* gradBetaOut, uint64_t* workspaceSize, aclOpExecutor** executor);

/* Stage 2 computes. The executor is spent by it unless it was made repeatable. */
aclnnStatus aclnnGroupNormBackward(
    void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
