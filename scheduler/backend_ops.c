/* SPDX-License-Identifier: Apache-2.0 */
/* backend_ops.c - see backend_ops.h. */
#include "scheduler/backend_ops.h"

#include "scheduler/journal.h"

int backend_ops_replace_constants(struct engine_state *state, const struct model_constants *with)
{
    struct model_constants *c = &state->constants;
    int rc = model_constants_replace(c, &state->config->geometry, with);
    state->constants_digest = model_constants_digest(c, &state->config->geometry);
    atomic_store(&state->has_sinks, c->sinks != NULL);
    atomic_store(&state->has_alibi, c->alibi != NULL);
    return rc;
}

int backend_ops_parameters(struct engine_state *state, struct request *request)
{
    if (step_has_appended(state->steps))
        return request_fail(request, ATTND_FIXED,
                            "something was appended already; they are fixed from then on");
    if (backend_ops_replace_constants(state, &request->parameters) != 0)
        return request_fail(request, ATTND_NO_MEMORY, "no memory for the parameters");
    return 0;
}

int backend_ops_roof(struct engine_state *state, struct request *request)
{
    bool done = step_roof_part(state->steps, request, state->now_s);
    return journal_roof(state->journal, done) ? 0 : REQUEST_WAITS;
}

int backend_ops_self_test(struct engine_state *state, struct request *request)
{
    request_list_append(&state->self_tests, request);
    return REQUEST_WAITS;
}

struct request *backend_ops_test(struct engine_state *state)
{
    enum attention_verdict verdict = state->failed ? ATTENTION_TEST_FAILED : step_self_test(state->steps);
    if (!journal_tested(state->journal, verdict != ATTENTION_TEST_RUNS))
        return NULL;
    struct request *request = request_list_take(&state->self_tests);
    if (verdict == ATTENTION_TEST_FAILED)
        request->check.fault = "the kernels differ from the reference";
    return request;
}
