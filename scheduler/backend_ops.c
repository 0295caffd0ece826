/* backend_ops.c - see backend_ops.h. */
#include "scheduler/backend_ops.h"

int backend_ops_merge(struct engine_state *state, struct request *request)
{
    const struct geometry *g = &state->config->geometry;
    struct request_merge *merge = &request->merge;
    struct request_output *out = &merge->out;
    size_t heads = (size_t)merge->rows * g->query_heads;
    struct merge_states m = {.states = merge->states,
                             .rows = merge->rows,
                             .heads = g->query_heads,
                             .head_dim = g->head_dim,
                             .dtype = g->dtype,
                             .o = merge->o,
                             .lse = merge->lse};
    m.merged_o = out->o = request_alloc(request, heads, g->head_dim * dtype_bytes(g->dtype));
    m.merged_lse = out->lse = request_alloc(request, heads, sizeof *out->lse);
    if (!out->o || !out->lse)
        return request_fail(request, ATTND_INVALID, "%u rows are too many for one call", merge->rows);
    step_merge_states(state->steps, &m);
    return 0;
}

int backend_ops_replace_constants(struct engine_state *state, const struct model_constants *with)
{
    struct model_constants *c = &state->constants;
    int rc = model_constants_replace(c, &state->config->geometry, with);
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

int backend_ops_self_test(struct engine_state *state, struct request *request)
{
    if (!step_self_test(state->steps))
        request->check.fault = "the kernels differ from the reference";
    return 0;
}
