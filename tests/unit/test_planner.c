/* SPDX-License-Identifier: Apache-2.0 */
/* test_planner.c - the planner's plans compute every query once, read shared chunks once, and stay within
 * their arrays.
 *
 * Random families of tables: each sequence forks from an earlier one at a random block, or starts
 * afresh. The loose tables of mixed families are no tree: they agree again after they differ. */
#include "scheduler/planner.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

enum {
    TABLES = 24,
    FIRST_LOOSE = 10, /* of a mixed family */
    STRIDE = 600,
    BLOCK_SIZE = 16
};

struct family {
    uint32_t tables[TABLES][STRIDE];
    uint32_t length[TABLES]; /* tokens */
    enum sharing sharing[TABLES];
    uint32_t seed, random, next_id;
};

static uint32_t random_below(struct family *f, uint32_t n)
{
    f->random = f->random * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)f->random * n >> 32);
}

/* Lengthen table `t` to `tokens`; blocks get new ids. */
static void lengthen(struct family *f, uint32_t t, uint32_t tokens)
{
    tokens = tokens < STRIDE * BLOCK_SIZE ? tokens : STRIDE * BLOCK_SIZE;
    for (uint32_t i = (f->length[t] + BLOCK_SIZE - 1) / BLOCK_SIZE; i * BLOCK_SIZE < tokens; i++)
        f->tables[t][i] = f->next_id++;
    f->length[t] = tokens;
}

static struct family *make_family(uint32_t seed, uint32_t longest)
{
    struct family *f = calloc(1, sizeof *f);
    ck_assert_ptr_nonnull(f);
    memset(f->tables, 0xff, sizeof f->tables);
    f->seed = f->random = seed;
    for (uint32_t t = 0; t < TABLES; t++) {
        uint32_t parent = t ? random_below(f, t) : 0;
        if (t && random_below(f, 3)) {
            f->length[t] = random_below(f, f->length[parent] / BLOCK_SIZE + 1) *
                           BLOCK_SIZE; /* whole blocks are shared */
            memcpy(f->tables[t], f->tables[parent], f->length[t] / BLOCK_SIZE * sizeof(uint32_t));
        }
        if (t == 0 || random_below(f, 4)) /* else a fork without tokens of its own so far */
            lengthen(f, t, f->length[t] + random_below(f, longest));
    }
    return f;
}

/* The same, but from FIRST_LOOSE on each table is an earlier one, perhaps shorter, in which some
 * entries are any others. */
static struct family *make_mixed_family(uint32_t seed, uint32_t longest)
{
    struct family *f = make_family(seed, longest);
    for (uint32_t t = FIRST_LOOSE; t < TABLES; t++) {
        uint32_t other = random_below(f, t), entries;
        memcpy(f->tables[t], f->tables[other], sizeof f->tables[t]);
        f->length[t] = random_below(f, 2) ? f->length[other] : random_below(f, f->length[other] + 1);
        entries = (f->length[t] + BLOCK_SIZE - 1) / BLOCK_SIZE;
        for (uint32_t n = entries ? random_below(f, 4) : 0; n > 0; n--)
            f->tables[t][random_below(f, entries)] = random_below(f, f->next_id);
    }
    return f;
}

/* Draw what each query says, or let all say the same. */
static void draw_sharing(struct family *f)
{
    uint32_t same = random_below(f, 6);
    for (uint32_t t = 0; t < TABLES; t++)
        f->sharing[t] = (enum sharing)(same < 3 ? same : random_below(f, 3));
}

static struct planner *create(const struct planner_options *o)
{
    struct planner *p;
    ck_assert_int_eq(planner_create(o, &p), 0);
    return p;
}

/* What a GPU of so many processors might have. */
static struct tile_caps caps_of(uint32_t processors)
{
    return (struct tile_caps){
        .widths = {{8, 0, 4}, {32, 0, 2}, {64, RUN_CHUNKS, 2}, {128, SEGMENT_CHUNKS, 1}},
        .width_count = 4,
        .splits_max = 4,
        .cluster_max = 2,
        .processors = processors};
}

static struct planner *make_planner(uint32_t threads, uint32_t kv_heads, uint32_t window, uint32_t partials)
{
    const struct planner_options o = {.queries_max = 2 * TABLES,
                                      .partials_max = partials,
                                      .tasks = 8 * threads,
                                      .kv_heads = kv_heads,
                                      .group = 4,
                                      .block_size = BLOCK_SIZE,
                                      .window = window,
                                      .first_loose_table = TABLES,
                                      .caps = caps_of(threads)};
    return create(&o);
}

static uint32_t queries_of(const struct family *f, struct planner_query *queries)
{
    for (uint32_t t = 0; t < TABLES; t++)
        queries[t] = (struct planner_query){t, f->length[t], 1, f->sharing[t]};
    return TABLES;
}

