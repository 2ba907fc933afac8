/* Two numbers at the very end of memory: whoever reads a third one crashes. */
#ifndef EDGE_H
#define EDGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

static int64_t* edge(int64_t first, int64_t second)
{
    enum { PAGE = 4096 };
    char* pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + PAGE, PAGE, PROT_NONE);
    int64_t* numbers = (int64_t*)(void*)(pages + PAGE) - 2;
    numbers[0] = first;
    numbers[1] = second;
    return numbers;
}

#endif
