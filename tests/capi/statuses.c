/* Every status of the aclnn side that a C program can meet. The argument says which part. */
#define _GNU_SOURCE

#include "edge.h"
#include "layer.h"

static void runtime(void)
{
    void *memory = NULL, *host = NULL;
    aclrtContext context = NULL;
    aclrtStream stream = NULL;
    int32_t device = -1;
    uint32_t devices = 0;
    int64_t value = -1;
    char bytes[8] = "0123456";
    EXPECT(aclFinalize(), ACL_ERROR_UNINITIALIZE);
    EXPECT(aclInit(NULL), ACL_SUCCESS);
    EXPECT(aclInit("acl.json"), ACL_ERROR_REPEAT_INITIALIZE);
    EXPECT(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT(aclrtSetDevice(77), ACL_ERROR_RT_INVALID_DEVICEID);
    EXPECT(strstr(aclGetRecentErrMsg(), "aclrtSetDevice: deviceId") != NULL, 1);
    EXPECT(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT(aclrtGetDevice(NULL), ACL_ERROR_INVALID_PARAM);
    EXPECT(strcmp(aclGetRecentErrMsg(), "aclrtGetDevice: deviceId must not be null"), 0);
    EXPECT(aclrtGetDevice(&device), ACL_SUCCESS);
    EXPECT(device, 0);
    EXPECT(aclrtGetDeviceCount(&devices), ACL_SUCCESS);
    EXPECT(devices, 1);
    aclrtRunMode mode = ACL_DEVICE;
    EXPECT(aclrtGetRunMode(&mode), ACL_SUCCESS);
    EXPECT(mode, ACL_HOST);
    EXPECT(strncmp(aclrtGetSocName(), "Ascend", 6), 0);

    EXPECT(aclrtCreateContext(&context, 0), ACL_SUCCESS);
    aclrtContext current = NULL;
    EXPECT(aclrtGetCurrentContext(&current), ACL_SUCCESS);
    EXPECT(current == context, 1);
    EXPECT(aclrtSetCurrentContext(NULL), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 2), ACL_SUCCESS);
    EXPECT(aclrtCtxGetSysParamOpt(ACL_OPT_DETERMINISTIC, &value), ACL_SUCCESS);
    EXPECT(value, 2);
    EXPECT(aclrtCtxSetSysParamOpt(ACL_OPT_DETERMINISTIC, 9), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtDestroyContext(context), ACL_SUCCESS);
    EXPECT(aclrtDestroyContext(context), ACL_ERROR_RT_CONTEXT_NULL);
    /* The device's own context ends as well, and aclrtSetDevice makes a new one. */
    EXPECT(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT(aclrtGetCurrentContext(&context), ACL_SUCCESS);
    EXPECT(aclrtDestroyContext(context), ACL_SUCCESS);
    EXPECT(aclrtGetCurrentContext(&current), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT(aclrtSetDevice(0), ACL_SUCCESS);
    EXPECT(aclrtGetCurrentContext(&current), ACL_SUCCESS);
    EXPECT(current == context, 0);
    EXPECT(aclrtSetCurrentContext(current), ACL_SUCCESS);

    EXPECT(aclrtCreateStream(NULL), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtCreateStream(&stream), ACL_SUCCESS);
    EXPECT(aclrtSynchronizeStream(stream), ACL_SUCCESS);
    EXPECT(aclrtSynchronizeStream(NULL), ACL_SUCCESS);
    EXPECT(aclrtSynchronizeStreamWithTimeout(stream, 1000), ACL_SUCCESS);
    EXPECT(aclrtSynchronizeStreamWithTimeout(stream, -1), ACL_SUCCESS);
    EXPECT(aclrtSynchronizeStreamWithTimeout(stream, -2), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtSynchronizeDevice(), ACL_SUCCESS);
    EXPECT(aclrtDestroyStream(stream), ACL_SUCCESS);
    EXPECT(aclrtDestroyStream(stream), ACL_ERROR_RT_STREAM_CONTEXT);
    EXPECT(aclrtSynchronizeStream((aclrtStream)bytes), ACL_ERROR_RT_STREAM_CONTEXT);

    EXPECT(aclrtMalloc(NULL, 8, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtMalloc(&memory, (size_t)1 << 60, ACL_MEM_MALLOC_HUGE_FIRST), ACL_ERROR_BAD_ALLOC);
    EXPECT(strcmp(aclGetRecentErrMsg(), "aclrtMalloc: not enough memory: 1152921504606846976 bytes "
                                        "cannot be had on cpu"),
           0);
    EXPECT(aclrtMalloc(&memory, 8, (aclrtMemMallocPolicy)9), ACL_ERROR_INVALID_PARAM);
    EXPECT(memory == NULL, 1);
    EXPECT(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_NORMAL_ONLY), ACL_SUCCESS);
    EXPECT(aclrtMallocHost(&host, 8), ACL_SUCCESS);
    EXPECT(aclrtMemset(memory, 8, 'z', 8), ACL_SUCCESS);
    EXPECT(aclrtMemcpy(host, 8, memory, 8, ACL_MEMCPY_DEVICE_TO_HOST), ACL_SUCCESS);
    EXPECT(memcmp(host, "zzzzzzzz", 8), 0);
    EXPECT(aclrtMemcpy(memory, 8, bytes, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    EXPECT(aclrtMemcpyAsync(host, 8, memory, 8, ACL_MEMCPY_DEVICE_TO_HOST, NULL), ACL_SUCCESS);
    EXPECT(memcmp(host, bytes, 8), 0);
    EXPECT(aclrtMemcpy(memory, 4, bytes, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtMemcpy(NULL, 8, bytes, 8, ACL_MEMCPY_HOST_TO_DEVICE), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtMemcpy(NULL, 8, NULL, 0, ACL_MEMCPY_HOST_TO_DEVICE), ACL_SUCCESS);
    EXPECT(aclrtMemcpy(memory, 8, bytes, 0, (aclrtMemcpyKind)9), ACL_SUCCESS);
    EXPECT(aclrtMemset(memory, 8, 'y', 8), ACL_SUCCESS);
    EXPECT(aclrtMemcpy(host, 8, memory, 8, ACL_MEMCPY_DEFAULT), ACL_SUCCESS);
    EXPECT(memcmp(host, "yyyyyyyy", 8), 0);
    EXPECT(aclrtFree(memory), ACL_SUCCESS);
    EXPECT(aclrtMalloc(&memory, 8,
                       (aclrtMemMallocPolicy)(ACL_MEM_MALLOC_HUGE_ONLY_P2P |
                                              ACL_MEM_TYPE_HIGH_BAND_WIDTH)),
           ACL_SUCCESS);
    EXPECT(aclrtFree(memory), ACL_SUCCESS);
    EXPECT(aclrtFree(memory), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtFree(bytes), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtFreeHost(host), ACL_SUCCESS);
    EXPECT(aclrtFreeHost(NULL), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtResetDevice(0), ACL_SUCCESS);
    EXPECT(aclFinalize(), ACL_SUCCESS);
}

static void tensors(void)
{
    const int64_t dims[2] = {2, 3}, strides[2] = {-4, 1}, negative[1] = {-1};
    float data[16] = {0};
    int64_t *shape = NULL, *steps = NULL, *storage = NULL, offset = 0;
    uint64_t rank = 0, count = 0;
    aclFormat format = ACL_FORMAT_UNDEFINED;
    aclDataType dtype = ACL_DT_UNDEFINED;
    aclTensor* tensor = aclCreateTensor(dims, 2, ACL_BF16, strides, 5, ACL_FORMAT_NCHW, dims + 1,
                                        1, data);
    EXPECT(aclGetViewShape(tensor, &shape, &rank), 0);
    EXPECT(rank == 2 && shape[0] == 2 && shape[1] == 3, 1);
    EXPECT(aclGetViewStrides(tensor, &steps, &rank), 0);
    EXPECT(steps[0] == -4 && steps[1] == 1, 1);
    EXPECT(aclGetStorageShape(tensor, &storage, &count), 0);
    EXPECT(count == 1 && storage[0] == 3, 1);
    EXPECT(aclGetViewOffset(tensor, &offset), 0);
    EXPECT(offset, 5);
    EXPECT(aclGetFormat(tensor, &format), 0);
    EXPECT(format, ACL_FORMAT_NCHW);
    EXPECT(aclGetDataType(tensor, &dtype), 0);
    EXPECT(dtype, ACL_BF16);
    free(shape), free(steps), free(storage);
    EXPECT(aclGetViewShape(tensor, NULL, &rank), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(aclGetDataType(NULL, &dtype), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(aclDestroyTensor(tensor), 0);
    EXPECT(aclDestroyTensor(tensor), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclGetViewOffset(tensor, &offset), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclDestroyTensor((aclTensor*)data), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclDestroyTensor(NULL), 0);
    EXPECT(aclDestroyBoolArray(NULL) || aclDestroyIntArray(NULL), 0);
    EXPECT(aclCreateTensor(negative, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, dims, 1, data) == NULL, 1);
    EXPECT(aclCreateTensor(NULL, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, dims, 1, data) == NULL, 1);
    EXPECT(strstr(aclGetRecentErrMsg(), "viewDims must not be null") != NULL, 1);
    /* Strides that no int64 holds: those of an empty tensor, which nobody uses. */
    const int64_t huge[3] = {0, (int64_t)1 << 40, (int64_t)1 << 40};
    tensor = aclCreateTensor(huge, 3, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, huge, 3, NULL);
    EXPECT(aclGetViewStrides(tensor, &steps, &rank), 0);
    EXPECT(rank == 3 && steps[0] == INT64_MAX && steps[1] == (int64_t)1 << 40 && steps[2] == 1, 1);
    free(steps);
    EXPECT(aclDestroyTensor(tensor), 0);
    /* A count that is garbage is refused before anything is read. */
    const int64_t* last = edge(2, 3);
    const uint64_t garbage[] = {(uint64_t)-1, (uint64_t)1 << 63, 4097};
    for (int i = 0; i < 3; i++) {
        uint64_t n = garbage[i];
        EXPECT(aclCreateTensor(last, n, ACL_FLOAT, last, 0, ACL_FORMAT_ND, last, 2, data) == NULL,
               1);
        EXPECT(strstr(aclGetRecentErrMsg(), "the number of viewDims must be 0 to 4096") != NULL, 1);
        EXPECT(aclCreateTensor(last, 2, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, last, n, data) == NULL,
               1);
        EXPECT(aclCreateIntArray(last, n) == NULL, 1);
        EXPECT(aclCreateBoolArray((const bool*)(last + 1), n) == NULL, 1);
    }
    aclTensor* scalar = aclCreateTensor(NULL, 0, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, NULL, 0, data);
    EXPECT(scalar != NULL, 1);
    EXPECT(aclDestroyTensor(scalar), 0);
    aclIntArray* none = aclCreateIntArray(NULL, 0);
    EXPECT(none != NULL, 1);
    EXPECT(aclDestroyIntArray(none), 0);
    EXPECT(aclDestroyIntArray(none), ACLNN_ERR_PARAM_INVALID);
}

static void stages(void)
{
    struct layer l;
    uint64_t bytes = 7;
    aclOpExecutor *executor = (aclOpExecutor*)&l, *kept;
    char workspace[4096];
    aclrtStream gone = NULL;
    EXPECT(aclInit(NULL) || aclrtSetDevice(0), 0);
    layer_make(&l);
    layer_poison(&l);
    EXPECT(layer_plan(&l, NULL, &executor), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(strstr(aclGetRecentErrMsg(), "workspaceSize must not be null") != NULL, 1);
    EXPECT(layer_plan(&l, &bytes, NULL), ACLNN_ERR_PARAM_NULLPTR);
    aclTensor* x = l.tx;
    l.tx = NULL;
    EXPECT(layer_plan(&l, &bytes, &executor), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(strstr(aclGetRecentErrMsg(), "input must not be null") != NULL, 1);
    l.tx = l.tgamma;
    EXPECT(layer_plan(&l, &bytes, &executor), ACLNN_ERR_PARAM_INVALID);
    l.tx = (aclTensor*)workspace;
    EXPECT(layer_plan(&l, &bytes, &executor), ACLNN_ERR_PARAM_INVALID);
    l.tx = x;
    EXPECT(bytes == 7 && executor == (aclOpExecutor*)&l, 1);
    /* Beyond all addresses: an operand is refused, an empty tensor is fine. */
    const int64_t dims[2] = {2, 2}, none[2] = {0, 2}, far = (int64_t)1 << 62;
    l.tx = aclCreateTensor(dims, 2, ACL_FLOAT, NULL, far, ACL_FORMAT_ND, dims, 2, l.x);
    EXPECT(layer_plan(&l, &bytes, &executor), ACLNN_ERR_PARAM_INVALID);
    EXPECT(strstr(aclGetRecentErrMsg(), "input must lie where addresses reach") != NULL, 1);
    EXPECT(aclDestroyTensor(l.tx), 0);
    l.tx = x;
    aclTensor* empty = aclCreateTensor(none, 2, ACL_FLOAT, NULL, far, ACL_FORMAT_ND, none, 2, &l);
    EXPECT(aclnnLayerNormBackwardGetWorkspaceSize(empty, empty, l.shape, empty, empty, NULL, NULL,
                                                  l.mask, empty, l.tdgamma, l.tdbeta, &bytes,
                                                  &kept), 0);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, kept, NULL), 0);
    EXPECT(l.dgamma[0] == 0 && l.dbeta[1] == 0, 1);
    EXPECT(aclDestroyTensor(empty), 0);
    layer_poison(&l);
    bytes = 7;

    /* Something alive that is no executor; it stays as it was. */
    aclrtStream stream = NULL;
    EXPECT(aclrtCreateStream(&stream), 0);
    void* others[] = {l.tx, l.mask, l.shape, stream};
    for (int i = 0; i < 4; i++) {
        EXPECT(aclnnLayerNormBackward(NULL, 0, (aclOpExecutor*)others[i], NULL),
               ACLNN_ERR_INNER_NULLPTR);
        EXPECT(strstr(aclGetRecentErrMsg(), "executor must come from stage 1") != NULL, 1);
    }
    EXPECT(aclrtDestroyStream(stream), 0);

    EXPECT(layer_plan(&l, &bytes, &executor), 0);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, NULL, NULL), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(aclnnLayerNormBackward(NULL, bytes + 1, executor, NULL), ACLNN_ERR_PARAM_NULLPTR);
    EXPECT(bytes > 0, 1);
    EXPECT(aclnnLayerNormBackward(workspace, bytes - 1, executor, NULL), ACLNN_ERR_PARAM_INVALID);
    void* nowhere[] = {(void*)-16, (void*)(UINTPTR_MAX / 2 + 1), (void*)(UINTPTR_MAX / 2 - 15)};
    for (int i = 0; i < 3; i++) {
        EXPECT(aclnnLayerNormBackward(nowhere[i], bytes, executor, NULL), ACLNN_ERR_PARAM_INVALID);
        EXPECT(strstr(aclGetRecentErrMsg(), "workspace must lie where addresses") != NULL, 1);
    }
    EXPECT(aclrtCreateStream(&gone) || aclrtDestroyStream(gone), 0);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, gone), ACLNN_ERR_RUNTIME_ERROR);
    aclrtContext before = NULL, ended = NULL; /* which takes its streams along */
    EXPECT(aclrtGetCurrentContext(&before), 0);
    EXPECT(aclrtCreateContext(&ended, 0) || aclrtSetCurrentContext(ended), 0);
    EXPECT(aclrtCreateStream(&gone) || aclrtDestroyContext(ended), 0);
    EXPECT(aclrtSetCurrentContext(before), 0);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, gone), ACLNN_ERR_RUNTIME_ERROR);
    EXPECT(isnan(l.dx[0]) && isnan(l.dgamma[1]), 1);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), 0);
    EXPECT(layer_right(&l), 1);
    kept = executor;
    EXPECT(aclnnLayerNormBackward(workspace, bytes, kept, NULL), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(strstr(aclGetRecentErrMsg(), "aclnnLayerNormBackward must not be used again") != NULL, 1);
    EXPECT(aclSetAclOpExecutorRepeatable(kept), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclSetAclOpExecutorRepeatable(NULL), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclDestroyAclOpExecutor(kept), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclDestroyAclOpExecutor((aclOpExecutor*)l.tx), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclDestroyAclOpExecutor((aclOpExecutor*)workspace), ACLNN_ERR_INNER_NULLPTR);
    EXPECT(aclDestroyAclOpExecutor(NULL), ACLNN_ERR_INNER_NULLPTR);
    /* A handle is never handed out twice: the old one stays dead whatever comes after. */
    for (int i = 0; i < 2000; i++) {
        EXPECT(layer_plan(&l, &bytes, &executor), 0);
        EXPECT(executor == kept, 0);
        EXPECT(aclnnLayerNormBackward(workspace, bytes, kept, NULL), ACLNN_ERR_INNER_NULLPTR);
        EXPECT(aclDestroyAclOpExecutor(executor), 0);
    }
    /* More than 65536 executors at once are a leak. */
    int status = 0;
    long many = 0;
    while (many < 70000 && (status = layer_plan(&l, &bytes, &executor)) == 0)
        many++;
    EXPECT(status, ACLNN_ERR_INNER_CREATE_EXECUTOR);
    EXPECT(many, 65536);
    EXPECT(layer_drop(&l), 0);
}

/* Settings of the environment that make a stage 1 or a device impossible. */
static void settings(int want_device, int want_plan)
{
    struct layer l;
    uint64_t bytes = 0;
    aclOpExecutor* executor = NULL;
    void* memory = NULL;
    EXPECT(aclInit(NULL), 0);
    int device = aclrtSetDevice(0);
    if (device == 0)
        device = aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST);
    EXPECT(device, want_device);
    layer_make(&l);
    EXPECT(layer_plan(&l, &bytes, &executor), want_plan);
}

int main(int count, char** words)
{
    const char* part = count > 1 ? words[1] : "";
    if (!strcmp(part, "runtime"))
        runtime();
    else if (!strcmp(part, "tensors"))
        tensors();
    else if (!strcmp(part, "stages"))
        stages();
    else if (!strcmp(part, "settings") && count == 4)
        settings(atoi(words[2]), atoi(words[3]));
    else
        return 9;
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
