/* What checked mode finds; the argument chooses the mistake. The sentences go to stderr. */
#include "layer.h"

static void* block(size_t bytes)
{
    void* memory = NULL;
    EXPECT(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    return memory;
}

int main(int count, char** words)
{
    const char* mistake = count > 1 ? words[1] : "";
    struct layer l;
    uint64_t bytes = 0;
    aclOpExecutor* executor = NULL;
    char host[64] = "";
    EXPECT(aclInit(NULL) || aclrtSetDevice(0), 0);
    layer_make(&l);
    /* The same problem on device memory, dx in a block of its own. */
    float* dx = block(16);
    float* rest = block(sizeof l);
    memcpy(rest, &l, sizeof l);
    struct layer* d = (struct layer*)rest;
    d->tx = view(d->x, 2, 2), d->tdy = view(d->dy, 2, 2), d->tmean = view(d->mean, 2, 1);
    d->trstd = view(d->rstd, 2, 1), d->tgamma = view(d->gamma, 2, 0), d->tdx = view(dx, 2, 2);
    d->tdgamma = view(d->dgamma, 2, 0), d->tdbeta = view(d->dbeta, 2, 0);
    if (!strcmp(mistake, "double-free")) {
        EXPECT(aclrtFree(dx), 0);
        return aclrtFree(dx);
    }
    if (!strcmp(mistake, "inner-pointer"))
        return aclrtFree(dx + 1);
    if (!strcmp(mistake, "past-the-end"))
        return aclrtMemcpy(dx, 64, host, 20, ACL_MEMCPY_HOST_TO_DEVICE);
    if (!strcmp(mistake, "freed-source")) {
        EXPECT(aclrtFree(dx), 0);
        return aclrtMemcpy(host, 64, dx, 16, ACL_MEMCPY_DEVICE_TO_HOST);
    }
    if (!strcmp(mistake, "view-outside"))
        d->tdx = view(dx + 2, 2, 2);
    if (!strcmp(mistake, "foreign"))
        d->tdx = view(host, 2, 2);
    int status = layer_plan(d, &bytes, &executor);
    if (status)
        return status;
    void* workspace = block(bytes + 1);
    if (!strcmp(mistake, "freed-between"))
        EXPECT(aclrtFree(dx), 0);
    if (!strcmp(mistake, "freed-workspace"))
        EXPECT(aclrtFree(workspace), 0);
    if (!strcmp(mistake, "destroyed-tensor"))
        EXPECT(aclDestroyTensor(d->tdx), 0);
    status = aclnnLayerNormBackward(workspace, bytes, executor, NULL);
    if (status == 0) {
        memcpy(d->dx, dx, 16);
        EXPECT(layer_right(d), 1);
    }
    return status || complaints ? 1 : 0;
}
