/* step.c - see step.h. */
#include "scheduler/step.h"

#include "config/clock.h"
#include "config/fault.h"
#include "config/log.h"
#include "scheduler/calibration.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 1024 }; /* steps remembered for the percentiles of /stats */

/* Planners for the layers of one window, a planner a slot. */
struct window_planners {
    uint32_t window;
    struct planner *slots[PLAN_SLOTS];
};

struct steps {
    const struct config *config;
    const struct geometry *g;
    struct attention *attention;
    double roof_gb_per_s;
    struct planner_costs costs;
    struct block_tables *tables;
    struct window_planners *windows; /* [window_count] */
    uint32_t window_count;
    struct kv_copy *copies;               /* [rows_max + pool_blocks] */
    struct table_use loose[LOOSE_TABLES]; /* what they hold */
    uint64_t loose_version;
    struct table_use *uses; /* [table rows] of the passes being run */
    uint64_t *used_in;      /* [table rows] the run that a row was last named in */
    uint64_t runs;
    uint64_t number;     /* of the step being formed */
    bool appended;       /* anything, ever */
    double slow_noted_s; /* when a slow step was last logged */

    struct step_stats totals; /* steps, bytes_read, busy_s, rows_max */
    float step_us[SAMPLES], idle_us[SAMPLES];
    uint32_t step_rows[SAMPLES];
    uint64_t step_bytes[SAMPLES];
};

/* ---- running ------------------------------------------------------------------------------------- */

const struct plan *step_plan(struct steps *x, unsigned slot, uint32_t layer,
                                 const struct planner_row *rows, uint32_t n)
{
    uint32_t stride, i = 0;
    const uint32_t *ids = block_tables_ids(x->tables, &stride);
    if (n == 0)
        return NULL;
    while (x->windows[i].window != x->g->window[layer])
        i++;
    return planner_make(x->windows[i].slots[slot], rows, n, ids, stride);
}

uint32_t step_set_table(struct steps *x, uint32_t i, const uint32_t *ids, uint32_t n)
{
    uint32_t row = x->config->limits.sequences + i;
    memcpy(block_tables_loose(x->tables, i), ids, n * sizeof *ids);
    x->loose[i] = (struct table_use){row, n, ++x->loose_version};
    return row;
}

uint64_t step_table_version(const struct steps *x, uint32_t i)
{
    return x->loose[i].version;
}

uint32_t step_table_blocks(const struct steps *x)
{
    uint32_t stride;
    (void)block_tables_ids(x->tables, &stride);
    return stride;
}

/* Tokens whose K and V an item reads. */
static uint32_t tokens_of(const struct plan *plan, const struct plan_item *item, uint32_t window)
{
    uint32_t begin = item->first_chunk * CHUNK_TOKENS, stop = begin + item->chunks * CHUNK_TOKENS;
    uint32_t end = 0, first = UINT32_MAX;
    for (uint32_t r = 0; r < item->rows; r++) {
        uint32_t keys = plan->rows[plan->item_rows[item->first_row + r]].keys;
        uint32_t seen = plan_first_key(keys, window) / TILE_TOKENS * TILE_TOKENS;
        end = keys > end ? keys : end;
        first = seen < first ? seen : first;
    }
    begin = first > begin ? first : begin;
    return (end < stop ? end : stop) - begin;
}

static uint64_t bytes_of(const struct steps *x, const struct attention_pass *pass)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; pass->plan && i < pass->plan->item_count; i++)
        tokens += tokens_of(pass->plan, &pass->plan->items[i], x->g->window[pass->layer]);
    return tokens * geometry_token_bytes(x->g);
}

/* Name a row of the tables, once a run. */
static uint32_t add_use(struct steps *x, uint32_t row, uint32_t n)
{
    if (x->used_in[row] == x->runs)
        return n;
    x->used_in[row] = x->runs;
    if (row >= x->config->limits.sequences) {
        x->uses[n] = x->loose[row - x->config->limits.sequences];
        return n + 1;
    }
    x->uses[n] = (struct table_use){row, block_tables_view(x->tables, row).entries,
                                    block_tables_version(x->tables, row)};
    return n + 1;
}

