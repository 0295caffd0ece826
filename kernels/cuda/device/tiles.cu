/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.cu - work tiles of queries whose lengths only the GPU knows, so that a captured graph may be replayed with others: what the planner
 * and lowering.c make of queries that share nothing, for a launch that is sized ahead.
 *
 *   lengths      600            0        5 000                   in chunks: 3, 0, 20, so 23 in all
 *   splits       [0 1 2]                 [0 .. 15] [16 .. 19]    of so many chunks at most that there are about as many as tasks
 *   slots          0                       1         2       3 4 5 ...
 *                                                            no keys: a thread block of these has nothing to load, and ends
 *
 * Who computes what: every thread block adds up the chunks of all queries, chooses the size of splits and finds at which slot each query
 * begins (shared memory, a word a query). Then a warp writes a slot: it finds the query by bisection, walks to the split
 * (plan_next_split(), which the planner cuts by) and fetches the block table's first entries. All is a function of the lengths alone, so
 * thread blocks need not wait for each other. Where sequences have several queries, or none, whose each is is found by bisection, too; each
 * reads its keys by itself.
 *
 * Every query is merged, also one of a single split: a launch cannot be told afterwards which are. A fold of one state has its bits. Split
 * groups are not made. Slots suffice: as long as splits are too many, larger ones are tried, up to one a span (cuda_tile_slots()). */
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/step.h"

static constexpr uint32_t READING_QUERY_HEADS =
    32; /* what up to so many cost is reading; as scheduler/planner.c has it */

struct tile_writer {
    const cuda_tiles_pass &pass;
    uint32_t *firsts;      /* [queries + 1] the slots of query i begin at firsts[i] */
    uint32_t *warp_sums;   /* [TILES_WARPS] */
    uint32_t split_chunks; /* at most, about */

    /* The last of n numbers, which rise, that is `most` at most, so that those that are followed by the same are passed over. */
    template <typename T> static uint32_t find_last(const T *rising, uint32_t n, T most)
    {
        uint32_t low = 0, high = n - 1;
        while (low < high) {
            const uint32_t middle = (low + high + 1) / 2;
            if (rising[middle] <= most)
                low = middle;
            else
                high = middle - 1;
        }
        return low;
    }
    uint32_t sequence_of(uint32_t query) const
    {
        return pass.starts ? find_last(pass.starts, pass.sequences, (int32_t)query) : query;
    }
    /* Those up to its own token, behind which the other queries of its sequence are. */
    uint32_t keys_of(uint32_t query) const
    {
        const uint32_t sequence = sequence_of(query);
        const int keys = min(max(pass.lengths[sequence], 0), (int)pass.max_length);
        const long long behind = pass.starts ? (long long)pass.starts[sequence + 1] - 1 - query : 0;
        return behind < 0 || behind >= keys ? 0 : (uint32_t)(keys - behind);
    }
    plan_range chunks_of(uint32_t query) const
    {
        return plan_visible_chunks(keys_of(query), pass.window);
    }
    /* The level and the end of the split from chunk `at` on: all that the query sees, if that is little and within a span. */
    plan_level next_split(const plan_range &seen, uint32_t at, uint32_t &end) const
    {
        end = seen.end;
        if (at == seen.first && end - at <= split_chunks && plan_within_span(at, end))
            return PLAN_SEGMENT;
        return plan_next_split(split_chunks, seen.first, at, seen.end, true, &end);
    }
    uint32_t splits_of(uint32_t query) const
    {
        const plan_range seen = chunks_of(query);
        uint32_t splits = 0;
        for (uint32_t at = seen.first; at < seen.end; splits++)
            next_split(seen, at, at);
        return splits;
    }

    /* Add value(query) of all queries up: firsts[i] becomes the sum of those before query i. Returns that of all. */
    template <typename F> uint32_t add_up(F value)
    {
        uint32_t sum = 0;
        for (uint32_t from = 0; from < pass.queries; from += TILES_THREADS) {
            const uint32_t query = from + threadIdx.x, x = query < pass.queries ? value(query) : 0,
                           warp = threadIdx.x / 32;
            uint32_t up_to = x, before = sum;
            for (uint32_t apart = 1; apart < 32; apart *= 2) {
                const uint32_t other = __shfl_up_sync(ALL_LANES, up_to, apart);
                up_to += lane() >= apart ? other : 0;
            }
            if (lane() == 31)
                warp_sums[warp] = up_to;
            __syncthreads(); /* all warps' are there */
            for (uint32_t i = 0; i < TILES_WARPS; i++) {
                before += i < warp ? warp_sums[i] : 0;
                sum += warp_sums[i];
            }
            if (query < pass.queries)
                firsts[query] = before + up_to - x;
            __syncthreads(); /* they are read */
        }
        if (threadIdx.x == 0)
            firsts[pass.queries] = sum;
        __syncthreads(); /* all of firsts is there */
        return sum;
    }

