/* What the aclnn examples share: floats on the device, and an end with a sentence. C and C++. */
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <stdio.h>
#include <stdlib.h>

#include "acl/acl.h"
#include "aclnn/aclnn_base.h"

typedef struct Floats {
    void* memory;
    aclTensor* tensor;
    size_t bytes;
} Floats;

static void must(int status, const char* what)
{
    if (status != 0) {
        fprintf(stderr, "%s: status %d: %s\n", what, status, aclGetRecentErrMsg());
        exit(1);
    }
}

#define MUST(call) must((call), #call)

static aclrtStream begin(void)
{
    aclrtStream stream = NULL;
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtCreateStream(&stream));
    return stream;
}

static Floats upload(const float* values, const int64_t* shape, int rank)
{
    Floats made = {NULL, NULL, sizeof(float)};
    for (int axis = 0; axis < rank; axis++)
        made.bytes *= (size_t)shape[axis];
    MUST(aclrtMalloc(&made.memory, made.bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    if (values)
        MUST(aclrtMemcpy(made.memory, made.bytes, values, made.bytes, ACL_MEMCPY_HOST_TO_DEVICE));
    made.tensor = aclCreateTensor(shape, (uint64_t)rank, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape,
                                  (uint64_t)rank, made.memory);
    must(made.tensor ? 0 : ACL_ERROR_INTERNAL_ERROR, "aclCreateTensor");
    return made;
}

static void* workspace_of(uint64_t bytes)
{
    void* memory = NULL;
    if (bytes)
        MUST(aclrtMalloc(&memory, bytes, ACL_MEM_MALLOC_HUGE_FIRST));
    return memory;
}

static void show(const char* name, Floats from)
{
    float* values = (float*)malloc(from.bytes);
    MUST(aclrtMemcpy(values, from.bytes, from.memory, from.bytes, ACL_MEMCPY_DEVICE_TO_HOST));
    printf("%s:", name);
    for (size_t i = 0; i < from.bytes / sizeof(float); i++)
        printf(" %.9g", (double)values[i]);
    printf("\n");
    free(values);
}

static void drop(Floats gone)
{
    MUST(aclDestroyTensor(gone.tensor));
    MUST(aclrtFree(gone.memory));
}

static void finish(aclrtStream stream, void* workspace)
{
    if (workspace)
        MUST(aclrtFree(workspace));
    MUST(aclrtDestroyStream(stream));
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
}

#endif
