/* ring.cuh - how K and V come into shared memory: fills of 16 to 64 keys, or of the values that belong to
 * them, one after the other, through a ring of stages. While one is used the others are on their way.
 *
 *   fill     0 .. n - 1: K of tile 0   n .. 2 n - 1: V of tile 0   then K of tile 1 ...   in stage fill % stages
 *
 * A warp of its own, the producer, sends for them; the others wait for a fill (acquire_keys, acquire_values)
 * and say when they have read it (release): two barriers a stage. Rows lie in atoms of 128 bytes, whose
 * 16-byte pieces are exchanged by the row's number, so that matrix loads meet no bank twice. There are two
 * producers:
 *
 *   TMA (cuda_uses_tma)   box by box: the slots of a block, described by a tensor map of the pool; where rows are
 *                         not whole atoms, an atom a box. Whole blocks come, so the consumers zero values
 *                         behind a sequence's end.
 *   cp.async              for blocks of any size: 16 (or 8) bytes a lane, zeros where nothing is seen.
 *
 * One row a copy by TMA was tried: it makes a copy in 11 ns, so rows of 256 bytes come at 0.66 of the roof. */
#pragma once

#include "kernels/cuda/device/columns.cuh"
#include "kernels/cuda/device/fragments.cuh"

/* Which tiles of which head an item reads. */
struct tile_range {
    const cuda_attend_pass &pass;
    uint32_t kv_head;
    const uint32_t *table, *first_entries; /* those that come with the item */
    uint32_t first_key, end_key;           /* positions that any of its columns sees */

    tile_range(const cuda_attend_pass &pass_, const cuda_item &item, uint32_t kv_head_)
        : pass(pass_), kv_head(kv_head_), table(pass_.pool.tables + item.table * pass_.pool.stride),
          first_entries(item.entries), first_key(item.first_key), end_key(item.end_key)
    {
    }
    uint32_t first_tile() const
    {
        return first_key / TILE_TOKENS;
    }
    uint32_t tiles() const
    {
        return end_key > first_key ? (end_key + TILE_TOKENS - 1) / TILE_TOKENS - first_tile() : 0;
    }
    bool is_seen(uint32_t token) const
    {
        return token >= first_key && token < end_key;
    }
};

/* A fill's stage, and the phase of the stage's barriers at which it is there: for those who take fills in
 * order and would wait for a division by the number of stages. */
