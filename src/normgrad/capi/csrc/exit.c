/* Whether the program is ending: from then on nothing is planned.
 *
 * Handlers of exit run last in, first out. Ours must run before those of the libraries that Python
 * has loaded, of which the compiler is one: what it needs is gone after them, while the program's
 * own destructors may still call.
 */
#define _GNU_SOURCE
#include "host.h"

#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_int ending;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long long watched; /* how many libraries had been loaded by then */

static void end(void) { atomic_store(&ending, 1); }

/* fork waits: a child would find the loader's own lock held by a thread that is not there. */
static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static int read_loads(struct dl_phdr_info* info, size_t size, void* loads)
{
    (void)size;
    *(unsigned long long*)loads = info->dlpi_adds;
    return 1;
}

void normgrad_watch_exit(void)
{
    unsigned long long loads = 0;
    pthread_mutex_lock(&lock);
    dl_iterate_phdr(read_loads, &loads);
    if (watched != loads && atexit(end) == 0)
        watched = loads;
    pthread_mutex_unlock(&lock);
}

int normgrad_ending(void) { return atomic_load(&ending); }
