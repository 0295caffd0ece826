/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_backend.c - the CPU backend: executes plans on a team of threads.
 *
 *   step:   copies                                   a task a layer
 *           compares, reads, merges of states        a task per TASK_ROWS tokens, or heads
 *           for each pass, one after the other:
 *               appends                              a task per TASK_ROWS tokens of one
 *               work tiles                           a task per work tile and KV head
 *               merges                               a task per merge and KV head
 *
 * Phases are separated by a barrier; inside a phase a worker takes the next task when it has finished
 * one. A task of the work tile phase walks its chunks tile by tile and hands each tile, with all queries of
 * the work tile, to the kernel: K and V are read once for all queries that share them. Each chunk's state is
 * folded into the node above it as soon as it is done:
 *
 *   fold[0]  the chunks of the current run      closed into fold[1] where a run ends
 *   fold[1]  the runs of the current segment    closed into fold[2] where a segment ends
 *   fold[2]  the segments of the current span   closed into fold[3] where a span ends, by merges alone
 *   fold[3]  the spans of the context
 *
 * and a merge folds partial states the same way, each into the level that it belongs to, so the tree is
 * the same however the plan cuts it. Merging with an empty state keeps the bits, so levels that a range
 * does not reach cost nothing.
 *
 * A packed row is one query head of one query: packed row r * group + g is query r of the work tile, query
 * head kv_head * group + g. A partial is stored as
 *
 *   [kv_heads] times { m [group], l [group], o [group][head_dim] } */
#include "kernels/backend.h"

#include "config/clock.h"
#include "config/fault.h"
#include "config/log.h"
#include "config/mapping.h"
#include "config/numbers.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/self_test.h"
#include "kernels/cpu/step_cost.h"
#include "kernels/kv_pool.h"
#include "kernels/numeric.h"
#include "kernels/roof.h"
#include "kernels/thread_pool.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORK_TILE_LEVELS = PLAN_SPAN, /* that work tiles fold: run, segment, span */
    FOLD_LEVELS = PLAN_CONTEXT,   /* and merges: the context too */
    TASKS_PER_THREAD = 8,         /* so that dynamic taking evens out */
    TASK_ROWS = 64,               /* tokens of an append, a compare or a read, heads of merged states */
    TOUCH_BYTES = 64 << 20,       /* between two reports of progress */
    WAKE_US = 50                  /* a step that one thread ends sooner wakes no other */
};

/* What a worker needs for a task, allocated once. */
struct scratch {
    float *q;                            /* [packed rows][head_dim] */
    float *slopes;                       /* [packed rows] */
    uint32_t *keys;                      /* [packed rows] */
    struct cpu_states chunk;             /* [packed rows] */
    struct cpu_states fold[FOLD_LEVELS]; /* [packed rows] each; of the context [group] */
    float *tile;                         /* of the kernel */
    float *o;                            /* [head_dim] */
    double roof_s;                       /* that the latest slice took while the roof is measured */
};

/* The roof being measured: every worker reads a part of the pool, slice by slice. */
struct roof_reading {
    struct roof_trial trial;
    uint64_t at, words, slice; /* words of a worker: read so far, of this slice, of the next */
    double seconds;            /* that the slices of this pass took */
};

struct cpu_backend {
    struct attention base;
    struct attention_options options;
    const struct cpu_kernels *kernels;
    struct kv_pool pool, host;      /* blocks that are swapped to */
    _Atomic uint64_t touched_bytes; /* of the pool, while the backend is opened */
    struct thread_pool *threads;
    struct step_rates rates;
    double wake_us;
    struct scratch *scratch; /* [threads] */
    float *arena;            /* the memory behind all scratch, then the partials */
    uint64_t arena_bytes;
    float *partials;
    const struct attention_step *step; /* while it runs */
    uint32_t test_part;                /* of the self-test, to be done next */
    struct roof_reading roof;
};

/* A piece of a phase, as a worker takes it. */
struct task {
    const struct cpu_backend *backend;
    struct scratch *scratch;
    const struct attention_pass *pass; /* NULL: ahead of the passes */
    uint32_t index;                    /* of an append, a work tile, ... */
    uint32_t piece;                    /* of it: a KV head, or TASK_ROWS rows, the last of them fewer */
};

const char *const attention_isa_names[] = {"auto", "portable", "avx2", "avx512", "amx", NULL};

/* Fastest first. */
static const struct cpu_kernels *const all_kernels[] = {&cpu_kernels_amx, &cpu_kernels_avx512_vbmi,
                                                        &cpu_kernels_avx512, &cpu_kernels_avx2,
                                                        &cpu_kernels_portable};

