/* Handles: numbers instead of pointers, so that a stale or invented one is found out, not read.
 *
 * A handle is tag (8 bits), kind (6), label (6), slot (20), generation (24): one number comes back
 * after four thousand million others. Every slot has one atomic word: generation, flags, and how
 * many calls are inside. An executor that is not repeatable is taken by the first call and gone
 * after it, whichever thread it is.
 */
#define _POSIX_C_SOURCE 200809L
#include "host.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#define TAG 0x4Eull /* no address of a program begins like this */
#define TAG_SHIFT 56
#define KIND_SHIFT 50
#define LABEL_SHIFT 44
#define KIND_MASK 63
#define LABEL_MASK 63
#define SLOT_SHIFT 24
#define SLOT_MASK 0xFFFFFull /* 20 bits */
#define GENERATION_MASK 0xFFFFFFull /* 24 bits */

#define REPEATABLE 1u
#define TAKEN 2u
#define ENDED 4u

#define CHUNK 4096u
#define CHUNKS ((SLOT_MASK + 1) / CHUNK)
#define MAX_EXECUTORS 65536 /* more are a leak: each holds a plan and its tensors */
/* A freed slot waits behind this many others, so that a generation lasts. */
#define RESTING 256

struct word {
    uint32_t generation;
    uint16_t flags;
    uint16_t inside;
};
_Static_assert(sizeof(struct word) == 8, "a slot's state must be one atomic word");
_Static_assert(sizeof(void*) == 8, "handles need 64-bit pointers");

struct slot {
    _Atomic(struct word) word;
    _Atomic(uint32_t) kind; /* kind and label as in the handle; 0: free */
    uint32_t next;
    void* payload;
};

