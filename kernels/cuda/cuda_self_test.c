/* cuda_self_test.c - see cuda_self_test.h.
 *
 * The queries of the problem, all of one sequence:
 *
 *   0 .. n-1   as many neighbours as fill the widest tiles; each sees five chunks, in two runs
 *   n          four chunks: a split group of four
 *   n+1        two spans
 *
 * They are computed in two variants, each in a layer of its own: without a window and with one, or by
 * paged_v1 and by paged_v2. The first trial of a variant computes every query by itself, in the narrowest
 * tiles; each of the others some queries in another way. A trial is a pass, and all of them together are one
 * step.
 *
 * What writes the step down is a second struct cuda_backend: kernels of the one that is tested, all else its
 * own. Where the pool has no room for every position, the table names its blocks again and again. */
#include "kernels/cuda/cuda_self_test.h"

#include "config/clock.h"
#include "config/log.h"
#include "config/numbers.h"
#include "kernels/numeric.h"
#include "kernels/reference.h"
#include "kernels/values.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    KEYS = RUN_CHUNKS * CHUNK_TOKENS + 200, /* of query 0; each of up to 128 neighbours has one less */
    SHORT_KEYS = RUN_CHUNKS * CHUNK_TOKENS - 24,
    LONG_KEYS = SPAN_CHUNKS * CHUNK_TOKENS + 200,
    WINDOW = 1000,      /* begins in the first chunk of all neighbours, at tiles of their own */
    PAGED_QUERIES = 2,  /* of the vllm layout, which has neither tiles nor windows */
    MERGED_QUERIES = 2, /* neighbours whose chunks are merged */
    VARIANTS = 2,
    TRIALS_MAX = 24,       /* of a variant */
    COMPARED_MAX = 4,      /* KV heads that are compared with double precision, and query heads of each */
    FILL_TOKENS = 64,      /* of a part: generated and rounded in a millisecond, at most */
    POOL_BYTES = 48 << 20, /* or one block */
    CONTROL_BYTES = 4 << 20
};

/* Of the largest element of a head: several roundings of bf16; a wrong key or factor is more. And of lse. */
static const double TOLERANCE = 0.02, LSE_TOLERANCE = 0.02;

static const struct value_source test_values = {.seed = 7, .content = 1, .wide = 1};

/* Queries [first, first + count) of the problem, computed in one way. */
struct trial {
    const char *what;
    uint32_t variant, first, count;
    uint32_t work_tile_chunks; /* work tiles end at its multiples: chunks of a node, or of a span */
    bool shared;               /* its queries share work tiles */
    uint32_t width;
    uint32_t cta_splits; /* of a split group; 0: merged */
    uint32_t result;     /* where its queries begin in the results */
    struct plan plan;    /* with the arrays behind it */
    struct plan_query *queries;
    struct work_tile *work_tiles;
    struct plan_merge *merges;
    struct partial_ref *merge_partials;
    uint32_t *work_tile_queries;
};

enum phase { IDLE, RUNS, COMPARES_BITS, COMPARES_HEADS };

struct cuda_self_test {
    struct cuda_backend own;
    struct geometry geometry;         /* of a layer for each variant */
    struct model_constants constants; /* in each the first layer's */
    float *sinks;                     /* of these, if there are any */
    uint32_t *table;                  /* of its one sequence, table 0 */
    struct plan_query *problem;       /* [neighbours + 2] */
    uint32_t neighbours;
    struct trial trials[VARIANTS * TRIALS_MAX];
    uint32_t trial_count, base[VARIANTS]; /* the trial that the others of a variant are compared with */
    uint32_t queries;                     /* of all trials */
    struct value_source *q_source;        /* [neighbours + 2] */
    uint8_t *o;                           /* [queries][query_heads][head_dim], pinned */
    float *lse;                           /* [queries][query_heads], pinned */
    uint64_t ticket;                      /* of the latest test */
    enum phase phase;
    double begun_s;
    char finding[96];
    /* What is compared: one KV head of a variant after the other, whose keys and values are filled in, then
       heads of its group. */
    uint32_t variant, kv_head, filled, compared;
    float (*kv)[2][HEAD_DIM_MAX]; /* [KEYS] as they are stored */
};

