/* The executor between the two stages of an operator. Part of normgrad. */
#ifndef NORMGRAD_ACLNN_BASE_H
#define NORMGRAD_ACLNN_BASE_H

#include "acl/acl_base.h"
#include "aclnn/acl_meta.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Before the first stage 2: the executor then serves any number of them, until it is destroyed. */
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor* executor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor* executor);

#ifdef __cplusplus
}
#endif

#endif
