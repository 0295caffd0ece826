/* cpu_simd.h - the tile, merge and finish of the vector paths, written once over `vec`; each
 * instruction set includes it after it has defined its vectors (cpu_avx2.c, cpu_avx512.c).
 *
 *   s_j = softcap(scale * q.k_j) + slope * (j - i)     one fused multiply-add after the other over d
 *   m'  = max(m, max_j s_j)   a = exp(m - m')   p_j = exp(s_j - m')
 *   l'  = l a + sum_j p_j     the sum as a tree over the 64 places of the tile
 *   o'  = (o a + sum_j p_j v_j) + 0     one fused multiply-add after the other over j
 *
 * Tokens fill the lanes of a score, dimensions those of an output. For that the keys of a tile are
 * transposed on the way in, LANES tokens at a time: kt [head_dim][64] f32, in L1 for head_dim up to
 * 128. Values are converted where they are used, or once into v32 when more than ROWS_AT_ONCE rows
 * share the tile.
 *
 *   packed rows   |0 1 2 3|4 5 6 7|8 ...     R at a time: R x (ACCUMULATORS / R) accumulators
 *
 * Every chain of additions runs over d or j for one row alone, so its bits are the same in whatever
 * block of rows it is computed. Keys that a row does not see, but another one of its block does, have
 * p_j = 0; the "+ 0" at the end makes a -0 that they might keep a +0 (see cpu_portable.c).
 *
 * Memory: while a tile is computed the next one is prefetched into L2, keys while keys are transposed,
 * values while values are multiplied. A tile of 64 tokens of 128 bf16 dimensions is 32 KiB. */
#include "kernels/cpu/cpu_kernels.h"

#include <math.h>
#include <string.h>

enum {
    ROWS_AT_ONCE = 8,   /* more share expanded values */
    ROWS_TOGETHER = 32, /* rows whose scores are kept between the two products */
    TOKEN_VECS = TILE_TOKENS / LANES,
    CACHE_LINE = 64
};

_Static_assert(TILE_TOKENS % LANES == 0, "a tile is whole vectors of tokens");
_Static_assert((int)ROWS_TOGETHER <= (int)CPU_SCRATCH_ROWS, "scores have room");

#define INLINE static inline __attribute__((always_inline))

/* A tile, its tokens' rows, and what stands in scratch. */
struct work {
    const struct cpu_tile *t;
    uint32_t tokens;     /* readable */
    uint32_t first, end; /* places that any row sees */
    const uint8_t *k[TILE_TOKENS], *v[TILE_TOKENS];
    const uint8_t *next_k[TILE_TOKENS], *next_v[TILE_TOKENS]; /* NULL: nothing to prefetch */
    float *kt;  /* [head_dim, rounded up to 2 LANES][TILE_TOKENS] */
    float *v32; /* [TILE_TOKENS][head_dim] */
    float *p;   /* [ROWS_TOGETHER][TILE_TOKENS]: scores, then exp */
};

/* ---- functions of a vector ----------------------------------------------------------------------- */

/* exp(x) for x <= 0, 0 below -87, exp(0) = 1; see cpu_portable.c. Relative error below 2^-22. */
INLINE vec exp_nonpositive(vec x)
{
    const vec magic = vec_set1(12582912.0F); /* 1.5 * 2^23: adding it rounds to an integer */
    vec clamped = vec_max(x, vec_set1(-87.0F));
    vec n = vec_fma(clamped, vec_set1(1.44269504F), magic) - magic;
    vec r = vec_fma(n, vec_set1(-0.693359375F), clamped);
    r = vec_fma(n, vec_set1(2.12194440e-4F), r);
    vec y = vec_set1(1.9875691500e-4F);
    y = vec_fma(y, r, vec_set1(1.3981999507e-3F));
    y = vec_fma(y, r, vec_set1(8.3334519073e-3F));
    y = vec_fma(y, r, vec_set1(4.1665795894e-2F));
    y = vec_fma(y, r, vec_set1(1.6666665459e-1F));
    y = vec_fma(y, r, vec_set1(5.0000001201e-1F));
    y = vec_fma(y, r * r, r) + vec_set1(1.0F);
    return vec_zero_below(x, -87.0F, vec_scale_by_power(y, n));
}

