/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_self_test.c - see cuda_self_test.h.
 *
 * The queries of the problem, all of one sequence:
 *
 *   0 .. n-1   as many neighbours as fill the widest tiles; each sees five chunks, in two runs
 *   n          four chunks: a split group of four
 *   n+1        two spans
 *
 * They are computed in two variants, one after the other, with the constants of the model's first layer:
 * without a window and with one, or by paged_v1 and by paged_v2. The first trial of a variant computes every
 * query by itself, in the narrowest tiles; each of the others some queries together, or cut in another way. A
 * trial is a pass, and all of a variant are one step.
 *
 * What writes the steps down is a second struct cuda_backend: kernels and constants of the one that is
 * tested, all else its own. Where the pool has no room for every position, the table names its blocks again
 * and again. */
#include "kernels/cuda/cuda_self_test.h"

#include "config/clock.h"
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
    QUERIES_MAX = CUDA_COLUMNS_MAX + 2,
    SPLITS_MAX = 2 * QUERIES_MAX, /* of all queries of a trial */
    VARIANTS = 2,
    TRIALS_MAX = 24,  /* of a variant */
    COMPARED_MAX = 4, /* KV heads that are compared with double precision, and query heads of each */
    FILL_TOKENS = 64, /* of a part: generated and rounded in a millisecond, at most */
    FILL_PARTS = (KEYS + FILL_TOKENS - 1) / FILL_TOKENS,
    POOL_BYTES = 48 << 20, /* or one block */
    CONTROL_BYTES = 4 << 20
};

/* Of the largest element of a head: several roundings of bf16; a wrong key or factor is more. And of lse. */
static const double TOLERANCE = 0.02, LSE_TOLERANCE = 0.02;

static const struct value_source test_values = {.seed = 7, .content = 1, .wide = 1};

/* What a plan points to. */
struct plan_arrays {
    struct work_tile work_tiles[SPLITS_MAX];
    struct plan_merge merges[QUERIES_MAX];
    struct partial_ref merge_partials[SPLITS_MAX];
    uint32_t work_tile_queries[SPLITS_MAX];
};

/* Queries [first, first + count) of the problem, computed in one way. */
struct trial {
    const char *what;
    uint32_t first, count;
    uint32_t work_tile_chunks; /* work tiles end at its multiples: chunks of a node, or of a span */
    uint32_t width;
    uint32_t cta_splits; /* of a split group; 0: merged */
    uint32_t result;     /* where its queries begin in the results */
    struct plan plan;
};

enum phase { IDLE, RUNS, COMPARES_BITS, COMPARES_HEADS };

struct cuda_self_test {
    struct cuda_backend own;
    struct geometry geometry;               /* of one layer */
    uint32_t table[LONG_KEYS];              /* of its one sequence, table 0 */
    struct plan_query problem[QUERIES_MAX]; /* [neighbours + 2] */
    uint32_t neighbours;
    struct trial trials[TRIALS_MAX]; /* of the variant; the others are compared with the first one */
    struct plan_arrays arrays[TRIALS_MAX];
    uint32_t trial_count;
    uint32_t queries;                          /* of all trials */
    struct value_source q_source[QUERIES_MAX]; /* the same for all */
    uint8_t *o;                                /* [queries][query_heads][head_dim], pinned */
    float *lse;                                /* [queries][query_heads], pinned */
    uint64_t ticket;                           /* of the latest step */
    uint64_t constants_version;                /* that the test began with */
    enum phase phase;
    uint32_t variant;
    uint32_t part; /* of the comparison with double precision: for one KV head after the other, its keys and
                      values are filled in, then heads of its group are compared */
    double begun_s;
    char finding[96];
    float kv[KEYS][2][HEAD_DIM_MAX]; /* as they are stored */
};

/* ---- the trials ---------------------------------------------------------------------------------- */

