/* SPDX-License-Identifier: Apache-2.0 */
/* block_log.h - what has changed: the latest changes in a ring, and the latest of each block.
 *
 *     block_log_note()  ->  ring  [ 41 taken 17 | 42 shared 4 | 43 sequence 9 forked | 44 step 88 ]
 *                             |                                                       ^ number
 *                             +-> lives  17: [ 12 freed | 41 taken ]      LIFE_CHANGES of each block
 *
 * Each change has a number, one more than the change before it: the epoch of the block tables. The state at epoch E is
 * what the changes up to E have made. It is found from the state of now by undoing the later ones, newest first. How
 * many slots of a block are filled changes with every token, so that is kept apart, in a ring of its own, and has no
 * number until somebody asks for the epoch.
 *
 * Whoever writes is one thread: the engine's. Readers are on it, too: each has its own place in the ring, a number, and
 * is told how many changes it has missed. Rows have names, which the scheduler gives: the sequence's id and the key that
 * it belongs to. Nothing allocates after create. */
#ifndef ALLOCATOR_BLOCK_LOG_H
#define ALLOCATOR_BLOCK_LOG_H

#include "config/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LIFE_CHANGES = 32,           /* of a block: the latest ones */
    BLOCK_LOG_RING_LEAST = 4096, /* changes; */
    BLOCK_LOG_RING_MOST = 65536,
    BLOCK_LOG_FILLS = 64 /* for each epoch that is kept, changes of fill */
};

/* XX(constant, name): what has happened to a block, a sequence, or neither. */
#define CHANGE_MAP(XX)                                                                                       \
    XX(TAKEN, "taken")             /* out of the free ones: one reference, a new generation */               \
    XX(SHARED, "shared")           /* one reference more; of a cached block the first */                     \
    XX(UNSHARED, "unshared")       /* one less, and others are left */                                       \
    XX(COPIED, "copied")           /* on write, from another block; it was taken for that */                 \
    XX(PUBLISHED, "published")     /* new sequences that begin alike will share it */                        \
    XX(UNPUBLISHED, "unpublished") /* not any more, since its holder writes to it */                         \
    XX(FENCED, "fenced")           /* nobody holds it, but a step in flight may touch it */                  \
    XX(CACHED, "cached")           /* nobody holds it, and it is kept for those that begin alike */          \
    XX(FREED, "freed")             /* nobody holds it, and it is free */                                     \
    XX(EVICTED, "evicted")         /* it was cached, and is free */                                          \
    XX(SWAPPED_OUT, "swapped_out") /* its bytes go to a host block */                                        \
    XX(SWAPPED_IN, "swapped_in")   /* its bytes come from one */                                             \
    XX(PARKED, "parked")     /* leaves a table: its sequence is swapped out, and keeps its reference */      \
    XX(UNPARKED, "unparked") /* is in it again, or about to be given back */                                 \
    XX(CREATED, "created")   /* a sequence, or a lease */                                                    \
    XX(FORKED, "forked")                                                                                     \
    XX(TRUNCATED, "truncated")                                                                               \
    XX(ENDED, "ended")                                                                                       \
    XX(STEP, "step")   /* has retired */                                                                     \
    XX(OTHER, "other") /* fills, or what else is shown; no event */

enum change_kind {
#define XX(constant, name) CHANGE_##constant,
    CHANGE_MAP(XX)
#undef XX
};

static inline bool change_is_of_block(unsigned kind)
{
    return kind < CHANGE_CREATED;
}

