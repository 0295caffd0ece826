/* SPDX-License-Identifier: Apache-2.0 */
/* decode.c - the backend's kernels of attention over a cache of the caller's own; see kernels/operators.h.
 *
 *   plan         planner -> lowering.c -> lists in host memory, which the caller copies to the GPU -> launches
 *   no plan      lengths on the GPU -> write_tiles (tiles.cu) -> lists on the GPU                  -> launches
 *
 *   lists        queries of work tiles | merges | partials of merges | work tiles of each width and kind of split group
 *   workspace    m, l of partial states | o of partial states | lse, if the caller does not want it
 *
 * The first kernel of a call never begins before what is ahead of it on the stream has ended (launch.cuh's rules): that may be what wrote the
 * cache, the tables or the lists. The others of a call overlap as the backend's do. */
#include "kernels/cuda/cuda_operators.h"

#include "config/numbers.h"
#include "kernels/kv_pool.h"

#include <string.h>

enum { LISTS_ALIGNMENT = 16 };

_Static_assert((int)OPERATORS_LISTS == (int)CUDA_TILE_LISTS, "a list each");
_Static_assert(sizeof(struct cuda_work_tile) % LISTS_ALIGNMENT == 0, "lists lie one behind the other");
_Static_assert(OPERATORS_QUERIES_MAX + TILES_WARPS + 1 <= 49152 / sizeof(uint32_t),
               "shared memory that needs no permission");

/* ---- open ---------------------------------------------------------------------------------------- */

bool operators_open_hnd(struct operators *x)
{
    struct cuda_device *d = &x->device;
    const struct geometry *g = &x->geometry;
    struct kv_pool layout;
    kv_pool_lay_out(&layout, g, 1);
    x->pool = (struct cuda_pool){.layer_bytes = layout.layer_bytes,
                                 .block_bytes = layout.block_bytes,
                                 .plane_bytes = layout.plane_bytes,
                                 .head_bytes = layout.head_bytes,
                                 .slot_bytes = layout.slot_bytes};
    cuda_find_widths(d, g, x->kernels, &x->tiles);
    x->workspace = cuda_take_workspace(d, &x->tiles);
    if (cuda_uses_tma(g, &d->target))
        x->maps = cuda_allocate(d, 2 * sizeof(CUtensorMap) * OPERATORS_CACHES_MAX, "tensor maps");
    return !cuda_failed(d) && cuda_await(d, NULL, d->stream, "clearing the workspace");
}

const struct tile_caps *operators_caps(const struct operators *x)
{
    return &x->tiles.caps;
}

uint32_t operators_tasks(const struct operators *x)
{
    return CUDA_TASKS_PER_MULTIPROCESSOR * x->device.multiprocessors;
}

/* ---- lists --------------------------------------------------------------------------------------- */

static void note_shape(const struct operators *x, uint32_t shape[OPERATORS_SHAPE_WORDS])
{
    const struct geometry *g = &x->geometry;
    const uint32_t words[OPERATORS_SHAPE_WORDS] = {0x64636402, /* of this form */
                                                   g->query_heads,
                                                   g->kv_heads,
                                                   g->head_dim,
                                                   g->block_size,
                                                   g->dtype,
                                                   g->kv_dtype,
                                                   x->device.multiprocessors,
                                                   x->device.target.sm_bytes,
                                                   (uint32_t)x->device.device};
    memcpy(shape, words, sizeof words);
}

bool operators_are_for(const struct operators *x, const struct operators_launches *launches)
{
    uint32_t shape[OPERATORS_SHAPE_WORDS];
    note_shape(x, shape);
    return memcmp(shape, launches->shape, sizeof shape) == 0;
}

/* Room for an array in the lists; its offset. */
static uint32_t put(struct operators_launches *to, uint64_t bytes)
{
    uint32_t at = (uint32_t)(to->lists_bytes / LISTS_ALIGNMENT);
    to->lists_bytes += (bytes + LISTS_ALIGNMENT - 1) / LISTS_ALIGNMENT * LISTS_ALIGNMENT;
    return at;
}

static void *at_offset(void *lists, uint32_t offset)
{
    return (uint8_t *)lists + (uint64_t)offset * LISTS_ALIGNMENT;
}

/* Where a list of work tiles lies. */
static struct cuda_work_tile *list_of(const struct operators_launches *l, void *lists, uint32_t list)
{
    struct cuda_work_tile *tiles = at_offset(lists, l->work_tiles);
    for (uint32_t i = 0; i < list; i++)
        tiles += l->tiles[i];
    return tiles;
}

