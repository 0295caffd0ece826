/* SPDX-License-Identifier: Apache-2.0 */
/* client_workloads.c - workloads whose digest is computed beforehand from their contents alone. */
#include "tests/simulation/clients.h"

#include "scheduler/workload.h"
#include "scheduler/workload_run.h"
#include "tests/simulation/symbolic_backend.h"

#include <stdlib.h>
#include <string.h>

static struct sim_workload workloads[SIM_WORKLOADS];

struct sim_workload *client_workloads(void)
{
    return workloads;
}

void client_workloads_begin(void)
{
    memset(workloads, 0, sizeof workloads);
}

/* ---- the digest ---------------------------------------------------------------------------------- */

/* Every output of a sequence at one layer goes into the digest. */
static void add_outputs(struct workload *w, uint32_t ordinal, uint32_t layer)
{
    uint64_t sum[SIM_TOKENS_MOST + 1];
    uint32_t length = workload_length(w, ordinal), first_row = workload_first_row(w, ordinal);
    uint32_t window = sim.config.geometry.window[layer], heads = sim.config.geometry.query_heads;
    sum[0] = 0;
    for (uint32_t at = 0; at < length; at++) {
        struct value_source source = {.seed = w->seed, .content = workload_span_at(w, ordinal, at).content};
        sum[at + 1] = sum[at] + symbolic_term(symbolic_generated(source, at, layer, VALUES_K), at);
        if (at < first_row)
            continue;
        uint32_t first = plan_visible(at + 1, window).first;
        uint64_t q = symbolic_generated(workload_query_source(w, ordinal), at, layer, VALUES_Q);
        struct symbolic_row o[SYMBOLIC_HEADS_MOST];
        symbolic_put(o, 0, heads, symbolic_output(q, sum[at + 1] - sum[first], at + 1 - first));
        workload_digest(w, workload_hash_row(ordinal, at, layer, o, heads * sizeof o[0]));
    }
}

/* The digest that a workload must end with; its own is left at 0. */
static void predict(struct workload *w, struct sim_workload *s)
{
    for (uint32_t ordinal = 0; ordinal < w->report.sequences; ordinal++) {
        for (uint32_t layer = 0; layer < sim.config.geometry.layers; layer++)
            add_outputs(w, ordinal, layer);
    }
    s->digest_low = w->report.digest_low;
    s->digest_high = w->report.digest_high;
    w->report.digest_low = w->report.digest_high = 0;
}

/* ---- making one ---------------------------------------------------------------------------------- */

static int add_request(struct workload *w, uint64_t *random, double arrival_s)
{
    char reason[WORKLOAD_REASON_BYTES];
    struct workload_request r = {.arrival_s = arrival_s,
                                 .prompt = sim_below(random, 40),
                                 .decode = sim_below(random, 16),
                                 .priority = (int32_t)sim_below(random, 3) - 1};
    struct workload_span spans[2];
    uint32_t n = 0;
    if (r.prompt + r.decode == 0)
        r.decode = 1;
    if (r.prompt > 1 && sim_chance(random, 2))
        spans[n++] =
            (struct workload_span){.end = 1 + sim_below(random, r.prompt),
                                   .content = workload_content_id(CONTENT_PREFIX, sim_below(random, 2))};
    if (r.prompt + r.decode > 1 && sim_chance(random, 3)) {
        r.fork_at = 1 + sim_below(random, r.prompt + r.decode - 1);
        r.forks = 1 + sim_below(random, 3);
    }
    return workload_add(w, &r, spans, n, reason);
}

struct sim_workload *client_workloads_make(uint64_t *random, struct request *request)
{
    char reason[WORKLOAD_REASON_BYTES];
    const struct config *c = &sim.config;
    struct sim_workload *s = workloads;
    while (s < workloads + SIM_WORKLOADS && s->used)
        s++;
    struct workload *w = s < workloads + SIM_WORKLOADS ? workload_create(sim_mix(*random)) : NULL;
    if (!w)
        return NULL;
    w->report.sharing = symbolic_sharing(w->seed);
    w->attend_prompt = sim_chance(random, 3);
    w->verify_rows = sim_chance(random, 4) ? 2 : 0;
    if (sim_chance(random, 3)) /* a request has at most four sequences */
        w->outputs_room =
            (4 + sim_below(random, 8)) * 2 * c->geometry.layers * geometry_q_row_bytes(&c->geometry);
    int rc = 0;
    double arrival_s = 0;
    for (uint32_t n = 1 + sim_below(random, 5); rc == 0 && n > 0; n--) {
        rc = add_request(w, random, arrival_s);
        arrival_s += sim_chance(random, 2) ? sim_below(random, 1000) * 1e-5 : 0;
    }
    if (rc != 0 || workload_close(w, &c->geometry, (uint32_t)c->pool_blocks, c->limits.sequences,
                                  c->limits.sequence_tokens, reason) != 0) {
        workload_destroy(w);
        return NULL;
    }
    for (uint32_t i = 0; i < w->request_count; i++)
        sim_note("request: at %.6f prompt %u decode %u fork at %u of %u priority %d sharing %s%s",
                 w->requests[i].arrival_s, w->requests[i].prompt, w->requests[i].decode,
                 w->requests[i].fork_at, w->requests[i].forks, w->requests[i].priority,
                 config_sharing_names[w->report.sharing], w->attend_prompt ? " attended" : "");
    *s = (struct sim_workload){
        .used = true, .tokens = w->report.tokens, .sequences = w->report.sequences, .keeps = w->kept};
    predict(w, s);
    request->workload.workload = w;
    return s;
}

