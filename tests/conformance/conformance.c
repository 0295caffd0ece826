/* SPDX-License-Identifier: Apache-2.0 */
/* conformance.c - every kernel against double precision, over the grid of grid.h.
 *
 * For each case:
 *
 *   error   o and lse against reference_query() on the stored values; at most twice the error of a plain
 *           loop in f32 with the same rounding of the result (plus one unit in the last place of f32),
 *           as FlashAttention's tests have it. Where a GPU's tensor cores take p in 16 bits, so does
 *           the loop
 *   states  the outputs merged as attention states, against double precision, and in place
 *   rows    compares, reads and merges of steps (operations.c)
 *   bits    the same rows one at a time, together, cut at every level and at random, sharing work tiles or
 *           not, by one thread and by three, and with other block ids, after a way to the host and
 *           back: all identical
 *   reads   every slot that no sequence owns holds NaN, table tails are -1, and guard bytes lie around
 *           the outputs
 *
 * The kernels of the vllm layout have a grid of their own, and only the first and the last of these. A
 * third grid is that of FlashInfer's tests, for the native kernels, a fourth one is of many query heads;
 * with wide values only a fifth one is of rows beyond 65 536 tokens, a sixth one of block sizes and groups that are
 * no powers of two or very large, and a seventh one of a pool beyond 4 GiB.
 *
 * Usage: conformance [--full] [--every N] [--part I/N] [--isa NAME] [--case N] [--digests FILE]. NAME is
 * "reference", "reference-vllm", "cpu-flashinfer", "cpu-columns", "cpu-spans", "cpu-odd",
 * "cpu-large" (the fastest instruction set), "cuda", "cuda-flashinfer", "cuda-columns", "cuda-spans", "cuda-odd",
 * "cuda-large", "cuda-vllm" or an instruction set of the CPU backend, with "-wide"
 * behind it for values whose sums depend on their order (kernels/values.h), or "-extreme" for scores of
 * any size, infinite ones too; of these every third case is run unless --full or --case says otherwise.
 * --every takes each Nth case only (for sanitizers), --part the I'th of N equal parts (to run them side by
 * side). With
 * --digests the bits of all outputs must be those that FILE has for a path, in a line "NAME conformance
 * DIGEST" (tests/digests.txt); for whole grids only. A failing case prints what it is and how to run it
 * alone. Every few seconds a line on stderr says how far it is. */
#include "config/clock.h"
#include "config/host_memory.h"
#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/numeric.h"
#include "kernels/reference.h"
#include "kernels/values.h"
#include "scheduler/planner.h"
#include "tests/conformance/cover.h"
#include "tests/conformance/extreme.h"
#include "tests/conformance/grid.h"
#include "tests/conformance/operations.h"
#include "tests/conformance/plans.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    LAYERS = 2,
    LAYER = 1, /* that is attended; the other one differs in every value and in its window */
    SEQUENCES_MAX = 24,
    ROWS_MAX = 264,
    GUARD_BYTES = 64,
    PARTIALS_MAX = 4096,
    SLICE_STATES = 2048, /* of them, for slices */
    TASKS = 24,
    SEGMENT_TOKENS = SEGMENT_CHUNKS * CHUNK_TOKENS,
    QUERY_HEADS = 128, /* at most */
    KV_HEADS = 40,     /* likewise */
    WIDE_SPREAD = 10,
    SEED = 11
};

#define FOUR_GIB (UINT64_C(4) << 30)

/* What q, k and v are. */
enum values {
    VALUES_EXACT,   /* values_row(): sums of their products are exact in any order */
    VALUES_WIDE,    /* wide ones of it */
    VALUES_EXTREME, /* extreme_row() */
    VALUES_COUNT
};

static const char *const values_suffix[VALUES_COUNT] = {"", "-wide", "-extreme"};

/* A case of one of the grids, spelt out. */
struct setting {
    enum dtype dtype, kv_dtype;
    uint32_t head_dim, query_heads, kv_heads, block_size, window;
    enum kv_layout layout;
    bool softcap, sinks, alibi;
    struct block_sparse sparse;
    enum attention_kernel kernel;
    enum source source;
    enum values values;
    bool large; /* the pool has more than 4 GiB */
    const struct shape *shape;
};

/* Everything that one case needs and that does not depend on the backend. */
struct world {
    struct geometry g;
    struct model_constants c;
    float sinks[LAYERS][QUERY_HEADS], alibi[QUERY_HEADS], k_scale[LAYERS][KV_HEADS],
        v_scale[LAYERS][KV_HEADS];
    enum attention_kernel kernel;
    const struct shape *shape;
    enum source source;
    enum values values;
    uint32_t blocks, stride;
    uint32_t apart; /* every other block lies so many further behind, with unused ones between */
    float *k, *v;   /* [sequences][longest][kv_heads][head_dim] as stored at LAYER */
    uint32_t longest;
    struct plan_query rows[ROWS_MAX];
    struct value_source q_source[ROWS_MAX];
    uint32_t row_count;
    uint8_t *q; /* [rows][query_heads][head_dim] in dtype */
};

/* One backend with the world's sequences in its pool. */
struct instance {
    const struct world *w;
    struct attention *attention;
    uint32_t *tables;
    uint64_t steps;      /* so far */
    uint8_t *buffer, *o; /* o lies between guard bytes */
    float *lse;          /* likewise, behind it */
    uint8_t *q;          /* the world's */
    size_t o_bytes, lse_bytes, buffer_bytes;
};

static char fault[512];

/* Of the outputs of every row by itself, in all cases of a path that were run: a sum, so that parts of a
 * grid add up. It stays the same as long as no kernel changes a bit (tests/digests.txt). */
static uint64_t digest;

static bool __attribute__((format(printf, 1, 2))) broken(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(fault, sizeof fault, format, args);
    va_end(args);
    return false;
}

static void *make_array(size_t n, size_t size)
{
    void *array = calloc(n + 1, size);
    if (!array)
        abort();
    return array;
}

/* Memory for tensors. */
static void *make_host_array(struct attention *attention, size_t bytes)
{
    void *array = attention_host_memory(attention, bytes + 1);
    if (!array)
        abort();
    return array;
}

/* ---- the world ----------------------------------------------------------------------------------- */

/* The content that position `at` of a sequence comes from: its own, or that of an ancestor below a
 * fork. */
static uint64_t content_of(const struct shape *shape, uint32_t sequence, uint32_t at)
{
    while (shape->sequences[sequence].parent >= 0 && at < shape->sequences[sequence].fork)
        sequence = (uint32_t)shape->sequences[sequence].parent;
    return 1000 + sequence;
}

/* The products of e4m3 and e5m2 have the range of their scales alone. */
static struct value_source source_of(const struct world *w, uint64_t content)
{
    uint32_t spread = dtype_is_fp8(w->g.kv_dtype) ? 0 : WIDE_SPREAD;
    return (struct value_source){SEED, content, w->values == VALUES_WIDE ? 1 + spread : 0};
}

/* One row before any rounding. */
static void value_row(const struct world *w, struct value_source source, uint32_t at, uint32_t layer,
                      enum values_tensor tensor, uint32_t head, float *row)
{
    if (w->values == VALUES_EXTREME)
        extreme_row(source, at, layer, tensor, head, w->g.head_dim,
                    tensor == VALUES_Q ? w->g.dtype : w->g.kv_dtype, row);
    else
        values_row(source, at, layer, tensor, head, w->g.head_dim, row);
}

/* One row of k or v as it is handed in: rounded to the format of the source. */
static void handed_in(const struct world *w, uint64_t content, uint32_t at, uint32_t layer,
                      enum values_tensor tensor, uint32_t head, float *row)
{
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    value_row(w, source_of(w, content), at, layer, tensor, head, row);
    if (w->source == SOURCE_GENERATED)
        return;
    enum dtype dtype = w->source == SOURCE_DTYPE ? w->g.dtype : w->g.kv_dtype;
    numeric_from_float(dtype, row, w->g.head_dim, rounded);
    numeric_to_float(dtype, rounded, w->g.head_dim, row);
}

/* The same as it must be stored. */
static void stored(const struct world *w, uint64_t content, uint32_t at, uint32_t layer,
                   enum values_tensor tensor, uint32_t head, float *row)
{
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    float scale = tensor == VALUES_K ? w->k_scale[layer][head] : w->v_scale[layer][head];
    handed_in(w, content, at, layer, tensor, head, row);
    bool as_is = w->source == SOURCE_KV_DTYPE || (w->source == SOURCE_DTYPE && w->g.dtype == w->g.kv_dtype);
    for (uint32_t d = 0; !as_is && d < w->g.head_dim; d++)
        row[d] /= scale;
    numeric_from_float(w->g.kv_dtype, row, w->g.head_dim, rounded);
    numeric_to_float(w->g.kv_dtype, rounded, w->g.head_dim, row);
}

static size_t kv_index(const struct world *w, uint32_t sequence, uint32_t at, uint32_t head)
{
    return (((size_t)sequence * w->longest + at) * w->g.kv_heads + head) * w->g.head_dim;
}

