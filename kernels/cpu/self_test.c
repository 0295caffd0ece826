/* SPDX-License-Identifier: Apache-2.0 */
/* self_test.c - see self_test.h.
 *
 * For two sizes of a head, of which one is not a multiple of 16 (the kernels' remainders) and the other
 * one suits tile registers: two chunks of wide values, three rows (the last one sees only part of
 * them), softcap, slopes, a window: tile by tile, merged, finished, and compared with reference_query(). */
#include "kernels/cpu/self_test.h"

#include "kernels/numeric.h"
#include "kernels/reference.h"
#include "kernels/values.h"

#include <math.h>
#include <stdlib.h>

enum { TEST_DIM_MAX = 72, TEST_KEYS = CHUNK_TOKENS + 100, TEST_ROWS = 3 };

static const struct value_source test_values = {.seed = 7, .content = 1, .wide = 1};

/* Largest deviation allowed: f32 sums of TEST_DIM products of size 1, and exp, measured at 6e-7 for the
 * portable kernels; with tile registers each p is off by 2^-17 of it. */
static const double TOLERANCE = 2e-5;

struct problem {
    struct geometry g;
    struct model_constants c;
    float k_scale, v_scale, alibi[TEST_ROWS], sinks[TEST_ROWS];
    uint8_t k[TEST_KEYS][TEST_DIM_MAX * 4], v[TEST_KEYS][TEST_DIM_MAX * 4];
    float q[TEST_ROWS * TEST_DIM_MAX]; /* [TEST_ROWS][head_dim], exact in bf16 */
    uint32_t keys[TEST_ROWS];
};

static void fill(struct problem *p, enum dtype kv_dtype, uint32_t dim)
{
    *p = (struct problem){.k_scale = 1, .v_scale = 0.5F, .keys = {TEST_KEYS, TEST_KEYS, CHUNK_TOKENS + 3}};
    p->g = (struct geometry){.layers = 1,
                             .query_heads = TEST_ROWS,
                             .kv_heads = 1,
                             .head_dim = dim,
                             .block_size = 16,
                             .dtype = DTYPE_BF16,
                             .kv_dtype = kv_dtype,
                             .scale = 0.2F,
                             .softcap = 10,
                             .window = {300}};
    p->c = (struct model_constants){
        .sinks = p->sinks, .alibi = p->alibi, .k_scale = &p->k_scale, .v_scale = &p->v_scale};
    for (uint32_t row = 0; row < TEST_ROWS; row++) {
        p->alibi[row] = 0.01F * (float)row;
        p->sinks[row] = (float)row;
        float *q = p->q + (size_t)row * dim;
        uint8_t rounded[TEST_DIM_MAX * 2];
        values_row(test_values, p->keys[row], 0, VALUES_Q, row, dim, q);
        numeric_from_float(DTYPE_BF16, q, dim, rounded);
        numeric_to_float(DTYPE_BF16, rounded, dim, q);
    }
    for (uint32_t j = 0; j < TEST_KEYS; j++) {
        float row[TEST_DIM_MAX];
        values_row(test_values, j, 0, VALUES_K, 0, dim, row);
        numeric_from_float(kv_dtype, row, dim, p->k[j]);
        values_row(test_values, j, 0, VALUES_V, 0, dim, row);
        numeric_from_float(kv_dtype, row, dim, p->v[j]);
    }
}

static void load_kv(void *cookie, uint32_t position, uint32_t kv_head, float *k, float *v)
{
    const struct problem *p = cookie;
    (void)kv_head;
    numeric_to_float(p->g.kv_dtype, p->k[position], p->g.head_dim, k);
    numeric_to_float(p->g.kv_dtype, p->v[position], p->g.head_dim, v);
}

