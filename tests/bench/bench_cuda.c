/* SPDX-License-Identifier: Apache-2.0 */
/* bench_cuda.c - decode attention on a GPU, against the read roof of the same GPU in the same run.
 *
 * One layer, one query token per sequence unless a workload has more, the shapes that kernels for this
 * are compared by. Each workload's pool has so many layers that they are 2 GB or more together, and they
 * are visited in turn, so nothing stays in the cache; the launches of all layers are one graph; the median
 * of REPLAYS replays is given per layer; "isolated" is with an empty kernel between the layers, whose own
 * time is subtracted. Wide values (kernels/values.h), permuted block ids. GB/s counts each needed K and V
 * element once, so shared ones once too; TFLOP/s the two products of each query head with the keys that it
 * sees. Before, the same rows are computed by a step, and some of them compared with double precision:
 * relative error in the l2 norm.
 *
 * The last line, "swap", moves SWAP_BLOCKS blocks of several layers out to the host and in again, alone
 * and beside a step.
 *
 * Usage: bench_cuda [--only NAME[,NAME...]] [--csv FILE --commit ID --driver VERSION] [--tasks N] [--l2-prefetch],
 * or bench_cuda --short to show that it works. The CSV file gets a line a workload, and the columns' names
 * if it is new. --tasks: how many the planner aims for. --l2-prefetch: with
 * backend.l2_prefetch. */
#include "config/status.h"
#include "kernels/attention.h"
#include "kernels/numeric.h"
#include "kernels/reference.h"
#include "scheduler/planner.h"
#include "tests/bench/bench.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    REPLAYS = 21,
    LAYERS_LEAST = 2,
    LAYERS_MOST = 40,
    LAUNCHES = 20, /* of a replay, at least: every layer in turn as often as that takes */
    PARTIALS_MAX = 65536,
    SAMPLES = 6, /* rows that are compared, two heads each */
    SWAP_BLOCKS = 128,
    SWAP_PASSES = 4, /* of the step beside which they are swapped, as many as a step of calls has */
    SEED = 7,
    SPREAD = 10
};

static bool l2_prefetch; /* --l2-prefetch */

static const double ROTATED_BYTES = 2e9, ROOF_BYTES = 8.6e9;

/* Lengths of sequences: log-normal, drawn from a seed. */
struct ragged {
    uint64_t seed;
    double median, sigma, least, most;
};

static const struct ragged short_ones = {20261120, 600, 1.1, 16, 32768}, /* 271 854 tokens together */
    long_ones = {20261122, 7000, 1.2, 200, 120000};                      /* 828 983 */

struct workload {
    const char *name;
    uint32_t query_heads, kv_heads, head_dim, block_size, sequences;
    uint32_t tokens; /* of each sequence; 0: ragged */
    const struct ragged *ragged;
    uint32_t shared; /* first tokens that all have in common */
    uint32_t q_len;  /* tokens at the end of each sequence that are queries; 0: one */
    uint32_t window; /* tokens that a query sees; 0: all */
    bool sinks, e4m3;
    enum attention_kernel kernel; /* of the vllm layout; ATTENTION_AUTO: the native one */
};

#define OF(of, query, kv, dim, block, count, length)                                                         \
    .name = of, .query_heads = query, .kv_heads = kv, .head_dim = dim, .block_size = block,                  \
    .sequences = count, .tokens = length

