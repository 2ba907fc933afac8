/* Threads that help with one large computation. They never touch Python.
 *
 * Each thread that calls the entry with the same sync block takes tasks until none is left. The
 * caller works too, and takes its job back when it is done: a job lives on the caller's stack.
 */
#define _POSIX_C_SOURCE 200809L
#include "host.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

#define MAX_HELPERS 255
#define MAX_SYNC 4096

struct job {
    const struct normgrad_launch* launch;
    int64_t* addresses;
    int64_t workspace;
    int wanted, active;
    struct job* next;
    int64_t sync[MAX_SYNC / 8] __attribute__((aligned(64)));
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static pthread_cond_t done = PTHREAD_COND_INITIALIZER;
static struct job* jobs;
static int helpers, idle;

static void before_fork(void) { pthread_mutex_lock(&lock); }

static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) /* fork copies no thread but the caller's */
{
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&work, NULL);
    pthread_cond_init(&done, NULL);
    jobs = NULL;
    helpers = idle = 0;
}

/* When the library is loaded: on first use another thread may be forking already. */
__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, in_parent, in_child);
}

static void unlink_job(struct job* job)
{
    for (struct job** at = &jobs; *at; at = &(*at)->next)
        if (*at == job) {
            *at = job->next;
            return;
        }
}

static int32_t enter(struct job* job)
{
    return job->launch->entry(job->launch->block, job->addresses, job->workspace,
                              (int64_t)(intptr_t)job->sync);
}

static void* help(void* unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!jobs) {
            idle++;
            pthread_cond_wait(&work, &lock);
            idle--;
        }
        struct job* job = jobs;
        job->active++;
        if (--job->wanted == 0)
            unlink_job(job);
        pthread_mutex_unlock(&lock);
        enter(job);
        pthread_mutex_lock(&lock);
        if (--job->active == 0)
            pthread_cond_broadcast(&done);
    }
    return NULL;
}

static void start_helpers(int wanted)
{
    sigset_t all, before;
    pthread_attr_t detached;
    if (pthread_attr_init(&detached))
        return;
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    sigfillset(&all); /* signals are the program's own */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (helpers < wanted && helpers < MAX_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, &detached, help, NULL))
            break;
        helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&detached);
}

int32_t normgrad_compute(const struct normgrad_launch* launch, int64_t* addresses, void* workspace)
{
    int64_t scratch = 0;
    if (launch->workspace_bytes) /* planned with room to begin at a cache line */
        scratch = ((int64_t)(intptr_t)workspace + 63) & ~(int64_t)63;
    if (launch->helpers <= 0 || launch->sync_bytes > MAX_SYNC)
        return launch->entry(launch->block, addresses, scratch, 0);
    struct job job = {.launch = launch, .addresses = addresses, .workspace = scratch};
    pthread_mutex_lock(&lock);
    if (helpers < launch->helpers)
        start_helpers(launch->helpers);
    job.wanted = launch->helpers;
    memset(job.sync, 0, (size_t)launch->sync_bytes);
    job.next = NULL;
    struct job** at = &jobs;
    while (*at)
        at = &(*at)->next;
    *at = &job;
    int wake = idle < job.wanted ? idle : job.wanted;
    while (wake-- > 0)
        pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
    int32_t status = enter(&job);
    pthread_mutex_lock(&lock);
    unlink_job(&job);
    while (job.active)
        pthread_cond_wait(&done, &lock);
    pthread_mutex_unlock(&lock);
    return status;
}
