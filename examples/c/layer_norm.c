/* aclnnLayerNormBackward: two rows of two values, with an executor that runs twice. */
#include "aclnnop/aclnn_layer_norm_backward.h"
#include "example.h"

int main(void)
{
    const int64_t data[] = {2, 2}, rows[] = {2, 1}, columns[] = {2};
    const float numbers[] = {2, 3, 4, 5}, mean[] = {2, 3}, rstd[] = {4, 5}, ones[] = {1, 1};
    const bool wanted[] = {true, true, true};

    aclrtStream stream = begin();
    Floats gradOut = upload(numbers, data, 2), input = upload(numbers, data, 2);
    Floats means = upload(mean, rows, 2), rstds = upload(rstd, rows, 2);
    Floats weight = upload(ones, columns, 1), gradInput = upload(NULL, data, 2);
    Floats gradWeight = upload(NULL, columns, 1), gradBias = upload(NULL, columns, 1);
    aclBoolArray* mask = aclCreateBoolArray(wanted, 3);
    aclIntArray* normalized = aclCreateIntArray(columns, 1);

    uint64_t bytes = 0;
    aclOpExecutor* executor = NULL;
    MUST(aclnnLayerNormBackwardGetWorkspaceSize(
        gradOut.tensor, input.tensor, normalized, means.tensor, rstds.tensor, weight.tensor, NULL,
        mask, gradInput.tensor, gradWeight.tensor, gradBias.tensor, &bytes, &executor));
    MUST(aclSetAclOpExecutorRepeatable(executor));
    void* workspace = workspace_of(bytes);
    MUST(aclnnLayerNormBackward(workspace, bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    show("grad_input", gradInput);

    /* New data in the same memory: no new plan. */
    const float doubled[] = {4, 6, 8, 10};
    MUST(aclrtMemcpy(gradOut.memory, gradOut.bytes, doubled, sizeof doubled,
                     ACL_MEMCPY_HOST_TO_DEVICE));
    MUST(aclnnLayerNormBackward(workspace, bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));
    show("for twice the gradient", gradInput);
    show("grad_weight", gradWeight);
    show("grad_bias", gradBias);
    MUST(aclDestroyAclOpExecutor(executor));

    drop(gradOut), drop(input), drop(means), drop(rstds), drop(weight);
    drop(gradInput), drop(gradWeight), drop(gradBias);
    MUST(aclDestroyBoolArray(mask));
    MUST(aclDestroyIntArray(normalized));
    finish(stream, workspace);
    return 0;
}
