/* Both libraries, loaded by hand and for themselves alone, in one process. Arguments: their paths. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

#include "acl/acl.h"
#include "infiniop.h"
#include "infinirt.h"

#define FIND(library, name)                                                                     \
    __typeof__(name)* p_##name;                                                                 \
    *(void**)&p_##name = dlsym(library, #name);                                                 \
    if (!p_##name)                                                                              \
        return 10

int main(int count, char** words)
{
    void* memory = NULL;
    infiniopHandle_t handle = NULL;
    aclrtStream stream = NULL;
    if (count != 4)
        return 9;
    void* first = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    void* second = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
    void* third = dlopen(words[3], RTLD_NOW | RTLD_LOCAL);
    if (!first || !second || !third) {
        printf("%s\n", dlerror());
        return 8;
    }
    FIND(first, aclInit);
    FIND(first, aclrtSetDevice);
    FIND(first, aclrtCreateStream);
    FIND(first, aclrtFree);
    FIND(second, infiniopCreateHandle);
    FIND(third, infinirtMalloc);
    if (dlsym(RTLD_DEFAULT, "aclInit"))
        return 7;
    if (p_infiniopCreateHandle(&handle) || handle->device != 0 || handle->device_id != 0)
        return 1;
    if (p_aclInit(NULL) || p_aclrtSetDevice(0) || p_aclrtCreateStream(&stream))
        return 2;
    /* One process, one runtime: memory of the one is known to the other. */
    if (p_infinirtMalloc(&memory, 64) || p_aclrtFree(memory))
        return 3;
    if (p_aclrtFree(memory) != ACL_ERROR_INVALID_PARAM)
        return 4;
    /* Python cannot be unloaded, so neither can the library. */
    dlclose(first), dlclose(second), dlclose(third);
    first = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
    if (!first || dlsym(first, "aclInit") != (void*)p_aclInit)
        return 5;
    if (p_aclInit(NULL) != ACL_ERROR_REPEAT_INITIALIZE)
        return 6;
    printf("right\n");
    return 0;
}
