/* client_tables.h - attention over block tables of the caller's own, on blocks that it leases.
 *
 * A lease is a row of the block tables that belongs to no sequence: nothing is ever shared, swapped or
 * published of it, and what its blocks hold is the caller's affair. A paged call names one; the block
 * ids and slots of the call are checked to be the lease's, then become tables of its step (step.h). Engine thread. */
#ifndef SCHEDULER_CLIENT_TABLES_H
#define SCHEDULER_CLIENT_TABLES_H

#include "scheduler/call.h"
#include "scheduler/engine_state.h"

/* client_tables_check: whether the lease is there, and all blocks of the call are its own; 0, or the call has
 * failed. O(block ids). */
int client_tables_check(const struct engine_state *state, struct call *call);

/* What a paged call is made of in its step; room for as many as it has rows, and tokens. */
struct client_tables_part {
    struct planner_row *rows;
    struct kv_append *appends;
    uint32_t row_count, append_count;
};

/* client_tables_fill: set the step's tables, of which there are enough left, and name them in rows and
 * appends. */
void client_tables_fill(const struct engine_state *state, const struct call *call, struct step *step,
                        struct client_tables_part *part);

#endif