static void make_constants(struct world *w, const struct setting *t)
{
    for (uint32_t i = 0; i < QUERY_HEADS; i++) {
        w->alibi[i] = exp2f(-(float)(i % 8 + 1));
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            w->sinks[layer][i] = (float)(i % 5) - 1.5F + (float)layer;
    }
    for (uint32_t i = 0; i < LAYERS * KV_HEADS; i++) {
        bool scaled = dtype_is_fp8(w->g.kv_dtype);
        w->k_scale[i / KV_HEADS][i % KV_HEADS] = scaled ? 0.03F + 0.01F * (float)(i % 3) : 1;
        w->v_scale[i / KV_HEADS][i % KV_HEADS] = scaled ? 0.5F + 0.25F * (float)(i % 3) : 1;
    }
    w->c = (struct model_constants){.k_scale = w->k_scale[0], .v_scale = w->v_scale[0]};
    /* the tables are dense in the geometry's own sizes */
    float *k = make_array(LAYERS * w->g.kv_heads, sizeof *k),
          *v = make_array(LAYERS * w->g.kv_heads, sizeof *v);
    float *sinks = make_array(LAYERS * w->g.query_heads, sizeof *sinks);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        memcpy(k + layer * w->g.kv_heads, w->k_scale[layer], w->g.kv_heads * sizeof *k);
        memcpy(v + layer * w->g.kv_heads, w->v_scale[layer], w->g.kv_heads * sizeof *v);
        memcpy(sinks + layer * w->g.query_heads, w->sinks[layer], w->g.query_heads * sizeof *sinks);
    }
    w->c.k_scale = k;
    w->c.v_scale = v;
    w->c.sinks = sinks;
    w->c.alibi = t->alibi ? w->alibi : NULL;
    if (!t->sinks) {
        free(sinks);
        w->c.sinks = NULL;
    }
}

static void make_rows(struct world *w)
{
    for (uint32_t s = 0; s < w->shape->count; s++) {
        uint32_t length = w->shape->sequences[s].length;
        uint32_t n = length < w->shape->rows ? length : w->shape->rows;
        for (uint32_t i = 0; i < (n ? n : 1); i++) {
            w->q_source[w->row_count] = source_of(w, 5000 + s);
            w->rows[w->row_count++] = (struct plan_query){s, n ? length - n + 1 + i : 0};
        }
    }
    w->q = make_array((size_t)w->row_count * w->g.query_heads * w->g.head_dim, dtype_bytes(w->g.dtype));
    for (uint32_t row = 0; row < w->row_count; row++) {
        for (uint32_t head = 0; head < w->g.query_heads; head++) {
            float q[HEAD_DIM_MAX];
            size_t at = ((size_t)row * w->g.query_heads + head) * w->g.head_dim;
            value_row(w, w->q_source[row], w->rows[row].keys - 1, LAYER, VALUES_Q, head, q);
            numeric_from_float(w->g.dtype, q, w->g.head_dim, w->q + at * dtype_bytes(w->g.dtype));
        }
    }
}

static struct setting native_setting(const struct cover_case *k)
{
    return (struct setting){
        .dtype = grid_dtypes[k->value[AXIS_DTYPE]],
        .kv_dtype = grid_kv_dtypes[k->value[AXIS_KV_DTYPE]],
        .head_dim = grid_head_dims[k->value[AXIS_HEAD_DIM]],
        .query_heads = grid_heads[k->value[AXIS_HEADS]].query,
        .kv_heads = grid_heads[k->value[AXIS_HEADS]].kv,
        .block_size = grid_block_sizes[k->value[AXIS_BLOCK_SIZE]],
        .window = grid_windows[k->value[AXIS_WINDOW]],
        .layout = (enum kv_layout)k->value[AXIS_LAYOUT],
        .softcap = k->value[AXIS_SOFTCAP],
        .sinks = grid_constants[k->value[AXIS_CONSTANTS]].sinks,
        .alibi = grid_constants[k->value[AXIS_CONSTANTS]].alibi,
        .source = (enum source)k->value[AXIS_SOURCE],
        .shape = &grid_shapes[k->value[AXIS_SHAPE]],
    };
}

/* Of the grid of the vllm layout. */
static struct setting paged_setting(const struct cover_case *k)
{
    struct setting t = {
        .dtype = grid_dtypes[k->value[PAGED_DTYPE]],
        .kv_dtype = paged_kv_dtypes[k->value[PAGED_KV]],
        .head_dim = paged_head_dims[k->value[PAGED_HEAD_DIM]],
        .query_heads = paged_heads[k->value[PAGED_HEADS]].query,
        .kv_heads = paged_heads[k->value[PAGED_HEADS]].kv,
        .block_size = paged_block_sizes[k->value[PAGED_BLOCK_SIZE]],
        .layout = LAYOUT_VLLM,
        .alibi = k->value[PAGED_ALIBI],
        .sparse = paged_sparse[k->value[PAGED_SPARSE]],
        .kernel = (enum attention_kernel)k->value[PAGED_KERNEL],
        .source = (enum source)k->value[PAGED_SOURCE],
        .shape = &paged_shapes[k->value[PAGED_SHAPE]],
    };
    if (t.kv_dtype == DTYPE_COUNT || t.head_dim % 16 != 0) /* keys are whole vectors of 16 bytes */
        t.kv_dtype = t.dtype;
    return t;
}

static struct setting flashinfer_setting(const struct cover_case *k)
{
    struct setting t = {
        .dtype = flashinfer_dtypes[k->value[FLASHINFER_DTYPE]],
        .kv_dtype = flashinfer_kv_dtypes[k->value[FLASHINFER_KV]],
        .head_dim = flashinfer_head_dims[k->value[FLASHINFER_HEAD_DIM]],
        .query_heads = flashinfer_heads[k->value[FLASHINFER_HEADS]].query,
        .kv_heads = flashinfer_heads[k->value[FLASHINFER_HEADS]].kv,
        .block_size = flashinfer_block_sizes[k->value[FLASHINFER_BLOCK_SIZE]],
        .layout = (enum kv_layout)k->value[FLASHINFER_LAYOUT],
        .softcap = k->value[FLASHINFER_SOFTCAP],
        .source = SOURCE_DTYPE,
        .shape = &flashinfer_shapes[k->value[FLASHINFER_SHAPE]],
    };
    if (t.kv_dtype == DTYPE_COUNT)
        t.kv_dtype = t.dtype;
    return t;
}

static struct setting columns_setting(const struct cover_case *k)
{
    struct setting t = {
        .dtype = flashinfer_dtypes[k->value[COLUMNS_DTYPE]],
        .kv_dtype = flashinfer_kv_dtypes[k->value[COLUMNS_KV]],
        .head_dim = columns_head_dims[k->value[COLUMNS_HEAD_DIM]],
        .query_heads = columns_heads[k->value[COLUMNS_HEADS]].query,
        .kv_heads = columns_heads[k->value[COLUMNS_HEADS]].kv,
        .block_size = columns_block_sizes[k->value[COLUMNS_BLOCK_SIZE]],
        .layout = (enum kv_layout)k->value[COLUMNS_LAYOUT],
        .window = columns_windows[k->value[COLUMNS_WINDOW]],
        .softcap = k->value[COLUMNS_SOFTCAP],
        .source = SOURCE_GENERATED,
        .shape = &columns_shapes[k->value[COLUMNS_SHAPE]],
    };
    if (t.kv_dtype == DTYPE_COUNT)
        t.kv_dtype = t.dtype;
    return t;
}

static struct setting spans_setting(const struct cover_case *k)
{
    return (struct setting){
        .dtype = spans_formats[k->value[SPANS_FORMAT]].dtype,
        .kv_dtype = spans_formats[k->value[SPANS_FORMAT]].kv_dtype,
        .head_dim = 64,
        .query_heads = spans_heads[k->value[SPANS_HEADS]].query,
        .kv_heads = spans_heads[k->value[SPANS_HEADS]].kv,
        .block_size = 64,
        .layout = LAYOUT_HND,
        .window = spans_windows[k->value[SPANS_WINDOW]],
        .sinks = k->value[SPANS_SINKS],
        .source = SOURCE_DTYPE,
        .shape = &spans_shapes[k->value[SPANS_SHAPE]],
    };
}

static struct setting odd_setting(const struct cover_case *k)
{
    return (struct setting){
        .dtype = odd_formats[k->value[ODD_FORMAT]].dtype,
        .kv_dtype = odd_formats[k->value[ODD_FORMAT]].kv_dtype,
        .head_dim = odd_head_dims[k->value[ODD_HEAD_DIM]],
        .query_heads = odd_heads[k->value[ODD_HEADS]].query,
        .kv_heads = odd_heads[k->value[ODD_HEADS]].kv,
        .block_size = odd_block_sizes[k->value[ODD_BLOCK_SIZE]],
        .layout = (enum kv_layout)k->value[ODD_LAYOUT],
        .window = odd_windows[k->value[ODD_WINDOW]],
        .source = SOURCE_DTYPE,
        .shape = &odd_shapes[k->value[ODD_SHAPE]],
    };
}