static const struct workload workloads[] = {
    {OF("W1", 32, 8, 128, 16, 64, 4096)},
    {OF("W1p64", 32, 8, 128, 64, 64, 4096)},
    {OF("W1s", 32, 8, 128, 16, 64, 1024)},
    {OF("W1b", 32, 8, 128, 16, 8, 4096)},
    {OF("W1c", 32, 8, 128, 16, 1, 4096)},
    {OF("W2", 8, 1, 128, 16, 128, 4096)},
    {OF("W3", 32, 32, 128, 16, 16, 2048)},
    {OF("W4", 32, 8, 128, 16, 1, 131072)},
    {OF("W5", 32, 8, 128, 16, 256, 0), .ragged = &short_ones},
    {OF("W6", 32, 8, 64, 16, 64, 4096)},
    {OF("W7", 16, 8, 256, 16, 32, 4096)},
    {OF("W8", 32, 8, 128, 16, 64, 4096), .e4m3 = true},
    {OF("W8p64", 32, 8, 128, 64, 64, 4096), .e4m3 = true},
    {OF("W9", 32, 8, 128, 16, 256, 8192 + 128), .shared = 8192},
    {OF("W9b", 32, 8, 128, 16, 256, 8192 + 256), .shared = 8192},
    {OF("W9c", 32, 8, 128, 16, 128, 16384 + 512), .shared = 16384},
    {OF("W10", 64, 1, 128, 16, 64, 4096)},
    {OF("W11", 32, 8, 128, 1, 64, 4096)},
    {OF("W12", 32, 8, 128, 4, 64, 4096)},
    {OF("W1p2", 32, 8, 128, 2, 64, 4096)},
    {OF("W1p8", 32, 8, 128, 8, 64, 4096)},
    {OF("W1p24", 32, 8, 128, 24, 64, 4096)},
    {OF("W1p192", 32, 8, 128, 192, 64, 4096)},
    {OF("W13", 32, 8, 128, 16, 4, 8192 + 512), .q_len = 512},
    {OF("W14", 32, 8, 128, 16, 64, 0), .ragged = &long_ones},
    {OF("W15", 32, 8, 128, 16, 67, 4096)},
    {OF("W15b", 32, 8, 128, 16, 72, 4096)},
    {OF("W15c", 32, 8, 128, 16, 80, 4096)},
    {OF("W16", 32, 8, 128, 16, 200, 333)},
    {OF("W17", 32, 2, 128, 16, 64, 4096)},
    {OF("W18", 32, 32, 96, 16, 32, 4096)},
    {OF("W19", 32, 8, 128, 16, 2, 32768)},
    {OF("W20", 32, 8, 128, 16, 64, 4096), .q_len = 4},
    {OF("W21", 64, 8, 64, 16, 64, 4096), .window = 128, .sinks = true},
    /* the kernels of vLLM's documents */
    {OF("W1v1", 32, 8, 128, 16, 64, 4096), .kernel = ATTENTION_PAGED_V1},
    {OF("W1v2", 32, 8, 128, 16, 64, 4096), .kernel = ATTENTION_PAGED_V2},
    {OF("W3v1", 32, 32, 128, 16, 16, 2048), .kernel = ATTENTION_PAGED_V1},
    {OF("W3v2", 32, 32, 128, 16, 16, 2048), .kernel = ATTENTION_PAGED_V2},
};

static void *make_array(size_t n, size_t size)
{
    void *array = calloc(n + 1, size);
    if (!array)
        abort();
    return array;
}

/* Steele, Lea and Flood's splitmix64. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* In (0, 1). */
static double next_uniform(uint64_t *state)
{
    return ((double)(next_random(state) >> 11) + 0.5) / 9007199254740992.0;
}

static uint32_t ragged_length(const struct ragged *of, uint64_t *state)
{
    double r = sqrt(-2 * log(next_uniform(state)));
    double length = floor(of->median * exp(of->sigma * r * cos(2 * M_PI * next_uniform(state))) + 0.5);
    return (uint32_t)fmin(fmax(length, of->least), of->most);
}

/* Everything that a workload needs. */
struct world {
    const struct workload *w;
    struct geometry g;
    struct model_constants c;
    struct attention *attention;
    uint32_t *lengths, *tables, stride, blocks;
    uint64_t tokens;           /* that are read, shared ones once */
    uint64_t scores;           /* of a query head */
    uint32_t q_len, row_count; /* rows of a sequence, and of all */
    struct planner *planner;
    const struct plan *plan;
    struct value_source *sources;
    uint8_t *o;
    struct attention_pass *passes;
    uint32_t pass_count; /* that are timed */
    struct table_use *uses;
    struct attention_step step;
};

/* Keys of a row. */
static uint32_t keys_of(const struct world *x, uint32_t row)
{
    return x->lengths[row / x->q_len] - x->q_len + 1 + row % x->q_len;
}

