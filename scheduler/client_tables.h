/* SPDX-License-Identifier: Apache-2.0 */
/* client_tables.h - attention over block tables of the caller's own, on blocks that it leases.
 *
 * A lease is a row of the block tables that belongs to no sequence: nothing is ever shared, swapped or
 * published of it, and what its blocks hold is the caller's affair. A paged request names one; the block
 * ids and slots of the request are checked to be the lease's, then become tables of its step (step.h).
 * Engine thread. */
#ifndef SCHEDULER_CLIENT_TABLES_H
#define SCHEDULER_CLIENT_TABLES_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* client_tables_count: tables of a step that a paged request needs at most: one a sequence, and those of its
 * slots. */
uint32_t client_tables_count(const struct engine_state *state, const struct request *request);

/* client_tables_check: whether the lease is there, and all blocks of the request are its own; 0, or the
 * request has failed. O(block ids). */
int client_tables_check(const struct engine_state *state, struct request *request);

/* What a paged request is made of in its step; room for as many as it has rows, and tokens. */
struct client_tables_part {
    struct planner_query *rows;
    struct kv_append *appends;
    uint32_t row_count, append_count;
};

/* client_tables_fill: set the step's tables, of which there are enough left, and name them in rows and
 * appends. */
void client_tables_fill(const struct engine_state *state, const struct request *request, struct step *step,
                        struct client_tables_part *part);

#endif