static struct setting large_setting(const struct cover_case *k)
{
    return (struct setting){
        .dtype = odd_formats[k->value[LARGE_FORMAT]].dtype,
        .kv_dtype = odd_formats[k->value[LARGE_FORMAT]].kv_dtype,
        .head_dim = 128,
        .query_heads = 8,
        .kv_heads = 4,
        .block_size = 16,
        .layout = LAYOUT_HND,
        .large = true,
        .source = SOURCE_DTYPE,
        .shape = &odd_shapes[k->value[LARGE_SHAPE]],
    };
}

static struct world *make_world(const struct setting *t)
{
    struct world *w = make_array(1, sizeof *w);
    bool windows = t->layout != LAYOUT_VLLM;
    w->g = (struct geometry){
        .layers = LAYERS,
        .query_heads = t->query_heads,
        .kv_heads = t->kv_heads,
        .head_dim = t->head_dim,
        .block_size = t->block_size,
        .dtype = t->dtype,
        .kv_dtype = t->kv_dtype,
        .layout = t->layout,
        .softcap = t->softcap ? 5 : 0,
        .window = {windows ? t->window + 5 : 0, t->window},
        .sparse = t->sparse,
    };
    w->g.scale = 1.0F / sqrtf((float)w->g.head_dim);
    w->shape = t->shape;
    w->source = t->source;
    w->values = t->values;
    w->kernel = t->kernel;
    make_constants(w, t);
    for (uint32_t s = 0; s < w->shape->count; s++) {
        uint32_t length = w->shape->sequences[s].length;
        w->longest = length > w->longest ? length : w->longest;
        w->blocks += length / w->g.block_size + 2;
    }
    w->stride = w->longest / w->g.block_size + 2;
    if (t->large) {
        /* so that offsets of 32 bits would put each odd block of the second layer onto an even one of the first */
        w->blocks |= 1;
        w->apart = (uint32_t)((FOUR_GIB / (geometry_block_bytes(&w->g) / LAYERS) - w->blocks + 1) / 2);
    }
    w->k = make_array(w->shape->count * kv_index(w, 1, 0, 0), sizeof *w->k);
    w->v = make_array(w->shape->count * kv_index(w, 1, 0, 0), sizeof *w->v);
    for (uint32_t s = 0; s < w->shape->count; s++) {
        for (uint32_t at = 0; at < w->shape->sequences[s].length; at++) {
            for (uint32_t head = 0; head < w->g.kv_heads; head++) {
                uint64_t content = content_of(w->shape, s, at);
                stored(w, content, at, LAYER, VALUES_K, head, w->k + kv_index(w, s, at, head));
                stored(w, content, at, LAYER, VALUES_V, head, w->v + kv_index(w, s, at, head));
            }
        }
    }
    make_rows(w);
    return w;
}

static void free_world(struct world *w)
{
    free(w->k);
    free(w->v);
    free(w->q);
    free(w->c.k_scale);
    free(w->c.v_scale);
    free(w->c.sinks);
    free(w);
}

/* ---- an instance --------------------------------------------------------------------------------- */

/* A permutation of n ids. */
static uint32_t *shuffled(uint32_t n, uint32_t random)
{
    uint32_t *ids = make_array(n, sizeof *ids);
    for (uint32_t i = 0; i < n; i++)
        ids[i] = i;
    for (uint32_t i = n; i > 1; i--) {
        random = random * 1664525 + 1013904223;
        uint32_t other = (uint32_t)((uint64_t)random * i >> 32), id = ids[i - 1];
        ids[i - 1] = ids[other];
        ids[other] = id;
    }
    return ids;
}

/* The block of the pool that is the world's number `i`. */
static uint32_t block_at(const struct world *w, uint32_t i)
{
    return i % 2 ? i + w->apart : i;
}

/* Tables over a permutation of the block ids. Forks share whole blocks and get a copy of the one that
 * they continue; without `forks` every sequence has blocks of its own. */
static void make_tables(struct instance *x, uint32_t seed, bool forks, struct block_copy *copies)
{
    const struct world *w = x->w;
    uint32_t *ids = shuffled(w->blocks, seed), next = 0, bs = w->g.block_size;
    x->tables = make_array((size_t)w->shape->count * w->stride, sizeof *x->tables);
    memset(x->tables, 0xff, (size_t)w->shape->count * w->stride * sizeof *x->tables);
    for (uint32_t s = 0; s < w->shape->count; s++) {
        uint32_t *table = x->tables + (size_t)s * w->stride, fork = forks ? w->shape->sequences[s].fork : 0;
        const uint32_t *above = x->tables + (size_t)(fork ? w->shape->sequences[s].parent : 0) * w->stride;
        for (uint32_t i = 0; i * bs < w->shape->sequences[s].length; i++)
            table[i] = (i + 1) * bs <= fork ? above[i] : block_at(w, ids[next++]);
        copies[s] = (struct block_copy){COPY_BLOCK, 0, 0, fork % bs};
        if (fork % bs)
            copies[s] = (struct block_copy){COPY_BLOCK, above[fork / bs], table[fork / bs], fork % bs};
    }
    free(ids);
}

/* Run a step over tables of `rows` rows, none of which the backend may take for one it knows. */
static bool run_step(struct instance *x, struct attention_step *step, uint32_t rows)
{
    struct table_use uses[SEQUENCES_MAX];
    x->steps++;
    for (uint32_t i = 0; i < rows; i++)
        uses[i] = (struct table_use){i, step->stride, x->steps};
    step->uses = uses;
    step->use_count = rows;
    uint64_t ticket = attention_submit(x->attention, step);
    attention_await(x->attention, ticket);
    return attention_failure(x->attention) ? broken("%s", attention_failure(x->attention)) : true;
}

/* Store NaN in every slot of the pool, as k and v in the stored format. */
static bool poison(struct instance *x)
{
    const struct world *w = x->w;
    uint32_t tokens = w->blocks * w->g.block_size, *all = make_array(w->blocks, sizeof *all);
    size_t bytes = (size_t)tokens * w->g.kv_heads * w->g.head_dim * dtype_bytes(w->g.kv_dtype);
    uint8_t *nan = make_host_array(x->attention, bytes);
    memset(nan, 0xff, bytes); /* a NaN in every format */
    for (uint32_t i = 0; i < w->blocks; i++)
        all[i] = block_at(w, i);
    const struct kv_append append = {.count = tokens, .k = nan, .v = nan};
    struct attention_pass passes[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        passes[layer] = (struct attention_pass){
            .layer = layer, .appends = &append, .append_count = 1, .source_dtype = w->g.kv_dtype};
    struct attention_step step = {.tables = all, .stride = w->blocks, .passes = passes, .pass_count = LAYERS};
    bool ok = run_step(x, &step, 1);
    attention_free_host_memory(x->attention, nan, bytes + 1);
    free(all);
    return ok;
}

/* Append n tokens of a sequence, from `first` on, that come from `content`; after a copy. */
static bool feed_tokens(struct instance *x, uint32_t s, uint32_t first, uint32_t n, uint64_t content,
                        const struct block_copy *copy)
{
    const struct world *w = x->w;
    enum dtype dtype = w->source == SOURCE_KV_DTYPE ? w->g.kv_dtype : w->g.dtype;
    size_t row_bytes = w->g.head_dim * dtype_bytes(dtype),
           tensor_bytes = (size_t)n * w->g.kv_heads * row_bytes;
    uint8_t *data = make_host_array(x->attention, 2 * LAYERS * tensor_bytes);
    struct kv_append appends[LAYERS];
    struct attention_pass passes[LAYERS];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        uint8_t *tensor[3] = {NULL, data + 2 * layer * tensor_bytes, data + (2 * layer + 1) * tensor_bytes};
        for (size_t i = 0; w->source != SOURCE_GENERATED && i < 2 * (size_t)n * w->g.kv_heads; i++) {
            enum values_tensor which = i % 2 ? VALUES_V : VALUES_K;
            uint32_t token = (uint32_t)(i / 2 / w->g.kv_heads), head = (uint32_t)(i / 2 % w->g.kv_heads);
            float row[HEAD_DIM_MAX];
            handed_in(w, content, first + token, layer, which, head, row);
            numeric_from_float(dtype, row, w->g.head_dim, tensor[which] + i / 2 * row_bytes);
        }
        bool given = w->source != SOURCE_GENERATED;
        appends[layer] = (struct kv_append){.table = s,
                                            .position = first,
                                            .count = n,
                                            .k = given ? tensor[VALUES_K] : NULL,
                                            .v = given ? tensor[VALUES_V] : NULL,
                                            .generated = source_of(w, content)};
        passes[layer] = (struct attention_pass){
            .layer = layer, .appends = &appends[layer], .append_count = n > 0, .source_dtype = dtype};
    }
    struct attention_step step = {.tables = x->tables,
                                  .stride = w->stride,
                                  .copies = copy,
                                  .copy_count = copy->slots > 0,
                                  .passes = passes,
                                  .pass_count = LAYERS};
    bool ok = run_step(x, &step, w->shape->count);
    attention_free_host_memory(x->attention, data, 2 * LAYERS * tensor_bytes + 1);
    return ok;
}