static void size_workspace(const struct operators *x, struct operators_launches *to)
{
    const struct geometry *g = &x->geometry;
    to->workspace_bytes =
        ((uint64_t)to->partials * (2 + g->head_dim) + to->queries) * g->query_heads * sizeof(float);
}

void operators_lower(const struct operators *x, const struct plan *plan, const uint32_t *tables,
                     uint32_t stride, uint32_t max_length, uint32_t window, struct operators_launches *to,
                     void *lists)
{
    const struct geometry *g = &x->geometry;
    const struct cuda_lowering lowering = {.plan = plan,
                                           .caps = &x->tiles.caps,
                                           .tables = tables,
                                           .stride = stride,
                                           .block_size = g->block_size,
                                           .group = geometry_group(g),
                                           .window = window};
    struct cuda_tile_list of[CUDA_TILE_LISTS] = {0};
    uint32_t queries = cuda_work_tile_queries(plan), refs = 0;
    for (uint32_t i = 0; i < plan->merge_count; i++)
        refs += plan->merges[i].count;
    *to = (struct operators_launches){.queries = plan->query_count,
                                      .max_length = max_length,
                                      .window = window,
                                      .partials = plan->partial_count};
    note_shape(x, to->shape);
    to->work_tile_queries = put(to, (uint64_t)queries * sizeof(struct cuda_work_tile_query));
    to->merges = put(to, (uint64_t)plan->merge_count * sizeof(struct plan_merge));
    to->merge_partials = put(to, (uint64_t)refs * sizeof(struct partial_ref));
    to->work_tiles = put(to, 0);
    cuda_lower_tiles(&lowering, of);
    for (uint32_t i = 0; i < CUDA_TILE_LISTS; i++) {
        to->tiles[i] = of[i].count;
        (void)put(to, (uint64_t)of[i].count * sizeof(struct cuda_work_tile));
    }
    size_workspace(x, to);
    if (!lists)
        return;
    memset(lists, 0, to->lists_bytes);
    for (uint32_t i = 0; i < CUDA_TILE_LISTS; i++)
        of[i] = (struct cuda_tile_list){.tiles = list_of(to, lists, i)};
    cuda_lower_tiles(&lowering, of);
    cuda_lower_queries(plan, at_offset(lists, to->work_tile_queries));
    struct cuda_merges left = cuda_lower_merges(plan, at_offset(lists, to->merges));
    if (refs)
        memcpy(at_offset(lists, to->merge_partials), plan->merge_partials, refs * sizeof(struct partial_ref));
    to->merge_count = left.count;
    to->longest_merge = left.longest;
    to->spans = left.spans;
}

/* The width of the tiles that the GPU writes: of those that take any range within a span the narrowest with room for a group, or the
 * widest. */
static uint32_t found_width(const struct operators *x)
{
    const struct tile_caps *caps = &x->tiles.caps;
    uint32_t best = 0, group = geometry_group(&x->geometry);
    for (uint32_t i = 1; i < caps->width_count && caps->widths[best].query_heads < group; i++)
        best = caps->widths[i].chunks % SPAN_CHUNKS == 0 ? i : best;
    return best;
}

const char *operators_size(const struct operators *x, uint32_t queries, uint32_t max_length, uint32_t window,
                           struct operators_launches *to)
{
    const struct geometry *g = &x->geometry;
    uint32_t width = found_width(x),
             of_split = ceiling(geometry_group(g), x->tiles.caps.widths[width].query_heads),
             tasks = larger(1, operators_tasks(x) / g->kv_heads);
    uint64_t chunks = ceiling(max_length, CHUNK_TOKENS), slots = cuda_tile_slots(queries, max_length, tasks);
    if (queries > OPERATORS_QUERIES_MAX)
        return operators_refuse("without a plan %u rows of q are the most, and there are %u",
                                OPERATORS_QUERIES_MAX, queries);
    if (max_length > INT32_MAX || queries * chunks > UINT32_MAX || slots * of_split * g->kv_heads > INT32_MAX)
        return operators_refuse("%u rows of q over up to %u tokens are too many without a plan", queries,
                                max_length);
    *to = (struct operators_launches){.queries = queries,
                                      .max_length = max_length,
                                      .window = window,
                                      .slots = (uint32_t)slots,
                                      .merge_count = queries,
                                      .longest_merge = smaller((uint32_t)slots, (uint32_t)chunks),
                                      .spans = plan_spans(max_length) > 1,
                                      .partials = (uint32_t)slots};
    note_shape(x, to->shape);
    to->work_tile_queries = put(to, queries * sizeof(struct cuda_work_tile_query));
    to->merges = put(to, queries * sizeof(struct plan_merge));
    to->merge_partials = put(to, slots * sizeof(struct partial_ref));
    to->tiles[cuda_list_of_width(width)] = (uint32_t)slots * of_split;
    to->work_tiles = put(to, slots * of_split * sizeof(struct cuda_work_tile));
    size_workspace(x, to);
    return NULL;
}