    void choose_splits()
    {
        const uint32_t chunks = add_up([&](uint32_t query) {
            const plan_range seen = chunks_of(query);
            return seen.end > seen.first ? seen.end - seen.first : 0;
        });
        constexpr uint32_t QUERY_HEADS = GROUP > READING_QUERY_HEADS ? GROUP : READING_QUERY_HEADS;
        const uint64_t work = (uint64_t)chunks * QUERY_HEADS / READING_QUERY_HEADS;
        split_chunks = plan_whole_nodes((uint32_t)((work + pass.tasks - 1) / pass.tasks));
        while (add_up([&](uint32_t query) { return splits_of(query); }) > pass.slots)
            split_chunks = split_chunks < RUN_CHUNKS       ? RUN_CHUNKS
                           : split_chunks < SEGMENT_CHUNKS ? SEGMENT_CHUNKS
                                                           : 2 * split_chunks;
    }

    void write_query(uint32_t query) const
    {
        pass.work_tile_queries[query] = {query, keys_of(query)};
        pass.merges[query] = {query, firsts[query], firsts[query + 1] - firsts[query], 0};
    }

    /* By a warp: the work tiles of a slot, of chunks [first, end) of a query, as lowering.c makes them. */
    void write_work_tiles(uint32_t slot, uint32_t query, uint32_t first, uint32_t end) const
    {
        constexpr uint32_t ENTRIES = CUDA_WORK_TILE_ENTRIES;
        const uint32_t of_split = (GROUP + pass.columns - 1) / pass.columns, table = sequence_of(query);
        const plan_range all = plan_visible(keys_of(query), pass.window),
                         seen = {max(all.first, first * CHUNK_TOKENS), min(all.end, end * CHUNK_TOKENS)};
        const uint32_t first_token = seen.first / TILE_TOKENS * TILE_TOKENS,
                       entry = first_token / BLOCK_SIZE + lane();
        const bool has_entry =
            first < end && lane() < ENTRIES && entry < (seen.end + BLOCK_SIZE - 1) / BLOCK_SIZE;
        const uint32_t block = has_entry ? pass.tables[table * pass.stride + entry] : 0;
        for (uint32_t i = 0; i < of_split; i++) {
            cuda_work_tile &tile = pass.work_tiles[slot * of_split + i];
            if (lane() < ENTRIES)
                tile.entries[lane()] = block;
            if (lane() > 0)
                continue;
            tile.table = table;
            tile.first_query = query;
            tile.column = i * pass.columns;
            tile.columns = first < end ? min(pass.columns, GROUP - i * pass.columns) : 1;
            tile.partial = slot;
            tile.seen = first < end ? seen : plan_range{0, 0};
            tile.seen_by_all = first < end && all.first <= first_token ? seen.end : 0;
        }
    }

    /* By a warp. What has no keys writes the empty state of one query head, where nobody looks. */
    void write_slot(uint32_t slot) const
    {
        if (slot >= firsts[pass.queries]) {
            write_work_tiles(slot, 0, 0, 0);
            return;
        }
        const uint32_t query = find_last(firsts, pass.queries, slot);
        const plan_range seen = chunks_of(query);
        uint32_t at = seen.first, end = 0;
        plan_level level = PLAN_CHUNK;
        for (uint32_t i = firsts[query]; i <= slot; i++) {
            at = i == firsts[query] ? seen.first : end;
            level = next_split(seen, at, end);
        }
        write_work_tiles(slot, query, at, end);
        if (lane() == 0)
            pass.merge_partials[slot] = {slot, end, level};
    }

    void run()
    {
        choose_splits();
        const uint32_t thread = blockIdx.x * TILES_THREADS + threadIdx.x;
        for (uint32_t query = thread; query < pass.queries; query += gridDim.x * TILES_THREADS)
            write_query(query);
        for (uint32_t slot = thread / 32; slot < pass.slots; slot += gridDim.x * TILES_WARPS)
            write_slot(slot);
    }
};

extern "C" __global__ void __launch_bounds__(TILES_THREADS)
    write_tiles(const __grid_constant__ cuda_tiles_pass pass)
{
    DYNAMIC_SHARED(uint32_t, tiles_shared);
    tile_writer{pass, tiles_shared + TILES_WARPS, tiles_shared, 0}.run();
}
