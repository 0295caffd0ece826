/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_simd.h - the tile of the vector paths, written once over `vec`; each
 * instruction set includes it after it has defined its vectors (cpu_avx2.c, cpu_avx512.c).
 *
 *   s_j = softcap(scale * q.k_j) + slope * (j - i)     one fused multiply-add after the other over d
 *   m'  = max(m, max_j s_j)   a = exp(m - m')   p_j = exp(s_j - m')
 *   l'  = l a + sum_j p_j               the sum as a tree over the 64 places of the tile
 *   o'  = (o a + sum_j p_j v_j) + 0     one fused multiply-add after the other over j
 *
 * A dot product is LANES chains of fused multiply-adds over d, summed by a fixed tree; LANES products
 * of several rows and tokens are summed together (reduce_lanes). Keys and values are converted where
 * they are used, or once when more than ROWS_AT_ONCE rows share the tile.
 *
 *   packed rows   |0 1 2 3|4 5 6 7|8 ...     R at a time: R x (LANES / R) products, R x N vectors of o
 *
 * Every chain of additions belongs to one row, so a row's bits are the same in whatever block of rows
 * it is computed. Keys that a row does not see, but another one of its block does, have p_j = 0;
 * the "+ 0" at the end makes a -0 that they might keep a +0 (see cpu_portable.c).
 *
 * Memory: tokens are read in their order, row after row, as the hardware expects, and while a tile is
 * computed the next one is prefetched into L2, a few lines at a time. Tried: keys transposed into a
 * tile in L1 so that tokens fill the lanes - no tree, but 64 KiB more of L1 traffic a tile, strided
 * reads, and 0.72 of the roof at group 1. */
#include "kernels/coefficients.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/cpu_states.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    ROWS_AT_ONCE = 8,   /* more share expanded values */
    TOKENS_AT_ONCE = 4, /* whose keys are multiplied side by side, so that q is loaded half as often */
    ROWS_TOGETHER = 32, /* rows whose scores are kept between the two products */
    TOKEN_VECS = TILE_TOKENS / LANES,
    VALUE_VECS_MAX = 8, /* of a row of o at a time */
    ROWS_AHEAD = 8,     /* fetched into L1 */
    CACHE_LINE = 64
};

_Static_assert(TILE_TOKENS % LANES == 0, "a tile is whole vectors of tokens");
_Static_assert(LANES >= (int)ROWS_AT_ONCE, "each of the rows at once has a token in a vector");
_Static_assert((int)ROWS_TOGETHER <= (int)CPU_SCRATCH_ROWS, "scores have room");

#define INLINE static inline __attribute__((always_inline))

/* ---- what is the same for vectors of any width --------------------------------------------------- */

typedef int32_t ivec
    __attribute__((vector_size(sizeof(vec)))); /* the bits of a vec, or all of them where true */

