/* SPDX-License-Identifier: Apache-2.0 */
/* backend_ops.h - new model constants, and measurements of the roof, which wait until no step is in flight, these for
 * every part; and self-tests, which are done part by part beside the steps.
 *
 * Those of REQUEST_MAP run one request. Engine thread. */
#ifndef SCHEDULER_BACKEND_OPS_H
#define SCHEDULER_BACKEND_OPS_H

#include "scheduler/engine_state.h"
#include "scheduler/requests.h"

/* backend_ops_replace_constants: replace those of the model's constants that `with` has. Returns 0 or
 * ATTND_NO_MEMORY, with some of them perhaps replaced. */
MUST_USE int backend_ops_replace_constants(struct engine_state *state, const struct model_constants *with);

/* backend_ops_test: do a part of the test that the first of state->self_tests waits for. Returns that request
 * if it was the last part, to be completed; else NULL. */
struct request *backend_ops_test(struct engine_state *state);

#endif