/* Every work tile's queries read the same blocks as far as they see, from the work tile's table; those that
 * read alone are in work tiles of one query. */
static void check_blocks(const struct family *f, const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->work_tile_count; i++) {
        const struct work_tile *work_tile = &plan->work_tiles[i];
        for (uint32_t r = 0; r < work_tile->queries; r++) {
            const struct plan_query *query =
                &plan->queries[plan->work_tile_queries[work_tile->first_query + r]];
            ck_assert_msg(work_tile->queries == 1 || f->sharing[query->table] != SHARING_OFF,
                          "seed %u: table %u reads together with others", f->seed, query->table);
            uint32_t end = (work_tile->first_chunk + work_tile->chunks) * CHUNK_TOKENS;
            end = end < query->keys ? end : query->keys;
            for (uint32_t b = work_tile->first_chunk * CHUNK_TOKENS / BLOCK_SIZE; b * BLOCK_SIZE < end; b++)
                ck_assert_msg(f->tables[work_tile->table][b] == f->tables[query->table][b],
                              "seed %u: entry %u is block %u in table %u, and %u in table %u, read for it",
                              f->seed, b, f->tables[query->table][b], query->table,
                              f->tables[work_tile->table][b], work_tile->table);
        }
    }
}

/* The end of what table `t` shows of chunk `c`. */
static uint32_t visible_end(const struct family *f, uint32_t t, uint32_t c)
{
    return f->length[t] < (c + 1) * CHUNK_TOKENS ? f->length[t] : (c + 1) * CHUNK_TOKENS;
}

/* Whether reading chunk `c` of table `other` may serve table `t` as well: the same blocks up to there, and
 * at least as many keys. */
static bool serves(const struct family *f, uint32_t other, uint32_t t, uint32_t c)
{
    if (other == t || f->sharing[other] == SHARING_OFF || f->sharing[t] == SHARING_OFF)
        return false;
    uint32_t end = visible_end(f, t, c),
             more = f->length[other] <= c * CHUNK_TOKENS ? 0 : visible_end(f, other, c);
    if (more < end || (more == end && other > t))
        return false;
    for (uint32_t b = 0; b * BLOCK_SIZE < end; b++) {
        if (f->tables[t][b] != f->tables[other][b])
            return false;
    }
    return true;
}

/* Chunks that have to be read at least: those that no other table's chunk serves. */
static uint32_t distinct_chunks(const struct family *f)
{
    uint32_t count = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        for (uint32_t c = 0; c * CHUNK_TOKENS < f->length[t]; c++) {
            bool served = false;
            for (uint32_t other = 0; !served && other < TABLES; other++)
                served = serves(f, other, t, c);
            count += !served;
        }
    }
    return count;
}

static uint32_t chunks_read(const struct plan *plan)
{
    uint32_t chunks = 0;
    for (uint32_t i = 0; i < plan->work_tile_count; i++)
        chunks += plan->work_tiles[i].chunks;
    return chunks;
}

START_TEST(plans_are_sound_and_share_all_that_is_shared)
{
    static const uint32_t longest[] = {40, 700, 6000};
    for (uint32_t seed = 1; seed <= 60; seed++) {
        struct planner_query queries[TABLES];
        struct family *f = make_family(seed, longest[seed % 3]);
        struct planner *p = make_planner(1 + seed % 5, 1 + seed % 4, 0, 1 << 16);
        struct planner *windowed = make_planner(2, 2, 100 + 50 * seed, 1 << 16);
        uint32_t n = queries_of(f, queries);
        for (int step = 0; step < 20; step++) {
            const struct plan *plan = planner_make(p, queries, n, f->tables[0], STRIDE);
            const char *fault = plan_fault(plan, 0);
            ck_assert_msg(!fault, "seed %u, step %d: %s", seed, step, fault);
            check_blocks(f, plan);
            ck_assert_uint_eq(chunks_read(plan), distinct_chunks(f));
            plan = planner_make(windowed, queries, n, f->tables[0], STRIDE);
            fault = plan_fault(plan, 100 + 50 * seed);
            ck_assert_msg(!fault, "seed %u, windowed: %s", seed, fault);
            check_blocks(f, plan);
            for (uint32_t t = 0; t < TABLES; t++) { /* growth at the end, all alike or some: versions stay */
                if (step % 2 || random_below(f, 2))
                    lengthen(f, t, f->length[t] + (step % 2 ? 1 : random_below(f, 40)));
                queries[t].keys = f->length[t];
            }
        }
        planner_destroy(p);
        planner_destroy(windowed);
        free(f);
    }
}
END_TEST

/* Whether a query of SHARING_ON and another one that does not read alone can share a chunk, which both see
 * whole or one of them in part. A part may as well be shared by two others. */
