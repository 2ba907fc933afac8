/* What handlers of exit, and so destructors, may still do: run what was planned, destroy, and be
 * told about the rest. The libraries that Python loaded, its compiler too, have ended before. */
#define _DEFAULT_SOURCE
#include <unistd.h>

#include "layer.h"

static struct layer l;
static uint64_t bytes;
static aclOpExecutor* executor;
static char workspace[1 << 16];

static void plan_again(void)
{
    uint64_t more = 7;
    aclOpExecutor* other = NULL;
    EXPECT(layer_plan(&l, &more, &other), ACLNN_ERR_INNER);
    EXPECT(strstr(aclGetRecentErrMsg(), "the program is ending") != NULL, 1);
    EXPECT(more == 7 && !other, 1);
}

static void after_all(void)
{
    plan_again();
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), 0);
    EXPECT(layer_right(&l), 1);
    EXPECT(aclDestroyAclOpExecutor(executor), 0);
    EXPECT(layer_drop(&l) || aclrtResetDevice(0) || aclFinalize(), 0);
    if (!complaints)
        printf("right\n");
    fflush(stdout);
    _exit(complaints != 0);
}

int main(void)
{
    atexit(after_all); /* as the destructor of a static object */
    EXPECT(aclInit(NULL) || aclrtSetDevice(0), 0);
    atexit(plan_again); /* after Python, before its compiler */
    layer_make(&l);
    layer_poison(&l);
    EXPECT(layer_plan(&l, &bytes, &executor), 0);
    EXPECT(aclSetAclOpExecutorRepeatable(executor), 0);
    EXPECT(bytes <= sizeof workspace, 1);
    return 0;
}
