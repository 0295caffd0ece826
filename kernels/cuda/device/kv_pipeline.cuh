/* SPDX-License-Identifier: Apache-2.0 */
/* kv_pipeline.cuh - how K and V come into shared memory: fills of 16 to 64 keys, or of the values that belong to
 * them, one after the other, through a ring of stages. While one is used the others are on their way.
 *
 *   fill     0 .. n - 1: K of tile 0   n .. 2 n - 1: V of tile 0   then K of tile 1 ...      n = FILLS
 *   stage    fill % STAGES
 *
 * Warps of their own, the producer, load them (producer.cuh); the others, the consumers, wait for a fill
 * (wait_full, wait_values) and say when they have read it (release). A stage has two barriers:
 *
 *   full    the producer's copies have arrived       consumers wait for it
 *   empty   every consumer has read the stage        the producer waits for it before it fills it again
 *
 * Rows lie in atoms of 128 bytes, whose 16-byte vectors are exchanged by the row's number, so that matrix
 * loads meet no bank twice: as TMA's swizzle puts them. */
#pragma once

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/work_tile.cuh"

/* Where a fill is; its number may stand for that: its stage, and the phase of the stage's barriers at which it is there. */
template <uint32_t STAGES> struct pipeline_state {
    uint32_t stage, phase;

    pipeline_state(uint32_t fill) : stage(fill % STAGES), phase(fill / STAGES % 2)
    {
    }
    /* without a division by the number of stages, for those who take fills in order and would wait for it */
    void advance(uint32_t fills)
    {
        stage += fills;
        if (stage >= STAGES) {
            stage -= STAGES;
            phase ^= 1;
        }
    }
};

/* TILE::SHAPE is the tile's shape. TILE::ATOM_ROWS: rows of a fill whose atoms lie together, those of a
 * box or all. TILE::consumers(work_tile): warps that compute for it. TILE::PRODUCERS: warps that load.
 * TILE::COPIES_AT_ONCE: of cp.async, unrolled. */
