/* call_steps.c - see call_steps.h.
 *
 * A step takes the queued calls oldest first, as long as they fit. Calls of one layer become one pass,
 * and a step has up to PLAN_SLOTS_OF_CALLS of them. A sequence has at most one call in a step; a call
 * that has to wait makes the later ones on its sequences wait, so their order is kept.
 *
 * Forming has two halves. While calls are taken, each one's blocks are reserved; then the passes are
 * filled one after the other, so that the rows of a pass lie side by side in the staging buffers, and
 * rows of different clients share items. */
#include "scheduler/call_steps.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct pass_work {
    uint32_t layer, first_row, rows, first_token, tokens, first_append, appends;
    struct call *first, **last; /* its calls */
};

struct call_steps {
    struct call_steps_options o;
    const struct geometry *g;
    uint32_t rows_max;
    struct call *queue, **queue_end;
    uint64_t call_number; /* counts calls that were resolved */
    uint64_t forming;     /* counts attempts to form a step */

    /* the step being formed */
    struct pass_work passes[PLAN_SLOTS_OF_CALLS];
    uint32_t pass_count, rows, tokens, append_count, copy_count, sequence_count;
    struct planner_row *planner_rows; /* [rows_max] */
    struct kv_append *appends;        /* [rows_max] */
    struct block_copy *copies;        /* [rows_max] */
    uint32_t *table_rows;             /* [rows_max] rows of the block tables that take part */
    uint8_t *q, *k, *v, *o_rows;      /* [rows_max][heads][head_dim] */
    float *lse;                       /* [rows_max][query_heads] */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t q_row_bytes(const struct call_steps *c)
{
    return (size_t)c->g->query_heads * c->g->head_dim * dtype_bytes(c->g->dtype);
}

static size_t kv_row_bytes(const struct call_steps *c)
{
    return (size_t)c->g->kv_heads * c->g->head_dim * dtype_bytes(c->g->dtype);
}

static struct sequence *sequence_of(const struct call_steps *c, uint64_t id)
{
    uint32_t row = sequences_find(c->o.all->sequences, id);
    return row == NO_ROW ? NULL : sequences_at(c->o.all->sequences, row);
}

/* ---- taking calls into a step -------------------------------------------------------------------- */

/* The rows of the block tables of a call, into its requests; 0, or the call failed. */
static int resolve(struct call_steps *c, struct call *call)
{
    uint32_t tokens_max = c->o.all->config->limits.sequence_tokens;
    c->call_number++;
    call->requests = call_alloc(call, call->sequence_count, sizeof *call->requests);
    if (!call->requests)
        return call_fail(call, ATTND_INVALID, "%u sequences are too many for one call",
                         call->sequence_count);
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t rows = call->sequences[i].rows,
                 row = inspect_find(c->o.all, call, call->sequences[i].id);
        if (row == NO_ROW)
            return call->status;
        struct sequence *s = sequences_at(c->o.all->sequences, row);
        unsigned long long id = s->id;
        if (s->workload)
            return call_fail(call, ATTND_IN_WORKLOAD, "sequence %llu is driven by workload %llu", id,
                             (unsigned long long)s->workload);
        if (s->seen == c->call_number)
            return call_fail(call, ATTND_INVALID, "sequence %llu is named twice in one call", id);
        s->seen = c->call_number;
        uint32_t at = block_tables_cursor(executor_tables(c->o.all->executor), row, call->layer),
                 grows = call->k ? rows : 0;
        if ((uint64_t)at + grows > tokens_max)
            return call_fail(call, ATTND_INVALID,
                             "sequence %llu would have %llu tokens; limits.sequence_tokens is %u", id,
                             (unsigned long long)at + grows, tokens_max);
        if (!call->k && at > 0 && rows > at)
            return call_fail(call, ATTND_INVALID,
                             "sequence %llu has %u tokens at layer %u, and %u rows ask for them", id,
                             at, call->layer, rows);
        call->requests[i] = (struct reserve_request){row, at, at + grows};
    }
    return 0;
}

