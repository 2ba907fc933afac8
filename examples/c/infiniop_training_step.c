/* A complete training step through infiniop: batch norm, ReLU, loss, backward, update, five times.
 *
 * With momentum 1 BatchNorm leaves the batch's mean and biased variance in running_mean and
 * running_var: what BatchNormBackward takes, which adds no eps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "infiniop.h"
#include "infinirt.h"

enum { N = 4, C = 6, L = 5, COUNT = N * C * L };
static const float EPS = 1e-12f, RATE = 0.5f;

static void must(infiniStatus_t status, const char* what)
{
    if (status != INFINI_STATUS_SUCCESS) {
        fprintf(stderr, "%s: status %d: %s\n", what, (int)status, infiniGetRecentErrMsg());
        exit(1);
    }
}

#define MUST(call) must((call), #call)

static float* room(size_t count)
{
    void* memory = NULL;
    MUST(infinirtMalloc(&memory, count * sizeof(float)));
    return (float*)memory;
}

static void give(const float* values, float* to, size_t count)
{
    MUST(infinirtMemcpy(to, values, count * sizeof(float), INFINIRT_MEMCPY_H2D));
}

static void take(float* values, const float* from, size_t count)
{
    MUST(infinirtMemcpy(values, from, count * sizeof(float), INFINIRT_MEMCPY_D2H));
}

/* With the word gpu behind its name it computes on the first NVIDIA GPU. */
int main(int argc, char** argv)
{
    const size_t data[] = {N, C, L}, channels[] = {C};
    infiniopHandle_t handle;
    infiniopTensorDescriptor_t big, small;
    MUST(infinirtInit());
    if (argc > 1 && strcmp(argv[1], "gpu") == 0)
        MUST(infinirtSetDevice(INFINI_DEVICE_NVIDIA, 0));
    MUST(infiniopCreateHandle(&handle));
    MUST(infiniopCreateTensorDescriptor(&big, 3, data, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&small, 1, channels, NULL, INFINI_DTYPE_F32));
    infiniopBatchNormDescriptor_t forward;
    infiniopBatchNormBackwardDescriptor_t backward;
    MUST(infiniopCreateBatchNormDescriptor(handle, &forward, big, small, small, big, small, small,
                                           1.0f, EPS));
    MUST(infiniopCreateBatchNormBackwardDescriptor(handle, &backward, big, small, small, big, big,
                                                   small, small, small));
    MUST(infiniopDestroyTensorDescriptor(big));
    MUST(infiniopDestroyTensorDescriptor(small));
    size_t size, other;
    MUST(infiniopGetBatchNormWorkspaceSize(forward, &size));
    MUST(infiniopGetBatchNormBackwardWorkspaceSize(backward, &other));
    size = other > size ? other : size;
    void* workspace = room(size / sizeof(float) + 1);

    float *x = room(COUNT), *y = room(COUNT), *dy = room(COUNT), *dx = room(COUNT);
    float *mean = room(C), *var = room(C), *weight = room(C), *bias = room(C);
    float *dweight = room(C), *dbias = room(C);
    float values[COUNT], target[COUNT], w[C], b[C], change[C];
    for (int i = 0; i < COUNT; i++) {
        values[i] = 1 + 3 * sinf(0.7f * (float)i);
        target[i] = cosf(0.3f * (float)i);
    }
    give(values, x, COUNT);
    for (int i = 0; i < C; i++) {
        w[i] = 1;
        b[i] = change[i] = 0;
    }
    give(change, mean, C);
    give(change, var, C);

    for (int step = 0; step < 5; step++) {
        give(w, weight, C);
        give(b, bias, C);
        MUST(infiniopBatchNorm(forward, workspace, size, y, mean, var, x, weight, bias, NULL));
        take(values, y, COUNT);
        double loss = 0;
        for (int i = 0; i < COUNT; i++) {
            float z = values[i], off = (z > 0 ? z : 0) - target[i];
            loss += 0.5 * off * off / COUNT;
            values[i] = z > 0 ? off / COUNT : 0;
        }
        give(values, dy, COUNT);
        MUST(infiniopBatchNormBackward(backward, workspace, size, dx, dweight, dbias, x, dy, weight,
                                       mean, var, NULL));
        take(change, dweight, C);
        for (int i = 0; i < C; i++)
            w[i] -= RATE * change[i];
        take(change, dbias, C);
        for (int i = 0; i < C; i++)
            b[i] -= RATE * change[i];
        printf("batch_norm loss %d: %.9g\n", step, loss);
    }
    const float* learned[] = {w, b};
    const char* names[] = {"weight", "bias"};
    for (int one = 0; one < 2; one++) {
        printf("batch_norm %s:", names[one]);
        for (int i = 0; i < C; i++)
            printf(" %.9g", (double)learned[one][i]);
        printf("\n");
    }

    float* memory[] = {x, y, dy, dx, mean, var, weight, bias, dweight, dbias, (float*)workspace};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        MUST(infinirtFree(memory[i]));
    MUST(infiniopDestroyBatchNormDescriptor(forward));
    MUST(infiniopDestroyBatchNormBackwardDescriptor(backward));
    MUST(infiniopDestroyHandle(handle));
    return 0;
}
