/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_step.c - what a step does on the GPU, written down in a queue (queue.h) and issued together:
 *
 *   table changes -> copies -> compares, reads, merges of states (cuda_operations.c)
 *   for each pass:  append;  q (loaded or generated) -> work tiles -> merges -> o, lse (stored or copied)
 *   steady passes are a graph of their own, beside which others run
 *
 * Kernels load k, v and q of clients from the host's memory and store o and lse there, by a list of
 * addresses: so launches do not grow with requests. Outputs of workloads, which lie together, are copied
 * beside the next pass, or the next step.
 *
 * The GPU keeps a copy of the block tables. A table is uploaded again from its first entry when its
 * version is another than the last time it was named, and otherwise from where it was known to
 * (attention.h, table_use): a decode step uploads an entry when a sequence begins a block.
 *
 * A work tile of the plan becomes tiles (lowering.h), and a tile a thread block, or one of the splits of a
 * thread block, for every KV head. Those of each width and kind of split group are a launch of a kernel made
 * for them, side by side. */
#include "kernels/cuda/cuda_backend.h"

#include "config/numbers.h"

#include <assert.h>
#include <string.h>

enum {
    PAGED_V1_TOKENS = 8192, /* longest context that vLLM's rule gives to paged_v1, and */
    PAGED_V1_BLOCKS = 512,  /* rows times heads from which on it does not cut contexts */
    PITCH_MAX = INT32_MAX,  /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */
    GRID_MAX = 65535,       /* of a grid's second dimension */
    PREFETCH_PART = 8       /* of the L2 cache, for what the next launch reads first: more displaces itself */
};

_Static_assert(sizeof(struct cuda_append_pass) % 8 == 0 && sizeof(struct cuda_attend_pass) % 8 == 0 &&
                   sizeof(struct cuda_list_pass) % 8 == 0,
               "launches are compared byte by byte");
_Static_assert(sizeof(struct cuda_append_pass) <= CUDA_ARGUMENT_BYTES &&
                   sizeof(struct cuda_attend_pass) <= CUDA_ARGUMENT_BYTES,
               "arguments of a launch");

/* ---- tables and copies --------------------------------------------------------------------------- */