struct list {
    uint32_t first, last, length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot* _Atomic chunks[CHUNKS];
static uint32_t used = 1; /* slot 0 is none */
static uint32_t executors;
static struct list resting, retired;

/* fork copies no thread but the caller's: it waits until nobody is inside, or the lock would be
 * held in the child by a thread that is not there. */
static void before_fork(void) { pthread_mutex_lock(&lock); }

static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

static struct slot* at(uint32_t index)
{
    struct slot* chunk = atomic_load_explicit(&chunks[index / CHUNK], memory_order_acquire);
    return chunk ? chunk + index % CHUNK : NULL;
}

static void append(struct list* list, uint32_t index)
{
    at(index)->next = 0;
    if (list->length++)
        at(list->last)->next = index;
    else
        list->first = index;
    list->last = index;
}

static uint32_t take_first(struct list* list)
{
    uint32_t index = list->first;
    list->first = at(index)->next;
    list->length--;
    return index;
}

static uint64_t number(uint32_t index, uint32_t generation, uint32_t kind)
{
    return TAG << TAG_SHIFT | (uint64_t)kind << LABEL_SHIFT | (uint64_t)index << SLOT_SHIFT |
           (generation & GENERATION_MASK);
}

int normgrad_tagged(uint64_t handle) { return handle >> TAG_SHIFT == TAG; }

static int kind_of(uint64_t handle)
{
    return normgrad_tagged(handle) ? (int)(handle >> KIND_SHIFT & KIND_MASK) : 0;
}

static int label_of(uint64_t handle) { return (int)(handle >> LABEL_SHIFT & LABEL_MASK); }

/* Kind and label as they stand in a handle. */
static uint32_t full_kind(int kind, int label)
{
    return (uint32_t)kind << (KIND_SHIFT - LABEL_SHIFT) | (uint32_t)label;
}

/* Whether a slot's word is still this handle's; asked again wherever another thread was faster. */
static int is_of(uint64_t handle, struct word word)
{
    return (word.generation & GENERATION_MASK) == (handle & GENERATION_MASK);
}

static struct slot* find(uint64_t handle, struct word* word)
{
    struct slot* slot;
    if (!normgrad_tagged(handle) || !(slot = at(handle >> SLOT_SHIFT & SLOT_MASK)))
        return NULL;
    if (atomic_load(&slot->kind) != full_kind(kind_of(handle), label_of(handle)))
        return NULL;
    *word = atomic_load(&slot->word);
    return is_of(handle, *word) ? slot : NULL;
}

static uint32_t fresh(void)
{
    if (resting.length > RESTING)
        return take_first(&resting);
    if (used <= SLOT_MASK) {
        struct slot* slot = at(used);
        if (!slot) {
            slot = calloc(CHUNK, sizeof *slot);
            if (slot)
                atomic_store_explicit(&chunks[used / CHUNK], slot, memory_order_release);
        }
        if (slot)
            return used++;
    }
    return resting.length ? take_first(&resting) : 0;
}

/* 0 when there is no room. */
static uint64_t handle_new(int kind, int label, void* payload)
{
    uint64_t handle = 0;
    pthread_mutex_lock(&lock);
    uint32_t index = kind == NORMGRAD_EXECUTOR && executors >= MAX_EXECUTORS ? 0 : fresh();
    if (index) {
        struct slot* slot = at(index);
        struct word word = atomic_load(&slot->word);
        uint32_t full = full_kind(kind, label);
        word.generation = (word.generation + 1) & GENERATION_MASK;
        word.flags = 0;
        word.inside = 0;
        executors += kind == NORMGRAD_EXECUTOR;
        slot->payload = payload;
        atomic_store(&slot->word, word);
        atomic_store(&slot->kind, full);
        handle = number(index, word.generation, full);
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

static void retire(uint64_t handle)
{
    pthread_mutex_lock(&lock);
    append(&retired, handle >> SLOT_SHIFT & SLOT_MASK);
    pthread_mutex_unlock(&lock);
}

/* Enter: 1, or 0 where the handle is dead or another call has it for itself. */
static int handle_begin(uint64_t handle)
{
    struct word old;
    struct slot* slot = find(handle, &old);
    while (slot && is_of(handle, old) && !(old.flags & (TAKEN | ENDED))) {
        struct word wish = old;
        wish.inside++;
        if (kind_of(handle) == NORMGRAD_EXECUTOR && !(old.flags & REPEATABLE))
            wish.flags |= TAKEN;
        if (!wish.inside)
            return 0;
        if (atomic_compare_exchange_weak(&slot->word, &old, wish))
            return 1;
    }
    return 0;
}

static void leave(uint64_t handle, int spend)
{
    struct word old, wish;
    struct slot* slot = find(handle, &old);
    if (!slot)
        return;
    do {
        wish = old;
        wish.inside--;
        if (old.flags & TAKEN)
            wish.flags = (uint16_t)(spend ? old.flags | ENDED : old.flags & ~TAKEN);
    } while (!atomic_compare_exchange_weak(&slot->word, &old, wish));
    if (wish.flags & ENDED && !wish.inside)
        retire(handle);
}

/* Leave after no work was done: a taken executor is free again. */
static void handle_cancel(uint64_t handle) { leave(handle, 0); }

/* Leave after the work: an executor that is not repeatable is spent. */
static void handle_finish(uint64_t handle) { leave(handle, 1); }

static int set_flag(uint64_t handle, uint16_t flag)
{
    struct word old, wish;
    struct slot* slot = find(handle, &old);
    if (!slot)
        return 0;
    do {
        if (!is_of(handle, old) || old.flags & (TAKEN | ENDED))
            return 0;
        wish = old;
        wish.flags |= flag;
    } while (!atomic_compare_exchange_weak(&slot->word, &old, wish));
    if (flag == ENDED && !wish.inside)
        retire(handle);
    return 1;
}

static int handle_end(uint64_t handle) { return set_flag(handle, ENDED); }

static int handle_repeatable(uint64_t handle) { return set_flag(handle, REPEATABLE); }

/* Ended handles that nobody is inside of: Python drops what they stood for. */
static int handles_retired(uint64_t* handles, int room)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    while (count < room && retired.length) {
        uint32_t index = take_first(&retired);
        struct slot* slot = at(index);
        uint32_t kind = atomic_load(&slot->kind);
        handles[count++] = number(index, atomic_load(&slot->word).generation, kind);
        executors -= kind >> (KIND_SHIFT - LABEL_SHIFT) == NORMGRAD_EXECUTOR;
        atomic_store(&slot->kind, 0);
        append(&resting, index);
    }
    pthread_mutex_unlock(&lock);
    return count;
}

struct normgrad_launch* normgrad_take(uint64_t handle, enum normgrad_kind kind)
{
    if (kind_of(handle) != (int)kind || !handle_begin(handle))
        return NULL;
    return at(handle >> SLOT_SHIFT & SLOT_MASK)->payload; /* alive while we are inside */
}

int normgrad_alive(uint64_t handle, enum normgrad_kind kind)
{
    struct word word;
    return kind_of(handle) == (int)kind && find(handle, &word) && !(word.flags & ENDED);
}

/* Faces: memory for handles that callers may read (device, device_id). It is never given back to
 * the system, so that a stale pointer can be looked at. An address has no generation: it is used
 * again when all have been used, the one that ended first before the others. */
struct face {
    int device;
    int device_id;
    _Atomic(uint64_t) handle;
    struct face* next;
};

#define FACES 65536
static struct face faces[FACES]; /* pages that no face has reached take no memory */
static size_t faces_used;
static struct face *face_first, *face_last;

static uintptr_t face_new(uint64_t handle, int device, int device_id)
{
    struct face* face = NULL;
    pthread_mutex_lock(&lock);
    if (faces_used < FACES) {
        face = &faces[faces_used++];
    } else if (face_first) {
        face = face_first;
        face_first = face->next;
    }
    if (face) {
        face->device = device;
        face->device_id = device_id;
        atomic_store(&face->handle, handle);
    }
    pthread_mutex_unlock(&lock);
    return (uintptr_t)face;
}

static struct face* known_face(uintptr_t address)
{
    uintptr_t offset = address - (uintptr_t)faces;
    return offset >= sizeof faces || offset % sizeof *faces ? NULL : (struct face*)address;
}

/* 0 for an address that is no live face. */
static uint64_t face_handle(uintptr_t address)
{
    struct face* face = known_face(address);
    return face ? atomic_load(&face->handle) : 0;
}

static void face_end(uintptr_t address)
{
    struct face* face = known_face(address);
    if (!face || !atomic_exchange(&face->handle, 0))
        return;
    pthread_mutex_lock(&lock);
    face->next = NULL;
    if (face_first)
        face_last->next = face;
    else
        face_first = face;
    face_last = face;
    pthread_mutex_unlock(&lock);
}

const struct normgrad_host normgrad_host = {
    handle_new,      kind_of,    label_of,          handle_begin,    handle_cancel, handle_finish,
    handle_end,      handle_repeatable, handles_retired, face_new, face_handle,   face_end,
    normgrad_ending,
};
