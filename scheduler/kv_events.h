/* SPDX-License-Identifier: Apache-2.0 */
/* kv_events.h - which blocks new sequences may share, for whoever mirrors the prefix cache on another thread.
 *
 *     block log --> blocks that changed --> told [blocks] --> ring of events === publisher's thread (server/kv_publisher.h)
 *                                            ^ hash that the mirror has of a block, or none
 *
 * What is told is the difference between what is published and what was told: blocks that changed, by the log
 * (allocator/block_log.h), or, when the log has lost some, all. So nothing has to be kept for a reader who is slow, and
 * nothing is lost: while the ring is full nothing is told, and what came and went meanwhile never is.
 *
 *   I1  told[id] is 0, or the hash of what is or was published as block id, with all blocks before it told, too
 *   I2  no two blocks are told with the same hash
 *
 * For I2 what is no more is told before what is new: first all changes are read, and then blocks are stored, the parent before the
 * child. The engine never waits. Nothing allocates after create. */
#ifndef SCHEDULER_KV_EVENTS_H
#define SCHEDULER_KV_EVENTS_H

#include "allocator/block_table.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_events;

enum { KV_EVENTS_SALT_BYTES = 64 };

struct kv_events_options {
    uint32_t blocks, block_size;
    uint32_t row_blocks; /* of the longest sequence */
    uint32_t slots;      /* events that wait for the publisher, a power of two; 0: as many as serve best */
    bool salted;         /* blocks of salted sequences are told, too */
    uint32_t looks;      /* changes and blocks that a turn looks at; 0: as many as serve best */
};

/* One block. */
struct kv_event {
    uint64_t hash;      /* not 0 */
    uint64_t parent;    /* hash of the block before it; 0: it is the first */
    bool stored;        /* else it is removed, and the rest means nothing */
    bool last;          /* of a batch */
    uint8_t salt_bytes; /* 0: none */
    char salt[KV_EVENTS_SALT_BYTES];
    uint32_t tokens[]; /* [block_size] ids */
};

/* What was told since the start. */
struct kv_events_counts {
    bool on;                  /* there is somebody to tell */
    uint64_t stored, removed; /* blocks */
    uint64_t batches;         /* sent */
    uint64_t replays;         /* of past ones, answered */
    uint64_t rescans;         /* looks at all blocks, since the log had lost changes */
};

/* kv_events_create: nothing is told yet. Returns 0 or ATTND_NO_MEMORY. kv_events_bytes: what it takes. */
MUST_USE int kv_events_create(const struct kv_events_options *options, struct kv_events **events);
void kv_events_destroy(struct kv_events *events);
uint64_t kv_events_bytes(const struct kv_events_options *options);

/* ---- engine thread ---- */

/* kv_events_turn(events, tables): tell what has changed since the last turn, as far as there is room for it: one batch. The tables
 * keep a log. Returns whether it told something. O(changes in the log), 16 384 at most, and 512 stored blocks: some 0.1 ms each. NULL is nobody. */
bool kv_events_turn(struct kv_events *events, struct block_tables *tables);

/* kv_events_idle_s: seconds until there is something to tell, if nothing happens; negative: never. */
double kv_events_idle_s(const struct kv_events *events, struct block_tables *tables);

/* Any thread. */
struct kv_events_counts kv_events_counts(const struct kv_events *events);

/* ---- publisher's thread ---- */

/* kv_events_batch(events): how many events the next batch has; 0: there is none. kv_events_at: one of them. kv_events_sent: it has
 * been sent, and its room is given back. kv_events_replayed: past ones were asked for. */
uint32_t kv_events_batch(const struct kv_events *events);
const struct kv_event *kv_events_at(const struct kv_events *events, uint32_t i);
void kv_events_sent(struct kv_events *events, uint32_t count);
void kv_events_replayed(struct kv_events *events);

/* kv_events_fd: an eventfd that is raised when there is a batch. kv_events_wake: raise it; any thread. */
int kv_events_fd(const struct kv_events *events);
void kv_events_wake(struct kv_events *events);

/* kv_events_most: events of the largest batch. */
uint32_t kv_events_most(const struct kv_events_options *options);

#endif
