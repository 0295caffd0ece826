/* sequence_ops.h - what clients do to sequences and leases as a whole: create, fork, truncate, delete,
 * lease; and the end of those that nobody uses.
 *
 * Each function runs one call: it fills in the answer, or fails the call and changes nothing. Engine
 * thread. */
#ifndef SCHEDULER_SEQUENCE_OPS_H
#define SCHEDULER_SEQUENCE_OPS_H

#include "scheduler/call.h"
#include "scheduler/engine_state.h"

/* sequence_ops_find: the row of the sequence that a call names and that clients may change, or NO_ROW
 * with the call failed. */
uint32_t sequence_ops_find(struct engine_state *state, struct call *call);

void sequence_ops_create(struct engine_state *state, struct call *call);   /* CALL_CREATE */
void sequence_ops_truncate(struct engine_state *state, struct call *call); /* CALL_TRUNCATE */
void sequence_ops_delete(struct engine_state *state, struct call *call);   /* CALL_DELETE */

/* sequence_ops_check_fork: whether CALL_FORK can be done once its parent is resident; the parent's row, or
 * NO_ROW with the call failed. sequence_ops_fork: do it. */
uint32_t sequence_ops_check_fork(struct engine_state *state, struct call *call);
void sequence_ops_fork(struct engine_state *state, struct call *call);

/* sequence_ops_check_lease: 0, or CALL_LEASE has failed. sequence_ops_add_lease: a new row that has the
 * lease's blocks becomes the lease. */
int sequence_ops_check_lease(struct engine_state *state, struct call *call);
void sequence_ops_add_lease(struct engine_state *state, struct call *call, uint32_t row);

/* sequence_ops_reap: remove clients' sequences and leases that were not used for as long as they may
 * be. To be called often; it looks at some thousands of rows twice a second. */
void sequence_ops_reap(struct engine_state *state);

#endif
