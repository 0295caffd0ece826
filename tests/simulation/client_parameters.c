/* SPDX-License-Identifier: Apache-2.0 */
/* client_parameters.c - see clients.h: the model's constants, which stay once something was appended. */
#include "tests/simulation/clients.h"

#include "scheduler/backend_ops.h"
#include "tests/simulation/scarce_memory.h"
#include "tests/simulation/symbolic_backend.h"
#include "tests/simulation/watched.h"

#include <string.h>

enum { SINKS_MOST = SIM_LAYERS_MOST * SYMBOLIC_HEADS_MOST };

static struct {
    struct model_constants all; /* what stands, in these: */
    float sinks[SINKS_MOST], alibi[SYMBOLIC_HEADS_MOST];
    bool starving; /* memory is short the next time */
} parameters;

void client_parameters_begin(void)
{
    memset(&parameters, 0, sizeof parameters);
}

static float *make_values(struct request *request, uint64_t *random, uint32_t n)
{
    float *values = request_alloc(request, n, sizeof *values);
    for (uint32_t i = 0; i < n; i++)
        values[i] = (float)sim_below(random, 1000) * 1e-3F;
    return values;
}

void client_parameters_fill(struct request *request, uint64_t *random)
{
    const struct geometry *g = &sim.config.geometry;
    uint32_t which = sim_below(random, 4);
    if (which & 1)
        request->parameters.sinks = make_values(request, random, g->layers * g->query_heads);
    if (which & 2)
        request->parameters.alibi = make_values(request, random, g->query_heads);
    parameters.starving |= sim_chance(random, 3);
}

/* Memory may be short. */
WATCHED(int, backend_ops_parameters, struct engine_state *state, struct request *request)
{
    if (parameters.starving)
        scarce_memory_refuse(sim.seed % 2);
    int rc = __real_backend_ops_parameters(state, request);
    scarce_memory_end();
    return rc;
}

/* What a request gave stands. */
static void put(const struct model_constants *given)
{
    const struct geometry *g = &sim.config.geometry;
    if (given->sinks)
        parameters.all.sinks =
            memcpy(parameters.sinks, given->sinks, g->layers * g->query_heads * sizeof(float));
    if (given->alibi)
        parameters.all.alibi = memcpy(parameters.alibi, given->alibi, g->query_heads * sizeof(float));
}

void client_parameters_judge(const struct op *op)
{
    const struct request *request = op->request;
    bool fixed = symbolic_backend_appended() < sim.seen.turns;
    bool starved = !fixed && parameters.starving && scarce_memory_refused();
    parameters.starving = false;
    if (!client_answers_has_run(op, fixed ? ATTND_FIXED : 0, starved ? ATTND_NO_MEMORY : 0) && sim.lost)
        return;
    if (request->status == 0)
        put(&request->parameters);
    sim.seen.parameters += request->status == 0;
    sim.seen.parameters_starved += request->status == ATTND_NO_MEMORY;
    if (symbolic_backend_constants() != symbolic_constants(&parameters.all, &sim.config.geometry))
        sim_fail("request %llu: the backend has other parameters than were given",
                 (unsigned long long)op->action);
    if (engine_has_sinks(sim.engine) != (parameters.all.sinks != NULL) ||
        engine_has_alibi(sim.engine) != (parameters.all.alibi != NULL))
        sim_fail("request %llu: what is shown of sinks and slopes is not what there is",
                 (unsigned long long)op->action);
}