static float exp_one(float x)
{
    float lanes[LANES];
    vec_store(lanes, exp_nonpositive(vec_set1(x)));
    return lanes[0];
}

/* tanh, by an odd polynomial near 0 and by exp elsewhere; see cpu_portable.c. */
static vec tanh_any(vec y)
{
    vec magnitude = vec_abs(y), z = y * y;
    vec near = vec_set1(-5.70498872745e-3F);
    near = vec_fma(near, z, vec_set1(2.06390887954e-2F));
    near = vec_fma(near, z, vec_set1(-5.37397155531e-2F));
    near = vec_fma(near, z, vec_set1(1.33314422036e-1F));
    near = vec_fma(near, z, vec_set1(-3.33332819422e-1F));
    near = vec_fma(near, z * y, y);
    vec e = exp_nonpositive(magnitude * vec_set1(-2.0F));
    vec far = vec_copy_sign((vec_set1(1.0F) - e) / (vec_set1(1.0F) + e), y);
    return vec_below(magnitude, 0.625F, near, far);
}

/* ---- the keys ------------------------------------------------------------------------------------ */

INLINE void prefetch_row(const uint8_t *row, size_t bytes)
{
    for (size_t at = 0; row && at < bytes; at += CACHE_LINE)
        __builtin_prefetch(row + at, 0, 2);
}

/* All keys of the tile that some row sees, transposed into kt, and the next tile's prefetched. */
INLINE void transpose_keys(const enum dtype dtype, const struct work *w)
{
    uint32_t head_dim = w->t->head_dim;
    size_t row_bytes = (size_t)head_dim * kv_bytes(dtype);
    for (uint32_t group = w->first / LANES; group * LANES < w->end; group++) {
        const uint8_t *rows[LANES];
        for (uint32_t i = 0; i < LANES; i++) {
            uint32_t token = group * LANES + i;
            rows[i] =
                w->k[token < w->tokens ? token : w->tokens - 1]; /* lanes behind the end: masked */
        }
        uint32_t ahead = 0;
        for (uint32_t d = 0; d < head_dim; d += dims_at_once(dtype)) {
            for (; ahead * head_dim < LANES * (d + dims_at_once(dtype)) && ahead < LANES; ahead++)
                prefetch_row(w->next_k[group * LANES + ahead], row_bytes);
            transpose_dims(dtype, rows, d, head_dim, w->kt + (size_t)d * TILE_TOKENS + group * LANES);
        }
    }
}

