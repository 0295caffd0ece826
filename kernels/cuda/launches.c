/* SPDX-License-Identifier: Apache-2.0 */
/* launches.c - see launches.h. */
#include "kernels/cuda/launches.h"

#include "config/numbers.h"

enum {
    SIMPLE_BLOCKS = 3, /* of attend_simple.cu on a multiprocessor */
    /* of four, 62 find room on an H200's 132 multiprocessors, and the last ones of W2 and W10 would wait
       for the first */
    CLUSTER_MAX = 2,
    MERGE_FEW = 128, /* threads a multiprocessor: then a merge has several warps, */
    MERGE_WARPS = 4  /* so many */
};

/* ---- the kernels of a program -------------------------------------------------------------------- */

void cuda_allow_shared_memory(struct cuda_device *d, CUfunction kernel, uint32_t bytes)
{
    cuda_holds(d,
               d->cu.cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)bytes),
               "allowing %u bytes of shared memory", bytes);
    cuda_holds(d,
               d->cu.cuFuncSetAttribute(kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                        CU_SHAREDMEM_CARVEOUT_MAX_SHARED),
               "asking for shared memory");
}

/* Add the tiles of a kernel. Returns whether the states of a split group have room there. */
static bool add_width(struct cuda_device *d, const struct geometry *g, enum cuda_kernel i, bool tma,
                      struct cuda_widths *w)
{
    const struct cuda_kernel_info *kernel = &cuda_kernels[i];
    struct cuda_width *width = &w->widths[w->caps.width_count];
    struct tile_width *tile = &w->caps.widths[w->caps.width_count++];
    uint32_t state_bytes = (uint32_t)sizeof(float) * tile_state_floats(g->head_dim);
    width->kernel = i;
    *tile = (struct tile_width){kernel->query_heads, kernel->chunks, 1};
    if (kernel->of == OF_SIMPLE) {
        width->shape = (struct tile_shape){.threads = CUDA_THREADS, .blocks = SIMPLE_BLOCKS};
        return true;
    }
    width->shape = kernel->of == OF_WIDE
                       ? tile_wide_shape_of(g->head_dim, tile->query_heads, d->target.sm_bytes, tma)
                       : tile_shape_of(g->head_dim, (uint32_t)dtype_bytes(g->kv_dtype), tile->query_heads,
                                       d->target.sm_bytes, tma);
    tile->cta_splits_max = tile_cta_splits_max(&width->shape);
    /* a group's states lie where its keys and values were */
    return tile->query_heads * state_bytes <= width->shape.stages * width->shape.stage_bytes;
}

void cuda_find_widths(struct cuda_device *d, const struct geometry *g, CUfunction *kernels,
                      struct cuda_widths *w)
{
    const uint32_t most = d->target.sm_bytes - TILE_BLOCK_BYTES;
    bool tma = cuda_uses_tma(g, &d->target), splits = cuda_columns_max(g, &d->target) > 0;
    *w = (struct cuda_widths){.merge_batch_max = MERGE_BATCH_MAX};
    for (enum cuda_kernel i = 0; i < KERNEL_COUNT && !cuda_failed(d); i++) {
        const struct cuda_kernel_info *kernel = &cuda_kernels[i];
        if (kernel->query_heads == 0 || !cuda_has_kernel(g, &d->target, i))
            continue;
        splits &= add_width(d, g, i, tma, w);
        if (kernel->of != OF_SIMPLE)
            cuda_allow_shared_memory(d, kernels[i], most);
    }
    w->caps.splits_max = splits ? PLAN_SPLITS_MAX : 0;
    w->caps.cluster_max = d->has_clusters ? CLUSTER_MAX : 1;
    w->caps.processors = d->multiprocessors;
    if (!cuda_has_kernel(g, &d->target, KERNEL_MERGE) || cuda_failed(d))
        return;
    while (merge_bytes(g->head_dim, CUDA_THREADS, w->merge_batch_max) > most)
        w->merge_batch_max /= 2;
    uint32_t bytes = merge_bytes(g->head_dim, CUDA_THREADS, w->merge_batch_max);
    cuda_allow_shared_memory(d, kernels[KERNEL_MERGE], bytes);
    cuda_allow_shared_memory(d, kernels[KERNEL_MERGE_SPANS], bytes);
}

struct cuda_workspace cuda_take_workspace(struct cuda_device *d, const struct cuda_widths *widths)
{
    const struct tile_shape *widest = &widths->widths[plan_widest(&widths->caps)].shape;
    uint64_t bytes = (uint64_t)d->multiprocessors * tile_workspace_bytes(widest),
             taken_bytes = d->multiprocessors * sizeof(uint32_t);
    struct cuda_workspace w = {0};
    if (bytes == 0)
        return w;
    w.folds = cuda_allocate(d, bytes, "the workspace of folds");
    w.taken = cuda_allocate(d, taken_bytes, "the workspace of folds");
    cuda_holds(d, d->cu.cuMemsetD8Async(w.taken, 0, taken_bytes, d->stream), "clearing the workspace");
    return w;
}

