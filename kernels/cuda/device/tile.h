/* SPDX-License-Identifier: Apache-2.0 */
/* tile.h - the shape of the tensor-core kernels: who computes what, and how much shared memory it
 * takes. Computed alike by the compiler of the device code and by the host, which launches with it. C11
 * and CUDA C.
 *
 * - A warp takes 8 packed columns; it computes whole tiles for them, alone.
 * - A thread block has `warps` such warps, which read the same K and V; one where 8 columns are enough.
 *   One more, the producer, brings K and V: by TMA, or, where that does not go, by cp.async.
 * - The ring has `stages` stages of `stage_tokens` keys, or as many values, on their way in. Rows lie in atoms of
 *   128 bytes, whose 16-byte vectors are exchanged by the row's number (kv_pipeline.cuh).
 * - Folds: the upper levels, a slot a thread, when they do not fit in registers.
 *
 * Of the kernels for many columns (attend_wide.cu) a warpgroup of four warps takes 64 columns.
 *
 * On an H100, with heads of 128 of 16 bits, by TMA:
 *
 *                     columns   stages of 16 KiB   thread blocks a multiprocessor
 *   attend_8          8         3                  4
 *   attend_32         32        3                  2
 *   attend_wide_64    64        5                  2
 *   attend_wide_128   128       6                  1
 *
 * A work tile goes to the narrowest that has room for its columns (plan_width_for() in kernels/plan.h); attend_64 is for GPUs and formats
 * without attend_wide. */
#ifndef KERNELS_CUDA_DEVICE_TILE_H
#define KERNELS_CUDA_DEVICE_TILE_H

#include "kernels/cuda/device/step.h"

#include <stdbool.h>

enum {
    SWIZZLE_BYTES = 128,     /* bytes of a row: the span of TMA's swizzle */
    TILE_ALIGNMENT = 1024,   /* of the ring: eight rows of an atom, after which the swizzle repeats */
    TILE_SIMPLE_COLUMNS = 8, /* of attend_simple.cu */
    TILE_COLUMNS_MAX = 64,
    TILE_GROUP_COLUMNS = 64, /* of a warpgroup */
    TILE_GROUP_WARPS = 4,
    TILE_GROUP_DIM_MAX = 128, /* beyond, its accumulators have no room */
    TILE_STAGE_BYTES = 16384, /* roughly */
    TILE_STAGES_MIN = 3,
    TILE_STAGES_MAX = 16,
    TILE_ENTRIES = 64,                    /* of the block table, that are kept in shared memory, for TMA; */
    TILE_ADDRESS_BYTES = TILE_TOKENS * 8, /* otherwise, where the tokens of a tile lie */
    TILE_BARRIER_BYTES = 2 * TILE_STAGES_MAX * 8,                     /* two of a stage */
    WORK_TILE_BYTES = (sizeof(struct cuda_work_tile) + 27) / 16 * 16, /* of struct work_tile_memory, and 4 a
                                                                         column */
    /* of a multiprocessor: up to 8 warps have 255 registers a thread, up to 12 have 168 */
    TILE_BLOCKS_MAX = 4,
    TILE_FEW_WARPS = 8,
    TILE_MANY_WARPS = 12,
    TILE_BLOCK_BYTES = 1024,  /* of shared memory that the hardware keeps per thread block */
    TILE_FOLD_REGISTERS = 120 /* of a thread that has 255, at most, for folds; more go to shared memory */
};

struct tile_shape {
    uint32_t columns;
    uint32_t padded_dim;     /* head_dim in whole fragments of 16 */
    uint32_t warps, threads; /* warps: that compute */
    uint32_t kv_row;         /* bytes of a row in a stage */
    uint32_t stage_tokens;   /* of K, or of V: 16, 32 or 64 */
    uint32_t stage_bytes;
    uint32_t stages, blocks;
    uint32_t fold_floats;                         /* of a thread and level */
    uint32_t register_levels;                     /* of the fold; the levels above are in shared memory */
    uint32_t fold_levels;                         /* in all, of attend_wide.cu; */
    uint32_t shared_levels;                       /* in shared memory, the one above in the workspace */
    uint32_t barriers, entries, work_tile, folds; /* where they begin in shared memory, behind the ring */
    uint32_t bytes;                               /* in all, 0 if it does not fit */
};

