/* SPDX-License-Identifier: Apache-2.0 */
/* test_lowering.c - what the GPU's launches take computes each column of each work tile once, in tiles that
 * take it, with the keys that its queries see; and the merges that are left are those of no split group.
 *
 * Plans are the planner's, of random lengths, for random tiles. */
#include "config/numbers.h"
#include "kernels/cuda/lowering.h"
#include "scheduler/planner.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

enum { QUERIES = 12, STRIDE = 700, BLOCK_SIZE = 16, PARTIALS = 4096, ROUNDS = ROUNDS_OF(400) };

struct trial {
    uint32_t seed, random;
    uint32_t tables[QUERIES][STRIDE];
    struct planner_options options;
    struct planner *planner;
    const struct plan *plan;
    struct plan some_late; /* the planner's, with some work tiles late */
    struct work_tile work_tiles[PARTIALS + QUERIES];
    struct cuda_lowering lowering;
};

static uint32_t random_below(struct trial *t, uint32_t n)
{
    t->random = t->random * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)t->random * n >> 32);
}

static void make_trial(struct trial *t, uint32_t seed)
{
    static const uint32_t groups[] = {1, 4, 5, 16, 48, 100, 160}, chunks[] = {0, RUN_CHUNKS, SEGMENT_CHUNKS};
    struct planner_query queries[QUERIES];
    *t = (struct trial){.seed = seed, .random = seed};
    uint32_t prefix = random_below(t, 3000) / BLOCK_SIZE, family = 1 + random_below(t, QUERIES),
             longest = random_below(t, 2) ? 1200 : 7000;
    for (uint32_t query = 0; query < QUERIES; query++) {
        for (uint32_t i = 0; i < STRIDE; i++)
            t->tables[query][i] = query % family && i < prefix ? i : query * STRIDE + i;
        queries[query] = (struct planner_query){query, random_below(t, longest), 1, SHARING_ON};
    }
    t->options = (struct planner_options){.queries_max = QUERIES,
                                          .partials_max = PARTIALS,
                                          .tasks = 1 + random_below(t, 200),
                                          .kv_heads = 1 + random_below(t, 8),
                                          .group = groups[random_below(t, 7)],
                                          .block_size = BLOCK_SIZE,
                                          .window = random_below(t, 2) * (1 + random_below(t, 2000)),
                                          .first_loose_table = QUERIES};
    struct tile_caps *caps = &t->options.caps;
    *caps = (struct tile_caps){.width_count = 1 + random_below(t, PLAN_WIDTHS_MAX),
                               .splits_max = random_below(t, 4) ? PLAN_SPLITS_MAX : 0,
                               .cluster_max = 1U << random_below(t, 3),
                               .processors = 1 + random_below(t, 140)};
    for (uint32_t i = 0; i < caps->width_count; i++)
        caps->widths[i] =
            (struct tile_width){8U << i, i ? chunks[random_below(t, 3)] : 0, 1U << random_below(t, 3)};
    ck_assert_int_eq(planner_create(&t->options, &t->planner), 0);
    t->plan = planner_make(t->planner, queries, QUERIES, t->tables[0], STRIDE);
    t->some_late = *t->plan;
    t->some_late.work_tiles =
        memcpy(t->work_tiles, t->plan->work_tiles, t->plan->work_tile_count * sizeof *t->work_tiles);
    t->plan = &t->some_late;
    for (uint32_t i = 0; i < t->plan->work_tile_count; i += larger(1, t->work_tiles[i].splits))
        t->work_tiles[i].late = !t->work_tiles[i].splits && random_below(t, 4) == 0;
    ck_assert_ptr_null(plan_fault(t->plan, t->options.window));
    t->lowering = (struct cuda_lowering){.plan = t->plan,
                                         .caps = caps,
                                         .tables = t->tables[0],
                                         .stride = STRIDE,
                                         .block_size = BLOCK_SIZE,
                                         .group = t->options.group,
                                         .window = t->options.window};
}

/* The work tile of the plan that a tile is of. */
static uint32_t work_tile_of(const struct plan *plan, const struct cuda_work_tile *tile)
{
    uint32_t i = 0;
    while (i < plan->work_tile_count && plan->work_tiles[i].first_query != tile->first_query)
        i++;
    ck_assert_uint_lt(i, plan->work_tile_count);
    return i;
}