INLINE vec vec_load(const float *from)
{
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void vec_store(float *to, vec x)
{
    memcpy(to, &x, sizeof x);
}

INLINE vec vec_abs(vec x)
{
    return (vec)((ivec)x & INT32_MAX);
}

INLINE vec vec_copy_sign(vec x, vec sign)
{
    return (vec)(((ivec)x & INT32_MAX) | ((ivec)sign & INT32_MIN));
}

/* y, and 0 in the lanes where x <= limit or NaN. */
INLINE vec vec_zero_below(vec x, float limit, vec y)
{
    return (vec)((ivec)y & (x > limit));
}

/* b where x >= limit, else a: of NaN too. */
INLINE vec vec_below(vec x, float limit, vec a, vec b)
{
    ivec beyond = x >= limit;
    return (vec)(((ivec)b & beyond) | ((ivec)a & ~beyond));
}

/* y * 2^n, n a whole number; the result is a normal one. */
INLINE vec vec_scale_by_power(vec y, vec n)
{
    return (vec)((ivec)y + (__builtin_convertvector(n, ivec) << 23));
}

#ifndef HAVE_LOAD_E4M3 /* load_e4m3() loads E4M3_VECS vectors at once; 1: as vec_load_as() does */
enum { E4M3_VECS = 1 };
INLINE void load_e4m3(const uint8_t *from, vec *x)
{
    *x = vec_load_as(DTYPE_E4M3, from);
}
#endif

/* The next tile's bytes: what is left of the run being fetched, and which run comes then. */
struct ahead {
    const uint8_t *at, *end;
    uint32_t run, runs;
    uint32_t lines, left; /* cache lines: of the whole tile, and still to be fetched */
};

/* A tile, its tokens' rows, and what stands in scratch. */
struct work {
    const struct cpu_tile *t;
    uint32_t tokens;     /* readable */
    uint32_t first, end; /* places that any row sees */
    const uint8_t *keys[TILE_TOKENS], *values[TILE_TOKENS];
    struct ahead ahead;
    float *k32, *v32; /* [TILE_TOKENS][head_dim] */
    float *p;         /* [ROWS_TOGETHER][TILE_TOKENS]: scores, then exp */
};

/* ---- the next tile ------------------------------------------------------------------------------- */

/* The next run of contiguous bytes: a span's keys or values, or one token's where rows lie apart. */
static void next_run(struct work *w)
{
    const struct cpu_tile *t = w->t;
    size_t row_bytes = t->row_bytes;
    bool together = t->token_stride == row_bytes;
    struct ahead *a = &w->ahead;
    uint32_t half = a->runs / 2, run = a->run < half ? a->run : a->run - half, i = 0;
    while (!together && run >= t->next_spans[i].tokens)
        run -= t->next_spans[i++].tokens;
    const struct cpu_span *span = &t->next_spans[together ? run : i];
    a->at = a->run < half ? span->k : span->v;
    a->at += together ? 0 : run * t->token_stride;
    a->end = a->at + (together ? span->tokens * row_bytes : row_bytes);
    a->run++;
}

/* Prefetch `lines` more cache lines of the next tile, if there are so many. Spread evenly over the
 * work on a tile this overlaps computing and reading nearly perfectly; in bursts it does not. */
INLINE void fetch_ahead(struct work *w, uint32_t lines)
{
    struct ahead *a = &w->ahead;
    lines = lines < a->left ? lines : a->left;
    a->left -= lines;
    while (lines) {
        if (a->at >= a->end)
            next_run(w);
        uint32_t run = (uint32_t)((size_t)(a->end - a->at + CACHE_LINE - 1) / CACHE_LINE);
        run = lines < run ? lines : run;
        lines -= run;
        for (; run; run--, a->at += CACHE_LINE)
            __builtin_prefetch(a->at, 0, 2);
    }
}

/* What of a row that comes soon is not in L2: prefetches that find it full are dropped. */
INLINE void fetch_row(const uint8_t *row, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CACHE_LINE)
        __builtin_prefetch(row + at, 0, 3);
}

static void begin_ahead(struct work *w)
{
    const struct cpu_tile *t = w->t;
    uint32_t tokens = 0, lines = 0;
    bool together = t->token_stride == t->row_bytes;
    for (uint32_t i = 0; i < t->next_span_count; i++) {
        size_t bytes = t->next_spans[i].tokens * t->row_bytes;
        tokens += t->next_spans[i].tokens;
        lines += 2 * (uint32_t)((bytes + CACHE_LINE - 1) / CACHE_LINE);
    }
    if (!together)
        lines = 2 * tokens * (uint32_t)((t->row_bytes + CACHE_LINE - 1) / CACHE_LINE);
    w->ahead =
        (struct ahead){.runs = 2 * (together ? t->next_span_count : tokens), .lines = lines, .left = lines};
}

/* ---- functions of a vector ----------------------------------------------------------------------- */

/* exp(x) for x <= 0, 0 for NaN and below EXP_LOWEST, exp(0) = 1; see cpu_portable.c. Relative error below 2^-22. */
INLINE vec exp_nonpositive(vec x)
{
    const vec magic = vec_set1(TO_INTEGER);
    vec clamped = vec_max(x, vec_set1(EXP_LOWEST));
    vec n = vec_fma(clamped, vec_set1(1.44269504F), magic) - magic;
    vec r = vec_fma(n, vec_set1(-LN2_HIGH), clamped);
    r = vec_fma(n, vec_set1(-LN2_LOW), r);
    vec y = vec_set1(EXP_0);
    y = vec_fma(y, r, vec_set1(EXP_1));
    y = vec_fma(y, r, vec_set1(EXP_2));
    y = vec_fma(y, r, vec_set1(EXP_3));
    y = vec_fma(y, r, vec_set1(EXP_4));
    y = vec_fma(y, r, vec_set1(EXP_5));
    y = vec_fma(y, r * r, r) + vec_set1(1.0F);
    return vec_zero_below(x, EXP_LOWEST, vec_scale_by_power(y, n));
}

