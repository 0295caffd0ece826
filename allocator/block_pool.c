/* SPDX-License-Identifier: Apache-2.0 */
/* block_pool.c - a fixed pool of KV blocks, named by 32-bit id.
 *
 *   id:        0        1        2        3   ...   blocks-1
 *   block:  [ refs, generation, last step, fill, state, ... ]     32 bytes, two a cache line: an
 *                                                                 operation on a block touches one line
 *   refs:      1        0        2        0
 *   free:      0        1        0        1                       bitmap, lowest id first (id_bitmap.h)
 *
 *   ring:   [ - | 7 | - | 5 | 9 | - ... ]      cached blocks, oldest at the head; fenced ones have
 *                ^head          ^tail            another ring
 *
 * A block knows its position in the ring of its state. It leaves the middle (a prefix hit, an unpublish) by
 * changing its state, or by being at another position: the entry is a tombstone that the head skips. A ring
 * has room for twice the blocks; when it is full the tombstones are squeezed out, which the pushes since the
 * last time have paid for. When a step retires the ring of fenced blocks turns once: those of later steps go
 * to its end again.
 *
 * Whoever checks the pool in parts counts its blocks one after the other (struct block_pool_census). Each
 * function here that changes a block takes it out of that count and puts it in again, if it was counted.
 *
 *   I1  free + cached + held + fenced == blocks, each counted from the states; the slots filled are
 *       the sum over held blocks
 *   I3  a block is in the free bitmap or in one of the rings exactly when its state says so
 *   I7  a fenced block's step has not retired
 *
 * With an array per field, acquire and release of a random block among a million took 55 ns, five cache
 * misses; with the fields of a block side by side and huge pages under them see docs/PERFORMANCE.md. An
 * intrusive doubly linked list for the cached blocks was measured by others at 50 ns a pop and push at
 * a million blocks, against 9 ns for the ring. */
#include "allocator/block_pool.h"

#include "allocator/block_log.h"
#include "allocator/id_bitmap.h"
#include "config/mapping.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { PREFETCH_AHEAD = 12 }; /* blocks, in the loops over many */

struct block {
    uint32_t refs;
    uint32_t generation; /* counts acquisitions */
    uint64_t last_step;  /* newest step in which a former holder took part */
    uint16_t fill;       /* slots, of a held block */
    uint8_t state;       /* enum block_state */
    uint8_t published;
    uint32_t position;              /* in the ring of its state; modulo 2^32 */
    struct block_partials partials; /* empty unless it is held */
};

_Static_assert(sizeof(struct block) == 32, "two blocks a cache line");

/* Blocks in a state, in the order in which they came to be in it. */
struct ring {
    enum block_state state;
    uint32_t *ids; /* [ring_mask + 1] */
    uint64_t head, tail;
};

struct block_pool {
    uint32_t block_size;             /* token slots */
    struct block_pool_counts counts; /* but for the free ones, which the bitmap counts */
    uint64_t retired;                /* newest step that is done */
    block_pool_evict_fn on_evict;
    block_pool_fill_fn on_fill;
    void *cookie;
    struct id_bitmap free;
    struct block *block; /* [blocks] */
    uint64_t ring_mask;
    struct ring cached, fenced;
    struct block_pool_census *census; /* that counts the blocks below */
    uint32_t counted;                 /* this one */
    struct block_log *log;            /* NULL: changes are not noted */
    block_pool_vacated_fn vacated;    /* NULL: nobody wants to know */
    void *vacated_cookie;
};

/* ---- the census ---------------------------------------------------------------------------------- */

/* A block counts in a census, or, by UINT32_MAX, does not any more. */
static void count_block(struct block_pool_census *c, const struct block *block, uint32_t by)
{
    c->states[block->state] += by;
    c->shared += block->refs > 1 ? by : 0;
    c->filled += (uint64_t)(int32_t)by * (block->state == BLOCK_HELD ? block->fill : 0);
}

/* Count these blocks, none twice, as far as they were counted, or, by UINT32_MAX, do so no more. */
__attribute__((cold, noinline)) static void recount(struct block_pool *pool, const uint32_t *ids, uint32_t n,
                                                    uint32_t by)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] < pool->counted)
            count_block(pool->census, &pool->block[ids[i]], by);
    }
}

