/* sequence_ops.h - what clients do to sequences and leases as a whole: create, fork, truncate, delete,
 * lease; and the end of those that nobody uses.
 *
 * Those of REQUEST_MAP run one request: they answer it, or fail it and change nothing. Engine thread. */
#ifndef SCHEDULER_SEQUENCE_OPS_H
#define SCHEDULER_SEQUENCE_OPS_H

#include "scheduler/requests.h"
#include "scheduler/engine_state.h"

/* sequence_ops_check_fork: whether REQUEST_FORK can be done once its parent is resident; the parent's row, or
 * NO_ROW with the request failed. sequence_ops_make_forks: do it; 0, or the request failed. */
uint32_t sequence_ops_check_fork(struct engine_state *state, struct request *request);
int sequence_ops_make_forks(struct engine_state *state, struct request *request);

/* sequence_ops_check_lease: 0, or REQUEST_LEASE has failed. sequence_ops_add_lease: a new row that has the
 * lease's blocks becomes the lease; likewise. */
int sequence_ops_check_lease(struct engine_state *state, struct request *request);
int sequence_ops_add_lease(struct engine_state *state, struct request *request, uint32_t row);

/* sequence_ops_reap: remove clients' sequences and leases that were not used for as long as they may
 * be. To be called often; it looks at some thousands of rows twice a second. */
void sequence_ops_reap(struct engine_state *state);

#endif