template <class TILE> struct kv_pipeline {
    static constexpr tile_shape SHAPE = TILE::SHAPE;
    static constexpr uint32_t WARPS = SHAPE.warps, STAGES = SHAPE.stages, STAGE_TOKENS = SHAPE.stage_tokens,
                              KV_ROW = SHAPE.kv_row, ATOM_ROWS = TILE::ATOM_ROWS, PRODUCERS = TILE::PRODUCERS,
                              THREADS = (WARPS + PRODUCERS) * 32,
                              FILLS = TILE_TOKENS / STAGE_TOKENS, /* of K, and of V, of a tile */
        ROW_BYTES = HEAD_DIM * bytes_of(KV_DTYPE);

    using state = pipeline_state<STAGES>;

    const cuda_attend_pass &pass;
    const cuda_work_tile &work_tile;
    uint32_t kv_head;
    const uint32_t *table; /* the work tile's row of the block tables */
    plan_range seen;       /* positions that any of its columns sees */
    uint8_t *stages;
    uint32_t fills;                 /* of the work tile */
    uint32_t consumers;             /* warps that have columns; producer warps begin at warp WARPS */
    uint32_t full, empty;           /* barriers of the stages */
    uint32_t whole_from, whole_end; /* fills between are seen entirely */

    /* The work tile is in shared memory. The producer initialises the barriers after this. */
    kv_pipeline(const cuda_attend_pass &pass_, const cuda_work_tile &work_tile_, uint32_t kv_head_,
                uint8_t *shared)
        : pass(pass_), work_tile(work_tile_), kv_head(kv_head_),
          table(pass.pool.tables + work_tile.table * pass.pool.stride), seen(work_tile.seen), stages(shared),
          fills(2 * FILLS * tiles()), consumers(TILE::consumers(work_tile)),
          full(shared_address(shared + SHAPE.barriers)), empty(full + 8 * STAGES),
          whole_from(seen.first % TILE_TOKENS ? 2 * FILLS : 0),
          whole_end(seen.end % TILE_TOKENS ? fills - min(fills, 2 * FILLS) : fills)
    {
    }

    uint32_t first_tile() const
    {
        return seen.first / TILE_TOKENS;
    }
    uint32_t tiles() const
    {
        return seen.end > seen.first ? (seen.end + TILE_TOKENS - 1) / TILE_TOKENS - first_tile() : 0;
    }
    static bool is_of_values(uint32_t fill)
    {
        return fill / FILLS % 2;
    }

    uint32_t address(const state &at) const
    {
        return shared_address(stages) + at.stage * SHAPE.stage_bytes;
    }

    /* the first token of a fill */
    uint32_t position_of(uint32_t fill) const
    {
        return (first_tile() + fill / (2 * FILLS)) * TILE_TOKENS + fill % FILLS * STAGE_TOKENS;
    }

    /* All threads that compute are here, of this split of the thread block. */
    void sync() const
    {
        if constexpr (WARPS == 1)
            __syncwarp();
        else
            named_barrier_sync(BARRIER_OF_SPLIT + threadIdx.y, consumers * 32);
    }

    /* Which of the producer's warps this one is, if it is one. */
    static uint32_t producer()
    {
        return threadIdx.x / 32 - WARPS;
    }
    static bool is_producer()
    {
        return producer() < PRODUCERS;
    }

    /* Wait until the first producer warp has loaded the work tile and initialised the barriers. By consumers,
     * and by the other producer warps. */
    static void wait_work_tile()
    {
        named_barrier_sync(BARRIER_OF_SPLIT + threadIdx.y, THREADS);
    }

    /* ---- by the producer */

    /* Wait until the consumers have released what was in the stage. Its first fill need not wait. */
    void wait_empty(uint32_t fill) const
    {
        if (fill >= STAGES)
            mbarrier_wait(empty + fill % STAGES * 8, (fill / STAGES - 1) % 2);
    }

    /* ---- by consumers */

    bool has_arrived(const state &at) const
    {
        return mbarrier_test(full + at.stage * 8, at.phase);
    }
    void wait_full(const state &at) const
    {
        mbarrier_wait(full + at.stage * 8, at.phase);
    }
    void release(const state &at) const
    {
        __syncwarp(); /* all lanes have read it */
        if (lane() == 0)
            mbarrier_arrive(empty + at.stage * 8);
    }
    /* What is there is seen by wgmma. */
    static void fence_for_wgmma()
    {
        if (!TMA)
            fence_async_proxy();
    }

    /* Values that nobody sees are multiplied by 0, and must not be NaN. */
    void clear_unseen(uint32_t at_stage, uint32_t position) const
    {
        uint8_t *stage = stages + at_stage * SHAPE.stage_bytes;
        sync(); /* the stage's last fill is read; its barriers order that only by way of TMA */
        for (uint32_t at = threadIdx.x; at < SHAPE.stage_bytes / 16; at += consumers * 32) {
            uint32_t row = at / (ATOM_ROWS * KV_ROW / 16) * ATOM_ROWS + at / (SWIZZLE_BYTES / 16) % ATOM_ROWS;
            if (!plan_sees(seen, position + row))
                *(uint4 *)(stage + at * 16) = {0, 0, 0, 0};
        }
        fence_async_proxy(); /* before wgmma reads the zeros, and TMA writes there again */
        sync();              /* the zeros are there */
    }

    /* Wait for V of `fill`, in which values that nobody sees become 0. */
    void wait_values(uint32_t fill) const
    {
        wait_full(fill);
        if (TMA && __builtin_expect(fill < whole_from || fill >= whole_end, false))
            clear_unseen(fill % STAGES, position_of(fill));
    }
    /* Likewise in V of the tile at `position`, which is there. */
    void clear_unseen_values(const state &at, uint32_t position) const
    {
        if (TMA && __builtin_expect(position < seen.first || position + STAGE_TOKENS > seen.end, false))
            clear_unseen(at.stage, position);
    }
};