/* The rows that the passes name; layers mostly have the same ones as the layer before. */
static uint32_t find_uses(struct steps *x, const struct attention_pass *passes, uint32_t pass_count)
{
    uint32_t n = 0;
    x->runs++;
    for (uint32_t p = 0; p < pass_count; p++) {
        const struct attention_pass *pass = &passes[p];
        bool same_plan = p > 0 && pass->plan == passes[p - 1].plan;
        bool same_appends = p > 0 && pass->appends == passes[p - 1].appends &&
                            pass->append_count == passes[p - 1].append_count;
        for (uint32_t i = 0; pass->plan && !same_plan && i < pass->plan->row_count; i++)
            n = add_use(x, pass->plan->rows[i].table, n);
        for (uint32_t i = 0; !same_appends && i < pass->append_count; i++)
            n = add_use(x, pass->appends[i].table, n);
    }
    return n;
}

/* Whatever the tables count, the backend moves. */
static struct kv_copy copy_of(const struct block_copy *copy)
{
    static const enum kv_copy_kind kinds[] = {[COPY_ON_WRITE] = KV_COPY,
                                              [COPY_OUT] = KV_SWAP_OUT,
                                              [COPY_IN] = KV_SWAP_IN,
                                              [COPY_CLEAR] = KV_CLEAR};
    return (struct kv_copy){kinds[copy->kind], copy->from, copy->to, copy->slots};
}

struct step_run step_submit(struct steps *x, const struct block_copy *copies, uint32_t n,
                                const struct attention_pass *passes, uint32_t pass_count)
{
    struct step_run run = {0};
    n = FAULTY(FAULT_COPY_SKIPPED) ? 0 : n;
    for (uint32_t i = 0; i < n; i++)
        x->copies[i] = copy_of(&copies[i]);
    uint64_t bytes = 0; /* of a pass; those of one plan read the same */
    for (uint32_t i = 0; i < pass_count; i++) {
        if (i == 0 || passes[i].plan != passes[i - 1].plan)
            bytes = bytes_of(x, &passes[i]);
        run.bytes += bytes;
    }
    for (uint32_t i = 0; i < pass_count; i++)
        x->appended |= passes[i].append_count > 0;
    struct attention_step step = {.uses = x->uses,
                                  .use_count = find_uses(x, passes, pass_count),
                                  .copies = x->copies,
                                  .copy_count = n,
                                  .passes = passes,
                                  .pass_count = pass_count};
    step.tables = block_tables_ids(x->tables, &step.stride);
    run.ticket = attention_submit(x->attention, &step);
    return run;
}

bool step_is_done(struct steps *x, const struct step_run *run)
{
    return run->done || attention_poll(x->attention, run->ticket);
}

struct step_cost step_wait(struct steps *x, struct step_run *run)
{
    if (run->done)
        return run->cost;
    while (!attention_poll(x->attention, run->ticket)) {
    }
    struct attention_times times = attention_times(x->attention, run->ticket);
    run->done = true;
    run->cost = (struct step_cost){times.busy_s, run->bytes};
    x->idle_us[x->totals.steps % SAMPLES] = (float)(times.idle_s * 1e6);
    return run->cost;
}

struct step_cost step_run(struct steps *x, const struct block_copy *copies, uint32_t n,
                              const struct attention_pass *passes, uint32_t pass_count)
{
    struct step_run run = step_submit(x, copies, n, passes, pass_count);
    return step_wait(x, &run);
}

void step_submitted(struct steps *x)
{
    x->number++;
}

void *step_host_memory(struct steps *x, size_t bytes)
{
    return attention_host_memory(x->attention, bytes);
}

void step_free_host_memory(struct steps *x, void *memory, size_t bytes)
{
    attention_free_host_memory(x->attention, memory, bytes);
}

/* One line for a step that took long. */
static void note_slow(struct steps *x, uint64_t step, uint32_t sequences, uint32_t rows,
                      struct step_cost cost)
{
    double now = clock_s(), limit = x->config->slow_step_ms * 1e-3;
    if (limit == 0 || cost.seconds < limit || now - x->slow_noted_s < 1)
        return;
    x->slow_noted_s = now;
    log_line(
        LOG_WARNING,
        "slow step %llu: %.0f ms for %u query rows of %u sequences, %.1f MB of K and V read at %.1f "
        "GB/s (roof %.1f)",
        (unsigned long long)step, cost.seconds * 1e3, rows, sequences, (double)cost.bytes * 1e-6,
        (double)cost.bytes / cost.seconds * 1e-9, x->roof_gb_per_s);
}

