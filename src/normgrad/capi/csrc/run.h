/* The roads that bypass Python. */
#ifndef NORMGRAD_RUN_H
#define NORMGRAD_RUN_H

#include "host.h"

#include <pthread.h>

#include "aclnn/aclnn_base.h"
#include "infiniop.h"

#define NORMGRAD_TO_PYTHON (-1) /* no status of the interface */

aclnnStatus normgrad_stage_two(int op, void* workspace, uint64_t workspace_size,
                               aclOpExecutor* executor, aclrtStream stream);
infiniStatus_t normgrad_infiniop(infiniopBatchNormBackwardDescriptor_t desc, void* workspace,
                                 size_t workspace_size, const void* const data[8], void* stream,
                                 int* to_python);

/* A thread that is cancelled inside would keep our locks, or Python's: it goes when it is back. */
static inline int normgrad_uncancelled(void)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void normgrad_as_before(const int* before) { pthread_setcancelstate(*before, NULL); }

#define NORMGRAD_WHOLE                                                                         \
    __attribute__((cleanup(normgrad_as_before))) const int before = normgrad_uncancelled()

#endif