/* From which entry on the device does not know a table. */
static uint32_t first_unknown(const struct cuda_backend *b, const struct table_use *use)
{
    const struct cuda_known_row *known = &b->known[use->row];
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
        b->known[use->row] = (struct cuda_known_row){use->version, use->entries};
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
        cuda_queue_launch(q, KERNEL_CHANGE_TABLES, cuda_grid_of(n, CUDA_THREADS), &pass, sizeof pass);
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
static void copy_slots(struct cuda_backend *b, const struct block_copy *list, uint32_t n)
{
    struct cuda_queue *q = &b->queue;
    cuda_queue_reserve(q, (size_t)n * sizeof(struct block_copy), 2);
    struct block_copy *copies = cuda_queue_take(q, n, sizeof *copies);
    memcpy(copies, list, n * sizeof *copies);
    const struct cuda_list_pass pass = {b->pool, cuda_queue_address(q, copies), 0};
    struct cuda_grid grid = cuda_grid_of(n, CUDA_THREADS);
    grid.y = b->options.geometry->layers;
    grid.z = 2; /* K and V */
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

static bool is_swap(const struct block_copy *copy)
{
    return copy->kind == COPY_SWAP_OUT || copy->kind == COPY_SWAP_IN;
}

/* Those of copies [first, end) that are swaps. */
static void make_swaps(struct cuda_backend *b, const struct block_copy *copies, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        bool out = copies[i].kind == COPY_SWAP_OUT;
        const struct cuda_block block =
            block_of(b, out ? copies[i].from : copies[i].to, out ? copies[i].to : copies[i].from);
        if (is_swap(&copies[i]))
            cuda_queue_swap(&b->queue, &block, out);
    }
}

/* Make the swaps up to the last one that leaves the GPU, which is issued ahead of the outputs: a GPU makes
 * copies of one direction in the order in which they were issued, whatever their streams. Return where those
 * begin that are to be issued behind the control data. */
static uint32_t begin_swaps(struct cuda_backend *b, const struct attention_step *step)
{
    uint32_t ahead = 0, swaps = 0;
    for (uint32_t i = 0; i < step->copy_count; i++) {
        swaps += is_swap(&step->copies[i]);
        ahead = step->copies[i].kind == COPY_SWAP_OUT ? i + 1 : ahead;
    }
    if (swaps)
        cuda_queue_begin_swaps(&b->queue);
    make_swaps(b, step->copies, 0, ahead);
    return ahead;
}

/* See COPY_POISON: pieces that are one in each layer are filled in all layers at once. */
static void poison_slots(struct cuda_backend *b, const struct block_copy *copy)
{
    const uint32_t layers = b->options.geometry->layers;
    for (uint32_t layer = 0, n; layer < layers; layer += n) {
        for (int v = 0; v < 2; v++) {
            const struct kv_fill fill = kv_pool_poison(&b->layout, copy, layer, v != 0);
            const bool together = fill.rows == 1 && b->layout.layer_bytes <= PITCH_MAX;
            const struct cuda_block part = {.device = b->pool.bytes + fill.offset,
                                            .bytes = fill.bytes,
                                            .pitch = together         ? b->layout.layer_bytes
                                                     : fill.rows == 1 ? fill.bytes
                                                                      : fill.pitch,
                                            .rows = together ? layers : fill.rows,
                                            .fill = fill.byte};
            cuda_queue_clear(&b->queue, &part);
            n = together ? layers : 1;
        }
    }
}

/* All but swaps, in their order; copies between blocks that follow each other together. */
static void make_copies(struct cuda_backend *b, const struct attention_step *step)
{
    const struct block_copy *list = step->copies;
    uint32_t part = (uint32_t)(b->queue.control_bytes / sizeof(struct block_copy) / 2);
    for (uint32_t i = 0, n; i < step->copy_count; i += n) {
        const struct cuda_block to = block_of(b, list[i].to, 0);
        n = 1;
        if (list[i].kind == COPY_CLEAR)
            cuda_queue_clear(&b->queue, &to);
        if (list[i].kind == COPY_POISON)
            poison_slots(b, &list[i]);
        if (list[i].kind != COPY_BLOCK)
            continue;
        while (i + n < step->copy_count && n < part && list[i + n].kind == COPY_BLOCK)
            n++;
        copy_slots(b, list + i, n);
    }
}

/* ---- appends ------------------------------------------------------------------------------------- */

static void add_appends(struct cuda_backend *b, const struct attention_pass *pass)
{
    struct cuda_queue *q = &b->queue;
    uint64_t scales = (uint64_t)pass->layer * b->options.geometry->kv_heads * sizeof(float);
    uint32_t tokens = 0;
    cuda_queue_reserve(q, pass->append_count * sizeof(struct cuda_append), 1);
    struct cuda_append *appends = cuda_queue_take(q, pass->append_count, sizeof *appends);
    for (uint32_t i = 0; i < pass->append_count; i++) {
        const struct kv_append *append = &pass->appends[i];
        assert(!append->k || append->wrong || cuda_is_pinned(&b->device, append->k));
        appends[i] = (struct cuda_append){.first = tokens,
                                          .count = append->count,
                                          .table = append->table,
                                          .position = append->position,
                                          .k = (uintptr_t)append->k,
                                          .v = (uintptr_t)append->v,
                                          .generated = append->generated,
                                          .wrong = (uintptr_t)append->wrong,
                                          .content = append->content};
        tokens += append->count;
    }
    const struct cuda_append_pass p = {.pool = b->pool,
                                       .appends = cuda_queue_address(q, appends),
                                       .append_count = pass->append_count,
                                       .layer = pass->layer,
                                       .source_dtype = pass->source_dtype,
                                       .k_scale = b->k_scale + scales,
                                       .v_scale = b->v_scale + scales,
                                       .refused = b->refused};
    cuda_queue_launch(q, KERNEL_APPEND, cuda_grid_of(tokens, CUDA_THREADS), &p, sizeof p);
}

/* ---- attention ----------------------------------------------------------------------------------- */

/* The plan in the control buffer, if it is there. */
static const struct cuda_prepared_plan *find_prepared(struct cuda_backend *b, const struct plan *plan)
{
    if (b->prepared_since != b->queue.emptied) {
        memset(b->prepared, 0, sizeof b->prepared);
        b->prepared_count = 0;
        b->prepared_since = b->queue.emptied;
    }
    for (uint32_t i = 0; i < ATTENTION_PLANS; i++) {
        if (b->prepared[i].plan == plan && b->prepared[i].version == plan->version)
            return &b->prepared[i];
    }
    return NULL;
}

/* The merges that are left, and how many partial states they take at a time. */
static void prepare_merges(struct cuda_backend *b, const struct plan *plan,
                           struct cuda_prepared_plan *prepared)
{
    struct cuda_attend_pass *arrays = &prepared->arrays;
    struct cuda_queue *q = &b->queue;
    uint32_t partials = 0;
    struct plan_merge *merges = cuda_queue_take(q, plan->merge_count, sizeof *merges);
    struct cuda_merges left = cuda_lower_merges(plan, merges);
    for (uint32_t i = 0; i < plan->merge_count; i++)
        partials += plan->merges[i].count;
    arrays->merge_count = left.count;
    arrays->merges = cuda_queue_address(q, merges);
    arrays->merge_partials = cuda_queue_put(q, plan->merge_partials, partials, sizeof *plan->merge_partials);
    arrays->merge_batch_size = cuda_merge_batch(&b->tiles, left.longest);
    prepared->merge = left.spans ? KERNEL_MERGE_SPANS : KERNEL_MERGE;
}

/* Put a plan into the control buffer, unless it is there already. Room is reserved. */
static const struct cuda_prepared_plan *prepare_plan(struct cuda_backend *b,
                                                     const struct attention_step *step,
                                                     const struct plan *plan, uint32_t window)
{
    struct cuda_queue *q = &b->queue;
    const struct geometry *g = b->options.geometry;
    const struct cuda_lowering lowering = {.plan = plan,
                                           .caps = &b->base.info.tile_caps,
                                           .tables = step->tables,
                                           .stride = step->stride,
                                           .block_size = g->block_size,
                                           .group = geometry_group(g),
                                           .window = window};
    const struct cuda_prepared_plan *known = find_prepared(b, plan);
    if (known)
        return known;
    struct cuda_prepared_plan *prepared = &b->prepared[b->prepared_count++ % ATTENTION_PLANS];
    struct cuda_attend_pass *arrays = &prepared->arrays;
    *prepared = (struct cuda_prepared_plan){.plan = plan, .version = plan->version};
    arrays->queries = cuda_queue_put(q, plan->queries, plan->query_count, sizeof *plan->queries);
    if (g->layout == LAYOUT_VLLM)
        return prepared; /* its kernels take queries, not work tiles */
    prepare_merges(b, plan, prepared);
    cuda_lower_tiles(&lowering, prepared->lists);
    for (uint32_t i = 0; i < CUDA_TILE_LISTS; i++) {
        struct cuda_tile_list *list = &prepared->lists[i];
        list->tiles = cuda_queue_take(q, list->count, sizeof *list->tiles);
        list->count = 0;
    }
    cuda_lower_tiles(&lowering, prepared->lists);
    struct cuda_work_tile_query *queries = cuda_queue_take(q, cuda_work_tile_queries(plan), sizeof *queries);
    cuda_lower_queries(plan, queries);
    arrays->work_tile_queries = cuda_queue_address(q, queries);
    return prepared;
}

/* What a pass with this plan hands to its kernels. */
static struct cuda_attend_pass attend_pass(const struct cuda_backend *b,
                                           const struct cuda_prepared_plan *plan,
                                           const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    const struct model_constants *c = b->options.constants;
    uint64_t of_query = (uint64_t)pass->layer * g->query_heads * sizeof(float),
             of_kv = (uint64_t)pass->layer * g->kv_heads * sizeof(float);
    const struct cuda_tensors *tensors = &b->tensors[pass->rows ? CUDA_OF_ROWS : b->side];
    struct cuda_attend_pass p = plan->arrays;
    p.pool = b->pool;
    p.maps = b->maps;
    p.map_first = 2 * pass->layer * b->layout.blocks;
    p.q = tensors->q;
    p.o = tensors->o;
    p.lse = tensors->lse;
    p.partial_ml = tensors->partial_ml;
    p.partial_o = tensors->partial_o;
    p.k_scale = b->k_scale + of_kv;
    p.v_scale = b->v_scale + of_kv;
    p.fold_workspace = b->workspace.folds;
    p.slots_taken = b->workspace.taken;
    p.slots = b->device.multiprocessors;
    p.sinks = c->sinks ? b->sinks + of_query : 0;
    p.alibi = c->alibi ? b->alibi : 0;
    p.scale = g->scale;
    p.softcap = g->softcap;
    p.inverse_softcap = g->softcap > 0 ? 1.0F / g->softcap : 0;
    p.layer = pass->layer;
    p.window = g->window[pass->layer];
    return p;
}

/* The list that is launched behind list i, NULL if that is the last one. */
static const struct cuda_tile_list *list_behind(const struct cuda_prepared_plan *prepared, uint32_t i)
{
    while (i-- > 0) {
        if (prepared->lists[i].count > 0)
            return &prepared->lists[i];
    }
    return NULL;
}

/* What is to be brought into L2 for a launch of these work tiles: as much of each as makes a part of the
 * cache together, or, where that is less than half a tile, a tile of some. list NULL: nothing. */
static struct cuda_l2_prefetch prefetch_for(const struct cuda_backend *b, const struct cuda_tile_list *list,
                                            uint32_t layer)
{
    const struct geometry *g = b->options.geometry;
    if (!list)
        return (struct cuda_l2_prefetch){0};
    /* behind the tile of seen.first, which may begin in the midst of a block */
    uint32_t most = (CUDA_WORK_TILE_ENTRIES - (g->block_size > TILE_TOKENS)) * g->block_size;
    uint64_t head_bytes = geometry_token_bytes(g) / g->kv_heads, places = (uint64_t)list->count * g->kv_heads,
             tokens = b->device.l2_bytes / PREFETCH_PART / head_bytes, each = tokens / places, step = 1;
    if (each < TILE_TOKENS / 2) {
        each = TILE_TOKENS;
        step = tokens ? (places * each + tokens - 1) / tokens : places;
    }
    return (struct cuda_l2_prefetch){.work_tiles = cuda_queue_address(&b->queue, list->tiles),
                                     .places = (uint32_t)places,
                                     .step = (uint32_t)step,
                                     .tokens = each < most ? (uint32_t)each : most,
                                     .map_first = 2 * layer * b->layout.blocks};
}

/* The tiles by width and kind of split group, and the merges. `next`: the pass behind this one, or NULL. */
static void launch_attention(struct cuda_backend *b, const struct cuda_prepared_plan *prepared,
                             const struct cuda_attend_pass *p, const struct attention_pass *next)
{
    const struct geometry *g = b->options.geometry;
    struct cuda_attend_pass with_work_tiles = *p;
    const struct cuda_prepared_plan *next_plan = next ? find_prepared(b, next->plan) : NULL;
    uint32_t launches = 0;
    for (uint32_t i = 0; i < CUDA_TILE_LISTS; i++)
        launches += prepared->lists[i].count > 0;
    for (uint32_t i = CUDA_TILE_LISTS; i-- > 0;) { /* the longest work tiles first, late ones last */
        const struct cuda_width *width = &b->tiles.widths[cuda_width_of_list(i)];
        const struct cuda_tile_list *list = &prepared->lists[i];
        const struct cuda_split_kind *kind = &cuda_split_kinds[i % CUDA_SPLIT_KINDS];
        if (list->count == 0)
            continue;
        struct cuda_grid grid = cuda_grid_of_tiles(g, width, kind, list->count);
        const uint32_t processors = b->device.multiprocessors,
                       blocks = (grid.x + processors - 1) / processors,
                       blocks_max = width->shape.blocks >> kind->cta_bits, places = processors * blocks_max;
        const bool fills = (uint64_t)grid.x * 10 >= (uint64_t)places * 9,
                   spreads = launches == 1 && p->merge_count && grid.shared_bytes && blocks > 1 &&
                             blocks < blocks_max &&
                             (uint64_t)grid.x * 10 >= (uint64_t)processors * blocks * 9;
        /* The first of a pass begins before the one ahead of it has ended (launch.cuh) if it is small or fills
           the GPU. Thread blocks of others would come to lie unevenly, beside those that still run; where merges
           still run (docs/decisions/0029), each asks for so much shared memory that no more of them than needed
           find room on a multiprocessor. */
        grid.overlaps = with_work_tiles.concurrent || fills || spreads || grid.x <= processors;
        if (spreads)
            grid.shared_bytes = larger(grid.shared_bytes, b->device.target.sm_bytes / (blocks + 1));
        with_work_tiles.work_tiles = cuda_queue_address(&b->queue, list->tiles);
        with_work_tiles.split_bits = kind->group_bits;
        with_work_tiles.cta_bits = kind->cta_bits;
        /* Only for a launch that cannot begin before this one's thread blocks end: the next one of the
           pass if these fill the GPU; the next pass if they are the only ones, all there at once, and
           fill it or have merges behind them. What is brought for others comes too late, and is read
           twice. */
        const bool prefetches = b->options.l2_prefetch && b->maps;
        const struct cuda_tile_list *behind = list_behind(prepared, i);
        memset(&with_work_tiles.prefetch, 0, sizeof with_work_tiles.prefetch);
        if (prefetches && behind && fills)
            with_work_tiles.prefetch = prefetch_for(b, behind, p->layer);
        else if (prefetches && next_plan && launches == 1 && grid.x <= places && (fills || p->merge_count))
            with_work_tiles.prefetch = prefetch_for(b, list_behind(next_plan, CUDA_TILE_LISTS), next->layer);
        cuda_queue_launch(&b->queue, width->kernel, grid, &with_work_tiles, sizeof with_work_tiles);
        with_work_tiles.concurrent = 1;
    }
    cuda_queue_mark(&b->queue, CUDA_ATTENDED);
    if (p->merge_count) {
        struct cuda_grid grid =
            cuda_grid_of_merges(g, b->device.multiprocessors, p->merge_count, p->merge_batch_size);
        grid.overlaps = 1;
        cuda_queue_launch(&b->queue, prepared->merge, grid, p, sizeof *p);
        cuda_queue_mark(&b->queue, CUDA_MERGED);
    }
}

/* Whether a step of `rows` queries goes to paged_v1: as it is named, or by vLLM's rule; and where the
 * logits of the longest query fit into shared memory. */
static bool takes_paged_v1(const struct cuda_backend *b, enum attention_kernel named, uint32_t rows,
                           uint32_t longest)
{
    const struct geometry *g = b->options.geometry;
    enum attention_kernel kernel = named == ATTENTION_AUTO ? b->options.kernel : named;
    bool by_rule =
        longest <= PAGED_V1_TOKENS && (longest <= PAGED_PARTITION || rows * g->query_heads > PAGED_V1_BLOCKS);
    bool fits = longest <= b->base.info.paged_v1_tokens;
    return fits && (kernel == ATTENTION_PAGED_V1 || (kernel == ATTENTION_AUTO && by_rule));
}

/* The vllm layout's kernels, which take queries as they are, some at a time if their partial states have
 * no room together. */
static void launch_paged(struct cuda_backend *b, const struct plan *plan, const struct cuda_attend_pass *p,
                         enum attention_kernel kernel)
{
    const struct geometry *g = b->options.geometry;
    uint32_t longest = 1;
    for (uint32_t i = 0; i < plan->query_count; i++)
        longest = plan->queries[i].keys > longest ? plan->queries[i].keys : longest;
    bool v1 = takes_paged_v1(b, kernel, plan->query_count, longest);
    uint32_t partitions = v1 ? 1 : (longest + PAGED_PARTITION - 1) / PAGED_PARTITION;
    uint32_t room = b->options.partials_max / partitions, at_once = room ? room : 1;
    for (uint32_t first = 0, n; first < plan->query_count; first += n) {
        n = smaller(smaller(v1 ? GRID_MAX : at_once, GRID_MAX), plan->query_count - first);
        const struct cuda_paged_pass pass = {.attend = *p, .partitions = partitions, .first_query = first};
        struct cuda_grid grid = cuda_grid_of(g->query_heads, CUDA_THREADS);
        grid.y = n;
        grid.z = partitions;
        grid.shared_bytes = cuda_paged_shared_bytes(g, v1 ? longest : PAGED_PARTITION);
        cuda_queue_launch(&b->queue, v1 ? KERNEL_PAGED_V1 : KERNEL_PAGED_V2, grid, &pass, sizeof pass);
        grid.z = 1;
        grid.shared_bytes = 0;
        if (!v1)
            cuda_queue_launch(&b->queue, KERNEL_PAGED_REDUCE, grid, &pass, sizeof pass);
    }
    cuda_queue_mark(&b->queue, CUDA_ATTENDED); /* with the reductions, which lie between */
}

/* Write down which rows of clients are loaded or stored. */
static struct cuda_rows_pass put_rows(struct cuda_backend *b, const struct attention_pass *pass)
{
    uint32_t n = pass->plan->query_count;
    struct cuda_client_row *rows = cuda_queue_take(&b->queue, n, sizeof *rows);
    for (uint32_t i = 0; i < n; i++) {
        const struct attention_row *row = &pass->rows[i];
        rows[i] = (struct cuda_client_row){.q = (uintptr_t)row->q,
                                           .o = (uintptr_t)row->o,
                                           .lse = (uintptr_t)row->lse,
                                           .content = row->content,
                                           .table = pass->plan->queries[i].table};
    }
    assert(b->queue.streamed || cuda_is_pinned(&b->device, pass->rows[0].q));
    return (struct cuda_rows_pass){.rows = cuda_queue_address(&b->queue, rows), .refused = b->refused};
}

static void launch_rows(struct cuda_backend *b, enum cuda_kernel kernel, uint32_t n,
                        struct cuda_rows_pass pass, CUdeviceptr tensor, CUdeviceptr lse)
{
    const struct geometry *g = b->options.geometry;
    size_t vectors = geometry_q_row_bytes(g) / CUDA_VECTOR_BYTES;
    struct cuda_grid grid = cuda_grid_of(n, CUDA_THREADS);
    grid.y = (uint32_t)((vectors + CUDA_ROW_VECTORS - 1) / CUDA_ROW_VECTORS);
    grid.overlaps = 1;
    pass.tensor = tensor;
    pass.lse = lse;
    cuda_queue_launch(&b->queue, kernel, grid, &pass, sizeof pass);
}

/* Copy the outputs of a pass while the next one is computed. */
static void copy_outputs(struct cuda_backend *b, const struct attention_pass *pass,
                         const struct cuda_attend_pass *p)
{
    const struct geometry *g = b->options.geometry;
    size_t rows = pass->plan->query_count;
    const struct cuda_output outputs[] = {{pass->o, p->o, rows * geometry_q_row_bytes(g)},
                                          {pass->lse, p->lse, rows * g->query_heads * sizeof(float)}};
    cuda_queue_copy_out(&b->queue, b->side, outputs, pass->lse ? 2 : 1);
    b->side = b->side + 1 == b->side_first + CUDA_SIDES / 2 ? b->side_first : b->side + 1;
}

void cuda_step_attention(struct cuda_backend *b, const struct attention_step *step,
                         const struct attention_pass *pass)
{
    const struct geometry *g = b->options.geometry;
    const struct plan *plan = pass->plan;
    /* of the same list, if it attends too */
    uint32_t at = (uint32_t)(pass - step->passes), end = at < step->steady ? step->steady : step->pass_count;
    const struct attention_pass *next = at + 1 < end ? pass + 1 : NULL;
    if (next && (!next->plan || next->plan->query_count == 0))
        next = NULL;
    struct cuda_queue *q = &b->queue;
    struct cuda_rows_pass rows = {0};
    cuda_queue_reserve(q, q->control_bytes / 2, CUDA_PASS_OPERATIONS); /* more than any plan is */
    const struct cuda_prepared_plan *prepared = prepare_plan(b, step, plan, g->window[pass->layer]);
    struct cuda_attend_pass p = attend_pass(b, prepared, pass);
    if (pass->rows) {
        rows = put_rows(b, pass);
        launch_rows(b, KERNEL_LOAD_Q, plan->query_count, rows, p.q, 0);
    } else {
        cuda_queue_await_side(q, b->side);
        p.q_source = cuda_queue_put(q, pass->q_source, plan->query_count, sizeof *pass->q_source);
        cuda_queue_launch(q, KERNEL_GENERATE_Q, cuda_grid_of(plan->query_count, CUDA_THREADS), &p, sizeof p);
    }
    cuda_queue_mark(q, CUDA_APPENDED);
    if (g->layout == LAYOUT_VLLM)
        launch_paged(b, plan, &p, pass->kernel);
    else
        launch_attention(b, prepared, &p, next);
    if (!pass->rows)
        copy_outputs(b, pass, &p);
    else if (pass->rows[0].o)
        launch_rows(b, KERNEL_STORE_ROWS, plan->query_count, rows, p.o, p.lse);
    if (pass->rows)
        cuda_queue_mark(q, CUDA_STORED);
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

void cuda_step_submit(struct attention *attention, const struct attention_step *step, uint64_t ticket)
{
    struct cuda_backend *b = (struct cuda_backend *)attention;
    if (cuda_failed(&b->device))
        return;
    if (step->continues)
        cuda_queue_continue(&b->queue, step->streamed, step->stream);
    else
        cuda_queue_begin(&b->queue, ticket, step->streamed, step->stream);
    /* so that the same step is the same graph, and the step before may still be copied */
    b->side = b->side_first = ticket % 2 * (CUDA_SIDES / 2);
    uint32_t swapped = begin_swaps(b, step);
    update_constants(b);
    update_tables(b, step);
    make_copies(b, step);
    cuda_operations_add(b, step, ticket);
    cuda_queue_begin_steady(&b->queue);
    for (uint32_t i = 0; i < step->pass_count && !cuda_failed(&b->device); i++) {
        const struct attention_pass *pass = &step->passes[i];
        assert(step->steady == 0 || !pass->plan || !pass->rows == (i < step->steady)); /* of other tensors */
        if (i == step->steady)
            cuda_queue_begin_passes(&b->queue);
        assert(!pass->plan || (pass->plan->partial_count <= b->options.partials_max &&
                               pass->plan->query_count <= b->options.rows_max));
        cuda_queue_reserve(&b->queue, 0, CUDA_MARKS);
        cuda_queue_begin_pass(&b->queue, pass->layer);
        if (pass->append_count)
            add_appends(b, pass);
        if (pass->plan && pass->plan->query_count)
            cuda_step_attention(b, step, pass);
        else
            cuda_queue_mark(&b->queue, CUDA_APPENDED);
    }
    cuda_queue_issue(&b->queue);
    make_swaps(b, step->copies, swapped, step->copy_count);
    cuda_queue_end(&b->queue);
}
