/* SPDX-License-Identifier: Apache-2.0 */
/* sequences.h - sequence ids, and what is known of each sequence beside its block table.
 *
 * A sequence lives in a row of the block tables; its id is found by a hash table. Engine thread only;
 * nothing allocates after create. */
#ifndef SCHEDULER_SEQUENCES_H
#define SCHEDULER_SEQUENCES_H

#include "allocator/block_table.h"
#include "scheduler/departures.h"
#include "scheduler/id_ranges.h"
#include "scheduler/tenants.h"

enum { SEQUENCE_NODE_SHIFT = 40 }; /* id = node << 40 | n, of workloads too */

/* What its client said of a sequence. */
struct sequence_options {
    uint32_t max_tokens;     /* that it may grow to, whose blocks are kept for it; 0: not declared */
    int32_t priority;        /* larger first */
    uint32_t idle_timeout_s; /* 0: never reaped */
};

enum sequence_state { SEQUENCE_IDLE, SEQUENCE_QUEUED, SEQUENCE_RUNNING, SEQUENCE_SWAPPED, SEQUENCE_STATES };

struct sequence {
    uint64_t id; /* 0: the row is vacant */
    uint64_t parent;
    uint64_t content; /* a number that no other sequence has, and that it changes when tokens are cut off */
    uint64_t key;     /* to which it belongs; 0: none */
    uint64_t began;   /* change of the log */
    uint32_t charged; /* blocks that count for the key: in its table or promised to it */
    struct sequence_options options;
    uint32_t declared; /* blocks that it may still take of those kept for it, see reservation.h */
    double created_s, used_s;
    uint64_t forming;  /* number of the step formation that holds, or keeps waiting, a request of it */
    uint64_t ordered;  /* likewise, in which a request of it has come, behind which later ones wait */
    uint64_t seen;     /* number of the request that named it last */
    uint64_t workload; /* that drives it; 0: clients do */
    uint32_t queued;   /* requests on it that wait for a step, or are in slices */
    uint32_t pinned;   /* those of them that go into several steps: it is not swapped out meanwhile */
    uint32_t
        streamed; /* requests on it in steps in flight whose k and v are looked at by the device alone; */
    struct sequence_void { /* and what it has found, until somebody was told: */
        bool is;
        uint8_t wrong;                  /* KV_WRONG_K or KV_WRONG_V, */
        uint32_t layer, position, rows; /* of these tokens, which are void with all that followed */
    } found;
    bool lease; /* it is none, but blocks that a client writes and reads through tables of its own */
    bool noted; /* its state is counted: */
    enum sequence_state state;
    uint64_t until; /* step that ends SEQUENCE_RUNNING */
};

struct sequences;

/* sequences_create(rows, node, sequences): ids that are given out are the node's. Returns 0 or ATTND_NO_MEMORY. */
MUST_USE int sequences_create(uint32_t rows, uint32_t node, struct sequences **sequences);
void sequences_destroy(struct sequences *sequences);

/* sequences_find: the row of `id`, NO_ROW if there is none. */
uint32_t sequences_find(const struct sequences *sequences, uint64_t id);

/* sequences_add(sequences, row, id, parent, key): `row` now holds `id`, which is not in use; 0: one that was
 * never given out and that no client ever chose. It belongs to the key. Returns the id. */
uint64_t sequences_add(struct sequences *sequences, uint32_t row, uint64_t id, uint64_t parent, uint64_t key,
                       double now_s);

/* sequences_charge: so many blocks of a row count for its key. sequences_tenants: what all keys have. */
void sequences_charge(struct sequences *sequences, uint32_t row, uint32_t blocks);
struct tenants *sequences_tenants(struct sequences *sequences);

/* sequences_choose: a client is about to choose ids first..last, or may have: they are never given out. */
void sequences_choose(struct sequences *sequences, uint64_t first, uint64_t last);

/* sequences_allow: ids below `next` are not given out any more, and those from `limit` on not yet (UINT64_MAX: all may).
 * sequences_may_add: whether as many as there may be sequences may still be given out: who makes some asks before.
 * sequences_reach: the id behind the next n that can be given out. O(ranges of chosen ids). */
void sequences_allow(struct sequences *sequences, uint64_t next, uint64_t limit);
bool sequences_may_add(const struct sequences *sequences);
bool sequences_are_limited(const struct sequences *sequences);
uint64_t sequences_reach(const struct sequences *sequences, uint64_t n);

void sequences_remove(struct sequences *sequences, uint32_t row);

/* sequences_note_state(sequences, row, state, until): the sequence's state from now on; if it is
 * SEQUENCE_RUNNING, until that step retires, and then it is SEQUENCE_IDLE (SEQUENCE_RUNS_ON: until
 * something else is noted). sequences_state: what was noted, when all steps up to `retired` have retired,
 * which at most STEPS_IN_FLIGHT_MAX later ones have not. sequences_count: how many are in each state then;
 * leases are not noted. O(1). sequences_fault: a broken count as a constant sentence, NULL if all hold.
 * O(rows). */
#define SEQUENCE_RUNS_ON UINT64_MAX
void sequences_note_state(struct sequences *sequences, uint32_t row, enum sequence_state state,
                          uint64_t until);
enum sequence_state sequences_state(const struct sequences *sequences, uint32_t row, uint64_t retired);
void sequences_count(const struct sequences *sequences, uint64_t retired, uint32_t counts[SEQUENCE_STATES]);
const char *sequences_fault(const struct sequences *sequences);

/* sequences_note_reaped: `row` is about to be removed because nobody used it; _note_moved: because it is
 * elsewhere. sequences_departures: what is known of ids that were. */
void sequences_note_reaped(struct sequences *sequences, uint32_t row, double now_s);
void sequences_note_moved(struct sequences *sequences, uint32_t row, const char *moved_to, double now_s);
const struct departures *sequences_departures(const struct sequences *sequences);

/* sequences_note_cut: tokens that stood were cut off. */
void sequences_note_cut(struct sequences *sequences, uint32_t row);

struct sequence *sequences_at(struct sequences *sequences, uint32_t row);

#endif
