/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan.c - what a query sees, and plan_fault() sees each way in which a plan can compute a query
 * wrongly. */
#include "kernels/plan.h"
#include "tests/unit/suites.h"

#include <string.h>

#define WORK_TILE(of, chunk, count, query, n, to)                                                            \
    {                                                                                                        \
        .table = of, .first_chunk = chunk, .chunks = count, .first_query = query, .queries = n,              \
        .partial = to                                                                                        \
    }

/* One query of 5 000 keys, 20 chunks: a segment, a run, and the last run as its three leading chunks and
 * one chunk by itself. */
static const struct plan_query query = {0, 5000};
static const struct work_tile work_tiles[4] = {WORK_TILE(0, 0, 16, 0, 1, 0), WORK_TILE(0, 16, 2, 0, 1, 1),
                                               WORK_TILE(0, 18, 1, 0, 1, 2), WORK_TILE(0, 19, 1, 0, 1, 3)};
static const uint32_t work_tile_queries[1] = {0};
static const struct partial_ref partials[4] = {
    {0, 16, PLAN_SEGMENT}, {1, 18, PLAN_CHUNK}, {2, 19, PLAN_CHUNK}, {3, 20, PLAN_CHUNK}};

static const char *fault_of(const struct work_tile *its, const struct partial_ref *pts, uint32_t count)
{
    const struct plan_merge merge = {0, 0, count, 0};
    const struct plan plan = {&query, its, work_tile_queries, &merge, pts, 1, 4, 1, 4, NULL, NULL, 0};
    return plan_fault(&plan, 0);
}

/* Two queries: 1 000 keys as a split group of four chunks, and 300 keys in one work tile. */
static const struct plan_query group_queries[2] = {{0, 1000}, {1, 300}};
static const struct work_tile group_work_tiles[5] = {
    WORK_TILE(1, 0, 2, 4, 1, PLAN_NO_PARTIAL), WORK_TILE(0, 0, 1, 0, 1, 0), WORK_TILE(0, 1, 1, 1, 1, 1),
    WORK_TILE(0, 2, 1, 2, 1, 2), WORK_TILE(0, 3, 1, 3, 1, 3)};
static const struct partial_ref group_partials[4] = {
    {0, 1, PLAN_CHUNK}, {1, 2, PLAN_CHUNK}, {2, 3, PLAN_CHUNK}, {3, 4, PLAN_CHUNK}};
static const struct tile_caps group_caps = {.widths = {{8, 0, 4}, {16, 0, 2}, {64, RUN_CHUNKS, 1}},
                                            .width_count = 3,
                                            .splits_max = 4,
                                            .cluster_max = 2};

static const char *group_fault_of(const struct work_tile *its, const struct partial_ref *pts,
                                  const struct tile_caps *caps, uint32_t is_split_group)
{
    static const uint32_t queries_of_work_tiles[5] = {0, 0, 0, 0, 1};
    const struct plan_merge merge = {0, 0, 4, is_split_group};
    const struct plan plan = {group_queries, its, queries_of_work_tiles, &merge, pts, 2, 5, 1, 4, NULL,
                              caps,          0};
    return plan_fault(&plan, 0);
}

/* The rule as it is written in attention.h: query i = keys - 1 sees key j iff j <= i and (window = 0 or
 * i - j < window). */
START_TEST(a_query_sees_its_window)
{
    static const uint32_t windows[] = {0, 1, 2, 255, 256, 257, 4096, UINT32_MAX};
    for (uint32_t keys = 0; keys < 600; keys++) {
        uint32_t window = windows[_i];
        struct plan_range seen = plan_visible(keys, window), chunks = plan_visible_chunks(keys, window);
        for (uint32_t j = 0; j < 700; j++) {
            int visible = j < keys && (window == 0 || keys - 1 - j < window);
            if (plan_sees(seen, j) != visible || (visible && !plan_sees(chunks, j / CHUNK_TOKENS)))
                ck_abort_msg("key %u of %u, window %u", j, keys, window);
        }
        ck_assert_uint_eq(chunks.first, seen.first / CHUNK_TOKENS);
        ck_assert_uint_eq(chunks.end, (keys + CHUNK_TOKENS - 1) / CHUNK_TOKENS);
    }
}
END_TEST

