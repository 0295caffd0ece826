/* SPDX-License-Identifier: Apache-2.0 */
/* merge.cc - merge, and queries that splits of a thread block write together, on the CPU, for one geometry
 * that the compiler is told (-DHEAD_DIM= and so on): partial states of queries cut in every way that
 * kernels/plan.h allows, some of them empty, against a fold of one state after the other. Outputs have to
 * have the same bits. */
#include "tests/emulation/cuda_on_host.h"

#include "kernels/cuda/device/cluster_combine.cuh"

#include "kernels/cuda/device/merge.cu"

#include <cstdio>
#include <random>

enum { QUERIES = 24, CHUNKS_MAX = 90, SPANS_MAX = 4 };

static const uint32_t HEADS = KV_HEADS * GROUP;
static std::mt19937 generator(7);

static uint32_t below(uint32_t n)
{
    return generator() % n;
}

/* Partials of a query of `chunks`: splits of any level where they may begin, of several nodes where they
 * may be. */
static void cut_query(uint32_t chunks, std::vector<partial_ref> &refs)
{
    uint32_t nodes[3], parents[3];
    for (uint32_t level = 0; level < 3; level++) {
        nodes[level] = plan_node_chunks((plan_level)level);
        parents[level] = plan_parent_chunks((plan_level)level);
    }
    uint32_t partial = 0, finest = below(3); /* some queries have few partials */
    for (uint32_t at = 0; at < chunks;) {
        uint32_t level = below(3);
        if (level < finest || at % nodes[level] != 0) {
            if (level > 0 && at % nodes[level] != 0)
                continue;
            level = finest;
            while (at % nodes[level] != 0)
                level--;
        }
        uint32_t end = at + nodes[level];
        while (at % parents[level] == 0 && end % parents[level] != 0 && end < chunks && below(3) == 0)
            end += nodes[level];
        at = min(end, chunks);
        refs.push_back({partial++, at, (plan_level)level});
    }
}

/* One head of one query: m, l, o. */
struct state {
    float m = -INFINITE, l = 0, o[HEAD_DIM] = {};

    void add(const state &from)
    {
        const merge_weights w(m, from.m);
        m = w.m;
        l = w(l, from.l);
        for (uint32_t d = 0; d < HEAD_DIM; d++)
            o[d] = w(o[d], from.o[d]);
    }
};

static state fold(const std::vector<partial_ref> &refs, const std::function<state(uint32_t)> &partial)
{
    state levels[FOLD_LEVELS + 1];
    auto close = [&](int level) {
        levels[level + 1].add(levels[level]);
        levels[level] = state();
    };
    for (const partial_ref &ref : refs) {
        levels[ref.level].add(partial(ref.partial));
        if (ref.end_chunk % RUN_CHUNKS == 0)
            close(0);
        if (ref.end_chunk % SEGMENT_CHUNKS == 0)
            close(1);
        if (ref.end_chunk % SPAN_CHUNKS == 0)
            close(2);
    }
    for (int level = 0; level < FOLD_LEVELS; level++)
        close(level);
    return levels[FOLD_LEVELS];
}

static float random_float(float from, float to)
{
    return std::uniform_real_distribution<float>(from, to)(generator);
}

/* A maximum, now and then an infinite or a huge one. */
static float random_maximum()
{
    static const float extremes[] = {INFINITE, 0x1p100F, -0x1p100F, 0x1p30F};
    return below(12) == 0 ? extremes[below(4)] : random_float(-30, 30);
}