/* Whether all columns of a tile see a position. */
static bool all_see(const struct trial *t, const struct work_tile *work_tile,
                    const struct cuda_work_tile *tile, uint32_t key)
{
    bool all = true;
    for (uint32_t c = tile->column; c < tile->column + tile->columns; c++) {
        uint32_t keys =
            t->plan->queries[t->plan->work_tile_queries[work_tile->first_query + c / t->lowering.group]].keys;
        all &= plan_sees(plan_visible(keys, t->lowering.window), key) != 0;
    }
    return all;
}

/* Positions that a kernel takes to be seen by all are; none that are goes unused, where all begin at the first tile. */
static void check_seen_by_all(const struct trial *t, const struct work_tile *work_tile,
                              const struct cuda_work_tile *tile)
{
    uint32_t key = tile->seen.first / TILE_TOKENS * TILE_TOKENS,
             stop = (work_tile->first_chunk + work_tile->chunks) * CHUNK_TOKENS;
    while (key < stop && all_see(t, work_tile, tile, key))
        key++;
    ck_assert_uint_eq(tile->seen_by_all, key == tile->seen.first / TILE_TOKENS * TILE_TOKENS ? 0 : key);
}

static void check_keys(const struct trial *t, const struct work_tile *work_tile,
                       const struct cuda_work_tile *tile)
{
    uint32_t begin = work_tile->first_chunk * CHUNK_TOKENS, end = begin + work_tile->chunks * CHUNK_TOKENS,
             first_seen = end, end_seen = begin;
    for (uint32_t c = tile->column; c < tile->column + tile->columns; c++) {
        uint32_t keys =
            t->plan->queries[t->plan->work_tile_queries[work_tile->first_query + c / t->lowering.group]].keys;
        struct plan_range seen = plan_visible(keys, t->lowering.window);
        for (uint32_t key = seen.first; key < seen.end; key++) {
            if (key < begin || key >= end)
                continue;
            first_seen = key < first_seen ? key : first_seen;
            end_seen = key >= end_seen ? key + 1 : end_seen;
        }
    }
    ck_assert_uint_eq(tile->seen.first, first_seen);
    ck_assert_uint_eq(tile->seen.end, end_seen);
    check_seen_by_all(t, work_tile, tile);
    for (uint32_t i = 0; i < CUDA_WORK_TILE_ENTRIES; i++) {
        uint32_t block = first_seen / TILE_TOKENS * TILE_TOKENS / BLOCK_SIZE + i;
        uint32_t expected = block * BLOCK_SIZE < end_seen ? t->tables[work_tile->table][block] : 0;
        ck_assert_uint_eq(tile->entries[i], expected);
    }
}

/* The tiles of one list; counts the columns of each work tile in `done`. Returns how many are of split
 * groups. */
static void check_list(const struct trial *t, uint32_t index, const struct cuda_tile_list *list,
                       uint32_t *done)
{
    const struct tile_width *width = &t->options.caps.widths[index / CUDA_SPLIT_KINDS % PLAN_WIDTHS_MAX];
    struct cuda_split_kind kind = cuda_split_kinds[index % CUDA_SPLIT_KINDS];
    uint32_t group_size = 1U << kind.group_bits;
    ck_assert_uint_eq(list->count % group_size, 0);
    for (uint32_t at = 0; at < list->count; at++) {
        const struct cuda_work_tile *tile = &list->tiles[at], *first = tile - at % group_size;
        uint32_t begins = work_tile_of(t->plan, first);
        const struct work_tile *group = &t->plan->work_tiles[begins];
        uint32_t splits = group->splits ? group->splits : 1;
        ck_assert_uint_le(tile->columns, width->query_heads);
        ck_assert(group_size == 1 ? splits == 1 : splits > group_size / 2 && splits <= group_size);
        ck_assert(splits == 1 || group->cta_splits == 1U << kind.cta_bits);
        ck_assert(tile->column == first->column && tile->columns == first->columns);
        if (at % group_size >= splits) { /* it makes up the number */
            ck_assert_uint_eq(tile->seen.end, 0);
            continue;
        }
        uint32_t i = work_tile_of(t->plan, tile);
        const struct work_tile *work_tile = &t->plan->work_tiles[i];
        ck_assert_uint_eq(i, begins + at % group_size);
        ck_assert(plan_width_takes(width, work_tile));
        ck_assert_uint_eq(work_tile->late, index < CUDA_TILE_LISTS / 2);
        ck_assert(tile->table == work_tile->table && tile->partial == work_tile->partial);
        check_keys(t, work_tile, tile);
        done[i] += tile->columns;
    }
}

