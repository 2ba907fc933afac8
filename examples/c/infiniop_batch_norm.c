/* infiniopBatchNormBackward: the statistics are those of the batch, and there is no epsilon. */
#include <stdio.h>
#include <stdlib.h>

#include "infiniop.h"
#include "infinirt.h"

enum { N = 1, C = 2, L = 4, BIG = N * C * L };

static void must(infiniStatus_t status, const char* what)
{
    if (status != INFINI_STATUS_SUCCESS) {
        fprintf(stderr, "%s: status %d: %s\n", what, (int)status, infiniGetRecentErrMsg());
        exit(1);
    }
}

#define MUST(call) must((call), #call)

static void* upload(const float* values, size_t count)
{
    void* memory = NULL;
    MUST(infinirtMalloc(&memory, count * sizeof(float)));
    if (values)
        MUST(infinirtMemcpy(memory, values, count * sizeof(float), INFINIRT_MEMCPY_H2D));
    return memory;
}

static void show(const char* name, const void* memory, size_t count)
{
    float values[BIG];
    MUST(infinirtMemcpy(values, memory, count * sizeof(float), INFINIRT_MEMCPY_D2H));
    printf("%s:", name);
    for (size_t i = 0; i < count; i++)
        printf(" %.9g", (double)values[i]);
    printf("\n");
}

int main(void)
{
    const size_t shape[] = {N, C, L}, channels[] = {C};
    const float numbers[BIG] = {0, 1, 2, 3, 4, 5, 6, 7}, zeros[C] = {0, 0}, ones[C] = {1, 1};
    infiniopHandle_t handle = NULL;
    infiniopTensorDescriptor_t big = NULL, vector = NULL;
    infiniopBatchNormBackwardDescriptor_t operation = NULL;
    size_t bytes = 0;
    void* workspace = NULL;

    MUST(infinirtInit());
    MUST(infinirtSetDevice(INFINI_DEVICE_CPU, 0));
    MUST(infiniopCreateHandle(&handle));
    MUST(infiniopCreateTensorDescriptor(&big, 3, shape, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateTensorDescriptor(&vector, 1, channels, NULL, INFINI_DTYPE_F32));
    MUST(infiniopCreateBatchNormBackwardDescriptor(handle, &operation, big, vector, vector, big,
                                                   big, vector, vector, vector));
    MUST(infiniopDestroyTensorDescriptor(big));
    MUST(infiniopDestroyTensorDescriptor(vector));
    MUST(infiniopGetBatchNormBackwardWorkspaceSize(operation, &bytes));
    MUST(infinirtMalloc(&workspace, bytes));

    void *input = upload(numbers, BIG), *gradOutput = upload(numbers, BIG);
    void *weight = upload(ones, C), *mean = upload(zeros, C), *var = upload(ones, C);
    void *gradWeight = upload(NULL, C), *gradBias = upload(NULL, C);
    /* grad_input takes the place of grad_output. */
    MUST(infiniopBatchNormBackward(operation, workspace, bytes, gradOutput, gradWeight, gradBias,
                                   input, gradOutput, weight, mean, var, NULL));
    show("grad_input", gradOutput, BIG);
    show("grad_weight", gradWeight, C);
    show("grad_bias", gradBias, C);

    void* all[] = {input, gradOutput, weight, mean, var, gradWeight, gradBias, workspace};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        MUST(infinirtFree(all[i]));
    MUST(infiniopDestroyBatchNormBackwardDescriptor(operation));
    MUST(infiniopDestroyHandle(handle));
    return 0;
}
