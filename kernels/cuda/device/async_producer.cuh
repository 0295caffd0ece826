/* SPDX-License-Identifier: Apache-2.0 */
/* async_producer.cuh - the producer by cp.async, for blocks of any size: 16 (or 8) bytes a lane, zeros where nothing is
 * seen. The lanes read the block table's entries of the next tile while they load this one. */
#pragma once

#include "kernels/cuda/device/kv_pipeline.cuh"

template <class TILE> struct kv_producer : kv_pipeline<TILE> {
    using pipeline = kv_pipeline<TILE>;
    using pipeline::address, pipeline::full, pipeline::is_of_values, pipeline::kv_head, pipeline::pass,
        pipeline::position_of, pipeline::producer, pipeline::seen, pipeline::stages, pipeline::table;
    using pipeline::ATOM_ROWS, pipeline::FILLS, pipeline::KV_ROW, pipeline::PRODUCERS, pipeline::ROW_BYTES,
        pipeline::SHAPE, pipeline::STAGES, pipeline::STAGE_TOKENS;
    using pipeline::pipeline;

    static constexpr int VECTOR = ROW_BYTES % 16 == 0 ? 16 : 8;
    /* a producer's warps have as many rows of a fill each, and their tokens of a tile */
    static constexpr uint32_t ROW_VECTORS = ROW_BYTES / VECTOR, ROWS = STAGE_TOKENS / PRODUCERS,
                              VECTORS = ROWS * ROW_VECTORS, TOKENS = TILE_TOKENS / PRODUCERS,
                              PAGES = (TOKENS + 31) / 32,
                              ARRIVALS = 32 * PRODUCERS; /* every lane's, at a stage's full barrier */
    static_assert(PRODUCERS == 1 || FILLS == 1, "the same tokens of every fill");

    /* of the warp's tokens of the tile that is loaded, of K */
    uint64_t *addresses = (uint64_t *)(stages + SHAPE.entries) + producer() * TOKENS;
    uint32_t pages[PAGES]; /* blocks that the lane's tokens of the next tile lie in */

    /* Ask for the table's entries of the tile at `position`, long before they are needed. */
    void fetch_pages(uint32_t position)
    {
        for (uint32_t i = 0; i < PAGES; i++) {
            const uint32_t at = i * 32 + lane(), token = position + producer() * TOKENS + at;
            pages[i] = at < TOKENS && plan_sees(seen, token) ? table[token / BLOCK_SIZE] : 0;
        }
    }

    void begin()
    {
        fetch_pages(position_of(0));
        /* what is behind a row is multiplied by zeros of q, and must not be NaN */
        if constexpr (ROW_BYTES % (16 * bytes_of(KV_DTYPE)) != 0) {
            constexpr uint32_t PADDING = KV_ROW / 16 - ROW_BYTES / 16;
            for (uint32_t at = lane(); at < STAGES * ROWS * PADDING; at += 32) {
                const uint32_t row = at / PADDING % ROWS, byte = (ROW_BYTES / 16 + at % PADDING) * 16;
                store_shared(
                    swizzled<ATOM_ROWS, KV_ROW>(address(at / PADDING / ROWS), producer() * ROWS + row, byte),
                    uint4{0, 0, 0, 0});
            }
            __syncwarp(); /* before copies arrive there */
        }
    }

    /* The pages of the tile at `position` are there. */
    void find_addresses(uint32_t position)
    {
        const uint8_t *pool =
            pass.pool.bytes + pass.layer * pass.pool.layer_bytes + kv_head * pass.pool.head_bytes;
        __syncwarp(); /* those of the tile before are read */
        for (uint32_t i = 0; i < PAGES; i++) {
            const uint32_t at = i * 32 + lane(), token = position + producer() * TOKENS + at;
            if (at < TOKENS)
                addresses[at] = (uint64_t)(pool + pages[i] * pass.pool.block_bytes +
                                           token % BLOCK_SIZE * pass.pool.slot_bytes);
        }
        __syncwarp(); /* these are there */
        fetch_pages(position + TILE_TOKENS);
    }

    /* Load a fill: the rows that somebody sees, zeros for the others. Fills come in order. */
    void load(uint32_t fill)
    {
        const uint32_t position = position_of(fill), stage = address(fill), first = producer() * ROWS;
        const uint64_t plane = is_of_values(fill) ? pass.pool.plane_bytes : 0;
        if (fill % (2 * FILLS) == 0)
            find_addresses(position);
#pragma unroll TILE::COPIES_AT_ONCE
        for (uint32_t round = 0; round < (VECTORS + 31) / 32; round++) {
            const uint32_t at = round * 32 + lane(), row = at / ROW_VECTORS, byte = at % ROW_VECTORS * VECTOR;
            if (VECTORS % 32 != 0 && at >= VECTORS)
                break;
            copy_async<VECTOR>(swizzled<ATOM_ROWS, KV_ROW>(stage, first + row, byte),
                               (const void *)(addresses[position % TILE_TOKENS + row] + plane + byte),
                               plan_sees(seen, position + first + row));
        }
        mbarrier_arrive_behind_copies(full + fill % STAGES * 8);
    }
};