static inline float exp_one(float x)
{
    float lanes[LANES];
    vec_store(lanes, exp_nonpositive(vec_set1(x)));
    return lanes[0];
}

/* tanh, by an odd polynomial near 0 and by exp elsewhere; see cpu_portable.c. */
static vec tanh_any(vec y)
{
    vec magnitude = vec_abs(y), z = y * y;
    vec near = vec_set1(TANH_0);
    near = vec_fma(near, z, vec_set1(TANH_1));
    near = vec_fma(near, z, vec_set1(TANH_2));
    near = vec_fma(near, z, vec_set1(TANH_3));
    near = vec_fma(near, z, vec_set1(TANH_4));
    near = vec_fma(near, z * y, y);
    vec e = exp_nonpositive(magnitude * vec_set1(-2.0F));
    vec far = vec_copy_sign((vec_set1(1.0F) - e) / (vec_set1(1.0F) + e), y);
    return vec_below(magnitude, TANH_NEAR, near, far);
}

/* ---- the keys ------------------------------------------------------------------------------------ */

/* A row of the tile that is there: tokens behind the end are computed with the last one, and masked. */
INLINE const uint8_t *key_of(const struct work *w, uint32_t token)
{
    return w->keys[token < w->tokens ? token : w->tokens - 1];
}

/* One step of the dot products of R rows with `pair` tokens: dimensions [d, d + LANES), or the tail. */
INLINE void dot_step(const enum dtype dtype, const int R, const int pair, const bool tail,
                     const uint8_t *const *k, const float *q, uint32_t head_dim, uint32_t d,
                     vec sum[][ROWS_AT_ONCE])
{
    vec x[TOKENS_AT_ONCE];
#pragma GCC unroll 4
    for (int t = 0; t < pair; t++) {
        const uint8_t *from = k[t] + (size_t)d * kv_bytes(dtype);
        x[t] = tail ? vec_load_tail_as(dtype, from) : vec_load_as(dtype, from);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        const float *at = q + (size_t)r * head_dim + d;
        vec y = tail ? vec_load_tail(at) : vec_load(at);
#pragma GCC unroll 4
        for (int t = 0; t < pair; t++)
            sum[t][r] = vec_fma(y, x[t], sum[t][r]);
    }
}

/* The same for E4M3_VECS vectors of dimensions, a token at a time so that registers suffice. */
INLINE void dot_step_e4m3(const int R, const int pair, const uint8_t *const *k, const float *q,
                          uint32_t head_dim, uint32_t d, vec sum[][ROWS_AT_ONCE])
{
#pragma GCC unroll 4
    for (int t = 0; t < pair; t++) {
        vec x[E4M3_VECS];
        load_e4m3(k[t] + d, x);
#pragma GCC unroll 4
        for (int i = 0; i < E4M3_VECS; i++)
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                sum[t][r] = vec_fma(vec_load(q + (size_t)r * head_dim + d + i * LANES), x[i], sum[t][r]);
    }
}