/* Room for the call's outputs in its own arena. */
static int make_outputs(struct call_steps *c, struct call *call)
{
    if (call->kind == CALL_ATTEND) {
        call->o = call_alloc(call, call->rows, q_row_bytes(c));
        call->lse = call_alloc(call, (size_t)call->rows * c->g->query_heads, sizeof *call->lse);
    } else {
        call->views = call_alloc(call, call->sequence_count, sizeof *call->views);
    }
    bool ok = call->kind == CALL_ATTEND ? call->o && call->lse : call->views != NULL;
    return ok ? 0 : call_fail(call, ATTND_INVALID, "%u rows are too many for one call", call->rows);
}

/* Blocks for what the call appends, or the call failed. What was promised to others is not touched. */
static int reserve(struct call_steps *c, struct call *call)
{
    struct executor *x = c->o.all->executor;
    struct block_tables *tables = executor_tables(x);
    if (!call->k)
        return 0;
    uint32_t need = block_tables_need(tables, call->requests, call->sequence_count);
    struct block_pool_counts counts = block_pool_counts(block_tables_pool(tables));
    uint32_t promised = need ? c->o.promised(c->o.cookie) : 0;
    if (need > counts.blocks)
        return call_fail(call, ATTND_INVALID, "needs %u blocks of %u", need, counts.blocks);
    if (promised && (uint64_t)need + promised > counts.free + counts.cached)
        return call_fail(call, ATTND_NO_BLOCKS,
                         "needs %u blocks of %u; %u free, %u reclaimable, of which %u are promised to "
                         "workloads",
                         need, counts.blocks, counts.free, counts.cached, promised);
    int rc = block_tables_reserve(tables, executor_step(x), call->requests, call->sequence_count,
                                  c->copies, &c->copy_count);
    if (rc == ATTND_NO_BLOCKS)
        return call_fail(call, rc, "needs %u blocks of %u; %u free, %u reclaimable", need,
                         counts.blocks, counts.free, counts.cached);
    return rc == 0 ? 0 : call_fail(call, rc, "a sequence would be longer than its table");
}

/* The pass of the call's layer, a new one if it is the first; NULL when all are taken. */
static struct pass_work *pass_for(struct call_steps *c, const struct call *call)
{
    uint32_t i = 0;
    while (i < c->pass_count && c->passes[i].layer != call->layer)
        i++;
    if (i == PLAN_SLOTS_OF_CALLS)
        return NULL;
    if (i == c->pass_count) {
        struct pass_work *pass = &c->passes[c->pass_count++];
        *pass = (struct pass_work){.layer = call->layer};
        pass->last = &pass->first;
    }
    return &c->passes[i];
}

/* Whether a call must wait for another step: it does not fit, or one of its sequences is in this one or
 * waits itself. Its sequences are marked. */
static bool has_to_wait(struct call_steps *c, const struct call *call)
{
    bool waits = c->rows + call->rows > c->rows_max || c->tokens + call->rows > c->rows_max ||
                 c->sequence_count + call->sequence_count > c->rows_max;
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        const struct sequence *s = sequence_of(c, call->sequences[i].id);
        waits |= s && s->forming == c->forming; /* of unknown ones resolve() will say so */
    }
    for (uint32_t i = 0; i < call->sequence_count; i++) { /* after that: one may be named twice */
        struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s)
            s->forming = c->forming;
    }
    return waits;
}

static void count_queued(struct call_steps *c, const struct call *call, int32_t by)
{
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        struct sequence *s = sequence_of(c, call->sequences[i].id);
        if (s)
            s->queued += (uint32_t)by;
    }
}

