/* SPDX-License-Identifier: Apache-2.0 */
/* step_cost.c - see step_cost.h.
 *
 * Three steps over zeroed blocks give three equations:
 *
 *   a row over a chunk    long_ns   =  keys * (KV heads * key_ns + heads * column_ns)  +  heads * head_ns
 *   a row over one key    short_ns  =         KV heads * key_ns + heads * column_ns   +  heads * head_ns
 *   rows over a tile      many_ns   =  keys * (KV heads * key_ns + rows * heads * column_ns)
 *                                                                              +  rows * heads * head_ns
 *
 * Each is repeated over other blocks, so that K and V come from memory as they mostly do, and the fastest
 * counts, since others may use the machine. The solution is kept between bounds, so that noise in the two
 * other steps never makes a long one look much shorter than it was. Rates that the steps themselves correct
 * were rejected: one step that is preempted would make all small ones look large, and what the whole team
 * takes says little about one thread. */
#include "kernels/cpu/step_cost.h"

#include "config/clock.h"
#include "config/numbers.h"
#include "kernels/backend.h"

#include <math.h>
#include <stdlib.h>

enum {
    TRIAL_COLUMNS = 64, /* several times as many as any kernel takes at once */
    REPEATS = 5
};

static const double LEAST_SHARE = 1.0 / 16; /* of reading, and of computing, in what a key takes */
static const double LONG_S = 0.05;          /* a trial that has taken so long is not repeated */

/* Where there is no memory to measure with: a core of a server with AVX2, group 4 of 128 in bf16. value_ns
 * always is this: a value is generated in 5 ns, and rounded in 0.3 (f32), 1.3 (bf16) or 10 (EPYC). */
static const struct step_rates fallback = {.key_ns = 50, .column_ns = 10, .head_ns = 500, .value_ns = 5};

/* ---- estimate ------------------------------------------------------------------------------------ */

static double generated_ns(const struct step_rates *r, const struct geometry *g, uint64_t heads)
{
    return (double)heads * g->head_dim * r->value_ns;
}

/* To store, or to compare with what is stored, rows that have the stored format or are converted. */
static double rows_ns(const struct step_rates *r, const struct geometry *g, uint32_t count, bool as_it_is)
{
    uint64_t heads = 2 * (uint64_t)count * g->kv_heads;
    return as_it_is ? (double)heads * r->key_ns : generated_ns(r, g, heads);
}

static double work_tile_ns(const struct step_rates *r, const struct geometry *g,
                           const struct attention_pass *pass, const struct work_tile *work_tile)
{
    uint64_t keys = plan_work_tile_tokens(pass->plan, work_tile, g->window[pass->layer]);
    uint64_t columns = (uint64_t)work_tile->queries * g->query_heads;
    return (double)(keys * g->kv_heads) * r->key_ns + (double)(keys * columns) * r->column_ns +
           (double)columns * r->head_ns + (pass->rows ? 0 : generated_ns(r, g, columns));
}

static double pass_ns(const struct step_rates *r, const struct geometry *g, const struct attention_pass *pass,
                      double enough)
{
    double ns = 0;
    for (uint32_t i = 0; i < pass->append_count && ns < enough; i++)
        ns += rows_ns(r, g, pass->appends[i].count, pass->appends[i].k && pass->source_dtype == g->kv_dtype);
    for (uint32_t i = 0; pass->plan && i < pass->plan->work_tile_count && ns < enough; i++)
        ns += work_tile_ns(r, g, pass, &pass->plan->work_tiles[i]);
    for (uint32_t i = 0; pass->plan && i < pass->plan->merge_count && ns < enough; i++)
        ns += g->query_heads * r->head_ns;
    return ns;
}

/* Copies, compares, reads and merges of states. */
static double operations_ns(const struct step_rates *r, const struct geometry *g,
                            const struct attention_step *step, double enough)
{
    double ns = 0;
    for (uint32_t i = 0; i < step->copy_count && ns < enough; i++) {
        const struct block_copy *copy = &step->copies[i];
        uint32_t slots = copy->kind == COPY_CLEAR ? g->block_size : copy->slots;
        ns += g->layers * rows_ns(r, g, slots, true);
    }
    for (uint32_t i = 0; i < step->compare_count && ns < enough; i++)
        ns += rows_ns(r, g, step->compares[i].count, step->compares[i].dtype == g->kv_dtype);
    for (uint32_t i = 0; i < step->read_count && ns < enough; i++)
        ns += rows_ns(r, g, step->reads[i].count, true);
    for (uint32_t i = 0; i < step->merge_count && ns < enough; i++) {
        const struct merge_states *m = &step->merges[i];
        double heads = (double)m->rows * m->heads;
        ns += heads * r->head_ns + heads * m->states * m->head_dim * r->value_ns;
    }
    return ns;
}

