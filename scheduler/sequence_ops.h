/* sequence_ops.h - what clients do to sequences and leases as a whole: create, fork, truncate, delete,
 * lease; and the end of those that nobody uses.
 *
 * Each function runs one request: it fills in the answer, or fails the request and changes nothing. Engine
 * thread. */
#ifndef SCHEDULER_SEQUENCE_OPS_H
#define SCHEDULER_SEQUENCE_OPS_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* sequence_ops_find: the row of the sequence that a request names and that clients may change, or NO_ROW
 * with the request failed. */
uint32_t sequence_ops_find(struct engine_state *state, struct request *request);

void sequence_ops_create(struct engine_state *state, struct request *request);   /* REQUEST_CREATE */
void sequence_ops_truncate(struct engine_state *state, struct request *request); /* REQUEST_TRUNCATE */
void sequence_ops_delete(struct engine_state *state, struct request *request);   /* REQUEST_DELETE */

/* sequence_ops_check_fork: whether REQUEST_FORK can be done once its parent is resident; the parent's row, or
 * NO_ROW with the request failed. sequence_ops_fork: do it. */
uint32_t sequence_ops_check_fork(struct engine_state *state, struct request *request);
void sequence_ops_fork(struct engine_state *state, struct request *request);

/* sequence_ops_check_lease: 0, or REQUEST_LEASE has failed. sequence_ops_add_lease: a new row that has the
 * lease's blocks becomes the lease. */
int sequence_ops_check_lease(struct engine_state *state, struct request *request);
void sequence_ops_add_lease(struct engine_state *state, struct request *request, uint32_t row);

/* sequence_ops_reap: remove clients' sequences and leases that were not used for as long as they may
 * be. To be called often; it looks at some thousands of rows twice a second. */
void sequence_ops_reap(struct engine_state *state);

#endif