/* Dot products of R rows with LANES / R tokens from `token` on, to s[r][token]. */
INLINE void dot_products(const enum dtype dtype, const uint32_t head_dim, const int R, struct work *w,
                         const float *q, uint32_t token, float *s, uint32_t lines)
{
    const int T = LANES / R, pair = T < TOKENS_AT_ONCE ? T : TOKENS_AT_ONCE;
    const uint32_t whole = head_dim / LANES * LANES;
    const uint32_t at_once = E4M3_VECS * LANES; /* of 8 rows the sums leave no registers: 0.94 of the speed */
    const uint32_t wide =
        dtype == DTYPE_E4M3 && E4M3_VECS > 1 && R < ROWS_AT_ONCE ? head_dim / at_once * at_once : 0;
    vec all[LANES];
    float result[LANES];
#pragma GCC unroll 16
    for (int first = 0; first < T; first += pair) {
        const uint8_t *k[TOKENS_AT_ONCE];
        vec sum[TOKENS_AT_ONCE][ROWS_AT_ONCE];
        fetch_ahead(w, lines * (uint32_t)pair);
#pragma GCC unroll 4
        for (int t = 0; t < pair; t++) {
            k[t] = key_of(w, token + (uint32_t)(first + t));
            fetch_row(key_of(w, token + (uint32_t)(first + t) + ROWS_AHEAD), head_dim * kv_bytes(dtype));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                sum[t][r] = vec_set1(0);
        }
        for (uint32_t d = 0; d < wide; d += at_once)
            dot_step_e4m3(R, pair, k, q, head_dim, d, sum);
#pragma GCC unroll 2
        for (uint32_t d = wide; d < whole; d += LANES)
            dot_step(dtype, R, pair, false, k, q, head_dim, d, sum);
        if (whole < head_dim)
            dot_step(dtype, R, pair, true, k, q, head_dim, whole, sum);
#pragma GCC unroll 4
        for (int t = 0; t < pair; t++)
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                all[r * T + first + t] = sum[t][r];
    }
    vec_store(result, reduce_lanes(all));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
        memcpy(s + r * TILE_TOKENS + token, result + r * T, (size_t)T * sizeof *s);
}

INLINE void score_rows(const enum dtype dtype, const uint32_t head_dim, const int R, struct work *w,
                       uint32_t row, float *s)
{
    const uint32_t T = LANES / R;
    uint32_t lines = w->ahead.lines / 2 / TILE_TOKENS;
    for (uint32_t token = w->first / T * T; token < w->end; token += T)
        dot_products(dtype, head_dim, R, w, w->t->q + (size_t)row * head_dim, token, s, lines);
}

/* ---- softmax ------------------------------------------------------------------------------------- */

/* From the dot products of one row to p; m and l are updated. Returns the factor of o: 0 when there was
 * no state before. */
static float soften(const struct cpu_tile *t, uint32_t row, float *p)
{
    struct plan_range seen = cpu_tile_seen(t, row);
    vec s[TOKEN_VECS];
    if (seen.first >= seen.end) {
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
        s[i] = vec_keep_lanes(s[i], (int)seen.first - i * LANES, (int)seen.end - i * LANES);
        highest = vec_max(s[i], highest);
    }
    float before = t->states.m[row], m = vec_highest(highest);
    m = m > before ? m : before;
    vec sum[TOKEN_VECS];
    for (int i = 0; i < TOKEN_VECS; i++) {
        sum[i] = m < INFINITY ? exp_nonpositive(s[i] - vec_set1(m))
                              : vec_zero_below(s[i], FLT_MAX, vec_set1(1)); /* 1 at +inf */
        vec_store(p + i * LANES, sum[i]);
    }
    for (int half = TOKEN_VECS / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++)
            sum[i] = sum[i] + sum[i + half];
    }
    float a = before == -INFINITY ? 0 : states_weight(before, m);
    t->states.m[row] = m;
    t->states.l[row] = (before == -INFINITY ? 0 : t->states.l[row] * a) + vec_sum(sum[0]);
    return a;
}

/* ---- the values ---------------------------------------------------------------------------------- */