template <uint32_t STAGES> struct pipeline_state {
    uint32_t stage, phase;

    pipeline_state(uint32_t fill) : stage(fill), phase(0)
    {
    }
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
 * box or all. TILE::consumers(item): warps that compute for it. TILE::PRODUCERS: warps that send.
 * TILE::COPIES_AT_ONCE: of cp.async, unrolled. */
template <class TILE> struct tile_ring {
    static constexpr tile_shape SHAPE = TILE::SHAPE;
    static constexpr uint32_t WARPS = SHAPE.warps, STAGES = SHAPE.stages, STAGE_TOKENS = SHAPE.stage_tokens,
                              KV_ROW = SHAPE.kv_row, ATOM_ROWS = TILE::ATOM_ROWS, PRODUCERS = TILE::PRODUCERS,
                              FILLS = TILE_TOKENS / STAGE_TOKENS, /* of K, and of V, of a tile */
        ROW_BYTES = HEAD_DIM * bytes_of(KV_DTYPE);

    using state = pipeline_state<STAGES>;

    tile_range range;
    uint8_t *stages;
    uint32_t fills;     /* of the item */
    uint32_t consumers; /* warps that compute; the producer's are behind all that might */

    static uint32_t lane()
    {
        return threadIdx.x % 32;
    }
    static bool is_of_values(uint32_t fill)
    {
        return fill / FILLS % 2;
    }

    uint32_t address(uint32_t fill) const
    {
        return shared_address(stages) + fill % STAGES * SHAPE.stage_bytes;
    }

    /* the first token of a fill */
    uint32_t position_of(uint32_t fill) const
    {
        return (range.first_tile() + fill / (2 * FILLS)) * TILE_TOKENS + fill % FILLS * STAGE_TOKENS;
    }

    /* All threads that compute are here, of this split of the thread block. */
    void sync() const
    {
        if constexpr (WARPS == 1)
            __syncwarp();
        else
            await_threads(1 + threadIdx.y, consumers * 32);
    }

    uint32_t full, empty; /* barriers of the stages */

    /* Which of the producer's warps this one is, if it is one. */
    static uint32_t producer()
    {
        return threadIdx.x / 32 - WARPS;
    }
    static bool is_producer()
    {
        return producer() < PRODUCERS;
    }

#if TMA
    static constexpr uint32_t BOX_ROWS = tile_box_rows(BLOCK_SIZE, STAGE_TOKENS),
                              BOXES = STAGE_TOKENS / BOX_ROWS, BOX_BYTES = BOX_ROWS * KV_ROW,
                              HALF_ENTRIES = TILE_ENTRIES / 2;
    /* an atom a box where rows are not whole atoms, or those of a box do not lie together */
    static constexpr bool WHOLE = ROW_BYTES % SWIZZLE_BYTES == 0, APART = ATOM_ROWS != BOX_ROWS;
    static constexpr uint32_t ATOMS = WHOLE && !APART ? 1 : KV_ROW / SWIZZLE_BYTES,
                              ATOM_DIM = WHOLE ? 0 : SWIZZLE_BYTES / bytes_of(KV_DTYPE), ATOM_STEP = WHOLE,
                              ARRIVALS = 1; /* at a stage that fills */
    static_assert(HALF_ENTRIES == 32, "an entry a lane");

    uint32_t entries;     /* of the block table, entry e at e % TILE_ENTRIES: those of the last fill */
    uint32_t entries_end; /* and 32 more, on their way; */
    uint32_t given_end;   /* those before came with the item */
    uint64_t policy;      /* what is read once need not stay in the cache */
    const void *map;
    uint32_t whole_from, whole_end; /* fills between are seen entirely */

    /* of an item that is there, as the ring's barriers are */
    tile_ring(const cuda_attend_pass &pass, const cuda_item &item, uint32_t kv_head, uint8_t *shared)
        : range(pass, item, kv_head), stages(shared), fills(2 * FILLS * range.tiles()),
          consumers(TILE::consumers(item)), full(shared_address(shared + SHAPE.barriers)),
          empty(full + 8 * STAGES), entries(shared_address(shared + SHAPE.entries)),
          policy(evict_first_policy()), map(map_of(range.pass)),
          whole_from(range.first_key % TILE_TOKENS ? 2 * FILLS : 0),
          whole_end(range.end_key % TILE_TOKENS ? fills - min(fills, 2 * FILLS) : fills)
    {
    }

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
        if (at >= given_end && at * BLOCK_SIZE < range.end_key)
            copy_async<4>(entry_address(at), range.table + at, true);
        copy_async_commit();
    }

    /* The first ones come with the item, others are asked for long before they are needed: beside the
     * tiles they come late. */
    void begin()
    {
        uint32_t first = range.first_tile() * TILE_TOKENS / BLOCK_SIZE;
        if (lane() < CUDA_ITEM_ENTRIES)
            store_shared(entry_address(first + lane()), range.first_entries[lane()]);
        __syncwarp(); /* they are there */
        given_end = first + CUDA_ITEM_ENTRIES;
        entries_end = first / HALF_ENTRIES * HALF_ENTRIES;
        fetch_entries(entries_end);
    }

    /* Those from the first to the last one of a fill are there. Fills come in order. */
    void find_entries(uint32_t first, uint32_t last)
    {
        while (last >= given_end && first >= entries_end) {
            copy_async_wait<0>();
            __syncwarp(); /* the entries are there, and the 32 before them read */
            entries_end += HALF_ENTRIES;
            fetch_entries(entries_end);
        }
    }

    /* Send for a fill: the boxes that somebody sees. */
    void send(uint32_t fill)
    {
        uint32_t barrier = full + fill % STAGES * 8, token = position_of(fill);
        uint32_t first = range.first_key > token ? (range.first_key - token) / BOX_ROWS : 0,
                 below = range.end_key > token ? min(BOXES, (range.end_key - token + BOX_ROWS - 1) / BOX_ROWS)
                                               : 0;
        find_entries(token / BLOCK_SIZE, (token + STAGE_TOKENS - 1) / BLOCK_SIZE);
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
                 to =
                     address(fill) + row / ATOM_ROWS * (ATOM_ROWS * KV_ROW) + row % ATOM_ROWS * SWIZZLE_BYTES,
                 plane = range.pass.map_first + 2 * load_shared(entry_address(at / BLOCK_SIZE)) +
                         is_of_values(fill);
#pragma unroll
        for (uint32_t atom = 0; atom < ATOMS; atom++)
            tma_load(to + atom * (ATOM_ROWS * SWIZZLE_BYTES), map, full + fill % STAGES * 8, atom * ATOM_DIM,
                     atom * ATOM_STEP, at % BLOCK_SIZE, range.kv_head, plane, policy);
    }

    /* Values that nobody sees are multiplied by 0, and must not be NaN. */
    void clear_unseen(uint32_t at_stage, uint32_t position) const
    {
        uint8_t *stage = stages + at_stage * SHAPE.stage_bytes;
        sync(); /* all have read what was there; barriers of the stage say so too, but by way of TMA */
        for (uint32_t at = threadIdx.x; at < SHAPE.stage_bytes / 16; at += consumers * 32) {
            uint32_t row = at / (ATOM_ROWS * KV_ROW / 16) * ATOM_ROWS + at / (SWIZZLE_BYTES / 16) % ATOM_ROWS;
            if (!range.is_seen(position + row))
                *(uint4 *)(stage + at * 16) = {0, 0, 0, 0};
        }
        fence_async_proxy(); /* before TMA writes there again */
        sync();              /* the zeros are there */
    }

    /* In V of `fill`, which is there, values that nobody sees become 0. */
    void clear_unseen_values(uint32_t fill) const
    {
        if (__builtin_expect(fill < whole_from || fill >= whole_end, false))
            clear_unseen(fill % STAGES, position_of(fill));
    }
    void clear_unseen_values(const state &at, uint32_t position) const
    {
        if (__builtin_expect(position < range.first_key || position + STAGE_TOKENS > range.end_key, false))
            clear_unseen(at.stage, position);
    }

    /* By the producer, behind its own: bring what the next launch reads first into L2. */
    static void prefetch_next(const cuda_attend_pass &pass)
    {
        const cuda_l2_prefetch &next = pass.prefetch;
        const uint32_t producers = gridDim.x * blockDim.y, producer = blockIdx.x * blockDim.y + threadIdx.y;
        for (uint32_t at = producer * next.step; at < next.places; at += producers * next.step) {
            const cuda_item &item = next.items[at / KV_HEADS];
            const uint32_t entry = lane() < CUDA_ITEM_ENTRIES ? item.entries[lane()] : 0,
                           first = item.first_key / TILE_TOKENS * TILE_TOKENS,
                           end = min(item.end_key, first + next.tokens);
            for (uint32_t token = first; token < end; token += BOX_ROWS) {
                const uint32_t plane =
                    next.map_first +
                    2 * __shfl_sync(ALL_LANES, entry, token / BLOCK_SIZE - first / BLOCK_SIZE);
                if (!elect_one())
                    continue;
#pragma unroll
                for (uint32_t atom = 0; atom < ATOMS; atom++) {
                    tma_prefetch(map_of(pass), atom * ATOM_DIM, atom * ATOM_STEP, token % BLOCK_SIZE,
                                 at % KV_HEADS, plane);
                    tma_prefetch(map_of(pass), atom * ATOM_DIM, atom * ATOM_STEP, token % BLOCK_SIZE,
                                 at % KV_HEADS, plane + 1);
                }
            }
        }
    }

#else
    static constexpr int VECTOR = ROW_BYTES % 16 == 0 ? 16 : 8;
    /* a producer's warps have as many rows of a fill each, and their tokens of a tile */
    static constexpr uint32_t ROW_VECTORS = ROW_BYTES / VECTOR, ROWS = STAGE_TOKENS / PRODUCERS,
                              VECTORS = ROWS * ROW_VECTORS, TOKENS = TILE_TOKENS / PRODUCERS,
                              PAGES = (TOKENS + 31) / 32,
                              ARRIVALS = 32 * PRODUCERS; /* every lane's, at a stage that fills */
    static_assert(PRODUCERS == 1 || FILLS == 1, "the same tokens of every fill");

    uint64_t *addresses;   /* of the warp's tokens of the tile that is sent for, of K */
    uint32_t pages[PAGES]; /* blocks that the lane's tokens of the next tile lie in */

    /* of an item that is there, as the ring's barriers are */
    tile_ring(const cuda_attend_pass &pass, const cuda_item &item, uint32_t kv_head, uint8_t *shared)
        : range(pass, item, kv_head), stages(shared), fills(2 * FILLS * range.tiles()),
          consumers(TILE::consumers(item)), full(shared_address(shared + SHAPE.barriers)),
          empty(full + 8 * STAGES), addresses((uint64_t *)(shared + SHAPE.entries) + producer() * TOKENS)
    {
    }

    static void prefetch_constants(const cuda_attend_pass &)
    {
    }

    /* Ask for the table's entries of the tile at `position`, long before they are needed. */
    void fetch_pages(uint32_t position)
    {
#pragma unroll
        for (uint32_t i = 0; i < PAGES; i++) {
            const uint32_t at = i * 32 + lane(), token = position + producer() * TOKENS + at;
            pages[i] = at < TOKENS && range.is_seen(token) ? range.table[token / BLOCK_SIZE] : 0;
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
        const uint8_t *pool = range.pass.pool.bytes + range.pass.layer * range.pass.pool.layer_bytes +
                              range.kv_head * range.pass.pool.head_bytes;
        __syncwarp(); /* those of the tile before are read */
#pragma unroll
        for (uint32_t i = 0; i < PAGES; i++) {
            const uint32_t at = i * 32 + lane(), token = position + producer() * TOKENS + at;
            if (at < TOKENS)
                addresses[at] = (uint64_t)(pool + pages[i] * range.pass.pool.block_bytes +
                                           token % BLOCK_SIZE * range.pass.pool.slot_bytes);
        }
        __syncwarp(); /* these are there */
        fetch_pages(position + TILE_TOKENS);
    }

    /* Send for a fill: the rows that somebody sees, zeros for the others. Fills come in order. */
    void send(uint32_t fill)
    {
        const uint32_t position = position_of(fill), stage = address(fill), first = producer() * ROWS;
        const uint64_t plane = is_of_values(fill) ? range.pass.pool.half_bytes : 0;
        if (fill % (2 * FILLS) == 0)
            find_addresses(position);
#pragma unroll TILE::COPIES_AT_ONCE
        for (uint32_t round = 0; round < (VECTORS + 31) / 32; round++) {
            const uint32_t at = round * 32 + lane(), row = at / ROW_VECTORS, byte = at % ROW_VECTORS * VECTOR;
            if (VECTORS % 32 != 0 && at >= VECTORS)
                break;
            copy_async<VECTOR>(swizzled<ATOM_ROWS, KV_ROW>(stage, first + row, byte),
                               (const void *)(addresses[position % TILE_TOKENS + row] + plane + byte),
                               range.is_seen(position + first + row));
        }
        mbarrier_arrive_behind_copies(full + fill % STAGES * 8);
    }

    void clear_unseen_values(uint32_t) const
    {
    }
    void clear_unseen_values(const state &, uint32_t) const
    {
    }
#endif

    /* By one of the producer's warps. */
    void init_barriers() const
    {
        if (elect_one()) { /* by one lane, whose addresses are constants: 0.06 us an address that is not (H200) */
#pragma unroll
            for (uint32_t stage = 0; stage < STAGES; stage++) {
                mbarrier_init(full + stage * 8, ARRIVALS);
                mbarrier_init(empty + stage * 8, consumers);
            }
            mbarrier_fence();
        }
        __syncwarp();
    }

    /* All fills, as stages become free. */
    void send_all()
    {
        begin();
        for (uint32_t fill = 0; fill < fills; fill++) {
            if (fill >= STAGES)
                mbarrier_wait(empty + fill % STAGES * 8, (fill / STAGES - 1) % 2);
            send(fill);
        }
    }

    /* By the producer's warps: all that there is to be done. `memory` is the item's, in `shared`. The first of them
     * brings the item and the barriers; the others go on when these are there. */
    static void send_item(const cuda_attend_pass &pass, const tile_coord &coord, item_memory &memory,
                          uint8_t *shared)
    {
        const bool is_first = PRODUCERS == 1 || producer() == 0;
        prefetch_constants(pass);
        if (is_first) {
            coord.bring(pass, memory);
            __syncwarp();
        } else {
            await_item();
        }
        tile_ring ring(pass, memory.item, coord.kv_head, shared);
        if (is_first) {
            ring.init_barriers();
            arrive_for(1 + threadIdx.y, (WARPS + PRODUCERS) * 32);
        }
        ring.send_all();
#if TMA
        prefetch_next(pass);
#endif
    }

    /* By all that compute, first. */
    static void await_item()
    {
        await_threads(1 + threadIdx.y, (WARPS + PRODUCERS) * 32);
    }

    uint32_t address(const state &at) const
    {
        return shared_address(stages) + at.stage * SHAPE.stage_bytes;
    }
    bool is_there(const state &at) const
    {
        return mbarrier_test(full + at.stage * 8, at.phase);
    }
    void acquire_keys(const state &at) const
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
    static void show()
    {
        if (!TMA)
            fence_async_proxy();
    }

    void acquire_keys(uint32_t fill) const
    {
        mbarrier_wait(full + fill % STAGES * 8, fill / STAGES % 2);
    }

    void acquire_values(uint32_t fill) const
    {
        acquire_keys(fill);
        clear_unseen_values(fill);
    }

    void release(uint32_t fill) const
    {
        __syncwarp(); /* all lanes have read it */
        if (lane() == 0)
            mbarrier_arrive(empty + fill % STAGES * 8);
    }
};
