/* SPDX-License-Identifier: Apache-2.0 */
/* test_geometry.c - block-sparse masks against patterns worked out by hand, the vllm layout's limits,
 * where elements lie in it, and what of a block becomes unwritten. */
#include "config/geometry.h"
#include "kernels/kv_pool.h"
#include "kernels/numeric.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <string.h>

/* Blocks of 32 tokens, 4 query heads on 2 KV heads; a query that sees 200 keys is in block 6. `blocks`:
 * bit b is set if block b is seen. */
static const struct {
    struct block_sparse sparse;
    uint32_t head;
    unsigned blocks;
} masks[] = {
    {{1, 0, 32, 0, 0}, 0, 0x7f}, /* off */
    {{1, 1, 32, 0, 0}, 0, 0x7f}, /* off */
    {{1, 3, 32, 0, 0}, 0, 1 << 2 | 1 << 5 | 1 << 6},
    {{3, 3, 32, 0, 0}, 3, 1 << 2 | 1 << 4 | 1 << 5 | 1 << 6},
    {{1, 3, 32, 0, 2}, 1, 1 << 0 | 1 << 3 | 1 << 6},  /* slides by 2 a query head: block + 2 + 1 */
    {{1, 3, 32, 1, 2}, 1, 1 << 1 | 1 << 4 | 1 << 6},  /* heads 4 and on: block + 10 + 1 */
    {{1, 4, 32, 0, -3}, 2, 1 << 0 | 1 << 4 | 1 << 6}, /* by 3 a KV head: block + 3 + 1 */
    {{1, 4, 32, 1, -3}, 0, 1 << 1 | 1 << 5 | 1 << 6}, /* KV heads 2 and on: block + 6 + 1 */
};

START_TEST(sparse_masks_are_as_worked_out)
{
    struct geometry g = {.query_heads = 4, .kv_heads = 2, .sparse = masks[_i].sparse};
    for (uint32_t j = 0; j < 200; j++)
        ck_assert_msg(geometry_sees(&g, masks[_i].head, 200, j) == (int)(masks[_i].blocks >> j / 32 & 1),
                      "mask %d, key %u", _i, j);
}
END_TEST

START_TEST(vllm_elements_lie_where_its_documents_say)
{
    /* 2 blocks of 8 slots, 2 KV heads of 32, f16: x = 8 */
    struct geometry g = {.layers = 1,
                         .query_heads = 2,
                         .kv_heads = 2,
                         .head_dim = 32,
                         .block_size = 8,
                         .dtype = DTYPE_F16,
                         .kv_dtype = DTYPE_F16,
                         .layout = LAYOUT_VLLM,
                         .scale = 1};
    float ones[2] = {1, 1};
    const struct model_constants c = {.k_scale = ones, .v_scale = ones};
    struct kv_pool pool;
    char error[ATTENTION_ERROR_BYTES];
    uint16_t k[2][32], v[2][32], row[32];
    const uint32_t ids[] = {1};
    ck_assert_int_eq(kv_pool_init(&pool, &g, 2, "pool.blocks", error), 0);
    for (uint16_t i = 0; i < 64; i++) {
        k[i / 32][i % 32] = (uint16_t)(100 + i);
        v[i / 32][i % 32] = (uint16_t)(1000 + i);
    }
    const struct attention_pass pass = {.source_dtype = DTYPE_F16};
    const struct kv_append append = {.position = 5, .count = 1, .k = k, .v = v};
    kv_pool_append(&pool, &c, &pass, &append, ids);
    const uint16_t *block = (const uint16_t *)(const void *)(pool.bytes + pool.block_bytes);
    /* head 1, dim 19 of slot 5: K [1][19 / 8][5][19 % 8], V [1][19][5] */
    ck_assert_uint_eq(block[((1 * 4 + 2) * 8 + 5) * 8 + 3], 100 + 32 + 19);
    ck_assert_uint_eq(block[2 * 32 * 8 + (1 * 32 + 19) * 8 + 5], 1000 + 32 + 19);
    kv_pool_load(&pool, 0, 1, 5, 1, true, row);
    ck_assert_mem_eq(row, v[1], sizeof row);
    kv_pool_copy(&pool, NULL, &(struct block_copy){COPY_BLOCK, 1, 0, 6}, 0);
    kv_pool_load(&pool, 0, 0, 5, 0, false, row);
    ck_assert_mem_eq(row, k[0], sizeof row);
    kv_pool_deinit(&pool);
}
END_TEST