START_TEST(tiles_compute_every_column_once)
{
    static struct trial t;
    uint32_t groups = 0, narrower = 0;
    for (uint32_t seed = 0; seed < ROUNDS; seed++) {
        uint32_t done[PARTIALS + QUERIES] = {0};
        struct cuda_tile_list counts[CUDA_TILE_LISTS] = {{0}}, lists[CUDA_TILE_LISTS] = {{0}};
        make_trial(&t, seed);
        cuda_lower_tiles(&t.lowering, counts);
        for (uint32_t i = 0; i < CUDA_TILE_LISTS; i++)
            lists[i].tiles = calloc(counts[i].count + 1, sizeof *lists[i].tiles);
        cuda_lower_tiles(&t.lowering, lists);
        for (uint32_t i = 0; i < CUDA_TILE_LISTS; i++) {
            ck_assert_uint_eq(lists[i].count, counts[i].count);
            check_list(&t, i, &lists[i], done);
            groups += i % CUDA_SPLIT_KINDS ? counts[i].count : 0;
            free(lists[i].tiles);
        }
        for (uint32_t i = 0; i < t.plan->work_tile_count; i++) {
            uint32_t columns = t.plan->work_tiles[i].queries * t.options.group;
            ck_assert_uint_eq(done[i], columns);
            narrower += t.plan->work_tiles[i].width + 1U < t.options.caps.width_count;
        }
        planner_destroy(t.planner);
    }
    ck_assert_uint_gt(groups, ROUNDS / 4); /* there were some */
    ck_assert_uint_gt(narrower, ROUNDS / 4);
}
END_TEST

START_TEST(merges_are_left_for_all_but_split_groups)
{
    static struct trial t;
    uint32_t grouped = 0;
    for (uint32_t seed = 0; seed < ROUNDS; seed++) {
        struct plan_merge merges[QUERIES];
        struct cuda_work_tile_query queries[(PARTIALS + QUERIES)];
        uint32_t left = 0, longest = 0;
        make_trial(&t, seed);
        struct cuda_merges got = cuda_lower_merges(t.plan, merges);
        for (uint32_t i = 0; i < t.plan->merge_count; i++) {
            const struct plan_merge *merge = &t.plan->merges[i];
            grouped += merge->is_split_group;
            if (merge->is_split_group)
                continue;
            ck_assert_mem_eq(&merges[left++], merge, sizeof *merge);
            longest = merge->count > longest ? merge->count : longest;
        }
        ck_assert(got.count == left && got.longest == longest && !got.spans);
        cuda_lower_queries(t.plan, queries);
        for (uint32_t i = 0; i < cuda_work_tile_queries(t.plan); i++)
            ck_assert(queries[i].query == t.plan->work_tile_queries[i] &&
                      queries[i].keys == t.plan->queries[queries[i].query].keys);
        planner_destroy(t.planner);
    }
    ck_assert_uint_gt(grouped, ROUNDS / 4);
}
END_TEST

START_TEST(merges_over_spans_are_told_apart)
{
    static const uint32_t chunks = SPAN_CHUNKS;
    const struct partial_ref partials[] = {
        {0, chunks - 1, PLAN_SEGMENT}, {1, chunks, PLAN_CHUNK}, {2, chunks + 1, PLAN_CHUNK}};
    const struct plan_merge within = {0, 0, 2, 0}, across = {0, 1, 2, 0};
    struct plan_merge left[1];
    struct plan plan = {.merges = &within, .merge_partials = partials, .merge_count = 1};
    ck_assert(!cuda_lower_merges(&plan, left).spans);
    plan.merges = &across;
    ck_assert(cuda_lower_merges(&plan, left).spans);
}
END_TEST

TCase *lowering_case(void)
{
    TCase *tc = tcase_create("lowering");
    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, tiles_compute_every_column_once);
    tcase_add_test(tc, merges_are_left_for_all_but_split_groups);
    tcase_add_test(tc, merges_over_spans_are_told_apart);
    return tc;
}