START_TEST(widths_and_split_groups_fit_the_caps)
{
    struct work_tile its[5];
    struct partial_ref pts[4];
    struct tile_caps caps = group_caps;
    memcpy(its, group_work_tiles, sizeof its);
    memcpy(pts, group_partials, sizeof pts);
    ck_assert_ptr_null(group_fault_of(its, pts, &caps, 0));
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1),
                     "a merge is left out, and no split group computes it");
    its[1].splits = 4;
    its[1].cta_splits = 4;
    ck_assert_ptr_null(group_fault_of(its, pts, &caps, 1));
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 0), "a split group is not all splits of a query");
    ck_assert_str_eq(group_fault_of(its, pts, NULL, 1), "a split group without caps");
    its[1].cta_splits = 2;
    ck_assert_ptr_null(group_fault_of(its, pts, &caps, 1));
    its[1].cta_splits = 1; /* four thread blocks */
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a split group has no room in a cluster");
    its[1].cta_splits = 4;
    for (int i = 1; i < 5; i++)
        its[i].width = 1;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a split group has no room in a thread block");
    its[1].cta_splits = 2;
    ck_assert_ptr_null(group_fault_of(its, pts, &caps, 1));
    its[2].late = 1;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1),
                     "a split group is not the splits of a query in their order");
    its[2].late = 0;
    its[3].width = 0;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1),
                     "a split group is not the splits of a query in their order");
    its[3].width = 1;
    its[0].width = 3;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a work tile has a width that there is not");
    its[0].width = 0;
    its[1].splits = 3;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a split group is not all splits of a query");
    its[1].splits = 5;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a split group of so many work tiles cannot be");
    its[1].splits = 4;
    caps.splits_max = 0;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a split group of so many work tiles cannot be");
    caps = group_caps;
    its[0].width = 2; /* two chunks of one run */
    ck_assert_ptr_null(group_fault_of(its, pts, &caps, 1));
    caps.widths[2].chunks = 1;
    ck_assert_str_eq(group_fault_of(its, pts, &caps, 1), "a work tile's tiles do not take its chunks");
}
END_TEST

START_TEST(a_good_plan_has_no_fault)
{
    const char *fault = fault_of(work_tiles, partials, 4);
    ck_assert_msg(!fault, "%s", fault);
}
END_TEST

START_TEST(bad_plans_have_one)
{
    struct work_tile its[4];
    struct partial_ref pts[4];
    memcpy(its, work_tiles, sizeof its);
    memcpy(pts, partials, sizeof pts);
    ck_assert_str_eq(fault_of(work_tiles, partials, 3), "a query's partials do not reach its end");
    pts[2].level = PLAN_RUN; /* one chunk is no run */
    ck_assert_str_eq(fault_of(work_tiles, pts, 4), "a partial's level does not fit its range");
    memcpy(pts, partials, sizeof pts);
    pts[1].partial = 2;
    ck_assert_str_eq(fault_of(work_tiles, pts, 4), "a query's partials do not follow each other");
    its[3].chunks = 2;
    ck_assert_str_eq(fault_of(its, partials, 4), "a work tile reads chunks that a query does not see");
    memcpy(its, work_tiles, sizeof its);
    its[1].first_chunk = 17; /* two chunks in the middle of a run: not the beginning of its fold */
    its[1].chunks = 2;
    ck_assert_ptr_nonnull(fault_of(its, partials, 4));
    memcpy(its, work_tiles, sizeof its);
    its[0].partial = PLAN_NO_PARTIAL;
    ck_assert_str_eq(fault_of(its, partials, 4),
                     "a work tile finishes a query of which it reads only a part");
}
END_TEST

