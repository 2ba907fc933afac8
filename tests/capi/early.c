/* Forks while another thread makes the first call: the child is told, and does not wait for it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "acl/acl.h"

static void* first(void* status)
{
    *(int*)status = aclInit(NULL);
    return NULL;
}

int main(void)
{
    pthread_t thread;
    const struct timespec moment = {0, 1000000};
    int status = -1, started = -1;
    pthread_create(&thread, NULL, first, &started);
    while (!dlsym(RTLD_DEFAULT, "Py_IsInitialized")) /* its imports are still to come */
        nanosleep(&moment, NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        int refused = aclrtSetDevice(0) == ACL_ERROR_INTERNAL_ERROR;
        _exit(!refused || !strstr(aclGetRecentErrMsg(), "forked while another thread"));
    }
    waitpid(child, &status, 0);
    pthread_join(thread, NULL);
    printf("child %#x, parent %d\n", status, started);
    return status != 0 || started != 0;
}
