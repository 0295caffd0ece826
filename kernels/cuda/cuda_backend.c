/* cuda_backend.c - the CUDA backend: executes plans on a GPU.
 *
 *   step:   table changes -> copies
 *           for each pass:  k, v -> append;  q (copied or generated) -> items -> merges -> o, lse
 *
 * written down in a queue (queue.h) and issued together.
 *
 * The GPU keeps a copy of the block tables. A row is uploaded again from its first entry when its
 * version is another than the last time it was named, and otherwise from where it was known to
 * (attention.h, table_use): a decode step uploads an entry when a sequence begins a block.
 *
 * An item of the plan becomes a thread block for every KV head and every piece of up to 32 packed
 * columns; pieces of 8, 16 and 32 columns are separate launches of kernels made for them.
 *
 * The first error that CUDA reports is kept (attention_failure()); after it nothing is issued any more,
 * since the context is lost. */
#include "kernels/backend.h"

#include "config/config.h"
#include "config/log.h"
#include "kernels/cuda/cuda_self_test.h"
#include "kernels/cuda/device/step.h"
#include "kernels/cuda/device/tile.h"
#include "kernels/cuda/queue.h"
#include "kernels/kv_pool.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CONTROL_BYTES = 32 << 20, /* of a step's control data, at least */
    GIVEN_BYTES = 64 << 20,   /* of k and v that are being appended, each, on the device */
    PASS_OPERATIONS = 64,     /* of a pass, at most, without its appends */
    WIDTHS_MAX = 3,
    ITEMS_PER_ROW = 8,  /* of a plan, on average, at most: planner.c, PIECES_PER_ROW */
    PREPARED_MAX = 8,   /* plans of a step that are remembered: one a window */
    SIMPLE_COLUMNS = 8, /* attend_simple.cu */
    /* 2, 4 and 8 measured on an H200: W1 at 0.86, 0.84 and 0.83 of the roof, W5 (ragged) at 0.61, 0.85,
       0.83 */
    TASKS_PER_MULTIPROCESSOR = 4,
    PAGED_V1_TOKENS = 8192,    /* longest context that vLLM's rule gives to paged_v1, and */
    PAGED_STATIC_BYTES = 4096, /* of shared memory, for q and reductions, at most */
    PAGED_V1_BLOCKS = 512,     /* rows times heads from which on it does not cut contexts */
    GRID_MAX = 65535,          /* of a grid's second dimension */
    ROOF_THREADS = 512,        /* measure.cu, read_all */
    ROOF_ROUNDS = 5
};

#define ROOF_BYTES_MAX (UINT64_C(8) << 30)

_Static_assert(sizeof(struct cuda_append_pass) % 8 == 0 && sizeof(struct cuda_attend_pass) % 8 == 0 &&
                   sizeof(struct cuda_list_pass) % 8 == 0,
               "launches are compared byte by byte");
_Static_assert(sizeof(struct cuda_append_pass) <= CUDA_ARGUMENT_BYTES &&
                   sizeof(struct cuda_attend_pass) <= CUDA_ARGUMENT_BYTES,
               "arguments of a launch");
_Static_assert(sizeof(struct cuda_merge_states_pass) % 8 == 0, "no padding");

/* Pieces of items of up to so many packed columns, and the kernel for them. */
struct width {
    enum cuda_kernel kernel;
    uint32_t columns, shared_bytes;
};

/* What the device knows of one row of the block tables. */
struct known_row {
    uint64_t version;
    uint32_t entries;
};

/* A plan in the control buffer. */
struct prepared_plan {
    const struct plan *plan;        /* whose; NULL: none */
    struct cuda_attend_pass arrays; /* rows, item_rows, merges, parts */
    uint64_t items[WIDTHS_MAX];     /* device addresses */
    uint32_t item_counts[WIDTHS_MAX];
};

struct cuda_backend {
    struct attention base;
    struct attention_options options;
    struct cuda_device device;
    struct cuda_queue queue;
    CUmodule module;
    struct width widths[WIDTHS_MAX]; /* narrowest first */
    uint32_t width_count;

    struct kv_pool layout; /* sizes only, no bytes */
    struct cuda_pool pool;
    CUdeviceptr map;         /* the pool as the copy engine sees it, a CUtensorMap; 0: not used */
    uint8_t *host;           /* [host_blocks][layers][K, V]: blocks that are swapped to; pinned */
    struct known_row *known; /* [table_rows + 1] */
    CUdeviceptr q, k, v, partial_ml, partial_o;
    CUdeviceptr o[CUDA_SIDES], lse[CUDA_SIDES]; /* used in turn */
    unsigned side;
    CUdeviceptr sinks, alibi, k_scale, v_scale;
    uint64_t constants_version;

    struct prepared_plan prepared[PREPARED_MAX]; /* of the buffer as it was emptied the last time */
    uint32_t prepared_count;
    uint64_t prepared_since; /* cuda_queue.emptied */
    uint8_t *block;          /* [block_bytes of a layer] to read one back */
};

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static struct cuda_grid grid_of(uint32_t blocks, uint32_t threads)
{
    return (struct cuda_grid){blocks, 1, 1, threads, 0};
}

/* ---- tables and copies --------------------------------------------------------------------------- */

/* From which entry on the device does not know a row. */
static uint32_t first_unknown(const struct cuda_backend *b, const struct table_use *use)
{
    const struct known_row *known = &b->known[use->row];
    return known->version == use->version ? smaller(known->entries, use->entries) : 0;
}

/* Rows [from, end) of the uses, whose changes come to `ids` entries. */
static void change_tables(struct cuda_backend *b, const struct attention_step *step, uint32_t from,
                          uint32_t end, uint32_t ids)
{
    struct cuda_queue *q = &b->queue;
    cuda_queue_reserve(q, (end - from) * sizeof(struct cuda_table_change) + ids * sizeof(uint32_t), 3);
    struct cuda_table_change *changes = cuda_queue_take(q, end - from, sizeof *changes);
    uint32_t *entries = cuda_queue_take(q, ids, sizeof *entries), n = 0, at = 0;
    for (uint32_t i = from; i < end; i++) {
        const struct table_use *use = &step->uses[i];
        uint32_t first = first_unknown(b, use), count = use->entries - first;
        b->known[use->row] = (struct known_row){use->version, use->entries};
        if (count == 0)
            continue;
        memcpy(entries + at, step->tables + (uint64_t)use->row * step->stride + first,
               count * sizeof *entries);
        changes[n++] = (struct cuda_table_change){use->row, first, count, at};
        at += count;
    }
    const struct cuda_list_pass pass = {b->pool, cuda_queue_address(q, changes),
                                        cuda_queue_address(q, entries)};
    if (n)
        cuda_queue_launch(q, KERNEL_CHANGE_TABLES, grid_of(n, CUDA_THREADS), &pass, sizeof pass);
}

