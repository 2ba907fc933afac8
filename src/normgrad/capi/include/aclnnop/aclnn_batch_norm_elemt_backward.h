/* aclnnBatchNormElemtBackward. Part of normgrad. */
#ifndef NORMGRAD_ACLNNOP_BATCH_NORM_ELEMT_BACKWARD_H
#define NORMGRAD_ACLNNOP_BATCH_NORM_ELEMT_BACKWARD_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Stage 1 validates and plans; a failure leaves *workspaceSize and *executor untouched. */
aclnnStatus aclnnBatchNormElemtBackwardGetWorkspaceSize(
    const aclTensor* gradOut, const aclTensor* input, const aclTensor* mean,
    const aclTensor* invstd, const aclTensor* weight, const aclTensor* sumDy,
    const aclTensor* sumDyXmu, aclTensor* counter, aclTensor* gradInput, uint64_t* workspaceSize,
    aclOpExecutor** executor);

/* Stage 2 computes. The executor is spent by it unless it was made repeatable. */
aclnnStatus aclnnBatchNormElemtBackward(
    void* workspace, uint64_t workspaceSize, aclOpExecutor* executor, aclrtStream stream);

#ifdef __cplusplus
}
#endif

#endif