/* o[r][d .. d + N vectors) of R rows; `tail`: one vector of which only the first lanes are there. */
INLINE void multiply_values(const enum dtype dtype, const uint32_t head_dim, const int R, const int N,
                            const bool tail, struct work *w, const float *p, const float *a, float *o,
                            uint32_t d)
{
    /* Round up: fp8 at 8 rows has half a line a token; with none e4m3 took 1.19 times as long (EPYC). */
    uint32_t lines = (w->ahead.lines / 2 * (uint32_t)N * LANES / head_dim + TILE_TOKENS - 1) / TILE_TOKENS;
    const int at_once = dtype == DTYPE_E4M3 && N % E4M3_VECS == 0 ? E4M3_VECS : 1;
    vec sum[ROWS_AT_ONCE][VALUE_VECS_MAX]; /* R x N of them are registers */
    o += d;
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) {
            const float *at = o + (size_t)r * head_dim + i * LANES;
            sum[r][i] = vec_set1(0);
            if (a[r] != 0)
                sum[r][i] = (tail ? vec_load_tail(at) : vec_load(at)) * vec_set1(a[r]);
        }
    p += w->first;
    for (const uint8_t *const *row = w->values + w->first, *const *end = w->values + w->end; row < end;
         row++, p++) {
        const uint8_t *from = *row + (size_t)d * kv_bytes(dtype);
        vec x[VALUE_VECS_MAX];
        fetch_ahead(w, lines);
        if (row + ROWS_AHEAD < end)
            fetch_row(row[ROWS_AHEAD] + (size_t)d * kv_bytes(dtype), (size_t)N * LANES * kv_bytes(dtype));
#pragma GCC unroll 8
        for (int i = 0; i < N; i += at_once) {
            if (at_once > 1)
                load_e4m3(from + (size_t)i * LANES, x + i);
            else
                x[i] = tail ? vec_load_tail_as(dtype, from)
                            : vec_load_as(dtype, from + (size_t)i * LANES * kv_bytes(dtype));
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            vec y = vec_set1(p[r * TILE_TOKENS]);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++)
                sum[r][i] = vec_fma(y, x[i], sum[r][i]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) {
            float *at = o + (size_t)r * head_dim + i * LANES;
            if (tail)
                vec_store_tail(at, sum[r][i] + vec_set1(0));
            else
                vec_store(at, sum[r][i] + vec_set1(0));
        }
}

INLINE void value_rows(const enum dtype dtype, const uint32_t head_dim, const int R, struct work *w,
                       uint32_t row, const float *p, const float *a)
{
    const int N = ACCUMULATORS / R < VALUE_VECS_MAX ? ACCUMULATORS / R : VALUE_VECS_MAX;
    uint32_t d = 0;
    float *o = w->t->states.o + (size_t)row * head_dim;
    for (; d + (uint32_t)N * LANES <= head_dim; d += (uint32_t)N * LANES)
        multiply_values(dtype, head_dim, R, N, false, w, p, a, o, d);
    /* of a head of 64 and one row that is all: 0.6 of the time that single vectors take */
    for (; N > 2 && d + (uint32_t)N / 2 * LANES <= head_dim; d += (uint32_t)N / 2 * LANES)
        multiply_values(dtype, head_dim, R, N / 2, false, w, p, a, o, d);
    for (; d + LANES <= head_dim; d += LANES)
        multiply_values(dtype, head_dim, R, 1, false, w, p, a, o, d);
    if (d < head_dim)
        multiply_values(dtype, head_dim, R, 1, true, w, p, a, o, d);
}

/* The rows of the tile that some query sees, as f32 [token][head_dim] in `to`; `rows` point there
 * afterwards. */
INLINE void expand(const enum dtype dtype, struct work *w, const uint8_t **rows, float *to)
{
    uint32_t head_dim = w->t->head_dim, lines = w->ahead.lines / 2 / TILE_TOKENS + 1;
    for (uint32_t j = w->first; j < w->end; j++) {
        float *at = to + (size_t)j * head_dim;
        uint32_t d = 0;
        fetch_ahead(w, lines);
        for (; d + LANES <= head_dim; d += LANES)
            vec_store(at + d, vec_load_as(dtype, rows[j] + (size_t)d * kv_bytes(dtype)));
        if (d < head_dim)
            vec_store_tail(at + d, vec_load_tail_as(dtype, rows[j] + (size_t)d * kv_bytes(dtype)));
        rows[j] = (const uint8_t *)at;
    }
}

/* ---- the tile ------------------------------------------------------------------------------------ */

/* Rows [row, row + n) by blocks of 8, 4, 2 and 1: `each` is a statement over R and `at`. */
#define FOR_BLOCKS_OF_ROWS(n, at, each)                                                                      \
    for (uint32_t at = 0; at < (n);) {                                                                       \
        if ((n)-at >= 8) {                                                                                   \
            enum { R = 8 };                                                                                  \
            each;                                                                                            \
            at += R;                                                                                         \
        } else if ((n)-at >= 4) {                                                                            \
            enum { R = 4 };                                                                                  \
            each;                                                                                            \
            at += R;                                                                                         \
        } else if ((n)-at >= 2) {                                                                            \
            enum { R = 2 };                                                                                  \
            each;                                                                                            \
            at += R;                                                                                         \
        } else {                                                                                             \
            enum { R = 1 };                                                                                  \
            each;                                                                                            \
            at += R;                                                                                         \
        }                                                                                                    \
    }

