/* SPDX-License-Identifier: Apache-2.0 */
/* test_step_cost.c - what a step is estimated to take, and whom it wakes for that. */
#include "config/model_constants.h"
#include "kernels/backend.h"
#include "kernels/cpu/step_cost.h"
#include "tests/unit/suites.h"

enum { BLOCKS = 64, BLOCK_SIZE = 16, HEAD_DIM = 8, ROWS = 64, KEYS = CHUNK_TOKENS };

static const struct geometry geometry = {.layers = 1,
                                         .query_heads = 4,
                                         .kv_heads = 2,
                                         .head_dim = HEAD_DIM,
                                         .block_size = BLOCK_SIZE,
                                         .dtype = DTYPE_F32,
                                         .kv_dtype = DTYPE_F32,
                                         .scale = 1};

/* A step of one work tile: the first `count` of ROWS rows, each of the first `keys` keys of the same
 * table. */
struct small {
    uint32_t table[KEYS / BLOCK_SIZE];
    struct plan_query rows[ROWS];
    uint32_t work_tile_queries[ROWS];
    struct value_source sources[ROWS];
    struct work_tile work_tile;
    struct plan plan;
    struct attention_pass pass;
    struct attention_step step;
    float o[ROWS * 4 * HEAD_DIM];
};

static void make_step(struct small *s, uint32_t count, uint32_t keys)
{
    *s = (struct small){.work_tile = {.chunks = 1, .queries = count, .partial = PLAN_NO_PARTIAL}};
    for (uint32_t i = 0; i < count; i++) {
        s->rows[i] = (struct plan_query){0, keys};
        s->work_tile_queries[i] = i;
    }
    for (uint32_t i = 0; i < KEYS / BLOCK_SIZE; i++)
        s->table[i] = i;
    s->plan = (struct plan){.queries = s->rows,
                            .work_tiles = &s->work_tile,
                            .work_tile_queries = s->work_tile_queries,
                            .query_count = count,
                            .work_tile_count = 1};
    s->pass = (struct attention_pass){.plan = &s->plan, .q_source = s->sources, .o = s->o};
    s->step = (struct attention_step){
        .tables = s->table, .stride = KEYS / BLOCK_SIZE, .passes = &s->pass, .pass_count = 1};
}

static struct attention *open_backend(uint32_t threads)
{
    static float ones[2] = {1, 1};
    static const struct model_constants constants = {.k_scale = ones, .v_scale = ones};
    const struct attention_options options = {.backend = "cpu",
                                              .isa = "auto",
                                              .threads = threads,
                                              .geometry = &geometry,
                                              .constants = &constants,
                                              .blocks = BLOCKS,
                                              .rows_max = ROWS};
    char error[ATTENTION_ERROR_BYTES];
    struct attention *a;
    ck_assert_msg(attention_open(&options, &a, error) == 0, "%s", error);
    return a;
}

START_TEST(every_kind_of_work_counts)
{
    static const struct step_rates rates = {1e6, 1e3, 1e2, 1};
    static const struct kv_append append = {.count = 5};
    static const struct block_copy copies[2] = {{COPY_BLOCK, 0, 1, 3}, {.kind = COPY_CLEAR}};
    static const struct kv_compare compares[2] = {{.count = 3, .dtype = DTYPE_F32},
                                                  {.count = 5, .dtype = DTYPE_F16}};
    static const struct kv_read read = {.count = 7};
    static const struct merge_states merge = {.states = 3, .rows = 2, .heads = 4, .head_dim = HEAD_DIM};
    struct small s;
    make_step(&s, 3, 10);
    /* 10 keys of 2 KV heads; 10 keys for 3 rows of 4 heads; 12 heads; a generated q of 12 * 8 */
    double work_tile = 10 * 2 * 1e3 + 10 * 12 * 1 + 12 * 0.1 + 96 * 1e-3;
    ck_assert_double_eq_tol(step_cost_us(&rates, &geometry, &s.step, 1e12), work_tile, 1e-6);
    s.pass.append_count = 1;
    s.pass.appends = &append; /* generated: 5 * 2 * 2 * 8 */
    ck_assert_double_eq_tol(step_cost_us(&rates, &geometry, &s.step, 1e12), work_tile + 0.16, 1e-6);
    s.pass.append_count = 0;
    s.step.copies = copies;
    s.step.copy_count = 2; /* 3 slots and a block of 16, to and fro */
    ck_assert_double_eq_tol(step_cost_us(&rates, &geometry, &s.step, 1e12), work_tile + 19 * 2 * 2e3, 1e-6);
    s.step.copy_count = 0;
    s.step.compares = compares;
    s.step.compare_count = 2; /* 3 rows as they are; 5 to be converted */
    ck_assert_double_eq_tol(step_cost_us(&rates, &geometry, &s.step, 1e12), work_tile + 3 * 2 * 2e3 + 0.16,
                            1e-6);
    s.step.compare_count = 0;
    s.step.reads = &read;
    s.step.read_count = 1;
    ck_assert_double_eq_tol(step_cost_us(&rates, &geometry, &s.step, 1e12), work_tile + 7 * 2 * 2e3, 1e-6);
    s.step.read_count = 0;
    s.step.merges = &merge;
    s.step.merge_count = 1; /* 8 heads, 3 states of each */
    ck_assert_double_eq_tol(step_cost_us(&rates, &geometry, &s.step, 1e12),
                            work_tile + 8 * 0.1 + 8 * 3 * 8 * 1e-3, 1e-6);
}
END_TEST

