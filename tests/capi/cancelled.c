/* A thread that is cancelled before it calls: whatever it reads or waits for inside of the library
 * would be its end, with locks held. It comes back, goes then, and others go on. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "layer.h"

static void* cancelled(void* right)
{
    struct layer l;
    pthread_cancel(pthread_self());
    EXPECT(aclInit(NULL) || aclrtSetDevice(0), 0); /* starts Python */
    layer_make(&l);
    *(int*)right = layer_round(&l); /* loads a kernel */
    EXPECT(layer_drop(&l), 0);
    pthread_testcancel();
    return NULL;
}

int main(void)
{
    pthread_t thread;
    struct layer l;
    void* end = NULL;
    int right = 0, state = -1;
    alarm(60);
    pthread_create(&thread, NULL, cancelled, &right);
    pthread_join(thread, &end);
    EXPECT(end == PTHREAD_CANCELED && right, 1);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    EXPECT(aclrtSetDevice(0), 0);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    EXPECT(state, PTHREAD_CANCEL_DISABLE); /* the caller's own choice */
    layer_make(&l);
    EXPECT(layer_round(&l), 1);
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
