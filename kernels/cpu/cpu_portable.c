/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_portable.c - the inner loops in plain C, for any processor: the truth that faster paths are
 * compared with.
 *
 * Written so that a compiler can use vectors: eight independent sums a dot product, branch-free exp and
 * tanh, loops over contiguous f32. No fused multiply-add, since without hardware for it that is a
 * library call an element.
 *
 *   s_j = softcap(scale * q.k_j) + slope * (j - i)     -inf where the row does not see key j
 *   m'  = max(m, max_j s_j)   a = exp(m - m')   p_j = exp(s_j - m')
 *   l'  = l a + sum_j p_j               the sum as a tree over the 64 places of the tile: 32 apart, 16, ... 1
 *   o'  = (o a + sum_j p_j v_j) + 0     in order of j, one after the other
 *
 * The "+ 0" turns a -0 (an underflow) into +0. A row that sees fewer keys of a tile than another one
 * then has the same bits whether the keys it does not see are left out or added as p_j = 0. */
#include "kernels/cpu/cpu_kernels.h"

#include "kernels/coefficients.h"
#include "kernels/cpu/cpu_states.h"

#include "kernels/numeric.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 }; /* head_dim is a multiple */

_Static_assert(HEAD_DIM_STEP % LANES == 0, "dot products have no remainder");

/* exp(x) for x <= 0, and 0 for NaN and below EXP_LOWEST. exp(0) is 1. Relative error below 2^-22 (coefficients.h). */
static inline float exp_one(float x)
{
    const float log2_e = 1.44269504F;
    float clamped = x > EXP_LOWEST ? x : EXP_LOWEST;
    float shifted = clamped * log2_e + TO_INTEGER;
    float n = shifted - TO_INTEGER;
    float r = clamped - n * LN2_HIGH - n * LN2_LOW;
    float y = EXP_0;
    y = y * r + EXP_1;
    y = y * r + EXP_2;
    y = y * r + EXP_3;
    y = y * r + EXP_4;
    y = y * r + EXP_5;
    y = y * (r * r) + r + 1.0F;
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    bits += (uint32_t)(int32_t)n << 23;
    memcpy(&y, &bits, sizeof y);
    return x > EXP_LOWEST ? y : 0.0F;
}

/* tanh(y): an odd polynomial near 0 (coefficients.h), and (1 - e) / (1 + e), e = exp(-2 |y|), elsewhere. */
static inline float tanh_any(float y)
{
    float magnitude = fabsf(y), z = y * y;
    float near = TANH_0;
    near = near * z + TANH_1;
    near = near * z + TANH_2;
    near = near * z + TANH_3;
    near = near * z + TANH_4;
    near = near * z * y + y;
    float e = exp_one(-2.0F * magnitude);
    float far = copysignf((1.0F - e) / (1.0F + e), y);
    return magnitude >= TANH_NEAR ? far : near; /* of NaN: near, NaN too */
}

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum[LANES] = {0};
    for (uint32_t i = 0; i < n; i += LANES) {
        for (int lane = 0; lane < LANES; lane++)
            sum[lane] += a[i + (uint32_t)lane] * b[i + (uint32_t)lane];
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++)
            sum[lane] += sum[lane + half];
    }
    return sum[0];
}

static float tree_sum(const float p[TILE_TOKENS])
{
    float sum[TILE_TOKENS / 2];
    for (int i = 0; i < TILE_TOKENS / 2; i++)
        sum[i] = p[i] + p[i + TILE_TOKENS / 2];
    for (int half = TILE_TOKENS / 4; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    }
    return sum[0];
}

/* The keys (or values) of the tile as f32 [tokens][head_dim]. */
static void expand(const struct cpu_tile *t, bool values, float *to)
{
    for (uint32_t i = 0; i < t->span_count; i++) {
        const uint8_t *from = values ? t->spans[i].v : t->spans[i].k;
        for (uint32_t token = 0; token < t->spans[i].tokens; token++, to += t->head_dim)
            numeric_to_float(t->kv_dtype, from + token * t->token_stride, t->head_dim, to);
    }
}

/* Scores of the places [first, end) of the tile for one row; -inf elsewhere. */
static void score(const struct cpu_tile *t, uint32_t row, uint32_t first, uint32_t end, const float *k,
                  float *s)
{
    const float *q = t->q + (size_t)row * t->head_dim;
    float slope = t->slopes ? t->slopes[row] : 0.0F;
    int32_t distance =
        (int32_t)(t->position - (t->keys[row] - 1)); /* of place 0, not positive where the row sees */
    for (uint32_t j = 0; j < TILE_TOKENS; j++)
        s[j] = -INFINITY;
    for (uint32_t j = first; j < end; j++)
        s[j] = dot(q, k + (size_t)j * t->head_dim, t->head_dim) * t->scale;
    for (uint32_t j = first; t->softcap > 0 && j < end; j++)
        s[j] = t->softcap * tanh_any(s[j] / t->softcap);
    for (uint32_t j = first; t->slopes && j < end; j++)
        s[j] += slope * (float)(distance + (int32_t)j);
}

static void update(const struct cpu_tile *t, uint32_t row, uint32_t first, uint32_t end, const float *s,
                   const float *v)
{
    float *o = t->states.o + (size_t)row * t->head_dim;
    float m = t->states.m[row], p[TILE_TOKENS];
    for (uint32_t j = first; j < end; j++)
        m = s[j] > m ? s[j] : m; /* not of NaN */
    for (int j = 0; j < TILE_TOKENS; j++)
        p[j] = m < INFINITY ? exp_one(s[j] - m) : (float)(s[j] == m); /* of NaN: 0 */
    if (t->states.m[row] == -INFINITY) {
        t->states.l[row] = 0;
        memset(o, 0, t->head_dim * sizeof *o);
    } else {
        float a = states_weight(t->states.m[row], m);
        t->states.l[row] *= a;
        for (uint32_t d = 0; d < t->head_dim; d++)
            o[d] *= a;
    }
    t->states.m[row] = m;
    t->states.l[row] += tree_sum(p);
    for (uint32_t j = first; j < end; j++) {
        for (uint32_t d = 0; d < t->head_dim; d++)
            o[d] += p[j] * v[(size_t)j * t->head_dim + d];
    }
    for (uint32_t d = 0; d < t->head_dim; d++)
        o[d] += 0.0F;
}

static void portable_tile(const struct cpu_tile *t)
{
    float *k = t->scratch, *v = t->scratch + (size_t)TILE_TOKENS * t->head_dim, s[TILE_TOKENS];
    expand(t, false, k);
    expand(t, true, v);
    for (uint32_t row = 0; row < t->rows; row++) {
        struct plan_range seen = cpu_tile_seen(t, row);
        if (seen.first >= seen.end)
            continue;
        score(t, row, seen.first, seen.end, k, s);
        update(t, row, seen.first, seen.end, s, v);
    }
}

static bool portable_supported(void)
{
    return true;
}

const struct cpu_kernels cpu_kernels_portable = {
    "portable", portable_supported, NULL, portable_tile, states_merge, states_finish,
};