static void lay_out(struct world *x)
{
    const struct workload *w = x->w;
    uint64_t state = w->ragged ? w->ragged->seed : 0, shuffle = SEED;
    uint32_t shared = w->shared / w->block_size, next = shared, longest = 0;
    x->q_len = w->q_len ? w->q_len : 1;
    x->row_count = w->sequences * x->q_len;
    x->lengths = make_array(w->sequences, sizeof *x->lengths);
    for (uint32_t s = 0; s < w->sequences; s++) {
        x->lengths[s] = w->ragged ? ragged_length(w->ragged, &state) : w->tokens;
        longest = x->lengths[s] > longest ? x->lengths[s] : longest;
        x->tokens += w->window ? w->window + x->q_len - 1 : x->lengths[s] - (s ? w->shared : 0);
        for (uint32_t i = 0; i < x->q_len; i++)
            x->scores += w->window ? w->window : keys_of(x, s * x->q_len + i);
        x->blocks += (x->lengths[s] + w->block_size - 1) / w->block_size - (s ? shared : 0);
    }
    x->stride = (longest + w->block_size - 1) / w->block_size;
    uint32_t *ids = make_array(x->blocks, sizeof *ids);
    for (uint32_t i = 0; i < x->blocks; i++) {
        uint32_t at = (uint32_t)(next_random(&shuffle) % (i + 1));
        ids[i] = ids[at];
        ids[at] = i;
    }
    x->tables = make_array((size_t)w->sequences * x->stride, sizeof *x->tables);
    for (uint32_t s = 0; s < w->sequences; s++) {
        for (uint32_t i = 0; i * w->block_size < x->lengths[s]; i++)
            x->tables[(size_t)s * x->stride + i] = i < shared ? ids[i] : ids[next++];
    }
    free(ids);
}

static bool finish_step(struct world *x)
{
    uint64_t ticket = attention_submit(x->attention, &x->step);
    attention_await(x->attention, ticket);
    if (attention_failure(x->attention))
        printf("%s: %s\n", x->w->name, attention_failure(x->attention));
    return !attention_failure(x->attention);
}

/* Where the values of a sequence's token come from. */
static struct value_source source_of(const struct world *x, uint32_t sequence, uint32_t position)
{
    return (struct value_source){.seed = SEED,
                                 .content = position < x->w->shared ? 1000 : 1001 + sequence,
                                 .wide = 1 + (x->w->e4m3 ? 0 : SPREAD)};
}

/* Fill every layer, then make the rows' outputs once. */
static bool fill(struct world *x)
{
    const struct workload *w = x->w;
    struct kv_append *appends = make_array(w->sequences + 1, sizeof *appends);
    uint32_t n = 0;
    if (w->shared)
        appends[n++] = (struct kv_append){.count = w->shared, .generated = source_of(x, 0, 0)};
    for (uint32_t s = 0; s < w->sequences; s++)
        appends[n++] = (struct kv_append){.table = s,
                                          .position = w->shared,
                                          .count = x->lengths[s] - w->shared,
                                          .generated = source_of(x, s, w->shared)};
    for (uint32_t row = 0; row < x->row_count; row++)
        x->sources[row] = source_of(x, row / x->q_len, w->shared);
    for (uint32_t s = 0; s < w->sequences; s++) {
        x->uses[s] = (struct table_use){s, (x->lengths[s] + w->block_size - 1) / w->block_size, 1};
    }
    for (uint32_t layer = 0; layer < x->g.layers; layer++)
        x->passes[layer] = (struct attention_pass){.layer = layer,
                                                   .appends = appends,
                                                   .append_count = n,
                                                   .plan = x->plan,
                                                   .q_source = x->sources,
                                                   .o = x->o};
    bool ok = finish_step(x);
    for (uint32_t i = 0; i < x->pass_count; i++) {
        x->passes[i] = x->passes[i % x->g.layers];
        x->passes[i].append_count = 0;
    }
    x->step.pass_count = x->pass_count;
    free(appends);
    return ok;
}

static size_t o_bytes(const struct world *x)
{
    return (size_t)x->row_count * x->w->query_heads * x->w->head_dim * dtype_bytes(x->g.dtype);
}