/* The work tiles of queries [query, query + n) of a trial, which see the same chunks, and their partials. */
static void add_work_tiles(struct trial *x, struct plan_arrays *arrays, uint32_t query, uint32_t n,
                           struct plan_range chunks)
{
    struct plan *plan = &x->plan;
    uint32_t work_tile_queries = cuda_work_tile_queries(plan),
             splits = (chunks.end - 1) / x->work_tile_chunks - chunks.first / x->work_tile_chunks + 1;
    const enum plan_level level = x->work_tile_chunks < RUN_CHUNKS       ? PLAN_CHUNK
                                  : x->work_tile_chunks < SEGMENT_CHUNKS ? PLAN_RUN
                                                                         : PLAN_SEGMENT;
    struct work_tile *work_tiles = &arrays->work_tiles[plan->work_tile_count];
    assert(work_tile_queries + splits * n <= SPLITS_MAX);
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
            arrays->work_tile_queries[work_tile_queries++] = query + r;
            arrays->merge_partials[plan->partial_count + r * splits + i] =
                (struct partial_ref){plan->partial_count + i * n + r, stop, level};
        }
    }
    plan->work_tile_count += splits;
    if (splits == 1)
        return;
    for (uint32_t r = 0; r < n; r++)
        arrays->merges[plan->merge_count++] =
            (struct plan_merge){query + r, plan->partial_count + r * splits, splits, x->cta_splits > 0};
    if (x->cta_splits) {
        work_tiles->splits = (uint8_t)splits;
        work_tiles->cta_splits = (uint8_t)x->cta_splits;
    }
    plan->partial_count += splits * n;
}

/* Add a trial and its plan: of the first one every query has work tiles of its own, of another one all share
 * them. */
static void add_trial(struct cuda_self_test *t, struct trial trial)
{
    uint32_t together = t->trial_count ? trial.count : 1, window = t->geometry.window[0];
    assert(t->trial_count < TRIALS_MAX);
    struct trial *x = &t->trials[t->trial_count];
    struct plan_arrays *arrays = &t->arrays[t->trial_count++];
    *x = trial;
    x->plan = (struct plan){.queries = t->problem + x->first,
                            .work_tiles = arrays->work_tiles,
                            .work_tile_queries = arrays->work_tile_queries,
                            .merges = arrays->merges,
                            .merge_partials = arrays->merge_partials,
                            .query_count = x->count,
                            .caps = &t->own.base.info.tile_caps};
    for (uint32_t query = 0; query < x->count; query += together)
        add_work_tiles(x, arrays, query, together, plan_visible_chunks(x->plan.queries[query].keys, window));
    assert(!plan_fault(&x->plan, window));
    x->result = t->queries;
    t->queries += x->count;
}

static const char *kernel_of(const struct cuda_self_test *t, uint32_t width)
{
    return cuda_kernels[t->own.tiles.widths[width].kernel].name;
}

/* The widest tiles for work tiles of so many chunks, or the narrowest of them with room for `query_heads`. */
static uint32_t width_for(const struct cuda_self_test *t, uint32_t work_tile_chunks, uint32_t query_heads)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    const struct work_tile one = {.chunks = work_tile_chunks};
    return plan_width_for(caps, plan_widest(caps), &one, 1, query_heads);
}

/* A query cut into work tiles of so many chunks as split groups of every kind that there is room for. */
static void add_groups(struct cuda_self_test *t, uint32_t query, uint32_t work_tile_chunks, uint32_t splits)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    uint32_t width = width_for(t, work_tile_chunks, geometry_group(&t->geometry)),
             most = smaller(splits, plan_cta_splits_max(caps, width));
    for (uint32_t cta_splits = 1; cta_splits <= most && splits <= caps->splits_max; cta_splits *= 2) {
        if (splits / cta_splits <= caps->cluster_max)
            add_trial(t, (struct trial){.what = "a split group",
                                        .first = query,
                                        .count = 1,
                                        .work_tile_chunks = work_tile_chunks,
                                        .width = width,
                                        .cta_splits = cta_splits});
    }
}

/* Make the trials of a variant. */
static void make_trials(struct cuda_self_test *t, uint32_t variant)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    const bool paged = t->geometry.layout == LAYOUT_VLLM;
    uint32_t n = t->neighbours, group = geometry_group(&t->geometry);
    t->variant = variant;
    t->geometry.window[0] = variant && !paged ? WINDOW : 0;
    t->trial_count = t->queries = 0;
    if (paged) {
        const char *what = variant ? "paged_v2" : "paged_v1";
        add_trial(t, (struct trial){.what = what, .count = n, .work_tile_chunks = SPAN_CHUNKS});
        return;
    }
    add_trial(t, (struct trial){.what = kernel_of(t, 0), .count = n + 2, .work_tile_chunks = SPAN_CHUNKS});
    for (uint32_t i = 0; i < caps->width_count; i++) {
        uint32_t chunks = caps->widths[i].chunks;
        add_trial(t, (struct trial){.what = kernel_of(t, i),
                                    .count = smaller(n, ceiling(caps->widths[i].query_heads, group)),
                                    .work_tile_chunks = chunks ? chunks : SPAN_CHUNKS,
                                    .width = i});
    }
    add_trial(t, (struct trial){.what = "merge", .count = smaller(n, MERGED_QUERIES), .work_tile_chunks = 1});
    add_trial(t, (struct trial){
                     .what = "merge_spans", .first = n + 1, .count = 1, .work_tile_chunks = SEGMENT_CHUNKS});
    add_trial(t, (struct trial){.what = "segments of a span",
                                .first = n + 1,
                                .count = 1,
                                .work_tile_chunks = SPAN_CHUNKS,
                                .width = width_for(t, SPAN_CHUNKS, UINT32_MAX)});
    add_groups(t, 0, RUN_CHUNKS, 2);
    add_groups(t, n, 1, 4);
}

