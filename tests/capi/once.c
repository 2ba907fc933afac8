/* The smallest whole program: whatever goes wrong must come back as a status. */
#include "layer.h"

int main(void)
{
    struct layer l;
    int status = aclInit(NULL);
    if (status == 0)
        status = aclrtSetDevice(0);
    if (status != 0) {
        printf("status %d: %s\n", status, aclGetRecentErrMsg());
        layer_make(&l);
        uint64_t bytes = 7;
        aclOpExecutor* executor = (aclOpExecutor*)&l;
        EXPECT(l.tx == NULL, 1);
        EXPECT(layer_plan(&l, &bytes, &executor), ACLNN_ERR_INNER);
        EXPECT(bytes, 7);
        EXPECT(executor == (aclOpExecutor*)&l, 1);
        EXPECT(aclnnLayerNormBackward(NULL, 0, NULL, NULL), ACLNN_ERR_INNER);
        EXPECT(strlen(aclrtGetSocName()), 0);
        return complaints ? 1 : 3;
    }
    layer_make(&l);
    if (!layer_round(&l)) {
        printf("wrong: %s\n", aclGetRecentErrMsg());
        return 1;
    }
    printf("right\n");
    return layer_drop(&l) || aclrtResetDevice(0) || aclFinalize();
}
