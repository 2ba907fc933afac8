/* aclnnBatchNormElemtBackward: the second half of synchronized batch norm, on three ranks. */
#include "aclnnop/aclnn_batch_norm_elemt_backward.h"
#include "example.h"

enum { SIZE = 2 * 3 * 1 * 4 };

int main(void)
{
    const int64_t data[] = {2, 3, 1, 4}, channels[] = {3};
    const float mean[] = {8, 5, 9}, invstd[] = {2, 1, 2}, weight[] = {1, 1, 4};
    const float sumDy[] = {2, 2, 6}, sumDyXmu[] = {2, 3, 11};
    const int32_t counts[] = {5, 5, 5};
    float ones[SIZE];
    for (int i = 0; i < SIZE; i++)
        ones[i] = 1;

    aclrtStream stream = begin();
    Floats all[] = {
        upload(ones, data, 4),         upload(ones, data, 4),      upload(mean, channels, 1),
        upload(invstd, channels, 1),   upload(weight, channels, 1), upload(sumDy, channels, 1),
        upload(sumDyXmu, channels, 1), upload(NULL, data, 4),
    };
    Floats gradInput = all[7];
    /* The number of elements on each rank may be integers. */
    void* counterMemory = NULL;
    MUST(aclrtMalloc(&counterMemory, sizeof counts, ACL_MEM_MALLOC_HUGE_FIRST));
    MUST(aclrtMemcpy(counterMemory, sizeof counts, counts, sizeof counts,
                     ACL_MEMCPY_HOST_TO_DEVICE));
    aclTensor* counter = aclCreateTensor(channels, 1, ACL_INT32, NULL, 0, ACL_FORMAT_ND, channels,
                                         1, counterMemory);

    uint64_t bytes = 0;
    aclOpExecutor* executor = NULL;
    MUST(aclnnBatchNormElemtBackwardGetWorkspaceSize(
        all[0].tensor, all[1].tensor, all[2].tensor, all[3].tensor, all[4].tensor, all[5].tensor,
        all[6].tensor, counter, gradInput.tensor, &bytes, &executor));
    void* workspace = workspace_of(bytes);
    MUST(aclnnBatchNormElemtBackward(workspace, bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));

    show("grad_input", gradInput);

    for (int i = 0; i < 8; i++)
        drop(all[i]);
    MUST(aclDestroyTensor(counter));
    MUST(aclrtFree(counterMemory));
    finish(stream, workspace);
    return 0;
}
