/* ring.cuh - how K and V come into shared memory: half tiles (64 keys, or the 64 values that belong to them), one
 * after the other, through a ring of SLOTS slots. While one is used the others are on their way.
 *
 *   half       0: K of tile 0   1: V of tile 0   2: K of tile 1 ...   in slot half % SLOTS
 *
 * Two ways, chosen by ENGINE:
 *
 *   copy engine (cuda_uses_engine)  A warp in turn sends for a half, a box a lane: 128 bytes of the slots of a block,
 *                                   described by a tensor map of the pool. Boxes arrive at a barrier of the slot. Rows
 *                                   lie in segments of 128 bytes whose 16-byte pieces are exchanged by the row's number,
 *                                   so that matrix loads meet no bank twice. Whole blocks come, so values behind a
 *                                   sequence's end are zeroed when they have arrived.
 *   cp.async                        All threads send for 16 (or 8) bytes at a time, zeros where nothing is seen; a group
 *                                   a half. Rows are padded by 16 bytes.
 *
 * With the engine no thread computes addresses or waits for block ids: W1 0.83 to 0.85 of the roof on an H200, W1b 0.52
 * to 0.64, W6 0.70 to 0.80. One row a copy was tried (no tensor map, rows padded): the engine makes a copy in 11 ns, so
 * rows of 256 bytes come at 0.66 of the roof. */
#pragma once

#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/step.h"
#include "kernels/cuda/device/tile.h"

/* Which tiles of which head an item reads. */
struct tile_range {
    const cuda_attend_pass &pass;
    uint32_t kv_head;
    const uint32_t *table;
    uint32_t first_key, end_key; /* positions that any of its columns sees */

    tile_range(const cuda_attend_pass &pass_, const cuda_item &item, uint32_t kv_head_)
        : pass(pass_), kv_head(kv_head_), table(pass_.pool.tables + item.table * pass_.pool.stride),
          first_key(item.first_key), end_key(item.end_key)
    {
    }
    uint32_t first_tile() const { return first_key / TILE_TOKENS; }
    uint32_t tiles() const
    {
        return end_key > first_key ? (end_key + TILE_TOKENS - 1) / TILE_TOKENS - first_tile() : 0;
    }
    /* the first token of a half's tile */
    uint32_t position_of(uint32_t half) const { return (first_tile() + half / 2) * TILE_TOKENS; }
    bool is_seen(uint32_t token) const { return token >= first_key && token < end_key; }
};

