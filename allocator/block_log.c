/* SPDX-License-Identifier: Apache-2.0 */
/* block_log.c - see block_log.h.
 *
 *     ring    [ .. | 41 | 42 | 43 | 44 ]     64 bytes a change, written one after the other
 *                     ^settled     ^number
 *     fills   [ .. 17: 3 | 17: 4 | 9: 12 ]   8 bytes each; a change says how many were before it
 *
 * A change is noted where it happens and nothing is looked up there: the ring is written in order, a line a change. The
 * lives of blocks are at random places; each would be a cache miss or two. So they are written later, many at a time,
 * with the lines fetched ahead: when half the ring is full, or somebody asks.
 *
 *   L1  changes with numbers in (number - ring size, number] are in the ring
 *   L2  settled >= number - ring size: no change is overwritten before it is in its block's life
 *
 * Rejected: lives written at once, 30 ns a change with a million blocks. A list of each block's changes through the
 * ring: a block that rests loses its past to those that do not. A copy of all states every so many epochs: 1 MB each
 * with 100 000 blocks. */
#include "allocator/block_log.h"

#include "allocator/block_pool.h" /* enum block_state */
#include "config/mapping.h"

#include <stdlib.h>

enum {
    AHEAD = 8,  /* changes whose lives are fetched */
    LOSERS = 16 /* of a block, that are told apart */
};

#define NOBODY UINT32_MAX /* NO_ROW of block_table.h */

static uint64_t ring_size(uint32_t epochs)
{
    uint64_t size = BLOCK_LOG_RING_LEAST;
    while (size < 2 * (uint64_t)epochs && size < BLOCK_LOG_RING_MOST)
        size *= 2;
    return size;
}

static uint64_t fills_size(uint32_t epochs)
{
    uint64_t size = 1;
    while (size < (uint64_t)epochs * BLOCK_LOG_FILLS)
        size *= 2;
    return size;
}

uint64_t block_log_bytes(uint64_t blocks, uint32_t rows, uint32_t epochs)
{
    return ring_size(epochs) * sizeof(struct block_change) + fills_size(epochs) * sizeof(struct fill_change) +
           blocks * sizeof(struct block_life) + rows * sizeof(struct row_name);
}

int block_log_create(uint32_t blocks, uint32_t rows, uint32_t epochs, struct block_log **result)
{
    struct block_log *log = calloc(1, sizeof *log);
    if (!log)
        return ATTND_NO_MEMORY;
    log->mask = ring_size(epochs) - 1;
    log->fill_mask = (uint32_t)fills_size(epochs) - 1;
    log->blocks = blocks;
    log->rows = rows;
    log->epochs = epochs;
    log->row = NOBODY;
    log->ring = mapping_create((log->mask + 1) * sizeof *log->ring, 0);
    log->fills = mapping_create(((uint64_t)log->fill_mask + 1) * sizeof *log->fills, 0);
    log->lives = mapping_create(blocks * sizeof *log->lives, 0);
    log->names = calloc(rows, sizeof *log->names);
    if (!log->ring || !log->fills || !log->lives || !log->names) {
        block_log_destroy(log);
        return ATTND_NO_MEMORY;
    }
    *result = log;
    return 0;
}

void block_log_destroy(struct block_log *log)
{
    if (!log)
        return;
    mapping_destroy(log->ring, (log->mask + 1) * sizeof *log->ring);
    mapping_destroy(log->fills, ((uint64_t)log->fill_mask + 1) * sizeof *log->fills);
    mapping_destroy(log->lives, log->blocks * sizeof *log->lives);
    free(log->names);
    free(log);
}