/* ---- states and folds ---------------------------------------------------------------------------- */

static void make_empty(const struct cpu_states *states, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; row++) {
        states->m[row] = -INFINITY;
        states->l[row] = 0;
    }
}

/* Close level `level`: its node is complete and goes into the one above. */
static void close_level(const struct cpu_backend *b, struct scratch *s, uint32_t rows, int level)
{
    b->kernels->merge(rows, b->options.geometry->head_dim, &s->fold[level + 1], &s->fold[level]);
    make_empty(&s->fold[level], rows);
}

static void fold_begin(struct scratch *s, uint32_t rows)
{
    for (int level = 0; level < WORK_TILE_LEVELS; level++)
        make_empty(&s->fold[level], rows);
}

/* Fold in a state of `level` whose last chunk is the one before `end_chunk`. */
static void fold_push(const struct cpu_backend *b, struct scratch *s, uint32_t rows, enum plan_level level,
                      uint32_t end_chunk, const struct cpu_states *state)
{
    b->kernels->merge(rows, b->options.geometry->head_dim, &s->fold[level], state);
    if (end_chunk % RUN_CHUNKS == 0)
        close_level(b, s, rows, 0);
    if (end_chunk % SEGMENT_CHUNKS == 0)
        close_level(b, s, rows, 1);
}

/* What has been folded in, of a span at most. */
static const struct cpu_states *fold_end(const struct cpu_backend *b, struct scratch *s, uint32_t rows)
{
    close_level(b, s, rows, 0);
    close_level(b, s, rows, 1);
    return &s->fold[2];
}

/* The partial state of one query and KV head, for its group of query heads. */
static struct cpu_states partial_at(const struct cpu_backend *b, uint32_t partial, uint32_t kv_head)
{
    const struct geometry *g = b->options.geometry;
    uint32_t group = geometry_group(g);
    size_t state_floats = (size_t)group * (2 + g->head_dim);
    float *at = b->partials + ((size_t)partial * g->kv_heads + kv_head) * state_floats;
    return (struct cpu_states){.m = at, .l = at + group, .o = at + 2 * (size_t)group};
}

/* Write the outputs of one query's group of query heads from packed rows `first` and on of `states`. */
static void write_outputs(const struct task *t, uint32_t query, const struct cpu_states *states,
                          uint32_t first)
{
    const struct geometry *g = t->backend->options.geometry;
    const struct model_constants *c = t->backend->options.constants;
    uint32_t group = geometry_group(g), layer = t->pass->layer;
    float v_scale = c->v_scale[(size_t)layer * g->kv_heads + t->piece], *o = t->scratch->o, lse;
    const struct attention_row to = attention_row_of(t->pass, g, query);
    for (uint32_t i = 0; i < group; i++) {
        uint32_t head = t->piece * group + i;
        const float *sink = c->sinks ? &c->sinks[(size_t)layer * g->query_heads + head] : NULL;
        t->backend->kernels->finish(g->head_dim, states, first + i, sink, v_scale, o, &lse);
        if (FAULTY(FAULT_NOT_A_NUMBER) && query == 0)
            o[0] = NAN;
        numeric_from_float(g->dtype, o, g->head_dim,
                           (uint8_t *)to.o + (size_t)head * g->head_dim * dtype_bytes(g->dtype));
        if (to.lse)
            to.lse[head] = lse;
    }
}

/* ---- tasks --------------------------------------------------------------------------------------- */

static const uint32_t *table_of(const struct cpu_backend *b, uint32_t table)
{
    return b->step->tables + (uint64_t)table * b->step->stride;
}

/* Set up the packed rows of a work tile; returns their number. */
static uint32_t load_rows(const struct task *t, const struct work_tile *work_tile)
{
    const struct geometry *g = t->backend->options.geometry;
    const float *alibi = t->backend->options.constants->alibi;
    struct scratch *s = t->scratch;
    uint32_t group = geometry_group(g), packed = 0;
    for (uint32_t r = 0; r < work_tile->queries; r++) {
        uint32_t query = t->pass->plan->work_tile_queries[work_tile->first_query + r],
                 keys = t->pass->plan->queries[query].keys;
        for (uint32_t i = 0; i < group; i++, packed++) {
            uint32_t head = t->piece * group + i;
            s->keys[packed] = keys;
            s->slopes[packed] = alibi ? alibi[head] : 0;
            kv_pool_load_q(g, t->pass, query, head, s->q + (size_t)packed * g->head_dim);
        }
    }
    return packed;
}