/* What of shared memory is neither ring nor folds. */
HOST_AND_DEVICE uint32_t tile_fixed_bytes(uint32_t columns, bool tma)
{
    return TILE_BARRIER_BYTES + (tma ? TILE_ENTRIES * 4 : TILE_ADDRESS_BYTES) + WORK_TILE_BYTES + 4 * columns;
}

/* Where shared memory's parts lie behind the ring; `folds`: bytes of them. The ring is aligned, of each
 * of several that are one thread block too. */
HOST_AND_DEVICE void tile_lay_out(struct tile_shape *t, uint32_t folds, bool tma)
{
    if (t->stages > TILE_STAGES_MAX)
        t->stages = TILE_STAGES_MAX;
    t->barriers = t->stages * t->stage_bytes;
    t->folds = t->barriers + tile_fixed_bytes(t->columns, tma);
    t->work_tile = t->folds - WORK_TILE_BYTES - 4 * t->columns;
    t->entries = t->barriers + TILE_BARRIER_BYTES;
    t->bytes = (t->folds + folds + TILE_ALIGNMENT - 1) / TILE_ALIGNMENT * TILE_ALIGNMENT;
    if (t->blocks == 0)
        t->bytes = 0;
}

/* How many splits may be one thread block: those of `blocks` that lie on a multiprocessor, a power of
 * two. */
HOST_AND_DEVICE uint32_t tile_cta_splits_max(const struct tile_shape *t)
{
    return t->blocks >= 4 ? 4 : t->blocks >= 2 ? 2 : 1;
}

/* kv_bytes: of an element. columns: of a thread block, 8, 32 or 64; 16, for which there is no kernel, only on the way to 8. sm_bytes: shared memory of a
 * multiprocessor. tma: K and V come by TMA. */
HOST_AND_DEVICE struct tile_shape tile_shape_of(uint32_t head_dim, uint32_t kv_bytes, uint32_t columns,
                                                uint32_t sm_bytes, bool tma)
{
    struct tile_shape t = {0};
    t.columns = columns;
    t.padded_dim = (head_dim + 15) / 16 * 16;
    t.warps = columns / 8;
    t.threads = 32 * (t.warps + 1);
    t.kv_row = (head_dim * kv_bytes + SWIZZLE_BYTES - 1) / SWIZZLE_BYTES * SWIZZLE_BYTES;
    t.fold_floats = t.padded_dim / 16 * 4 + 4;
    /* few columns wait for memory; many compute, for which more warps are better */
    uint32_t warps = columns <= 16 || head_dim > 128 ? TILE_FEW_WARPS : TILE_MANY_WARPS;
    t.blocks = 32 * warps / t.threads;
    if (t.blocks > TILE_BLOCKS_MAX)
        t.blocks = TILE_BLOCKS_MAX;
    bool many = t.blocks * t.threads > 32 * TILE_FEW_WARPS;
    bool spills = head_dim > 128 && (kv_bytes == 1 || !tma); /* with levels in registers */
    uint32_t registers = many || spills ? 0 : TILE_FOLD_REGISTERS;
    t.register_levels = registers / t.fold_floats;
    if (t.register_levels > PLAN_SPAN) /* levels: run, segment, span */
        t.register_levels = PLAN_SPAN;
    uint32_t folds = (PLAN_SPAN - t.register_levels) * t.fold_floats * t.warps * 32 * 4;
    uint32_t fixed = tile_fixed_bytes(columns, tma) + folds;
    uint32_t least = kv_bytes == 1 ? 32 : 16; /* a matrix load of 8-bit elements takes 32 rows */
    for (; t.blocks > 0; t.blocks--) {
        uint32_t room = sm_bytes / t.blocks - TILE_BLOCK_BYTES;
        t.stage_tokens = least;
        while (t.stage_tokens < TILE_TOKENS && 2 * t.stage_tokens * t.kv_row <= TILE_STAGE_BYTES)
            t.stage_tokens *= 2;
        /* where there is little room, smaller stages; TMA's boxes are the same for all widths */
        while (!tma && t.stage_tokens > least && room < fixed + TILE_STAGES_MIN * t.stage_tokens * t.kv_row)
            t.stage_tokens /= 2;
        t.stage_bytes = t.stage_tokens * t.kv_row;
        t.stages = room > fixed ? (room - fixed) / t.stage_bytes : 0;
        if (t.stages >= TILE_STAGES_MIN)
            break;
    }
    tile_lay_out(&t, folds, tma);
    return t;
}