/* A query of 65 537 keys: its first span, and a chunk of the next one. */
START_TEST(work_tiles_do_not_cross_spans)
{
    static const struct plan_query long_query = {0, SPAN_CHUNKS * CHUNK_TOKENS + 1};
    static const struct work_tile whole = WORK_TILE(0, 0, SPAN_CHUNKS + 1, 0, 1, PLAN_NO_PARTIAL),
                                  its[2] = {WORK_TILE(0, 0, SPAN_CHUNKS, 0, 1, 0),
                                            WORK_TILE(0, SPAN_CHUNKS, 1, 0, 1, 1)},
                                  across[2] = {WORK_TILE(0, 0, SPAN_CHUNKS - 1, 0, 1, 0),
                                               WORK_TILE(0, SPAN_CHUNKS - 1, 2, 0, 1, 1)};
    static const struct partial_ref pts[2] = {{0, SPAN_CHUNKS, PLAN_SEGMENT},
                                              {1, SPAN_CHUNKS + 1, PLAN_SEGMENT}};
    const struct plan_merge merge = {0, 0, 2, 0};
    struct plan plan = {&long_query, &whole, work_tile_queries, NULL, NULL, 1, 1, 0, 0, NULL, NULL, 0};
    ck_assert_str_eq(plan_fault(&plan, 0), "a work tile crosses the end of a span");
    plan = (struct plan){&long_query, its, work_tile_queries, &merge, pts, 1, 2, 1, 2, NULL, NULL, 0};
    ck_assert_ptr_null(plan_fault(&plan, 0));
    plan.work_tiles = across;
    ck_assert_str_eq(plan_fault(&plan, 0), "a work tile crosses the end of a span");
    ck_assert_uint_eq(plan_spans(65536), 1);
    ck_assert_uint_eq(plan_spans(65537), 2);
}
END_TEST

START_TEST(a_fold_in_the_middle_of_a_run_is_refused)
{
    static const struct plan_query short_query = {0, 1024};
    static const struct work_tile its[2] = {WORK_TILE(0, 0, 1, 0, 1, 0), WORK_TILE(0, 1, 3, 0, 1, 1)};
    static const struct partial_ref pts[2] = {{0, 1, PLAN_CHUNK}, {1, 4, PLAN_CHUNK}};
    const struct plan_merge merge = {0, 0, 2, 0};
    const struct plan plan = {&short_query, its, work_tile_queries, &merge, pts, 1, 2, 1, 2, NULL, NULL, 0};
    ck_assert_str_eq(plan_fault(&plan, 0), "a partial's level does not fit its range");
}
END_TEST

START_TEST(a_partial_is_written_once_and_merged_once)
{
    struct work_tile its[5];
    struct partial_ref pts[5];
    memcpy(its, work_tiles, sizeof work_tiles);
    memcpy(pts, partials, sizeof partials);
    its[4] = work_tiles[3];
    const struct plan_merge merges[2] = {{0, 0, 4, 0}, {0, 4, 1, 0}};
    struct plan plan = {&query, its, work_tile_queries, merges, pts, 1, 5, 1, 5, NULL, NULL, 0};
    ck_assert_str_eq(plan_fault(&plan, 0), "two work tiles write one partial");
    its[4].partial = 4;
    ck_assert_str_eq(plan_fault(&plan, 0), "a partial that no merge reads");
    plan.work_tile_count = 4;
    ck_assert_ptr_null(plan_fault(&plan, 0));
    pts[4] = pts[3];
    plan.merge_count = 2;
    ck_assert_str_eq(plan_fault(&plan, 0), "a partial is merged twice");
}
END_TEST