/* These blocks are about to change; they have changed. Around the loops over thousands, not within: there
 * it costs half a nanosecond a block. */
static inline void begin_changes(struct block_pool *pool, const uint32_t *ids, uint32_t n)
{
    if (pool->counted)
        recount(pool, ids, n, UINT32_MAX);
}

static inline void end_changes(struct block_pool *pool, const uint32_t *ids, uint32_t n)
{
    if (pool->counted)
        recount(pool, ids, n, 1);
}

/* ---- the log --------------------------------------------------------------------------------------- */

/* A block is about to be in this state, with so many references. Written where it stays: a struct that is made first and
 * copied waits for its own stores, 20 ns. */
static inline void note(const struct block_pool *pool, enum change_kind kind, uint32_t id,
                        enum block_state state, uint32_t refs)
{
    const struct block *block = &pool->block[id];
    const struct block_log *log = pool->log;
    bool revived = kind == CHANGE_SHARED && refs == 1, taken = kind == CHANGE_TAKEN,
         stays = kind != CHANGE_UNPUBLISHED && kind != CHANGE_EVICTED && kind != CHANGE_FREED,
         named = log->row < log->rows;
    struct block_change *c = block_log_next(pool->log);
    c->time_us = log->time_us & ((UINT64_C(1) << 48) - 1);
    c->kind = kind;
    c->state = state & 7;
    c->state_before = block->state & 7;
    c->published = kind == CHANGE_PUBLISHED || (block->published && stays);
    c->published_before = block->published & 1;
    c->sequence = named ? log->names[log->row].sequence : 0;
    c->key = named ? log->names[log->row].key : 0;
    c->block = id;
    c->generation = block->generation + taken;
    c->refs = refs;
    c->from = 0;
    c->fill = (uint16_t)(taken ? 0 : revived ? pool->block_size : block->fill);
    c->fill_before = block->fill;
}

/* These blocks are about to be taken. */
__attribute__((noinline)) static void note_taken(const struct block_pool *pool, const uint32_t *ids,
                                                 uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        note(pool, CHANGE_TAKEN, ids[i], BLOCK_HELD, 1);
}

/* These are about to get a reference more. */
__attribute__((noinline)) static void note_retained(const struct block_pool *pool, const uint32_t *ids,
                                                    uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        note(pool, CHANGE_SHARED, ids[i], BLOCK_HELD, pool->block[ids[i]].refs + 1);
}

/* A block is about to be evicted, which is not what the row does that wants one. */
static void note_evicted(const struct block_pool *pool, uint32_t id)
{
    uint32_t row = pool->log->row;
    block_log_enter(pool->log, UINT32_MAX);
    note(pool, CHANGE_EVICTED, id, BLOCK_FREE, 0);
    block_log_enter(pool->log, row);
}

/* A block about which nobody cares any more is about to settle: cached if published, else free. */
static void note_settled(const struct block_pool *pool, uint32_t id)
{
    bool published = pool->block[id].published;
    note(pool, published ? CHANGE_CACHED : CHANGE_FREED, id, published ? BLOCK_CACHED : BLOCK_FREE, 0);
}

/* These are about to lose a reference, from the last to the first, whose owner takes part in steps up to `step`. */
__attribute__((noinline)) static void note_released(const struct block_pool *pool, const uint32_t *ids,
                                                    uint32_t n, uint64_t step)
{
    for (uint32_t i = n; i-- > 0;) {
        const struct block *block = &pool->block[ids[i]];
        if (block->refs > 1)
            note(pool, CHANGE_UNSHARED, ids[i], BLOCK_HELD, block->refs - 1);
        else if (step > pool->retired || block->last_step > pool->retired)
            note(pool, CHANGE_FENCED, ids[i], BLOCK_FENCED, 0);
        else
            note_settled(pool, ids[i]);
    }
}

/* ---- rings --------------------------------------------------------------------------------------- */

static uint32_t *ring_at(const struct block_pool *pool, const struct ring *ring, uint64_t at)
{
    return &ring->ids[at & pool->ring_mask];
}

