/* A slot that gets a new owner while a call for the old one is between its look and its change. */
#include <stdatomic.h>
static void meanwhile(void);
#undef atomic_compare_exchange_weak
#define atomic_compare_exchange_weak(object, old, wish)                                        \
    (meanwhile(), atomic_compare_exchange_strong(object, old, wish))
#include "registry.c"

#include <stdio.h>

int normgrad_ending(void) { return 0; }

static uint64_t victim, heir;

/* What another thread may do: end the handle, and make others until one has its slot. */
static void meanwhile(void)
{
    uint64_t gone = victim, collected;
    if (!gone)
        return;
    victim = 0;
    handle_end(gone);
    handles_retired(&collected, 1);
    do {
        heir = handle_new(NORMGRAD_EXECUTOR, 0, NULL);
        if ((heir ^ gone) >> SLOT_SHIFT) {
            handle_end(heir);
            handles_retired(&collected, 1);
        }
    } while ((heir ^ gone) >> SLOT_SHIFT);
}

int main(void)
{
    int (*const calls[])(uint64_t) = {handle_begin, handle_end, handle_repeatable};
    for (int i = 0; i < 3; i++) {
        struct word word;
        uint64_t handle = victim = handle_new(NORMGRAD_EXECUTOR, 0, NULL);
        if (calls[i](handle) || !find(heir, &word) || word.flags || word.inside) {
            printf("call %d for an ended handle has met the next one in its slot\n", i);
            return 1;
        }
        handle_end(heir);
    }
    return 0;
}
