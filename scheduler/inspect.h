/* inspect.h - the questions that change nothing: sequences, block tables, the pool, the figures of
 * /stats.
 *
 * Each fills in the answer of one call, copied into the call's arena, or fails it. Engine thread. */
#ifndef SCHEDULER_INSPECT_H
#define SCHEDULER_INSPECT_H

#include "scheduler/call.h"
#include "scheduler/executor.h"
#include "scheduler/prompts.h"
#include "scheduler/sequences.h"

/* What is looked at. */
struct inspected {
    const struct config *config;
    struct executor *executor;
    struct sequences *sequences;
    struct prompts *prompts;
    uint64_t epoch;                   /* counts changes */
    uint64_t preemptions;             /* since start */
    struct model_constants constants; /* owned by the engine */
    uint64_t declared;                /* sum of all sequences' (declared.h) */
    uint32_t *lease_of;               /* [pool.blocks] row of the lease that has a block, or NO_ROW */
    uint32_t leases, leased_blocks;
};

/* inspect_find: the row of a sequence (of a lease, if the call is of leases), or NO_ROW with the call
 * failed (not here, reaped, or another node's). */
uint32_t inspect_find(const struct inspected *all, struct call *call, uint64_t id);

/* inspect_show(all, call, row): append one sequence and its block ids to views (which has room) and
 * list; false when the answer is full. inspect_show_one: the same as the only one; 0, or the call
 * failed. */
bool inspect_show(const struct inspected *all, struct call *call, uint32_t row);
int inspect_show_one(const struct inspected *all, struct call *call, uint32_t row);

/* inspect_view: a sequence without its blocks. */
void inspect_view(const struct inspected *all, uint32_t row, struct sequence_view *view);

void inspect_sequence(const struct inspected *all, struct call *call); /* CALL_SEQUENCE */
void inspect_blocks(const struct inspected *all, struct call *call);   /* CALL_BLOCKS */
void inspect_list(const struct inspected *all, struct call *call);     /* CALL_LIST */
void inspect_stats(const struct inspected *all, struct call *call);    /* CALL_STATS */
void inspect_pool(const struct inspected *all, struct call *call);     /* CALL_POOL */

#endif