/* The pool as TMA sees it: [layer, block, K or V][kv_head][atom][slot][128 bytes], of
 * which a box is all atoms of some slots of a block, or, in a second map, one; where rows are not
 * whole atoms, [1][slot][dim] and one in both. */
bool cuda_describe_pool(struct cuda_device *d, const struct geometry *g, const struct cuda_pool *pool,
                        uint64_t planes, CUtensorMap maps[2])
{
    uint32_t element = (uint32_t)dtype_bytes(g->kv_dtype);
    uint32_t stage_tokens = tile_shape_of(g->head_dim, element, 8, d->target.sm_bytes, true).stage_tokens,
             part = SWIZZLE_BYTES / element, atoms = g->head_dim % part ? 1 : g->head_dim / part;
    const cuuint64_t sizes[] = {g->head_dim / atoms, g->block_size, atoms, g->kv_heads, planes},
                     strides[] = {pool->slot_bytes, SWIZZLE_BYTES, pool->head_bytes, pool->plane_bytes};
    const cuuint32_t rows = tile_box_rows(g->block_size, stage_tokens),
                     boxes[][5] = {{part, rows, atoms, 1, 1}, {part, rows, 1, 1, 1}},
                     steps[] = {1, 1, 1, 1, 1};
    _Static_assert(sizeof maps[0] == CUDA_MAP_BYTES, "one after the other");
    if (!d->cu.cuTensorMapEncodeTiled || planes > INT32_MAX) {
        snprintf(d->owner->failure, sizeof d->owner->failure, "CUDA: %s",
                 d->cu.cuTensorMapEncodeTiled
                     ? "the pool has too many blocks for TMA"
                     : "the driver is too old for this GPU: it knows no tensor maps");
        return false;
    }
    for (int i = 0; i < 2; i++)
        cuda_holds(d,
                   d->cu.cuTensorMapEncodeTiled(
                       &maps[i],
                       element == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 5,
                       (void *)(uintptr_t)pool->bytes, sizes, strides, boxes[i], steps,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                       CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                   "describing the pool to TMA");
    return !cuda_failed(d);
}

/* ---- grids --------------------------------------------------------------------------------------- */

struct cuda_grid cuda_grid_of_tiles(const struct geometry *g, const struct cuda_width *width,
                                    const struct cuda_split_kind *kind, uint32_t tiles)
{
    const uint32_t bits = kind->group_bits, cta_bits = kind->cta_bits;
    struct cuda_grid grid = cuda_grid_of(tiles * g->kv_heads >> cta_bits, width->shape.threads);
    grid.threads_y = 1U << cta_bits;
    grid.shared_bytes = width->shape.bytes << cta_bits;
    grid.cluster = bits > cta_bits ? 1U << (bits - cta_bits) : 0;
    return grid;
}

struct cuda_grid cuda_grid_of_merges(const struct geometry *g, uint32_t multiprocessors, uint32_t merges,
                                     uint32_t batch_size)
{
    uint32_t of_row = g->query_heads * g->head_dim / 4; /* threads of a merge */
    uint64_t all = (uint64_t)merges * of_row, few = (uint64_t)MERGE_FEW * multiprocessors;
    uint32_t threads = all <= few ? 32 : CUDA_THREADS;
    struct cuda_grid grid = cuda_grid_of(merges * ceiling(of_row, threads), threads);
    grid.threads_y = all <= few ? MERGE_WARPS : 1;
    grid.shared_bytes = merge_bytes(g->head_dim, threads, batch_size);
    return grid;
}

uint32_t cuda_merge_batch(const struct cuda_widths *widths, uint32_t longest)
{
    uint32_t batch_size = 1;
    while (batch_size < longest && batch_size < widths->merge_batch_max)
        batch_size *= 2;
    return batch_size;
}

CUresult cuda_launch(const struct cuda_driver *cu, CUfunction kernel, const struct cuda_grid *grid,
                     bool early, CUstream stream, void **parameters)
{
    CUlaunchAttribute attributes[2];
    unsigned count = 0;
    if (early)
        attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                                  .value.programmaticStreamSerializationAllowed = 1};
    if (grid->cluster)
        attributes[count++] = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                                  .value.clusterDim = {grid->cluster, 1, 1}};
    const CUlaunchConfig config = {.gridDimX = grid->x,
                                   .gridDimY = grid->y,
                                   .gridDimZ = grid->z,
                                   .blockDimX = grid->threads,
                                   .blockDimY = grid->threads_y ? grid->threads_y : 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = grid->shared_bytes,
                                   .hStream = stream,
                                   .attrs = attributes,
                                   .numAttrs = count};
    return count ? cu->cuLaunchKernelEx(&config, kernel, parameters, NULL)
                 : cu->cuLaunchKernel(kernel, grid->x, grid->y, grid->z, grid->threads, config.blockDimY, 1,
                                      grid->shared_bytes, stream, parameters, NULL);
}