/* Take what fits, oldest first; the rest stays queued. Calls that fail are completed on the way. */
static void take_calls(struct call_steps *c)
{
    struct call *call = c->queue, *next;
    c->queue = NULL;
    c->queue_end = &c->queue;
    c->forming++;
    c->pass_count = c->rows = c->tokens = c->append_count = c->copy_count = c->sequence_count = 0;
    for (; call; call = next) {
        next = call->next_ready;
        call->next_ready = NULL;
        struct pass_work *pass = has_to_wait(c, call) ? NULL : pass_for(c, call);
        if (!pass) {
            *c->queue_end = call;
            c->queue_end = &call->next_ready;
            continue;
        }
        count_queued(c, call, -1);
        if (resolve(c, call) != 0 || make_outputs(c, call) != 0 || reserve(c, call) != 0) {
            c->o.complete(call, c->o.cookie);
            continue;
        }
        c->rows += call->q ? call->rows : 0;
        c->tokens += call->k ? call->rows : 0;
        c->sequence_count += call->sequence_count;
        call->next_in_step = NULL;
        *pass->last = call;
        pass->last = &call->next_in_step;
    }
}

/* ---- filling the passes -------------------------------------------------------------------------- */

/* Put the rows of a call behind those that are there. */
static void gather(struct call_steps *c, struct call *call)
{
    struct block_tables *tables = executor_tables(c->o.all->executor);
    uint32_t token = c->tokens, first_token = token;
    call->first_row = c->rows;
    if (call->k) {
        memcpy(c->k + c->tokens * kv_row_bytes(c), call->k, call->rows * kv_row_bytes(c));
        memcpy(c->v + c->tokens * kv_row_bytes(c), call->v, call->rows * kv_row_bytes(c));
        c->tokens += call->rows;
    }
    if (call->q)
        memcpy(c->q + c->rows * q_row_bytes(c), call->q, call->rows * q_row_bytes(c));
    for (uint32_t i = 0; i < call->sequence_count; i++) {
        uint32_t row = call->requests[i].row, rows = call->sequences[i].rows,
                 at = call->requests[i].first;
        uint32_t keys = call->k ? at : at - (at ? rows : 0); /* before the first row's own token */
        if (call->k && rows) {
            c->appends[c->append_count++] =
                (struct kv_append){.table = row, .position = at, .count = rows, .source = token};
            if (call->tokens &&
                at >= block_tables_view(tables, row).cursor_max) /* the first layer to come */
                block_tables_note_tokens(tables, row, at, call->tokens + (token - first_token), rows);
            block_tables_advance(tables, row, call->layer, rows);
            token += rows;
        }
        for (uint32_t r = 0; call->q && r < rows; r++) {
            uint32_t sees = call->k || at ? keys + r + 1 : 0; /* an empty sequence has no keys */
            c->planner_rows[c->rows++] =
                (struct planner_row){row, sees, block_tables_version(tables, row)};
        }
        block_tables_submit(tables, row, executor_step(c->o.all->executor));
        c->table_rows[c->sequence_count++] = row;
        sequences_at(c->o.all->sequences, row)->used_s = now_s();
    }
}

static void fill_passes(struct call_steps *c, struct attention_pass *passes)
{
    c->rows = c->tokens = c->append_count = c->sequence_count = 0;
    for (uint32_t i = 0; i < c->pass_count; i++) {
        struct pass_work *p = &c->passes[i];
        p->first_row = c->rows;
        p->first_token = c->tokens;
        p->first_append = c->append_count;
        for (struct call *call = p->first; call; call = call->next_in_step)
            gather(c, call);
        p->rows = c->rows - p->first_row;
        p->appends = c->append_count - p->first_append;
        for (uint32_t a = p->first_append; a < c->append_count; a++)
            c->appends[a].source -= p->first_token;
    }
    for (uint32_t i = 0; i < c->pass_count; i++) {
        const struct pass_work *p = &c->passes[i];
        passes[i] =
            (struct attention_pass){.layer = p->layer,
                                    .appends = c->appends + p->first_append,
                                    .append_count = p->appends,
                                    .k = c->k + p->first_token * kv_row_bytes(c),
                                    .v = c->v + p->first_token * kv_row_bytes(c),
                                    .source_dtype = c->g->dtype,
                                    .plan = executor_plan(c->o.all->executor, i, p->layer,
                                                          c->planner_rows + p->first_row, p->rows),
                                    .q = c->q + p->first_row * q_row_bytes(c),
                                    .o = c->o_rows + p->first_row * q_row_bytes(c),
                                    .lse = c->lse + (size_t)p->first_row * c->g->query_heads};
    }
}