/* ---- the trials ---------------------------------------------------------------------------------- */

/* Chunks that a query of the problem sees in a trial. */
static struct plan_range chunks_of(const struct cuda_self_test *t, const struct trial *x, uint32_t query)
{
    return plan_visible_chunks(t->problem[x->first + query].keys, t->geometry.window[x->variant]);
}

static enum plan_level level_of(uint32_t work_tile_chunks)
{
    return work_tile_chunks < RUN_CHUNKS       ? PLAN_CHUNK
           : work_tile_chunks < SEGMENT_CHUNKS ? PLAN_RUN
                                               : PLAN_SEGMENT;
}

/* Work tiles that these chunks of a query are cut into. */
static uint32_t splits_of(const struct trial *x, struct plan_range chunks)
{
    return (chunks.end - 1) / x->work_tile_chunks - chunks.first / x->work_tile_chunks + 1;
}

/* The work tiles of queries [query, query + n) of a trial, which see the same chunks, and their partials. */
static void add_work_tiles(struct trial *x, uint32_t query, uint32_t n, struct plan_range chunks)
{
    struct plan *plan = &x->plan;
    uint32_t work_tile_queries = cuda_work_tile_queries(plan), splits = splits_of(x, chunks);
    struct work_tile *work_tiles = &x->work_tiles[plan->work_tile_count];
    for (uint32_t at = chunks.first, stop, i = 0; at < chunks.end; at = stop, i++) {
        stop = smaller(chunks.end, (at / x->work_tile_chunks + 1) * x->work_tile_chunks);
        work_tiles[i] =
            (struct work_tile){.first_chunk = at,
                               .chunks = stop - at,
                               .first_query = work_tile_queries,
                               .queries = n,
                               .partial = splits > 1 ? plan->partial_count + i * n : PLAN_NO_PARTIAL,
                               .width = (uint8_t)x->width};
        for (uint32_t r = 0; r < n; r++) {
            x->work_tile_queries[work_tile_queries++] = query + r;
            x->merge_partials[plan->partial_count + r * splits + i] =
                (struct partial_ref){plan->partial_count + i * n + r, stop, level_of(x->work_tile_chunks)};
        }
    }
    plan->work_tile_count += splits;
    if (splits == 1)
        return;
    for (uint32_t r = 0; r < n; r++)
        x->merges[plan->merge_count++] =
            (struct plan_merge){query + r, plan->partial_count + r * splits, splits, x->cta_splits > 0};
    if (x->cta_splits) {
        work_tiles->splits = (uint8_t)splits;
        work_tiles->cta_splits = (uint8_t)x->cta_splits;
    }
    plan->partial_count += splits * n;
}

/* Add a trial and its plan. False: no memory. */
static bool add_trial(struct cuda_self_test *t, struct trial trial)
{
    struct trial *x = &t->trials[t->trial_count];
    uint32_t splits = 0;
    assert(t->trial_count < VARIANTS * TRIALS_MAX);
    *x = trial;
    for (uint32_t query = 0; query < x->count; query++)
        splits += splits_of(x, chunks_of(t, x, query));
    assert(splits > 0);
    x->queries = calloc(x->count, sizeof *x->queries);
    x->merges = calloc(x->count, sizeof *x->merges);
    x->work_tiles = calloc(splits, sizeof *x->work_tiles);
    x->merge_partials = calloc(splits, sizeof *x->merge_partials);
    x->work_tile_queries = calloc(splits, sizeof *x->work_tile_queries);
    t->trial_count++; /* it is freed from now on */
    if (!x->queries || !x->merges || !x->work_tiles || !x->merge_partials || !x->work_tile_queries)
        return false;
    memcpy(x->queries, t->problem + x->first, x->count * sizeof *x->queries);
    x->plan.queries = x->queries;
    x->plan.query_count = x->count;
    x->plan.work_tiles = x->work_tiles;
    x->plan.work_tile_queries = x->work_tile_queries;
    x->plan.merges = x->merges;
    x->plan.merge_partials = x->merge_partials;
    x->plan.caps = &t->own.base.info.tile_caps;
    for (uint32_t query = 0; query < x->count; query += x->shared ? x->count : 1)
        add_work_tiles(x, query, x->shared ? x->count : 1, chunks_of(t, x, query));
    assert(!plan_fault(&x->plan, t->geometry.window[x->variant]));
    x->result = t->queries;
    t->queries += x->count;
    return true;
}

