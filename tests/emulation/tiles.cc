/* SPDX-License-Identifier: Apache-2.0 */
/* tiles.cc - the work tiles that the GPU writes for lengths that it finds (tiles.cu), on the CPU, for one group and block size that the compiler
 * is told: of every batch
 *
 *   plan_fault()     has nothing against them as a plan: every key of every query once, merges that fold in the order of the tree
 *   the planner      cuts the queries at the same places, if they are not too many for the slots
 *   lowering.c       makes the same work tiles of that plan, byte for byte
 *   what is beyond   has no keys, and its state is nobody's */
#include "tests/emulation/cuda_on_host.h"

extern "C" {
#include "kernels/cuda/lowering.h"
#include "scheduler/planner.h"
}

#include "kernels/cuda/device/tiles.cu"

#include <cstdio>
#include <random>

enum { COLUMNS = GROUP > 8 ? 32 : 8, OF_SPLIT = (GROUP + COLUMNS - 1) / COLUMNS, LONGEST = 300000 };

static std::mt19937 generator(11);

struct batch {
    std::vector<int32_t> lengths;
    uint32_t max_length, tasks, window, thread_blocks;
    std::vector<int32_t> rows; /* of each sequence; empty: one */
    uint32_t spare;            /* rows behind them that are nobody's */
};

static uint32_t queries_of(const batch &b)
{
    uint32_t n = b.rows.empty() ? (uint32_t)b.lengths.size() : b.spare;
    for (int32_t rows : b.rows)
        n += rows;
    return n;
}

/* Which sequence each query is of, and its keys. */
static std::vector<plan_query> find_queries(const batch &b)
{
    std::vector<plan_query> queries;
    for (uint32_t s = 0; s < b.lengths.size(); s++) {
        const int32_t keys = min(max(b.lengths[s], 0), (int)b.max_length),
                      rows = b.rows.empty() ? 1 : b.rows[s];
        for (int32_t r = 0; r < rows; r++)
            queries.push_back({s, (uint32_t)max(keys - (rows - 1 - r), 0)});
    }
    while (queries.size() < queries_of(b))
        queries.push_back({0, 0});
    return queries;
}

struct written {
    uint32_t slots, stride;
    std::vector<uint32_t> tables;
    std::vector<cuda_work_tile> tiles;
    std::vector<cuda_work_tile_query> work_tile_queries;
    std::vector<plan_merge> merges;
    std::vector<partial_ref> refs;
};

static written write(const batch &b)
{
    const uint32_t sequences = (uint32_t)b.lengths.size(), n = queries_of(b);
    std::vector<int32_t> starts = {0};
    for (int32_t rows : b.rows)
        starts.push_back(starts.back() + rows);
    written w;
    w.slots = (uint32_t)cuda_tile_slots(n, b.max_length, b.tasks);
    w.stride = b.max_length / BLOCK_SIZE + 3;
    w.tables.resize((size_t)sequences * w.stride);
    for (uint32_t i = 0; i < w.tables.size(); i++)
        w.tables[i] =
            i % w.stride * BLOCK_SIZE < (uint32_t)max(b.lengths[i / w.stride], 0) ? i * 7 + 1 : 0xffffffff;
    w.tiles.resize((size_t)w.slots * OF_SPLIT);
    memset(w.tiles.data(), 0xee, w.tiles.size() * sizeof w.tiles[0]);
    w.work_tile_queries.resize(n);
    w.merges.resize(n);
    w.refs.resize(w.slots);
    const cuda_tiles_pass pass = {b.lengths.data(), b.rows.empty() ? nullptr : starts.data(),
                                  w.tables.data(),  w.stride,
                                  w.tiles.data(),   w.work_tile_queries.data(),
                                  w.merges.data(),  w.refs.data(),
                                  sequences,        n,
                                  b.max_length,     w.slots,
                                  b.tasks,          COLUMNS,
                                  b.window};
    emulate({b.thread_blocks, 1, 1}, TILES_THREADS, TILES_WARPS + n + 1, [&] { write_tiles(pass); });
    return w;
}