/* `spare`: more blocks, and as many in host memory. */
static bool open_world(struct world *x, const struct workload *w, uint32_t tasks, double bytes,
                       uint32_t spare)
{
    char error[ATTENTION_ERROR_BYTES];
    *x = (struct world){.w = w};
    lay_out(x);
    x->g = (struct geometry){.query_heads = w->query_heads,
                             .kv_heads = w->kv_heads,
                             .head_dim = w->head_dim,
                             .block_size = w->block_size,
                             .dtype = DTYPE_BF16,
                             .kv_dtype = w->e4m3 ? DTYPE_E4M3 : DTYPE_BF16,
                             .layout = w->kernel == ATTENTION_AUTO ? LAYOUT_HND : LAYOUT_VLLM,
                             .scale = 1.0F / sqrtf((float)w->head_dim)};
    double layer_bytes = (double)x->tokens * (double)geometry_token_bytes(&x->g);
    x->g.layers = (uint32_t)fmin(fmax(ceil(bytes / layer_bytes), LAYERS_LEAST), LAYERS_MOST);
    x->c.k_scale = make_array((size_t)x->g.layers * w->kv_heads, sizeof(float));
    x->c.v_scale = make_array((size_t)x->g.layers * w->kv_heads, sizeof(float));
    for (uint32_t i = 0; i < x->g.layers * w->kv_heads; i++)
        x->c.k_scale[i] = x->c.v_scale[i] = 1;
    for (uint32_t layer = 0; layer < x->g.layers; layer++)
        x->g.window[layer] = w->window;
    if (w->sinks)
        x->c.sinks = make_array((size_t)x->g.layers * w->query_heads, sizeof(float));
    const struct attention_options options = {.backend = "cuda",
                                              .isa = "auto",
                                              .kernel = w->kernel,
                                              .l2_prefetch = l2_prefetch,
                                              .cache = "",
                                              .geometry = &x->g,
                                              .constants = &x->c,
                                              .blocks = x->blocks + spare,
                                              .host_blocks = spare,
                                              .rows_max = x->row_count,
                                              .partials_max = PARTIALS_MAX / (w->query_heads / 8),
                                              .table_rows = w->sequences,
                                              .table_stride = x->stride};
    if (attention_open(&options, &x->attention, error) != 0) {
        printf("%s: %s\n", w->name, error);
        return false;
    }
    const struct planner_options planning = {.queries_max = x->row_count,
                                             .partials_max = options.partials_max,
                                             .tasks = tasks ? tasks : attention_info(x->attention)->tasks,
                                             .kv_heads = w->kv_heads,
                                             .group = geometry_group(&x->g),
                                             .block_size = w->block_size,
                                             .window = w->window,
                                             .first_loose_table = w->sequences,
                                             .caps = attention_info(x->attention)->tile_caps};
    struct planner_query *rows = make_array(x->row_count, sizeof *rows);
    for (uint32_t row = 0; row < x->row_count; row++)
        rows[row] = (struct planner_query){row / x->q_len, keys_of(x, row), 1, SHARING_ON};
    if (planner_create(&planning, &x->planner) != 0)
        abort();
    x->plan = planner_make(x->planner, rows, x->row_count, x->tables, x->stride);
    free(rows);
    x->sources = make_array(x->row_count, sizeof *x->sources);
    x->uses = make_array(w->sequences, sizeof *x->uses);
    x->pass_count = (LAUNCHES + x->g.layers - 1) / x->g.layers * x->g.layers;
    x->passes = make_array(x->pass_count, sizeof *x->passes);
    x->o = attention_host_memory(x->attention, o_bytes(x));
    if (!x->o)
        abort();
    x->step = (struct attention_step){.tables = x->tables,
                                      .stride = x->stride,
                                      .uses = x->uses,
                                      .use_count = w->sequences,
                                      .passes = x->passes,
                                      .pass_count = x->g.layers};
    return fill(x);
}

static void close_world(struct world *x)
{
    if (x->attention)
        attention_free_host_memory(x->attention, x->o, o_bytes(x));
    attention_close(x->attention);
    planner_destroy(x->planner);
    free(x->lengths);
    free(x->tables);
    free(x->c.k_scale);
    free(x->c.v_scale);
    free(x->c.sinks);
    free(x->sources);
    free(x->uses);
    free(x->passes);
}

/* ---- correctness --------------------------------------------------------------------------------- */

struct source_row {
    const struct world *x;
    uint32_t sequence;
};

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct source_row *s = cookie;
    const struct geometry *g = &s->x->g;
    struct value_source source = source_of(s->x, s->sequence, position);
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    for (int i = 0; i < 2; i++) {
        float *row = i ? v : k;
        values_row(source, position, g->layers - 1, i ? VALUES_V : VALUES_K, kv_head, g->head_dim, row);
        numeric_from_float(g->kv_dtype, row, g->head_dim, rounded);
        numeric_to_float(g->kv_dtype, rounded, g->head_dim, row);
    }
}

