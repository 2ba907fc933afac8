/* The roads that bypass Python. */
#ifndef NORMGRAD_RUN_H
#define NORMGRAD_RUN_H

#include "host.h"

#include "aclnn/aclnn_base.h"
#include "infiniop.h"

#define NORMGRAD_TO_PYTHON (-1) /* no status of the interface */

aclnnStatus normgrad_stage_two(int op, void* workspace, uint64_t workspace_size,
                               aclOpExecutor* executor, aclrtStream stream);
infiniStatus_t normgrad_infiniop(infiniopBatchNormBackwardDescriptor_t desc, void* workspace,
                                 size_t workspace_size, const void* const data[8], void* stream,
                                 int* to_python);

#endif