/* Where the tiles of a work tile lie: of the one being computed and of the one after it. */
struct walk {
    const uint32_t *ids;
    uint32_t layer, kv_head;
    struct plan_range seen; /* of the work tile: positions that any query sees */
    struct cpu_span spans[2][TILE_TOKENS];
    uint32_t counts[2];
    unsigned now; /* which of the two is being computed */
};

/* The readable keys of the tile from `position` on as spans, one per block touched; none behind the end. */
static void find_spans(const struct kv_pool *pool, struct walk *walk, unsigned which, uint32_t position)
{
    uint32_t n = 0, block_size = pool->geometry->block_size,
             end = smaller(position + TILE_TOKENS, walk->seen.end);
    while (position < end) {
        uint32_t index = position / block_size, slot = position % block_size,
                 tokens = smaller(block_size - slot, end - position);
        if (FAULTY(FAULT_SWAPPED_ENTRIES) && (index | 1) * block_size < end)
            index ^= 1;
        const uint8_t *k = kv_pool_key(pool, walk->layer, walk->ids[index], slot, walk->kv_head);
        walk->spans[which][n++] = (struct cpu_span){k, k + pool->plane_bytes, tokens};
        position += tokens;
    }
    walk->counts[which] = n;
}

/* All tiles of one chunk, into s->chunk. The tiles of a work tile come one after the other. */
static void run_chunk(const struct cpu_backend *b, struct scratch *s, struct cpu_tile *tile,
                      struct walk *walk, uint32_t chunk)
{
    uint32_t begin = chunk * CHUNK_TOKENS, end = begin + CHUNK_TOKENS;
    end = smaller(end, walk->seen.end);
    make_empty(&s->chunk, tile->rows);
    for (uint32_t position = begin; position < end; position += TILE_TOKENS) {
        if (position + TILE_TOKENS <= walk->seen.first)
            continue;
        tile->position = position;
        if (walk->counts[walk->now] == 0)
            find_spans(&b->pool, walk, walk->now, position);
        find_spans(&b->pool, walk, !walk->now, position + TILE_TOKENS);
        tile->spans = walk->spans[walk->now];
        tile->span_count = walk->counts[walk->now];
        tile->next_spans = walk->spans[!walk->now];
        tile->next_span_count = walk->counts[!walk->now];
        b->kernels->tile(tile);
        walk->now = !walk->now;
    }
}

static void run_work_tile(const struct task *t)
{
    const struct cpu_backend *b = t->backend;
    const struct attention_pass *pass = t->pass;
    const struct work_tile *work_tile = &pass->plan->work_tiles[t->index];
    const struct geometry *g = b->options.geometry;
    struct scratch *s = t->scratch;
    const struct model_constants *c = b->options.constants;
    struct walk walk;
    uint32_t group = geometry_group(g), packed = load_rows(t, work_tile);
    walk.ids = table_of(b, work_tile->table);
    walk.layer = pass->layer;
    walk.kv_head = t->piece;
    walk.seen = plan_work_tile_keys(pass->plan, work_tile, 0, work_tile->queries, g->window[pass->layer]);
    walk.now = walk.counts[0] = walk.counts[1] = 0;
    struct cpu_tile tile = {
        .head_dim = g->head_dim,
        .rows = packed,
        .q_dtype = g->dtype,
        .kv_dtype = g->kv_dtype,
        .token_stride = b->pool.slot_bytes,
        .row_bytes = g->head_dim * b->pool.element_bytes,
        .q = s->q,
        .keys = s->keys,
        .slopes = c->alibi ? s->slopes : NULL,
        .window = g->window[pass->layer] + (FAULTY(FAULT_WINDOW) && g->window[pass->layer]),
        .scale = (FAULTY(FAULT_SCALE) ? 1.01F : 1.0F) * g->scale *
                 c->k_scale[(size_t)pass->layer * g->kv_heads + t->piece],
        .softcap = g->softcap,
        .states = s->chunk,
        .scratch = s->tile,
    };
    if (b->kernels->begin)
        b->kernels->begin(&tile);
    fold_begin(s, packed);
    for (uint32_t chunk = work_tile->first_chunk; chunk < work_tile->first_chunk + work_tile->chunks;
         chunk++) {
        run_chunk(b, s, &tile, &walk, chunk);
        fold_push(b, s, packed, PLAN_CHUNK, chunk + 1, &s->chunk);
    }
    const struct cpu_states *result = fold_end(b, s, packed);
    for (uint32_t r = 0; r < work_tile->queries; r++) {
        if (work_tile->partial == PLAN_NO_PARTIAL) {
            write_outputs(t, pass->plan->work_tile_queries[work_tile->first_query + r], result, r * group);
            continue;
        }
        struct cpu_states to = partial_at(b, work_tile->partial + r, t->piece);
        memcpy(to.m, result->m + (size_t)r * group, group * sizeof *to.m);
        memcpy(to.l, result->l + (size_t)r * group, group * sizeof *to.l);
        memcpy(to.o, result->o + (size_t)r * group * g->head_dim, (size_t)group * g->head_dim * sizeof *to.o);
    }
}

