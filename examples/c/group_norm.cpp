// aclnnGroupNormBackward: one sample, one group of two channels with two values each.
#include <cmath>

#include "aclnnop/aclnn_group_norm_backward.h"
#include "example.h"

int main()
{
    const int64_t data[] = {1, 2, 2}, groups[] = {1, 1}, channels[] = {2};
    const float x[] = {1, 2, 3, 4}, dy[] = {1, 0, 2, 1}, gamma[] = {1, 3};
    const float mean[] = {2.5f}, rstd[] = {1 / std::sqrt(1.25f)};
    const bool all[] = {true, true, true};

    aclrtStream stream = begin();
    Floats gradOut = upload(dy, data, 3), input = upload(x, data, 3);
    Floats means = upload(mean, groups, 2), rstds = upload(rstd, groups, 2);
    Floats gammas = upload(gamma, channels, 1), gradInput = upload(nullptr, data, 3);
    Floats gradGamma = upload(nullptr, channels, 1), gradBeta = upload(nullptr, channels, 1);
    aclBoolArray* mask = aclCreateBoolArray(all, 3);

    uint64_t bytes = 0;
    aclOpExecutor* executor = nullptr;
    MUST(aclnnGroupNormBackwardGetWorkspaceSize(
        gradOut.tensor, input.tensor, means.tensor, rstds.tensor, gammas.tensor, 1, 2, 2, 1, mask,
        gradInput.tensor, gradGamma.tensor, gradBeta.tensor, &bytes, &executor));
    void* workspace = workspace_of(bytes);
    MUST(aclnnGroupNormBackward(workspace, bytes, executor, stream));
    MUST(aclrtSynchronizeStream(stream));

    show("grad_input", gradInput);
    show("grad_gamma", gradGamma);
    show("grad_beta", gradBeta);

    for (const Floats& gone : {gradOut, input, means, rstds, gammas, gradInput, gradGamma, gradBeta})
        drop(gone);
    MUST(aclDestroyBoolArray(mask));
    finish(stream, workspace);
    return 0;
}