/* Of attend_wide.cu. columns: of a thread block, 64 or 128; elements of 16 bits. */
HOST_AND_DEVICE struct tile_shape tile_wide_shape_of(uint32_t head_dim, uint32_t columns, uint32_t sm_bytes,
                                                     bool tma)
{
    struct tile_shape t = {0};
    t.columns = columns;
    t.padded_dim = (head_dim + 15) / 16 * 16;
    t.warps = columns / TILE_GROUP_COLUMNS * TILE_GROUP_WARPS;
    t.threads = 32 * (t.warps + TILE_GROUP_WARPS); /* registers are handed over by whole warpgroups */
    t.kv_row = (head_dim * 2 + SWIZZLE_BYTES - 1) / SWIZZLE_BYTES * SWIZZLE_BYTES;
    t.stage_tokens = TILE_TOKENS;
    t.stage_bytes = t.stage_tokens * t.kv_row;
    t.fold_floats = t.kv_row / 2 / 2; /* a thread has two columns, with three others */
    t.fold_levels = columns == TILE_GROUP_COLUMNS ? PLAN_RUN : PLAN_SPAN;
    t.shared_levels = columns == TILE_GROUP_COLUMNS ? PLAN_RUN : PLAN_SEGMENT;
    t.blocks = 2 * TILE_GROUP_COLUMNS / columns;
    uint32_t folds = t.shared_levels * t.fold_floats * t.warps * 32 * 4,
             fixed = tile_fixed_bytes(columns, tma) + folds;
    t.stages = (sm_bytes / t.blocks - TILE_BLOCK_BYTES - fixed) / t.stage_bytes; /* TILE_STAGES_MIN or more:
                                                                                    attend_wide.cu asserts
                                                                                    it */
    tile_lay_out(&t, folds, tma);
    return t;
}

/* Bytes of the workspace of a thread block: a level of its fold. */
HOST_AND_DEVICE uint32_t tile_workspace_bytes(const struct tile_shape *t)
{
    return (t->fold_levels - t->shared_levels) * (t->fold_floats + 4) * t->warps * 32 * 4; /* 4: m and l */
}

/* Floats of a column's state in shared memory: o, m, l, and padding, so that the columns of a matrix
 * fragment lie in different banks. */
HOST_AND_DEVICE uint32_t tile_state_floats(uint32_t head_dim)
{
    return head_dim + 4;
}

/* Rows that TMA brings at once: those of a stage that lie in one block. */
HOST_AND_DEVICE uint32_t tile_box_rows(uint32_t block_size, uint32_t stage_tokens)
{
    return block_size < stage_tokens ? block_size : stage_tokens;
}

/* The most packed columns that a thread block can take, or 0 where not even 8 fit. */
HOST_AND_DEVICE uint32_t tile_columns_max(uint32_t head_dim, uint32_t kv_bytes, uint32_t sm_bytes, bool tma)
{
    uint32_t columns = TILE_COLUMNS_MAX;
    while (columns >= 8 && tile_shape_of(head_dim, kv_bytes, columns, sm_bytes, tma).blocks == 0)
        columns /= 2;
    return columns >= 8 ? columns : 0;
}

#endif