/* One change. What is told of a block is how it is after the change. One cache line. */
struct block_change {
    uint64_t number;       /* set by block_log_note(), like */
    uint64_t time_us : 48; /* of the engine's clock, */
    uint64_t kind : 8;     /* enum change_kind */
    uint64_t state : 3;    /* enum block_state, */
    uint64_t state_before : 3;
    uint64_t published : 1, published_before : 1;
    uint64_t
        sequence; /* whose row it concerns; 0: none; set by block_log_note(), like; of a step: its number */
    uint64_t key; /* to whom it belongs; 0: nobody; of a block without a sequence: to whom it belonged last */
    union {
        uint64_t key_before; /* of a block: to whom it belonged before */
        uint64_t parent;     /* of a sequence; 0: none */
        uint64_t kv_bytes;   /* of a step */
    };
    uint32_t fills; /* changes of fill before it; set by block_log_next() */
    union {
        uint32_t block;
        uint32_t length; /* of a sequence: tokens */
        uint32_t rows;   /* of a step */
    };
    union {
        uint32_t generation; /* of a block */
        uint32_t blocks;     /* of a sequence */
        uint32_t sequences;  /* of a step */
    };
    union {
        uint32_t refs;   /* of a block */
        uint32_t reason; /* of a sequence: the scheduler's */
        float queued_us; /* of a step: in flight and not computed */
    };
    union {
        uint32_t from;    /* COPIED: block; SWAPPED_OUT, SWAPPED_IN, PARKED, UNPARKED: host block */
        uint32_t lease;   /* of a sequence: whether it is a lease */
        float compute_us; /* of a step */
    };
    union {
        struct {
            uint16_t fill, fill_before; /* of a block: slots as the pool keeps them */
        };
        uint32_t row; /* of a sequence */
    };
};

_Static_assert(sizeof(struct block_change) == 64, "a change is one cache line");

/* A change of a block's fill. */
struct fill_change {
    uint32_t block;
    uint16_t before;
};

/* What is kept of a block's changes, for as long as it is one of the latest. */
struct life_change {
    uint64_t number : 48, kind : 6, fill : 10;
    uint64_t sequence;
    uint64_t time_ms : 40, refs : 24;
};

struct block_life {
    uint64_t key; /* to whom it belongs, or belonged last */
    uint64_t count;
    struct life_change changes[LIFE_CHANGES]; /* by count modulo their number */
};

struct row_name {
    uint64_t sequence, key;
    uint64_t since; /* the latest change before the row was new */
};

/* The functions below change it; it is open so that noting a change is no call. */
struct block_log {
    struct block_change *ring; /* [mask + 1] by number */
    struct fill_change *fills; /* [fill_mask + 1] */
    struct block_life *lives;  /* [blocks] */
    struct row_name *names;    /* [rows] */
    uint64_t number;           /* of the latest change; 0: there is none */
    uint64_t settled;          /* changes up to here are in the lives */
    uint64_t mask, time_us;
    uint32_t fill_count, fill_mask;
    uint32_t row; /* whose table is being changed; NO_ROW: nobody's */
    uint32_t blocks, rows, epochs;
    bool other; /* something else has changed since that is shown */
};

/* block_log_create(blocks, rows, epochs, log): a log from which the state at the latest `epochs` epochs can be found.
 * Memory that is mapped, and taken as it fills: block_log_bytes(). Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int block_log_create(uint32_t blocks, uint32_t rows, uint32_t epochs, struct block_log **log);
void block_log_destroy(struct block_log *log);
uint64_t block_log_bytes(uint64_t blocks, uint32_t rows, uint32_t epochs);

/* ---- writing ---- */

/* block_log_settle(log, number): changes up to this one are entered into the lives. */
void block_log_settle(struct block_log *log, uint64_t number);

/* block_log_next(log): the one place through which every change goes: room for the next one, with its number and time, the
 * caller's to fill in at once. What is not filled in is what stood there a ring ago. Some ns; every half ring the older half
 * is settled. */
static inline struct block_change *block_log_next(struct block_log *log)
{
    uint64_t number = ++log->number;
    if (number - log->settled > log->mask)
        block_log_settle(log, number - (log->mask + 1) / 2);
    struct block_change *at = &log->ring[number & log->mask];
    at->number = number;
    at->fills = log->fill_count;
    log->other = false;
    return at;
}

/* block_log_note(log, change): note one change that is not of a block: with the next number, and the time. */
void block_log_note(struct block_log *log, const struct block_change *change);