/* ---- caches as TMA sees them --------------------------------------------------------------------- */

/* Describe a cache, in memory that is never written again: kernels and graphs may have its address, and what a multiprocessor remembers of a
 * description is not made void. The stream of the call may be one that is being captured, so this goes by one that is not. */
static bool describe(struct operators *x, struct operators_cache *cache)
{
    struct cuda_device *d = &x->device;
    struct cuda_pool pool = x->pool;
    CUtensorMap maps[2];
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    pool.bytes = (uintptr_t)cache->cache;
    cache->maps = x->maps + x->cache_count * sizeof maps;
    if (!cuda_describe_pool(d, &x->geometry, &pool, 2 * cache->blocks, maps))
        return false;
    if (d->cu.cuThreadExchangeStreamCaptureMode)
        (void)d->cu.cuThreadExchangeStreamCaptureMode(&mode);
    bool there = cuda_holds(d, d->cu.cuMemcpyHtoDAsync_v2(cache->maps, maps, sizeof maps, d->uploads),
                            "uploading tensor maps") &&
                 cuda_await(d, NULL, d->uploads, "uploading tensor maps");
    if (d->cu.cuThreadExchangeStreamCaptureMode)
        (void)d->cu.cuThreadExchangeStreamCaptureMode(&mode);
    return there;
}

/* The address of a cache's maps; 0: there can be none. */
static CUdeviceptr find_maps(struct operators *x, const void *cache, uint64_t blocks)
{
    uint32_t at = hash_id((uintptr_t)cache ^ blocks << 48) % OPERATORS_PLACES;
    struct operators_cache *place = NULL;
    (void)pthread_mutex_lock(&x->mutex);
    for (;; at = (at + 1) % OPERATORS_PLACES) {
        place = &x->caches[at];
        if (!place->cache || (place->cache == cache && place->blocks == blocks))
            break;
    }
    if (!place->cache && x->cache_count < OPERATORS_CACHES_MAX) {
        struct operators_cache found = {.cache = cache, .blocks = blocks};
        if (!cuda_failed(&x->device) && describe(x, &found)) {
            *place = found;
            x->cache_count++;
        }
    }
    CUdeviceptr maps = place->maps;
    (void)pthread_mutex_unlock(&x->mutex);
    return maps;
}

/* ---- launches ------------------------------------------------------------------------------------ */

/* The launches of a call, one behind the other. */
struct series {
    struct operators *x;
    CUstream stream;
    CUresult result;
    uint32_t attends; /* kernels of attention so far */
};

static void add(struct series *s, enum cuda_kernel kernel, const struct cuda_grid *grid, void *pass)
{
    void *parameters[] = {pass};
    const struct cuda_device *d = &s->x->device;
    if (s->result == CUDA_SUCCESS)
        s->result = cuda_launch(&d->cu, s->x->kernels[kernel], grid,
                                grid->overlaps && d->follows_early && s->attends > 0, s->stream, parameters);
}

static void write_lists(struct series *s, const struct operators_decode *of)
{
    const struct operators *x = s->x;
    const struct operators_launches *l = of->launches;
    struct cuda_tiles_pass pass = {.lengths = (uintptr_t)of->lengths,
                                   .starts = (uintptr_t)of->starts,
                                   .tables = (uintptr_t)of->tables,
                                   .stride = of->table_row,
                                   .work_tiles =
                                       (uintptr_t)list_of(l, of->lists, cuda_list_of_width(found_width(x))),
                                   .work_tile_queries = (uintptr_t)at_offset(of->lists, l->work_tile_queries),
                                   .merges = (uintptr_t)at_offset(of->lists, l->merges),
                                   .merge_partials = (uintptr_t)at_offset(of->lists, l->merge_partials),
                                   .sequences = of->sequences,
                                   .queries = l->queries,
                                   .max_length = l->max_length,
                                   .slots = l->slots,
                                   .tasks = larger(1, operators_tasks(x) / x->geometry.kv_heads),
                                   .columns = x->tiles.caps.widths[found_width(x)].query_heads,
                                   .window = l->window};
    uint32_t blocks = ceiling(l->slots, TILES_WARPS);
    struct cuda_grid grid = cuda_grid_of(smaller(blocks, x->device.multiprocessors), TILES_THREADS);
    grid.shared_bytes = (uint32_t)sizeof(uint32_t) * (TILES_WARPS + l->queries + 1);
    add(s, KERNEL_WRITE_TILES, &grid, &pass);
}