/* Scores of R rows: s[r][token], tokens in `n` vectors from vector `at` on. */
INLINE void dot_products(const int R, const int N, const struct work *w, const float *q, uint32_t at,
                         float *s)
{
    uint32_t head_dim = w->t->head_dim;
    const float *kt = w->kt + at * LANES;
    vec sum[ROWS_AT_ONCE][TOKEN_VECS]; /* R x N of them are registers */
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            sum[r][i] = vec_set1(0);
    for (uint32_t d = 0; d < head_dim; d++, kt += TILE_TOKENS) {
        vec k[TOKEN_VECS];
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            k[i] = vec_load(kt + i * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            vec x = vec_set1(q[(size_t)r * head_dim + d]);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++)
                sum[r][i] = vec_fma(x, k[i], sum[r][i]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            vec_store(s + r * TILE_TOKENS + (at + (uint32_t)i) * LANES, sum[r][i]);
}

INLINE void score_rows(const int R, const struct work *w, uint32_t row, float *s)
{
    const int N = ACCUMULATORS / R < TOKEN_VECS ? ACCUMULATORS / R : TOKEN_VECS;
    for (uint32_t at = 0; at < TOKEN_VECS; at += (uint32_t)N)
        dot_products(R, N, w, w->t->q + (size_t)row * w->t->head_dim, at, s);
}

/* ---- softmax ------------------------------------------------------------------------------------- */

/* The places of the tile that a row sees: [*first, *end). */
INLINE void seen_by(const struct cpu_tile *t, uint32_t row, uint32_t *first, uint32_t *end)
{
    uint32_t from = plan_first_key(t->keys[row], t->window), to = t->keys[row];
    *first = from > t->position ? from - t->position : 0;
    *end = to > t->position ? to - t->position : 0;
    *end = *end < TILE_TOKENS ? *end : TILE_TOKENS;
}

/* From the dot products of one row to p; m and l are updated. Returns the factor of o: 0 when there was
 * no state before. */
static float soften(const struct cpu_tile *t, uint32_t row, float *p)
{
    uint32_t first, end;
    vec s[TOKEN_VECS];
    seen_by(t, row, &first, &end);
    if (first >= end) {
        for (int i = 0; i < TOKEN_VECS; i++)
            vec_store(p + i * LANES, vec_set1(0));
        return t->states.m[row] == -INFINITY ? 0 : 1;
    }
    vec highest = vec_set1(-INFINITY);
    for (int i = 0; i < TOKEN_VECS; i++) {
        s[i] = vec_load(p + i * LANES) * vec_set1(t->scale);
        if (t->softcap > 0)
            s[i] = tanh_any(s[i] / vec_set1(t->softcap)) * vec_set1(t->softcap);
        if (t->slopes) {
            int32_t distance = (int32_t)(t->position - (t->keys[row] - 1)) + i * LANES;
            vec far = vec_set1((float)distance) + vec_ramp();
            s[i] = s[i] + far * vec_set1(t->slopes[row]);
        }
        s[i] = vec_keep_lanes(s[i], (int)first - i * LANES, (int)end - i * LANES);
        highest = vec_max(highest, s[i]);
    }
    float before = t->states.m[row], m = vec_highest(highest);
    m = m > before ? m : before;
    vec sum[TOKEN_VECS];
    for (int i = 0; i < TOKEN_VECS; i++) {
        sum[i] = exp_nonpositive(s[i] - vec_set1(m));
        vec_store(p + i * LANES, sum[i]);
    }
    for (int half = TOKEN_VECS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            sum[i] = sum[i] + sum[i + half];
    }
    float a = before == -INFINITY ? 0 : exp_one(before - m);
    t->states.m[row] = m;
    t->states.l[row] = (before == -INFINITY ? 0 : t->states.l[row] * a) + vec_sum(sum[0]);
    return a;
}

/* ---- the values ---------------------------------------------------------------------------------- */

/* o[r][d .. d + N vectors) of R rows; `tail`: one vector of which only the first lanes are there. */
INLINE void multiply_values(const enum dtype dtype, const int R, const int N, const bool tail,
                            const struct work *w, const uint8_t *const *v, const float *p,
                            const float *a, float *o, uint32_t d, bool prefetch)
{
    uint32_t head_dim = w->t->head_dim;
    vec sum[ROWS_AT_ONCE][TOKEN_VECS]; /* R x N of them are registers */
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) {
            float *at = o + (size_t)r * head_dim + d + i * LANES;
            sum[r][i] = vec_set1(0);
            if (a[r] != 0)
                sum[r][i] = (tail ? vec_load_tail(at) : vec_load(at)) * vec_set1(a[r]);
        }
    for (uint32_t j = w->first; j < w->end; j++) {
        vec x[TOKEN_VECS];
        const uint8_t *row = v[j] + (size_t)d * kv_bytes(dtype);
        if (prefetch && w->next_v[j])
            for (size_t at = 0; at < (size_t)N * LANES * kv_bytes(dtype); at += CACHE_LINE)
                __builtin_prefetch(w->next_v[j] + (size_t)d * kv_bytes(dtype) + at, 0, 2);
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            x[i] = tail ? vec_load_tail_as(dtype, row)
                        : vec_load_as(dtype, row + i * LANES * (int)kv_bytes(dtype));
#pragma GCC unroll 16
        for (int r = 0; r < R; r++) {
            vec y = vec_set1(p[r * TILE_TOKENS + j]);
#pragma GCC unroll 16
            for (int i = 0; i < N; i++)
                sum[r][i] = vec_fma(y, x[i], sum[r][i]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; r++)
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) {
            float *at = o + (size_t)r * head_dim + d + i * LANES;
            if (tail)
                vec_store_tail(at, sum[r][i] + vec_set1(0));
            else
                vec_store(at, sum[r][i] + vec_set1(0));
        }
}

INLINE void value_rows(const enum dtype dtype, const int R, const struct work *w,
                       const uint8_t *const *v, uint32_t row, const float *p, const float *a,
                       bool prefetch)
{
    const int N = ACCUMULATORS / R < 4 ? ACCUMULATORS / R : 4;
    uint32_t d = 0, head_dim = w->t->head_dim;
    float *o = w->t->states.o + (size_t)row * head_dim;
    for (; d + (uint32_t)N * LANES <= head_dim; d += (uint32_t)N * LANES)
        multiply_values(dtype, R, N, false, w, v, p, a, o, d, prefetch);
    for (; d + LANES <= head_dim; d += LANES)
        multiply_values(dtype, R, 1, false, w, v, p, a, o, d, prefetch);
    if (d < head_dim)
        multiply_values(dtype, R, 1, true, w, v, p, a, o, d, prefetch);
}

/* All values of the tile that some row sees, as f32 into v32. */
INLINE void expand_values(const enum dtype dtype, const struct work *w)
{
    uint32_t head_dim = w->t->head_dim;
    for (uint32_t j = w->first; j < w->end; j++) {
        float *to = w->v32 + (size_t)j * head_dim;
        uint32_t d = 0;
        prefetch_row(w->next_v[j], head_dim * kv_bytes(dtype));
        for (; d + LANES <= head_dim; d += LANES)
            vec_store(to + d, vec_load_as(dtype, w->v[j] + (size_t)d * kv_bytes(dtype)));
        if (d < head_dim)
            vec_store_tail(to + d, vec_load_tail_as(dtype, w->v[j] + (size_t)d * kv_bytes(dtype)));
    }
}

/* ---- the tile ------------------------------------------------------------------------------------ */

/* Rows [row, row + n) by blocks of 8, 4, 2 and 1: `each` is a statement over R and `at`. */
#define FOR_BLOCKS_OF_ROWS(n, at, each)                                                                \
    for (uint32_t at = 0; at < (n);) {                                                                 \
        if ((n)-at >= 8) {                                                                             \
            enum { R = 8 };                                                                            \
            each;                                                                                      \
            at += R;                                                                                   \
        } else if ((n)-at >= 4) {                                                                      \
            enum { R = 4 };                                                                            \
            each;                                                                                      \
            at += R;                                                                                   \
        } else if ((n)-at >= 2) {                                                                      \
            enum { R = 2 };                                                                            \
            each;                                                                                      \
            at += R;                                                                                   \
        } else {                                                                                       \
            enum { R = 1 };                                                                            \
            each;                                                                                      \
            at += R;                                                                                   \
        }                                                                                              \
    }

static void multiply_f32(const struct work *w, const uint8_t *const *v, uint32_t row, uint32_t n,
                         const float *a){FOR_BLOCKS_OF_ROWS(
    n, at, value_rows(DTYPE_F32, R, w, v, row + at, w->p + at * TILE_TOKENS, a + at, false))}

INLINE void run_tile(const enum dtype dtype, struct work *w)
{
    const struct cpu_tile *t = w->t;
    bool expand = t->rows > ROWS_AT_ONCE;
    const uint8_t *expanded[TILE_TOKENS];
    float a[ROWS_TOGETHER];
    transpose_keys(dtype, w);
    if (expand) {
        expand_values(dtype, w);
        for (uint32_t j = 0; j < TILE_TOKENS; j++)
            expanded[j] = (const uint8_t *)(w->v32 + (size_t)j * t->head_dim);
    }
    for (uint32_t row = 0; row < t->rows; row += ROWS_TOGETHER) {
        uint32_t n = t->rows - row < ROWS_TOGETHER ? t->rows - row : ROWS_TOGETHER;
        FOR_BLOCKS_OF_ROWS(n, at, score_rows(R, w, row + at, w->p + at * TILE_TOKENS))
        for (uint32_t r = 0; r < n; r++)
            a[r] = soften(t, row + r, w->p + r * TILE_TOKENS);
        if (expand)
            multiply_f32(w, expanded, row, n, a);
        else
            FOR_BLOCKS_OF_ROWS(
                n, at,
                value_rows(dtype, R, w, w->v, row + at, w->p + at * TILE_TOKENS, a + at, at == 0))
    }
}

/* Tokens' rows from spans; returns how many. */
static uint32_t spread_spans(const struct cpu_span *spans, uint32_t count, size_t stride,
                             const uint8_t **k, const uint8_t **v)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t token = 0; token < spans[i].tokens; token++, n++) {
            k[n] = spans[i].k + token * stride;
            v[n] = spans[i].v + token * stride;
        }
    }
    return n;
}

