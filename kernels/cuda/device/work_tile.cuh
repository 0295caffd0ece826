/* SPDX-License-Identifier: Apache-2.0 */
/* work_tile.cuh - what a thread block takes: a work tile of one KV head, and its columns. A column is one
 * query head of one query token, packed with those of its group (PackGQA). It is N of the products in
 * attend_mma.cu, and M in attend_wide.cu. */
#pragma once

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/states.cuh"
#include "kernels/cuda/device/tile.h"

/* ---- the workspace: global memory for a level of the fold that has no room in shared memory. It has a slot
 * for each multiprocessor, since one thread block of such a kernel runs on each. A thread block takes a free
 * slot and frees it. */

static constexpr uint32_t NO_SLOT = UINT32_MAX;

/* By one thread: take a free slot. Try that of this multiprocessor first: it is free, unless a thread block
 * was moved here (the PTX manual says that %smid may change). */
static inline uint32_t take_slot(const cuda_attend_pass &pass)
{
    uint32_t multiprocessor = 0;
#ifdef __CUDA_ARCH__
    asm volatile("mov.u32 %0, %smid;" : "=r"(multiprocessor));
#endif
    uint32_t slot = multiprocessor % pass.slots;
    while (atomicExch(&pass.slots_taken[slot], 1) != 0)
        slot = slot + 1 < pass.slots ? slot + 1 : 0;
    __threadfence();
    return slot;
}

/* By one thread, after all threads have read the slot and fenced what they wrote. */
static inline void free_slot(const cuda_attend_pass &pass, uint32_t slot)
{
    atomicExch(&pass.slots_taken[slot], 0);
}

/* What a work tile's columns need of global memory, in shared memory since the start: a load beside the tiles
 * takes 0.3 us (H200), and when a work tile ends nothing hides that. */
struct work_tile_memory {
    cuda_work_tile work_tile;
    float k_scale, v_scale;             /* of the KV head */
    uint32_t slot;                      /* of the workspace, or NO_SLOT; of kernels that use it */
    uint32_t queries[CUDA_COLUMNS_MAX]; /* of its columns; there is room for as many as the kernel takes */
};
static_assert(sizeof(work_tile_memory) <= WORK_TILE_BYTES + 4 * CUDA_COLUMNS_MAX,
              "the room that tile.h leaves");

/* Which work tile of which KV head is taken here. A split group is 2^split_bits consecutive work tiles: the
 * same columns, consecutive ranges of chunks. 2^cta_bits of them share a thread block (threadIdx.y); the
 * thread blocks of a group are a cluster. */
struct tile_coord {
    uint32_t work_tile, kv_head;

    tile_coord(const cuda_attend_pass &pass)
    {
        const uint32_t at = blockIdx.x >> (pass.split_bits - pass.cta_bits);
        work_tile = (at / KV_HEADS << pass.split_bits) + split(pass);
        kv_head = at % KV_HEADS;
    }
    static uint32_t split(const cuda_attend_pass &pass)
    {
        return ((blockIdx.x << pass.cta_bits) + cta_split()) & (1u << pass.split_bits) - 1;
    }
    /* Which of the thread block's splits; said so that the compiler sees that it is the same for a whole
     * warp. */
    static uint32_t cta_split()
    {
        return __shfl_sync(ALL_LANES, threadIdx.y, 0);
    }

    /* By a warp: bring the work tile, which is there after a barrier. */
    void bring(const cuda_attend_pass &pass, work_tile_memory &to) const
    {
        constexpr uint32_t WORDS = sizeof(cuda_work_tile) / sizeof(uint32_t);
        static_assert(WORDS + 2 <= 32, "a lane each");
        if (lane() < WORDS)
            ((uint32_t *)&to.work_tile)[lane()] = ((const uint32_t *)&pass.work_tiles[work_tile])[lane()];
        else if (lane() < WORDS + 2)
            (lane() == WORDS ? to.k_scale : to.v_scale) =
                (lane() == WORDS ? pass.k_scale : pass.v_scale)[kv_head];
    }
};

struct work_tile_columns {
    const cuda_attend_pass &pass;
    work_tile_memory &memory;
    const cuda_work_tile &work_tile;
    uint32_t kv_head;

    work_tile_columns(const cuda_attend_pass &pass_, work_tile_memory &memory_, uint32_t kv_head_)
        : pass(pass_), memory(memory_), work_tile(memory_.work_tile), kv_head(kv_head_)
    {
    }

    const cuda_work_tile_query &query_at(uint32_t column) const
    {
        return pass.work_tile_queries[work_tile.first_query + (work_tile.column + column) / GROUP];
    }
    uint32_t head_of(uint32_t column) const
    {
        return kv_head * GROUP + (work_tile.column + column) % GROUP;
    }
    /* By a warp: keep the queries of `n` columns from `first` on, up to 32. */
    void keep_queries(uint32_t first, uint32_t n) const
    {
        uint32_t column = first + threadIdx.x % 32;
        if (column < min(first + n, work_tile.columns))
            memory.queries[column] = query_at(column).query;
        __syncwarp();
    }
    /* its place in [queries][query_heads], of q, o and lse; its query is kept */
    size_t query_of(uint32_t column) const
    {
        return (size_t)memory.queries[column] * (KV_HEADS * GROUP) + head_of(column);
    }
    /* its q in 16 bits, NULL if it is not there */
    const uint8_t *query(uint32_t column) const
    {
        return column < work_tile.columns ? pass.q + query_of(column) * (HEAD_DIM * 2) : nullptr;
    }

    /* of a column's state in shared memory: o, then m and l */
    static constexpr uint32_t STATE_FLOATS = tile_state_floats(HEAD_DIM);

    /* combined within this launch (cluster_combine.cuh); other splits leave partials, for merge.cu */
    bool is_in_split_group() const
    {
        return TENSOR_CORES && pass.split_bits > 0;
    }
    bool is_final() const
    {
        return !is_in_split_group() && work_tile.partial == PLAN_NO_PARTIAL;
    }
};
