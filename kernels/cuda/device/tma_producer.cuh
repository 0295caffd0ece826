/* SPDX-License-Identifier: Apache-2.0 */
/* tma_producer.cuh - the producer by TMA (cuda_uses_tma): box by box, the slots of a block, described by a tensor map of
 * the pool; where rows are not whole atoms, an atom a box. Whole blocks come, so the consumers zero values behind a
 * sequence's end (kv_pipeline.cuh).
 *
 * One row a copy was tried: TMA makes a copy in 11 ns, so rows of 256 bytes come at 0.66 of the roof. */
#pragma once

#include "kernels/cuda/device/kv_pipeline.cuh"

template <class TILE> struct kv_producer : kv_pipeline<TILE> {
    using pipeline = kv_pipeline<TILE>;
    using pipeline::address, pipeline::first_tile, pipeline::full, pipeline::is_of_values, pipeline::kv_head,
        pipeline::pass, pipeline::position_of, pipeline::seen, pipeline::stages, pipeline::table,
        pipeline::work_tile;
    using pipeline::ATOM_ROWS, pipeline::KV_ROW, pipeline::ROW_BYTES, pipeline::SHAPE, pipeline::STAGES,
        pipeline::STAGE_TOKENS;
    using pipeline::pipeline;

    static constexpr uint32_t ARRIVALS = 1; /* at a stage's full barrier */
    static constexpr uint32_t BOX_ROWS = tile_box_rows(BLOCK_SIZE, STAGE_TOKENS),
                              BOXES = STAGE_TOKENS / BOX_ROWS, BOX_BYTES = BOX_ROWS * KV_ROW,
                              HALF_ENTRIES = TILE_ENTRIES / 2;
    /* an atom a box where rows are not whole atoms, or those of a box do not lie together */
    static constexpr bool WHOLE = ROW_BYTES % SWIZZLE_BYTES == 0, APART = ATOM_ROWS != BOX_ROWS;
    static constexpr uint32_t ATOMS = WHOLE && !APART ? 1 : KV_ROW / SWIZZLE_BYTES,
                              ATOM_DIM = WHOLE ? 0 : SWIZZLE_BYTES / bytes_of(KV_DTYPE), ATOM_STEP = WHOLE;
    static_assert(HALF_ENTRIES == 32, "an entry a lane");

    uint32_t entries = shared_address(
        stages + SHAPE.entries); /* address of a ring of block table entries: entry e at e % TILE_ENTRIES */
    uint32_t fetched_end;        /* the first of the 32 entries that are being fetched */
    uint32_t given_end;          /* the end of the entries that came with the work tile */
    uint64_t policy = evict_first_policy(); /* what is read once need not stay in the cache */
    const void *map = map_of(pass);

    static const void *map_of(const cuda_attend_pass &pass)
    {
        return pass.maps + (WHOLE && APART) * CUDA_MAP_BYTES;
    }
    static void prefetch_constants(const cuda_attend_pass &pass)
    {
        if (lane() == 0)
            tma_prefetch_map(map_of(pass));
    }

    uint32_t entry_address(uint32_t entry) const
    {
        return entries + entry % TILE_ENTRIES * 4;
    }

    /* 32 entries from `first` on, a multiple of 32, but for those that are there. */
    void fetch_entries(uint32_t first) const
    {
        uint32_t at = first + lane();
        if (at >= given_end && at * BLOCK_SIZE < seen.end)
            copy_async<4>(entry_address(at), table + at, true);
        copy_async_commit();
    }

    /* The first ones come with the work tile, others are asked for long before they are needed: beside the
     * tiles they come late. */
    void begin()
    {
        uint32_t first = first_tile() * TILE_TOKENS / BLOCK_SIZE;
        if (lane() < CUDA_WORK_TILE_ENTRIES)
            store_shared(entry_address(first + lane()), work_tile.entries[lane()]);
        __syncwarp(); /* they are there */
        given_end = first + CUDA_WORK_TILE_ENTRIES;
        fetched_end = first / HALF_ENTRIES * HALF_ENTRIES;
        fetch_entries(fetched_end);
    }

    /* Those from the first to the last one of a fill are there. Fills come in order. */
    void wait_entries(uint32_t first, uint32_t last)
    {
        while (last >= given_end && first >= fetched_end) {
            copy_async_wait();
            __syncwarp(); /* the entries are there, and the 32 before them read */
            fetched_end += HALF_ENTRIES;
            fetch_entries(fetched_end);
        }
    }

    /* Load a fill: the boxes that somebody sees. */
    void load(uint32_t fill)
    {
        uint32_t barrier = full + fill % STAGES * 8, token = position_of(fill);
        uint32_t first = seen.first > token ? (seen.first - token) / BOX_ROWS : 0,
                 below = seen.end > token ? min(BOXES, (seen.end - token + BOX_ROWS - 1) / BOX_ROWS) : 0;
        wait_entries(token / BLOCK_SIZE, (token + STAGE_TOKENS - 1) / BLOCK_SIZE);
        if (!elect_one())
            return;
        mbarrier_expect(barrier, first < below ? (below - first) * BOX_BYTES : 0);
        if (first == 0 && below == BOXES) {
#pragma unroll
            for (uint32_t box = 0; box < BOXES; box++)
                load_box(fill, token, box);
        } else {
#pragma unroll 1
            for (uint32_t box = first; box < below; box++)
                load_box(fill, token, box);
        }
    }

    void load_box(uint32_t fill, uint32_t token, uint32_t box) const
    {
        uint32_t at = token + box * BOX_ROWS, row = box * BOX_ROWS,
                 to = swizzled<ATOM_ROWS, KV_ROW>(address(fill), row, 0), /* whole eights of rows */
            plane = pass.map_first + 2 * load_shared(entry_address(at / BLOCK_SIZE)) + is_of_values(fill);
        for (uint32_t atom = 0; atom < ATOMS; atom++)
            tma_load(to + atom * (ATOM_ROWS * SWIZZLE_BYTES), map, full + fill % STAGES * 8, atom * ATOM_DIM,
                     atom * ATOM_STEP, at % BLOCK_SIZE, kv_head, plane, policy);
    }

    /* Behind its own: bring what the next launch reads first into L2. */
    static void prefetch_next(const cuda_attend_pass &pass)
    {
        const cuda_l2_prefetch &next = pass.prefetch;
        const uint32_t producers = gridDim.x * blockDim.y, producer = blockIdx.x * blockDim.y + threadIdx.y;
        for (uint32_t at = producer * next.step; at < next.places; at += producers * next.step) {
            const cuda_work_tile &work_tile = next.work_tiles[at / KV_HEADS];
            const uint32_t entry = lane() < CUDA_WORK_TILE_ENTRIES ? work_tile.entries[lane()] : 0,
                           first = work_tile.seen.first / TILE_TOKENS * TILE_TOKENS,
                           end = min(work_tile.seen.end, first + next.tokens);
            for (uint32_t token = first; token < end; token += BOX_ROWS) {
                const uint32_t plane =
                    next.map_first +
                    2 * __shfl_sync(ALL_LANES, entry, token / BLOCK_SIZE - first / BLOCK_SIZE);
                if (!elect_one())
                    continue;
                for (uint32_t atom = 0; atom < ATOMS; atom++) {
                    tma_prefetch(map_of(pass), atom * ATOM_DIM, atom * ATOM_STEP, token % BLOCK_SIZE,
                                 at % KV_HEADS, plane);
                    tma_prefetch(map_of(pass), atom * ATOM_DIM, atom * ATOM_STEP, token % BLOCK_SIZE,
                                 at % KV_HEADS, plane + 1);
                }
            }
        }
    }
};