static void run_merge(const struct task *t)
{
    const struct cpu_backend *b = t->backend;
    const struct plan_merge *merge = &t->pass->plan->merges[t->index];
    struct scratch *s = t->scratch;
    uint32_t group = geometry_group(b->options.geometry);
    fold_begin(s, group);
    make_empty(&s->fold[PLAN_SPAN], group);
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct partial_ref *ref = &t->pass->plan->merge_partials[merge->first + i];
        struct cpu_states state = partial_at(b, ref->partial, t->piece);
        fold_push(b, s, group, ref->level, ref->end_chunk, &state);
        if (ref->end_chunk % SPAN_CHUNKS == 0)
            close_level(b, s, group, PLAN_SEGMENT);
    }
    (void)fold_end(b, s, group);
    close_level(b, s, group, PLAN_SEGMENT);
    write_outputs(t, merge->query, &s->fold[PLAN_SPAN], 0);
}

/* Rows of a task, of `count` that there are. */
static uint32_t task_rows(const struct task *t, uint32_t count)
{
    uint32_t first = t->piece * TASK_ROWS;
    return first < count ? smaller(count - first, TASK_ROWS) : 0;
}

static void run_append(const struct task *t)
{
    const struct cpu_backend *b = t->backend;
    const struct kv_append *append = &t->pass->appends[t->index];
    uint32_t n = task_rows(t, append->count);
    if (n == 0)
        return;
    const struct kv_append part = kv_append_part(
        append, t->piece * TASK_ROWS, n, geometry_kv_row_bytes(b->options.geometry, t->pass->source_dtype));
    kv_pool_append(&b->pool, b->options.constants, t->pass, &part, table_of(b, append->table));
}

/* All copies, in one layer. */
static void run_copies(const struct task *t)
{
    const struct cpu_backend *b = t->backend;
    for (uint32_t i = 0; i < b->step->copy_count; i++)
        kv_pool_copy(&b->pool, &b->host, &b->step->copies[i], t->index);
}

