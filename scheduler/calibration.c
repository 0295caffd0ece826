/* SPDX-License-Identifier: Apache-2.0 */
/* calibration.c - see calibration.h. */
#include "scheduler/calibration.h"

#include "config/numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS_LEAST = 4,
    ROW_CHUNKS = 2, /* of the rows that are read: the first one is shared by two of them */
    PASSES = 8,     /* of a step */
    REPEATS = 9,    /* steps of either plan, in turn */
    RATE_REPEATS = 3,
    RATE_TOKENS = 1024, /* that the steps for the rates read */
    RATE_ROWS = 16,     /* queries of a work tile */
    RATE_APPENDED = 64
};

static const double LONGEST_S = 0.02; /* of the first step; a slower backend is not measured */

static const double SHORT_US = 4000; /* of a step for the rates, about */

/* One step that can be run by either plan. */
struct trial {
    const struct calibration *c;
    struct attention *attention;
    uint32_t layer, rows, stride;
    uint32_t *tables; /* [rows][stride] */
    struct planner_query *planned;
    struct table_use *uses;
    struct value_source *sources;
    void *o;
    size_t o_bytes;
};

/* Run a step. Returns the seconds that the backend was busy with it. */
static double time_step(struct attention *attention, const struct attention_step *step)
{
    uint64_t ticket = attention_submit(attention, step);
    attention_await(attention, ticket);
    return attention_times(attention, ticket).busy_s;
}

/* A layer that sees everything; one behind the last if there is none. */
static uint32_t find_layer(const struct geometry *g)
{
    uint32_t layer = 0;
    while (layer < g->layers && g->window[layer] != 0)
        layer++;
    return layer;
}

/* Rows of two chunks. All begin with blocks of their own, but for the first two, which have their first
 * chunk in common. */
static bool make_trial(struct trial *t)
{
    const struct calibration *c = t->c;
    const struct geometry *g = c->geometry;
    uint32_t tasks = attention_info(t->attention)->tasks, shared = CHUNK_TOKENS / g->block_size;
    t->layer = find_layer(g);
    t->stride = ROW_CHUNKS * shared;
    /* half as many work tiles as are computed at a time, so that a work tile more is not one that waits */
    t->rows = larger(ROWS_LEAST, tasks / g->kv_heads / 2);
    t->rows = smaller(smaller(c->rows_max, c->table_rows), smaller(c->blocks, t->rows));
    if (CHUNK_TOKENS % g->block_size != 0 || t->stride > c->table_stride || t->rows < 2 ||
        c->partials_max < 2 * ROW_CHUNKS || t->layer == g->layers)
        return false;
    t->o_bytes = t->rows * geometry_q_row_bytes(g);
    t->o = attention_host_memory(t->attention, t->o_bytes);
    t->tables = calloc((size_t)t->rows * t->stride, sizeof *t->tables);
    t->planned = calloc(t->rows, sizeof *t->planned);
    t->uses = calloc(t->rows, sizeof *t->uses);
    t->sources = calloc(t->rows, sizeof *t->sources);
    if (!t->o || !t->tables || !t->planned || !t->uses || !t->sources)
        return false;
    for (uint32_t row = 0; row < t->rows; row++) {
        for (uint32_t i = 0; i < t->stride; i++)
            t->tables[(size_t)row * t->stride + i] = ((row == 1 && i < shared ? 0 : row) + i) % c->blocks;
        t->planned[row] = (struct planner_query){.table = row, .keys = ROW_CHUNKS * CHUNK_TOKENS};
        t->uses[row] = (struct table_use){row, t->stride, UINT64_MAX}; /* no sequence's version */
    }
    return true;
}

static void free_trial(struct trial *t)
{
    if (t->o)
        attention_free_host_memory(t->attention, t->o, t->o_bytes);
    free(t->tables);
    free(t->planned);
    free(t->uses);
    free(t->sources);
}