/* ---- judging ------------------------------------------------------------------------------------- */

/* What the client has taken goes into a digest of its own. */
static void take_outputs(struct sim_workload *s, const struct request_workload *of)
{
    struct workload taken = {.report = {.digest_low = s->taken_low, .digest_high = s->taken_high}};
    size_t bytes = geometry_q_row_bytes(&sim.config.geometry);
    for (uint32_t i = 0; i < of->output_count; i++) {
        const struct workload_output *o = &of->outputs[i];
        workload_digest(
            &taken, workload_hash_row(o->ordinal, o->position, o->layer, of->output_rows + i * bytes, bytes));
    }
    s->taken += of->output_count;
    s->taken_low = taken.report.digest_low;
    s->taken_high = taken.report.digest_high;
    sim.seen.outputs_taken += of->output_count;
}

static void judge_end(struct sim_workload *s, const struct workload_report *r)
{
    s->running = false;
    s->used = false;
    sim.seen.preemptions += r->preemptions;
    if (r->state == WORKLOAD_CANCELLED) {
        sim.seen.workloads_cancelled++;
        if (!s->cancelled && !engine_failure(sim.engine))
            sim_fail("workload %llu was cancelled, and nobody asked for it", (unsigned long long)r->id);
        return;
    }
    if (r->preemptions && sim.config.admission == ADMISSION_FORECAST)
        sim_fail("workload %llu was admitted by forecast, and %llu of its sequences were preempted",
                 (unsigned long long)r->id, (unsigned long long)r->preemptions);
    sim.seen.workloads++;
    if (r->finished != s->sequences || r->tokens_done != s->tokens || r->running || r->waiting)
        sim_fail("workload %llu has ended with %u of %u sequences finished and %llu of %llu tokens",
                 (unsigned long long)r->id, r->finished, s->sequences, (unsigned long long)r->tokens_done,
                 (unsigned long long)s->tokens);
    if (r->digest_low != s->digest_low || r->digest_high != s->digest_high)
        sim_fail("workload %llu has other outputs than its contents say", (unsigned long long)r->id);
    if (s->keeps && !s->cancelled &&
        (s->taken != r->rows || s->taken_low != s->digest_low || s->taken_high != s->digest_high))
        sim_fail("workload %llu has given %llu outputs of %llu, or others", (unsigned long long)r->id,
                 (unsigned long long)s->taken, (unsigned long long)r->rows);
}

/* One more is refused only if as many are there as may be. Those that have ended count until everybody who
 * waits for news of them has had them. */
static void check_busy(const struct op *op)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < SIM_WORKLOADS; i++)
        used += workloads[i].used;
    for (uint32_t i = 0; i < SIM_REQUESTS_MOST; i++) {
        const struct op *other = &clients_ops()[i];
        used += other->request && other->workload &&
                (!other->workload->used || other->workload->id != other->request->id);
    }
    if (used < WORKLOADS_MAX)
        sim_fail("request %llu: a workload is refused, and %u are there", (unsigned long long)op->action,
                 used);
    sim.seen.busy++;
}

void client_workloads_judge(struct op *op)
{
    struct sim_workload *s = op->workload;
    const struct request *request = op->request;
    if (request->status == ATTND_DEVICE && engine_failure(sim.engine)) {
        s->running = false;
        s->used = s->used && request->kind != REQUEST_WORKLOAD_START;
        return;
    }
    if (request->kind == REQUEST_WORKLOAD_START && request->status == ATTND_BUSY) {
        s->used = false;
        check_busy(op);
        return;
    }
    if (request->status == ATTND_GONE && request->kind != REQUEST_WORKLOAD_START) {
        s->used = s->used && s->id != request->id; /* it has ended, and sixteen others since */
        return;
    }
    if (request->status != 0)
        sim_fail("request on workload %llu: %s", (unsigned long long)request->id, request->detail);
    const struct workload_report *r = request->workload.report;
    sim_note("workload %llu: state %d, arrived %u waiting %u running %u finished %u of %u, tokens %llu",
             (unsigned long long)r->id, (int)r->state, r->arrived, r->waiting, r->running, r->finished,
             r->sequences, (unsigned long long)r->tokens_done);
    if (request->kind == REQUEST_WORKLOAD_START) {
        s->id = r->id;
        s->running = true;
    }
    if (r->id != s->id)
        return; /* the place was taken by another one since */
    sim.seen.workload_tokens +=
        s->running && r->tokens_done > s->tokens_done ? r->tokens_done - s->tokens_done : 0;
    s->tokens_done = r->tokens_done > s->tokens_done ? r->tokens_done : s->tokens_done;
    take_outputs(s, &request->workload);
    bool has_all =
        !s->keeps || s->cancelled || s->taken == r->rows; /* answers with the others may be on their way */
    if (s->used && s->running &&
        ((r->state == WORKLOAD_FINISHED && has_all) || r->state == WORKLOAD_CANCELLED))
        judge_end(s, r);
}