/* Relative l2 error of some rows' outputs of the last layer. */
static double l2_error(const struct world *x)
{
    const struct geometry *g = &x->g;
    double errors = 0, sizes = 0;
    for (uint32_t i = 0; i < SAMPLES; i++) {
        uint32_t r = (uint32_t)((uint64_t)i * (x->row_count - 1) / (SAMPLES - 1));
        struct source_row s = {x, r / x->q_len};
        for (uint32_t head = i % g->query_heads; head < g->query_heads; head += g->query_heads / 2) {
            float q[HEAD_DIM_MAX];
            double o[HEAD_DIM_MAX], lse;
            uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
            values_row(x->sources[r], keys_of(x, r) - 1, g->layers - 1, VALUES_Q, head, g->head_dim, q);
            numeric_from_float(g->dtype, q, g->head_dim, rounded);
            numeric_to_float(g->dtype, rounded, g->head_dim, q);
            reference_query(g, &x->c, g->layers - 1, keys_of(x, r), head, q, load_kv, &s, o, &lse);
            for (uint32_t d = 0; d < g->head_dim; d++) {
                size_t at = ((size_t)r * g->query_heads + head) * g->head_dim + d;
                double error = (double)numeric_load(g->dtype, x->o, at) - o[d];
                errors += error * error;
                sizes += o[d] * o[d];
            }
        }
    }
    return sqrt(errors / sizes);
}

/* ---- running ------------------------------------------------------------------------------------- */

struct options {
    const char *only, *csv, *commit, *driver;
    uint32_t tasks;
};

static bool wanted(const struct options *o, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = o->only; at && *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        if (strcspn(at, ",") == n && strncmp(at, name, n) == 0)
            return true;
    }
    return !o->only;
}

/* Microseconds of the workloads that have run. */
static double measured[sizeof workloads / sizeof workloads[0]];

/* How many times as long a kernel of vLLM's documents takes as the native one, whose row has the first
 * two letters of its name for a name; 0 without both. */
static double ratio_to_native(const struct workload *w, double us)
{
    for (const struct workload *native = workloads; native < w; native++) {
        if (w->kernel != ATTENTION_AUTO && strlen(native->name) == 2 &&
            strncmp(native->name, w->name, 2) == 0)
            return measured[native - workloads] > 0 ? us / measured[native - workloads] : 0;
    }
    return 0;
}

static bool run(const struct workload *w, const struct options *o, double roof, FILE *csv)
{
    struct world x;
    double us[REPLAYS], apart[REPLAYS];
    char date[32];
    time_t now = time(NULL);
    struct tm utc;
    bool ok = open_world(&x, w, o->tasks, ROTATED_BYTES, 0);
    double error = ok ? l2_error(&x) : 0;
    if (ok && (!attention_time_passes(x.attention, &x.step, REPLAYS, false, us) ||
               !attention_time_passes(x.attention, &x.step, REPLAYS, true, apart))) {
        printf("%s: %s\n", w->name, attention_failure(x.attention));
        ok = false;
    }
    if (ok) {
        struct bench_spread spread = bench_spread(us, REPLAYS);
        double bytes = (double)x.tokens * (double)geometry_token_bytes(&x.g);
        double rate = bytes / spread.median * 1e-3;
        bool right = error < (w->e4m3 ? 0.03 : 0.01);
        double flops = 4.0 * (double)x.scores * w->query_heads * w->head_dim;
        double alone = bench_spread(apart, REPLAYS).median;
        printf("%-6s %9.2f us (%.2f .. %.2f), isolated %9.2f us  %7.1f GB/s  %.3f of the roof  %.0f TFLOP/s  "
               "work tiles %u, partials %u  l2 %.1e %s\n",
               w->name, spread.median, spread.min, spread.max, alone, rate, rate / roof,
               flops / spread.median * 1e-6, x.plan->work_tile_count, x.plan->partial_count, error,
               right ? "ok" : "WRONG");
        measured[w - workloads] = spread.median;
        if (ratio_to_native(w, spread.median) > 0)
            printf("       %.2f times as long as the native kernel\n", ratio_to_native(w, spread.median));
        gmtime_r(&now, &utc);
        strftime(date, sizeof date, "%Y-%m-%d", &utc);
        if (csv)
            fprintf(csv, "%s,%s,\"%s\",%s,%s,%.2f,%.2f,%.1f,%.1f,%.3f,%.2e,%s\n", date, o->commit,
                    attention_info(x.attention)->device, o->driver, w->name, spread.median, alone, rate, roof,
                    rate / roof, error, right ? "ok" : "wrong");
        ok = right;
    }
    fflush(stdout);
    close_world(&x);
    return ok;
}

/* The roof of a pool of 8 GiB, or of one layer. */
static double measure_roof(bool toy)
{
    struct world x;
    double roof = open_world(&x, &workloads[0], 0, toy ? 0 : ROOF_BYTES, 0)
                      ? attention_measure_roof(x.attention).best
                      : 0;
    if (roof > 0)
        printf("%s, reads at %.1f GB/s\n", attention_info(x.attention)->device, roof);
    close_world(&x);
    return roof;
}