/* block_log_fill(log, block, before): the fill of a block is about to change. */
static inline void block_log_fill(struct block_log *log, uint32_t block, uint32_t before)
{
    log->fills[log->fill_count++ & log->fill_mask] = (struct fill_change){block, (uint16_t)before};
}

/* block_log_enter(log, row): changes of blocks are this row's from now on. NO_ROW: nobody's. */
static inline void block_log_enter(struct block_log *log, uint32_t row)
{
    if (log)
        log->row = row;
}

/* block_log_name(log, row, sequence, key): the row, which is new, is a sequence's. What it has taken before it had a
 * name gets it, as far as that is in the newer half of the ring. A row that ends keeps its name until it is new
 * again. block_log_begin(log, row): it is, and is entered. */
void block_log_name(struct block_log *log, uint32_t row, uint64_t sequence, uint64_t key);
void block_log_begin(struct block_log *log, uint32_t row);

/* block_log_touch: something has changed that is shown, and is neither. block_log_at: the time of what comes. */
void block_log_touch(struct block_log *log);
void block_log_at(struct block_log *log, double now_s);

/* ---- reading ---- */

/* block_log_epoch: the number of the latest change. If fills, or other things, have changed since, that is a change
 * of its own. */
uint64_t block_log_epoch(struct block_log *log);

/* block_log_oldest: the oldest epoch at which the state can be found. O(log epochs). */
uint64_t block_log_oldest(struct block_log *log);

/* block_log_read(log, next, changes, most): up to `most` changes from number *next on, as far as they are in the ring,
 * and *next is the number behind them. Returns how many. If *next is no longer in the ring it is moved on before:
 * what is missed is the difference. */
uint32_t block_log_read(struct block_log *log, uint64_t *next, struct block_change *changes, uint32_t most);
uint64_t block_log_first(const struct block_log *log); /* the oldest number in the ring */

/* block_log_key: to whom a block belongs, or belonged last; 0: nobody. */
uint64_t block_log_key(struct block_log *log, uint32_t block);

/* block_log_life(log, block): its latest changes; valid until the next change. */
const struct block_life *block_log_life(struct block_log *log, uint32_t block);

/* A block as it was. */
struct block_past {
    uint64_t key;
    uint32_t refs;
    uint16_t fill; /* as the pool keeps it */
    uint8_t state; /* enum block_state */
    bool published;
    bool lost, retaken; /* since then, somebody has given it back; it was free, and taken again */
};

/* block_log_rewind(log, epoch, first, n, past): past [n] are blocks from `first` on as they are now; they become what
 * they were at an epoch that is not older than block_log_oldest(). O(changes since). */
void block_log_rewind(struct block_log *log, uint64_t epoch, uint32_t first, uint32_t n,
                      struct block_past *past);

/* block_log_rewind_table(log, epoch, sequence, ids, n, most, began): ids [most] are the first of the `n` blocks of a sequence's
 * table now, n being 0 if it is swapped out or has ended; they become the first of those at an epoch that is not older than
 * block_log_oldest(). Returns how many those are. *began is the oldest change since by which a sequence of that id began; 0:
 * there is none. O(changes since). */
uint32_t block_log_rewind_table(const struct block_log *log, uint64_t epoch, uint64_t sequence, uint32_t *ids,
                                uint32_t n, uint32_t most, uint64_t *began);

/* block_log_loser(log, epoch, block): a sequence that held a block at that epoch and has given it back since; 0: none is
 * found. O(changes since). */
uint64_t block_log_loser(struct block_log *log, uint64_t epoch, uint32_t block);

/* block_log_gained(log, epoch, block, sequence): whether a sequence that holds a block has come to hold it after that
 * epoch, or may have, since the ring does not go back so far. O(changes since). */
bool block_log_gained(struct block_log *log, uint64_t epoch, uint32_t block, uint64_t sequence);

/* change_name: the word for a kind of change. */
const char *change_name(unsigned kind);

#endif