void step_retire(struct steps *x, uint64_t step, const uint32_t *table_rows, uint32_t n,
                     uint32_t rows, struct step_cost cost)
{
    note_slow(x, step, n, rows, cost);
    block_tables_retire_step(x->tables, step, table_rows, n);
    uint32_t at = (uint32_t)(x->totals.steps++ % SAMPLES);
    x->step_us[at] = (float)(cost.seconds * 1e6);
    x->step_rows[at] = rows;
    x->step_bytes[at] = cost.bytes;
    x->totals.rows_max = rows > x->totals.rows_max ? rows : x->totals.rows_max;
    x->totals.busy_s += cost.seconds;
    x->totals.bytes_read += cost.bytes;
}

/* ---- looking ------------------------------------------------------------------------------------- */

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static int by_u32(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

struct step_stats step_stats(const struct steps *x)
{
    struct step_stats stats = x->totals;
    uint32_t n = stats.steps < SAMPLES ? (uint32_t)stats.steps : SAMPLES, rows[SAMPLES];
    float times[SAMPLES], idle[SAMPLES];
    if (n == 0)
        return stats;
    for (uint32_t i = 0; i < n; i++) {
        stats.latest.seconds += (double)x->step_us[i] * 1e-6;
        stats.latest.bytes += x->step_bytes[i];
    }
    memcpy(times, x->step_us, n * sizeof *times);
    memcpy(rows, x->step_rows, n * sizeof *rows);
    qsort(times, n, sizeof *times, by_float);
    memcpy(idle, x->idle_us, n * sizeof *idle);
    qsort(idle, n, sizeof *idle, by_float);
    stats.idle_us_p50 = (double)idle[n / 2];
    qsort(rows, n, sizeof *rows, by_u32);
    stats.rows_p50 = rows[n / 2];
    stats.step_us_p50 = (double)times[n / 2];
    stats.step_us_p99 = (double)times[n * 99 / 100];
    return stats;
}

struct block_tables *step_tables(const struct steps *x)
{
    return x->tables;
}

const struct attention_info *step_backend(const struct steps *x)
{
    return attention_info(x->attention);
}

void step_merge_states(struct steps *x, const struct merge_states *m)
{
    attention_merge_states(x->attention, m);
}

const char *step_failure(const struct steps *x)
{
    return attention_failure(x->attention);
}

uint32_t step_compare_kv(struct steps *x, const struct kv_rows *rows, const uint32_t *ids)
{
    return attention_compare_kv(x->attention, rows, ids);
}

bool step_self_test(struct steps *x)
{
    return attention_self_test(x->attention);
}

bool step_has_appended(const struct steps *x)
{
    return x->appended;
}

double step_roof_gb_per_s(const struct steps *x)
{
    return x->roof_gb_per_s;
}

double step_grouping_us(const struct steps *x)
{
    return x->costs.grouping_us;
}

uint64_t step_number(const struct steps *x)
{
    return x->number;
}

/* ---- create and destroy -------------------------------------------------------------------------- */

/* Entries that a row of the block tables may have. */
static uint32_t row_blocks(const struct config *c)
{
    uint64_t tokens = c->limits.sequence_tokens, pool = c->pool_blocks * c->geometry.block_size;
    return (uint32_t)((tokens < pool ? tokens : pool) / c->geometry.block_size) + 1;
}

static int open_attention(struct steps *x, const struct steps_options *o,
                          char error[ATTENTION_ERROR_BYTES])
{
    const struct config *c = x->config;
    const struct attention_options options = {
        .backend = c->backend,
        .isa = c->isa,
        .threads = c->threads,
        .device = c->device,
        .kernel = (enum attention_kernel)c->kernel,
        .cache = c->cache,
        .geometry = &c->geometry,
        .constants = o->constants,
        .blocks = (uint32_t)c->pool_blocks,
        .host_blocks = (uint32_t)c->host_blocks,
        .rows_max = c->step_rows_max,
        .partials_max = o->partials_max,
        .table_rows = c->limits.sequences + LOOSE_TABLES,
        .table_stride = row_blocks(c),
        .progress = o->progress,
        .cookie = o->cookie,
    };
    int rc = attention_open(&options, &x->attention, error);
    if (rc != 0)
        return rc;
    x->roof_gb_per_s = attention_measure_roof(x->attention);
    const struct calibration calibration = {.geometry = &c->geometry,
                                            .blocks = options.blocks,
                                            .rows_max = options.rows_max,
                                            .partials_max = options.partials_max,
                                            .table_rows = options.table_rows,
                                            .table_stride = options.table_stride,
                                            .read_gb_per_s = x->roof_gb_per_s};
    if (c->sharing == SHARING_AUTO)
        x->costs = calibrate(&calibration, x->attention);
    return 0;
}

static int make_planners(struct steps *x, uint32_t partials_max)
{
    const struct geometry *g = x->g;
    x->windows = calloc(g->layers, sizeof *x->windows);
    for (uint32_t layer = 0; x->windows && layer < g->layers; layer++) {
        uint32_t i = 0;
        while (i < x->window_count && x->windows[i].window != g->window[layer])
            i++;
        if (i < x->window_count)
            continue;
        x->windows[x->window_count++].window = g->window[layer];
        const struct planner_options options = {.rows_max = x->config->step_rows_max,
                                                .partials_max = partials_max,
                                                .tasks = attention_info(x->attention)->tasks,
                                                .kv_heads = g->kv_heads,
                                                .group = geometry_group(g),
                                                .block_size = g->block_size,
                                                .window = g->window[layer],
                                                .first_loose_table = x->config->limits.sequences,
                                                .share = x->config->sharing != SHARING_OFF,
                                                .costs = x->costs};
        for (int slot = 0; slot < PLAN_SLOTS; slot++) {
            if (planner_create(&options, &x->windows[i].slots[slot]) != 0)
                return ATTND_NO_MEMORY;
        }
    }
    return x->windows ? 0 : ATTND_NO_MEMORY;
}

static int make_tables(struct steps *x)
{
    const struct config *c = x->config;
    const struct block_tables_options options = {
        .blocks = (uint32_t)c->pool_blocks,
        .block_size = c->geometry.block_size,
        .layers = c->geometry.layers,
        .rows = c->limits.sequences,
        .loose_rows = LOOSE_TABLES,
        .host_blocks = (uint32_t)c->host_blocks,
        .row_blocks = row_blocks(c),
    };
    return block_tables_create(&options, &x->tables);
}

int steps_create(const struct steps_options *options, struct steps **result,
                    char error[ATTENTION_ERROR_BYTES])
{
    struct steps *x = calloc(1, sizeof *x);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the scheduler's tables");
    if (!x)
        return ATTND_NO_MEMORY;
    x->config = options->config;
    x->g = &options->config->geometry;
    x->number = 1;
    int rc = open_attention(x, options, error);
    if (rc == 0) {
        x->copies = calloc(x->config->step_rows_max + x->config->pool_blocks, sizeof *x->copies);
        uint32_t table_rows = x->config->limits.sequences + LOOSE_TABLES;
        x->uses = calloc(table_rows, sizeof *x->uses);
        x->used_in = calloc(table_rows, sizeof *x->used_in);
        if (!x->copies || !x->uses || !x->used_in || make_tables(x) != 0 ||
            make_planners(x, options->partials_max) != 0)
            rc = ATTND_NO_MEMORY;
    }
    if (rc != 0) {
        steps_destroy(x);
        return rc;
    }
    *result = x;
    return 0;
}

void steps_destroy(struct steps *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; i < x->window_count; i++) {
        for (int slot = 0; slot < PLAN_SLOTS; slot++)
            planner_destroy(x->windows[i].slots[slot]);
    }
    free(x->windows);
    free(x->copies);
    free(x->uses);
    free(x->used_in);
    block_tables_destroy(x->tables);
    attention_close(x->attention);
    free(x);
}
