/* SPDX-License-Identifier: Apache-2.0 */
/* kv_events.c - see kv_events.h.
 *
 *   turn:  1 look at what changed     told, and not so any more -> removed        new -> waiting
 *          2 once that is all:        waiting -> stored, after the blocks before it
 *
 * The log says which blocks changed, never to what: a block may have changed again since. A block that is stored takes what is
 * before it along, so the order in which blocks wait does not matter.
 *
 * Writing down events as the log has them was the other way: token ids would have to be copied into the log, and a reader that has
 * lost some would have to have everybody begin anew. */
#include "scheduler/kv_events.h"

#include "allocator/block_log.h"
#include "config/numbers.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    SLOTS = 1024,   /* twice what a turn stores */
    LOOKS = 16384,  /* changes and blocks that a turn looks at: a tenth of a millisecond */
    STORES = 512,   /* blocks that a turn stores: likewise */
    READ = 32,      /* changes at a time */
    ALIGNMENT = 64, /* of an event */
    CACHE_LINE = 64
};

static const double PATIENCE_S = 0.005; /* between two looks whether the ring has room */

struct kv_events {
    struct kv_events_options o;
    size_t slot_bytes;

    uint64_t *told;    /* [blocks] */
    uint64_t next;     /* number of the change in the log to be read next */
    uint32_t scanned;  /* blocks before it were looked at since the log lost some; blocks: all */
    uint32_t *waiting; /* [blocks] a queue of those to be stored, each once */
    uint32_t waiting_first, waiting_count;
    bool *waits;    /* [blocks] */
    uint32_t *path; /* [row_blocks] from a block back to the last one that is told */

    uint8_t *slots; /* [o.slots] of slot_bytes */
    uint32_t put;   /* slots that the engine has filled in; up to tail the publisher sees them */
    int fd;
    _Alignas(CACHE_LINE) _Atomic uint32_t tail; /* written by the engine */
    _Atomic uint64_t stored, removed, rescans;
    _Alignas(CACHE_LINE) _Atomic uint32_t head; /* written by the publisher */
    _Atomic uint64_t batches, replays;
};