/* Chunk `chunk` of the problem into `states`. */
static void run_chunk(const struct cpu_kernels *kernels, const struct problem *p, uint32_t chunk,
                      const struct cpu_states *states, float *scratch)
{
    for (uint32_t row = 0; row < TEST_ROWS; row++) {
        states->m[row] = -INFINITY;
        states->l[row] = 0;
    }
    uint32_t begin = chunk * CHUNK_TOKENS,
             end = begin + CHUNK_TOKENS < TEST_KEYS ? begin + CHUNK_TOKENS : TEST_KEYS;
    for (uint32_t position = begin; position < end; position += TILE_TOKENS) {
        uint32_t n = end - position < TILE_TOKENS ? end - position : TILE_TOKENS, front = n > 5 ? 5 : n;
        const struct cpu_span spans[2] = {{p->k[position], p->v[position], front},
                                          {p->k[position + front], p->v[position + front], n - front}};
        const struct cpu_tile tile = {
            .head_dim = p->g.head_dim,
            .rows = TEST_ROWS,
            .position = position,
            .q_dtype = p->g.dtype,
            .kv_dtype = p->g.kv_dtype,
            .spans = spans,
            .span_count = n > front ? 2 : 1,
            .token_stride = sizeof p->k[0],
            .row_bytes = p->g.head_dim * dtype_bytes(p->g.kv_dtype),
            .q = p->q,
            .keys = p->keys,
            .slopes = p->alibi,
            .window = p->g.window[0],
            .scale = p->g.scale,
            .softcap = p->g.softcap,
            .states = *states,
            .scratch = scratch,
        };
        if (kernels->begin)
            kernels->begin(&tile);
        kernels->tile(&tile);
    }
}

/* Everything that one comparison needs. */
struct work {
    struct problem p;
    float m[2][TEST_ROWS], l[2][TEST_ROWS], o[2][TEST_ROWS * TEST_DIM_MAX];
};

static bool agrees(const struct cpu_kernels *kernels, enum dtype kv_dtype, uint32_t dim, struct work *w,
                   float *scratch)
{
    struct cpu_states states[2] = {{w->m[0], w->l[0], w->o[0]}, {w->m[1], w->l[1], w->o[1]}};
    fill(&w->p, kv_dtype, dim);
    for (uint32_t chunk = 0; chunk < 2; chunk++)
        run_chunk(kernels, &w->p, chunk, &states[chunk], scratch);
    kernels->merge(TEST_ROWS, dim, &states[0], &states[1]);
    for (uint32_t row = 0; row < TEST_ROWS; row++) {
        float o[TEST_DIM_MAX], lse;
        double expected[TEST_DIM_MAX], expected_lse;
        kernels->finish(dim, &states[0], row, &w->p.sinks[row], w->p.v_scale, o, &lse);
        reference_query(&w->p.g, &w->p.c, 0, w->p.keys[row], row, w->p.q + (size_t)row * dim, load_kv, &w->p,
                        expected, &expected_lse);
        for (uint32_t d = 0; d < dim; d++) {
            if (!(fabs((double)o[d] - expected[d]) < TOLERANCE))
                return false;
        }
        if (!(fabs((double)lse - expected_lse) < TOLERANCE))
            return false;
    }
    return true;
}

bool self_test_part(const struct cpu_kernels *kernels, uint32_t part)
{
    static const uint32_t dims[SELF_TEST_DIMS] = {TEST_DIM_MAX, 64};
    struct work *w = malloc(sizeof *w);
    float *scratch = calloc(cpu_scratch_floats(TEST_DIM_MAX, TEST_ROWS), sizeof *scratch);
    bool ok = w && scratch &&
              agrees(kernels, (enum dtype)(part / SELF_TEST_DIMS), dims[part % SELF_TEST_DIMS], w, scratch);
    free(w);
    free(scratch);
    return ok;
}

bool self_test(const struct cpu_kernels *kernels)
{
    bool ok = true;
    for (uint32_t part = 0; ok && part < SELF_TEST_PARTS; part++)
        ok = self_test_part(kernels, part);
    return ok;
}
