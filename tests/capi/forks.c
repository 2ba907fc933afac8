/* Forks while another thread is inside the library: the child goes on, and never waits for a thread
 * that it does not have. Linked with the parts that hold locks and have no Python. */
#define _POSIX_C_SOURCE 200809L
#include "host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 300, BATCH = 64 };

static atomic_int stop;

static int32_t entry(int64_t* block, int64_t* addresses, int64_t workspace, int64_t sync)
{
    (void)addresses, (void)workspace, (void)sync;
    return (int32_t)*block;
}

static int rounds(void)
{
    int64_t zero = 0, addresses[NORMGRAD_ROLES] = {0};
    struct normgrad_launch launch = {
        .entry = entry, .block = &zero, .helpers = 2, .sync_bytes = 128};
    const struct normgrad_host* host = &normgrad_host;
    uint64_t made[BATCH], gone[BATCH];
    int failed = 0;
    for (int i = 0; i < BATCH; i++)
        made[i] = host->handle_new(NORMGRAD_EXECUTOR, 0, &launch);
    for (int i = 0; i < BATCH; i++) {
        failed |= !normgrad_take(made[i], NORMGRAD_EXECUTOR);
        if (i % 16 == 0)
            failed |= normgrad_compute(&launch, addresses, NULL);
        normgrad_watch_exit();
        host->handle_finish(made[i]);
    }
    while (host->handles_retired(gone, BATCH))
        ;
    host->face_end(host->face_new(1, 0, 0));
    return failed;
}

static void* busy(void* unused)
{
    (void)unused;
    while (!stop)
        if (rounds())
            stop = 2;
    return NULL;
}

int main(void)
{
    pthread_t thread;
    int wrong = 0;
    pthread_create(&thread, NULL, busy, NULL);
    for (int i = 0; i < FORKS && !wrong; i++) {
        int status = -1;
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            _exit(rounds());
        }
        waitpid(child, &status, 0);
        if (status) {
            printf("child %d ended with %#x\n", i, status);
            wrong = 1;
        }
    }
    wrong |= stop == 2;
    stop = 1;
    pthread_join(thread, NULL);
    if (!wrong)
        printf("right\n");
    return wrong;
}