static void update_tables(struct cuda_backend *b, const struct attention_step *step)
{
    uint32_t from = 0, ids = 0, room = (uint32_t)(b->queue.control_bytes / sizeof(uint32_t) / 4);
    for (uint32_t i = 0; i < step->use_count; i++) {
        uint32_t count = step->uses[i].entries - first_unknown(b, &step->uses[i]);
        if (ids + count > room) {
            change_tables(b, step, from, i, ids);
            from = i;
            ids = 0;
        }
        ids += count;
    }
    if (ids)
        change_tables(b, step, from, step->use_count, ids);
}

/* Copies from one block of the pool to another, in one launch. */
static void copy_slots(struct cuda_backend *b, const struct kv_copy *list, uint32_t n)
{
    struct cuda_queue *q = &b->queue;
    cuda_queue_reserve(q, (size_t)n * sizeof(struct cuda_copy), 2);
    struct cuda_copy *copies = cuda_queue_take(q, n, sizeof *copies);
    for (uint32_t i = 0; i < n; i++)
        copies[i] = (struct cuda_copy){list[i].from, list[i].to, list[i].slots};
    const struct cuda_list_pass pass = {b->pool, cuda_queue_address(q, copies), 0};
    const struct cuda_grid grid = {n, b->options.geometry->layers, 2 /* K and V */, CUDA_THREADS, 0};
    cuda_queue_launch(q, KERNEL_COPY_SLOTS, grid, &pass, sizeof pass);
}

/* A block of the pool, and one of host memory. */
static struct cuda_block block_of(const struct cuda_backend *b, uint32_t block, uint32_t host)
{
    uint32_t layers = b->options.geometry->layers;
    return (struct cuda_block){.device = b->pool.bytes + block * b->pool.block_bytes,
                               .host = b->host ? b->host + host * (layers * b->pool.block_bytes) : NULL,
                               .bytes = b->pool.block_bytes,
                               .pitch = b->pool.layer_bytes,
                               .rows = layers};
}

static void clear_blocks(struct cuda_backend *b, const struct kv_copy *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct cuda_block block = block_of(b, list[i].to, 0);
        cuda_queue_clear(&b->queue, &block);
    }
}

static void swap(struct cuda_backend *b, const struct kv_copy *copy)
{
    bool out = copy->kind == KV_SWAP_OUT;
    const struct cuda_block block =
        block_of(b, out ? copy->from : copy->to, out ? copy->to : copy->from);
    if (out)
        cuda_queue_swap_out(&b->queue, &block);
    else
        cuda_queue_swap_in(&b->queue, &block);
}

/* All but swaps, in their order; those of one kind that follow each other together. */
static void make_copies(struct cuda_backend *b, const struct attention_step *step)
{
    const struct kv_copy *list = step->copies;
    uint32_t part = (uint32_t)(b->queue.control_bytes / sizeof(struct cuda_copy) / 2);
    for (uint32_t i = 0, n; i < step->copy_count; i += n) {
        for (n = 1; i + n < step->copy_count && n < part && list[i + n].kind == list[i].kind; n++) {
        }
        if (list[i].kind == KV_COPY)
            copy_slots(b, list + i, n);
        else if (list[i].kind == KV_CLEAR)
            clear_blocks(b, list + i, n);
    }
}

static void make_swaps(struct cuda_backend *b, const struct attention_step *step)
{
    for (uint32_t i = 0; i < step->copy_count; i++) {
        if (step->copies[i].kind == KV_SWAP_OUT || step->copies[i].kind == KV_SWAP_IN)
            swap(b, &step->copies[i]);
    }
}

/* ---- appends ------------------------------------------------------------------------------------- */

/* Write down `n` appends of `tokens` tokens in all, which lie in the control buffer. */
static void launch_appends(struct cuda_backend *b, const struct attention_pass *pass,
                           const struct cuda_append *appends, uint32_t n, uint32_t tokens)
{
    uint64_t first = (uint64_t)pass->layer * b->options.geometry->kv_heads * sizeof(float);
    if (n == 0)
        return;
    const struct cuda_append_pass p = {.pool = b->pool,
                                       .appends = cuda_queue_address(&b->queue, appends),
                                       .append_count = n,
                                       .layer = pass->layer,
                                       .k = pass->k ? b->k : 0,
                                       .v = pass->k ? b->v : 0,
                                       .source_dtype = pass->source_dtype,
                                       .k_scale = b->k_scale + first,
                                       .v_scale = b->v_scale + first};
    cuda_queue_launch(&b->queue, KERNEL_APPEND, grid_of(tokens, CUDA_THREADS), &p, sizeof p);
}

/* Appends of given k and v are cut where the device's room for k and v ends; each piece is copied to
 * its place there first. */
static void add_appends(struct cuda_backend *b, const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_queue *q = &b->queue;
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(pass->source_dtype);
    uint32_t room = pass->k ? (uint32_t)(GIVEN_BYTES / row_bytes) : UINT32_MAX, tokens = 0, n = 0;
    struct cuda_append *appends = NULL;
    for (uint32_t i = 0; i < pass->append_count; i++) {
        const struct kv_append *append = &pass->appends[i];
        for (uint32_t done = 0, count; done < append->count; done += count) {
            if (!appends || tokens == room) {
                launch_appends(b, pass, appends, n, tokens);
                cuda_queue_reserve(q, (pass->append_count - i) * sizeof *appends, 4);
                appends = cuda_queue_take(q, pass->append_count - i, sizeof *appends);
                n = tokens = 0;
            }
            count = smaller(append->count - done, room - tokens);
            appends[n++] = (struct cuda_append){.first = tokens,
                                                .count = count,
                                                .table = append->table,
                                                .position = append->position + done,
                                                .source = tokens,
                                                .generated = append->generated};
            if (pass->k) {
                size_t from = (size_t)(append->source + done) * row_bytes;
                cuda_queue_copy_in(q, b->k + tokens * row_bytes, (const uint8_t *)pass->k + from,
                                   count * row_bytes);
                cuda_queue_copy_in(q, b->v + tokens * row_bytes, (const uint8_t *)pass->v + from,
                                   count * row_bytes);
            }
            tokens += count;
        }
    }
    launch_appends(b, pass, appends, n, tokens);
}