/* Milliseconds of a step with these copies and so many passes: the median of some. */
static double time_step(struct world *x, const struct block_copy *copies, uint32_t copy_count,
                        uint32_t pass_count)
{
    double us[REPLAYS];
    x->step.copies = copies;
    x->step.copy_count = copy_count;
    x->step.pass_count = pass_count;
    for (int i = 0; i < REPLAYS; i++) {
        uint64_t ticket = attention_submit(x->attention, &x->step);
        attention_await(x->attention, ticket);
        us[i] = attention_times(x->attention, ticket).busy_s * 1e6;
    }
    return bench_spread(us, REPLAYS).median * 1e-3;
}

static bool run_swaps(void)
{
    struct world x;
    struct attention_pass passes[SWAP_PASSES];
    struct block_copy copies[2 * SWAP_BLOCKS];
    bool ok = open_world(&x, &workloads[0], 0, ROOF_BYTES, SWAP_BLOCKS); /* some layers */
    for (uint32_t i = 0; ok && i < SWAP_PASSES; i++)
        passes[i] = x.passes[i % x.g.layers];
    for (uint32_t i = 0; i < SWAP_BLOCKS; i++) {
        copies[i] = (struct block_copy){COPY_SWAP_OUT, x.blocks + i, i, x.g.block_size};
        copies[SWAP_BLOCKS + i] = (struct block_copy){COPY_SWAP_IN, i, x.blocks + i, x.g.block_size};
    }
    if (ok) {
        double mb = SWAP_BLOCKS * (double)geometry_block_bytes(&x.g) * 1e-6;
        x.step.passes = passes;
        double out = time_step(&x, copies, SWAP_BLOCKS, 0),
               in = time_step(&x, copies + SWAP_BLOCKS, SWAP_BLOCKS, 0),
               step = time_step(&x, NULL, 0, SWAP_PASSES),
               out_beside = time_step(&x, copies, SWAP_BLOCKS, SWAP_PASSES),
               in_beside = time_step(&x, copies + SWAP_BLOCKS, SWAP_BLOCKS, SWAP_PASSES);
        printf("swap   %.0f MB: out %.2f ms (%.1f GB/s), in %.2f ms (%.1f GB/s); a step of %.2f ms, "
               "beside "
               "out %.2f ms, beside in %.2f ms\n",
               mb, out, mb / out, in, mb / in, step, out_beside, in_beside);
        ok = !attention_failure(x.attention);
    }
    close_world(&x);
    return ok;
}

int main(int argc, char **argv)
{
    struct options o = {.commit = "unknown", .driver = "unknown"};
    char reason[ATTENTION_ERROR_BYTES];
    bool ok = true;
    bool toy = argc == 2 && strcmp(argv[1], "--short") == 0;
    if (toy)
        o.only = "W1c";
    for (int i = 1; !toy && i < argc; i++) {
        if (strcmp(argv[i], "--l2-prefetch") == 0) {
            l2_prefetch = true;
            continue;
        }
        if (i + 1 == argc)
            return 2;
        if (strcmp(argv[i], "--only") == 0)
            o.only = argv[++i];
        else if (strcmp(argv[i], "--csv") == 0)
            o.csv = argv[++i];
        else if (strcmp(argv[i], "--commit") == 0)
            o.commit = argv[++i];
        else if (strcmp(argv[i], "--driver") == 0)
            o.driver = argv[++i];
        else if (strcmp(argv[i], "--tasks") == 0)
            o.tasks = (uint32_t)strtoul(argv[++i], NULL, 10);
        else
            return 2;
    }
    if (!attention_cuda_present(reason)) {
        printf("no benchmark of CUDA: %s\n", reason);
        return !toy;
    }
    double roof = measure_roof(toy);
    FILE *csv = o.csv && roof > 0 ? fopen(o.csv, "a") : NULL;
    if (csv && fseek(csv, 0, SEEK_END) == 0 && ftell(csv) == 0)
        fprintf(csv, "date,commit,device,driver,workload,us,us_isolated,gb_per_s,roof_gb_per_s,share,"
                     "l2_err,ok\n");
    for (size_t i = 0; roof > 0 && i < sizeof workloads / sizeof workloads[0]; i++) {
        if (wanted(&o, workloads[i].name))
            ok = run(&workloads[i], &o, roof, csv) && ok;
    }
    if (csv)
        fclose(csv);
    if (roof > 0 && wanted(&o, "swap"))
        ok = run_swaps() && ok;
    return !ok || roof == 0;
}