/* What the vllm layout refuses; head_dim, block_size, dtype, kv_dtype, window. */
static const struct {
    uint32_t head_dim, block_size;
    enum dtype dtype, kv_dtype;
    uint32_t window;
    bool fits;
} limits[] = {
    {128, 16, DTYPE_BF16, DTYPE_BF16, 0, true},  {120, 8, DTYPE_F16, DTYPE_F16, 0, true},
    {40, 16, DTYPE_BF16, DTYPE_BF16, 0, false},  {128, 64, DTYPE_BF16, DTYPE_BF16, 0, false},
    {128, 16, DTYPE_BF16, DTYPE_F16, 0, false},  {128, 16, DTYPE_BF16, DTYPE_E4M3, 0, true},
    {120, 16, DTYPE_BF16, DTYPE_E4M3, 0, false}, {128, 16, DTYPE_BF16, DTYPE_BF16, 100, false},
};

START_TEST(vllm_has_limits)
{
    struct geometry g = {.layers = 1,
                         .query_heads = 2,
                         .kv_heads = 2,
                         .head_dim = limits[_i].head_dim,
                         .block_size = limits[_i].block_size,
                         .dtype = limits[_i].dtype,
                         .kv_dtype = limits[_i].kv_dtype,
                         .layout = LAYOUT_VLLM,
                         .scale = 1,
                         .window = {limits[_i].window}};
    const char *field = NULL;
    char reason[GEOMETRY_REASON_BYTES];
    ck_assert_int_eq(geometry_check(&g, &field, reason), limits[_i].fits ? 0 : ATTND_INVALID);
    if (!limits[_i].fits)
        ck_assert_str_eq(field, "layout");
}
END_TEST

/* Whether K (or V) of one slot, in every head, is what a COPY_POISON makes of it; else it has to be as it was. */
static void check_slot(const struct kv_pool *pool, uint32_t layer, uint32_t block, uint32_t slot,
                       bool poisoned)
{
    const struct geometry *g = pool->geometry;
    uint8_t row[HEAD_DIM_MAX * sizeof(float)];
    for (uint32_t plane = 0; plane < 2 * g->kv_heads; plane++) {
        bool v = plane % 2;
        kv_pool_load(pool, layer, block, slot, plane / 2, v, row);
        for (uint32_t d = 0; d < g->head_dim; d++) {
            float x = numeric_load(g->kv_dtype, row, d);
            bool is = v ? isnan(x) : x == 0;
            ck_assert_msg(is == poisoned,
                          "layout %d, dtype %d, layer %u, block %u, slot %u, head %u, %s [%u]: %g", g->layout,
                          g->kv_dtype, layer, block, slot, plane / 2, v ? "v" : "k", d, (double)x);
        }
    }
}

/* _i: the stored format and the layout. Slots [first, end) of block 1 of three become unwritten, and nothing else does. */
START_TEST(slots_become_unwritten)
{
    static const uint32_t ranges[][2] = {{0, 8}, {3, 6}, {7, 8}, {0, 1}};
    const struct geometry g = {.layers = 2,
                               .query_heads = 3,
                               .kv_heads = 3,
                               .head_dim = 32,
                               .block_size = 8,
                               .dtype = DTYPE_F32,
                               .kv_dtype = (enum dtype)(_i % DTYPE_COUNT),
                               .layout = _i / DTYPE_COUNT,
                               .scale = 1};
    struct kv_pool pool;
    char error[ATTENTION_ERROR_BYTES];
    ck_assert_int_eq(kv_pool_init(&pool, &g, 3, "pool.blocks", error), 0);
    for (size_t n = 0; n < sizeof ranges / sizeof ranges[0]; n++) {
        uint32_t first = ranges[n][0], end = ranges[n][1];
        const struct block_copy copy = {COPY_POISON, first, 1, end - first};
        memset(pool.bytes, 0x35, pool.total_bytes);
        kv_pool_copy(&pool, NULL, &copy, 0);
        kv_pool_copy(&pool, NULL, &copy, 1);
        for (uint32_t at = 0; at < 2 * 3 * 8; at++)
            check_slot(&pool, at / 24, at / 8 % 3, at % 8,
                       at / 8 % 3 == 1 && at % 8 >= first && at % 8 < end);
    }
    kv_pool_deinit(&pool);
}
END_TEST

TCase *geometry_case(void)
{
    TCase *tc = tcase_create("geometry");
    tcase_add_loop_test(tc, sparse_masks_are_as_worked_out, 0, sizeof masks / sizeof masks[0]);
    tcase_add_test(tc, vllm_elements_lie_where_its_documents_say);
    tcase_add_loop_test(tc, vllm_has_limits, 0, sizeof limits / sizeof limits[0]);
    tcase_add_loop_test(tc, slots_become_unwritten, 0, DTYPE_COUNT * (LAYOUT_VLLM + 1));
    return tc;
}
