/* SPDX-License-Identifier: Apache-2.0 */
/* launches.h - what the kernels of a program are launched with: the widths of its tiles, the memory that they share, how the pool is
 * described to TMA, and grids. For the backend, which writes launches down in a queue, and for operators, which make them at once. */
#ifndef KERNELS_CUDA_LAUNCHES_H
#define KERNELS_CUDA_LAUNCHES_H

#include "kernels/cuda/device/step.h"
#include "kernels/cuda/device/tile.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/lowering.h"

#include <stdbool.h>

/* as many thread blocks of 8 columns have a place at once; 3 and 4 measured on an H200: W5 (ragged)
   at 0.89 and 0.93 of the roof, W2, W4 and W10 alike */
enum { CUDA_TASKS_PER_MULTIPROCESSOR = 4 };

/* The kernel for tiles of one of attention_info.tile_caps.widths. */
struct cuda_width {
    enum cuda_kernel kernel;
    struct tile_shape shape; /* of those without tiles: threads and blocks */
};

/* What follows from a program and its GPU. */
struct cuda_widths {
    struct cuda_width widths[PLAN_WIDTHS_MAX]; /* of caps */
    struct tile_caps caps;
    uint32_t merge_batch_max; /* partial states that a merge takes at a time */
};

/* cuda_find_widths(d, g, kernels, widths): of the kernels [KERNEL_COUNT] that were loaded, which are allowed the shared memory that
 * they take. */
void cuda_find_widths(struct cuda_device *d, const struct geometry *g, CUfunction *kernels,
                      struct cuda_widths *widths);

/* cuda_allow_shared_memory: allow a kernel so many bytes. */
void cuda_allow_shared_memory(struct cuda_device *d, CUfunction kernel, uint32_t bytes);

/* A slot for each multiprocessor of what the widest kernel keeps in global memory, if it does; and which are taken. For as long as `d` is
 * open. */
struct cuda_workspace {
    CUdeviceptr folds, taken;
};
struct cuda_workspace cuda_take_workspace(struct cuda_device *d, const struct cuda_widths *widths);

/* cuda_describe_pool(d, g, pool, planes, maps): so many planes of K and V from pool->bytes on as TMA sees them. Only where cuda_uses_tma().
 * False after a failure. */
MUST_USE bool cuda_describe_pool(struct cuda_device *d, const struct geometry *g,
                                 const struct cuda_pool *pool, uint64_t planes, CUtensorMap maps[2]);

/* ---- grids */

struct cuda_grid {
    uint32_t x, y, z, threads, shared_bytes;
    uint32_t overlaps;  /* 1: it awaits the kernel before it by itself, and may begin before that one ends */
    uint32_t cluster;   /* thread blocks of a cluster; 0: there are none */
    uint32_t threads_y; /* 0: as 1 */
};

static inline struct cuda_grid cuda_grid_of(uint32_t blocks, uint32_t threads)
{
    return (struct cuda_grid){blocks, 1, 1, threads, 0, 0, 0, 0};
}

/* Of `tiles` tiles of a width and a kind of split group; of so many merges, which take a batch of partial states at a time. Whether they
 * overlap is not in it. */
struct cuda_grid cuda_grid_of_tiles(const struct geometry *g, const struct cuda_width *width,
                                    const struct cuda_split_kind *kind, uint32_t tiles);
struct cuda_grid cuda_grid_of_merges(const struct geometry *g, uint32_t multiprocessors, uint32_t merges,
                                     uint32_t batch_size);

/* Partial states that merges of up to `longest` take at a time: a power of two, so that plans which grow stay the same graph for a
 * while. */
uint32_t cuda_merge_batch(const struct cuda_widths *widths, uint32_t longest);

/* cuda_launch(cu, kernel, grid, early, stream, parameters): early: it may begin while the one before it ends. */
CUresult cuda_launch(const struct cuda_driver *cu, CUfunction kernel, const struct cuda_grid *grid,
                     bool early, CUstream stream, void **parameters);

#endif
