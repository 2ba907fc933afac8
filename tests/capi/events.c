/* Events, waiting, memory in numbers: the runtimes' further functions. */
#include <stdio.h>
#include <string.h>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"
#include "infinirt.h"
#define RECENT() aclGetRecentErrMsg()
#include "expect.h"

static void acl(void)
{
    aclrtEvent start = NULL, end = NULL;
    aclrtStream stream = NULL;
    aclrtEventRecordedStatus status = ACL_EVENT_RECORDED_STATUS_COMPLETE;
    float ms = -7;
    size_t free_bytes = 0, total = 0;
    void* memory = NULL;
    char back[8] = "";
    EXPECT(aclnnInit(NULL), 0);
    EXPECT(aclInit(NULL), 0);
    EXPECT(aclrtCreateEvent(&start), ACL_ERROR_RT_CONTEXT_NULL);
    EXPECT(start == NULL, 1);
    EXPECT(aclrtSetDevice(0), 0);
    EXPECT(aclrtCreateStream(&stream), 0);
    EXPECT(aclrtCreateEvent(NULL), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtCreateEvent(&start), 0);
    EXPECT(aclrtCreateEventWithFlag(&end, 4), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtCreateEventWithFlag(&end, ACL_EVENT_SYNC | ACL_EVENT_TIME_LINE), 0);
    EXPECT(aclrtQueryEventStatus(start, &status), 0);
    EXPECT(status, ACL_EVENT_RECORDED_STATUS_NOT_READY);
    EXPECT(aclrtEventElapsedTime(&ms, start, end), ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID);
    EXPECT(ms == -7, 1);
    EXPECT(aclrtRecordEvent(start, stream), 0);
    EXPECT(aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST), 0);
    EXPECT(aclrtMemsetAsync(memory, 8, 'x', 8, stream), 0);
    EXPECT(aclrtRecordEvent(end, stream), 0);
    EXPECT(aclrtStreamWaitEvent(NULL, end), 0);
    EXPECT(aclrtSynchronizeEvent(end), 0);
    EXPECT(aclrtQueryEventStatus(end, &status), 0);
    EXPECT(status, ACL_EVENT_RECORDED_STATUS_COMPLETE);
    EXPECT(aclrtEventElapsedTime(&ms, start, end), 0);
    EXPECT(ms >= 0 && ms < 10000, 1);
    EXPECT(aclrtMemcpy(back, 8, memory, 8, ACL_MEMCPY_DEFAULT), 0);
    EXPECT(memcmp(back, "xxxxxxxx", 8), 0);
    EXPECT(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, &total), 0);
    EXPECT(free_bytes > 0 && free_bytes <= total, 1);
    EXPECT(aclrtGetMemInfo(ACL_HBM_MEM, &free_bytes, NULL), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtResetEvent(end, stream), 0);
    EXPECT(aclrtDestroyEvent(start), 0);
    EXPECT(aclrtDestroyEvent(start), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtRecordEvent(start, stream), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtSynchronizeEvent(stream), ACL_ERROR_INVALID_PARAM); /* a handle of another kind */
    EXPECT(aclrtSynchronizeEvent(back), ACL_ERROR_INVALID_PARAM);
    EXPECT(aclrtDestroyEvent(end), 0);
    EXPECT(aclrtFree(memory), 0);
    EXPECT(aclrtDestroyStream(stream), 0);

    const float values[3] = {0.5f, 1, 2};
    uint64_t size = 0;
    aclFloatArray* floats = aclCreateFloatArray(values, 3);
    EXPECT(aclGetFloatArraySize(floats, &size), 0);
    EXPECT(size, 3);
    EXPECT(aclDestroyFloatArray(floats), 0);
    EXPECT(aclDestroyFloatArray(floats), ACLNN_ERR_PARAM_INVALID);
    EXPECT(aclCreateFloatArray(NULL, 3) == NULL, 1);
    EXPECT(aclrtResetDevice(0), 0);
    EXPECT(aclFinalize(), 0);
    EXPECT(aclnnFinalize(), 0);
}

static void infini(void)
{
    infinirtEvent_t start = NULL, end = NULL;
    infinirtStream_t stream = NULL;
    infinirtEventStatus_t status = INFINIRT_EVENT_NOT_READY;
    float ms = -7;
    int counts[INFINI_DEVICE_TYPE_COUNT + 1];
    void *host = NULL, *memory = NULL;
    memset(counts, 0x55, sizeof counts);
    EXPECT(infinirtGetAllDeviceCount(NULL), INFINI_STATUS_NULL_POINTER);
    EXPECT(infinirtGetAllDeviceCount(counts), 0);
    EXPECT(counts[INFINI_DEVICE_CPU], 1);
    EXPECT(counts[INFINI_DEVICE_TYPE_COUNT - 1], 0);
    EXPECT(counts[INFINI_DEVICE_TYPE_COUNT], 0x55555555);
    EXPECT(infinirtStreamCreate(&stream), 0);
    EXPECT(infinirtEventCreate(NULL), INFINI_STATUS_NULL_POINTER);
    EXPECT(infinirtEventCreate(&start), 0);
    EXPECT(infinirtEventCreateWithFlags(&end, 4), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtEventCreateWithFlags(&end, INFINIRT_EVENT_DISABLE_TIMING), 0);
    EXPECT(infinirtEventElapsedTime(&ms, start, end), INFINI_STATUS_BAD_PARAM);
    EXPECT(ms == -7, 1);
    EXPECT(infinirtEventRecord(start, stream), 0);
    EXPECT(infinirtEventRecord(end, stream), 0);
    EXPECT(infinirtStreamWaitEvent(stream, start), 0);
    EXPECT(infinirtEventSynchronize(end), 0);
    EXPECT(infinirtEventQuery(end, &status), 0);
    EXPECT(status, INFINIRT_EVENT_COMPLETE);
    EXPECT(infinirtEventElapsedTime(&ms, start, end), 0);
    EXPECT(ms >= 0 && ms < 10000, 1);
    EXPECT(infinirtMallocHost(&host, 16), 0);
    EXPECT(infinirtMallocAsync(&memory, 16, stream), 0);
    EXPECT(infinirtMemcpyAsync(memory, host, 16, INFINIRT_MEMCPY_H2D, stream), 0);
    EXPECT(infinirtFreeAsync(memory, stream), 0);
    EXPECT(infinirtFreeAsync(memory, stream), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtFree(host), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtFreeHost(host), 0);
    EXPECT(infinirtEventDestroy(start) || infinirtEventDestroy(NULL), 0);
    EXPECT(infinirtEventDestroy(start), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtEventRecord(start, stream), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtEventDestroy(end), 0);
    EXPECT(infinirtStreamDestroy(stream), 0);
}

int main(void)
{
    acl();
    infini();
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
