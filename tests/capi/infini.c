/* The infiniop side: results where tensors lie over each other, and every status. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "edge.h"
#include "infiniop.h"
#include "infinirt.h"

#define RECENT infiniGetRecentErrMsg
#include "expect.h"

enum { N = 1, C = 2, L = 4, BIG = 8 };

static const float want_dx[BIG] = {-1.5f, -4, -6.5f, -9, -127.5f, -158, -188.5f, -219};

static infiniopTensorDescriptor_t describe(size_t rank, size_t a, size_t b, size_t c,
                                           const ptrdiff_t* strides, int dtype)
{
    const size_t shape[3] = {a, b, c};
    infiniopTensorDescriptor_t made = NULL;
    EXPECT(infiniopCreateTensorDescriptor(&made, rank, shape, strides, (infiniDtype_t)dtype), 0);
    return made;
}

static int close_to(const float* got, const float* want, int count)
{
    for (int i = 0; i < count; i++)
        if (!(fabsf(got[i] - want[i]) <= 1e-5f * fabsf(want[i]))) {
            fprintf(stderr, "[%d] is %g, not %g\n", i, (double)got[i], (double)want[i]);
            return 0;
        }
    return 1;
}

/* Computations that need one. */
static void workspaces(infiniopHandle_t handle)
{
    enum { SAMPLES = 32, CHANNELS = 8, LENGTH = 64, ALL = SAMPLES * CHANNELS * LENGTH };
    static float data[2 * ALL], vectors[5 * CHANNELS];
    infiniopTensorDescriptor_t big = describe(3, SAMPLES, CHANNELS, LENGTH, NULL, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t vec = describe(1, CHANNELS, 0, 0, NULL, INFINI_DTYPE_F32);
    infiniopBatchNormBackwardDescriptor_t op = NULL;
    size_t bytes = 0;
    float *dw = vectors, *db = dw + CHANNELS, *w = db + CHANNELS, *mean = w + CHANNELS;
    EXPECT(infiniopCreateBatchNormBackwardDescriptor(handle, &op, big, vec, vec, big, big, vec, vec,
                                                     vec), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopGetBatchNormBackwardWorkspaceSize(op, &bytes), INFINI_STATUS_SUCCESS);
    EXPECT(bytes > 0, 1);
    void* room = malloc(bytes);
    void* nowhere[] = {NULL, (void*)-16, (void*)(UINTPTR_MAX / 2 + 1), (void*)(UINTPTR_MAX / 2 - 15)};
#define COMPUTE(p, s)                                                                           \
    infiniopBatchNormBackward(op, p, s, data + ALL, dw, db, data, data, w, mean, mean + CHANNELS, \
                              NULL)
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        const char* rule = i ? "workspace must lie where addresses" : "workspace must not be null";
        EXPECT(COMPUTE(nowhere[i], bytes), INFINI_STATUS_BAD_PARAM);
        EXPECT(strstr(infiniGetRecentErrMsg(), rule) != NULL, 1);
        EXPECT(COMPUTE(nowhere[i], bytes - 1), INFINI_STATUS_INSUFFICIENT_WORKSPACE);
    }
    EXPECT(COMPUTE(room, bytes), INFINI_STATUS_SUCCESS);
    free(room);
    EXPECT(infiniopDestroyBatchNormBackwardDescriptor(op), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopDestroyTensorDescriptor(big) || infiniopDestroyTensorDescriptor(vec), 0);
}