static const char *kernel_of(const struct cuda_self_test *t, uint32_t width)
{
    return cuda_kernels[t->own.widths[width].kernel].name;
}

/* A query cut into work tiles of so many chunks as split groups of every kind that there is room for. */
static bool add_groups(struct cuda_self_test *t, uint32_t variant, uint32_t query, uint32_t work_tile_chunks,
                       uint32_t splits)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    const struct work_tile one = {.chunks = work_tile_chunks};
    uint32_t width = plan_width_for(caps, plan_widest(caps), &one, 1, geometry_group(&t->geometry)),
             most = smaller(splits, plan_cta_splits_max(caps, width));
    bool ok = true;
    for (uint32_t cta_splits = 1; ok && cta_splits <= most && splits <= caps->splits_max; cta_splits *= 2) {
        if (splits / cta_splits > caps->cluster_max)
            continue;
        ok = add_trial(t, (struct trial){.what = "a split group",
                                         .variant = variant,
                                         .first = query,
                                         .count = 1,
                                         .work_tile_chunks = work_tile_chunks,
                                         .width = width,
                                         .cta_splits = cta_splits});
    }
    return ok;
}

/* The widest tiles that take whole spans. */
static uint32_t widest_of_spans(const struct tile_caps *caps)
{
    uint32_t width = plan_widest(caps);
    while (width > 0 && caps->widths[width].chunks && caps->widths[width].chunks < SPAN_CHUNKS)
        width--;
    return width;
}

static bool add_trials(struct cuda_self_test *t, uint32_t variant)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    const bool paged = t->geometry.layout == LAYOUT_VLLM;
    uint32_t n = t->neighbours, group = geometry_group(&t->geometry);
    t->base[variant] = t->trial_count;
    bool ok = add_trial(t, (struct trial){.what = paged ? variant ? "paged_v2" : "paged_v1" : kernel_of(t, 0),
                                          .variant = variant,
                                          .count = paged ? n : n + 2,
                                          .work_tile_chunks = SPAN_CHUNKS});
    if (paged)
        return ok;
    for (uint32_t i = 0; ok && i < caps->width_count; i++) {
        uint32_t chunks = caps->widths[i].chunks;
        ok = add_trial(t, (struct trial){.what = kernel_of(t, i),
                                         .variant = variant,
                                         .count = smaller(n, ceiling(caps->widths[i].query_heads, group)),
                                         .work_tile_chunks = chunks ? chunks : SPAN_CHUNKS,
                                         .shared = true,
                                         .width = i});
    }
    return ok &&
           add_trial(t, (struct trial){.what = "merge",
                                       .variant = variant,
                                       .count = smaller(n, MERGED_QUERIES),
                                       .work_tile_chunks = 1,
                                       .shared = true}) &&
           add_trial(t, (struct trial){.what = "merge_spans",
                                       .variant = variant,
                                       .first = n + 1,
                                       .count = 1,
                                       .work_tile_chunks = SEGMENT_CHUNKS}) &&
           add_trial(t, (struct trial){.what = "segments of a span",
                                       .variant = variant,
                                       .first = n + 1,
                                       .count = 1,
                                       .work_tile_chunks = SPAN_CHUNKS,
                                       .width = widest_of_spans(caps)}) &&
           add_groups(t, variant, 0, RUN_CHUNKS, 2) && add_groups(t, variant, n, 1, 4);
}

/* ---- a test -------------------------------------------------------------------------------------- */

/* The constants of the first layer, as they are now, for each variant. */
static void take_constants(struct cuda_self_test *t, const struct model_constants *now)
{
    const struct geometry *g = &t->geometry;
    struct model_constants *c = &t->constants;
    for (uint32_t variant = 0; variant < VARIANTS; variant++) {
        memcpy(c->k_scale + (size_t)variant * g->kv_heads, now->k_scale, g->kv_heads * sizeof(float));
        memcpy(c->v_scale + (size_t)variant * g->kv_heads, now->v_scale, g->kv_heads * sizeof(float));
        if (now->sinks)
            memcpy(t->sinks + (size_t)variant * g->query_heads, now->sinks, g->query_heads * sizeof(float));
    }
    c->sinks = now->sinks ? t->sinks : NULL;
    c->alibi = now->alibi;
    c->version = now->version;
}

