/* What the library and its Python side share. cffi reads the part between the markers. */
#ifndef NORMGRAD_HOST_H
#define NORMGRAD_HOST_H

#include <stddef.h>
#include <stdint.h>

/* cffi: begin */
enum normgrad_kind {
    NORMGRAD_TENSOR = 1,
    NORMGRAD_BOOL_ARRAY = 2,
    NORMGRAD_INT_ARRAY = 3,
    NORMGRAD_EXECUTOR = 4,
    NORMGRAD_STREAM = 5,
    NORMGRAD_CONTEXT = 6,
    NORMGRAD_RT_STREAM = 7,
    NORMGRAD_TENSOR_DESCRIPTOR = 8,
    NORMGRAD_HANDLE = 9,
    NORMGRAD_DESCRIPTOR = 10,
    NORMGRAD_SCALAR = 11,
    NORMGRAD_TENSOR_LIST = 12,
    NORMGRAD_SCALAR_LIST = 13,
    NORMGRAD_FLOAT_ARRAY = 14,
    NORMGRAD_EVENT = 15,
    NORMGRAD_RT_EVENT = 16
};

/* Two tensors that must not meet, by role; same_view: unless they are the very same view. */
struct normgrad_meeting {
    int8_t result;
    int8_t other;
    int8_t same_view;
};

/* A plan with a compiled entry, as C runs it. Owned by Python, which keeps `block` alive too. */
struct normgrad_launch {
    int32_t (*entry)(int64_t* block, int64_t* addresses, int64_t workspace, int64_t sync);
    int64_t* block;
    uint64_t workspace_bytes;
    int32_t op;
    int32_t helpers;
    int64_t sync_bytes;
    int64_t addresses[22];
    int64_t low[22];
    int64_t high[22];
    int64_t itemsize[22]; /* low, high and this where addresses come with the call */
    int32_t meetings;
    struct normgrad_meeting meeting[32];
    /* One of several plans in a row: the next one, where in the workspace its own begins, and where
     * there, more 1, scratch tensors lie that other plans read or write; 0 for none. */
    int32_t in_a_row;
    struct normgrad_launch* next;
    int64_t offset;
    int64_t scratch[22];
};
/* cffi: end */

enum { NORMGRAD_ROLES = 22 }; /* as in normgrad.core.spec, a test compares them */
_Static_assert(sizeof(((struct normgrad_launch*)0)->addresses) == 8 * NORMGRAD_ROLES,
               "a place for every role");

/* What Python may call in the library. */
struct normgrad_host {
    uint64_t (*handle_new)(int kind, int label, void* payload);
    int (*handle_kind)(uint64_t handle);
    int (*handle_label)(uint64_t handle);
    int (*handle_begin)(uint64_t handle);
    void (*handle_cancel)(uint64_t handle);
    void (*handle_finish)(uint64_t handle);
    int (*handle_end)(uint64_t handle);
    int (*handle_repeatable)(uint64_t handle);
    int (*handles_retired)(uint64_t* handles, int room);
    uintptr_t (*face_new)(uint64_t handle, int device, int device_id);
    uint64_t (*face_handle)(uintptr_t face);
    void (*face_end)(uintptr_t face);
    int (*program_ending)(void);
};

/* registry.c: numbers that stand for objects. */
extern const struct normgrad_host normgrad_host;
struct normgrad_launch* normgrad_take(uint64_t handle, enum normgrad_kind kind);
int normgrad_alive(uint64_t handle, enum normgrad_kind kind);
int normgrad_tagged(uint64_t handle);

/* start.c: whether Python runs and the table is filled; the reason if not. */
int normgrad_ready(void);
const char* normgrad_recent(void);

/* exit.c: to be called when Python may have loaded libraries; whether the program is ending. */
void normgrad_watch_exit(void);
int normgrad_ending(void);

/* pool.c: the entry, with as many helpers as are idle. */
int32_t normgrad_compute(const struct normgrad_launch* launch, int64_t* addresses,
                         void* workspace);

#endif
