/* The roads that bypass Python. */
#ifndef NORMGRAD_RUN_H
#define NORMGRAD_RUN_H

#include "host.h"

#include <fenv.h>
#include <pthread.h>

#include "aclnn/aclnn_base.h"
#include "infiniop.h"

#define NORMGRAD_TO_PYTHON (-1) /* no status of the interface */

aclnnStatus normgrad_stage_two(int op, void* workspace, uint64_t workspace_size,
                               aclOpExecutor* executor, aclrtStream stream);
/* `data` are `count` addresses; each is of the role whose place `roles` has. */
infiniStatus_t normgrad_infiniop(int op, struct InfiniopDescriptor* desc, void* workspace,
                                 size_t workspace_size, const void* const* data,
                                 const int8_t* roles, int count, void* stream, int* to_python);

/* A whole call. A thread that is cancelled inside would keep our locks, or Python's: it goes when it
 * is back. Traps, rounding and flushed subnormals are the program's own and wait outside: NumPy
 * overflows on purpose while it is loaded, kernels compute lanes that nobody reads. */
struct normgrad_outside {
    int cancel, moved;
    fenv_t arithmetic;
};

/* LeakSanitizer's, in a program that has it: Python does not end, what it keeps is no leak. */
extern void __lsan_disable(void) __attribute__((weak));
extern void __lsan_enable(void) __attribute__((weak));

static inline int normgrad_plain(void)
{
#ifdef __x86_64__
    return (__builtin_ia32_stmxcsr() & 0xFFC0) == 0x1F80; /* 1 ns; changing it takes 500 */
#else
    return 0;
#endif
}

static inline void normgrad_enter(struct normgrad_outside* before)
{
    before->cancel = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before->cancel);
    before->moved = !normgrad_plain();
    if (before->moved) {
        fegetenv(&before->arithmetic);
        fesetenv(FE_DFL_ENV);
    }
    if (__lsan_disable)
        __lsan_disable();
}

static inline void normgrad_leave(struct normgrad_outside* before)
{
    if (__lsan_enable)
        __lsan_enable();
    if (before->moved)
        fesetenv(&before->arithmetic);
    pthread_setcancelstate(before->cancel, NULL);
}

#define NORMGRAD_WHOLE                                                                         \
    __attribute__((cleanup(normgrad_leave))) struct normgrad_outside before;                   \
    normgrad_enter(&before)

#endif