/* Fill the tokens of one sequence that are in no block of its parent: its own ones after copying what
 * it continues, or all of them. */
static bool feed_sequence(struct instance *x, uint32_t s, bool forks, const struct block_copy *copy)
{
    const struct shape *shape = x->w->shape;
    uint32_t first = forks ? shape->sequences[s].fork : 0, end = shape->sequences[s].length;
    bool ok = first < end || feed_tokens(x, s, first, 0, 0, copy);
    for (uint32_t n = 1; ok && first < end; first += n, n = 1) {
        uint64_t content = content_of(shape, s, first);
        while (first + n < end && content_of(shape, s, first + n) == content)
            n++;
        ok = feed_tokens(x, s, first, n, content, copy);
    }
    return ok;
}

/* Swap every block out to the host, spoil the pool, and swap them in again elsewhere. */
static bool swap_all(struct instance *x, uint32_t seed)
{
    const struct world *w = x->w;
    uint32_t *host = shuffled(w->blocks, seed + 1), *back = shuffled(w->blocks, seed + 2);
    struct block_copy *copies = make_array(w->blocks, sizeof *copies);
    struct attention_step step = {.tables = x->tables, .stride = w->stride, .copies = copies};
    step.copy_count = w->blocks;
    for (uint32_t i = 0; i < w->blocks; i++)
        copies[i] = (struct block_copy){COPY_SWAP_OUT, i, host[i], w->g.block_size};
    bool ok = run_step(x, &step, 0) && poison(x);
    for (uint32_t i = 0; i < w->blocks; i++)
        copies[i] = (struct block_copy){COPY_SWAP_IN, host[i], back[i], w->g.block_size};
    ok = ok && run_step(x, &step, 0);
    for (size_t i = 0; i < (size_t)w->shape->count * w->stride; i++)
        x->tables[i] = x->tables[i] == UINT32_MAX ? UINT32_MAX : back[x->tables[i]];
    free(host);
    free(back);
    free(copies);
    return ok;
}

/* A backend that holds the world's sequences, in blocks that `seed` chooses; from a seed of 2 on they
 * have been swapped out and in. Without `forks` they share nothing. */
static bool open_instance(struct instance *x, const struct world *w, const char *backend, const char *isa,
                          uint32_t threads, bool forks, uint32_t seed)
{
    struct block_copy copies[SEQUENCES_MAX];
    char error[ATTENTION_ERROR_BYTES] = "";
    const struct attention_options options = {.backend = backend,
                                              .isa = strcmp(backend, "cpu") == 0 ? isa : "auto",
                                              .threads = threads,
                                              .geometry = &w->g,
                                              .constants = &w->c,
                                              .l2_prefetch = true,
                                              .cache = "",
                                              .kernel = w->kernel,
                                              .blocks = w->blocks + w->apart,
                                              .host_blocks = seed > 1 ? w->blocks : 0,
                                              .rows_max = ROWS_MAX,
                                              .partials_max = PARTIALS_MAX,
                                              .table_rows = SEQUENCES_MAX,
                                              .table_stride = w->blocks > w->stride ? w->blocks : w->stride};
    *x = (struct instance){.w = w};
    if (attention_open(&options, &x->attention, error) != 0)
        return broken("cannot open %s (%s): %s", backend, isa, error);
    if (threads > 1 && strcmp(backend, "cpu") == 0)
        cpu_backend_wake_from(x->attention, 0); /* also for steps as small as these */
    x->o_bytes = (size_t)w->row_count * w->g.query_heads * w->g.head_dim * dtype_bytes(w->g.dtype);
    x->lse_bytes = (size_t)w->row_count * w->g.query_heads * sizeof *x->lse;
    x->buffer_bytes = x->o_bytes + x->lse_bytes + 4 * GUARD_BYTES;
    x->buffer = make_host_array(x->attention, x->buffer_bytes);
    x->o = x->buffer + GUARD_BYTES;
    /* aligned for float: o_bytes is a multiple of 8 elements */
    x->lse = (float *)(void *)(x->o + x->o_bytes + GUARD_BYTES);
    x->q = make_host_array(x->attention, x->o_bytes);
    memcpy(x->q, w->q, x->o_bytes);
    make_tables(x, seed, forks, copies);
    bool ok = poison(x);
    for (uint32_t s = 0; ok && s < w->shape->count; s++)
        ok = feed_sequence(x, s, forks, &copies[s]);
    return ok && (seed < 2 || swap_all(x, seed));
}

static void close_instance(struct instance *x)
{
    if (x->buffer) {
        attention_free_host_memory(x->attention, x->buffer, x->buffer_bytes + 1);
        attention_free_host_memory(x->attention, x->q, x->o_bytes + 1);
    }
    attention_close(x->attention);
    free(x->tables);
}

/* Submit `plan`, whose row 0 is row `first` of the world, with outputs at their places in x->o and
 * x->lse. */
static bool submit_plan(struct instance *x, uint32_t first, const struct plan *plan)
{
    const struct world *w = x->w;
    const char *wrong = plan_fault(plan, w->g.window[LAYER]);
    size_t row_bytes = (size_t)w->g.query_heads * w->g.head_dim * dtype_bytes(w->g.dtype);
    struct attention_row rows[ROWS_MAX];
    for (uint32_t i = 0; i < plan->query_count; i++)
        rows[i] = (struct attention_row){.q = x->q + (first + i) * row_bytes,
                                         .o = x->o + (first + i) * row_bytes,
                                         .lse = x->lse + (size_t)(first + i) * w->g.query_heads};
    const struct attention_pass pass = {
        .layer = LAYER,
        .plan = plan,
        .rows = w->source == SOURCE_GENERATED ? NULL : rows,
        .q_source = w->q_source + first,
        .o = x->o + first * row_bytes,
        .lse = x->lse + (size_t)first * w->g.query_heads,
    };
    struct attention_step step = {.tables = x->tables, .stride = w->stride, .passes = &pass, .pass_count = 1};
    if (wrong)
        return broken("a plan with a fault: %s", wrong);
    return run_step(x, &step, w->shape->count);
}

/* Of the backend; or what a GPU might have, which one without tiles has to ignore. */
static const struct tile_caps *caps_of(const struct instance *x)
{
    static const struct tile_caps some = {
        .widths = {{8, 0, 4}, {32, 0, 2}, {64, RUN_CHUNKS, 2}, {128, SEGMENT_CHUNKS, 1}},
        .width_count = 4,
        .splits_max = 4,
        .cluster_max = 2,
        .processors = 132};
    const struct tile_caps *caps = &attention_info(x->attention)->tile_caps;
    return caps->width_count ? caps : &some;
}

/* Run the rows [first, first + n) under one plan of the tests' own. */
static bool run_plan(struct instance *x, uint32_t first, uint32_t n, enum cut cut, bool share)
{
    const struct world *w = x->w;
    const struct plan_request request = {
        w->rows + first,       n,   x->tables, w->stride,  w->g.block_size, w->g.window[LAYER],
        geometry_group(&w->g), cut, share,     first + 17, caps_of(x)};
    struct plan *plan = plans_make(&request);
    bool ok = submit_plan(x, first, plan);
    plans_free(plan);
    return ok;
}

/* Make the planner of the scheduler with so many partial states, and so many states of slices, for a backend of so
 * many processors and tasks. Write the rows of the world to rows[row_count], as it takes them. */
static struct planner *make_planner(const struct instance *x, uint32_t partials, uint32_t slice_states,
                                    uint32_t processors, struct planner_query *rows)
{
    const struct world *w = x->w;
    struct tile_caps caps = *caps_of(x);
    caps.processors = processors;
    const struct planner_options options = {.queries_max = ROWS_MAX,
                                            .partials_max = partials,
                                            .slice_states = slice_states,
                                            .tasks = processors,
                                            .caps = caps,
                                            .kv_heads = w->g.kv_heads,
                                            .group = geometry_group(&w->g),
                                            .block_size = w->g.block_size,
                                            .window = w->g.window[LAYER],
                                            .first_loose_table = w->shape->count};
    struct planner *planner;
    if (planner_create(&options, &planner) != 0)
        abort();
    for (uint32_t i = 0; i < w->row_count; i++)
        rows[i] = (struct planner_query){w->rows[i].table, w->rows[i].keys, 1, SHARING_ON};
    return planner;
}

/* Run all rows under the plan that the scheduler's planner makes of so many partial states, for so many processors. */
static bool run_planner(struct instance *x, uint32_t partials, uint32_t processors)
{
    const struct world *w = x->w;
    struct planner_query rows[ROWS_MAX];
    struct planner *planner = make_planner(x, partials, 0, processors, rows);
    bool ok = submit_plan(x, 0, planner_make(planner, rows, w->row_count, x->tables, w->stride));
    planner_destroy(planner);
    return ok;
}