static void simd_tile(const struct cpu_tile *t)
{
    struct work w = {.t = t, .first = TILE_TOKENS};
    size_t rounded = ((size_t)t->head_dim + CPU_SCRATCH_DIMS - 1) / CPU_SCRATCH_DIMS * CPU_SCRATCH_DIMS;
    w.kt = t->scratch;
    w.v32 = w.kt + rounded * TILE_TOKENS;
    w.p = w.v32 + rounded * TILE_TOKENS;
    w.tokens = spread_spans(t->spans, t->span_count, t->token_stride, w.k, w.v);
    uint32_t next =
        spread_spans(t->next_spans, t->next_span_count, t->token_stride, w.next_k, w.next_v);
    for (; next < TILE_TOKENS; next++)
        w.next_k[next] = w.next_v[next] = NULL;
    for (uint32_t row = 0; row < t->rows; row++) {
        uint32_t first, end;
        seen_by(t, row, &first, &end);
        if (first >= end)
            continue;
        w.first = first < w.first ? first : w.first;
        w.end = end > w.end ? end : w.end;
    }
    if (w.first >= w.end)
        return;
    switch (t->kv_dtype) {
    case DTYPE_F32:
        run_tile(DTYPE_F32, &w);
        break;
    case DTYPE_F16:
        run_tile(DTYPE_F16, &w);
        break;
    case DTYPE_BF16:
        run_tile(DTYPE_BF16, &w);
        break;
    case DTYPE_E4M3:
        run_tile(DTYPE_E4M3, &w);
        break;
    case DTYPE_E5M2:
        run_tile(DTYPE_E5M2, &w);
        break;
    case DTYPE_COUNT:
        break;
    }
}