/* ---- attention ----------------------------------------------------------------------------------- */

/* The narrowest width that takes `columns`, or the widest. */
static uint32_t width_for(const struct cuda_backend *b, uint32_t columns)
{
    uint32_t i = 0;
    while (i + 1 < b->width_count && b->widths[i].columns < columns)
        i++;
    return i;
}

/* The positions that a piece's columns see, within its chunks. */
static void find_keys(const struct plan *plan, uint32_t window, uint32_t group, struct cuda_item *piece)
{
    uint32_t first = UINT32_MAX, end = 0, begin = piece->first_chunk * CHUNK_TOKENS,
             stop = begin + piece->chunks * CHUNK_TOKENS;
    for (uint32_t r = piece->column / group; r <= (piece->column + piece->columns - 1) / group; r++) {
        uint32_t keys = plan->rows[plan->item_rows[piece->first_row + r]].keys;
        uint32_t seen = plan_first_key(keys, window);
        first = keys && seen < first ? seen : first;
        end = keys > end ? keys : end;
    }
    piece->first_key = first > begin ? first : begin;
    piece->end_key = end < stop ? end : stop;
}

/* Cut an item into pieces, and count or store them by width. */
static void cut_item(const struct cuda_backend *b, const struct plan *plan, uint32_t window,
                     const struct plan_item *item, struct cuda_item *to[WIDTHS_MAX],
                     uint32_t counts[WIDTHS_MAX])
{
    uint32_t group = geometry_group(b->options.geometry), columns = item->rows * group;
    for (uint32_t at = 0, n; at < columns; at += n) {
        uint32_t width = width_for(b, columns - at);
        n = smaller(columns - at, b->widths[width].columns);
        if (to) {
            struct cuda_item *piece = &to[width][counts[width]];
            *piece = (struct cuda_item){item->table,
                                        item->first_chunk,
                                        item->chunks,
                                        item->first_row,
                                        at,
                                        n,
                                        item->partial,
                                        0,
                                        0};
            find_keys(plan, window, group, piece);
        }
        counts[width]++;
    }
}

/* The plan in the control buffer, if it is there. */
static const struct prepared_plan *find_prepared(struct cuda_backend *b, const struct plan *plan)
{
    if (b->prepared_since != b->queue.emptied) {
        memset(b->prepared, 0, sizeof b->prepared);
        b->prepared_count = 0;
        b->prepared_since = b->queue.emptied;
    }
    for (uint32_t i = 0; i < PREPARED_MAX; i++) {
        if (b->prepared[i].plan == plan)
            return &b->prepared[i];
    }
    return NULL;
}

/* Put a plan into the control buffer, unless it is there already. Room is reserved. */
static const struct prepared_plan *prepare_plan(struct cuda_backend *b, const struct plan *plan,
                                                uint32_t window)
{
    struct cuda_queue *q = &b->queue;
    uint32_t counts[WIDTHS_MAX] = {0}, item_rows = 0, parts = 0;
    struct cuda_item *items[WIDTHS_MAX] = {0};
    const struct prepared_plan *known = find_prepared(b, plan);
    if (known)
        return known;
    /* the vllm layout's kernels take rows, not items */
    uint32_t item_count = b->width_count ? plan->item_count : 0;
    for (uint32_t i = 0; i < item_count; i++) {
        cut_item(b, plan, window, &plan->items[i], NULL, counts);
        item_rows += plan->items[i].rows;
    }
    for (uint32_t i = 0; i < plan->merge_count; i++)
        parts += plan->merges[i].count;
    struct prepared_plan *prepared = &b->prepared[b->prepared_count++ % PREPARED_MAX];
    *prepared = (struct prepared_plan){.plan = plan};
    for (uint32_t i = 0; i < b->width_count; i++) {
        items[i] = cuda_queue_take(q, counts[i], sizeof *items[i]);
        prepared->items[i] = cuda_queue_address(q, items[i]);
    }
    for (uint32_t i = 0; i < item_count; i++)
        cut_item(b, plan, window, &plan->items[i], items, prepared->item_counts);
    struct cuda_attend_pass *arrays = &prepared->arrays;
    arrays->rows = cuda_queue_put(q, plan->rows, plan->row_count, sizeof *plan->rows);
    arrays->item_rows = cuda_queue_put(q, plan->item_rows, item_rows, sizeof *plan->item_rows);
    arrays->merges = cuda_queue_put(q, plan->merges, plan->merge_count, sizeof *plan->merges);
    arrays->parts = cuda_queue_put(q, plan->merge_parts, parts, sizeof *plan->merge_parts);
    return prepared;
}

/* What a pass with this plan hands to its kernels. */
static struct cuda_attend_pass attend_pass(const struct cuda_backend *b,
                                           const struct prepared_plan *plan,
                                           const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    const struct model_constants *c = b->options.constants;
    uint64_t of_query = (uint64_t)pass->layer * g->query_heads * sizeof(float),
             of_kv = (uint64_t)pass->layer * g->kv_heads * sizeof(float);
    struct cuda_attend_pass p = plan->arrays;
    p.pool = b->pool;
    p.map = b->map;
    p.map_first = 2 * pass->layer * b->layout.blocks;
    p.q = b->q;
    p.o = b->o[b->side];
    p.lse = b->lse[b->side];
    p.partial_ml = b->partial_ml;
    p.partial_o = b->partial_o;
    p.k_scale = b->k_scale + of_kv;
    p.v_scale = b->v_scale + of_kv;
    p.sinks = c->sinks ? b->sinks + of_query : 0;
    p.alibi = c->alibi ? b->alibi : 0;
    p.scale = g->scale;
    p.softcap = g->softcap;
    p.inverse_softcap = g->softcap > 0 ? 1.0F / g->softcap : 0;
    p.layer = pass->layer;
    p.window = g->window[pass->layer];
    return p;
}

/* Shared memory of paged_v1 and v2: logits of so many tokens in whole blocks, or the warps' outputs. */
static uint32_t paged_shared_bytes(const struct geometry *g, uint32_t tokens)
{
    uint32_t logits = (tokens + g->block_size - 1) / g->block_size * g->block_size;
    uint32_t outputs = CUDA_THREADS / 32 / 2 * g->head_dim;
    return (logits > outputs ? logits : outputs) * (uint32_t)sizeof(float);
}