/* Run all rows in slices: some rows at a time, in the planner's order, and of those some segments. */
static bool run_slices(struct instance *x, uint32_t together, uint32_t segments)
{
    const struct world *w = x->w;
    const uint32_t partials = PARTIALS_MAX - SLICE_STATES;
    struct planner_query rows[ROWS_MAX];
    struct planner *planner = make_planner(x, partials, SLICE_STATES, TASKS, rows);
    bool ok = true;
    for (uint32_t first = 0, n; ok && first < w->row_count; first += n) {
        uint32_t longest = 0;
        n = w->row_count - first < together ? w->row_count - first : together;
        for (uint32_t i = first; i < first + n; i++)
            longest = rows[i].keys > longest ? rows[i].keys : longest;
        uint32_t end = (longest + SEGMENT_TOKENS - 1) / SEGMENT_TOKENS;
        for (uint32_t s = 0; ok && (s < end || s == 0); s += segments) {
            const struct plan_slice slice = {s, s + segments < end ? s + segments : UINT32_MAX, 0, partials};
            ok = submit_plan(x, first,
                             planner_make_slice(planner, rows + first, n, x->tables, w->stride, &slice));
        }
    }
    planner_destroy(planner);
    return ok;
}

/* Run all rows on both layers, whose windows differ, in one step. The other layer's outputs have to be those of a
 * step of its own; LAYER's are left in x->o. */
static bool run_two_windows(struct instance *x)
{
    const struct world *w = x->w;
    size_t bytes = (x->o_bytes + x->lse_bytes + GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES; /* aligned */
    uint8_t *memory = make_host_array(x->attention, 2 * bytes);
    struct plan *plans[LAYERS];
    struct attention_pass passes[LAYERS + 1];
    struct attention_row *rows = make_array((LAYERS + 1) * (size_t)w->row_count, sizeof *rows);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const struct plan_request request = {w->rows,
                                             w->row_count,
                                             x->tables,
                                             w->stride,
                                             w->g.block_size,
                                             w->g.window[layer],
                                             geometry_group(&w->g),
                                             CUT_RANDOM,
                                             true,
                                             5 + layer,
                                             caps_of(x)};
        plans[layer] = plans_make(&request);
    }
    for (uint32_t i = 0; i < LAYERS + 1; i++) { /* the other layer by itself; then both */
        uint32_t layer = i == LAYERS ? LAYER : 1 - LAYER;
        uint8_t *o = i == LAYERS ? x->o : memory + i * bytes;
        float *lse = i == LAYERS ? x->lse : (float *)(void *)(o + x->o_bytes);
        struct attention_row *of = rows + (size_t)i * w->row_count;
        size_t row_bytes = x->o_bytes / w->row_count;
        for (uint32_t row = 0; row < w->row_count; row++)
            of[row] = (struct attention_row){.q = x->q + row * row_bytes,
                                             .o = o + row * row_bytes,
                                             .lse = lse + (size_t)row * w->g.query_heads};
        passes[i] = (struct attention_pass){.layer = layer, .plan = plans[layer], .rows = of};
    }
    struct attention_step step = {
        .tables = x->tables, .stride = w->stride, .passes = passes, .pass_count = 1};
    bool ok = run_step(x, &step, w->shape->count);
    step.passes = passes + 1;
    step.pass_count = LAYERS;
    ok = ok && run_step(x, &step, w->shape->count);
    if (ok && memcmp(memory, memory + bytes, x->o_bytes + x->lse_bytes) != 0)
        ok = broken("a layer has other bits beside one with another window");
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        plans_free(plans[layer]);
    attention_free_host_memory(x->attention, memory, 2 * bytes + 1);
    free(rows);
    return ok;
}

static void clear_outputs(struct instance *x)
{
    memset(x->buffer, 0xa5, x->o_bytes + x->lse_bytes + 3 * GUARD_BYTES);
}

static bool guards_hold(const struct instance *x)
{
    for (uint32_t i = 0; i < GUARD_BYTES; i++) {
        if (x->buffer[i] != 0xa5 || x->o[x->o_bytes + i] != 0xa5 ||
            ((uint8_t *)x->lse)[x->lse_bytes + i] != 0xa5)
            return broken("a guard byte around the outputs was overwritten");
    }
    return true;
}

/* ---- the comparisons ----------------------------------------------------------------------------- */

struct row_values {
    const struct world *w;
    uint32_t sequence;
};

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct row_values *x = cookie;
    size_t at = kv_index(x->w, x->sequence, position, kv_head);
    memcpy(k, x->w->k + at, x->w->g.head_dim * sizeof *k);
    memcpy(v, x->w->v + at, x->w->g.head_dim * sizeof *v);
}

/* What the plain loop finds for one row of one head. */
struct plain {
    float o[HEAD_DIM_MAX], lse;
    float largest_term; /* of the sums that scores are, by magnitude and as a part of the score */
    bool is_decisive;   /* any order of sums, and rounding, gives every key nearly the same weight */
};

/* The score of one key. A sum is decisive if it cannot pass f32's range on its way and come back, and is
 * beyond it with its scale or within it without; and slopes must not vanish beside it. */
static float plain_score(const struct world *w, uint32_t head, const float *q, const float *k, float distance,
                         struct plain *to)
{
    const struct geometry *g = &w->g;
    float scale = g->scale * w->c.k_scale[LAYER * g->kv_heads + head / geometry_group(g)];
    float s = 0, largest = 0;
    double sum = 0, size = 0;
    for (uint32_t d = 0; d < g->head_dim; d++) {
        s += q[d] * k[d];
        largest = fmaxf(largest, fabsf(q[d] * k[d]));
        sum += (double)q[d] * (double)k[d];
        size += fabs((double)q[d] * (double)k[d]);
    }
    to->largest_term = fmaxf(to->largest_term, largest * scale);
    bool overflows = size > FLT_MAX / 4;
    if (overflows && (fabs(sum) != size || size * (double)scale < 4.0 * FLT_MAX))
        to->is_decisive = false;
    if (w->c.alibi && size * (double)scale > 0x1p12)
        to->is_decisive = false;
    s *= scale;
    if (g->softcap > 0)
        s = g->softcap * tanhf(s / g->softcap);
    if (w->c.alibi)
        s += w->c.alibi[head] * distance;
    return isnan(s) ? -INFINITY : s;
}

/* The plain loop: one row of one head in f32, as one would first write it; o rounded to the dtype, and
 * p too if `round_p`. */
static void plain_row(const struct world *w, bool round_p, uint32_t row, uint32_t head, const float *q,
                      struct plain *to)
{
    const struct geometry *g = &w->g;
    uint32_t keys = w->rows[row].keys, kv_head = head / geometry_group(g),
             first = plan_visible(keys, g->window[LAYER]).first;
    float sink = w->c.sinks ? w->c.sinks[LAYER * g->query_heads + head] : -INFINITY, m = sink, l = 0;
    float *s = make_array(keys, sizeof *s), sum[HEAD_DIM_MAX] = {0};
    uint8_t rounded[HEAD_DIM_MAX * sizeof(float)];
    to->largest_term = 0;
    to->is_decisive = true;
    for (uint32_t j = first; j < keys; j++) {
        const float *k = w->k + kv_index(w, w->rows[row].table, j, kv_head);
        s[j] = geometry_sees(g, head, keys, j) ? plain_score(w, head, q, k, (float)j - (float)(keys - 1), to)
                                               : -INFINITY;
        m = fmaxf(m, s[j]);
    }
    if (w->c.sinks)
        l = expf(sink - m);
    for (uint32_t j = first; m > -INFINITY && j < keys; j++) {
        const float *v = w->v + kv_index(w, w->rows[row].table, j, kv_head);
        float p = s[j] == m ? 1 : expf(s[j] - m);
        l += p;
        if (round_p) {
            numeric_from_float(g->dtype, &p, 1, rounded);
            numeric_to_float(g->dtype, rounded, 1, &p);
        }
        for (uint32_t d = 0; d < g->head_dim; d++)
            sum[d] += p * v[d];
    }
    for (uint32_t d = 0; d < g->head_dim; d++)
        sum[d] = l > 0 ? sum[d] / l * w->c.v_scale[LAYER * g->kv_heads + kv_head] : 0;
    to->lse = m == -INFINITY ? -INFINITY : m + logf(l);
    numeric_from_float(g->dtype, sum, g->head_dim, rounded);
    numeric_to_float(g->dtype, rounded, g->head_dim, to->o);
    free(s);
}

/* Largest errors over all rows, of the instance's outputs and of the plain loop's, each relative to the
 * size of the values. */
struct errors {
    double o, lse, plain_o, plain_lse, size_o, size_lse, largest_term;
};

static double worse(double largest, double got, double expected)
{
    double error = got == expected ? 0 : fabs(got - expected); /* equal infinities differ by nothing */
    return !(error <= largest) ? error : largest;              /* a NaN is worse than anything */
}