/* Run a step of PASSES passes by one plan. Returns the seconds that the backend was busy with it. */
static double time_plan(const struct trial *t, const struct plan *plan)
{
    struct attention_pass passes[PASSES];
    for (uint32_t i = 0; i < PASSES; i++)
        passes[i] =
            (struct attention_pass){.layer = t->layer, .plan = plan, .q_source = t->sources, .o = t->o};
    const struct attention_step step = {.tables = t->tables,
                                        .stride = t->stride,
                                        .uses = t->uses,
                                        .use_count = t->rows,
                                        .passes = passes,
                                        .pass_count = PASSES};
    return time_step(t->attention, &step);
}

/* A planner that cuts no row. */
static struct planner *make_planner(const struct trial *t)
{
    const struct geometry *g = t->c->geometry;
    const struct planner_options options = {.queries_max = t->rows,
                                            .partials_max = t->c->partials_max,
                                            .tasks = g->kv_heads,
                                            .kv_heads = g->kv_heads,
                                            .group = geometry_group(g),
                                            .block_size = g->block_size,
                                            .first_loose_table = t->rows,
                                            .caps = attention_info(t->attention)->tile_caps};
    struct planner *planner;
    return planner_create(&options, &planner) == 0 ? planner : NULL;
}

/* The plan in which all rows share, or none does. */
static const struct plan *make_plan(const struct trial *t, struct planner *planner, enum sharing sharing)
{
    for (uint32_t row = 0; row < t->rows; row++)
        t->planned[row].sharing = sharing;
    return planner_make(planner, t->planned, t->rows, t->tables, t->stride);
}

/* What grouping the two rows adds to a pass, in microseconds; the chunk that is read once less counts
 * for little, since so few blocks stay in the caches. The fastest of several steps, since others may
 * use the machine. False if it takes too long to be measured. */
static bool time_grouping(const struct trial *t, double *us)
{
    static const enum sharing sharing[2] = {SHARING_OFF, SHARING_ON};
    struct planner *planners[2] = {make_planner(t), make_planner(t)};
    const struct plan *plans[2] = {NULL, NULL};
    double best[2] = {LONGEST_S, LONGEST_S};
    for (int i = 0; i < 2 && planners[i]; i++)
        plans[i] = make_plan(t, planners[i], sharing[i]);
    bool ok = plans[0] && plans[1] && time_plan(t, plans[0]) < LONGEST_S;
    for (int i = 0; ok && i < 2 * REPEATS; i++)
        best[i % 2] = fmin(best[i % 2], time_plan(t, plans[i % 2]));
    *us = (best[1] - best[0]) / PASSES * 1e6;
    for (int i = 0; i < 2; i++)
        planner_destroy(planners[i]);
    return ok;
}

struct planner_costs calibrate(const struct calibration *c, struct attention *attention)
{
    struct trial t = {.c = c, .attention = attention};
    struct planner_costs costs = {0};
    double more;
    if (c->read_gb_per_s > 0 && make_trial(&t) && time_grouping(&t, &more)) {
        costs.chunk_us = CHUNK_TOKENS * (double)geometry_token_bytes(c->geometry) / c->read_gb_per_s * 1e-3;
        costs.grouping_us = fmax(more, 0);
    }
    free_trial(&t);
    return costs;
}

/* ---- rates --------------------------------------------------------------------------------------- */

/* A step that is timed: `passes` times `work_tiles` work tiles, each of `rows` queries over the same
 * `tokens`, and `appended` tokens, which are given or generated. */
struct rate_trial {
    uint32_t passes, work_tiles, rows, tokens, appended, copies;
    bool generated;
};

/* What all of them use. */
struct rates_room {
    const struct calibration *c;
    struct attention *attention;
    uint32_t work_tiles, rows, tokens, blocks; /* at most */
    uint32_t *table, *work_tile_queries;
    struct plan_query *plan_queries;
    struct work_tile *plan_work_tiles;
    struct attention_row *tensors; /* [work_tiles * rows] */
    uint8_t *q, *o, *kv;
    size_t q_bytes, kv_bytes;
    bool slow; /* one took too long: no more of them */
};