/* The items by width, and the merges. */
static void launch_attention(struct cuda_backend *b, const struct prepared_plan *prepared,
                             const struct cuda_attend_pass *p)
{
    const struct geometry *g = b->options.geometry;
    for (uint32_t i = 0; i < b->width_count; i++) {
        struct cuda_attend_pass with_items = *p;
        with_items.items = prepared->items[i];
        struct cuda_grid grid = grid_of(prepared->item_counts[i] * g->kv_heads, CUDA_THREADS);
        grid.shared_bytes = b->widths[i].shared_bytes;
        if (grid.x)
            cuda_queue_launch(&b->queue, b->widths[i].kernel, grid, &with_items, sizeof with_items);
    }
    if (prepared->plan->merge_count)
        cuda_queue_launch(
            &b->queue, KERNEL_MERGE,
            grid_of(prepared->plan->merge_count * g->query_heads, (g->head_dim + 31) / 32 * 32), p,
            sizeof *p);
}

static uint32_t paged_shared_max(const struct cuda_backend *b)
{
    return b->device.target.sm_bytes - TILE_BLOCK_BYTES - PAGED_STATIC_BYTES;
}

/* Whether a step of `rows` rows goes to paged_v1: as it is named, or by vLLM's rule; and where the
 * logits of the longest row fit into shared memory. */
static bool takes_paged_v1(const struct cuda_backend *b, enum attention_kernel named, uint32_t rows,
                           uint32_t longest)
{
    const struct geometry *g = b->options.geometry;
    enum attention_kernel kernel = named == ATTENTION_AUTO ? b->options.kernel : named;
    bool by_rule = longest <= PAGED_V1_TOKENS &&
                   (longest <= PAGED_PARTITION || rows * g->query_heads > PAGED_V1_BLOCKS);
    bool fits = longest <= b->base.info.paged_v1_tokens;
    return fits && (kernel == ATTENTION_PAGED_V1 || (kernel == ATTENTION_AUTO && by_rule));
}

/* The vllm layout's kernels, which take rows as they are, some at a time if their partial states have
 * no room together. */
static void launch_paged(struct cuda_backend *b, const struct plan *plan,
                         const struct cuda_attend_pass *p, enum attention_kernel kernel)
{
    const struct geometry *g = b->options.geometry;
    uint32_t longest = 1;
    for (uint32_t i = 0; i < plan->row_count; i++)
        longest = plan->rows[i].keys > longest ? plan->rows[i].keys : longest;
    bool v1 = takes_paged_v1(b, kernel, plan->row_count, longest);
    uint32_t partitions = v1 ? 1 : (longest + PAGED_PARTITION - 1) / PAGED_PARTITION;
    uint32_t room = b->options.partials_max / partitions, together = room ? room : 1;
    for (uint32_t first = 0, n; first < plan->row_count; first += n) {
        n = smaller(smaller(v1 ? GRID_MAX : together, GRID_MAX), plan->row_count - first);
        const struct cuda_paged_pass pass = {*p, partitions, first};
        struct cuda_grid grid = {g->query_heads, n, partitions, CUDA_THREADS,
                                 paged_shared_bytes(g, v1 ? longest : PAGED_PARTITION)};
        cuda_queue_launch(&b->queue, v1 ? KERNEL_PAGED_V1 : KERNEL_PAGED_V2, grid, &pass, sizeof pass);
        grid.z = 1;
        grid.shared_bytes = 0;
        if (!v1)
            cuda_queue_launch(&b->queue, KERNEL_PAGED_REDUCE, grid, &pass, sizeof pass);
    }
}

static void add_attention(struct cuda_backend *b, const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    const struct plan *plan = pass->plan;
    struct cuda_queue *q = &b->queue;
    size_t row_bytes = (size_t)g->query_heads * g->head_dim * dtype_bytes(g->dtype);
    cuda_queue_reserve(q, q->control_bytes / 2, PASS_OPERATIONS); /* more than any plan is */
    const struct prepared_plan *prepared = prepare_plan(b, plan, g->window[pass->layer]);
    struct cuda_attend_pass p = attend_pass(b, prepared, pass);
    cuda_queue_await_side(q, b->side);
    if (pass->q) {
        cuda_queue_copy_in(q, b->q, pass->q, plan->row_count * row_bytes);
    } else {
        p.q_source = cuda_queue_put(q, pass->q_source, plan->row_count, sizeof *pass->q_source);
        cuda_queue_launch(q, KERNEL_GENERATE_Q, grid_of(plan->row_count, CUDA_THREADS), &p, sizeof p);
    }
    if (g->layout == LAYOUT_VLLM)
        launch_paged(b, plan, &p, pass->kernel);
    else
        launch_attention(b, prepared, &p);
    cuda_queue_reserve(q, 0, PASS_OPERATIONS); /* the copies belong together */
    cuda_queue_begin_copies(q, b->side);
    cuda_queue_copy_out(q, pass->o, p.o, plan->row_count * row_bytes);
    if (pass->lse)
        cuda_queue_copy_out(q, pass->lse, p.lse,
                            (size_t)plan->row_count * g->query_heads * sizeof(float));
    cuda_queue_end_copies(q, b->side);
    b->side = (b->side + 1) % CUDA_SIDES;
}

/* ---- a step -------------------------------------------------------------------------------------- */

/* Bring the device's copy of the model constants up to date. */
static void update_constants(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    const struct model_constants *c = b->options.constants;
    struct cuda_queue *q = &b->queue;
    size_t by_query = (size_t)g->layers * g->query_heads, by_kv = (size_t)g->layers * g->kv_heads;
    if (b->constants_version == c->version)
        return;
    b->constants_version = c->version;
    cuda_queue_copy_in(q, b->k_scale, c->k_scale, by_kv * sizeof(float));
    cuda_queue_copy_in(q, b->v_scale, c->v_scale, by_kv * sizeof(float));
    if (c->sinks)
        cuda_queue_copy_in(q, b->sinks, c->sinks, by_query * sizeof(float));
    if (c->alibi)
        cuda_queue_copy_in(q, b->alibi, c->alibi, g->query_heads * sizeof(float));
}

static void cuda_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (cuda_failed(&b->device))
        return;
    cuda_queue_begin(&b->queue, ticket);
    b->side = 0; /* so that the same step is the same graph */
    make_swaps(b, step);
    update_constants(b);
    update_tables(b, step);
    make_copies(b, step);
    cuda_queue_begin_passes(&b->queue);
    for (uint32_t i = 0; i < step->pass_count && !cuda_failed(&b->device); i++) {
        const struct attention_pass *pass = &step->passes[i];
        assert(!pass->plan || (pass->plan->partial_count <= b->options.partials_max &&
                               pass->plan->row_count <= b->options.rows_max));
        if (pass->append_count)
            add_appends(b, pass);
        if (pass->plan && pass->plan->row_count)
            add_attention(b, pass);
    }
    cuda_queue_end(&b->queue, ticket);
}