static void add_errors(const struct instance *x, uint32_t row, uint32_t head, struct errors *e)
{
    const struct world *w = x->w;
    const struct geometry *g = &w->g;
    struct row_values values = {w, w->rows[row].table};
    size_t at = (size_t)row * g->query_heads + head;
    float q[HEAD_DIM_MAX];
    struct plain plain;
    double expected[HEAD_DIM_MAX], lse;
    numeric_to_float(g->dtype, w->q + at * g->head_dim * dtype_bytes(g->dtype), g->head_dim, q);
    plain_row(w, attention_info(x->attention)->p_rounded, row, head, q, &plain);
    if (!plain.is_decisive)
        return;
    reference_query(g, &w->c, LAYER, w->rows[row].keys, head, q, load_kv, &values, expected, &lse);
    for (uint32_t d = 0; d < g->head_dim; d++) {
        e->o = worse(e->o, (double)numeric_load(g->dtype, x->o, at * g->head_dim + d), expected[d]);
        e->plain_o = worse(e->plain_o, (double)plain.o[d], expected[d]);
        e->size_o = fmax(e->size_o, fabs(expected[d]));
    }
    /* of huge ones relative to them, since others would be lost beside them */
    double unit = isfinite(lse) ? fmax(1, fabs(lse) * 0x1p-10) : 1;
    e->lse = worse(e->lse, (double)x->lse[at] / unit, lse / unit);
    e->plain_lse = worse(e->plain_lse, (double)plain.lse / unit, lse / unit);
    e->size_lse = isfinite(lse) ? fmax(e->size_lse, fabs(lse) / unit) : e->size_lse;
    e->largest_term = fmax(e->largest_term, (double)plain.largest_term / unit);
}

/* What rounding p and o moves o by, at most, of the largest value. */
static float rounding_of_p(const struct geometry *g)
{
    return g->dtype == DTYPE_F32 ? 0x1p-20F : g->dtype == DTYPE_F16 ? 0x1p-10F : 0x1p-7F;
}

static bool errors_hold(const struct instance *x, double *ratio)
{
    const double unit = 0x1p-23;       /* in the last place of f32 */
    struct errors e = {.size_lse = 1}; /* of m and ln l, though their sum may be small */
    for (uint32_t row = 0; row < x->w->row_count; row++) {
        for (uint32_t head = 0; head < x->w->g.query_heads; head++)
            add_errors(x, row, head, &e);
    }
    double allowed_o = 2 * e.plain_o + unit * e.size_o, allowed_lse = 2 * e.plain_lse + unit * e.size_lse;
    if (attention_info(x->attention)->p_rounded) { /* by tensor cores: 16 products at a time, cut off */
        allowed_lse += unit * e.largest_term * (x->w->g.head_dim + 15) / 16;
        /* beside a huge maximum the largest p is not 1, and is rounded like the others */
        if (x->w->values == VALUES_EXTREME)
            allowed_o += (double)rounding_of_p(&x->w->g) * e.size_o;
    }
    /* slopes are added to scores, which are rounded then: the error of a score is one of its weight */
    if (x->w->values == VALUES_EXTREME && x->w->c.alibi)
        allowed_o += unit * e.largest_term * e.size_o;
    *ratio =
        fmax(e.o / (e.plain_o + unit * e.size_o + 1e-30), e.lse / (e.plain_lse + unit * e.size_lse + 1e-30));
    if (!(e.o <= allowed_o))
        return broken("o is off by %g, a plain loop by %g (values up to %g)", e.o, e.plain_o, e.size_o);
    if (!(e.lse <= allowed_lse))
        return broken("lse is off by %g, a plain loop by %g (values up to %g, terms up to %g)", e.lse,
                      e.plain_lse, e.size_lse, e.largest_term);
    return true;
}

/* Whether every o lies within the values that its row sees, and 0 where there is a sink, widened by what
 * rounding p and o takes; and no lse is NaN. Whatever the scores are. */
static bool outputs_within_values(const struct instance *x)
{
    const struct world *w = x->w;
    const struct geometry *g = &w->g;
    const float wider = rounding_of_p(g);
    for (uint32_t at = 0; at < w->row_count * g->query_heads; at++) {
        uint32_t row = at / g->query_heads, head = at % g->query_heads, kv_head = head / geometry_group(g);
        uint32_t keys = w->rows[row].keys, first = plan_visible(keys, g->window[LAYER]).first;
        float v_scale = w->c.v_scale[LAYER * g->kv_heads + kv_head];
        if (isnan(x->lse[at]))
            return broken("lse of row %u, head %u is NaN", row, head);
        for (uint32_t d = 0; d < g->head_dim; d++) {
            float low = x->lse[at] == -INFINITY || w->c.sinks ? 0 : INFINITY, high = -low;
            for (uint32_t j = first; j < keys; j++) {
                if (x->lse[at] == -INFINITY || !geometry_sees(g, head, keys, j))
                    continue;
                float v = w->v[kv_index(w, w->rows[row].table, j, kv_head) + d] * v_scale;
                low = fminf(low, v);
                high = fmaxf(high, v);
            }
            float o = numeric_load(g->dtype, x->o, (size_t)at * g->head_dim + d),
                  more = wider * fmaxf(fabsf(low), fabsf(high));
            if (!(o >= low - more && o <= high + more))
                return broken("o[%u][%u][%u] is %g, of values from %g to %g; lse is %g", row, head, d,
                              (double)o, (double)low, (double)high, (double)x->lse[at]);
        }
    }
    return true;
}

static bool outputs_hold(const struct instance *x, double *ratio)
{
    return errors_hold(x, ratio) && (x->w->values != VALUES_EXTREME || outputs_within_values(x));
}

/* Whether the outputs have the bits of the rows computed one at a time. */
static bool same_bits(const struct instance *x, const struct instance *alone, const char *what, enum cut cut,
                      bool share)
{
    const struct world *w = x->w;
    size_t row_bytes = x->o_bytes / w->row_count;
    for (uint32_t row = 0; row < w->row_count; row++) {
        if (memcmp(x->o + row * row_bytes, alone->o + row * row_bytes, row_bytes) != 0 ||
            memcmp(x->lse + (size_t)row * w->g.query_heads, alone->lse + (size_t)row * w->g.query_heads,
                   w->g.query_heads * sizeof *x->lse) != 0)
            return broken("row %u (%u keys) has other bits %s, cut %d, share %d, than alone", row,
                          w->rows[row].keys, what, cut, share);
    }
    return true;
}

/* Add the outputs to the digest. */
static void note_outputs(const struct instance *x)
{
    digest += XXH3_64bits_withSeed(x->lse, x->lse_bytes, XXH3_64bits(x->o, x->o_bytes));
}

static bool all_cuts_agree(struct instance *x, const struct instance *alone, const char *what)
{
    static const uint32_t processors[] = {1, 7, TASKS, 66, 114, 132};
    for (int cut = 0; cut < CUT_COUNT; cut++) {
        for (int share = 0; share < 2; share++) {
            clear_outputs(x);
            if (!run_plan(x, 0, x->w->row_count, (enum cut)cut, share) || !guards_hold(x) ||
                !same_bits(x, alone, what, (enum cut)cut, share))
                return false;
        }
    }
    for (size_t i = 0; i < GRID_COUNT(processors); i++) {
        clear_outputs(x);
        if (!run_planner(x, PARTIALS_MAX, processors[i]) || !guards_hold(x) ||
            !same_bits(x, alone, "under the planner", CUT_COUNT, true))
            return false;
    }
    clear_outputs(x);
    if (!run_planner(x, x->w->row_count * plan_spans(x->w->longest), TASKS) || !guards_hold(x) ||
        !same_bits(x, alone, "under the planner, with few partial states", CUT_COUNT, true))
        return false;
    clear_outputs(x);
    if (!run_slices(x, x->w->row_count, 1) || !guards_hold(x) ||
        !same_bits(x, alone, "in slices of all rows", CUT_COUNT, true))
        return false;
    clear_outputs(x);
    if (!run_two_windows(x) || !guards_hold(x) ||
        !same_bits(x, alone, "beside another window", CUT_RANDOM, true))
        return false;
    clear_outputs(x);
    return run_slices(x, 7, 2) && guards_hold(x) &&
           same_bits(x, alone, "in slices of 7 rows", CUT_COUNT, true);
}

static double weight(double lse, double largest)
{
    return lse == largest ? 1 : exp(lse - largest);
}

/* The outputs of all rows, taken for states of one row, merged by the backend: as in double precision,
 * within two roundings to the format and one to f32 a state, and the same in place. */