static bool make_room(struct rates_room *x)
{
    const struct geometry *g = x->c->geometry;
    uint32_t tasks = attention_info(x->attention)->tasks,
             row = planner_queries_of_work_tile(geometry_group(g));
    uint32_t window = g->window[0] ? g->window[0] : UINT32_MAX;
    x->work_tiles = smaller(larger(1, tasks / g->kv_heads), larger(1, x->c->rows_max / 2));
    x->rows = smaller(smaller(row, RATE_ROWS), x->c->rows_max / x->work_tiles);
    x->blocks = smaller(smaller(x->c->blocks, x->c->table_stride), RATE_TOKENS / g->block_size);
    x->tokens = smaller(x->blocks * g->block_size, window);
    if (x->tokens == 0 || x->rows == 0)
        return false;
    uint32_t n = x->work_tiles * x->rows;
    x->q_bytes = n * geometry_q_row_bytes(g);
    x->kv_bytes = RATE_APPENDED * geometry_kv_row_bytes(g, g->dtype);
    x->table = calloc(x->blocks, sizeof *x->table);
    x->work_tile_queries = calloc(n, sizeof *x->work_tile_queries);
    x->plan_queries = calloc(n, sizeof *x->plan_queries);
    x->plan_work_tiles = calloc(x->work_tiles, sizeof *x->plan_work_tiles);
    x->tensors = calloc(n, sizeof *x->tensors);
    x->q = attention_host_memory(x->attention, x->q_bytes);
    x->o = attention_host_memory(x->attention, x->q_bytes);
    x->kv = attention_host_memory(x->attention, x->kv_bytes);
    if (!x->table || !x->work_tile_queries || !x->plan_queries || !x->plan_work_tiles || !x->tensors ||
        !x->q || !x->o || !x->kv)
        return false;
    memset(x->q, 0, x->q_bytes);
    memset(x->kv, 0, x->kv_bytes);
    for (uint32_t i = 0; i < x->blocks; i++)
        x->table[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        size_t at = x->q_bytes / n * i;
        x->tensors[i] = (struct attention_row){.q = (uint8_t *)x->q + at, .o = (uint8_t *)x->o + at};
    }
    return true;
}

static void free_room(struct rates_room *x)
{
    attention_free_host_memory(x->attention, x->q, x->q_bytes);
    attention_free_host_memory(x->attention, x->o, x->q_bytes);
    attention_free_host_memory(x->attention, x->kv, x->kv_bytes);
    void *const lists[] = {x->table, x->work_tile_queries, x->plan_queries, x->plan_work_tiles, x->tensors};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        free(lists[i]);
}

/* Microseconds of the fastest of a few such steps. */
static double time_rate(struct rates_room *x, const struct rate_trial *t)
{
    const struct tile_caps *caps = &attention_info(x->attention)->tile_caps;
    uint32_t n = t->work_tiles * t->rows, chunks = (t->tokens + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
    double best = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        x->plan_queries[i] = (struct plan_query){0, t->tokens};
        x->work_tile_queries[i] = i;
    }
    for (uint32_t i = 0; i < t->work_tiles; i++) {
        struct work_tile *work_tile = &x->plan_work_tiles[i];
        *work_tile = (struct work_tile){
            .chunks = chunks, .first_query = i * t->rows, .queries = t->rows, .partial = PLAN_NO_PARTIAL};
        work_tile->width =
            plan_width_for(caps, plan_widest(caps), work_tile, 1, t->rows * geometry_group(x->c->geometry));
    }
    const struct plan plan = {.queries = x->plan_queries,
                              .work_tiles = x->plan_work_tiles,
                              .work_tile_queries = x->work_tile_queries,
                              .query_count = n,
                              .work_tile_count = t->work_tiles,
                              .caps = caps};
    const void *kv = t->generated ? NULL : x->kv;
    const struct kv_append append = {.count = t->appended, .k = kv, .v = kv, .generated = {1, 1}};
    struct attention_pass passes[PASSES];
    for (uint32_t i = 0; i < t->passes; i++)
        passes[i] = (struct attention_pass){.appends = &append,
                                            .append_count = t->appended ? 1 : 0,
                                            .source_dtype = x->c->geometry->dtype,
                                            .plan = n ? &plan : NULL,
                                            .rows = x->tensors};
    struct block_copy copies[PASSES];
    for (uint32_t i = 0; i < t->copies; i++)
        copies[i] = (struct block_copy){COPY_BLOCK, 0, 1, x->c->geometry->block_size};
    for (uint32_t repeat = 0; repeat < RATE_REPEATS && !x->slow; repeat++) {
        const struct table_use use = {0, x->blocks, UINT64_MAX}; /* no sequence's version */
        const struct attention_step step = {.tables = x->table,
                                            .stride = x->blocks,
                                            .uses = &use,
                                            .use_count = 1,
                                            .copies = copies,
                                            .copy_count = t->copies,
                                            .passes = passes,
                                            .pass_count = t->passes};
        double took = time_step(x->attention, &step);
        best = fmin(best, took * 1e6);
        x->slow = took > LONGEST_S;
    }
    return best;
}