START_TEST(counting_ends_when_it_is_enough)
{
    static const struct step_rates rates = {1e6, 1e3, 1e2, 1};
    struct small s;
    make_step(&s, 1, 10);
    struct attention_pass passes[1000];
    for (int i = 0; i < 1000; i++)
        passes[i] = s.pass;
    s.step.passes = passes;
    s.step.pass_count = 1000;
    double one = 10 * 2 * 1e3;
    ck_assert_double_le(step_cost_us(&rates, &geometry, &s.step, 1.5 * one), 3 * one);
}
END_TEST

START_TEST(a_tiny_step_wakes_nobody)
{
    struct attention *a = open_backend(2);
    struct small tiny, large;
    make_step(&tiny, 1, 1);
    make_step(&large, ROWS, KEYS);
    struct attention_pass passes[64]; /* a million keys to weigh for a query head each */
    for (int i = 0; i < 64; i++)
        passes[i] = large.pass;
    large.step.passes = passes;
    large.step.pass_count = 64;
    uint64_t wakes = cpu_backend_wakes(a);
    cpu_backend_wake_from(a, 100); /* by what it measures a tiny step of a slow machine may pay, too */
    for (int i = 0; i < 10; i++)
        attention_submit(a, &tiny.step);
    ck_assert_uint_eq(cpu_backend_wakes(a), wakes);
    for (uint64_t i = 1; i <= 10; i++) {
        attention_submit(a, &large.step);
        ck_assert_uint_eq(cpu_backend_wakes(a), wakes + i);
    }
    cpu_backend_wake_from(a, 0);
    attention_submit(a, &tiny.step);
    ck_assert_uint_eq(cpu_backend_wakes(a), wakes + 11);
    attention_close(a);
}
END_TEST

/* However many threads look for the first difference. */
START_TEST(a_large_comparison_wakes_and_finds_the_first_difference)
{
    enum { TOKENS = BLOCKS * BLOCK_SIZE, ROW = 2 * HEAD_DIM, ROUNDS = 50 };
    static float k[TOKENS * ROW], v[TOKENS * ROW];
    static uint32_t table[BLOCKS], equal[ROUNDS];
    static struct kv_compare compares[ROUNDS];
    struct attention *a = open_backend(3);
    for (uint32_t i = 0; i < BLOCKS; i++)
        table[i] = i;
    v[700 * ROW + 3] = v[500 * ROW] = k[900 * ROW] = 1; /* zeros stand there */
    for (uint32_t i = 0; i < ROUNDS; i++) {             /* the second half from behind 500 on */
        uint32_t at = i < ROUNDS / 2 ? i : 501 + i;
        compares[i] = (struct kv_compare){.position = at,
                                          .count = TOKENS - at,
                                          .dtype = DTYPE_F32,
                                          .k = k + (size_t)at * ROW,
                                          .v = v + (size_t)at * ROW,
                                          .equal = &equal[i]};
    }
    const struct attention_step step = {
        .tables = table, .stride = BLOCKS, .compares = compares, .compare_count = ROUNDS};
    uint64_t wakes = cpu_backend_wakes(a);
    attention_submit(a, &step);
    ck_assert_uint_eq(cpu_backend_wakes(a), wakes + 1);
    for (uint32_t i = 0; i < ROUNDS; i++)
        ck_assert_uint_eq(equal[i], i < ROUNDS / 2 ? 500 - i : 700 - (501 + i));
    const struct attention_step small = {.tables = table,
                                         .stride = BLOCKS,
                                         .compares =
                                             &(struct kv_compare){.count = 1, .k = k, .v = v, .equal = equal},
                                         .compare_count = 1};
    attention_submit(a, &small);
    ck_assert_uint_eq(cpu_backend_wakes(a), wakes + 1);
    ck_assert_uint_eq(equal[0], 1);
    attention_close(a);
}
END_TEST

TCase *step_cost_case(void)
{
    TCase *tc = tcase_create("step_cost");
    tcase_add_test(tc, every_kind_of_work_counts);
    tcase_add_test(tc, counting_ends_when_it_is_enough);
    tcase_add_test(tc, a_tiny_step_wakes_nobody);
    tcase_add_test(tc, a_large_comparison_wakes_and_finds_the_first_difference);
    return tc;
}
