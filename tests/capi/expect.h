/* Complaints about what is not as expected, with the last sentence of the interface, RECENT(). */
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>

static int complaints;

#define EXPECT(got, want)                                                                       \
    do {                                                                                        \
        long long got_ = (long long)(got), want_ = (long long)(want);                           \
        if (got_ != want_) {                                                                    \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", __FILE__, __LINE__, #got,     \
                    got_, want_, RECENT());                                                     \
            complaints++;                                                                       \
        }                                                                                       \
    } while (0)

#endif