INLINE void run_rows(const enum dtype dtype, const uint32_t head_dim, struct work *w)
{
    const struct cpu_tile *t = w->t;
    float a[ROWS_TOGETHER];
    for (uint32_t row = 0; row < t->rows; row += ROWS_TOGETHER) {
        uint32_t n = t->rows - row < ROWS_TOGETHER ? t->rows - row : ROWS_TOGETHER;
        FOR_BLOCKS_OF_ROWS(n, at, score_rows(dtype, head_dim, R, w, row + at, w->p + at * TILE_TOKENS))
        for (uint32_t r = 0; r < n; r++)
            a[r] = soften(t, row + r, w->p + r * TILE_TOKENS);
        FOR_BLOCKS_OF_ROWS(n, at,
                           value_rows(dtype, head_dim, R, w, row + at, w->p + at * TILE_TOKENS, a + at))
    }
}

/* The usual sizes of a head as constants, so that addresses are. */
INLINE void run_rows_any(const enum dtype dtype, struct work *w)
{
    if (w->t->head_dim == 128)
        run_rows(dtype, 128, w);
    else if (w->t->head_dim == 64)
        run_rows(dtype, 64, w);
    else
        run_rows(dtype, w->t->head_dim, w);
}

static void run_rows_f32(struct work *w)
{
    run_rows_any(DTYPE_F32, w);
}

INLINE void run_tile(const enum dtype dtype, struct work *w)
{
    if (w->t->rows <= ROWS_AT_ONCE && dtype != DTYPE_F32) {
        run_rows_any(dtype, w);
        return;
    }
    if (dtype != DTYPE_F32) {
        expand(dtype, w, w->keys, w->k32);
        expand(dtype, w, w->values, w->v32);
    }
    run_rows_f32(w);
}

/* The rows of every token of the tile, from its spans. */
static void find_tokens(struct work *w)
{
    const struct cpu_tile *t = w->t;
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->span_count; i++) {
        const uint8_t *k = t->spans[i].k, *v = t->spans[i].v;
        for (uint32_t token = 0; token < t->spans[i].tokens; token++, n++) {
            w->keys[n] = k + token * t->token_stride;
            w->values[n] = v + token * t->token_stride;
        }
    }
    w->tokens = n;
}

/* Begin a tile: which of its tokens any row sees; false when none is. */
INLINE bool open_work(struct work *w, const struct cpu_tile *t)
{
    w->t = t;
    w->first = TILE_TOKENS;
    w->end = 0;
    begin_ahead(w);
    for (uint32_t row = 0; row < t->rows; row++) {
        struct plan_range seen = cpu_tile_seen(t, row);
        if (seen.first >= seen.end)
            continue;
        w->first = seen.first < w->first ? seen.first : w->first;
        w->end = seen.end > w->end ? seen.end : w->end;
    }
    return w->first < w->end;
}

/* The tile in one stored format. */
INLINE void simd_tile_as(const enum dtype dtype, const struct cpu_tile *t)
{
    struct work w;
    if (!open_work(&w, t))
        return;
    find_tokens(&w);
    w.k32 = t->scratch;
    w.v32 = w.k32 + (size_t)TILE_TOKENS * t->head_dim;
    w.p = w.v32 + (size_t)TILE_TOKENS * t->head_dim;
    run_tile(dtype, &w);
}

static __attribute__((unused)) void simd_tile(const struct cpu_tile *t)
{
    switch (t->kv_dtype) {
    case DTYPE_F32:
        simd_tile_as(DTYPE_F32, t);
        break;
    case DTYPE_F16:
        simd_tile_as(DTYPE_F16, t);
        break;
    case DTYPE_BF16:
        simd_tile_as(DTYPE_BF16, t);
        break;
    case DTYPE_E4M3:
        simd_tile_as(DTYPE_E4M3, t);
        break;
    case DTYPE_E5M2:
        simd_tile_as(DTYPE_E5M2, t);
        break;
    case DTYPE_COUNT:
        break;
    }
}