static size_t slot_bytes_of(const struct kv_events_options *o)
{
    size_t bytes = sizeof(struct kv_event) + o->block_size * sizeof(uint32_t);
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static struct kv_event *slot(const struct kv_events *e, uint32_t number)
{
    return (struct kv_event *)(void *)(e->slots + (size_t)(number & (e->o.slots - 1)) * e->slot_bytes);
}

static uint32_t room(const struct kv_events *e)
{
    return e->o.slots - (e->put - atomic_load_explicit(&e->head, memory_order_acquire));
}

static void count_one(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* ---- engine thread --------------------------------------------------------------------------------- */

/* What is to be told of a block; false: nothing. A hash is never 0. */
static bool to_tell(const struct kv_events *e, const struct block_tables *tables, uint32_t id,
                    struct block_published *p)
{
    if (!block_tables_published(tables, id, p) || (p->salt_bytes && !e->o.salted))
        return false;
    p->hash += p->hash == 0;
    return true;
}

/* A block may have changed: tell that it is no more, or have it wait. There is room for one event. */
static void look_at(struct kv_events *e, const struct block_tables *tables, uint32_t id)
{
    struct block_published p;
    uint64_t hash = to_tell(e, tables, id, &p) ? p.hash : 0;
    if (e->told[id] && e->told[id] != hash) {
        struct kv_event *event = slot(e, e->put++);
        event->hash = e->told[id];
        event->stored = event->last = false;
        e->told[id] = 0;
        count_one(&e->removed);
    }
    if (!hash || e->told[id] || e->waits[id])
        return;
    uint32_t at = (uint32_t)(((uint64_t)e->waiting_first + e->waiting_count++) % e->o.blocks);
    e->waiting[at] = id;
    e->waits[id] = true;
}

/* Read the log; whether all of it has been, and all blocks looked at if it had lost some. */
static bool look(struct kv_events *e, struct block_tables *tables)
{
    struct block_log *log = block_tables_log(tables);
    struct block_change changes[READ];
    uint32_t looks = e->o.looks;
    if (e->next < block_log_first(log)) {
        e->next = log->number + 1;
        e->scanned = 0;
        count_one(&e->rescans);
    }
    for (; e->scanned < e->o.blocks && looks > 0 && room(e) > 0; looks--)
        look_at(e, tables, e->scanned++);
    while (e->next <= log->number && looks > 0 && room(e) > 0) {
        uint32_t n = block_log_read(log, &e->next, changes, smaller(smaller(READ, looks), room(e)));
        for (uint32_t i = 0; i < n; i++) {
            const struct block_change *c = &changes[i];
            if (change_is_of_block(c->kind) && c->published != c->published_before)
                look_at(e, tables, c->block);
        }
        looks -= n;
    }
    return e->next > log->number && e->scanned == e->o.blocks;
}

static void put_stored(struct kv_events *e, const struct block_published *p, uint32_t id)
{
    struct kv_event *event = slot(e, e->put++);
    event->hash = e->told[id] = p->hash;
    event->parent = p->parent == NO_BLOCK ? 0 : e->told[p->parent];
    event->stored = true;
    event->last = false;
    event->salt_bytes = (uint8_t)p->salt_bytes;
    memcpy(event->salt, p->salt, p->salt_bytes);
    memcpy(event->tokens, p->tokens, e->o.block_size * sizeof *p->tokens);
    count_one(&e->stored);
}

/* Store a block and those before it that are not told; as many as there is room for. Whether it is. */
static bool store(struct kv_events *e, const struct block_tables *tables, uint32_t id, uint32_t *stores)
{
    struct block_published p;
    uint32_t n = 0;
    for (uint32_t at = id; at != NO_BLOCK && !e->told[at] && to_tell(e, tables, at, &p); at = p.parent) {
        assert(n < e->o.row_blocks);
        e->path[n++] = at;
    }
    for (; n > 0 && *stores > 0 && room(e) > 0; --*stores) {
        uint32_t at = e->path[--n];
        bool published = to_tell(e, tables, at, &p);
        assert(published);
        (void)published;
        put_stored(e, &p, at);
    }
    return n == 0;
}

static void store_waiting(struct kv_events *e, const struct block_tables *tables)
{
    uint32_t stores = STORES;
    while (e->waiting_count > 0 && stores > 0 && room(e) > 0) {
        uint32_t id = e->waiting[e->waiting_first];
        if (!store(e, tables, id, &stores))
            return;
        e->waits[id] = false;
        e->waiting_first = (e->waiting_first + 1) % e->o.blocks;
        e->waiting_count--;
    }
}

bool kv_events_turn(struct kv_events *e, struct block_tables *tables)
{
    if (!e)
        return false;
    uint32_t before = e->put;
    if (look(e, tables))
        store_waiting(e, tables);
    if (e->put == before)
        return false;
    slot(e, e->put - 1)->last = true;
    atomic_store_explicit(&e->tail, e->put, memory_order_release);
    kv_events_wake(e);
    return true;
}

double kv_events_idle_s(const struct kv_events *e, struct block_tables *tables)
{
    if (!e ||
        (e->waiting_count == 0 && e->scanned == e->o.blocks && e->next > block_tables_log(tables)->number))
        return -1;
    return room(e) > 0 ? 0 : PATIENCE_S;
}

struct kv_events_counts kv_events_counts(const struct kv_events *e)
{
    if (!e)
        return (struct kv_events_counts){0};
    return (struct kv_events_counts){true,
                                     atomic_load(&e->stored),
                                     atomic_load(&e->removed),
                                     atomic_load(&e->batches),
                                     atomic_load(&e->replays),
                                     atomic_load(&e->rescans)};
}

/* ---- publisher's thread ---------------------------------------------------------------------------- */

uint32_t kv_events_batch(const struct kv_events *e)
{
    uint32_t head = atomic_load_explicit(&e->head, memory_order_relaxed), n = 0;
    if (head == atomic_load_explicit(&e->tail, memory_order_acquire))
        return 0;
    while (!slot(e, head + n++)->last)
        continue;
    return n;
}

const struct kv_event *kv_events_at(const struct kv_events *e, uint32_t i)
{
    return slot(e, atomic_load_explicit(&e->head, memory_order_relaxed) + i);
}

void kv_events_sent(struct kv_events *e, uint32_t count)
{
    uint32_t head = atomic_load_explicit(&e->head, memory_order_relaxed);
    atomic_store_explicit(&e->head, head + count, memory_order_release);
    count_one(&e->batches);
}

void kv_events_replayed(struct kv_events *e)
{
    count_one(&e->replays);
}

int kv_events_fd(const struct kv_events *e)
{
    return e->fd;
}

void kv_events_wake(struct kv_events *e)
{
    uint64_t one = 1;
    ssize_t wrote = write(e->fd, &one, sizeof one); /* fails when it is raised as high as it goes */
    (void)wrote;
}

/* ---- create and destroy ---------------------------------------------------------------------------- */

uint32_t kv_events_most(const struct kv_events_options *o)
{
    return o->slots ? o->slots : SLOTS;
}

uint64_t kv_events_bytes(const struct kv_events_options *o)
{
    return (uint64_t)o->blocks * (sizeof(uint64_t) + sizeof(uint32_t) + sizeof(bool)) +
           (uint64_t)o->row_blocks * sizeof(uint32_t) + (uint64_t)kv_events_most(o) * slot_bytes_of(o);
}

int kv_events_create(const struct kv_events_options *o, struct kv_events **result)
{
    struct kv_events *e = aligned_alloc(CACHE_LINE, sizeof *e);
    if (!e)
        return ATTND_NO_MEMORY;
    memset(e, 0, sizeof *e);
    e->o = *o;
    e->o.slots = kv_events_most(o);
    e->o.looks = o->looks ? o->looks : LOOKS;
    assert((e->o.slots & (e->o.slots - 1)) == 0);
    e->slot_bytes = slot_bytes_of(o);
    e->next = 1;
    e->scanned = o->blocks;
    e->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    e->told = calloc(o->blocks, sizeof *e->told);
    e->waiting = malloc(o->blocks * sizeof *e->waiting);
    e->waits = calloc(o->blocks, sizeof *e->waits);
    e->path = malloc(o->row_blocks * sizeof *e->path);
    e->slots = aligned_alloc(ALIGNMENT, (size_t)e->o.slots * e->slot_bytes);
    if (e->fd < 0 || !e->told || !e->waiting || !e->waits || !e->path || !e->slots) {
        kv_events_destroy(e);
        return ATTND_NO_MEMORY;
    }
    *result = e;
    return 0;
}

void kv_events_destroy(struct kv_events *e)
{
    if (!e)
        return;
    if (e->fd >= 0)
        close(e->fd);
    free(e->told);
    free(e->waiting);
    free(e->waits);
    free(e->path);
    free(e->slots);
    free(e);
}
