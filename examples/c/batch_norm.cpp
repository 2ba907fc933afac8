// aclnnBatchNormBackward in training: one sample, two channels of four values.
#include "aclnnop/aclnn_batch_norm_backward.h"
#include "example.h"

int main()
{
    const int64_t data[] = {1, 2, 4}, channels[] = {2};
    const float numbers[] = {0, 1, 2, 3, 4, 5, 6, 7}, zeros[] = {0, 0}, ones[] = {1, 1};
    const bool all[] = {true, true, true};

    aclrtStream stream = begin();
    Floats gradOut = upload(numbers, data, 3), input = upload(numbers, data, 3);
    Floats weight = upload(ones, channels, 1);
    Floats saveMean = upload(zeros, channels, 1), saveInvstd = upload(ones, channels, 1);
    Floats gradInput = upload(nullptr, data, 3);
    Floats gradWeight = upload(nullptr, channels, 1), gradBias = upload(nullptr, channels, 1);
    aclBoolArray* mask = aclCreateBoolArray(all, 3);

    uint64_t bytes = 0;
    aclOpExecutor* executor = nullptr;
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(
        gradOut.tensor, input.tensor, weight.tensor, nullptr, nullptr, saveMean.tensor,
        saveInvstd.tensor, true, 1e-5, mask, gradInput.tensor, gradWeight.tensor, gradBias.tensor,
        &bytes, &executor));
    void* workspace = workspace_of(bytes);
    MUST(aclnnBatchNormBackward(workspace, bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));

    show("grad_input", gradInput);
    show("grad_weight", gradWeight);
    show("grad_bias", gradBias);

    for (const Floats& gone : {gradOut, input, weight, saveMean, saveInvstd, gradInput, gradWeight,
                               gradBias})
        drop(gone);
    MUST(aclDestroyBoolArray(mask));
    finish(stream, workspace);
    return 0;
}
