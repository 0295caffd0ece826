/* backend_ops.h - what needs the backend to itself, and so waits until no step is in flight: merging states,
 * new model constants, the self-test.
 *
 * Those of REQUEST_MAP run one request. Engine thread. */
#ifndef SCHEDULER_BACKEND_OPS_H
#define SCHEDULER_BACKEND_OPS_H

#include "scheduler/engine_state.h"
#include "scheduler/requests.h"

/* backend_ops_replace_constants: replace those of the model's constants that `with` has. Returns 0 or
 * ATTND_NO_MEMORY, with some of them perhaps replaced. */
MUST_USE int backend_ops_replace_constants(struct engine_state *state, const struct model_constants *with);

#endif