/* KV_ROW: bytes of a row in a slot. */
template <int SLOTS, uint32_t KV_ROW> struct tile_ring {
    static constexpr uint32_t HALF_BYTES = TILE_TOKENS * KV_ROW, ROW_BYTES = HEAD_DIM * bytes_of(KV_DTYPE);

    tile_range range;
    uint8_t *slots;

#if ENGINE
    static constexpr uint32_t BOX_ROWS = BLOCK_SIZE < TILE_TOKENS ? BLOCK_SIZE : TILE_TOKENS;
    static constexpr uint32_t SEGMENTS = KV_ROW / TILE_SEGMENT, BOXES = TILE_TOKENS / BOX_ROWS * SEGMENTS;
    static_assert(BOXES <= 32, "a box a lane");

    uint32_t barriers; /* of the slots */
    uint32_t block;    /* of the box that this lane sends for next */
    uint64_t policy;   /* what is read once need not stay in the cache */

    tile_ring(const tile_range &range_, uint8_t *slots_, void *barriers_)
        : range(range_), slots(slots_), barriers(shared_address(barriers_)), block(0), policy(evict_first_policy())
    {
    }

    static uint32_t warp() { return threadIdx.x / 32; }
    static uint32_t lane() { return threadIdx.x % 32; }

    /* The first token of this lane's box of a half. */
    uint32_t token_of(uint32_t half) const { return range.position_of(half) + lane() / SEGMENTS * BOX_ROWS; }

    bool box_is_seen(uint32_t token) const
    {
        return lane() < BOXES && token + BOX_ROWS > range.first_key && token < range.end_key;
    }

    void look_up(uint32_t half)
    {
        uint32_t token = token_of(half);
        if (box_is_seen(token))
            block = range.table[token / BLOCK_SIZE];
    }

    /* Send for a half: by one warp, which takes every fourth of them and has looked up its blocks long before. */
    void send(uint32_t half)
    {
        uint32_t barrier = barriers + half % SLOTS * 8, token = token_of(half);
        uint32_t to = address(half) + lane() % SEGMENTS * SEGMENT_BYTES + lane() / SEGMENTS * BOX_ROWS * TILE_SEGMENT;
        bool seen = box_is_seen(token);
        uint32_t boxes = __popc(__ballot_sync(ALL_LANES, seen));
        if (lane() == 0)
            barrier_expect(barrier, boxes * BOX_ROWS * TILE_SEGMENT);
        __syncwarp(); /* the barrier expects what is sent for now */
        if (seen)
            copy_box(to, range.pass.map, barrier, lane() % SEGMENTS * (TILE_SEGMENT / bytes_of(KV_DTYPE)), token % BLOCK_SIZE,
                     range.kv_head, range.pass.map_first + 2 * block + half % 2, policy);
        look_up(half + TILE_WARPS);
    }

    /* Values that nobody sees are multiplied by 0, and must not be NaN. */
    void clear_unseen(uint32_t half) const
    {
        uint32_t position = range.position_of(half);
        if (range.is_seen(position) && range.is_seen(position + TILE_TOKENS - 1))
            return;
        uint8_t *slot = slots + half % SLOTS * HALF_BYTES;
        for (uint32_t at = threadIdx.x; at < HALF_BYTES / 16; at += CUDA_THREADS) {
            if (!range.is_seen(position + at / (TILE_SEGMENT / 16) % TILE_TOKENS))
                *(uint4 *)(slot + at * 16) = {0, 0, 0, 0};
        }
        fence_engine(); /* before the engine writes there again */
        __syncthreads(); /* the zeros are there */
    }

    /* Begin with the first halves. */
    void begin()
    {
        look_up(warp());
        if (threadIdx.x == 0) {
            for (int slot = 0; slot < SLOTS; slot++)
                barrier_init(barriers + slot * 8);
            barrier_fence();
        }
        __syncthreads(); /* the barriers are there */
        for (uint32_t half = warp(); half < SLOTS - 1 && half < 2 * range.tiles(); half += TILE_WARPS)
            send(half);
    }

    /* `half` has arrived for all threads, and all are done with the one before it, whose slot is filled anew. */
    void advance(uint32_t half)
    {
        uint32_t next = half + SLOTS - 1;
        barrier_wait(barriers + half % SLOTS * 8, half / SLOTS % 2);
        __syncthreads(); /* the half before this one is read */
        if (next < 2 * range.tiles() && next % TILE_WARPS == warp())
            send(next);
        if (half % 2 == 1)
            clear_unseen(half);
    }
#else
    static constexpr int VECTOR = ROW_BYTES % 16 == 0 ? 16 : 8;
    static constexpr uint32_t ROW_VECTORS = ROW_BYTES / VECTOR, VECTORS = TILE_TOKENS * ROW_VECTORS;

    const uint8_t *pool; /* of this layer and head */

    tile_ring(const tile_range &range_, uint8_t *slots_, void *)
        : range(range_), slots(slots_), pool(range_.pass.pool.bytes + range_.pass.layer * range_.pass.pool.layer_bytes +
                                             range_.kv_head * range_.pass.pool.head_bytes)
    {
    }

    void send(uint32_t half)
    {
        const uint8_t *from = pool + half % 2 * range.pass.pool.half_bytes;
#pragma unroll
        for (uint32_t round = 0; round < (VECTORS + CUDA_THREADS - 1) / CUDA_THREADS; round++) {
            uint32_t at = round * CUDA_THREADS + threadIdx.x;
            if (VECTORS % CUDA_THREADS != 0 && at >= VECTORS)
                break;
            uint32_t row = at / ROW_VECTORS, vector = at % ROW_VECTORS, token = range.position_of(half) + row;
            bool valid = range.is_seen(token);
            uint64_t offset = vector * VECTOR;
            if (valid)
                offset += range.table[token / BLOCK_SIZE] * range.pass.pool.block_bytes +
                          token % BLOCK_SIZE * range.pass.pool.slot_bytes;
            copy_async<VECTOR>(address(half) + row * KV_ROW + vector * VECTOR, from + offset, valid);
        }
    }

    /* Begin with the first halves; zeros into the padding of rows, which is multiplied by zeros of q and must not
     * be NaN. */
    void begin()
    {
        if constexpr (ROW_BYTES % (16 * bytes_of(KV_DTYPE)) != 0) {
            for (uint32_t row = threadIdx.x; row < SLOTS * TILE_TOKENS; row += CUDA_THREADS) {
                for (uint32_t at = ROW_BYTES; at < KV_ROW; at += 8)
                    *(uint64_t *)(slots + row * KV_ROW + at) = 0;
            }
        }
        for (uint32_t half = 0; half < SLOTS - 1; half++) {
            if (half < 2 * range.tiles())
                send(half);
            copy_async_commit();
        }
    }

    void advance(uint32_t half)
    {
        copy_async_wait<SLOTS - 2>();
        __syncthreads(); /* the half is there; the one before it is read */
        if (half + SLOTS - 1 < 2 * range.tiles())
            send(half + SLOTS - 1);
        copy_async_commit(); /* an empty group keeps the count */
    }
#endif

    uint32_t address(uint32_t half) const { return shared_address(slots) + half % SLOTS * HALF_BYTES; }
};