static bool cuda_poll(struct attention *attention, uint64_t ticket)
{
    return cuda_queue_is_done(&((struct cuda_backend *)attention)->queue, ticket);
}

static struct attention_times cuda_times(struct attention *attention, uint64_t ticket)
{
    return cuda_queue_times(&((struct cuda_backend *)attention)->queue, ticket);
}

static void *take_host_memory(struct attention *attention, size_t bytes)
{
    return cuda_host_memory(&((struct cuda_backend *)attention)->device, bytes);
}

static void free_host_memory(struct attention *attention, void *memory, size_t bytes)
{
    (void)bytes;
    cuda_free_host_memory(&((struct cuda_backend *)attention)->device, memory);
}

/* ---- reading back -------------------------------------------------------------------------------- */

/* K and V of one block of one layer, in b->block. */
static bool fetch_block(struct cuda_backend *b, uint32_t layer, uint32_t block)
{
    struct cuda_device *d = &b->device;
    CUdeviceptr from = b->pool.bytes + layer * b->pool.layer_bytes + block * b->pool.block_bytes;
    if (cuda_failed(d))
        return false;
    cuda_enter(d);
    return cuda_holds(d, d->cu.cuMemcpyDtoHAsync_v2(b->block, from, b->pool.block_bytes, d->stream),
                      "reading a block") &&
           cuda_holds(d, d->cu.cuStreamSynchronize(d->stream), "reading a block");
}

/* A host pool in which every block of every layer is the one in b->block. */
static struct kv_pool one_block(const struct cuda_backend *b)
{
    struct kv_pool pool = b->layout;
    pool.bytes = b->block;
    pool.layer_bytes = pool.block_bytes = 0;
    return pool;
}

static void cuda_read_kv(struct attention *attention, uint32_t layer, uint32_t block, uint32_t slot,
                         uint32_t count, void *k, void *v)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    const struct kv_pool pool = one_block(b);
    if (fetch_block(b, layer, block))
        kv_pool_read(&pool, layer, block, slot, count, k, v);
}

static uint32_t cuda_compare_kv(struct attention *attention, const struct kv_rows *rows,
                                const uint32_t *ids)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    const struct geometry *g = b->options.geometry;
    const struct kv_pool pool = one_block(b);
    size_t row_bytes = (size_t)g->kv_heads * g->head_dim * dtype_bytes(rows->dtype);
    for (uint32_t done = 0, n; done < rows->count; done += n) {
        struct kv_rows part = *rows;
        part.position += done;
        part.k = (const uint8_t *)rows->k + done * row_bytes;
        part.v = (const uint8_t *)rows->v + done * row_bytes;
        part.count = n = smaller(rows->count - done, g->block_size - part.position % g->block_size);
        if (!fetch_block(b, rows->layer, ids[part.position / g->block_size]))
            return done;
        uint32_t equal = kv_pool_compare(&pool, b->options.constants, &part, ids);
        if (equal < n)
            return done + equal;
    }
    return rows->count;
}

/* ---- states -------------------------------------------------------------------------------------- */

/* Heads [first, first + n) of the states, in the room for k and v, in place. */
static void merge_some(struct cuda_backend *b, const struct merge_states *m, size_t first, size_t n)
{
    struct cuda_queue *q = &b->queue;
    size_t all = (size_t)m->rows * m->heads, head_bytes = m->head_dim * dtype_bytes(m->dtype);
    uint64_t ticket = ++b->base.submitted;
    cuda_queue_begin(q, ticket);
    cuda_queue_begin_passes(q);
    for (uint32_t i = 0; i < m->states; i++) {
        cuda_queue_copy_in(q, b->k + i * n * head_bytes,
                           (const uint8_t *)m->o + (i * all + first) * head_bytes, n * head_bytes);
        cuda_queue_copy_in(q, b->v + i * n * sizeof(float), m->lse + i * all + first,
                           n * sizeof(float));
    }
    const struct cuda_merge_states_pass pass = {b->k,      b->v,        b->k,        b->v,
                                                m->states, (uint32_t)n, m->head_dim, m->dtype};
    cuda_queue_launch(q, KERNEL_MERGE_STATES, grid_of((uint32_t)n, (m->head_dim + 31) / 32 * 32), &pass,
                      sizeof pass);
    cuda_queue_begin_copies(q, 0);
    cuda_queue_copy_out(q, (uint8_t *)m->merged_o + first * head_bytes, b->k, n * head_bytes);
    cuda_queue_copy_out(q, m->merged_lse + first, b->v, n * sizeof(float));
    cuda_queue_end_copies(q, 0);
    cuda_queue_end(q, ticket);
    while (!cuda_queue_is_done(q, ticket)) {
    }
}

static void cuda_merge_states(struct attention *attention, const struct merge_states *m)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    size_t all = (size_t)m->rows * m->heads;
    size_t room = GIVEN_BYTES / m->states / (m->head_dim * dtype_bytes(m->dtype));
    assert(room > 0);
    for (size_t first = 0, n; first < all && !cuda_failed(&b->device); first += n) {
        n = all - first < room ? all - first : room;
        merge_some(b, m, first, n);
    }
}

/* ---- measuring ----------------------------------------------------------------------------------- */

static bool cuda_self_test(struct attention *attention)
{
    return cuda_self_test_passes(attention, &((struct cuda_backend *)attention)->options);
}

static double cuda_measure_roof(struct attention *attention)
{
    static const uint32_t per_multiprocessor[] = {2, 4, 16};
    struct cuda_backend *b = (struct cuda_backend *)attention;
    struct cuda_queue *q = &b->queue;
    uint64_t total = b->pool.layer_bytes * b->options.geometry->layers;
    uint64_t bytes = total < ROOF_BYTES_MAX ? total : ROOF_BYTES_MAX;
    const struct cuda_read_pass pass = {b->pool.bytes, bytes / 16};
    double us[ROOF_ROUNDS], best = INFINITY;
    cuda_enter(&b->device);
    for (size_t i = 0; i < sizeof per_multiprocessor / sizeof per_multiprocessor[0]; i++) {
        cuda_queue_begin_passes(q);
        cuda_queue_launch(q, KERNEL_READ_ALL,
                          grid_of(b->device.multiprocessors * per_multiprocessor[i], ROOF_THREADS),
                          &pass, sizeof pass);
        if (!cuda_queue_time(q, ROOF_ROUNDS, us))
            return 0;
        for (int round = 0; round < ROOF_ROUNDS; round++)
            best = us[round] < best ? us[round] : best;
    }
    return (double)bytes / best * 1e-3;
}