static bool ring_is_live(const struct block_pool *pool, const struct ring *ring, uint64_t at)
{
    const struct block *block = &pool->block[*ring_at(pool, ring, at)];
    return block->state == ring->state && block->position == (uint32_t)at;
}

static void ring_put(struct block_pool *pool, struct ring *ring, uint64_t at, uint32_t id)
{
    *ring_at(pool, ring, at) = id;
    pool->block[id].position = (uint32_t)at;
}

/* Squeeze the tombstones out, keeping the order. */
static void ring_compact(struct block_pool *pool, struct ring *ring)
{
    uint64_t to = ring->head;
    for (uint64_t from = ring->head; from < ring->tail; from++) {
        if (ring_is_live(pool, ring, from))
            ring_put(pool, ring, to++, *ring_at(pool, ring, from));
    }
    ring->tail = to;
}

/* Enter a block that is coming to be in the ring's state. */
static void ring_push(struct block_pool *pool, struct ring *ring, uint32_t id)
{
    if (ring->tail - ring->head > pool->ring_mask)
        ring_compact(pool, ring);
    ring_put(pool, ring, ring->tail++, id);
    pool->block[id].state = (uint8_t)ring->state;
}

/* Take the oldest live entry; there must be one. */
static uint32_t ring_pop(struct block_pool *pool, struct ring *ring)
{
    for (;;) {
        assert(ring->head < ring->tail);
        uint64_t at = ring->head++;
        if (ring_is_live(pool, ring, at))
            return *ring_at(pool, ring, at);
    }
}

/* ---- states -------------------------------------------------------------------------------------- */

/* A block that nobody holds and no step touches: cached if published, else free. */
static void settle(struct block_pool *pool, uint32_t id)
{
    if (pool->block[id].published) {
        pool->counts.cached++;
        ring_push(pool, &pool->cached, id);
    } else {
        pool->block[id].state = BLOCK_FREE;
        id_bitmap_put(&pool->free, id);
        if (pool->vacated)
            pool->vacated(id, 0, pool->block_size, pool->vacated_cookie);
    }
}

/* Free the oldest cached block. */
static void evict(struct block_pool *pool)
{
    uint32_t id = ring_pop(pool, &pool->cached);
    begin_changes(pool, &id, 1);
    if (pool->log)
        note_evicted(pool, id);
    pool->counts.cached--;
    pool->on_evict(id, pool->cookie);
    pool->block[id].published = 0;
    pool->counts.evictions++;
    settle(pool, id);
    end_changes(pool, &id, 1);
}

/* ---- public -------------------------------------------------------------------------------------- */

int block_pool_create(uint32_t blocks, uint32_t block_size, block_pool_evict_fn on_evict,
                      block_pool_fill_fn on_fill, void *cookie, struct block_pool **result)
{
    struct block_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return ATTND_NO_MEMORY;
    uint64_t ring = 2;
    while (ring < 2 * (uint64_t)blocks)
        ring *= 2;
    pool->counts.blocks = blocks;
    pool->block_size = block_size;
    pool->on_evict = on_evict;
    pool->on_fill = on_fill;
    pool->cookie = cookie;
    pool->ring_mask = ring - 1;
    pool->block = mapping_create(blocks * sizeof *pool->block, 1);
    pool->cached = (struct ring){BLOCK_CACHED, .ids = mapping_create(ring * sizeof *pool->cached.ids, 1)};
    pool->fenced = (struct ring){BLOCK_FENCED, .ids = mapping_create(ring * sizeof *pool->fenced.ids, 1)};
    if (!pool->block || !pool->cached.ids || !pool->fenced.ids || id_bitmap_init(&pool->free, blocks) != 0) {
        block_pool_destroy(pool);
        return ATTND_NO_MEMORY;
    }
    *result = pool;
    return 0;
}

void block_pool_destroy(struct block_pool *pool)
{
    if (!pool)
        return;
    mapping_destroy(pool->block, pool->counts.blocks * sizeof *pool->block);
    mapping_destroy(pool->cached.ids, (pool->ring_mask + 1) * sizeof *pool->cached.ids);
    mapping_destroy(pool->fenced.ids, (pool->ring_mask + 1) * sizeof *pool->fenced.ids);
    id_bitmap_deinit(&pool->free);
    free(pool);
}