static struct cuda_attend_pass attend_pass(const struct operators *x, const struct operators_decode *of,
                                           CUdeviceptr maps)
{
    const struct operators_launches *l = of->launches;
    const uint64_t heads = x->geometry.query_heads, states = l->partials * heads;
    float *workspace = of->workspace;
    struct cuda_attend_pass p = {
        .pool = x->pool,
        .maps = maps,
        .work_tile_queries = (uintptr_t)at_offset(of->lists, l->work_tile_queries),
        .merges = (uintptr_t)at_offset(of->lists, l->merges),
        .merge_partials = (uintptr_t)at_offset(of->lists, l->merge_partials),
        .q = (uintptr_t)of->q,
        .o = (uintptr_t)of->o,
        .partial_o = (uintptr_t)workspace,
        .partial_ml = (uintptr_t)(workspace + states * x->geometry.head_dim),
        .lse = (uintptr_t)(of->lse ? of->lse : workspace + states * (x->geometry.head_dim + 2)),
        .k_scale = (uintptr_t)of->caches.k_scale,
        .v_scale = (uintptr_t)of->caches.v_scale,
        .fold_workspace = x->workspace.folds,
        .slots_taken = x->workspace.taken,
        .slots = x->device.multiprocessors,
        .sinks = (uintptr_t)of->sinks,
        .alibi = (uintptr_t)of->alibi,
        .scale = of->scale,
        .softcap = x->geometry.softcap,
        .inverse_softcap = x->geometry.softcap > 0 ? 1.0F / x->geometry.softcap : 0,
        .window = l->window,
        .merge_count = l->merge_count,
        .merge_batch_size = cuda_merge_batch(&x->tiles, l->longest_merge)};
    p.pool.bytes = (uintptr_t)of->caches.k;
    p.pool.tables = (uintptr_t)of->tables;
    p.pool.stride = of->table_row;
    return p;
}

static void attend(struct series *s, const struct operators_decode *of, CUdeviceptr maps)
{
    struct operators *x = s->x;
    const struct geometry *g = &x->geometry;
    const struct operators_launches *l = of->launches;
    struct cuda_attend_pass p = attend_pass(x, of, maps);
    for (uint32_t i = CUDA_TILE_LISTS; i-- > 0;) { /* the longest work tiles first, late ones last */
        const struct cuda_split_kind *kind = &cuda_split_kinds[i % CUDA_SPLIT_KINDS];
        const struct cuda_width *width = &x->tiles.widths[cuda_width_of_list(i)];
        if (l->tiles[i] == 0)
            continue;
        struct cuda_grid grid = cuda_grid_of_tiles(g, width, kind, l->tiles[i]);
        grid.overlaps = p.concurrent = s->attends > 0;
        p.work_tiles = (uintptr_t)list_of(l, of->lists, i);
        p.split_bits = kind->group_bits;
        p.cta_bits = kind->cta_bits;
        add(s, width->kernel, &grid, &p);
        s->attends++;
    }
    if (l->merge_count == 0)
        return;
    struct cuda_grid grid =
        cuda_grid_of_merges(g, x->device.multiprocessors, l->merge_count, p.merge_batch_size);
    grid.overlaps = 1;
    p.concurrent = 0;
    add(s, l->spans ? KERNEL_MERGE_SPANS : KERNEL_MERGE, &grid, &p);
}

const char *operators_decode(struct operators *x, const struct operators_decode *of, void *stream)
{
    struct series s = {.x = x, .stream = stream, .result = CUDA_SUCCESS};
    CUdeviceptr maps = 0;
    bool entered = operators_enter(x);
    if (x->maps && of->caches.k && !(maps = find_maps(x, of->caches.k, of->blocks))) {
        (void)operators_leave(x, entered, CUDA_SUCCESS, "");
        return cuda_failed(&x->device)
                   ? operators_refuse("%.240s", x->owner.failure)
                   : operators_refuse("these kernels have met %u caches, and can describe no more to TMA",
                                      OPERATORS_CACHES_MAX);
    }
    if (of->finds)
        write_lists(&s, of);
    if (of->caches.k)
        attend(&s, of, maps);
    return operators_leave(x, entered, s.result, "launching decode");
}
