/* inspect.h - the questions that change nothing: sequences, block tables, the pool, the figures of
 * /stats.
 *
 * Each fills in the answer of one request, copied into the request's arena, or fails it. Engine thread. */
#ifndef SCHEDULER_INSPECT_H
#define SCHEDULER_INSPECT_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* inspect_find: the row of a sequence (of a lease, if the request is of leases), or NO_ROW with the request
 * failed (not here, reaped, or another node's). */
uint32_t inspect_find(const struct engine_state *state, struct request *request, uint64_t id);

/* inspect_show(state, request, row): append one sequence and its block ids to views (which has room) and
 * list; false when the answer is full. inspect_show_one: the same as the only one; 0, or the request
 * failed. */
bool inspect_show(const struct engine_state *state, struct request *request, uint32_t row);
int inspect_show_one(const struct engine_state *state, struct request *request, uint32_t row);

/* inspect_view: a sequence without its blocks. */
void inspect_view(const struct engine_state *state, uint32_t row, struct sequence_view *view);

void inspect_sequence(const struct engine_state *state, struct request *request); /* REQUEST_SEQUENCE */
void inspect_blocks(const struct engine_state *state, struct request *request);   /* REQUEST_BLOCKS */
void inspect_list(const struct engine_state *state, struct request *request);     /* REQUEST_LIST */
void inspect_stats(const struct engine_state *state, struct request *request);    /* REQUEST_STATS */
void inspect_pool(const struct engine_state *state, struct request *request);     /* REQUEST_POOL */

#endif
