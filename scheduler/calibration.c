/* calibration.c - see calibration.h. */
#include "scheduler/calibration.h"

#include <math.h>
#include <stdlib.h>

enum {
    ROWS_LEAST = 4,
    ROW_CHUNKS = 2, /* of the rows that are read: the first one is shared by two of them */
    PASSES = 8,     /* of a step */
    REPEATS = 9     /* steps of either plan, in turn */
};

static const double LONGEST_S = 0.02; /* of the first step; a slower backend is not measured */

/* One step that can be run by either plan. */
struct trial {
    const struct calibration *c;
    struct attention *attention;
    uint32_t layer, rows, stride;
    uint32_t *tables; /* [rows][stride] */
    struct planner_row *planned;
    struct table_use *uses;
    struct value_source *sources;
    void *o;
    size_t o_bytes;
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
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
    /* half as many items as are computed at a time, so that an item more is not one that waits */
    t->rows = larger(ROWS_LEAST, tasks / g->kv_heads / 2);
    t->rows = smaller(smaller(c->rows_max, c->table_rows), smaller(c->blocks, t->rows));
    if (CHUNK_TOKENS % g->block_size != 0 || t->stride > c->table_stride || t->rows < 2 ||
        c->partials_max < 2 * ROW_CHUNKS || t->layer == g->layers)
        return false;
    t->o_bytes = (size_t)t->rows * g->query_heads * g->head_dim * dtype_bytes(g->dtype);
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
        t->planned[row] = (struct planner_row){row, ROW_CHUNKS * CHUNK_TOKENS, 1};
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

static double run_step(const struct trial *t, const struct plan *plan)
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
    uint64_t ticket = attention_submit(t->attention, &step);
    attention_await(t->attention, ticket);
    return attention_times(t->attention, ticket).busy_s;
}

/* A planner that cuts no row. */
static struct planner *make_planner(const struct trial *t, bool share)
{
    const struct geometry *g = t->c->geometry;
    const struct planner_options options = {.rows_max = t->rows,
                                            .partials_max = t->c->partials_max,
                                            .tasks = g->kv_heads,
                                            .kv_heads = g->kv_heads,
                                            .group = geometry_group(g),
                                            .block_size = g->block_size,
                                            .first_loose_table = t->rows,
                                            .share = share};
    struct planner *planner;
    return planner_create(&options, &planner) == 0 ? planner : NULL;
}

/* What grouping the two rows adds to a pass, in microseconds; the chunk that is read once less counts
 * for little, since so few blocks stay in the caches. The fastest of several steps, since others may
 * use the machine. False if it takes too long to be measured. */
static bool time_grouping(const struct trial *t, double *us)
{
    struct planner *planners[2] = {make_planner(t, false), make_planner(t, true)};
    const struct plan *plans[2] = {NULL, NULL};
    double best[2] = {LONGEST_S, LONGEST_S};
    for (int i = 0; i < 2 && planners[i]; i++)
        plans[i] = planner_make(planners[i], t->planned, t->rows, t->tables, t->stride);
    bool ok = plans[0] && plans[1] && run_step(t, plans[0]) < LONGEST_S;
    for (int i = 0; ok && i < 2 * REPEATS; i++)
        best[i % 2] = fmin(best[i % 2], run_step(t, plans[i % 2]));
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