/* A rate from a difference of two times; `otherwise` if there is none. */
static double rate(double more, double less, double count, double otherwise)
{
    double us = (more - less) / count;
    return us > 0 && isfinite(us) ? us : otherwise;
}

/* What a query costs in a pass over `tokens`, beside reading them. */
static double time_query(struct rates_room *x, uint32_t tokens, double otherwise)
{
    struct rate_trial t = {.passes = 1, .work_tiles = x->work_tiles, .rows = x->rows, .tokens = tokens};
    double many = time_rate(x, &t), queries = (double)x->work_tiles * (x->rows > 1 ? x->rows - 1 : 1);
    if (many * PASSES < SHORT_US) {
        t.passes = PASSES;
        many = time_rate(x, &t);
    }
    t.rows = 1;
    double one = x->rows > 1 ? time_rate(x, &t) : 0;
    return rate(many, one, t.passes * queries, otherwise);
}

static void solve_rates(struct rates_room *x, struct cost_rates *r)
{
    uint32_t few = smaller(x->tokens, TILE_TOKENS), appended = smaller(x->tokens, RATE_APPENDED);
    struct rate_trial t = {.passes = 1, .work_tiles = 1, .rows = 1, .tokens = few};
    double one = time_rate(x, &t);
    t.passes = PASSES;
    r->pass_us = rate(time_rate(x, &t), one, PASSES - 1, r->pass_us);
    r->step_us = rate(one, r->pass_us, 1, r->step_us);
    double of_few = time_query(x, few, r->query_us + few * r->weigh_us);
    uint32_t many = x->tokens;
    while (many > 2 * few && of_few / few * many * x->work_tiles * x->rows > SHORT_US)
        many /= 2;
    r->weigh_us = of_few / few;
    if (many > few)
        r->weigh_us = rate(time_query(x, many, INFINITY), of_few, many - few, r->weigh_us);
    r->query_us = rate(of_few, few * r->weigh_us, 1, of_few / 2);
    r->token_us = (double)geometry_token_bytes(x->c->geometry) / x->c->read_gb_per_s * 1e-3;
    t = (struct rate_trial){.passes = PASSES, .appended = appended};
    double given = time_rate(x, &t);
    r->append_us = rate(given, r->step_us, PASSES * (double)appended, r->token_us);
    t.generated = true;
    r->generate_us = rate(time_rate(x, &t), r->step_us, PASSES * (double)appended, r->append_us);
    t = (struct rate_trial){.copies = PASSES};
    if (x->c->blocks > 1)
        r->copy_us = rate(time_rate(x, &t), r->step_us, PASSES, r->copy_us);
}

struct cost_rates calibrate_rates(const struct calibration *c, struct attention *attention)
{
    struct rates_room x = {.c = c, .attention = attention};
    struct cost_rates measured = cost_fallback(c->geometry), fallback = measured;
    bool made = c->read_gb_per_s > 0 && make_room(&x);
    if (made)
        solve_rates(&x, &measured);
    free_room(&x);
    return made && !x.slow ? measured : fallback;
}
