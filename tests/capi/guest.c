/* What is the program's own stays so: how SIGINT ends it, its arithmetic, its leaks. */
#define _GNU_SOURCE
#include <fenv.h>
#include <signal.h>

#include "layer.h"

static const int traps = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;

/* Gradients of numbers that have to be rounded. */
static void gradients(struct layer* l, float* into)
{
    char workspace[4096];
    uint64_t bytes = 0;
    aclOpExecutor* executor = NULL;
    l->rstd[0] = l->rstd[1] = 1 / 3.0f;
    EXPECT(layer_plan(l, &bytes, &executor), 0);
    EXPECT(bytes <= sizeof workspace, 1);
    EXPECT(aclnnLayerNormBackward(workspace, bytes, executor, NULL), 0);
    memcpy(into, l->dx, sizeof l->dx);
}

static void arithmetic(void)
{
    struct layer l;
    float plain[4], upward[4];
    EXPECT(feenableexcept(traps), 0);
    layer_make(&l); /* the first call: all of NumPy is loaded */
    EXPECT(layer_round(&l), 1);
    EXPECT(fegetexcept(), traps);
    EXPECT(fesetround(FE_UPWARD), 0);
    gradients(&l, upward);
    EXPECT(fegetround(), FE_UPWARD);
    EXPECT(fegetexcept(), traps);
    EXPECT(fesetenv(FE_DFL_ENV), 0);
    gradients(&l, plain);
    EXPECT(memcmp(plain, upward, sizeof plain), 0);
}

static void interrupt(sighandler_t wish)
{
    struct layer l;
    struct sigaction after;
    EXPECT(signal(SIGINT, wish) == SIG_ERR, 0);
    layer_make(&l);
    EXPECT(layer_round(&l), 1);
    EXPECT(sigaction(SIGINT, NULL, &after), 0);
    EXPECT(after.sa_handler == wish, 1);
    raise(SIGINT);
}

static void leaks(void)
{
    struct layer l;
    void* volatile kept = NULL;
    layer_make(&l);
    EXPECT(layer_round(&l), 1);
    kept = malloc(40);
    kept = NULL;
    (void)kept;
}

int main(int count, char** words)
{
    const char* part = count > 1 ? words[1] : "";
    if (!strcmp(part, "arithmetic"))
        arithmetic();
    else if (!strcmp(part, "leaks"))
        leaks();
    else
        interrupt(!strcmp(part, "ignores") ? SIG_IGN : SIG_DFL);
    if (!complaints)
        printf("right\n");
    return complaints != 0;
}