/* ---- a test -------------------------------------------------------------------------------------- */

/* Begin with a variant: all its trials in one step. */
static void begin(struct cuda_self_test *t, uint32_t variant)
{
    const struct geometry *g = &t->geometry;
    const struct kv_append append = {.count = t->own.options.blocks * g->block_size,
                                     .generated = test_values};
    const struct table_use use = {0, t->own.options.table_stride, 1};
    struct attention_pass passes[TRIALS_MAX];
    make_trials(t, variant);
    const struct attention_step step = {.tables = t->table,
                                        .stride = t->own.options.table_stride,
                                        .uses = &use,
                                        .use_count = 1,
                                        .passes = passes,
                                        .pass_count = t->trial_count};
    for (uint32_t i = 0; i < t->trial_count; i++) {
        const struct trial *x = &t->trials[i];
        passes[i] = (struct attention_pass){.appends = &append,
                                            .append_count = i == 0,
                                            .plan = &x->plan,
                                            .q_source = t->q_source,
                                            .o = t->o + x->result * geometry_q_row_bytes(g),
                                            .lse = t->lse + (size_t)x->result * g->query_heads};
        if (g->layout == LAYOUT_VLLM)
            passes[i].kernel = variant ? ATTENTION_PAGED_V2 : ATTENTION_PAGED_V1;
    }
    t->phase = RUNS;
    t->part = 0;
    t->begun_s = clock_s();
    cuda_step_submit(&t->own.base, &step, ++t->ticket);
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

/* Whether all trials have the bits of the first one. */
static bool bits_agree(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    size_t o_bytes = geometry_q_row_bytes(g), heads = g->query_heads;
    for (uint32_t i = 1; i < t->trial_count; i++) {
        const struct trial *x = &t->trials[i];
        size_t got = x->result, expected = x->first;
        if (memcmp(t->o + got * o_bytes, t->o + expected * o_bytes, x->count * o_bytes) == 0 &&
            memcmp(t->lse + got * heads, t->lse + expected * heads, x->count * heads * sizeof *t->lse) == 0)
            continue;
        snprintf(t->finding, sizeof t->finding, "%s has other bits than %s", x->what, t->trials->what);
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

/* A row of the problem in a format: divided by the scale, rounded, and as f32 again. */
static void make_row(const struct geometry *g, enum dtype dtype, uint32_t position, enum values_tensor tensor,
                     uint32_t head, float scale, float *row)
{
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    values_row(test_values, position, 0, tensor, head, g->head_dim, row);
    for (uint32_t d = 0; d < g->head_dim; d++)
        row[d] /= scale;
    numeric_from_float(dtype, row, g->head_dim, rounded);
    numeric_to_float(dtype, rounded, g->head_dim, row);
}

/* Key and value of a head at a position: maybe those of an earlier one, since the table repeats its blocks. */
static void fill(struct cuda_self_test *t, uint32_t kv_head, uint32_t position)
{
    const struct geometry *g = &t->geometry;
    const struct model_constants *c = t->own.options.constants;
    uint32_t stored = t->table[position / g->block_size] * g->block_size + position % g->block_size;
    make_row(g, g->kv_dtype, stored, VALUES_K, kv_head, c->k_scale[kv_head], t->kv[position][0]);
    make_row(g, g->kv_dtype, stored, VALUES_V, kv_head, c->v_scale[kv_head], t->kv[position][1]);
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
    uint32_t query = t->variant ? t->neighbours - 1 : 0, keys = t->problem[query].keys;
    size_t at = (size_t)query * g->query_heads + head;
    float q[HEAD_DIM_MAX];
    double expected[HEAD_DIM_MAX], lse, largest = 0, worst = 0;
    make_row(g, g->dtype, keys - 1, VALUES_Q, head, 1, q);
    reference_query(g, t->own.options.constants, 0, keys, head, q, load_kv, t, expected, &lse);
    for (uint32_t d = 0; d < g->head_dim; d++) {
        double got = (double)numeric_load(g->dtype, t->o, at * g->head_dim + d);
        largest = fmax(largest, fabs(expected[d]));
        worst = isfinite(got) ? fmax(worst, fabs(got - expected[d])) : INFINITY;
    }
    if (worst <= TOLERANCE * largest && fabs((double)t->lse[at] - lse) <= LSE_TOLERANCE)
        return true;
    snprintf(t->finding, sizeof t->finding, "%s differs from the reference", t->trials->what);
    return false;
}

/* The next part of the comparison with double precision; false when a head is wrong. */
static bool heads_agree(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    uint32_t group = geometry_group(g), parts = FILL_PARTS + smaller(group, COMPARED_MAX),
             kv_head = head_at(t->part / parts, g->kv_heads), part = t->part++ % parts;
    bool agrees = true;
    for (uint32_t i = part * FILL_TOKENS; i < smaller(KEYS, (part + 1) * FILL_TOKENS); i++)
        fill(t, kv_head, i);
    if (part >= FILL_PARTS)
        agrees = head_agrees(t, kv_head * group + head_at(part - FILL_PARTS, group));
    if (agrees && t->part == parts * smaller(g->kv_heads, COMPARED_MAX)) {
        t->phase = IDLE;
        if (t->variant + 1 < VARIANTS)
            begin(t, t->variant + 1);
    }
    return agrees;
}

/* ---- parts --------------------------------------------------------------------------------------- */

enum attention_verdict cuda_self_test_part(struct cuda_backend *b)
{
    struct cuda_self_test *t = b->test;
    bool agrees = true;
    if (t->phase > RUNS && t->constants_version != b->options.constants->version) {
        t->phase = IDLE; /* computed with others than these: begin again */
        return ATTENTION_TEST_RUNS;
    }
    switch (t->phase) {
    case IDLE:
        t->constants_version = b->options.constants->version;
        begin(t, 0);
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
        cuda_await(&b->device, NULL, t->own.device.stream, "the self-test");
}

/* ---- init and deinit ----------------------------------------------------------------------------- */

static void make_problem(struct cuda_self_test *t)
{
    const struct tile_caps *caps = &t->own.base.info.tile_caps;
    uint32_t n = PAGED_QUERIES;
    if (t->geometry.layout != LAYOUT_VLLM)
        n = ceiling(caps->widths[plan_widest(caps)].query_heads, geometry_group(&t->geometry));
    assert(n + 2 <= QUERIES_MAX);
    t->neighbours = n;
    for (uint32_t i = 0; i < n; i++)
        t->problem[i].keys = KEYS - i;
    t->problem[n].keys = SHORT_KEYS;
    t->problem[n + 1].keys = LONG_KEYS;
    for (uint32_t i = 0; i < QUERIES_MAX; i++)
        t->q_source[i] = test_values;
}

/* Options for memory of the test's own. */
static void choose_options(struct cuda_self_test *t)
{
    const struct geometry *g = &t->geometry;
    struct attention_options *o = &t->own.options;
    uint64_t room = POOL_BYTES / geometry_block_bytes(g);
    uint32_t blocks = ceiling(KEYS, g->block_size);
    o->geometry = g;
    o->blocks = room < 1 ? 1 : room < blocks ? (uint32_t)room : blocks;
    o->host_blocks = 0;
    o->rows_max = t->neighbours + 2;
    o->partials_max = PAGED_QUERIES * ceiling(KEYS, PAGED_PARTITION);
    for (uint32_t variant = 0; variant < VARIANTS; variant++) {
        make_trials(t, variant);
        for (uint32_t i = 0; i < t->trial_count; i++)
            o->partials_max = larger(o->partials_max, t->trials[i].plan.partial_count);
    }
    o->table_rows = 1;
    o->table_stride = ceiling(g->layout == LAYOUT_VLLM ? KEYS : LONG_KEYS, g->block_size);
    for (uint32_t i = 0; i < o->table_stride; i++)
        t->table[i] = i % o->blocks;
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
    g->layers = 1;
    own->base.info = b->base.info;
    own->options = b->options;
    own->tiles = b->tiles;
    make_problem(t);
    choose_options(t);
    if (!cuda_device_share(d, &b->device) || !cuda_queue_init(&own->queue, d, CONTROL_BYTES) ||
        !cuda_memory_take(own))
        return false;
    memcpy(own->queue.kernels, b->queue.kernels, sizeof own->queue.kernels);
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
    cuda_queue_deinit(&own->queue);
    cuda_device_unshare(&own->device);
    free(own->known);
    free(t);
}