static bool cuda_time_passes(struct attention *attention, const struct attention_step *step,
                             uint32_t replays, double *us)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (cuda_failed(&b->device))
        return false;
    cuda_queue_begin(&b->queue, ++attention->submitted);
    cuda_queue_begin_passes(&b->queue);
    for (uint32_t i = 0; i < step->pass_count; i++)
        add_attention(b, &step->passes[i]);
    if (!cuda_queue_time(&b->queue, replays, us))
        return false;
    for (uint32_t i = 0; i < replays; i++)
        us[i] /= step->pass_count;
    return true;
}

/* ---- open and close ------------------------------------------------------------------------------ */

static void cuda_close(struct attention *attention)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    struct cuda_device *d = &b->device;
    const CUdeviceptr all[] = {b->pool.bytes, b->pool.tables, b->map,        b->q,
                               b->k,          b->v,           b->sinks,      b->alibi,
                               b->k_scale,    b->v_scale,     b->partial_ml, b->partial_o};
    (void)d->cu.cuCtxSetCurrent(d->context);
    (void)d->cu.cuStreamSynchronize(d->stream);
    cuda_queue_deinit(&b->queue);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        cuda_free(d, all[i]);
    for (int i = 0; i < CUDA_SIDES; i++) {
        cuda_free(d, b->o[i]);
        cuda_free(d, b->lse[i]);
    }
    cuda_free_host_memory(d, b->host);
    if (b->module)
        (void)d->cu.cuModuleUnload(b->module);
    cuda_device_close(d);
    free(b->known);
    free(b->block);
    free(b);
}

static const struct attention_ops ops = {
    .close = cuda_close,
    .submit = cuda_submit,
    .poll = cuda_poll,
    .times = cuda_times,
    .host_memory = take_host_memory,
    .free_host_memory = free_host_memory,
    .read_kv = cuda_read_kv,
    .compare_kv = cuda_compare_kv,
    .merge_states = cuda_merge_states,
    .self_test = cuda_self_test,
    .measure_roof = cuda_measure_roof,
    .time_passes = cuda_time_passes,
};

/* Whether the program of this geometry has a kernel. */
static bool has_kernel(const struct cuda_backend *b, enum cuda_kernel kernel)
{
    const struct geometry *g = b->options.geometry;
    uint32_t columns = cuda_columns_max(g, &b->device.target);
    if (kernel < KERNEL_PAGED_V1)
        return true;
    if (g->layout == LAYOUT_VLLM || kernel <= KERNEL_PAGED_REDUCE)
        return g->layout == LAYOUT_VLLM && kernel <= KERNEL_PAGED_REDUCE;
    switch (kernel) {
    case KERNEL_ATTEND_SIMPLE:
        return columns == 0;
    case KERNEL_ATTEND_8:
        return columns >= 8;
    case KERNEL_ATTEND_16:
        return columns >= 16;
    case KERNEL_ATTEND_32:
        return columns >= 32;
    default:
        return true;
    }
}

/* Allow a kernel the shared memory that it takes. */
static void allow_shared_memory(struct cuda_backend *b, const struct width *width)
{
    struct cuda_device *d = &b->device;
    CUfunction function = b->queue.kernels[width->kernel];
    cuda_holds(d,
               d->cu.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        (int)width->shared_bytes),
               "allowing %u bytes of shared memory", width->shared_bytes);
    cuda_holds(d,
               d->cu.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                        CU_SHAREDMEM_CARVEOUT_MAX_SHARED),
               "asking for shared memory");
}

/* Compile or find the kernels, and load them. */
static int load_kernels(struct cuda_backend *b)
{
    static const struct width all[] = {{KERNEL_ATTEND_SIMPLE, SIMPLE_COLUMNS, 0},
                                       {KERNEL_ATTEND_8, 8, 0},
                                       {KERNEL_ATTEND_16, 16, 0},
                                       {KERNEL_ATTEND_32, 32, 0}};
    const struct geometry *g = b->options.geometry;
    struct cuda_device *d = &b->device;
    char error[CUDA_COMPILER_ERROR_BYTES];
    struct cuda_cubin cubin;
    int rc = cuda_compile(g, &d->target, b->options.cache, NULL, &cubin, error);
    if (rc != 0) {
        snprintf(b->base.failure, sizeof b->base.failure, "CUDA: %.240s", error);
        return rc;
    }
    cuda_holds(d, d->cu.cuModuleLoadData(&b->module, cubin.bytes), "loading the kernels");
    free(cubin.bytes);
    if (cubin.uses_local_memory[0])
        log_line(LOG_WARNING, "the kernel %s uses local memory for this geometry and will be slower",
                 cubin.uses_local_memory);
    for (enum cuda_kernel i = 0; i < KERNEL_COUNT && !cuda_failed(d); i++) {
        if (has_kernel(b, i))
            cuda_holds(d,
                       d->cu.cuModuleGetFunction(&b->queue.kernels[i], b->module, cuda_kernel_names[i]),
                       "looking for the kernel %s", cuda_kernel_names[i]);
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0] && !cuda_failed(d); i++) {
        if (!has_kernel(b, all[i].kernel))
            continue;
        struct width *width = &b->widths[b->width_count++];
        *width = all[i];
        if (width->kernel == KERNEL_ATTEND_SIMPLE)
            continue;
        width->shared_bytes =
            tile_shape_of(g->head_dim, (uint32_t)dtype_bytes(g->kv_dtype), width->columns,
                          d->target.sm_bytes, cuda_uses_engine(g, &d->target))
                .bytes;
        allow_shared_memory(b, width);
    }
    if (g->layout == LAYOUT_VLLM && !cuda_failed(d)) {
        const struct width paged = {KERNEL_PAGED_V1, 0, paged_shared_max(b)};
        allow_shared_memory(b, &paged);
        b->base.info.paged_v1_tokens =
            paged.shared_bytes / (uint32_t)sizeof(float) / g->block_size * g->block_size;
    }
    b->base.info.p_rounded = cuda_columns_max(g, &d->target) > 0;
    return cuda_failed(d) ? ATTND_INTERNAL : 0;
}