static bool one_shares_at_any_cost(const struct family *f, bool whole)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        for (uint32_t other = 0; other < TABLES; other++) {
            bool on = f->sharing[t] == SHARING_ON || f->sharing[other] == SHARING_ON;
            for (uint32_t c = 0; on && c * CHUNK_TOKENS < f->length[t]; c++) {
                if ((!whole || (c + 1) * CHUNK_TOKENS <= f->length[t]) && serves(f, other, t, c))
                    return true;
            }
        }
    }
    return false;
}

/* A planner for queries that say different things, with a window and costs of grouping. */
static struct planner *make_mixed_planner(const struct family *f, uint32_t window, uint32_t partials,
                                          struct planner_costs costs)
{
    const struct planner_options o = {.queries_max = TABLES,
                                      .partials_max = partials,
                                      .tasks = 8 + 8 * (f->seed % 5),
                                      .kv_heads = 2,
                                      .group = 1 + f->seed % 10, /* a work tile has room for all queries */
                                      .block_size = BLOCK_SIZE,
                                      .window = window,
                                      .first_loose_table = FIRST_LOOSE,
                                      .costs = costs};
    return create(&o);
}

static const struct plan *make_sound_plan(const struct family *f, struct planner *p, uint32_t window)
{
    struct planner_query queries[TABLES];
    const struct plan *plan = planner_make(p, queries, queries_of(f, queries), f->tables[0], STRIDE);
    const char *fault = plan_fault(plan, window);
    ck_assert_msg(!fault, "seed %u, window %u: %s", f->seed, window, fault);
    check_blocks(f, plan);
    return plan;
}

/* Queries of several workloads in one plan. What each says changes from step to step, under the same
 * versions. */
START_TEST(queries_share_as_they_say)
{
    uint32_t plans[2] = {0}; /* that could save something, and where grouping is dear do not, and do */
    for (uint32_t seed = 1; seed <= 80; seed++) {
        struct family *f = make_mixed_family(seed, seed % 2 ? 700 : 4000);
        const struct planner_costs free_of_cost = {0}, high = {1e-3, 1e9};
        struct planner *p = make_mixed_planner(f, 0, 1 << 16, free_of_cost),
                       *dear = make_mixed_planner(f, 0, 1 << 16, high),
                       *few_states = make_mixed_planner(f, 0, 3, free_of_cost),
                       *windowed = make_mixed_planner(f, 900, 1 << 16, free_of_cost);
        for (int step = 0; step < 12; step++) {
            if (step % 3)
                draw_sharing(f);
            uint32_t least = distinct_chunks(f), all = 0;
            for (uint32_t t = 0; t < TABLES; t++)
                all += (f->length[t] + CHUNK_TOKENS - 1) / CHUNK_TOKENS;
            ck_assert_uint_eq(chunks_read(make_sound_plan(f, p, 0)), least);
            uint32_t read = chunks_read(make_sound_plan(f, dear, 0));
            ck_assert_msg((read == least && one_shares_at_any_cost(f, false)) ||
                              (read == all && !one_shares_at_any_cost(f, true)),
                          "seed %u, step %d: %u chunks of %u to %u", seed, step, read, least, all);
            plans[read < all] += least < all;
            (void)make_sound_plan(f, few_states, 0);
            (void)make_sound_plan(f, windowed, 900);
            uint32_t t = (uint32_t)step % FIRST_LOOSE;
            lengthen(f, t, f->length[t] + 20);
        }
        planner_destroy(p);
        planner_destroy(dear);
        planner_destroy(few_states);
        planner_destroy(windowed);
        free(f);
    }
    ck_assert_uint_gt(plans[false], 10);
    ck_assert_uint_gt(plans[true], 10);
}
END_TEST

/* Queries in the order of the planner, some at a time, in slices of some segments: each slice is sound, and
 * all together read what one plan reads, but for what is cut. */
START_TEST(slices_compute_every_segment_once)
{
    for (uint32_t seed = 1; seed <= 60; seed++) {
        struct planner_query queries[TABLES], ordered[TABLES];
        struct planner_place places[TABLES];
        struct family *f = make_mixed_family(seed, 6000);
        draw_sharing(f);
        uint32_t window = seed % 4 ? 0 : 5000, together = 1 + random_below(f, TABLES),
                 segments = 1 + random_below(f, 3), n = queries_of(f, queries);
        const struct planner_options o = {.queries_max = TABLES,
                                          .partials_max = 100,
                                          .slice_states = 3 * TABLES,
                                          .tasks = 8,
                                          .kv_heads = 2,
                                          .group = 1 + seed % 90,
                                          .block_size = BLOCK_SIZE,
                                          .window = window,
                                          .first_loose_table = FIRST_LOOSE};
        struct planner *p = create(&o);
        planner_order(p, queries, n, f->tables[0], STRIDE, places);
        uint32_t least = chunks_read(planner_make(p, queries, n, f->tables[0], STRIDE)), read = 0;
        for (uint32_t i = 0; i < n; i++)
            ordered[i] = queries[places[i].query];
        for (uint32_t first = 0, count; first < n; first += count) {
            count = n - first < together ? n - first : together;
            for (uint32_t s = 0; s < 3; s += segments) {
                const struct plan_slice slice = {s, s + segments < 3 ? s + segments : UINT32_MAX, 0, 100};
                const struct plan *plan =
                    planner_make_slice(p, ordered + first, count, f->tables[0], STRIDE, &slice);
                const char *fault = plan_fault(plan, window);
                ck_assert_msg(!fault, "seed %u, queries from %u, segment %u: %s", seed, first, s, fault);
                check_blocks(f, plan);
                read += chunks_read(plan);
            }
        }
        if (together == TABLES && window == 0) /* queries that part within a segment read it apart */
            ck_assert_uint_le(read, least + TABLES * SEGMENT_CHUNKS);
        planner_destroy(p);
        free(f);
    }
}
END_TEST