/* ---- states -------------------------------------------------------------------------------------- */

static void simd_merge(uint32_t rows, uint32_t head_dim, const struct cpu_states *into,
                       const struct cpu_states *from)
{
    for (uint32_t row = 0; row < rows; row++) {
        float *to = into->o + (size_t)row * head_dim;
        const float *o = from->o + (size_t)row * head_dim;
        if (from->m[row] == -INFINITY)
            continue;
        if (into->m[row] == -INFINITY) {
            into->m[row] = from->m[row];
            into->l[row] = from->l[row];
            memcpy(to, o, head_dim * sizeof *to);
            continue;
        }
        float m = into->m[row] > from->m[row] ? into->m[row] : from->m[row];
        float a = exp_one(into->m[row] - m), b = exp_one(from->m[row] - m);
        into->m[row] = m;
        into->l[row] = into->l[row] * a + from->l[row] * b;
        for (uint32_t d = 0; d < head_dim; d++)
            to[d] = to[d] * a + o[d] * b;
    }
}

static void simd_finish(uint32_t head_dim, const struct cpu_states *states, uint32_t row,
                        const float *sink, float v_scale, float *o, float *lse)
{
    const float *from = states->o + (size_t)row * head_dim;
    float m = states->m[row], l = states->l[row], a = 1;
    if (m == -INFINITY) {
        memset(o, 0, head_dim * sizeof *o);
        *lse = sink ? *sink : -INFINITY;
        return;
    }
    if (sink) { /* the state (sink, 1, 0) */
        float both = m > *sink ? m : *sink;
        a = exp_one(m - both);
        l = l * a + exp_one(*sink - both);
        m = both;
    }
    for (uint32_t d = 0; d < head_dim; d++)
        o[d] = from[d] * a / l * v_scale;
    *lse = m + logf(l);
}
