/* The parts that never touch Python, alone under ThreadSanitizer: handles and helping threads. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "host.h"

enum { THREADS = 8, ROUNDS = 2000, TASKS = 64 };

static _Atomic uint64_t shared;
static atomic_int served, failures;
static pthread_barrier_t together;

/* As the compiled entry does it: two counters, tasks taken one by one. */
static int32_t entry(int64_t* block, int64_t* addresses, int64_t workspace, int64_t sync)
{
    int64_t* results = (int64_t*)addresses[0];
    (void)workspace;
    if (!sync) {
        for (int task = 0; task < TASKS; task++)
            results[task] = block[task] + 1;
        return 0;
    }
    _Atomic int64_t* counters = (_Atomic int64_t*)sync;
    for (int64_t task; (task = atomic_fetch_add(&counters[0], 1)) < TASKS;) {
        results[task] = block[task] + 1;
        atomic_fetch_add(&counters[1], 1);
    }
    while (atomic_load(&counters[1]) < TASKS)
        ;
    return 0;
}

static void* work(void* argument)
{
    int number = *(int*)argument;
    int64_t block[TASKS], results[TASKS], addresses[NORMGRAD_ROLES] = {(int64_t)results};
    struct normgrad_launch launch = {
        .entry = entry, .block = block, .helpers = 3, .sync_bytes = 128};
    const struct normgrad_host* host = &normgrad_host;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t gone[8];
        uint64_t mine = host->handle_new(NORMGRAD_EXECUTOR, 0, &launch);
        if (number == 0)
            shared = host->handle_new(NORMGRAD_EXECUTOR, 1, &launch);
        pthread_barrier_wait(&together);
        /* One executor, eight threads: it serves one of them. */
        uint64_t ours = shared;
        if (normgrad_take(ours, NORMGRAD_EXECUTOR)) {
            served++;
            host->handle_finish(ours);
        }
        failures += host->handle_begin(mine) != 1 || host->handle_begin(mine) != 0;
        host->handle_cancel(mine);
        if (round % 2) {
            failures += !host->handle_repeatable(mine);
            failures += !normgrad_take(mine, NORMGRAD_EXECUTOR);
            for (int task = 0; task < TASKS; task++)
                block[task] = round * task;
            failures += normgrad_compute(&launch, addresses, NULL) != 0;
            for (int task = 0; task < TASKS; task++)
                failures += results[task] != round * task + 1;
            failures += !host->handle_end(mine); /* while inside */
            failures += host->handle_begin(mine) != 0;
            host->handle_finish(mine);
        } else {
            failures += !host->handle_end(mine);
        }
        uintptr_t face = host->face_new(mine, number, round);
        failures += host->face_handle(face) != mine;
        host->face_end(face);
        pthread_barrier_wait(&together);
        failures += normgrad_alive(mine, NORMGRAD_EXECUTOR) || normgrad_alive(ours, NORMGRAD_EXECUTOR);
        while (host->handles_retired(gone, 8))
            ;
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int numbers[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        numbers[i] = i;
        pthread_create(&threads[i], NULL, work, &numbers[i]);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (served != ROUNDS || failures)
        printf("served %d of %d, failures %d\n", served, ROUNDS, failures);
    else
        printf("right\n");
    return served != ROUNDS || failures;
}