static const char *fault_of(const batch &b, const written &w)
{
    const uint32_t n = queries_of(b);
    tile_caps caps = {};
    caps.width_count = 1;
    caps.widths[0] = {COLUMNS, 0, 1};
    caps.processors = 132;
    const uint32_t used = w.merges[n - 1].first + w.merges[n - 1].count;

    /* what is written, as a plan */
    std::vector<plan_query> queries = find_queries(b);
    std::vector<work_tile> work_tiles(used);
    std::vector<uint32_t> of_tiles(used);
    for (uint32_t i = 0; i < n; i++) {
        if (w.work_tile_queries[i].query != i || w.work_tile_queries[i].keys != queries[i].keys ||
            w.merges[i].query != i)
            return "a query is another one";
        uint32_t at = plan_visible_chunks(queries[i].keys, b.window).first;
        for (uint32_t slot = w.merges[i].first; slot < w.merges[i].first + w.merges[i].count; slot++) {
            /* plan_fault() wants each work tile's queries behind the ones before */
            work_tiles[slot] = {queries[i].table, at, w.refs[slot].end_chunk - at, slot, 1, slot, 0, 0, 0, 0};
            of_tiles[slot] = i;
            at = w.refs[slot].end_chunk;
        }
    }
    plan written_plan = {};
    written_plan.queries = queries.data();
    written_plan.work_tiles = work_tiles.data();
    written_plan.work_tile_queries = of_tiles.data();
    written_plan.merges = w.merges.data();
    written_plan.merge_partials = w.refs.data();
    written_plan.query_count = written_plan.merge_count = n;
    written_plan.work_tile_count = written_plan.partial_count = used;
    written_plan.caps = &caps;
    if (const char *fault = plan_fault(&written_plan, b.window))
        return fault;

    /* work tiles: those of lowering.c, but for where their query stands */
    std::vector<cuda_work_tile> lowered((size_t)used * OF_SPLIT);
    cuda_tile_list lists[CUDA_TILE_LISTS] = {};
    lists[cuda_list_of_width(0)].tiles = lowered.data();
    const cuda_lowering lowering = {&written_plan, &caps, w.tables.data(), w.stride,
                                    BLOCK_SIZE,    GROUP, b.window};
    cuda_lower_tiles(&lowering, lists);
    if (lists[cuda_list_of_width(0)].count != used * OF_SPLIT)
        return "lowering makes another number of work tiles";
    for (uint32_t i = 0; i < lists[cuda_list_of_width(0)].count; i++) {
        lowered[i].first_query = of_tiles[lowered[i].first_query];
        if (memcmp(&lowered[i], &w.tiles[i], sizeof lowered[i]) != 0)
            return "lowering makes another work tile";
    }
    for (uint32_t i = used * OF_SPLIT; i < w.tiles.size(); i++) {
        const cuda_work_tile &tile = w.tiles[i];
        if (tile.seen.first || tile.seen.end || tile.seen_by_all || tile.columns != 1 ||
            tile.partial < used || tile.partial >= w.slots || tile.first_query >= n)
            return "a work tile behind the last is not empty";
    }

    /* the planner */
    planner_options options = {};
    options.queries_max = n;
    options.partials_max = 1 << 16;
    options.tasks = b.tasks;
    options.kv_heads = 1;
    options.group = GROUP;
    options.block_size = BLOCK_SIZE;
    options.window = b.window;
    options.caps = caps;
    planner *p;
    if (planner_create(&options, &p) != 0)
        return "no memory for a planner";
    std::vector<planner_query> asked(n);
    for (uint32_t i = 0; i < n; i++)
        asked[i] = {queries[i].table, queries[i].keys, 1, SHARING_OFF};
    const plan *planned = planner_make(p, asked.data(), n, w.tables.data(), w.stride);
    std::vector<std::vector<partial_ref>> cuts(n);
    uint32_t splits = 0;
    for (uint32_t i = 0; i < planned->merge_count; i++) {
        const plan_merge &m = planned->merges[i];
        cuts[m.query].assign(planned->merge_partials + m.first, planned->merge_partials + m.first + m.count);
        splits += m.count;
    }
    for (uint32_t i = 0; i < planned->work_tile_count; i++)
        splits += planned->work_tiles[i].partial == PLAN_NO_PARTIAL;
    const char *fault = nullptr;
    for (uint32_t i = 0; i < n && splits <= w.slots && !fault; i++) {
        const plan_merge &m = w.merges[i];
        if (cuts[i].empty()) /* finished by a work tile, or without keys */
            fault =
                m.count == (queries[i].keys > 0) ? nullptr : "the planner finishes a query by one work tile";
        else if (cuts[i].size() != m.count)
            fault = "the planner makes another number of splits";
        for (uint32_t k = 0; k < cuts[i].size() && !fault; k++) {
            if (cuts[i][k].end_chunk != w.refs[m.first + k].end_chunk ||
                cuts[i][k].level != w.refs[m.first + k].level)
                fault = "the planner cuts elsewhere";
        }
    }
    planner_destroy(p);
    return fault;
}