static void submit(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    const struct kv_append append = {.count = t->own.options.blocks * g->block_size,
                                     .generated = test_values};
    const struct table_use use = {0, t->own.options.table_stride, 1};
    struct attention_pass passes[VARIANTS * TRIALS_MAX];
    const struct attention_step step = {.tables = t->table,
                                        .stride = t->own.options.table_stride,
                                        .uses = &use,
                                        .use_count = 1,
                                        .passes = passes,
                                        .pass_count = t->trial_count};
    for (uint32_t i = 0; i < t->trial_count; i++) {
        const struct trial *x = &t->trials[i];
        passes[i] = (struct attention_pass){.layer = x->variant,
                                            .appends = &append,
                                            .append_count = i == t->base[x->variant],
                                            .plan = &x->plan,
                                            .q_source = t->q_source,
                                            .o = t->o + x->result * geometry_q_row_bytes(g),
                                            .lse = t->lse + (size_t)x->result * g->query_heads};
        if (g->layout == LAYOUT_VLLM)
            passes[i].kernel = x->variant ? ATTENTION_PAGED_V2 : ATTENTION_PAGED_V1;
    }
    cuda_step_submit(&t->own, &step, ++t->ticket);
}

/* Look whether the GPU is done, for step_timeout_s at most. */
static void look(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    uint32_t limit_s = b->base.step_timeout_s ? b->base.step_timeout_s : ATTENTION_STEP_TIMEOUT_S;
    double now = clock_s(); /* ahead of the look, for a process that was stopped */
    if (cuda_queue_is_done(&t->own.queue, t->ticket))
        t->phase = COMPARES_BITS;
    else if (now > t->begun_s + limit_s)
        attention_fail(&b->base, "the device hangs: the self-test is not finished after %u s", limit_s);
}

/* Whether all trials have the bits of the first one of their variant. */
static bool bits_agree(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    size_t o_bytes = geometry_q_row_bytes(g), heads = g->query_heads;
    for (uint32_t i = 0; i < t->trial_count; i++) {
        const struct trial *x = &t->trials[i], *base = &t->trials[t->base[x->variant]];
        size_t got = x->result, expected = base->result + x->first;
        if (memcmp(t->o + got * o_bytes, t->o + expected * o_bytes, x->count * o_bytes) == 0 &&
            memcmp(t->lse + got * heads, t->lse + expected * heads, x->count * heads * sizeof *t->lse) == 0)
            continue;
        snprintf(t->finding, sizeof t->finding, "%s has other bits than %s", x->what, base->what);
        return false;
    }
    return true;
}

/* ---- double precision ---------------------------------------------------------------------------- */

/* Which of `count` heads is the i'th that is compared: from the first to the last. */
static uint32_t head_at(uint32_t i, uint32_t count)
{
    return count <= COMPARED_MAX ? i : i * (count - 1) / (COMPARED_MAX - 1);
}

/* Key and value at a position, which may be those of an earlier one, since the table repeats its blocks. */
static void fill(struct cuda_self_test *t, uint32_t position)
{
    const struct geometry *g = &t->geometry;
    uint32_t kv_head = head_at(t->kv_head, g->kv_heads), at = t->variant * g->kv_heads + kv_head,
             stored = t->table[position / g->block_size] * g->block_size + position % g->block_size;
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    for (int i = 0; i < 2; i++) {
        float *row = t->kv[position][i], scale = (i ? t->constants.v_scale : t->constants.k_scale)[at];
        values_row(test_values, stored, t->variant, i ? VALUES_V : VALUES_K, kv_head, g->head_dim, row);
        for (uint32_t d = 0; d < g->head_dim; d++)
            row[d] /= scale;
        numeric_from_float(g->kv_dtype, row, g->head_dim, rounded);
        numeric_to_float(g->kv_dtype, rounded, g->head_dim, row);
    }
}

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct cuda_self_test *t = cookie;
    size_t bytes = t->geometry.head_dim * sizeof *k;
    (void)kv_head;
    memcpy(k, t->kv[position][0], bytes);
    memcpy(v, t->kv[position][1], bytes);
}