void block_pool_set_log(struct block_pool *pool, struct block_log *log)
{
    pool->log = log;
}

void block_pool_set_vacated(struct block_pool *pool, block_pool_vacated_fn vacated, void *cookie)
{
    pool->vacated = vacated;
    pool->vacated_cookie = cookie;
}

void block_pool_note(const struct block_pool *pool, unsigned kind, uint32_t id, uint32_t from)
{
    if (!pool->log)
        return;
    const struct block *block = &pool->block[id];
    note(pool, (enum change_kind)kind, id, (enum block_state)block->state, block->refs);
    pool->log->ring[pool->log->number & pool->log->mask].from = from;
}

int block_pool_acquire(struct block_pool *pool, uint32_t n, uint32_t *ids)
{
    if (n > block_pool_available(pool)) {
        pool->counts.failures++;
        return ATTND_NO_BLOCKS;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (pool->free.count == 0)
            evict(pool);
        ids[i] = id_bitmap_take(&pool->free);
        __builtin_prefetch(&pool->block[ids[i]], 1);
    }
    begin_changes(pool, ids, n);
    if (pool->log)
        note_taken(pool, ids, n);
    for (uint32_t i = 0; i < n; i++) {
        struct block *block = &pool->block[ids[i]];
        assert(block->refs == 0 && block->state == BLOCK_FREE);
        block->state = BLOCK_HELD;
        block->refs = 1;
        block->generation++;
        block->fill = 0;
    }
    pool->counts.held += n;
    end_changes(pool, ids, n);
    return 0;
}

/* The first reference to a block that waits, published, for somebody to want it again. */
static void revive(struct block_pool *pool, uint32_t id)
{
    struct block *block = &pool->block[id];
    assert(block->published && (block->state == BLOCK_CACHED || block->state == BLOCK_FENCED));
    if (block->state == BLOCK_CACHED)
        pool->counts.cached--;
    else
        pool->counts.fenced--;
    block->state = BLOCK_HELD;
    block->fill = (uint16_t)pool->block_size;
    pool->counts.held++;
    pool->counts.filled += block->fill;
}

void block_pool_retain(struct block_pool *pool, const uint32_t *ids, uint32_t n)
{
    uint32_t newly_shared = 0;
    begin_changes(pool, ids, n);
    if (pool->log)
        note_retained(pool, ids, n);
    for (uint32_t i = 0; i < n; i++) {
        struct block *block = &pool->block[ids[i]];
        if (block->refs == 0)
            revive(pool, ids[i]);
        newly_shared += block->refs++ == 1;
    }
    pool->counts.shared += newly_shared;
    end_changes(pool, ids, n);
}

/* The last reference to a block is gone. */
static void retire_block(struct block_pool *pool, uint32_t id)
{
    struct block *block = &pool->block[id];
    pool->counts.held--;
    pool->counts.filled -= block->fill;
    if (block->last_step > pool->retired) {
        pool->counts.fenced++;
        ring_push(pool, &pool->fenced, id);
    } else {
        settle(pool, id);
    }
}

static void set_fill(struct block_pool *pool, uint32_t id, uint32_t slots)
{
    struct block *block = &pool->block[id];
    assert(block->state == BLOCK_HELD);
    if (pool->log && slots != block->fill)
        block_log_fill(pool->log, id, block->fill);
    if (pool->vacated && slots < block->fill && !block->published) /* else somebody may find it whole */
        pool->vacated(id, slots, block->fill, pool->vacated_cookie);
    pool->counts.filled += slots;
    pool->counts.filled -= block->fill;
    block->fill = (uint16_t)slots;
}

/* All holders of a block are partial, and one of them or another has fewer slots than before. */
static void lower_fill(struct block_pool *pool, uint32_t id)
{
    assert(pool->block[id].state == BLOCK_HELD && pool->block[id].refs == pool->block[id].partials.count);
    set_fill(pool, id, pool->on_fill(id, pool->cookie));
}