/* Two queries, of 5 000 and of 300 keys, in two slices of a segment each; states from 7 on. */
START_TEST(slices_compute_their_segments_once)
{
    static const struct plan_query queries[2] = {{0, 5000}, {1, 300}};
    static const uint32_t tile_queries[2] = {0, 1};
    static const struct work_tile first[2] = {WORK_TILE(0, 0, 16, 0, 1, 7), WORK_TILE(1, 0, 2, 1, 1, 8)},
                                  last = WORK_TILE(0, 16, 4, 0, 1, 9);
    static const struct partial_ref pts[3] = {
        {7, 16, PLAN_SEGMENT}, {9, 20, PLAN_SEGMENT}, {8, 2, PLAN_SEGMENT}};
    static const struct plan_merge merges[2] = {{0, 0, 2, 0}, {1, 2, 1, 0}};
    static const struct plan_slice slices[2] = {{0, 1, 0, 7}, {1, UINT32_MAX, 0, 7}};
    struct work_tile its[2];
    struct partial_ref other[3];
    memcpy(its, first, sizeof its);
    struct plan plan = {queries, its, tile_queries, merges, pts, 2, 2, 0, 0, &slices[0], NULL, 0};
    ck_assert_ptr_null(plan_fault(&plan, 0));
    plan.work_tile_count = 1;
    ck_assert_str_eq(plan_fault(&plan, 0), "a slice does not compute each of its segments");
    plan.work_tile_count = 2;
    plan.merge_count = 1;
    ck_assert_ptr_nonnull(plan_fault(&plan, 0)); /* outputs before the last slice */
    plan.merge_count = 0;
    its[1] = its[0];
    ck_assert_str_eq(plan_fault(&plan, 0), "two work tiles write one partial");
    its[1] = last;
    ck_assert_str_eq(plan_fault(&plan, 0), "a work tile outside of the slice");
    its[1] = first[1];
    its[1].chunks = 1;
    ck_assert_str_eq(plan_fault(&plan, 0), "a work tile of a slice is not the segment whose state it writes");
    its[0].partial = 8;
    ck_assert_str_eq(plan_fault(&plan, 0), "a work tile of a slice is not the segment whose state it writes");
    plan = (struct plan){queries, &last, tile_queries, merges, pts, 2, 1, 2, 0, &slices[1], NULL, 0};
    ck_assert_ptr_null(plan_fault(&plan, 0));
    plan.merge_count = 1;
    ck_assert_str_eq(plan_fault(&plan, 0), "a query is not finished exactly once");
    plan.merge_count = 2;
    memcpy(other, pts, sizeof other);
    other[1] = pts[0];
    plan.merge_partials = other;
    ck_assert_str_eq(plan_fault(&plan, 0), "a partial is merged twice");
    other[1] = pts[1];
    other[2].partial = 7;
    ck_assert_ptr_nonnull(plan_fault(&plan, 0));
}
END_TEST

/* Of a window of 4 096 the query of 8 192 keys sees nothing of segment 0, whose state nobody writes. */
START_TEST(a_slice_merges_no_segment_that_is_not_seen)
{
    static const struct plan_query late = {0, 8192};
    static const uint32_t tile_query = 0;
    static const struct work_tile tile = WORK_TILE(0, 16, 16, 0, 1, 8);
    static const struct partial_ref pts[2] = {{7, 16, PLAN_SEGMENT}, {8, 32, PLAN_SEGMENT}};
    static const struct plan_slice slice = {1, UINT32_MAX, 0, 7};
    struct plan_merge merge = {0, 1, 1, 0};
    const struct plan plan = {&late, &tile, &tile_query, &merge, pts, 1, 1, 1, 0, &slice, NULL, 0};
    ck_assert_ptr_null(plan_fault(&plan, 4096));
    merge = (struct plan_merge){0, 0, 2, 0};
    ck_assert_str_eq(plan_fault(&plan, 4096), "a query's partials do not follow each other");
}
END_TEST

/* Its state of segment 0 would lie before those of the slice. */
START_TEST(a_slice_has_the_segments_that_its_queries_see)
{
    static const struct plan_query late = {0, 8192};
    static const uint32_t tile_query = 0;
    static const struct work_tile tile = WORK_TILE(0, 16, 16, 0, 1, 7);
    static const struct partial_ref pt = {7, 32, PLAN_SEGMENT};
    static const struct plan_merge merge = {0, 0, 1, 0};
    static const struct plan_slice slice = {1, UINT32_MAX, 1, 7};
    const struct plan plan = {&late, &tile, &tile_query, &merge, &pt, 1, 1, 1, 0, &slice, NULL, 0};
    ck_assert_str_eq(plan_fault(&plan, 0), "a query of a slice sees a segment before the slice's base");
    ck_assert_ptr_null(plan_fault(&plan, 4096));
}
END_TEST

TCase *plan_case(void)
{
    TCase *tc = tcase_create("plan");
    tcase_add_loop_test(tc, a_query_sees_its_window, 0, 8);
    tcase_add_test(tc, a_good_plan_has_no_fault);
    tcase_add_test(tc, widths_and_split_groups_fit_the_caps);
    tcase_add_test(tc, bad_plans_have_one);
    tcase_add_test(tc, work_tiles_do_not_cross_spans);
    tcase_add_test(tc, a_fold_in_the_middle_of_a_run_is_refused);
    tcase_add_test(tc, a_partial_is_written_once_and_merged_once);
    tcase_add_test(tc, slices_compute_their_segments_once);
    tcase_add_test(tc, a_slice_merges_no_segment_that_is_not_seen);
    tcase_add_test(tc, a_slice_has_the_segments_that_its_queries_see);
    return tc;
}