static bool merges_agree(uint32_t batch_size, uint32_t threads, uint32_t threads_y, bool has_spans)
{
    std::vector<plan_merge> merges;
    std::vector<partial_ref> refs;
    std::vector<std::vector<partial_ref>> queries(QUERIES);
    uint32_t partials = 0;
    for (uint32_t query = 0; query < QUERIES; query++) {
        if (query > 0) /* the first has none */
            cut_query(query % 8 == 7 && has_spans
                          ? SPAN_CHUNKS * (1 + below(SPANS_MAX)) + below(2) * below(20)
                          : 1 + below(query % 4 ? 20 : CHUNKS_MAX),
                      queries[query]);
        for (partial_ref &ref : queries[query])
            ref.partial += partials;
        partials += (uint32_t)queries[query].size();
        merges.push_back({query, (uint32_t)refs.size(), (uint32_t)queries[query].size()});
        refs.insert(refs.end(), queries[query].begin(), queries[query].end());
    }
    std::vector<float> ml((size_t)partials * HEADS * 2), o((size_t)partials * HEADS * HEAD_DIM),
        lse(QUERIES * HEADS, NAN), sinks(HEADS), v_scale(KV_HEADS);
    std::vector<float> out((size_t)QUERIES * HEADS * HEAD_DIM, NAN);
    for (size_t i = 0; i < ml.size(); i += 2) {
        bool empty = below(8) == 0;
        ml[i] = empty ? -INFINITE : random_maximum();
        ml[i + 1] = empty ? 0 : random_float(1, 200);
        for (uint32_t d = 0; d < HEAD_DIM; d++)
            o[i / 2 * HEAD_DIM + d] = empty ? 0 : random_float(-100, 100);
    }
    for (float &x : sinks)
        x = random_float(-20, 20);
    for (float &x : v_scale)
        x = random_float(0.1F, 2);
    cuda_attend_pass pass = {};
    pass.merges = merges.data();
    pass.merge_partials = refs.data();
    pass.partial_ml = ml.data();
    pass.partial_o = o.data();
    pass.o = (uint8_t *)out.data();
    pass.lse = lse.data();
    pass.sinks = batch_size % 3 ? sinks.data() : nullptr;
    pass.v_scale = v_scale.data();
    pass.merge_count = QUERIES;
    pass.merge_batch_size = batch_size;
    uint32_t blocks = (HEADS * HEAD_DIM / 4 + threads - 1) / threads;
    emulate(
        {QUERIES * blocks, 1, 1}, threads, merge_bytes(HEAD_DIM, threads, batch_size) / sizeof(float),
        [&] { has_spans ? merge_spans(pass) : merge(pass); }, threads_y);
    for (uint32_t query = 0; query < QUERIES; query++) {
        for (uint32_t head = 0; head < HEADS; head++) {
            const state s = fold(queries[query], [&](uint32_t partial) {
                state x;
                size_t at = (size_t)partial * HEADS + head;
                x.m = ml[2 * at];
                x.l = ml[2 * at + 1];
                memcpy(x.o, &o[at * HEAD_DIM], sizeof x.o);
                return x;
            });
            const output_scale f(s.m, s.l, pass.sinks ? &sinks[head] : nullptr, v_scale[head / GROUP]);
            size_t at = (size_t)query * HEADS + head;
            for (uint32_t d = 0; d < HEAD_DIM; d++) {
                float expected = f(s.o[d]);
                if (memcmp(&expected, &out[at * HEAD_DIM + d], sizeof expected) == 0 &&
                    memcmp(&f.lse, &lse[at], sizeof f.lse) == 0)
                    continue;
                printf(
                    "%u at a time, %u x %u threads, query %u of %zu partials, head %u, element %u: %g, wants "
                    "%g; lse %g, wants %g\n",
                    batch_size, threads, threads_y, query, queries[query].size(), head, d,
                    (double)out[at * HEAD_DIM + d], (double)expected, (double)lse[at], (double)f.lse);
                return false;
            }
        }
    }
    return true;
}

/* A random state, sometimes the empty one. */
static state random_state()
{
    state s;
    if (below(6) == 0)
        return s;
    s.m = random_maximum();
    s.l = random_float(1, 200);
    for (float &x : s.o)
        x = random_float(-100, 100);
    return s;
}

/* Two queries, each of 2^bits splits, 2^cta_bits to a thread block: some of their columns, as parts of
 * work tiles are. */