void block_pool_release(struct block_pool *pool, const uint32_t *ids, uint32_t n, uint64_t step)
{
    struct block *blocks = pool->block;
    uint32_t no_more_shared = 0;
    assert(step <= pool->retired + STEPS_IN_FLIGHT_MAX);
    begin_changes(pool, ids, n);
    if (pool->log)
        note_released(pool, ids, n, step);
    for (uint32_t i = n; i-- > 0;) {
        struct block *block = &blocks[ids[i]];
        if (i >= PREFETCH_AHEAD)
            __builtin_prefetch(&blocks[ids[i - PREFETCH_AHEAD]], 1);
        if (step > block->last_step)
            block->last_step = step;
        no_more_shared += block->refs == 2;
        /* one comparison finds the last reference, a block with only partial holders left, and a
         * reference too many: -1, for which lower_fill() aborts */
        int32_t left = (int32_t)--block->refs;
        if (left > (int32_t)block->partials.count)
            continue;
        if (left == 0)
            retire_block(pool, ids[i]);
        else
            lower_fill(pool, ids[i]);
    }
    pool->counts.shared -= no_more_shared;
    end_changes(pool, ids, n);
}

void block_pool_set_fill(struct block_pool *pool, uint32_t id, uint32_t slots)
{
    uint64_t before = pool->counts.filled;
    set_fill(pool, id, slots);
    if (id < pool->counted)
        pool->census->filled += pool->counts.filled - before;
}

void block_pool_raise_fill(struct block_pool *pool, uint32_t id, uint32_t slots)
{
    if (slots > pool->block[id].fill)
        block_pool_set_fill(pool, id, slots);
}

void block_pool_lower_fill(struct block_pool *pool, uint32_t id)
{
    if (pool->block[id].refs == pool->block[id].partials.count)
        block_pool_set_fill(pool, id, pool->on_fill(id, pool->cookie));
}

struct block_partials *block_pool_partials(struct block_pool *pool, uint32_t id)
{
    assert(pool->block[id].state == BLOCK_HELD);
    return &pool->block[id].partials;
}

void block_pool_publish(struct block_pool *pool, uint32_t id)
{
    assert(pool->block[id].state == BLOCK_HELD && !pool->block[id].published);
    if (pool->log)
        note(pool, CHANGE_PUBLISHED, id, BLOCK_HELD, pool->block[id].refs);
    pool->block[id].published = 1;
}

void block_pool_unpublish(struct block_pool *pool, uint32_t id)
{
    struct block *block = &pool->block[id];
    bool cached = block->state == BLOCK_CACHED;
    assert(block->published);
    if (pool->log)
        note(pool, cached ? CHANGE_FREED : CHANGE_UNPUBLISHED, id,
             cached ? BLOCK_FREE : (enum block_state)block->state, block->refs);
    block->published = 0;
    if (pool->vacated && block->state == BLOCK_HELD)
        pool->vacated(id, block->fill, pool->block_size, pool->vacated_cookie);
    if (!cached)
        return;
    begin_changes(pool, &id, 1);
    pool->counts.cached--;
    settle(pool, id);
    end_changes(pool, &id, 1);
}

void block_pool_retire(struct block_pool *pool, uint64_t step)
{
    assert(step >= pool->retired && step <= pool->retired + STEPS_IN_FLIGHT_MAX);
    struct ring *ring = &pool->fenced;
    pool->retired = step;
    for (uint64_t end = ring->tail; ring->head < end;) {
        uint64_t at = ring->head++;
        uint32_t id = *ring_at(pool, ring, at);
        if (!ring_is_live(pool, ring, at))
            continue;
        if (pool->block[id].last_step > step) {
            ring_push(pool, ring, id);
            continue;
        }
        begin_changes(pool, &id, 1);
        if (pool->log)
            note_settled(pool, id);
        pool->counts.fenced--;
        settle(pool, id);
        end_changes(pool, &id, 1);
    }
}

uint64_t block_pool_retired(const struct block_pool *pool)
{
    return pool->retired;
}

uint32_t block_pool_refs(const struct block_pool *pool, uint32_t id)
{
    return pool->block[id].refs;
}

uint32_t block_pool_fill(const struct block_pool *pool, uint32_t id)
{
    const struct block *block = &pool->block[id];
    return block->refs == 0 && block->published ? pool->block_size : block->fill;
}

uint32_t block_pool_kept_fill(const struct block_pool *pool, uint32_t id)
{
    return pool->block[id].fill;
}