double step_cost_us(const struct step_rates *r, const struct geometry *g, const struct attention_step *step,
                    double enough)
{
    double ns = operations_ns(r, g, step, enough * 1e3);
    for (uint32_t p = 0; p < step->pass_count && ns < enough * 1e3; p++)
        ns += pass_ns(r, g, &step->passes[p], enough * 1e3 - ns);
    return ns * 1e-3;
}

/* ---- measurement --------------------------------------------------------------------------------- */

/* Rows of the same keys, in one work tile. */
struct trial {
    struct attention *attention;
    const struct geometry *g;
    uint32_t blocks, keys, rows;
    uint32_t table[CHUNK_TOKENS];
    uint8_t *q, *o;
};

/* Nanoseconds of the fastest of REPEATS steps. `read`: how many keys it reads. */
static double time_trial(struct trial *t, double *read)
{
    const struct geometry *g = t->g;
    uint32_t entries = geometry_blocks(g, t->keys);
    struct plan_query rows[TRIAL_COLUMNS];
    struct attention_row tensors[TRIAL_COLUMNS];
    uint32_t work_tile_queries[TRIAL_COLUMNS];
    size_t bytes = geometry_q_row_bytes(g);
    for (uint32_t i = 0; i < t->rows; i++) {
        rows[i] = (struct plan_query){0, t->keys};
        tensors[i] = (struct attention_row){.q = t->q + i * bytes, .o = t->o + i * bytes};
        work_tile_queries[i] = i;
    }
    const struct work_tile work_tile = {.chunks = 1, .queries = t->rows, .partial = PLAN_NO_PARTIAL};
    const struct plan plan = {.queries = rows,
                              .work_tiles = &work_tile,
                              .work_tile_queries = work_tile_queries,
                              .query_count = t->rows,
                              .work_tile_count = 1};
    const struct attention_pass pass = {.plan = &plan, .rows = tensors};
    const struct attention_step step = {
        .tables = t->table, .stride = entries, .passes = &pass, .pass_count = 1};
    double best = INFINITY, begin = clock_s();
    for (uint32_t repeat = 0; repeat < REPEATS && clock_s() - begin < LONG_S; repeat++) {
        for (uint32_t i = 0; i < entries; i++)
            t->table[i] = (repeat * entries + i) % t->blocks;
        double start = clock_s();
        t->attention->ops->submit(t->attention, &step, 0);
        best = fmin(best, clock_s() - start);
    }
    *read = plan_work_tile_tokens(&plan, &work_tile, g->window[0]);
    return fmax(best * 1e9, 1);
}

static double between(double least, double x, double most)
{
    return x >= least ? fmin(x, most) : least; /* NaN: least */
}

/* From two trials with one row, and one with `many`. */
static struct step_rates solve(struct trial *t, uint32_t many)
{
    const struct geometry *g = t->g;
    double read_long, read_short, read_many, heads = g->query_heads;
    double long_ns = time_trial(t, &read_long);
    t->keys = 1;
    double short_ns = time_trial(t, &read_short);
    t->keys = smaller((uint32_t)read_long, TILE_TOKENS);
    t->rows = many;
    double many_ns = time_trial(t, &read_many);

    double key = long_ns / read_long; /* for all heads of one row */
    key = between(key / 2, (long_ns - short_ns) / (read_long - read_short), key);
    struct step_rates r = fallback;
    r.head_ns = fmax(long_ns - key * read_long, 1) / heads;
    double column = INFINITY; /* large groups: all is computing */
    if (many > 1)
        column = (many_ns - key * read_many - r.head_ns * heads * many) / (read_many * (many - 1.0));
    r.column_ns = between(LEAST_SHARE * key, column, (1 - LEAST_SHARE) * key) / heads;
    r.key_ns = (key - heads * r.column_ns) / g->kv_heads;
    return r;
}

struct step_rates step_rates_measure(struct attention *attention, const struct geometry *g, uint32_t blocks)
{
    uint32_t group = geometry_group(g), many = group < TRIAL_COLUMNS ? TRIAL_COLUMNS / group : 1;
    size_t row_bytes = geometry_q_row_bytes(g);
    struct trial t = {.attention = attention, .g = g, .blocks = blocks, .rows = 1};
    t.keys = smaller(smaller(blocks, CHUNK_TOKENS) * g->block_size, CHUNK_TOKENS);
    t.q = calloc((size_t)2 * many, row_bytes);
    t.o = t.q + many * row_bytes;
    struct step_rates rates = t.q ? solve(&t, many) : fallback;
    free(t.q);
    return rates;
}