static struct block_change *at(const struct block_log *log, uint64_t number)
{
    return &log->ring[number & log->mask];
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* A change becomes the latest of its block's life. The block belongs to whoever has named the row; what happens to it
 * without a row is still the same owner's. */
static void enter_life(struct block_log *log, struct block_change *c)
{
    struct block_life *life = &log->lives[c->block];
    c->key_before = life->key;
    if (c->sequence || c->kind == CHANGE_TAKEN)
        life->key = c->key;
    else
        c->key = life->key;
    life->changes[life->count++ % LIFE_CHANGES] = (struct life_change){
        .number = c->number & ((UINT64_C(1) << 48) - 1),
        .kind = c->kind & 63,
        .fill = c->fill & 1023,
        .sequence = c->sequence,
        .time_ms = (c->time_us / 1000) & ((UINT64_C(1) << 40) - 1),
        .refs = c->refs & 0xffffff,
    };
}

/* Have the lines of a life that comes later on their way: its first one, or the one that is written. */
static void prefetch_life(const struct block_log *log, uint64_t number, bool first)
{
    const struct block_change *c = at(log, number);
    if (!change_is_of_block(c->kind))
        return;
    const struct block_life *life = &log->lives[c->block];
    __builtin_prefetch(first ? (const void *)life : &life->changes[life->count % LIFE_CHANGES], 1);
}

void block_log_settle(struct block_log *log, uint64_t number)
{
    while (log->settled < number) {
        struct block_change *c = at(log, ++log->settled);
        if (log->settled + 2 * AHEAD <= number)
            prefetch_life(log, log->settled + 2 * AHEAD, true);
        if (log->settled + AHEAD <= number)
            prefetch_life(log, log->settled + AHEAD, false);
        if (change_is_of_block(c->kind))
            enter_life(log, c);
    }
}

void block_log_note(struct block_log *log, const struct block_change *change)
{
    struct block_change *slot = block_log_next(log), set = *slot;
    *slot = *change;
    slot->number = set.number;
    slot->fills = set.fills;
    slot->time_us = log->time_us & ((UINT64_C(1) << 48) - 1);
}

/* Whether a change is one by which a row comes to have a block. */
static bool gains(const struct block_change *c)
{
    return c->kind == CHANGE_TAKEN || c->kind == CHANGE_SHARED || c->kind == CHANGE_COPIED;
}

void block_log_name(struct block_log *log, uint32_t row, uint64_t sequence, uint64_t key)
{
    struct row_name *name = &log->names[row];
    name->sequence = sequence;
    name->key = key;
    for (uint64_t n = log->number; n > log->settled && n > name->since; n--) {
        struct block_change *c = at(log, n);
        if (!gains(c)) /* evicted for it */
            continue;
        c->sequence = sequence;
        c->key = key;
    }
}

void block_log_begin(struct block_log *log, uint32_t row)
{
    if (!log)
        return;
    log->names[row] = (struct row_name){.since = log->number};
    log->row = row;
}

void block_log_touch(struct block_log *log)
{
    log->other = true;
}

void block_log_at(struct block_log *log, double now_s)
{
    log->time_us = (uint64_t)(now_s * 1e6);
}

/* ---- reading ------------------------------------------------------------------------------------- */

uint64_t block_log_epoch(struct block_log *log)
{
    if (log->other || at(log, log->number)->fills != log->fill_count)
        block_log_note(log, &(struct block_change){.kind = CHANGE_OTHER});
    return log->number;
}

uint64_t block_log_first(const struct block_log *log)
{
    return log->number > log->mask ? log->number - log->mask : 1;
}

/* Whether the fills at an epoch whose change is in the ring can be found. */
static bool has_fills(const struct block_log *log, uint64_t epoch)
{
    return log->fill_count - at(log, epoch)->fills <= log->fill_mask;
}

uint64_t block_log_oldest(struct block_log *log)
{
    uint64_t high = block_log_epoch(log), low = high > log->epochs ? high - log->epochs : 0;
    if (high > log->mask && low < block_log_first(log))
        low = block_log_first(log);
    while (low < high) { /* fills of later epochs are found, too */
        uint64_t middle = low + (high - low) / 2;
        if (has_fills(log, middle))
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

uint32_t block_log_read(struct block_log *log, uint64_t *next, struct block_change *changes, uint32_t most)
{
    uint32_t n = 0;
    block_log_settle(log, log->number);
    if (*next < block_log_first(log))
        *next = block_log_first(log);
    for (; n < most && *next <= log->number; n++)
        changes[n] = *at(log, (*next)++);
    return n;
}

uint64_t block_log_key(struct block_log *log, uint32_t block)
{
    block_log_settle(log, log->number);
    return log->lives[block].key;
}

const struct block_life *block_log_life(struct block_log *log, uint32_t block)
{
    block_log_settle(log, log->number);
    return &log->lives[block];
}

static uint32_t refs_before(const struct block_change *c)
{
    switch (c->kind) {
    case CHANGE_TAKEN:
        return 0;
    case CHANGE_SHARED:
        return c->refs - 1;
    case CHANGE_UNSHARED:
        return c->refs + 1;
    case CHANGE_FENCED:
    case CHANGE_CACHED:
    case CHANGE_FREED:
        return c->state_before == BLOCK_HELD;
    default:
        return c->refs;
    }
}

/* Undo a change. */
static void undo(const struct block_change *c, struct block_past *past)
{
    uint32_t before = refs_before(c);
    past->lost |= before > c->refs;
    past->retaken |= c->kind == CHANGE_TAKEN;
    past->refs = before;
    past->state = c->state_before;
    past->published = c->published_before;
    past->fill = c->fill_before;
    past->key = c->key_before;
}

void block_log_rewind(struct block_log *log, uint64_t epoch, uint32_t first, uint32_t n,
                      struct block_past *past)
{
    uint32_t fills = log->fill_count;
    block_log_settle(log, log->number);
    for (uint64_t number = log->number;; number--) {
        const struct block_change *c = at(log, number);
        for (; fills != c->fills; fills--) {
            const struct fill_change *f = &log->fills[(fills - 1) & log->fill_mask];
            if (f->block - first < n)
                past[f->block - first].fill = f->before;
        }
        if (number <= epoch)
            return;
        if (change_is_of_block(c->kind) && c->block - first < n)
            undo(c, &past[c->block - first]);
    }
}

/* Whether a change is one by which a row no longer has a block. */
static bool loses(const struct block_change *c)
{
    return refs_before(c) > c->refs || c->kind == CHANGE_PARKED;
}

/* Whether a row has lost a block, by a change, since it has written to a copy of it: the change before says so. */
static bool is_copied(const struct block_log *log, const struct block_change *c)
{
    const struct block_change *copied = at(log, c->number - 1);
    return copied->number == c->number - 1 && copied->kind == CHANGE_COPIED &&
           copied->sequence == c->sequence && copied->from == c->block;
}

static void replace(uint32_t *ids, uint32_t n, uint32_t id, uint32_t by)
{
    while (n > 0 && ids[n - 1] != id)
        n--;
    if (n > 0)
        ids[n - 1] = by;
}

/* A table grows and shrinks at its end: blocks are gained the first one first, and lost the last one first, so newest first they
 * are taken off and put back like those of a stack. What lies beyond `most` is only counted. In the middle a block is only
 * replaced, by a copy. That one, and what is swapped in, was taken before it came to be in the table. */
uint32_t block_log_rewind_table(const struct block_log *log, uint64_t epoch, uint64_t sequence, uint32_t *ids,
                                uint32_t n, uint32_t most, uint64_t *began)
{
    uint32_t made = NO_BLOCK; /* a block that was taken for a copy, or to be swapped in */
    *began = 0;
    for (uint64_t number = log->number; number > epoch; number--) {
        const struct block_change *c = at(log, number);
        if (c->sequence != sequence || c->kind == CHANGE_STEP)
            continue;
        if (c->kind == CHANGE_CREATED || c->kind == CHANGE_FORKED) {
            *began = number;
            n = 0;
        } else if (c->kind == CHANGE_COPIED || c->kind == CHANGE_SWAPPED_IN) {
            made = c->block;
            if (c->kind == CHANGE_COPIED)
                replace(ids, n < most ? n : most, c->block, c->from);
        } else if (c->kind == CHANGE_UNPARKED || (gains(c) && c->block != made)) {
            n -= n > 0;
        } else if (c->kind == CHANGE_TAKEN) {
            made = NO_BLOCK;
        } else if (change_is_of_block(c->kind) && loses(c) && !is_copied(log, c)) {
            if (n < most)
                ids[n] = c->block;
            n++;
        }
    }
    return n;
}

/* Newest first: who has given the block back held it before, who has come to hold it did not. */
uint64_t block_log_loser(struct block_log *log, uint64_t epoch, uint32_t block)
{
    uint64_t holders[LOSERS] = {0};
    uint32_t n = 0;
    if (epoch + 1 < block_log_first(log))
        return 0;
    for (uint64_t number = log->number; number > epoch; number--) {
        const struct block_change *c = at(log, number);
        if (c->block != block || !change_is_of_block(c->kind))
            continue;
        if (c->kind == CHANGE_TAKEN) { /* who has given it back since held something else then */
            n = 0;
            continue;
        }
        if (!c->sequence)
            continue;
        uint32_t i = 0;
        while (i < n && holders[i] != c->sequence)
            i++;
        if (loses(c) && i == n && n < LOSERS)
            holders[n++] = c->sequence;
        else if ((gains(c) || c->kind == CHANGE_UNPARKED) && i < n)
            holders[i] = holders[--n];
    }
    return n ? holders[0] : 0;
}

bool block_log_gained(struct block_log *log, uint64_t epoch, uint32_t block, uint64_t sequence)
{
    if (epoch + 1 < block_log_first(log))
        return true;
    for (uint64_t number = log->number; number > epoch; number--) {
        const struct block_change *c = at(log, number);
        if (gains(c) && c->block == block && c->sequence == sequence)
            return true;
    }
    return false;
}

const char *change_name(unsigned kind)
{
    static const char *const names[] = {
#define XX(constant, name) name,
        CHANGE_MAP(XX)
#undef XX
    };
    return names[kind];
}