int main(void)
{
    const float numbers[BIG] = {0, 1, 2, 3, 4, 5, 6, 7}, zeros[C] = {0, 0}, ones[C] = {1, 1};
    const float want_weight[C] = {14, 126}, want_bias[C] = {6, 22};
    const ptrdiff_t apart[1] = {3}, back[1] = {-1}, turned[3] = {8, 1, 2}, same[1] = {0};
    float x[BIG], dy[2 * BIG], dx[BIG], dw[8], db[C], workspace[1024];
    infiniopHandle_t handle = NULL;
    infiniopBatchNormBackwardDescriptor_t op = NULL, other;
    size_t bytes = 99;

    EXPECT(infinirtInit(), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopCreateHandle(NULL), INFINI_STATUS_NULL_POINTER);
    EXPECT(infiniopCreateHandle(&handle), INFINI_STATUS_SUCCESS);
    EXPECT(handle->device == INFINI_DEVICE_CPU && handle->device_id == 0, 1);
    infiniopTensorDescriptor_t big = describe(3, N, C, L, NULL, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t vec = describe(1, C, 0, 0, NULL, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t wide = describe(1, C, 0, 0, apart, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t flip = describe(1, C, 0, 0, back, INFINI_DTYPE_F32);
#define CREATE(h, p, a, b, c, d, e, f, g, i)                                                    \
    infiniopCreateBatchNormBackwardDescriptor(h, p, a, b, c, d, e, f, g, i)
    EXPECT(CREATE(handle, &op, big, wide, flip, big, big, vec, vec, vec), INFINI_STATUS_SUCCESS);
    EXPECT(op->device == 0 && op->device_id == 0, 1);
    EXPECT(infiniopGetBatchNormBackwardWorkspaceSize(op, &bytes), INFINI_STATUS_SUCCESS);
    EXPECT(bytes <= sizeof workspace, 1);
#define RUN(p, s, a, w, b, d, e)                                                                \
    infiniopBatchNormBackward(op, p, s, a, w, b, d, e, ones, zeros, ones, NULL)

    /* Three ways to lie: apart, the very same, and shifted by one element. */
    for (int way = 0; way < 4; way++) {
        float* out = way == 0 ? dx : way == 1 ? dy : way == 2 ? x : dy + 1;
        memset(dx, 0xFF, sizeof dx);
        memset(dw, 0xFF, sizeof dw);
        memset(db, 0xFF, sizeof db);
        memset(dy, 0xFF, sizeof dy);
        memcpy(x, numbers, sizeof x);
        memcpy(dy, numbers, sizeof numbers);
        EXPECT(RUN(workspace, bytes, out, dw, db + 1, x, dy), INFINI_STATUS_SUCCESS);
        EXPECT(close_to(out, want_dx, BIG), 1);
        EXPECT(dw[0] == want_weight[0] && dw[3] == want_weight[1], 1);
        EXPECT(isnan(dw[1]) && isnan(dw[2]) && isnan(dw[4]), 1); /* what lies between stays */
        EXPECT(db[1] == want_bias[0] && db[0] == want_bias[1], 1);
    }
    memcpy(x, numbers, sizeof x);
    memcpy(dy, numbers, sizeof numbers);
    EXPECT(RUN(workspace, bytes, dx, dx + 1, db + 1, x, dy), INFINI_STATUS_BAD_PARAM);
    EXPECT(strstr(infiniGetRecentErrMsg(), "grad_weight must not share memory") != NULL, 1);
    EXPECT(RUN(workspace, bytes, NULL, dw, db + 1, x, dy), INFINI_STATUS_BAD_PARAM);
    EXPECT(strstr(infiniGetRecentErrMsg(), "grad_input must not be null") != NULL, 1);
    /* Where no float begins, and where no memory is. */
    void* odd[] = {(char*)dx + 1, (char*)dx + 2, (void*)-4, (void*)(UINTPTR_MAX / 2 - 3)};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        const char* rule = i < 2 ? "must begin at a multiple of 4" : "must lie where addresses";
        EXPECT(RUN(workspace, bytes, odd[i], dw, db + 1, x, dy), INFINI_STATUS_BAD_PARAM);
        EXPECT(strstr(infiniGetRecentErrMsg(), rule) != NULL, 1);
    }
    workspaces(handle);

    /* The checks of the create function; the result stays untouched. */
    infiniopTensorDescriptor_t half = describe(3, N, C, L, NULL, INFINI_DTYPE_F16);
    infiniopTensorDescriptor_t whole = describe(3, N, C, L, NULL, INFINI_DTYPE_I32);
    infiniopTensorDescriptor_t flat = describe(2, C, L, 0, NULL, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t longer = describe(1, C + 1, 0, 0, NULL, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t mixed = describe(3, N, C, L, turned, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t over = describe(1, C, 0, 0, same, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t none = NULL; /* a rank that is garbage: nothing is read */
    const size_t* last = (const size_t*)edge(2, 3);
    EXPECT(infiniopCreateTensorDescriptor(&none, (size_t)-1, last, (const ptrdiff_t*)last,
                                          INFINI_DTYPE_F32), INFINI_STATUS_BAD_PARAM);
    EXPECT(strstr(infiniGetRecentErrMsg(), "ndim must be 0 to 4096") != NULL && !none, 1);
    /* More than there are addresses. */
    const size_t huge = (size_t)1 << 40;
    const ptrdiff_t far[1] = {(ptrdiff_t)1 << 62}, back_far[1] = {PTRDIFF_MIN};
    infiniopTensorDescriptor_t whale = describe(3, huge, C, huge, NULL, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t stretched = describe(1, C, 0, 0, far, INFINI_DTYPE_F32);
    infiniopTensorDescriptor_t turned_far = describe(1, C, 0, 0, back_far, INFINI_DTYPE_F32);
    other = op;
    EXPECT(CREATE(handle, &op, whale, vec, vec, whale, whale, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_SHAPE);
    EXPECT(CREATE(handle, &op, big, stretched, vec, big, big, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_STRIDES);
    EXPECT(CREATE(handle, &op, big, vec, vec, big, big, vec, vec, turned_far),
           INFINI_STATUS_BAD_TENSOR_STRIDES);
    EXPECT(infiniopDestroyTensorDescriptor(whale) || infiniopDestroyTensorDescriptor(stretched) ||
           infiniopDestroyTensorDescriptor(turned_far), 0);
    EXPECT(CREATE(NULL, &op, big, vec, vec, big, big, vec, vec, vec), INFINI_STATUS_BAD_PARAM);
    EXPECT(CREATE(handle, NULL, big, vec, vec, big, big, vec, vec, vec), INFINI_STATUS_BAD_PARAM);
    EXPECT(CREATE(handle, &op, big, vec, vec, NULL, big, vec, vec, vec), INFINI_STATUS_BAD_PARAM);
    EXPECT(CREATE(handle, &op, half, vec, vec, big, big, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_DTYPE);
    EXPECT(CREATE(handle, &op, whole, vec, vec, whole, whole, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_DTYPE);
    EXPECT(CREATE(handle, &op, big, vec, vec, flat, big, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_SHAPE);
    EXPECT(CREATE(handle, &op, big, vec, longer, big, big, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_SHAPE);
    EXPECT(CREATE(handle, &op, big, vec, vec, mixed, big, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_STRIDES);
    EXPECT(CREATE(handle, &op, big, over, vec, big, big, vec, vec, vec),
           INFINI_STATUS_BAD_TENSOR_STRIDES);
    EXPECT(op == other, 1);

    /* The runtime. */
    void* memory = NULL;
    infinirtStream_t stream = NULL;
    infiniDevice_t kind = INFINI_DEVICE_NVIDIA;
    int id = 7, devices = 0;
    char text[8] = "0123456", copy[8];
    EXPECT(infinirtSetDevice((infiniDevice_t)8, 0), INFINI_STATUS_DEVICE_TYPE_NOT_SUPPORTED);
    EXPECT(infinirtSetDevice(INFINI_DEVICE_CPU, 1), INFINI_STATUS_DEVICE_NOT_FOUND);
    EXPECT(infinirtSetDevice(INFINI_DEVICE_CPU, 0), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtGetDevice(&kind, &id), INFINI_STATUS_SUCCESS);
    EXPECT(kind == INFINI_DEVICE_CPU && id == 0, 1);
    kind = INFINI_DEVICE_NVIDIA, id = 7; /* one of the two is enough */
    EXPECT(infinirtGetDevice(&kind, NULL) || infinirtGetDevice(NULL, &id), 0);
    EXPECT(kind == INFINI_DEVICE_CPU && id == 0, 1);
    EXPECT(infinirtGetDevice(NULL, NULL), INFINI_STATUS_NULL_POINTER);
    EXPECT(infinirtGetDeviceCount(INFINI_DEVICE_CPU, &devices), INFINI_STATUS_SUCCESS);
    EXPECT(devices, 1);
    EXPECT(infinirtMalloc(NULL, 8), INFINI_STATUS_NULL_POINTER);
    EXPECT(infinirtMalloc(&memory, (size_t)1 << 60), INFINI_STATUS_INTERNAL_ERROR);
    EXPECT(infinirtMalloc(&memory, 8), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamCreate(&stream), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtMemcpy(memory, text, 8, INFINIRT_MEMCPY_H2D), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtMemcpyAsync(copy, memory, 8, INFINIRT_MEMCPY_D2H, stream),
           INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamSynchronize(stream), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtDeviceSynchronize(), INFINI_STATUS_SUCCESS);
    EXPECT(memcmp(text, copy, 8), 0);
    EXPECT(infiniopBatchNormBackward(op, workspace, bytes, dx, dw, db + 1, x, dy, ones, zeros,
                                     ones, stream), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamDestroy(stream), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamDestroy(stream), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopBatchNormBackward(op, workspace, bytes, dx, dw, db + 1, x, dy, ones, zeros,
                                     ones, stream), INFINI_STATUS_BAD_PARAM);
    /* The default stream, and one of somebody else: waited for, not ours to end. */
    EXPECT(infinirtStreamSynchronize(NULL), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamDestroy(NULL), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamSynchronize((infinirtStream_t)text), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtStreamDestroy((infinirtStream_t)text), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtStreamSynchronize((infinirtStream_t)big), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtFree(memory), INFINI_STATUS_SUCCESS);
    EXPECT(infinirtFree(memory), INFINI_STATUS_BAD_PARAM);
    EXPECT(infinirtFree(NULL), INFINI_STATUS_SUCCESS);

    /* What is destroyed stays so; null is success. */
    infiniopTensorDescriptor_t all[] = {big, vec, wide, flip, half, whole, flat, longer, mixed, over};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        EXPECT(infiniopDestroyTensorDescriptor(all[i]), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopDestroyTensorDescriptor(big), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopDestroyTensorDescriptor(NULL), INFINI_STATUS_SUCCESS);
    EXPECT(RUN(workspace, bytes, dx, dw, db + 1, x, dy), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopDestroyBatchNormBackwardDescriptor(op), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopDestroyBatchNormBackwardDescriptor(op), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopDestroyBatchNormBackwardDescriptor(NULL), INFINI_STATUS_SUCCESS);
    EXPECT(RUN(workspace, bytes, dx, dw, db + 1, x, dy), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopGetBatchNormBackwardWorkspaceSize(op, &bytes), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopGetBatchNormBackwardWorkspaceSize(NULL, &bytes), INFINI_STATUS_BAD_PARAM);
    /* However many handles come after it. */
    for (int i = 0; i < 2000; i++) {
        infiniopHandle_t next = NULL;
        EXPECT(infiniopCreateHandle(&next), INFINI_STATUS_SUCCESS);
        EXPECT((void*)next == (void*)op, 0);
        EXPECT(infiniopDestroyHandle(next), INFINI_STATUS_SUCCESS);
    }
    EXPECT(infiniopDestroyBatchNormBackwardDescriptor(op), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopDestroyBatchNormBackwardDescriptor((void*)workspace), INFINI_STATUS_BAD_PARAM);
    EXPECT(infiniopDestroyHandle(handle), INFINI_STATUS_SUCCESS);
    EXPECT(infiniopDestroyHandle(handle), INFINI_STATUS_BAD_PARAM);
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
