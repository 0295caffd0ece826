/* SPDX-License-Identifier: Apache-2.0 */
/* test_cpu_kernels.c - tables of functions that name one instruction set give the same bits: of every
 * code of e4m3, at groups and sizes of a head that take each way through the loops. Wide values, so that
 * the order of a sum shows. */
#include "kernels/attention.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/values.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM_MAX = 208, ROWS_MAX = 9 };

/* One tile of `rows` rows, from no state; the states in `to`: m and l of every row, then o. */
static void run_tile(const struct cpu_kernels *kernels, uint32_t rows, uint32_t dim, float *to)
{
    static uint8_t k[TILE_TOKENS][DIM_MAX], v[TILE_TOKENS][DIM_MAX];
    static float q[ROWS_MAX * DIM_MAX];
    uint32_t keys[ROWS_MAX];
    float *scratch = aligned_alloc(64, (cpu_scratch_floats(dim, rows) * sizeof *scratch + 63) / 64 * 64);
    ck_assert_ptr_nonnull(scratch);
    for (uint32_t j = 0; j < TILE_TOKENS; j++)
        for (uint32_t d = 0; d < dim; d++) {
            k[j][d] = (uint8_t)(d * 67 + j * 29);
            v[j][d] = (uint8_t)(d * 43 + j * 31 + 7);
            k[j][d] -= (k[j][d] & 0x7f) == 0x7f; /* NaN is never stored */
            v[j][d] -= (v[j][d] & 0x7f) == 0x7f;
        }
    for (uint32_t row = 0; row < rows; row++) {
        values_row((struct value_source){.seed = 3, .content = 1, .wide = 1}, row, 0, VALUES_Q, 0, dim,
                   q + row * dim);
        keys[row] = TILE_TOKENS - row;
        to[row] = -INFINITY;
        to[rows + row] = 0;
    }
    const struct cpu_span span = {k[0], v[0], TILE_TOKENS};
    const struct cpu_tile tile = {.head_dim = dim,
                                  .rows = rows,
                                  .kv_dtype = DTYPE_E4M3,
                                  .spans = &span,
                                  .span_count = 1,
                                  .token_stride = DIM_MAX,
                                  .row_bytes = dim,
                                  .q = q,
                                  .keys = keys,
                                  .scale = 1e-3F,
                                  .states = {to, to + rows, to + 2 * rows},
                                  .scratch = scratch};
    kernels->tile(&tile);
    free(scratch);
}

START_TEST(tables_of_avx512_agree)
{
    static const uint32_t dims[] = {40, 64, 72, 128, 192, 208};
    static float plain[ROWS_MAX * (2 + DIM_MAX)], vbmi[ROWS_MAX * (2 + DIM_MAX)];
    if (!cpu_kernels_run_here(&cpu_kernels_avx512) || !cpu_kernels_run_here(&cpu_kernels_avx512_vbmi))
        return;
    for (uint32_t rows = 1; rows <= ROWS_MAX; rows++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            run_tile(&cpu_kernels_avx512, rows, dims[i], plain);
            run_tile(&cpu_kernels_avx512_vbmi, rows, dims[i], vbmi);
            ck_assert_msg(isfinite(plain[2 * rows]), "%u rows of %u: not finite", rows, dims[i]);
            ck_assert_msg(memcmp(plain, vbmi, rows * (2 + dims[i]) * sizeof *plain) == 0,
                          "%u rows of %u: other bits", rows, dims[i]);
        }
}
END_TEST

/* The instruction set that "auto" takes for a geometry. */
static void automatic(uint32_t query_heads, enum dtype kv_dtype, char isa[16])
{
    static float ones[2] = {1, 1};
    static const struct model_constants constants = {.k_scale = ones, .v_scale = ones};
    const struct geometry g = {.layers = 1,
                               .query_heads = query_heads,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .block_size = 16,
                               .dtype = DTYPE_BF16,
                               .kv_dtype = kv_dtype,
                               .scale = 0.125F};
    const struct attention_options options = {.backend = "cpu",
                                              .isa = "auto",
                                              .threads = 1,
                                              .geometry = &g,
                                              .constants = &constants,
                                              .blocks = 4,
                                              .rows_max = 4};
    char error[ATTENTION_ERROR_BYTES];
    struct attention *a;
    ck_assert_msg(attention_open(&options, &a, error) == 0, "%s", error);
    snprintf(isa, 16, "%s", attention_info(a)->isa);
    attention_close(a);
}

/* Whatever this processor has: tile registers are for what they are faster at. */
START_TEST(fp8_without_groups_is_for_vectors)
{
    static const enum dtype fp8[] = {DTYPE_E4M3, DTYPE_E5M2};
    char isa[16], best[16];
    automatic(2, DTYPE_BF16, best);
    for (int i = 0; i < 2; i++) {
        automatic(2, fp8[i], isa);
        ck_assert_str_eq(isa, strcmp(best, "amx") == 0 ? "avx512" : best);
        automatic(4, fp8[i], isa);
        ck_assert_str_eq(isa, best);
    }
}
END_TEST

TCase *cpu_kernels_case(void)
{
    TCase *tc = tcase_create("cpu_kernels");
    tcase_add_test(tc, tables_of_avx512_agree);
    tcase_add_test(tc, fp8_without_groups_is_for_vectors);
    return tc;
}