/* The pool, or the arithmetic why there is none. */
static bool take_pool(struct cuda_backend *b)
{
    const struct attention_options *o = &b->options;
    struct cuda_device *d = &b->device;
    uint32_t test_blocks = CUDA_TEST_KEYS / o->geometry->block_size + 1;
    kv_pool_lay_out(&b->layout, o->geometry, o->blocks + test_blocks);
    if (b->layout.total_bytes > cuda_free_bytes(d)) {
        snprintf(
            b->base.failure, sizeof b->base.failure,
            "the pool does not fit: %u blocks of %llu bytes are %llu MiB, and %llu MiB of the GPU's "
            "memory are free (set pool.blocks, pool.bytes or pool.memory)",
            o->blocks, (unsigned long long)geometry_block_bytes(o->geometry),
            (unsigned long long)(o->blocks * geometry_block_bytes(o->geometry) >> 20),
            (unsigned long long)(cuda_free_bytes(d) >> 20));
        return false;
    }
    b->pool = (struct cuda_pool){
        .layer_bytes = b->layout.layer_bytes,
        .block_bytes = b->layout.block_bytes,
        .half_bytes = b->layout.half_bytes,
        .head_bytes = b->layout.head_bytes,
        .slot_bytes = b->layout.slot_bytes,
        .stride = o->table_stride > test_blocks ? o->table_stride : test_blocks,
    };
    b->pool.bytes = cuda_allocate(d, b->layout.total_bytes, "the KV pool");
    b->pool.tables = cuda_allocate(d, (o->table_rows + UINT64_C(1)) * b->pool.stride * sizeof(uint32_t),
                                   "block tables");
    return !cuda_failed(d) &&
           cuda_holds(d, d->cu.cuMemsetD8Async(b->pool.bytes, 0, b->layout.total_bytes, d->stream),
                      "clearing the KV pool") &&
           cuda_holds(d, d->cu.cuStreamSynchronize(d->stream), "clearing the KV pool");
}

/* The pool as the copy engine sees it: [layer, block, K or V][kv_head][slot][dim], of which a box is a
 * segment of the slots of a block. */
static bool make_map(struct cuda_backend *b)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_device *d = &b->device;
    CUtensorMap map;
    uint32_t element = (uint32_t)dtype_bytes(g->kv_dtype);
    const cuuint64_t halves = UINT64_C(2) * g->layers * b->layout.blocks,
                     sizes[] = {g->head_dim, g->block_size, g->kv_heads, halves},
                     strides[] = {b->pool.slot_bytes, b->pool.head_bytes, b->pool.half_bytes};
    const cuuint32_t box[] = {TILE_SEGMENT / element, smaller(g->block_size, TILE_TOKENS), 1, 1},
                     steps[] = {1, 1, 1, 1};
    if (b->width_count == 0 || !cuda_uses_engine(g, &d->target) || cuda_failed(d))
        return true;
    if (!d->cu.cuTensorMapEncodeTiled || halves > INT32_MAX) {
        snprintf(b->base.failure, sizeof b->base.failure, "CUDA: %s",
                 d->cu.cuTensorMapEncodeTiled
                     ? "the pool has too many blocks for the copy engine"
                     : "the driver is too old for this GPU: it knows no tensor maps");
        return false;
    }
    b->map = cuda_allocate(d, sizeof map, "a tensor map");
    return cuda_holds(d,
                      d->cu.cuTensorMapEncodeTiled(
                          &map,
                          element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16,
                          4, (void *)(uintptr_t)b->pool.bytes, sizes, strides, box, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                      "describing the pool to the copy engine") &&
           cuda_holds(d, d->cu.cuMemcpyHtoDAsync_v2(b->map, &map, sizeof map, d->stream),
                      "uploading a tensor map") &&
           cuda_holds(d, d->cu.cuStreamSynchronize(d->stream), "uploading a tensor map");
}

/* Pinned memory for the blocks that are swapped to. */
static bool take_host_blocks(struct cuda_backend *b)
{
    uint64_t blocks = b->options.host_blocks, available = config_memory_available(),
             bytes = blocks * geometry_block_bytes(b->options.geometry);
    if (blocks && (!available || bytes < available))
        b->host = cuda_host_memory(&b->device, bytes);
    if (!blocks || b->host)
        return true;
    snprintf(b->base.failure, sizeof b->base.failure,
             "pool.host_blocks: %llu MiB of host memory cannot be pinned for %llu blocks, %llu MiB are "
             "available",
             (unsigned long long)(bytes >> 20), (unsigned long long)blocks,
             (unsigned long long)(available >> 20));
    return false;
}

static int take_memory(struct cuda_backend *b)
{
    const struct attention_options *o = &b->options;
    const struct geometry *g = o->geometry;
    struct cuda_device *d = &b->device;
    uint64_t row_bytes = (uint64_t)g->query_heads * g->head_dim * dtype_bytes(g->dtype);
    uint64_t heads = (uint64_t)o->partials_max * g->query_heads,
             kv_scales = (uint64_t)g->layers * g->kv_heads;
    if (!take_pool(b) || !make_map(b) || !take_host_blocks(b))
        return ATTND_NO_MEMORY;
    b->q = cuda_allocate(d, o->rows_max * row_bytes, "q");
    for (int i = 0; i < CUDA_SIDES; i++) {
        b->o[i] = cuda_allocate(d, o->rows_max * row_bytes, "o");
        b->lse[i] = cuda_allocate(d, (uint64_t)o->rows_max * g->query_heads * sizeof(float), "lse");
    }
    b->k = cuda_allocate(d, GIVEN_BYTES, "k");
    b->v = cuda_allocate(d, GIVEN_BYTES, "v");
    b->partial_ml = cuda_allocate(d, heads * 2 * sizeof(float), "partial states");
    b->partial_o = cuda_allocate(d, heads * g->head_dim * sizeof(float), "partial states");
    b->k_scale = cuda_allocate(d, kv_scales * sizeof(float), "scales");
    b->v_scale = cuda_allocate(d, kv_scales * sizeof(float), "scales");
    b->sinks = cuda_allocate(d, (uint64_t)g->layers * g->query_heads * sizeof(float), "sinks");
    b->alibi = cuda_allocate(d, g->query_heads * sizeof(float), "slopes");
    b->known = calloc(o->table_rows + 1, sizeof *b->known);
    b->block = malloc(b->layout.block_bytes);
    b->constants_version = UINT64_MAX;
    return cuda_failed(d) || !b->known || !b->block ? ATTND_NO_MEMORY : 0;
}

/* What the largest plan takes in the control buffer, as the planner makes them (ITEMS_PER_ROW): items
 * of every 8 packed columns, item rows, parts, merges, rows, sources of q. */
