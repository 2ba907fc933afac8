/* The second stage without Python: whatever is not plainly right goes to Python, which says why. */
#include "run.h"

#include <string.h>

/* Enough scratch memory, where addresses reach: kernels count them in int64. */
static int has_room(const struct normgrad_launch* launch, const void* workspace, uint64_t size)
{
    int64_t at = (int64_t)(intptr_t)workspace, needed = (int64_t)launch->workspace_bytes;
    return size >= launch->workspace_bytes && (!needed || (at > 0 && at <= INT64_MAX - needed));
}

/* Plans in a row: what one writes into scratch memory the next one reads. */
static int32_t compute_all(const struct normgrad_launch* launch, void* workspace)
{
    int64_t base = ((int64_t)(intptr_t)workspace + 63) & ~(int64_t)63;
    int32_t failed = 0;
    for (; launch && !failed; launch = launch->next) {
        int64_t addresses[NORMGRAD_ROLES];
        for (int i = 0; i < NORMGRAD_ROLES; i++) {
            int64_t at = launch->scratch[i];
            addresses[i] = at ? base + at - 1 : launch->addresses[i];
        }
        failed = normgrad_compute(launch, addresses, (void*)(intptr_t)(base + launch->offset));
    }
    return failed;
}

aclnnStatus normgrad_stage_two(int op, void* workspace, uint64_t workspace_size,
                               aclOpExecutor* executor, aclrtStream stream)
{
    uint64_t handle = (uint64_t)(uintptr_t)executor;
    uint64_t stream_handle = (uint64_t)(uintptr_t)stream;
    struct normgrad_launch* launch;
    int32_t failed;
    if (!(launch = normgrad_take(handle, NORMGRAD_EXECUTOR)))
        return NORMGRAD_TO_PYTHON;
    if (!launch->entry || launch->op != op || !has_room(launch, workspace, workspace_size) ||
        (workspace_size > 0 && !workspace) ||
        (stream_handle && !normgrad_alive(stream_handle, NORMGRAD_STREAM))) {
        normgrad_host.handle_cancel(handle);
        return NORMGRAD_TO_PYTHON;
    }
    failed = launch->in_a_row ? compute_all(launch, workspace)
                              : normgrad_compute(launch, launch->addresses, workspace);
    normgrad_host.handle_finish(handle);
    return failed ? ACLNN_ERR_INNER : ACLNN_SUCCESS;
}

static int apart(const struct normgrad_launch* launch, const int64_t* addresses)
{
    for (int i = 0; i < launch->meetings; i++) {
        const struct normgrad_meeting* pair = &launch->meeting[i];
        int64_t one = addresses[pair->result], two = addresses[pair->other];
        if (one + launch->low[pair->result] < two + launch->high[pair->other] &&
            two + launch->low[pair->other] < one + launch->high[pair->result] &&
            !(pair->same_view && one == two))
            return 0;
    }
    return 1;
}

infiniStatus_t normgrad_infiniop(int op, struct InfiniopDescriptor* desc, void* workspace,
                                 size_t workspace_size, const void* const* data,
                                 const int8_t* roles, int count, void* stream, int* to_python)
{
    uint64_t handle = normgrad_host.face_handle((uintptr_t)desc);
    uint64_t stream_handle = (uint64_t)(uintptr_t)stream;
    int64_t addresses[NORMGRAD_ROLES] = {0};
    struct normgrad_launch* launch;
    int32_t failed;
    *to_python = 1;
    if (!(launch = normgrad_take(handle, NORMGRAD_DESCRIPTOR)))
        return INFINI_STATUS_BAD_PARAM;
    int right = launch->entry && launch->op == op && has_room(launch, workspace, workspace_size) &&
                (!normgrad_tagged(stream_handle) ||
                 normgrad_alive(stream_handle, NORMGRAD_RT_STREAM));
    for (int i = 0; right && i < count; i++) {
        int role = roles[i];
        if (launch->low[role] == launch->high[role])
            continue; /* empty or left out: there may be no memory at all */
        int64_t at = addresses[role] = (int64_t)(intptr_t)data[i];
        right = at > -launch->low[role] && at <= INT64_MAX - launch->high[role] &&
                at % launch->itemsize[role] == 0;
    }
    if (!right || !apart(launch, addresses)) {
        normgrad_host.handle_cancel(handle);
        return INFINI_STATUS_BAD_PARAM;
    }
    *to_python = 0;
    failed = normgrad_compute(launch, addresses, workspace);
    normgrad_host.handle_finish(handle);
    return failed ? INFINI_STATUS_INTERNAL_ERROR : INFINI_STATUS_SUCCESS;
}
