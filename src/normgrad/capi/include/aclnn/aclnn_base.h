/* The executor between the two stages of an operator. Part of normgrad. */
#ifndef NORMGRAD_ACLNN_BASE_H
#define NORMGRAD_ACLNN_BASE_H

#include "acl/acl_base.h"
#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Nothing needs them; they may be called any number of times. */
aclnnStatus aclnnInit(const char* configPath);
aclnnStatus aclnnFinalize(void);

/* Before the first stage 2: the executor then serves any number of them, until it is destroyed. */
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor);

/* Other memory under a tensor of an executor, which looks at it in its next stage 2. The tensor must
 * be one that stage 1 got; it says which one, so that the index is not looked at. */
aclnnStatus aclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                  void* addr);
aclnnStatus aclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                   void* addr);
aclnnStatus aclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                             void* addr);
/* The same under their names of old. */
aclnnStatus AclSetInputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                  void* addr);
aclnnStatus AclSetOutputTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                                   void* addr);
aclnnStatus AclSetTensorAddr(aclOpExecutor* executor, const size_t index, aclTensor* tensor,
                             void* addr);

#ifdef __cplusplus
}
#endif

#endif