static bool check(const batch &b)
{
    const written w = write(b);
    const char *fault = fault_of(b, w);
    if (fault) {
        printf("%s: max %u, %u tasks, window %u, %u thread blocks, lengths", fault, b.max_length, b.tasks,
               b.window, b.thread_blocks);
        for (size_t i = 0; i < b.lengths.size() && i < 20; i++)
            printf(" %d", b.lengths[i]);
        printf(b.rows.empty() ? "" : ", rows");
        for (size_t i = 0; i < b.rows.size() && i < 20; i++)
            printf(" %d", b.rows[i]);
        printf("\n");
    }
    return !fault;
}

int main()
{
    static const int32_t edges[] = {0,     1,     63,     64,     65,     255,     256,        257,   1023,
                                    1024,  1025,  4095,   4096,   4097,   5000,    8192,       65535, 65536,
                                    65537, 69632, 131071, 131072, 131073, LONGEST, LONGEST - 1};
    const uint32_t tasks[] = {1, 7, 66, 132, 528}, windows[] = {0, 1000, 64, 70000};
    bool ok = true;
    for (int32_t length : edges) {
        for (uint32_t i = 0; i < 5; i++)
            ok &= check(
                {{length}, i % 2 ? LONGEST : max((uint32_t)length, 1u), tasks[i], windows[i % 4], 1 + i});
    }
    for (uint32_t round = 0; round < 40; round++) {
        const uint32_t n = 1 + generator() % (round % 10 == 9 ? 600 : 40), kinds = 1 + generator() % 3;
        batch b = {
            {}, LONGEST, tasks[generator() % 5], windows[generator() % 8 % 5 % 4], 1 + generator() % 3};
        b.max_length = round % 4 == 0 ? LONGEST : 1 + generator() % 20000;
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t kind = generator() % kinds;
            b.lengths.push_back(kind == 0   ? (int32_t)(generator() % 2000)
                                : kind == 1 ? edges[generator() % (sizeof edges / sizeof *edges)]
                                            : (int32_t)(generator() % b.max_length));
        }
        if (round % 7 == 0) /* what the operator is not to be given */
            b.lengths[generator() % n] = -5;
        ok &= check(b);
        for (uint32_t i = 0; i < n; i++) /* and with several queries, or none; also more than tokens */
            b.rows.push_back(generator() % 4 ? generator() % 6 : generator() % 3 ? 0 : 30);
        b.rows[generator() % n] = 3;
        b.spare = generator() % 3;
        ok &= check(b);
    }
    return !ok;
}