static bool states_merge(struct instance *x)
{
    const struct world *w = x->w;
    const struct geometry *g = &w->g;
    size_t o_bytes = g->query_heads * g->head_dim * dtype_bytes(g->dtype);
    size_t bytes = x->o_bytes + o_bytes + x->lse_bytes + g->query_heads * sizeof(float);
    uint8_t *states = make_host_array(x->attention, bytes), *merged = states + x->o_bytes;
    float *lse = (float *)(void *)(merged + o_bytes), *merged_lse = lse + x->lse_bytes / sizeof *lse;
    struct merge_states m = {w->row_count, 1,   g->query_heads, g->head_dim, g->dtype,
                             states,       lse, merged,         merged_lse};
    const double unit = (g->dtype == DTYPE_F32   ? 0x1p-22
                         : g->dtype == DTYPE_F16 ? 0x1p-10
                                                 : 0x1p-7) +
                        w->row_count * 0x1p-24;
    bool ok = true;
    double worst = 0, size = 0; /* of one head */
    memcpy(states, x->o, x->o_bytes);
    memcpy(lse, x->lse, x->lse_bytes);
    struct attention_step step = {.merges = &m, .merge_count = 1};
    ok = run_step(x, &step, 0);
    for (uint32_t head = 0; ok && head < g->query_heads; head++) {
        double largest = -INFINITY, sum = 0;
        size = worst = 0;
        for (uint32_t i = 0; i < w->row_count; i++)
            largest = fmax(largest, (double)lse[i * g->query_heads + head]);
        for (uint32_t i = 0; largest > -INFINITY && i < w->row_count; i++)
            sum += weight((double)lse[i * g->query_heads + head], largest);
        for (uint32_t d = 0; d < g->head_dim; d++) {
            double o = 0;
            for (uint32_t i = 0; sum > 0 && i < w->row_count; i++) {
                size_t at = (size_t)i * g->query_heads + head;
                double value = (double)numeric_load(g->dtype, states, at * g->head_dim + d);
                o += weight((double)lse[at], largest) / sum * value;
                size = fmax(size, fabs(value));
            }
            worst = worse(worst, (double)numeric_load(g->dtype, merged, (size_t)head * g->head_dim + d), o);
        }
        double expected = sum > 0 ? largest + log(sum) : -INFINITY;
        ok = worst <= unit * size &&
             worse(0, (double)merged_lse[head], expected) <= 1e-5 * (1 + fabs(largest));
    }
    m.merged_o = states;
    m.merged_lse = lse;
    bool same = run_step(x, &step, 0) && memcmp(states, merged, o_bytes) == 0 &&
                memcmp(lse, merged_lse, g->query_heads * sizeof *lse) == 0;
    attention_free_host_memory(x->attention, states, bytes + 1);
    return !ok ? broken("merged states are wrong: o is off by %g of %g", worst, size)
               : same || broken("states merged in place are others");
}

/* One head of a token, for operations.c. */
static void row_of(void *cookie, bool stands, uint32_t sequence, uint32_t position, uint32_t layer,
                   enum values_tensor tensor, uint32_t head, float *row)
{
    const struct world *w = cookie;
    uint64_t content = content_of(w->shape, sequence, position);
    if (stands)
        stored(w, content, position, layer, tensor, head, row);
    else
        handed_in(w, content, position, layer, tensor, head, row);
}

/* Compares, reads and merges. What is generated is handed in as it stands, since its format is f32. */
static bool operations_hold(struct instance *x)
{
    const struct world *w = x->w;
    uint32_t lengths[SEQUENCES_MAX];
    for (uint32_t s = 0; s < w->shape->count; s++)
        lengths[s] = w->shape->sequences[s].length;
    struct world *cookie = (struct world *)(uintptr_t)w;
    const struct operations_world operations = {.attention = x->attention,
                                                .g = &w->g,
                                                .tables = x->tables,
                                                .stride = w->stride,
                                                .sequences = w->shape->count,
                                                .lengths = lengths,
                                                .version = x->steps,
                                                .given =
                                                    w->source == SOURCE_DTYPE ? w->g.dtype : w->g.kv_dtype,
                                                .row = row_of,
                                                .cookie = cookie};
    const char *wrong = operations_fault(&operations);
    return !wrong || broken("%s", wrong);
}

/* A backend that is one of the CPU's instruction sets, or "cuda". What all is compared with: every row
 * by itself, over sequences that share nothing and were never swapped. */
static bool check_backend(const struct world *w, const char *isa, double *ratio)
{
    const char *backend = strncmp(isa, "cuda", 4) == 0 ? "cuda" : "cpu";
    if (strncmp(isa, "cpu-", 4) == 0)
        isa = "auto";
    struct instance alone = {0}, together = {0}, threads = {0};
    bool ok = open_instance(&alone, w, backend, isa, 1, false, 1) &&
              open_instance(&together, w, backend, isa, 1, true, 1) &&
              open_instance(&threads, w, backend, isa, 3, true, 2);
    if (ok)
        clear_outputs(&alone);
    for (uint32_t row = 0; ok && row < w->row_count; row++)
        ok = run_plan(&alone, row, 1, CUT_CONTEXT, false);
    if (ok)
        note_outputs(&alone);
    ok = ok && guards_hold(&alone) && outputs_hold(&alone, ratio) && states_merge(&alone) &&
         all_cuts_agree(&together, &alone, "together") &&
         all_cuts_agree(&threads, &alone, "with three threads and other blocks") && operations_hold(&alone) &&
         operations_hold(&threads);
    close_instance(&alone);
    close_instance(&together);
    close_instance(&threads);
    return ok;
}

/* Whether the host has room for a large pool; prints why not, once. */
static bool has_room(void)
{
    static bool told;
    uint64_t available = host_memory_available();
    bool has = !available || available > 2 * FOUR_GIB;
    if (!has && !told)
        printf("skip large pools on the CPU: %llu MiB of memory are available\n",
               (unsigned long long)(available >> 20));
    told |= !has;
    return has;
}

/* Rows in a large pool: right, and the same as in a small one. */
static bool check_large(const struct world *w, const char *isa, double *ratio)
{
    const char *backend = strncmp(isa, "cuda", 4) == 0 ? "cuda" : "cpu";
    struct world small = *w;
    struct instance x = {0}, alone = {0};
    if (strcmp(backend, "cpu") == 0 && !has_room())
        return true;
    small.apart = 0;
    bool ok = open_instance(&alone, &small, backend, "auto", 1, false, 1) &&
              open_instance(&x, w, backend, "auto", 3, true, 1);
    if (ok) {
        clear_outputs(&x);
        clear_outputs(&alone);
    }
    for (uint32_t row = 0; ok && row < w->row_count; row++)
        ok = run_plan(&alone, row, 1, CUT_CONTEXT, false);
    ok = ok && run_plan(&x, 0, w->row_count, CUT_RUN, true) && guards_hold(&x) && outputs_hold(&x, ratio) &&
         same_bits(&x, &alone, "in a large pool", CUT_RUN, true);
    if (ok)
        note_outputs(&x);
    close_instance(&x);
    close_instance(&alone);
    return ok;
}

/* The kernels of the vllm layout: right, and, called by name, the same for a row alone and for all. */
static bool check_paged(const struct world *w, double *ratio)
{
    struct instance x = {0}, alone = {0};
    bool ok = open_instance(&x, w, "cuda", "auto", 1, true, 1) &&
              open_instance(&alone, w, "cuda", "auto", 1, true, 2);
    if (ok) {
        clear_outputs(&x);
        clear_outputs(&alone);
    }
    ok =
        ok && run_plan(&x, 0, w->row_count, CUT_CONTEXT, false) && guards_hold(&x) && outputs_hold(&x, ratio);
    if (ok)
        note_outputs(&x);
    for (uint32_t row = 0; ok && w->kernel != ATTENTION_AUTO && row < w->row_count; row++)
        ok = run_plan(&alone, row, 1, CUT_CONTEXT, false);
    ok = ok && (w->kernel == ATTENTION_AUTO || same_bits(&x, &alone, "together", CUT_CONTEXT, false)) &&
         operations_hold(&x);
    close_instance(&x);
    close_instance(&alone);
    return ok;
}

static bool check_reference(const struct world *w, double *ratio)
{
    struct instance x = {0};
    bool ok = open_instance(&x, w, "reference", "auto", 1, true, 3);
    if (ok)
        clear_outputs(&x);
    ok = ok && run_plan(&x, 0, w->row_count, CUT_RANDOM, true) && guards_hold(&x) && outputs_hold(&x, ratio);
    if (ok)
        note_outputs(&x);
    ok = ok && operations_hold(&x);
    close_instance(&x);
    return ok;
}

/* ---- running ------------------------------------------------------------------------------------- */

static void describe(const struct setting *t, size_t number)
{
    printf("case %zu: q %s, kv %s, head_dim %u, heads %u/%u, block_size %u, %s, window %u, softcap %d, "
           "sinks %d, alibi %d, kernel %d, sparse %u/%u/%u/%d, source %d, %s values, %s\n",
           number, dtype_name(t->dtype), dtype_name(t->kv_dtype), t->head_dim, t->query_heads, t->kv_heads,
           t->block_size, layout_names[t->layout], t->window, t->softcap, t->sinks, t->alibi, (int)t->kernel,
           t->sparse.local_blocks, t->sparse.vert_stride, t->sparse.block_size,
           (int)t->sparse.head_sliding_step, (int)t->source,
           t->values == VALUES_EXACT ? "exact" : values_suffix[t->values] + 1, t->shape->name);
}

/* Which cases to run. */
struct selection {
    bool full;
    long only; /* -1: not just one */
    size_t every, part, parts;
    const char *digests; /* a file; NULL: the bits are not compared */
};

