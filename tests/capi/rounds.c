/* Many rounds of everything a program makes and destroys: memory must not grow. Arguments: rounds,
 * and 1 to make new tensors each time. Prints microseconds of both stages. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>
#include <unistd.h>

#include "layer.h"

static double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec * 1e6 + (double)at.tv_nsec * 1e-3;
}

static long resident(void)
{
    long total = 0, pages = 0;
    FILE* file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &total, &pages) != 2)
        pages = -1;
    if (file)
        fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int count, char** words)
{
    long rounds = count > 1 ? atol(words[1]) : 1000;
    int anew = count > 2 && atoi(words[2]);
    double one = 1e9, two = 1e9;
    long before = 0;
    struct layer l;
    void* workspace = malloc(1 << 16);
    EXPECT(aclInit(NULL), 0);
    EXPECT(aclrtSetDevice(0), 0);
    layer_make(&l);
    for (long round = 0; round < rounds && !complaints; round++) {
        uint64_t bytes = 0;
        aclOpExecutor* executor = NULL;
        aclrtStream stream = NULL;
        if (anew) {
            EXPECT(layer_drop(&l), 0);
            layer_make(&l);
            EXPECT(aclrtCreateStream(&stream), 0);
        }
        layer_poison(&l);
        double start = now();
        EXPECT(layer_plan(&l, &bytes, &executor), 0);
        double planned = now();
        if (round % 4 == 3) {
            EXPECT(aclDestroyAclOpExecutor(executor), 0);
        } else {
            double ready = now();
            EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, stream), 0);
            double done = now();
            two = done - ready < two ? done - ready : two;
            EXPECT(layer_right(&l), 1);
        }
        one = planned - start < one ? planned - start : one;
        if (stream)
            EXPECT(aclrtDestroyStream(stream), 0);
        if (round == rounds / 10)
            before = resident();
    }
    long grown = resident() - before;
    printf("grown %ld bytes; stage 1 %.2f us, stage 2 %.2f us\n", grown, one, two);
    free(workspace);
    return complaints || before <= 0 || grown > 1 << 20;
}