/* The places of the order say what is read: chunks, less those that neighbours have in common. */
START_TEST(the_order_says_what_is_read)
{
    for (uint32_t seed = 1; seed <= 30; seed++) {
        struct planner_query queries[TABLES];
        struct planner_place places[TABLES];
        struct family *f = make_family(seed, 6000);
        struct planner *p = make_planner(2, 2, 0, 1 << 16);
        draw_sharing(f);
        uint32_t n = queries_of(f, queries), chunks = 0;
        planner_order(p, queries, n, f->tables[0], STRIDE, places);
        for (uint32_t i = 0; i < n; i++)
            chunks += places[i].end - places[i].first - places[i].common;
        ck_assert_uint_eq(chunks, distinct_chunks(f));
        planner_destroy(p);
        free(f);
    }
}
END_TEST

/* Found in review: caller's own tables that agree at an index after differing before it. A bisection
 * for their common prefix ended behind that index, and one read the other's blocks. */
START_TEST(bug_tables_that_agree_again_read_another_table)
{
    static const uint32_t longest[] = {400, 2000, 6000};
    for (uint32_t seed = 1; seed <= 120; seed++) {
        struct planner_query queries[TABLES];
        struct family *f = make_mixed_family(seed, longest[seed % 3]);
        for (uint32_t window = 0; window <= 3000; window += 300) {
            const struct planner_options o = {.queries_max = TABLES,
                                              .partials_max = window ? window / 30 : 1 << 16,
                                              .tasks = 8 + 8 * (seed % 5),
                                              .kv_heads = 1 + seed % 4,
                                              .group = 4,
                                              .block_size = BLOCK_SIZE,
                                              .window = window,
                                              .first_loose_table = FIRST_LOOSE};
            struct planner *p = create(&o);
            const struct plan *plan = planner_make(p, queries, queries_of(f, queries), f->tables[0], STRIDE);
            const char *fault = plan_fault(plan, window);
            ck_assert_msg(!fault, "seed %u, window %u: %s", seed, window, fault);
            check_blocks(f, plan);
            if (window == 0)
                ck_assert_uint_eq(chunks_read(plan), distinct_chunks(f));
            planner_destroy(p);
        }
        free(f);
    }
}
END_TEST

/* Found in review: three tables alike up to a block boundary, two of which grow by different blocks.
 * The order kept from the step before put the one that did not grow in the middle, and all three were
 * read from one table. */