/* What cases can be run on. */
struct path {
    const char *name;      /* --isa */
    const unsigned *sizes; /* of the axes of its grid */
    unsigned axes;
    struct setting (*setting)(const struct cover_case *k);
    bool (*check)(const struct world *w, const char *isa, double *ratio);
    enum values values; /* their suffix is behind the name; in the list of paths, EXACT: each kind */
};

static bool on_reference(const struct world *w, const char *isa, double *ratio)
{
    (void)isa;
    return check_reference(w, ratio);
}

static bool on_paged(const struct world *w, const char *isa, double *ratio)
{
    (void)isa;
    return check_paged(w, ratio);
}

/* Whether the outputs of a path have the bits that the file of digests names, if it names any. */
static bool same_digest(const char *path, const struct selection *chosen)
{
    char line[256], name[64];
    unsigned long long known = digest;
    FILE *file = chosen->digests ? fopen(chosen->digests, "r") : NULL;
    if (chosen->digests && !file)
        return broken("%s cannot be read", chosen->digests);
    while (file && fgets(line, sizeof line, file)) {
        unsigned long long value;
        if (sscanf(line, "%63s conformance %llx", name, &value) == 2 && strcmp(name, path) == 0)
            known = value;
    }
    if (file)
        fclose(file);
    return known == digest || broken("the outputs have the digest %016llx; %s has %016llx",
                                     (unsigned long long)digest, chosen->digests, known);
}

/* The cases of a path with other values are a path of its own, with bits of its own. */
static const char *path_name(const struct path *path, char name[64])
{
    snprintf(name, 64, "%s%s", path->name, values_suffix[path->values]);
    return name;
}

static bool is_path(const struct path *path, const char *name)
{
    char own[64];
    return strcmp(path_name(path, own), name) == 0;
}

static const double PROGRESS_S = 5; /* between two lines that say how far it is */

static bool is_chosen(const struct path *path, const struct selection *chosen, size_t i)
{
    if (chosen->only >= 0)
        return (size_t)chosen->only == i;
    size_t every = chosen->every * (path->values == VALUES_EXTREME && !chosen->full ? 3 : 1);
    return i % every == 0 && i / every % chosen->parts == chosen->part;
}

/* How far a path is. */
struct progress {
    size_t done, count; /* cases */
    double worst;       /* error so far, of a plain loop's */
    double start_s, shown_s;
};

static void show_progress(const struct path *path, struct progress *p)
{
    double now = clock_s();
    if (now - p->shown_s < PROGRESS_S)
        return;
    p->shown_s = now;
    char name[64];
    fprintf(stderr, "  %s: %zu of %zu cases\n", path_name(path, name), p->done, p->count);
}

/* Case `i` on one path; prints what is wrong. */
static bool run_case(const struct path *path, const struct selection *chosen, const struct cover_case *k,
                     size_t i, struct progress *p)
{
    char name[64];
    double ratio = 0;
    struct setting t = path->setting(k);
    t.values = path->values;
    if (t.values != VALUES_EXACT && t.source == SOURCE_GENERATED) /* backends make those alone */
        t.source = SOURCE_DTYPE;
    struct world *w = make_world(&t);
    bool ok = path->check(w, path->name, &ratio);
    free_world(w);
    p->worst = fmax(p->worst, ratio);
    p->done++;
    show_progress(path, p);
    if (ok)
        return true;
    describe(&t, i);
    printf("%s\nnot ok %s conforms; run it alone: conformance %s--isa %s --case %zu\n", fault,
           path_name(path, name), chosen->full ? "--full " : "", name, i);
    return false;
}

/* All cases that are chosen on one path; prints the verdict. */
static bool run_cases(const struct path *path, const struct selection *chosen)
{
    char name[64];
    struct cover_case *cases;
    struct progress p = {.start_s = clock_s()};
    size_t count = cover_make(path->sizes, path->axes, chosen->full ? 3 : 2, &cases);
    bool ok = true;
    digest = 0;
    p.shown_s = p.start_s;
    for (size_t i = 0; i < count; i++)
        p.count += is_chosen(path, chosen, i);
    for (size_t i = 0; ok && i < count; i++) {
        if (is_chosen(path, chosen, i))
            ok = run_case(path, chosen, &cases[i], i, &p);
    }
    free(cases);
    if (ok && !same_digest(path_name(path, name), chosen)) {
        printf("%s\nnot ok %s has the bits that it always had\n", fault, name);
        return false;
    }
    if (ok)
        printf("ok %s conforms: %zu cases, digest %016llx, worst error %.2f of a plain loop's, %.1f s\n",
               path_name(path, name), p.done, (unsigned long long)digest, p.worst, clock_s() - p.start_s);
    return ok;
}

/* Whether there is a GPU to run on; prints why not. */
static bool have_cuda(const char *path)
{
    char reason[ATTENTION_ERROR_BYTES];
    if (attention_cuda_present(reason))
        return true;
    printf("skip %s: %s\n", path, reason);
    return false;
}

/* A path of the CPU, if `isa` names it or nothing; prints why not. */
static bool run_on_isa(const struct path *path, const char *isa, const struct selection *chosen)
{
    char name[64];
    if (isa && !is_path(path, isa))
        return true;
    if (attention_isa_supported(path->name))
        return run_cases(path, chosen);
    if (isa || path->values == VALUES_EXACT) /* once is enough */
        printf("skip %s: this processor has none\n", path_name(path, name));
    return true;
}

int main(int argc, char **argv)
{
    const char *isa = NULL;
    struct selection chosen = {.only = -1, .every = 1, .parts = 1};
    bool ok = true, has_gpu = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--full") == 0)
            chosen.full = true;
        else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc)
            isa = argv[++i];
        else if (strcmp(argv[i], "--every") == 0 && i + 1 < argc)
            chosen.every = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc &&
                 sscanf(argv[i + 1], "%zu/%zu", &chosen.part, &chosen.parts) == 2)
            i++;
        else if (strcmp(argv[i], "--case") == 0 && i + 1 < argc)
            chosen.only = strtol(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--digests") == 0 && i + 1 < argc)
            chosen.digests = argv[++i];
        else
            return 2;
    }
    if (chosen.every < 1 || chosen.parts < 1 || chosen.part >= chosen.parts)
        return 2;
    static const struct path paths[] = {
        {"reference", grid_sizes, AXIS_COUNT, native_setting, on_reference, VALUES_EXACT},
        {"reference-vllm", paged_sizes, PAGED_AXIS_COUNT, paged_setting, on_reference, VALUES_EXACT},
        {"cpu-flashinfer", flashinfer_sizes, FLASHINFER_AXIS_COUNT, flashinfer_setting, check_backend,
         VALUES_EXACT},
        {"cpu-columns", columns_sizes, COLUMNS_AXIS_COUNT, columns_setting, check_backend, VALUES_EXACT},
        {"cpu-spans", spans_sizes, SPANS_AXIS_COUNT, spans_setting, check_backend, VALUES_WIDE},
        {"cpu-odd", odd_sizes, ODD_AXIS_COUNT, odd_setting, check_backend, VALUES_WIDE},
        {"cpu-large", large_sizes, LARGE_AXIS_COUNT, large_setting, check_large, VALUES_WIDE},
        {"cuda", grid_sizes, AXIS_COUNT, native_setting, check_backend, VALUES_EXACT},
        {"cuda-flashinfer", flashinfer_sizes, FLASHINFER_AXIS_COUNT, flashinfer_setting, check_backend,
         VALUES_EXACT},
        {"cuda-columns", columns_sizes, COLUMNS_AXIS_COUNT, columns_setting, check_backend, VALUES_EXACT},
        {"cuda-spans", spans_sizes, SPANS_AXIS_COUNT, spans_setting, check_backend, VALUES_WIDE},
        {"cuda-odd", odd_sizes, ODD_AXIS_COUNT, odd_setting, check_backend, VALUES_WIDE},
        {"cuda-large", large_sizes, LARGE_AXIS_COUNT, large_setting, check_large, VALUES_WIDE},
        {"cuda-vllm", paged_sizes, PAGED_AXIS_COUNT, paged_setting, on_paged, VALUES_EXACT}};
    for (size_t i = 0; i < VALUES_COUNT * GRID_COUNT(paths); i++) {
        struct path path = paths[i / VALUES_COUNT];
        bool on_gpu = strncmp(path.name, "cuda", 4) == 0;
        if (path.values != VALUES_EXACT && path.values != (enum values)(i % VALUES_COUNT))
            continue; /* it has these alone */
        path.values = (enum values)(i % VALUES_COUNT);
        if (!isa && on_gpu && path.values == VALUES_EXACT)
            has_gpu = have_cuda(path.name);
        if (isa ? is_path(&path, isa) : !on_gpu || has_gpu)
            ok = run_cases(&path, &chosen) && ok;
    }
    for (int i = 1; attention_isa_names[i]; i++) {
        struct path path = {attention_isa_names[i], grid_sizes,    AXIS_COUNT,
                            native_setting,         check_backend, VALUES_EXACT};
        for (int values = 0; values < VALUES_COUNT; values++) {
            path.values = (enum values)values;
            ok = run_on_isa(&path, isa, &chosen) && ok;
        }
    }
    return !ok;
}