/* ---- running ------------------------------------------------------------------------------------- */

static void answer(struct call_steps *c, struct call *call, double start, double seconds)
{
    if (call->q) {
        memcpy(call->o, c->o_rows + call->first_row * q_row_bytes(c), call->rows * q_row_bytes(c));
        memcpy(call->lse, c->lse + (size_t)call->first_row * c->g->query_heads,
               (size_t)call->rows * c->g->query_heads * sizeof *call->lse);
    }
    for (uint32_t i = 0; call->views && i < call->sequence_count; i++)
        inspect_view(c->o.all, call->requests[i].row, &call->views[call->view_count++]);
    call->queue_us = (start - call->submitted_s) * 1e6;
    call->step_us = seconds * 1e6;
    call->rows_in_step = c->rows;
    c->o.complete(call, c->o.cookie);
}

bool call_steps_run(struct call_steps *c)
{
    struct attention_pass passes[PLAN_SLOTS_OF_CALLS];
    if (!c->queue)
        return false;
    take_calls(c);
    if (c->sequence_count == 0)
        return true;
    fill_passes(c, passes);
    double start = now_s();
    struct step_cost cost =
        executor_run(c->o.all->executor, c->copies, c->copy_count, passes, c->pass_count);
    executor_retire(c->o.all->executor, c->table_rows, c->sequence_count, c->rows, cost);
    c->o.all->epoch++;
    for (uint32_t i = 0; i < c->pass_count; i++) {
        struct call *next;
        for (struct call *call = c->passes[i].first; call; call = next) {
            next = call->next_in_step;
            answer(c, call, start, cost.seconds);
        }
    }
    return true;
}

void call_steps_add(struct call_steps *c, struct call *call)
{
    if (call->rows > c->rows_max || call->sequence_count > c->rows_max) {
        call_fail(call, ATTND_INVALID, "%u rows of %u sequences; scheduler.step_rows_max is %u",
                  call->rows, call->sequence_count, c->rows_max);
        c->o.complete(call, c->o.cookie);
        return;
    }
    count_queued(c, call, 1);
    *c->queue_end = call;
    c->queue_end = &call->next_ready;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

int call_steps_create(const struct call_steps_options *options, struct call_steps **result)
{
    struct call_steps *c = calloc(1, sizeof *c);
    if (!c)
        return ATTND_NO_MEMORY;
    c->o = *options;
    c->g = &options->all->config->geometry;
    c->queue_end = &c->queue;
    uint32_t n = c->rows_max = options->all->config->step_rows_max;
    c->planner_rows = calloc(n, sizeof *c->planner_rows);
    c->appends = calloc(n, sizeof *c->appends);
    c->copies = calloc(n, sizeof *c->copies);
    c->table_rows = calloc(n, sizeof *c->table_rows);
    c->q = calloc(n, q_row_bytes(c));
    c->o_rows = calloc(n, q_row_bytes(c));
    c->k = calloc(n, kv_row_bytes(c));
    c->v = calloc(n, kv_row_bytes(c));
    c->lse = calloc((size_t)n * c->g->query_heads, sizeof *c->lse);
    if (!c->planner_rows || !c->appends || !c->copies || !c->table_rows || !c->q || !c->o_rows ||
        !c->k || !c->v || !c->lse) {
        call_steps_destroy(c);
        return ATTND_NO_MEMORY;
    }
    *result = c;
    return 0;
}

void call_steps_destroy(struct call_steps *c)
{
    if (!c)
        return;
    void *const arrays[] = {c->planner_rows, c->appends, c->copies, c->table_rows, c->q,
                            c->o_rows,       c->k,       c->v,      c->lse};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++)
        free(arrays[i]);
    free(c);
}
