/* One executor for memory that changes: tensors without an address, moved before each stage 2. */
#include "layer.h"

static int put_all(struct layer* l, struct layer* where, aclOpExecutor* executor, int old)
{
    aclTensor* tensors[8] = {l->tdy, l->tx, l->tmean, l->trstd, l->tgamma,
                             l->tdx, l->tdgamma, l->tdbeta};
    void* places[8] = {where->dy, where->x, where->mean, where->rstd, where->gamma,
                       where->dx, where->dgamma, where->dbeta};
    int status = 0;
    for (size_t i = 0; i < 8; i++)
        status |= old ? AclSetTensorAddr(executor, i, tensors[i], places[i])
                      : i < 5 ? aclSetInputTensorAddr(executor, i, tensors[i], places[i])
                              : aclSetOutputTensorAddr(executor, i - 5, tensors[i], places[i]);
    return status;
}

int main(void)
{
    struct layer nowhere, places[2];
    uint64_t bytes = 0;
    aclOpExecutor* executor = NULL;
    void* raw = NULL;
    EXPECT(aclInit(NULL) || aclrtSetDevice(0), 0);
    layer_make(&nowhere);
    layer_make(&places[0]);
    layer_make(&places[1]);
    aclTensor* all[] = {nowhere.tdy, nowhere.tx, nowhere.tmean, nowhere.trstd, nowhere.tgamma,
                        nowhere.tdx, nowhere.tdgamma, nowhere.tdbeta};
    for (int i = 0; i < 8; i++)
        EXPECT(aclSetRawTensorAddr(all[i], NULL), 0);
    EXPECT(aclGetRawTensorAddr(all[0], &raw), 0);
    EXPECT(raw == NULL, 1);
    EXPECT(aclGetRawTensorAddr(places[0].tx, &raw), 0);
    EXPECT(raw == places[0].x, 1);
    EXPECT(layer_plan(&nowhere, &bytes, &executor), 0);
    EXPECT(aclSetAclOpExecutorRepeatable(executor), 0);
    void* workspace = malloc(bytes + 1);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), ACLNN_ERR_PARAM_NULLPTR);
    for (int turn = 0; turn < 6; turn++) {
        struct layer* here = &places[turn % 2];
        layer_poison(&places[0]);
        layer_poison(&places[1]);
        EXPECT(put_all(&nowhere, here, executor, turn / 2 % 2), 0);
        EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), 0);
        EXPECT(layer_right(here), 1);
        EXPECT(places[!(turn % 2)].dx[0] != places[!(turn % 2)].dx[0], 1); /* still NaN */
        layer_poison(here);
        EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), 0); /* C alone */
        EXPECT(layer_right(here), 1);
    }
    /* A result over an operand needs more scratch memory than stage 1 said. */
    EXPECT(aclSetOutputTensorAddr(executor, 0, nowhere.tdx, places[1].x + 1), 0);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), ACLNN_ERR_PARAM_INVALID);
    EXPECT(strstr(aclGetRecentErrMsg(), "now that a result lies over an operand") != NULL, 1);
    EXPECT(aclSetOutputTensorAddr(executor, 0, nowhere.tdx, places[1].dx), 0);
    layer_poison(&places[1]);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), 0);
    EXPECT(layer_right(&places[1]), 1);

    EXPECT(aclSetTensorAddr(executor, 0, places[0].tx, places[0].x), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclSetTensorAddr(executor, 0, NULL, places[0].x), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclDestroyAclOpExecutor(executor), 0);
    EXPECT(aclSetTensorAddr(executor, 0, nowhere.tx, places[0].x), ACLNN_ERR_INNER_NULLPTR);
    /* As programs do that make a new executor each time: the tensor moves without one. */
    EXPECT(AclSetTensorAddr(NULL, 0, nowhere.tx, places[0].x), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclGetRawTensorAddr(nowhere.tx, &raw), 0);
    EXPECT(raw == places[0].x, 1);
    free(workspace);
    EXPECT(layer_drop(&nowhere) || layer_drop(&places[0]) || layer_drop(&places[1]), 0);
    EXPECT(aclrtResetDevice(0) || aclFinalize(), 0);
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