uint32_t block_pool_generation(const struct block_pool *pool, uint32_t id)
{
    return pool->block[id].generation;
}

enum block_state block_pool_state(const struct block_pool *pool, uint32_t id)
{
    return (enum block_state)pool->block[id].state;
}

bool block_pool_is_published(const struct block_pool *pool, uint32_t id)
{
    return pool->block[id].published;
}

struct block_past block_pool_now(const struct block_pool *pool, uint32_t id)
{
    return (struct block_past){.refs = block_pool_refs(pool, id),
                               .fill = (uint16_t)block_pool_kept_fill(pool, id),
                               .state = (uint8_t)block_pool_state(pool, id),
                               .published = block_pool_is_published(pool, id)};
}

uint32_t block_pool_available(const struct block_pool *pool)
{
    return pool->free.count + pool->counts.cached;
}

struct block_pool_counts block_pool_counts(const struct block_pool *pool)
{
    struct block_pool_counts counts = pool->counts;
    counts.free = pool->free.count;
    return counts;
}

uint32_t block_pool_trim(struct block_pool *pool)
{
    uint32_t count = pool->counts.cached;
    while (pool->counts.cached)
        evict(pool);
    return count;
}

/* ---- invariants ---------------------------------------------------------------------------------- */

/* How many entries of the ring of its state come before a block's. */
static uint32_t place_in_ring(const struct block_pool *pool, const struct ring *ring, uint32_t id)
{
    return pool->block[id].position - (uint32_t)ring->head;
}

static bool is_in_ring(const struct block_pool *pool, const struct ring *ring, uint32_t id)
{
    return place_in_ring(pool, ring, id) < ring->tail - ring->head &&
           *ring_at(pool, ring, pool->block[id].position) == id;
}

uint32_t block_pool_rank(struct block_pool *pool, uint32_t id)
{
    struct ring *ring = &pool->cached;
    uint64_t n = ring->tail - ring->head;
    assert(pool->block[id].state == BLOCK_CACHED);
    if (n != pool->counts.cached && n <= BLOCK_POOL_EXACT_RANKS)
        ring_compact(pool, ring);
    return place_in_ring(pool, ring, id);
}

bool block_pool_leaves_before(const struct block_pool *pool, uint32_t id, uint32_t other)
{
    assert(pool->block[id].state == BLOCK_CACHED && pool->block[other].state == BLOCK_CACHED);
    return place_in_ring(pool, &pool->cached, id) < place_in_ring(pool, &pool->cached, other);
}

const char *block_pool_check(const struct block_pool *pool, uint32_t id, struct block_pool_census *census)
{
    const struct block *block = &pool->block[id];
    enum block_state state = (enum block_state)block->state;
    count_block(census, block, 1);
    if ((state == BLOCK_HELD) != (block->refs > 0))
        return "I3: a block is held without a reference, or the other way round";
    if ((state == BLOCK_FREE) != id_bitmap_has(&pool->free, id))
        return "I3: the free bitmap differs from a block's state";
    if (block->published ? state == BLOCK_FREE : state == BLOCK_CACHED)
        return "I6: a free block is published, or a cached one is not";
    if (state == BLOCK_CACHED && !is_in_ring(pool, &pool->cached, id))
        return "I3: a cached block is not in its ring";
    if (state == BLOCK_FENCED && !is_in_ring(pool, &pool->fenced, id))
        return "I3: a fenced block is not in its ring";
    if (state == BLOCK_FENCED && block->last_step <= pool->retired)
        return "I7: a fence outlives its step";
    return NULL;
}

void block_pool_watch(struct block_pool *pool, struct block_pool_census *census, uint32_t counted)
{
    pool->census = census;
    pool->counted = counted;
}

const char *block_pool_check_census(const struct block_pool *pool, const struct block_pool_census *census)
{
    const struct block_pool_counts *counts = &pool->counts;
    if (census->states[BLOCK_FREE] != pool->free.count || census->states[BLOCK_HELD] != counts->held ||
        census->states[BLOCK_CACHED] != counts->cached || census->states[BLOCK_FENCED] != counts->fenced ||
        census->shared != counts->shared || census->filled != counts->filled)
        return "I1: a counter differs from the states";
    return id_bitmap_fault(&pool->free);
}