static size_t plan_bytes_max(const struct cuda_backend *b)
{
    size_t rows = b->options.rows_max, group = geometry_group(b->options.geometry);
    size_t item_rows = rows * ITEMS_PER_ROW + b->base.info.tasks;
    return item_rows * ((group + 7) / 8 * sizeof(struct cuda_item) + sizeof(uint32_t) +
                        sizeof(struct plan_part)) +
           rows * (sizeof(struct plan_merge) + sizeof(struct plan_row) + sizeof(struct value_source)) +
           PASS_OPERATIONS * sizeof(uint64_t) * 8;
}

static int open_all(struct cuda_backend *b)
{
    size_t table_bytes = 8 * (size_t)b->options.table_stride * sizeof(uint32_t);
    size_t control_bytes = 2 * plan_bytes_max(b);
    control_bytes = table_bytes > control_bytes ? table_bytes : control_bytes;
    control_bytes = CONTROL_BYTES > control_bytes ? CONTROL_BYTES : control_bytes;
    if (!cuda_queue_init(&b->queue, &b->device, control_bytes))
        return ATTND_NO_MEMORY;
    int rc = load_kernels(b);
    if (rc == 0)
        rc = take_memory(b);
    if (rc != 0 || cuda_self_test(&b->base))
        return rc;
    if (!cuda_failed(&b->device))
        snprintf(b->base.failure, sizeof b->base.failure,
                 "CUDA: the kernels differ from the reference on this GPU");
    return ATTND_INTERNAL;
}

/* Whether the kernel that is asked for goes with the layout, and with the longest context. */
static int check_kernel(const struct attention_options *o, char error[ATTENTION_ERROR_BYTES])
{
    if (o->kernel == ATTENTION_AUTO)
        return 0;
    if (o->geometry->layout != LAYOUT_VLLM) {
        snprintf(error, ATTENTION_ERROR_BYTES,
                 "backend.kernel: paged_v1 and paged_v2 go with geometry.layout vllm");
        return ATTND_INVALID;
    }
    return 0;
}

static const char *kernel_name(const struct attention_options *o, const struct cuda_target *target)
{
    if (o->geometry->layout == LAYOUT_VLLM)
        return o->kernel == ATTENTION_PAGED_V1   ? "paged_v1"
               : o->kernel == ATTENTION_PAGED_V2 ? "paged_v2"
                                                 : "paged_v1 or paged_v2";
    return cuda_columns_max(o->geometry, target) ? "attend_mma" : "attend_simple";
}

int cuda_backend_open(const struct attention_options *options, struct attention **attention,
                      char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_backend *b = calloc(1, sizeof *b);
    snprintf(error, ATTENTION_ERROR_BYTES, "no memory for the CUDA backend");
    if (!b)
        return ATTND_NO_MEMORY;
    b->base.ops = &ops;
    b->options = *options;
    if (b->options.rows_max < CUDA_TEST_ROWS)
        b->options.rows_max = CUDA_TEST_ROWS;
    uint32_t partitions = options->table_stride * options->geometry->block_size / PAGED_PARTITION + 1;
    uint32_t least = options->geometry->layout == LAYOUT_VLLM ? partitions : CUDA_TEST_ROWS;
    if (b->options.partials_max < least) /* the longest row has room */
        b->options.partials_max = least;
    int rc = check_kernel(options, error);
    if (rc == 0)
        rc = cuda_device_open(&b->device, options->device, b->base.failure);
    if (rc == ATTND_INVALID) {
        free(b);
        return rc;
    }
    if (rc != 0) {
        snprintf(error, ATTENTION_ERROR_BYTES, "%s", b->base.failure);
        free(b);
        return rc;
    }
    b->base.info = (struct attention_info){
        .name = "cuda",
        .isa = b->device.target.arch,
        .threads = b->device.multiprocessors,
        .tasks = TASKS_PER_MULTIPROCESSOR * b->device.multiprocessors,
        .kernel = kernel_name(options, &b->device.target),
        .bit_stable = options->geometry->layout != LAYOUT_VLLM,
        .on_device = true,
    };
    snprintf(b->base.info.device, sizeof b->base.info.device, "%s", b->device.name);
    rc = open_all(b);
    if (rc != 0) {
        if (cuda_failed(&b->device))
            snprintf(error, ATTENTION_ERROR_BYTES, "%s", b->base.failure);
        cuda_close(&b->base);
        return rc;
    }
    *attention = &b->base;
    return 0;
}

/* ---- without a backend --------------------------------------------------------------------------- */

uint64_t cuda_memory_available(uint32_t index)
{
    struct cuda_device d;
    char failure[ATTENTION_ERROR_BYTES] = "";
    if (cuda_device_open(&d, index, failure) != 0)
        return 0;
    uint64_t bytes = cuda_free_bytes(&d);
    cuda_device_close(&d);
    return bytes;
}

bool attention_cuda_present(char why[ATTENTION_ERROR_BYTES])
{
    struct cuda_driver cu;
    int count = 0;
    if (cuda_driver_load(&cu, why, ATTENTION_ERROR_BYTES) != 0)
        return false;
    if (cu.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0)
        snprintf(why, ATTENTION_ERROR_BYTES, "the CUDA driver finds no GPU");
    cuda_driver_unload(&cu);
    return count > 0;
}

const char *attention_cuda_build(void)
{
    return "built in; driver and NVRTC are looked for at start";
}

int attention_compile_kernels(const struct geometry *g, const char *arch, const char *cache,
                              FILE *report, char error[ATTENTION_ERROR_BYTES])
{
    struct cuda_target target;
    struct cuda_cubin cubin;
    char why[CUDA_COMPILER_ERROR_BYTES];
    if (!cuda_target_known(arch, &target)) {
        snprintf(error, ATTENTION_ERROR_BYTES,
                 "there is no \"%.32s\": sm_75, sm_80, sm_86, sm_89, sm_90a, sm_100a or sm_120", arch);
        return ATTND_INVALID;
    }
    int rc = cuda_compile(g, &target, cache, report, &cubin, why);
    if (rc != 0)
        snprintf(error, ATTENTION_ERROR_BYTES, "%.250s", why);
    free(cubin.bytes);
    if (rc == 0 && cubin.uses_local_memory[0]) {
        snprintf(error, ATTENTION_ERROR_BYTES, "the kernel %s uses local memory",
                 cubin.uses_local_memory);
        rc = ATTND_INTERNAL;
    }
    return rc;
}