/* Whether a head is right, of the first neighbour or, in the second variant, the last. */
static bool head_agrees(struct cuda_self_test *t, uint32_t head)
{
    const struct geometry *g = &t->geometry;
    const struct trial *base = &t->trials[t->base[t->variant]];
    uint32_t query = t->variant ? t->neighbours - 1 : 0, keys = t->problem[query].keys;
    size_t at = (size_t)(base->result + query) * g->query_heads + head;
    float q[HEAD_DIM_MAX];
    double expected[HEAD_DIM_MAX], lse, largest = 0, worst = 0;
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    values_row(test_values, keys - 1, t->variant, VALUES_Q, head, g->head_dim, q);
    numeric_from_float(g->dtype, q, g->head_dim, rounded);
    numeric_to_float(g->dtype, rounded, g->head_dim, q);
    reference_query(g, &t->constants, t->variant, keys, head, q, load_kv, t, expected, &lse);
    for (uint32_t d = 0; d < g->head_dim; d++) {
        double got = (double)numeric_load(g->dtype, t->o, at * g->head_dim + d);
        largest = fmax(largest, fabs(expected[d]));
        worst = isfinite(got) ? fmax(worst, fabs(got - expected[d])) : INFINITY;
    }
    if (worst <= TOLERANCE * largest && fabs((double)t->lse[at] - lse) <= LSE_TOLERANCE)
        return true;
    snprintf(t->finding, sizeof t->finding, "%s differs from the reference", base->what);
    return false;
}

/* Go on comparing with double precision; false when a head is wrong. */
static bool heads_agree(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    uint32_t group = geometry_group(g);
    if (t->filled < KEYS) {
        for (uint32_t i = 0; i < FILL_TOKENS && t->filled < KEYS; i++)
            fill(t, t->filled++);
        return true;
    }
    bool agrees = head_agrees(t, head_at(t->kv_head, g->kv_heads) * group + head_at(t->compared, group));
    if (++t->compared == smaller(group, COMPARED_MAX)) {
        t->filled = t->compared = 0;
        t->kv_head++;
    }
    if (t->kv_head == smaller(g->kv_heads, COMPARED_MAX)) {
        t->kv_head = 0;
        t->variant++;
    }
    if (t->variant == VARIANTS)
        t->phase = IDLE;
    return agrees;
}

/* ---- parts --------------------------------------------------------------------------------------- */

enum attention_verdict cuda_self_test_part(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    bool agrees = true;
    switch (t->phase) {
    case IDLE:
        t->phase = RUNS;
        t->variant = t->kv_head = t->filled = t->compared = 0;
        t->begun_s = clock_s();
        take_constants(t, b->options.constants);
        submit(t);
        break;
    case RUNS:
        look(b);
        break;
    case COMPARES_BITS:
        t->phase = COMPARES_HEADS;
        agrees = bits_agree(t);
        break;
    case COMPARES_HEADS:
        agrees = heads_agree(t);
        break;
    }
    if (!agrees || cuda_failed(&b->device)) {
        t->phase = IDLE;
        return ATTENTION_TEST_FAILED;
    }
    return t->phase == IDLE ? ATTENTION_TEST_PASSED : ATTENTION_TEST_RUNS;
}

const char *cuda_self_test_finding(const struct cuda_backend *b)
{
    return b->test->finding;
}

void cuda_self_test_await(struct cuda_backend *b)
{
    const struct cuda_self_test *t = b->test;
    if (t && t->phase == RUNS)
        cuda_await_stream(&b->device, t->own.device.stream, "the self-test");
}

/* ---- init and deinit ----------------------------------------------------------------------------- */

/* The queries, and every trial with its plan. */
static bool make_problem(struct cuda_self_test *t)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    uint32_t n = PAGED_QUERIES;
    if (t->geometry.layout != LAYOUT_VLLM)
        n = ceiling(caps->widths[plan_widest(caps)].query_heads, geometry_group(&t->geometry));
    t->neighbours = n;
    t->problem = calloc(n + 2, sizeof *t->problem);
    for (uint32_t i = 0; t->problem && i < n; i++)
        t->problem[i].keys = KEYS - i;
    if (t->problem) {
        t->problem[n].keys = SHORT_KEYS;
        t->problem[n + 1].keys = LONG_KEYS;
    }
    return t->problem && add_trials(t, 0) && add_trials(t, 1);
}

