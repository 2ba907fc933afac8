/* Eight threads race on the first call of all, then each plans and runs on its own. Then the main
 * thread holds Python's lock, and the eight run again: stage 2 must not need it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "layer.h"

enum { THREADS = 8, ROUNDS = 200 };

static pthread_barrier_t together;
static atomic_int first, failures, repeats;

struct own {
    struct layer layer;
    aclOpExecutor* executor;
    uint64_t bytes;
    void* workspace;
    aclOpExecutor* shared;
};
static struct own owns[THREADS];
static aclOpExecutor* shared;
static uint64_t shared_bytes;
static atomic_int shared_ran;

static void* work(void* argument)
{
    struct own* own = argument;
    char mine[64];
    int number = (int)(own - owns);
    pthread_barrier_wait(&together);
    int status = aclInit(NULL);
    first += status == 0;
    repeats += status == ACL_ERROR_REPEAT_INITIALIZE;
    if (aclrtSetDevice(0) != 0)
        failures++;
    layer_make(&own->layer);
    for (int round = 0; round < ROUNDS; round++)
        failures += !layer_round(&own->layer);
    /* A sentence belongs to the thread whose call has failed. */
    failures += aclrtSetDevice(100 + number) != ACL_ERROR_RT_INVALID_DEVICEID;
    pthread_barrier_wait(&together);
    snprintf(mine, sizeof mine, "got %d", 100 + number);
    failures += strstr(aclGetRecentErrMsg(), mine) == NULL;
    failures += layer_plan(&own->layer, &own->bytes, &own->executor) != 0;
    failures += aclSetAclOpExecutorRepeatable(own->executor) != 0;
    own->workspace = malloc(own->bytes + 1);
    if (number == 0)
        failures += layer_plan(&own->layer, &shared_bytes, &shared) != 0;
    pthread_barrier_wait(&together);
    /* One executor for eight threads: it serves exactly one of them. */
    status = aclnnLayerNormBackward(own->workspace, shared_bytes, shared, NULL);
    shared_ran += status == 0;
    failures += status != 0 && status != ACLNN_ERR_INNER_NULLPTR;
    pthread_barrier_wait(&together); /* main takes the lock */
    pthread_barrier_wait(&together); /* main has it */
    for (int round = 0; round < ROUNDS; round++) {
        layer_poison(&own->layer);
        failures += aclnnLayerNormBackward(own->workspace, own->bytes, own->executor, NULL) != 0;
        failures += !layer_right(&own->layer);
    }
    pthread_barrier_wait(&together); /* main lets go */
    pthread_barrier_wait(&together);
    failures += aclDestroyAclOpExecutor(own->executor) != 0;
    failures += aclDestroyAclOpExecutor(own->executor) != ACLNN_ERR_INNER_NULLPTR;
    failures += layer_drop(&own->layer) != 0;
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int (*ensure)(void);
    void (*release)(int);
    alarm(100); /* a deadlock ends the program */
    pthread_barrier_init(&together, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, &owns[i]);
    for (int i = 0; i < 4; i++)
        pthread_barrier_wait(&together);
    *(void**)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    *(void**)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
    if (!ensure || !release)
        return 2;
    int held = ensure();
    pthread_barrier_wait(&together);
    pthread_barrier_wait(&together);
    release(held);
    pthread_barrier_wait(&together);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    EXPECT(first, 1);
    EXPECT(repeats, THREADS - 1);
    EXPECT(shared_ran, 1);
    EXPECT(failures, 0);
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