START_TEST(bug_unequal_growth_read_another_table)
{
    struct family *f = calloc(1, sizeof *f);
    struct planner *p = make_planner(2, 2, 0, 1 << 16);
    struct planner_query queries[3];
    ck_assert_ptr_nonnull(f);
    lengthen(f, 0, 304);
    for (uint32_t t = 0; t < 3; t++) {
        memcpy(f->tables[t], f->tables[0], sizeof f->tables[t]);
        f->length[t] = 304;
        queries[t] = (struct planner_query){t, 304, 1, SHARING_ON};
    }
    planner_make(p, queries, 3, f->tables[0], STRIDE);
    for (uint32_t t = 0; t < 3; t += 2) {
        lengthen(f, t, 305);
        queries[t].keys = 305;
    }
    const struct plan *plan = planner_make(p, queries, 3, f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    check_blocks(f, plan);
    planner_destroy(p);
    free(f);
}
END_TEST

/* After a table changed under the same name (a new version), nothing of the old order may be used. */
START_TEST(a_new_version_is_looked_at_again)
{
    struct planner_query queries[TABLES];
    struct family *f = make_family(5, 3000);
    struct planner *p = make_planner(2, 2, 0, 1 << 16);
    uint32_t n = queries_of(f, queries);
    planner_make(p, queries, n, f->tables[0], STRIDE);
    for (uint32_t t = 0; t < TABLES; t += 2) {
        for (uint32_t b = 0; b * BLOCK_SIZE < f->length[t]; b++)
            f->tables[t][b] = f->next_id++;
        queries[t].version++;
    }
    const struct plan *plan = planner_make(p, queries, n, f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    check_blocks(f, plan);
    ck_assert_uint_eq(chunks_read(plan), distinct_chunks(f));
    planner_destroy(p);
    free(f);
}
END_TEST

/* Queries of one append: several positions of one table, some of them ending in the same chunk. */
START_TEST(queries_of_one_sequence_share_its_chunks)
{
    struct family *f = make_family(9, 3000);
    struct planner *p = make_planner(2, 2, 0, 1 << 16);
    struct planner_query queries[8];
    lengthen(f, 0, 2000);
    static const uint32_t read[] = {4 * 7 + 4 * 8, 7 + 4 * 8, 8}; /* if so many times four of them share */
    for (uint32_t on = 0; on < 3; on++) {
        for (uint32_t i = 0; i < 8; i++) /* the seventh chunk ends at 1 792 */
            queries[i] = (struct planner_query){0, 1789 + i, 1, i < 4 * on ? SHARING_ON : SHARING_OFF};
        const struct plan *plan = planner_make(p, queries, 8, f->tables[0], STRIDE);
        ck_assert_ptr_null(plan_fault(plan, 0));
        ck_assert_uint_eq(chunks_read(plan), read[on]);
    }
    planner_destroy(p);
    free(f);
}
END_TEST

/* Plan a family with room for three partial states, and give the planner back. */
static void plan_without_room(struct planner *p)
{
    struct planner_query queries[TABLES];
    struct family *f = make_family(3, 6000);
    const struct plan *plan = planner_make(p, queries, queries_of(f, queries), f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    ck_assert_uint_le(plan->partial_count, 3);
    planner_destroy(p);
    free(f);
}

START_TEST(without_room_for_partials_queries_are_whole)
{
    plan_without_room(make_planner(4, 1, 0, 3));
}
END_TEST

START_TEST(a_sequence_without_tokens_gets_an_empty_merge)
{
    struct family *f = make_family(3, 100);
    struct planner *p = make_planner(1, 1, 0, 16);
    const struct planner_query queries[2] = {{0, 0, 1, SHARING_ON}, {1, 0, 1, SHARING_ON}};
    const struct plan *plan = planner_make(p, queries, 2, f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    ck_assert_uint_eq(plan->merge_count, 2);
    ck_assert_uint_eq(plan->work_tile_count, 0);
    planner_destroy(p);
    free(f);
}
END_TEST

/* 32 chunks for 16 tasks were cut into 2 + 1 + 1 chunks of each run: three partial states where one
 * will do. */
START_TEST(bug_splits_were_parts_of_nodes)
{
    struct family *f = make_family(3, 100);
    struct planner *p = make_planner(2, 1, 0, 64);
    const struct planner_query query = {0, 32 * CHUNK_TOKENS, 1, SHARING_ON};
    lengthen(f, 0, query.keys);
    const struct plan *plan = planner_make(p, &query, 1, f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    ck_assert_uint_eq(plan->work_tile_count, 32 / RUN_CHUNKS);
    for (uint32_t i = 0; i < plan->work_tile_count; i++)
        ck_assert_uint_eq(plan->work_tiles[i].chunks, RUN_CHUNKS);
    planner_destroy(p);
    free(f);
}
END_TEST

/* Tables 0 .. n - 1 share `chunks` chunks and have one of their own each, in `queries`. */
static struct family *make_prefix(uint32_t n, uint32_t chunks, struct planner_query *queries)
{
    struct family *f = make_family(3, 100);
    for (uint32_t t = 0; t < n; t++) {
        if (t)
            memcpy(f->tables[t], f->tables[0], chunks * CHUNK_TOKENS / BLOCK_SIZE * sizeof(uint32_t));
        f->length[t] = t ? chunks * CHUNK_TOKENS : 0;
        lengthen(f, t, (chunks + 1) * CHUNK_TOKENS);
        queries[t] = (struct planner_query){t, f->length[t], 1, SHARING_AUTO};
    }
    return f;
}

/* A prefix of `chunks` chunks of n queries. Returns how many work tiles it
 * became, all of one size. */
static uint32_t splits_of_prefix(uint32_t n, uint32_t chunks, uint32_t threads, uint32_t partials,
                                 uint32_t *size)
{
    struct planner_query queries[TABLES];
    struct family *f = make_prefix(n, chunks, queries);
    struct planner *p = make_planner(threads, 2, 0, partials);
    uint32_t work_tiles = 0;
    const struct plan *plan = planner_make(p, queries, n, f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    ck_assert_uint_eq(chunks_read(plan), chunks + n);
    *size = 0;
    for (uint32_t i = 0; i < plan->work_tile_count; i++) {
        const struct work_tile *work_tile = &plan->work_tiles[i];
        if (work_tile->queries == 1)
            continue;
        ck_assert(*size == 0 || *size == work_tile->chunks);
        *size = work_tile->chunks;
        work_tiles++;
    }
    planner_destroy(p);
    free(f);
    return work_tiles;
}

/* A prefix that 24 queries share was counted 24 times, and cut into splits for 24 times the work. */
START_TEST(bug_shared_chunks_were_counted_once_a_query)
{
    uint32_t size;
    ck_assert_uint_eq(splits_of_prefix(24, 32, 16, 1 << 12, &size), 32 / RUN_CHUNKS);
    ck_assert_uint_eq(size, RUN_CHUNKS);
}
END_TEST

/* As long as larger splits fit, a step without room for partial states still shares. */
START_TEST(bug_sharing_was_given_up_for_small_splits)
{
    uint32_t size;
    ck_assert_uint_eq(splits_of_prefix(24, 32, 16, 24 * 3, &size), 32 / SEGMENT_CHUNKS);
    ck_assert_uint_eq(size, SEGMENT_CHUNKS);
    ck_assert_uint_eq(splits_of_prefix(24, 32, 16, 24 * 2, &size), 1);
    ck_assert_uint_eq(size, 32);
}
END_TEST

/* Whole queries are what always fits, also where one query is a work tile of many columns. */
START_TEST(bug_whole_queries_of_large_groups_were_cut)
{
    const struct planner_options o = {.queries_max = TABLES,
                                      .partials_max = 3,
                                      .tasks = 8,
                                      .kv_heads = 1,
                                      .group = 64,
                                      .block_size = BLOCK_SIZE,
                                      .first_loose_table = TABLES};
    plan_without_room(create(&o));
}
END_TEST

/* Queries of up to five spans, alone and on prefixes of any length: with the least partial states that there
 * may be and with more, under every window. */
START_TEST(queries_of_many_spans_always_have_a_plan)
{
    enum {
        QUERIES = 12,
        SPAN = SPAN_CHUNKS * CHUNK_TOKENS,
        LONGEST = 5 * SPAN,
        BLOCKS = LONGEST / CHUNK_TOKENS
    };
    static uint32_t tables[QUERIES][BLOCKS];
    static const uint32_t windows[] = {0, 300, SPAN - 1, SPAN, SPAN + 1, 3 * SPAN + 77};
    uint32_t random = 3;
    for (int round = 0; round < ROUNDS_OF(600); round++) {
        struct planner_query queries[QUERIES];
        for (uint32_t i = 0; i < QUERIES; i++) {
            random = random * 1664525 + 1013904223;
            uint32_t shared = i ? (random >> 8) % BLOCKS : 0, length = 1 + (random >> 5) % LONGEST,
                     near = (random >> 28) % 3;
            if (random >> 30)
                length = (1 + length / SPAN % 5) * SPAN - 1 + (near < 2 || length > 4 * SPAN ? 0 : near);
            for (uint32_t at = 0; at < BLOCKS; at++)
                tables[i][at] = at < shared ? tables[i / 2][at] : i * BLOCKS + at;
            queries[i] = (struct planner_query){i, length, (uint64_t)round, i % 4 ? SHARING_ON : SHARING_OFF};
        }
        const struct planner_options o = {.queries_max = QUERIES,
                                          .partials_max =
                                              planner_partials_least(QUERIES, LONGEST) * (1 + round % 3),
                                          .tasks = 8,
                                          .kv_heads = 2,
                                          .group = round % 2 ? 4 : 64,
                                          .block_size = CHUNK_TOKENS,
                                          .window = windows[round % 6],
                                          .first_loose_table = QUERIES};
        struct planner *p = create(&o);
        const char *fault = plan_fault(planner_make(p, queries, QUERIES, tables[0], BLOCKS), o.window);
        ck_assert_msg(!fault, "round %d: %s", round, fault);
        planner_destroy(p);
    }
}
END_TEST

/* Whatever the amount of work: attend_wide.cu folds no further. */
START_TEST(work_tiles_of_many_query_heads_lie_within_a_node)
{
    uint32_t size;
    ck_assert_uint_eq(splits_of_prefix(24, 32, 1, 1 << 12, &size), 32 / SEGMENT_CHUNKS); /* 96 columns */
    ck_assert_uint_eq(size, SEGMENT_CHUNKS);
    ck_assert_uint_eq(splits_of_prefix(12, 32, 1, 1 << 12, &size), 32 / RUN_CHUNKS); /* 48 */
    ck_assert_uint_eq(size, RUN_CHUNKS);
}
END_TEST

/* As many chunks as n queries read, one of them together, if reading a chunk takes 2 us and grouping
 * `cost`. */
static uint64_t read_at_cost(uint32_t n, double cost)
{
    struct planner_query queries[TABLES];
    struct family *f = make_prefix(n, 1, queries);
    const struct planner_options o = {.queries_max = TABLES,
                                      .partials_max = 1 << 12,
                                      .tasks = 8,
                                      .kv_heads = 2,
                                      .group = 4,
                                      .block_size = BLOCK_SIZE,
                                      .first_loose_table = TABLES,
                                      .costs = {2, cost}};
    struct planner *p = create(&o);
    const struct plan *plan = planner_make(p, queries, n, f->tables[0], STRIDE);
    ck_assert_ptr_null(plan_fault(plan, 0));
    uint64_t chunks = chunks_read(plan);
    planner_destroy(p);
    free(f);
    return chunks;
}

START_TEST(queries_are_grouped_where_that_saves_time)
{
    ck_assert_uint_eq(read_at_cost(4, 0), 1 + 4);
    ck_assert_uint_eq(read_at_cost(4, 6), 1 + 4); /* three chunks less, 6 us */
    ck_assert_uint_eq(read_at_cost(4, 6.1), 4 + 4);
    ck_assert_uint_eq(read_at_cost(5, 6.1), 1 + 5);
}
END_TEST

/* Of n queries of so many keys that share nothing, on a GPU with room for 528 thread blocks at once, of 8 KV
 * heads: work tiles a query, all of which are split groups if there are several. */
static uint32_t work_tiles_of_each(uint32_t n, uint32_t keys)
{
    enum { QUERIES_MAX = 600, BLOCKS = 64 };
    static uint32_t tables[QUERIES_MAX][BLOCKS];
    struct planner_query queries[QUERIES_MAX];
    const struct planner_options o = {.queries_max = QUERIES_MAX,
                                      .partials_max = 1 << 14,
                                      .tasks = 528,
                                      .kv_heads = 8,
                                      .group = 4,
                                      .block_size = CHUNK_TOKENS,
                                      .first_loose_table = QUERIES_MAX,
                                      .caps = caps_of(132)};
    for (uint32_t i = 0; i < n; i++) {
        queries[i] = (struct planner_query){i, keys, 1, SHARING_OFF};
        for (uint32_t at = 0; at < BLOCKS; at++)
            tables[i][at] = i * BLOCKS + at;
    }
    struct planner *p = create(&o);
    const struct plan *plan = planner_make(p, queries, n, tables[0], BLOCKS);
    ck_assert_ptr_null(plan_fault(plan, 0));
    uint32_t each = plan->work_tile_count / n;
    ck_assert_uint_eq(plan->work_tile_count % n, 0);
    ck_assert_uint_eq(plan->merge_count, each > 1 ? n : 0);
    for (uint32_t i = 0; i < plan->merge_count; i++)
        ck_assert(plan->merges[i].is_split_group);
    planner_destroy(p);
    return each;
}

START_TEST(queries_beyond_a_wave_are_split_groups)
{
    ck_assert_uint_eq(work_tiles_of_each(64, 4096), 1); /* 512 thread blocks */
    ck_assert_uint_eq(work_tiles_of_each(66, 4096), 1); /* 528 */
    ck_assert_uint_eq(work_tiles_of_each(67, 4096), 4);
    ck_assert_uint_eq(work_tiles_of_each(72, 8192), 2); /* segments */
    ck_assert_uint_eq(work_tiles_of_each(67, 1024), 4);
    ck_assert_uint_eq(work_tiles_of_each(600, 1024), 1); /* many short queries end together as they are */
    ck_assert_uint_eq(work_tiles_of_each(200, 333), 1);
}
END_TEST

/* Of so many query tokens at the end of one sequence: how many work tiles are made, and how many partial
 * states. */
static uint32_t work_tiles_of_prefill(uint32_t tokens, uint32_t keys, uint32_t window, uint32_t *partials)
{
    enum { QUERIES_MAX = 600, BLOCKS = 64 };
    static uint32_t table[BLOCKS];
    struct planner_query queries[QUERIES_MAX];
    struct planner_options o = {.queries_max = QUERIES_MAX,
                                .partials_max = 1 << 14,
                                .tasks = 528,
                                .kv_heads = 8,
                                .group = 4,
                                .block_size = CHUNK_TOKENS,
                                .window = window,
                                .first_loose_table = 1,
                                .caps = caps_of(132)};
    o.caps.widths[3].chunks = SPAN_CHUNKS;
    for (uint32_t i = 0; i < tokens; i++)
        queries[i] = (struct planner_query){0, keys - tokens + 1 + i, 1, SHARING_ON};
    for (uint32_t at = 0; at < BLOCKS; at++)
        table[at] = at;
    struct planner *p = create(&o);
    const struct plan *plan = planner_make(p, queries, tokens, table, BLOCKS);
    ck_assert_ptr_null(plan_fault(plan, window));
    uint32_t work_tiles = plan->work_tile_count;
    *partials = plan->partial_count;
    planner_destroy(p);
    return work_tiles;
}

/* Query tokens that wait for tensor cores are finished by work tiles of 64, those of one last chunk. */
START_TEST(tokens_of_a_prefill_are_whole)
{
    uint32_t partials;
    ck_assert_uint_eq(work_tiles_of_prefill(512, 8192 + 512, 0, &partials), 4 + 4);
    ck_assert_uint_eq(partials, 0);
    ck_assert_uint_eq(work_tiles_of_prefill(512, 8100 + 512, 0, &partials),
                      2 + 4 + 3); /* 92, 256, 164 tokens */
    ck_assert_uint_eq(partials, 0);
    (void)work_tiles_of_prefill(512, 8192 + 512, 700, &partials); /* their windows begin in other chunks */
    (void)work_tiles_of_prefill(100, 8192 + 100, 0, &partials);   /* memory is what they wait for */
    ck_assert_uint_gt(partials, 0);
}
END_TEST

/* Queries behind 32 chunks that they have in common, each with `own` tokens more: how many late work tiles there are. */
static uint32_t late_of_family(uint32_t queries, uint32_t own, uint32_t partials)
{
    enum { QUERIES_MAX = 512, SHARED = 32, BLOCKS = SHARED + 4 };
    static uint32_t tables[QUERIES_MAX][BLOCKS];
    struct planner_query asked[QUERIES_MAX];
    struct planner_options o = {.queries_max = QUERIES_MAX,
                                .partials_max = partials,
                                .tasks = 528,
                                .kv_heads = 8,
                                .group = 4,
                                .block_size = CHUNK_TOKENS,
                                .first_loose_table = QUERIES_MAX,
                                .caps = caps_of(132)};
    o.caps.widths[3].chunks = SPAN_CHUNKS;
    for (uint32_t i = 0; i < queries; i++) {
        asked[i] = (struct planner_query){i, SHARED * CHUNK_TOKENS + own, 1, SHARING_ON};
        for (uint32_t at = 0; at < BLOCKS; at++)
            tables[i][at] = at < SHARED ? at : SHARED + i * BLOCKS + at;
    }
    struct planner *p = create(&o);
    const struct plan *plan = planner_make(p, asked, queries, tables[0], BLOCKS);
    uint32_t late = 0;
    ck_assert_ptr_null(plan_fault(plan, 0));
    for (uint32_t i = 0; i < plan->work_tile_count; i++) {
        late += plan->work_tiles[i].late;
        ck_assert(!plan->work_tiles[i].late || plan->work_tiles[i].chunks == RUN_CHUNKS);
    }
    planner_destroy(p);
    return late;
}

/* Two of the eight work tiles of 16 thread blocks each, on 132 processors, in four runs each. */
START_TEST(arithmetic_goes_on_beside_reading)
{
    ck_assert_uint_eq(late_of_family(256, 128, 1 << 14), 2 * 4);
    ck_assert_uint_eq(late_of_family(256, 512, 1 << 14), 2 * 4);
    ck_assert_uint_eq(late_of_family(256, 32, 1 << 14), 0);        /* there is little to read */
    ck_assert_uint_eq(late_of_family(128, 128, 1 << 14), 0);       /* processors are left for it */
    ck_assert_uint_eq(late_of_family(512, 128, 1 << 14), 0);       /* more than a wave */
    ck_assert_uint_eq(late_of_family(256, 128, 3 * 256), 0);       /* no room for more partial states; */
    ck_assert_uint_eq(late_of_family(256, 128, 3 * 256 + 200), 4); /* for one's */
}
END_TEST

TCase *planner_case(void)
{
    TCase *tc = tcase_create("planner");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, plans_are_sound_and_share_all_that_is_shared);
    tcase_add_test(tc, queries_share_as_they_say);
    tcase_add_test(tc, slices_compute_every_segment_once);
    tcase_add_test(tc, the_order_says_what_is_read);
    tcase_add_test(tc, bug_tables_that_agree_again_read_another_table);
    tcase_add_test(tc, bug_unequal_growth_read_another_table);
    tcase_add_test(tc, a_new_version_is_looked_at_again);
    tcase_add_test(tc, queries_of_one_sequence_share_its_chunks);
    tcase_add_test(tc, without_room_for_partials_queries_are_whole);
    tcase_add_test(tc, a_sequence_without_tokens_gets_an_empty_merge);
    tcase_add_test(tc, bug_splits_were_parts_of_nodes);
    tcase_add_test(tc, queries_of_many_spans_always_have_a_plan);
    tcase_add_test(tc, bug_shared_chunks_were_counted_once_a_query);
    tcase_add_test(tc, work_tiles_of_many_query_heads_lie_within_a_node);
    tcase_add_test(tc, bug_sharing_was_given_up_for_small_splits);
    tcase_add_test(tc, bug_whole_queries_of_large_groups_were_cut);
    tcase_add_test(tc, queries_beyond_a_wave_are_split_groups);
    tcase_add_test(tc, arithmetic_goes_on_beside_reading);
    tcase_add_test(tc, tokens_of_a_prefill_are_whole);
    tcase_add_test(tc, queries_are_grouped_where_that_saves_time);
    return tc;
}