/* Options for memory of the test's own. */
static void choose_options(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    struct attention_options *o = &t->own.options;
    uint64_t room = POOL_BYTES / geometry_block_bytes(g);
    uint32_t blocks = ceiling(KEYS, g->block_size), partitions = ceiling(KEYS, PAGED_PARTITION);
    o->geometry = g;
    o->constants = &t->constants;
    o->blocks = room < 1 ? 1 : room < blocks ? (uint32_t)room : blocks;
    o->host_blocks = 0;
    o->rows_max = t->neighbours + 2;
    o->partials_max = PAGED_QUERIES * partitions;
    for (uint32_t i = 0; i < t->trial_count; i++)
        o->partials_max = larger(o->partials_max, t->trials[i].plan.partial_count);
    o->table_rows = 1;
    o->table_stride = ceiling(g->layout == LAYOUT_VLLM ? KEYS : LONG_KEYS, g->block_size);
}

bool cuda_self_test_init(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test = calloc(1, sizeof *t);
    if (!t)
        return false;
    struct geometry *g = &t->geometry;
    struct cuda_backend *own = &t->own;
    struct cuda_device *d = &own->device;
    *g = *b->options.geometry;
    g->layers = VARIANTS;
    g->window[0] = 0;
    g->window[1] = g->layout == LAYOUT_VLLM ? 0 : WINDOW;
    own->base.info = b->base.info;
    own->options = b->options;
    memcpy(own->widths, b->widths, sizeof own->widths);
    own->merge_batch_max = b->merge_batch_max;
    if (!cuda_device_share(d, &b->device) || !cuda_queue_init(&own->queue, d, CONTROL_BYTES) ||
        !make_problem(t))
        return false;
    memcpy(own->queue.kernels, b->queue.kernels, sizeof own->queue.kernels);
    choose_options(t);
    struct model_constants *c = &t->constants;
    size_t kv_bytes = (size_t)VARIANTS * g->kv_heads * sizeof(float),
           q_heads = (size_t)VARIANTS * g->query_heads;
    c->k_scale = calloc(1, kv_bytes);
    c->v_scale = calloc(1, kv_bytes);
    t->sinks = calloc(q_heads, sizeof *t->sinks);
    t->table = calloc(own->options.table_stride, sizeof *t->table);
    t->q_source = calloc(own->options.rows_max, sizeof *t->q_source);
    t->kv = calloc(KEYS, sizeof *t->kv);
    if (!c->k_scale || !c->v_scale || !t->sinks || !t->table || !t->q_source || !t->kv)
        return false;
    for (uint32_t i = 0; i < own->options.table_stride; i++)
        t->table[i] = i % own->options.blocks;
    for (uint32_t i = 0; i < own->options.rows_max; i++)
        t->q_source[i] = test_values;
    if (!cuda_memory_take(own))
        return false;
    t->o = cuda_host_memory(d, t->queries * geometry_q_row_bytes(g));
    t->lse = cuda_host_memory(d, (size_t)t->queries * g->query_heads * sizeof *t->lse);
    return t->o && t->lse;
}

void cuda_self_test_deinit(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    if (!t)
        return;
    struct cuda_backend *own = &t->own;
    struct cuda_device *d = &own->device;
    cuda_queue_deinit(&own->queue);
    cuda_memory_free(own);
    cuda_free_host_memory(d, t->o);
    cuda_free_host_memory(d, t->lse);
    cuda_device_unshare(d);
    for (uint32_t i = 0; i < t->trial_count; i++) {
        struct trial *x = &t->trials[i];
        free(x->queries);
        free(x->work_tiles);
        free(x->merges);
        free(x->merge_partials);
        free(x->work_tile_queries);
    }
    free(t->constants.k_scale);
    free(t->constants.v_scale);
    free(t->sinks);
    free(t->problem);
    free(t->table);
    free(t->q_source);
    free(t->kv);
    free(t);
}