static bool splits_agree(uint32_t bits, uint32_t cta_bits, uint32_t column, uint32_t columns)
{
    const uint32_t splits = 1u << bits, threads = (columns + 7) / 8 * 32,
                   apart = (columns * tile_state_floats(HEAD_DIM) * 4 + sizeof(work_tile_memory) + 1023) /
                           1024 * 1024;
    cuda_work_tile work_tiles[2 * PLAN_SPLITS_MAX] = {};
    cuda_work_tile_query work_tile_queries[2 * PLAN_SPLITS_MAX] = {};
    std::vector<state> states((size_t)2 * splits * HEADS); /* [work_tile][head] */
    std::vector<float> out((size_t)2 * HEADS * HEAD_DIM, NAN), lse(2 * HEADS, NAN), v_scale(KV_HEADS);
    for (state &s : states)
        s = random_state();
    for (float &x : v_scale)
        x = random_float(0.1F, 2);
    for (uint32_t i = 0; i < 2 * splits; i++) {
        work_tiles[i].first_query = i;
        work_tiles[i].column = column;
        work_tiles[i].columns = columns;
        work_tile_queries[i].query = 1 - i / splits;
    }
    cuda_attend_pass pass = {};
    pass.work_tiles = work_tiles;
    pass.work_tile_queries = work_tile_queries;
    pass.o = (uint8_t *)out.data();
    pass.lse = lse.data();
    pass.k_scale = pass.v_scale = v_scale.data();
    pass.split_bits = bits;
    pass.cta_bits = cta_bits;
    emulate(
        {2 * KV_HEADS << (bits - cta_bits), 1, 1}, threads, ((size_t)apart << cta_bits) / sizeof(float),
        [&] {
            const tile_coord coord(pass);
            uint8_t *memory = (uint8_t *)emulated->dynamic + tile_coord::cta_split() * apart;
            work_tile_memory &brought = *(work_tile_memory *)(memory + apart - sizeof(work_tile_memory));
            if (threadIdx.x < 32)
                coord.bring(pass, brought);
            __syncthreads();
            const combined_epilogue c(pass, brought, coord.kv_head);
            c.keep_queries(threadIdx.x / 32 * 8, 8);
            for (uint32_t i = threadIdx.x; i < columns; i += threads) {
                const state &s = states[coord.work_tile * HEADS + c.head_of(i)];
                c.write(i, s.m, s.l, true, memory, [&](auto write) {
                    for (uint32_t d = 0; d < HEAD_DIM; d++)
                        write(d, s.o[d]);
                });
            }
            c.combine_splits(memory, apart, threads);
        },
        1u << cta_bits, 1u << (bits - cta_bits));
    for (uint32_t query = 0; query < 2; query++) {
        for (uint32_t head = 0; head < HEADS; head++) {
            size_t at = (size_t)(1 - query) * HEADS + head;
            bool taken = head % GROUP >= column && head % GROUP < column + columns;
            state all = states[query * splits * HEADS + head];
            for (uint32_t i = 1; i < splits; i++)
                all.add(states[(query * splits + i) * HEADS + head]);
            const output_scale f(all.m, all.l, nullptr, v_scale[head / GROUP]);
            for (uint32_t d = 0; d < HEAD_DIM; d++) {
                float expected = taken ? f(all.o[d]) : NAN, found = out[at * HEAD_DIM + d],
                      expected_lse = taken ? f.lse : NAN;
                bool same = memcmp(&expected, &found, sizeof found) == 0 &&
                            memcmp(&expected_lse, &lse[at], sizeof lse[at]) == 0;
                if (same || (!taken && std::isnan(found) && std::isnan(lse[at])))
                    continue;
                printf("%u splits, %u a thread block, columns %u to %u, query %u, head %u, element %u: %g, "
                       "wants %g; lse %g, wants %g\n",
                       splits, 1u << cta_bits, column, column + columns, query, head, d, (double)found,
                       (double)expected, (double)lse[at], (double)expected_lse);
                return false;
            }
        }
    }
    return true;
}

int main()
{
    bool ok = true;
    for (uint32_t batch_size = 1; batch_size <= MERGE_BATCH_MAX; batch_size *= 2)
        ok = merges_agree(batch_size, CUDA_THREADS, 1, batch_size > 1 && batch_size != 4) &&
             merges_agree(batch_size, 32, batch_size < 4 ? 1 + batch_size : 4, batch_size == 4) && ok;
    for (uint32_t bits = 1; 1u << bits <= PLAN_SPLITS_MAX; bits++) {
        for (uint32_t cta_bits = bits - 1; cta_bits <= bits; cta_bits++) {
            ok = splits_agree(bits, cta_bits, 0, GROUP) && ok;
            ok = splits_agree(bits, cta_bits, GROUP / 2, GROUP - GROUP / 2) && ok;
        }
    }
    return !ok;
}