/* Lower *equal to `rows`; other workers do so too. */
static void lower(uint32_t *equal, uint32_t rows)
{
    uint32_t now = __atomic_load_n(equal, __ATOMIC_RELAXED);
    while (rows < now &&
           !__atomic_compare_exchange_n(equal, &now, rows, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/* A piece of a comparison, unless it comes behind a difference. */
static void run_compare(const struct task *t)
{
    const struct cpu_backend *b = t->backend;
    const struct kv_compare *c = &b->step->compares[t->index];
    uint32_t first = t->piece * TASK_ROWS, n = task_rows(t, c->count);
    if (first >= __atomic_load_n(c->equal, __ATOMIC_RELAXED)) /* count at most */
        return;
    uint32_t equal = kv_pool_compare(&b->pool, b->options.constants, c, first, n, table_of(b, c->table));
    if (equal < n)
        lower(c->equal, first + equal);
}

static void run_read(const struct task *t)
{
    const struct cpu_backend *b = t->backend;
    const struct kv_read *r = &b->step->reads[t->index];
    kv_pool_read(&b->pool, r, t->piece * TASK_ROWS, task_rows(t, r->count), table_of(b, r->table));
}

static void run_merge_states(const struct task *t)
{
    const struct merge_states *m = &t->backend->step->merges[t->index];
    merge_states_on_host(m, (size_t)t->piece * TASK_ROWS, task_rows(t, m->rows * m->heads));
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* `count` things in `pieces` pieces each, taken by the workers one after the other. */
static void run_phase(const struct cpu_backend *b, struct scratch *s, const struct attention_pass *pass,
                      void (*run)(const struct task *task), uint32_t count, uint32_t pieces)
{
    uint32_t ticket;
    if (count == 0)
        return;
    while ((ticket = thread_pool_take(b->threads)) < count * pieces)
        run(&(struct task){b, s, pass, ticket / pieces, ticket % pieces});
    thread_pool_barrier(b->threads);
}

/* What comes ahead of the passes. Pieces are those of the longest of a kind; others have empty ones. */
static void run_operations(const struct cpu_backend *b, struct scratch *s)
{
    const struct attention_step *step = b->step;
    uint32_t compared = 0, read = 0, merged = 0;
    for (uint32_t i = 0; i < step->compare_count; i++)
        compared = larger(compared, step->compares[i].count);
    for (uint32_t i = 0; i < step->read_count; i++)
        read = larger(read, step->reads[i].count);
    for (uint32_t i = 0; i < step->merge_count; i++)
        merged = larger(merged, step->merges[i].rows * step->merges[i].heads);
    run_phase(b, s, NULL, run_copies, step->copy_count ? b->options.geometry->layers : 0, 1);
    run_phase(b, s, NULL, run_compare, step->compare_count, ceiling(compared, TASK_ROWS));
    run_phase(b, s, NULL, run_read, step->read_count, ceiling(read, TASK_ROWS));
    run_phase(b, s, NULL, run_merge_states, step->merge_count, ceiling(merged, TASK_ROWS));
}

static void run_appends(const struct cpu_backend *b, struct scratch *s, const struct attention_pass *pass)
{
    uint32_t longest = 0;
    for (uint32_t i = 0; i < pass->append_count; i++)
        longest = larger(longest, pass->appends[i].count);
    run_phase(b, s, pass, run_append, pass->append_count, ceiling(longest, TASK_ROWS));
}

static void run_step(uint32_t worker, void *cookie)
{
    struct cpu_backend *b = cookie;
    struct scratch *s = &b->scratch[worker];
    uint32_t heads = b->options.geometry->kv_heads;
    run_operations(b, s);
    for (uint32_t p = 0; p < b->step->pass_count; p++) {
        const struct attention_pass *pass = &b->step->passes[p];
        if (!FAULTY(FAULT_STALE_BLOCK))
            run_appends(b, s, pass);
        if (pass->plan)
            run_phase(b, s, pass, run_work_tile, pass->plan->work_tile_count, heads);
        if (FAULTY(FAULT_STALE_BLOCK))
            run_appends(b, s, pass);
        if (pass->plan)
            run_phase(b, s, pass, run_merge, pass->plan->merge_count, heads);
    }
}

/* A thread that is woken costs some 50 us of processor time beside its share of the step: the wake-up, and
 * spinning between the phases and after the last. So a step that takes one thread less than WAKE_US is
 * left to the engine thread; the bits are the same for any number of threads. Measured with two threads of
 * an EPYC, attends of one row of 32/8 heads of 128 over 3 tokens: 70 us of processor time (engine and
 * worker) with the worker, 17 without; over 60 tokens 83 and 37. */
static void cpu_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    (void)ticket; /* done when this returns */
    struct cpu_backend *b = (struct cpu_backend *)attention;
    for (uint32_t p = 0; p < step->pass_count; p++)
        assert(!step->passes[p].plan || step->passes[p].plan->partial_count <= b->options.partials_max);
    for (uint32_t i = 0; i < step->compare_count; i++)
        *step->compares[i].equal = step->compares[i].count; /* so far */
    b->step = step;
    if (thread_pool_threads(b->threads) > 1 &&
        step_cost_us(&b->rates, b->options.geometry, step, b->wake_us) >= b->wake_us)
        thread_pool_run(b->threads, run_step, b);
    else
        thread_pool_run_alone(b->threads, run_step, b);
    b->step = NULL;
}

uint64_t cpu_backend_wakes(const struct attention *attention)
{
    return thread_pool_wakes(((const struct cpu_backend *)attention)->threads);
}

void cpu_backend_wake_from(struct attention *attention, double us)
{
    ((struct cpu_backend *)attention)->wake_us = us;
}

static enum attention_verdict cpu_self_test(struct attention *attention)
{
    struct cpu_backend *b = (struct cpu_backend *)attention;
    bool agrees = self_test_part(b->kernels, b->test_part++);
    if (agrees && b->test_part < SELF_TEST_PARTS)
        return ATTENTION_TEST_RUNS;
    b->test_part = 0;
    return agrees ? ATTENTION_TEST_PASSED : ATTENTION_TEST_FAILED;
}

/* ---- the roof ------------------------------------------------------------------------------------ */

/* Ways to read. */
enum { ROOF_PLAIN, ROOF_PREFETCH, ROOF_STREAMS };
_Static_assert(ROOF_STREAMS + 1 == ROOF_WAYS, "each is tried");

enum {
    ROOF_PASSES = 3,             /* in the fastest way */
    ROOF_WORDS = 32,             /* what is read is a multiple of so many words */
    ROOF_SLICE_LEAST = 128 << 10 /* words of a worker: 1 MiB */
};

#define ROOF_BYTES_MAX (UINT64_C(1) << 30) /* read per pass */

static const double ROOF_SLICE_S = 0.004; /* a hundred times what waking and gathering the workers takes */

/* Sum of `words` (a multiple of 32) 64-bit words, read front to back, `prefetch` words ahead or not at
 * all. */
static uint64_t read_forward(const uint64_t *from, uint64_t words, uint64_t prefetch)
{
    uint64_t sum[8] = {0};
    for (uint64_t i = 0; i < words; i += 8) {
        if (prefetch)
            __builtin_prefetch(from + i + prefetch);
        for (int lane = 0; lane < 8; lane++)
            sum[lane] += from[i + (uint64_t)lane];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* The same, as four streams side by side. */
static uint64_t read_streams(const uint64_t *from, uint64_t words)
{
    uint64_t sum[8] = {0}, quarter = words / 4;
    for (uint64_t i = 0; i < quarter; i += 8) {
        for (int lane = 0; lane < 8; lane++) {
            const uint64_t *at = from + i + (uint64_t)lane;
            sum[lane] += at[0] + at[quarter] + at[2 * quarter] + at[3 * quarter];
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static _Atomic uint64_t roof_sink; /* what was read, so that reading it cannot be left out */

/* Bytes that are read in a pass. */
static uint64_t roof_bytes(const struct cpu_backend *b)
{
    return b->pool.total_bytes < ROOF_BYTES_MAX ? b->pool.total_bytes : ROOF_BYTES_MAX;
}

/* Words of them that each worker reads. */
static uint64_t roof_worker_words(const struct cpu_backend *b)
{
    return roof_bytes(b) / 8 / thread_pool_threads(b->threads) / ROOF_WORDS * ROOF_WORDS;
}

/* Read a slice of what is this worker's in a pass. */
static void run_roof(uint32_t worker, void *cookie)
{
    struct cpu_backend *b = cookie;
    const struct roof_reading *x = &b->roof;
    const uint64_t *from =
        (const uint64_t *)(const void *)b->pool.bytes + worker * roof_worker_words(b) + x->at;
    uint32_t way = roof_trial_way(&x->trial);
    thread_pool_barrier(b->threads);
    double start = clock_s();
    uint64_t sum = way == ROOF_STREAMS ? read_streams(from, x->words)
                                       : read_forward(from, x->words, way == ROOF_PREFETCH ? 256 : 0);
    b->scratch[worker].roof_s = clock_s() - start;
    atomic_fetch_add(&roof_sink, sum);
}

/* Read a slice, of about ROOF_SLICE_S, by all workers; return what the slowest took. */
static double read_slice(struct cpu_backend *b, uint64_t words)
{
    struct roof_reading *x = &b->roof;
    double slowest = 0;
    x->words = words - x->at < x->slice ? words - x->at : x->slice;
    thread_pool_run(b->threads, run_roof, b);
    for (uint32_t i = 0; i < thread_pool_threads(b->threads); i++)
        slowest = fmax(slowest, b->scratch[i].roof_s);
    x->at += x->words;
    if (slowest > 0 && x->words == x->slice)
        x->slice = (uint64_t)fmin((double)x->slice * ROOF_SLICE_S / slowest, (double)ROOF_BYTES_MAX) /
                   ROOF_WORDS * ROOF_WORDS;
    x->slice = x->slice < ROOF_SLICE_LEAST ? ROOF_SLICE_LEAST : x->slice;
    return slowest;
}

static bool cpu_roof_part(struct attention *attention, bool begins, struct attention_roof *roof)
{
    struct cpu_backend *b = (struct cpu_backend *)attention;
    struct roof_reading *x = &b->roof;
    uint64_t words = roof_worker_words(b);
    if (begins) {
        roof_trial_begin(&x->trial, ROOF_PASSES);
        x->at = 0;
        x->seconds = 0;
        x->slice = x->slice ? x->slice : ROOF_SLICE_LEAST;
    }
    x->seconds += read_slice(b, words);
    if (x->at < words)
        return false;
    double bytes = (double)(words * 8 * thread_pool_threads(b->threads));
    double gb_per_s = x->seconds > 0 ? bytes / x->seconds * 1e-9 : 0;
    x->at = 0;
    x->seconds = 0;
    return roof_trial_add(&x->trial, gb_per_s, roof);
}

/* ---- open and close ------------------------------------------------------------------------------ */

/* Hand out `n` floats of the arena; NULL arena: only count. */
static float *carve(float *arena, size_t *used, size_t n)
{
    float *at = arena ? arena + *used : NULL;
    *used += (n + 15) / 16 * 16; /* whole cache lines */
    return at;
}

static struct cpu_states carve_states(float *arena, size_t *used, uint32_t rows, uint32_t head_dim)
{
    struct cpu_states states;
    states.m = carve(arena, used, rows);
    states.l = carve(arena, used, rows);
    states.o = carve(arena, used, (size_t)rows * head_dim);
    return states;
}

/* Lay out a worker's scratch in `arena`; returns how many floats it takes. */
static size_t lay_out(struct scratch *s, float *arena, const struct geometry *g)
{
    size_t used = 0;
    uint32_t group = geometry_group(g), rows = group > PLAN_QUERY_HEADS_MAX ? group : PLAN_QUERY_HEADS_MAX;
    s->q = carve(arena, &used, (size_t)rows * g->head_dim);
    s->slopes = carve(arena, &used, rows);
    s->keys = (uint32_t *)(void *)carve(arena, &used, rows);
    s->chunk = carve_states(arena, &used, rows, g->head_dim);
    for (int level = 0; level < FOLD_LEVELS; level++)
        s->fold[level] = carve_states(arena, &used, level < WORK_TILE_LEVELS ? rows : group, g->head_dim);
    s->tile = carve(arena, &used, cpu_scratch_floats(g->head_dim, rows));
    s->o = carve(arena, &used, g->head_dim);
    return used;
}

/* Scratch of all threads, and the partials. */
static int make_arena(struct cpu_backend *b)
{
    const struct geometry *g = b->options.geometry;
    uint32_t threads = thread_pool_threads(b->threads);
    struct scratch none;
    size_t floats = lay_out(&none, NULL, g),
           partials = (size_t)b->options.partials_max * g->query_heads * (2 + g->head_dim);
    b->arena_bytes = (threads * floats + partials) * sizeof(float);
    b->arena = mapping_create(b->arena_bytes, 0);
    b->scratch = calloc(threads, sizeof *b->scratch);
    if (!b->arena || !b->scratch)
        return ATTND_NO_MEMORY;
    for (uint32_t i = 0; i < threads; i++)
        lay_out(&b->scratch[i], b->arena + i * floats, g);
    memset(b->arena, 0, threads * floats * sizeof(float)); /* touched */
    b->partials = b->arena + threads * floats;
    return 0;
}

/* Write to every page, so that memory that is not there shows now and not in the middle of a step. */
static void touch(uint32_t worker, void *cookie)
{
    struct cpu_backend *b = cookie;
    uint64_t begin;
    while ((begin = (uint64_t)thread_pool_take(b->threads) * TOUCH_BYTES) < b->pool.total_bytes) {
        uint64_t n = b->pool.total_bytes - begin < TOUCH_BYTES ? b->pool.total_bytes - begin : TOUCH_BYTES;
        memset(b->pool.bytes + begin, 0, n);
        uint64_t done = atomic_fetch_add(&b->touched_bytes, n) + n;
        if (worker == 0 && b->options.progress)
            b->options.progress(done, b->pool.total_bytes, b->options.cookie);
    }
}

/* The pool, touched; then the host's blocks, for which there is room in what that leaves. */
static int make_pools(struct cpu_backend *b, char error[ATTENTION_ERROR_BYTES])
{
    const struct attention_options *o = &b->options;
    int rc = kv_pool_init(&b->pool, o->geometry, o->blocks, o->pool_key, error);
    if (rc != 0)
        return rc;
    thread_pool_run(b->threads, touch, b);
    return kv_pool_init(&b->host, o->geometry, o->host_blocks, "pool.host_blocks", error);
}

static void cpu_close(struct attention *attention)
{
    struct cpu_backend *b = (struct cpu_backend *)attention;
    thread_pool_destroy(b->threads);
    mapping_destroy(b->arena, b->arena_bytes);
    kv_pool_deinit(&b->pool);
    kv_pool_deinit(&b->host);
    free(b->scratch);
    free(b);
}

static const struct attention_ops ops = {
    .close = cpu_close,
    .submit = cpu_submit,
    .self_test = cpu_self_test,
    .roof_part = cpu_roof_part,
};

bool attention_isa_supported(const char *name)
{
    for (size_t i = 0; i < sizeof all_kernels / sizeof all_kernels[0]; i++) {
        if (strcmp(all_kernels[i]->isa, name) == 0 && cpu_kernels_run_here(all_kernels[i]))
            return true;
    }
    return false;
}

/* Whether vectors are faster than the tile registers of the same processor: with one query head for each KV
 * head, widening fp8 into tiles takes longer than tiles save (a Xeon of family 6, model 207: 14.7 ms a layer
 * against 9.7 for e4m3, 11.0 against 8.8 for e5m2). By the geometry alone, since bits depend on it. */
static bool prefers_vectors(const struct geometry *g)
{
    return dtype_is_fp8(g->kv_dtype) && g->query_heads == g->kv_heads;
}

/* The kernels that `isa` asks for: the named ones, or the fastest that run here and agree with the
 * reference. */
static const struct cpu_kernels *choose_kernels(const char *isa, const struct geometry *g,
                                                char error[ATTENTION_ERROR_BYTES])
{
    bool automatic = strcmp(isa, "auto") == 0;
    for (size_t i = 0; i < sizeof all_kernels / sizeof all_kernels[0]; i++) {
        const struct cpu_kernels *kernels = all_kernels[i];
        if (automatic ? kernels == &cpu_kernels_amx && prefers_vectors(g) : strcmp(isa, kernels->isa) != 0)
            continue;
        if (!cpu_kernels_run_here(kernels)) {
            snprintf(error, ATTENTION_ERROR_BYTES, "backend.isa: this processor has no %s", kernels->isa);
            continue;
        }
        if (self_test(kernels))
            return kernels;
        log_line(LOG_WARNING, "the %s kernels differ from the reference on this processor and are not used",
                 kernels->isa);
        snprintf(error, ATTENTION_ERROR_BYTES, "backend.isa: the %s kernels fail their self-test",
                 kernels->isa);
    }
    return NULL;
}

static void describe(struct cpu_backend *b)
{
    b->base.info = (struct attention_info){.name = "cpu",
                                           .isa = b->kernels->isa,
                                           .kernel = b->kernels->isa,
                                           .threads = thread_pool_threads(b->threads),
                                           .tasks = TASKS_PER_THREAD * thread_pool_threads(b->threads),
                                           .bit_stable = true,
                                           .host = kv_pool_host(&b->host)};
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(b->base.info.device, sizeof b->base.info.device, "host processor");
    while (f && fgets(line, sizeof line, f)) {
        if (sscanf(line, "model name%*[^:]: %127[^\n]", b->base.info.device) == 1)
            break;
    }
    if (f)
        fclose(f);
}

/* The kernels for these options; NULL: there are none, and `error` says why. */
static const struct cpu_kernels *kernels_for(const struct attention_options *options,
                                             char error[ATTENTION_ERROR_BYTES])
{
    const struct cpu_kernels *kernels = choose_kernels(options->isa, options->geometry, error);
    if (!kernels || options->geometry->layout != LAYOUT_VLLM)
        return kernels;
    snprintf(error, ATTENTION_ERROR_BYTES,
             "geometry.layout: vllm is for a GPU (and the reference backend), not for the CPU");
    return NULL;
}

int cpu_backend_check(const struct attention_options *options, char error[ATTENTION_ERROR_BYTES])
{
    return kernels_for(options, error) ? 0 : ATTND_INVALID;
}

int cpu_backend_open(const struct attention_options *options, struct attention **attention,
                     char error[ATTENTION_ERROR_BYTES])
{
    const struct cpu_kernels *kernels = kernels_for(options, error);
    if (!kernels)
        return ATTND_INVALID;
    struct cpu_backend *b = calloc(1, sizeof *b);
    if (!b)
        return ATTND_NO_MEMORY;
    b->base.ops = &ops;
    b->options = *options;
    b->kernels = kernels;
    b->wake_us = INFINITY; /* until the rates are known */
    uint32_t threads = options->threads ? options->threads : thread_pool_default_threads();
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for %u threads", threads);
    if (thread_pool_create(threads, &b->threads) != 0 || make_arena(b) != 0 || make_pools(b, error) != 0) {
        cpu_close(&b->base);
        return ATTND_NO_MEMORY;
    }
    if (threads > 1)
        b->rates = step_rates_measure(&b->base, options->geometry, options->blocks);
    b->wake_us = WAKE_US;
    describe(b);
    *attention = &b->base;
    return 0;
}
