/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_amx.c - both products on tile registers (Intel AMX, Sapphire Rapids and later), for q in bf16 and
 * K and V that are bf16 or convert to it exactly (e4m3, e5m2), head_dim a multiple of 32; everything
 * else as in cpu_avx512.c, with e4m3 by load_e4m3(): also a table of its own, cpu_kernels_avx512_vbmi.
 *
 *   S^T = K q^T    16 tokens x 32 dims of K as they lie   | 32 dims (in pairs) x rows of q
 *   o  += p V      8 rows of p, as hi and lo, x 32 tokens | 32 tokens (in pairs) x 16 dims of V
 *
 * A tile product multiplies bf16 exactly and accumulates in f32, in an order that knows nothing of the
 * other rows and columns, so a row's bits depend on the row alone, however many share the tile. p is
 * split into hi = bf16(p) and lo = bf16(p - hi), 2^-17 exact; the two products are added. The softmax
 * between the products, merging and finishing are those of cpu_simd.h.
 *
 * Tile registers, set up by begin() for the rows of a work tile: N is 1, 4, 8 or 16 of them, M twice as
 * many, at most 16. (They are renamed, so that one of a kind is enough.)
 *
 *   0, 1   scores of 16 tokens   16 x N f32             5      o              M x 16 dims f32
 *   2      K                     16 tokens x 32 dims    6, 7   p, hi and lo   M x 32 tokens
 *   3      q                     16 pairs of dims x N   4      V              16 pairs of tokens x 16
 *
 * Rows of scratch that a tile load touches are written by ordinary stores before; the compiler is kept
 * from moving those by barrier(). */
#include "kernels/cpu/cpu_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) &&       \
    defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__GFNI__) && defined(__AMX_TILE__) &&      \
    defined(__AMX_BF16__)

#include "kernels/cpu/cpu_vec512.h"

#include "kernels/cpu/cpu_simd.h"

#include <assert.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    BLOCK = 16,                  /* tokens, dims or rows of a tile register */
    PAIRED = 32,                 /* dims or tokens of one, where they come in pairs */
    ROWS_OF_P = 8,               /* that go into one register as hi and lo */
    REQUEST_PERMISSION = 0x1023, /* arch_prctl: ARCH_REQ_XCOMP_PERM */
    TILE_DATA = 18               /* XFEATURE_XTILEDATA */
};

/* What stands in the worker's scratch; D is head_dim. */
struct layout {
    uint32_t *q;    /* [blocks of N rows][D / 2 pairs][N]: the rows of a work tile */
    uint16_t *k;    /* [TILE_TOKENS][D]: keys that do not lie one stride apart, or were converted */
    uint16_t *v;    /* [TILE_TOKENS / 2 pairs][D / 32][2][16 dims][2]: see pair_values() */
    float *s;       /* [TILE_TOKENS][N] scores */
    float *p;       /* [16][TILE_TOKENS] */
    uint16_t *hilo; /* [8][2][TILE_TOKENS] */
    float *o;       /* [8][2][D] */
};

/* A tile being computed. */
struct amx_work {
    struct work w;
    struct layout at;
    uint32_t n; /* N */
    /* Every 16 tokens' keys and values: the first row, and bytes from one row to the next. Values that
     * do not lie so are found by w.values. */
    const uint8_t *keys[TILE_TOKENS / BLOCK], *values[TILE_TOKENS / BLOCK];
    size_t key_stride;
    bool regular;
};

INLINE void barrier(void)
{
    __asm__ volatile("" ::: "memory");
}

/* From one row to the next: of at.k, of at.v (a pair of tokens), of at.o. */
INLINE size_t key_bytes(const struct cpu_tile *t)
{
    return t->head_dim * sizeof(uint16_t);
}

INLINE size_t pair_bytes(const struct cpu_tile *t)
{
    return 2 * t->head_dim * sizeof(uint16_t);
}

INLINE size_t output_bytes(const struct cpu_tile *t)
{
    return t->head_dim * sizeof(float);
}

static struct layout lay_out(const struct cpu_tile *t)
{
    float *next = t->scratch;
    struct layout at;
    at.k = (uint16_t *)(void *)next;
    next += TILE_TOKENS * key_bytes(t) / sizeof *next;
    at.v = (uint16_t *)(void *)next;
    next += TILE_TOKENS / 2 * pair_bytes(t) / sizeof *next;
    at.s = next;
    next += TILE_TOKENS * BLOCK;
    at.p = next;
    next += BLOCK * TILE_TOKENS;
    at.hilo = (uint16_t *)(void *)next;
    next += ROWS_OF_P * TILE_TOKENS;
    at.o = next;
    next += 2 * ROWS_OF_P * output_bytes(t) / sizeof *next;
    at.q = (uint32_t *)(void *)next;
    next += (size_t)(t->rows + BLOCK - 1) * (t->head_dim / 2);
    assert(next <= t->scratch + cpu_scratch_floats(t->head_dim, t->rows));
    return at;
}

static bool is_ours(const struct cpu_tile *t)
{
    return t->q_dtype == DTYPE_BF16 && t->head_dim % PAIRED == 0 &&
           (t->kv_dtype == DTYPE_BF16 || t->kv_dtype == DTYPE_E4M3 || t->kv_dtype == DTYPE_E5M2);
}

static uint32_t columns_for(uint32_t rows)
{
    return rows == 1 ? 1 : rows <= 4 ? 4 : rows <= 8 ? 8 : BLOCK;
}

/* ---- before the first tile of a work tile -------------------------------------------------------- */

static void configure(uint32_t n)
{
    const uint8_t m = (uint8_t)(n < ROWS_OF_P ? 2 * n : 2 * ROWS_OF_P);
    const struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } _Alignas(64) config = {
        .palette = 1,
        .row_bytes = {(uint16_t)(4 * n), (uint16_t)(4 * n), 64, (uint16_t)(4 * n), 64, 64, 64, 64},
        .rows = {BLOCK, BLOCK, BLOCK, BLOCK, BLOCK, m, m, m},
    };
    _tile_loadconfig(&config);
}

/* q as bf16, two dims of N rows side by side; rows that are not there are 0. */
static void amx_begin(const struct cpu_tile *t)
{
    if (!is_ours(t))
        return;
    uint32_t pairs = t->head_dim / 2, n = columns_for(t->rows);
    struct layout at = lay_out(t);
    configure(n);
    for (uint32_t row = 0; row < (t->rows + n - 1) / n * n; row++) {
        uint32_t *to = at.q + (size_t)(row / n) * pairs * n + row % n;
        const uint32_t *from = (const uint32_t *)(const void *)(t->q + row * (size_t)t->head_dim);
        for (uint32_t i = 0; i < pairs; i++) /* of an f32 that is a bf16 the lower half is 0 */
            to[i * n] = row < t->rows ? from[2 * i] >> 16 | (from[2 * i + 1] & 0xffff0000U) : 0;
    }
}

/* ---- fp8 to bf16 --------------------------------------------------------------------------------- */

/* A matrix for _mm512_gf2p8affine_epi64_epi8(): bit i of the result is the exclusive or of the bits of
 * x that row i selects. */
#define BITS(r7, r6, r5, r4, r3, r2, r1, r0)                                                                 \
    _mm512_set1_epi64((long long)((uint64_t)(r0) << 56 | (uint64_t)(r1) << 48 | (uint64_t)(r2) << 40 |       \
                                  (uint64_t)(r3) << 32 | (uint64_t)(r4) << 24 | (uint64_t)(r5) << 16 |       \
                                  (uint64_t)(r6) << 8 | (uint64_t)(r7)))

/* 64 elements, given as bytes whose groups of 8 stand in the order 0 4 1 5 2 6 3 7, as two times 32
 * bf16.
 *
 *   e4m3  s eeee mmm   ->  s (e + 120) mmm0000       e5m2  s eeeee mm   ->  s (e + 112) mm00000
 *
 * The lowest bit of the exponent and the mantissa make the low byte, sign and exponent the high one.
 * The sum is a matter of single bits: 0111100 is added to three bits (0111000 to four), so the topmost
 * of them goes to bit 6 and, inverted, to those below. Denormals (m * 2^-9, m * 2^-16) come from a
 * table. Unpacking puts the bytes together. */
INLINE void convert_fp8(const enum dtype dtype, __m512i x, __m512i to[2])
{
    const bool e4m3 = dtype == DTYPE_E4M3;
    const __m512i low_bits =
        e4m3 ? BITS(0x08, 0x04, 0x02, 0x01, 0, 0, 0, 0) : BITS(0x04, 0x02, 0x01, 0, 0, 0, 0, 0);
    const __m512i high_bits = e4m3 ? BITS(0x80, 0x40, 0x40, 0x40, 0x40, 0x40, 0x20, 0x10)
                                   : BITS(0x80, 0x40, 0x40, 0x40, 0x40, 0x20, 0x10, 0x08);
    const __m512i low_table = _mm512_set1_epi64(e4m3 ? 0x60402000c0800000 : 0x40008000);
    const __m512i high_table = _mm512_set1_epi64(e4m3 ? 0x3c3c3c3c3b3b3b00 : 0x38383700);
    __mmask64 denormal = _mm512_testn_epi8_mask(x, _mm512_set1_epi8(e4m3 ? 0x78 : 0x7c));
    __m512i low = _mm512_gf2p8affine_epi64_epi8(x, low_bits, 0);
    __m512i high = e4m3 ? _mm512_gf2p8affine_epi64_epi8(x, high_bits, 0x3c)
                        : _mm512_gf2p8affine_epi64_epi8(x, high_bits, 0x38);
    low = _mm512_mask_permutexvar_epi8(low, denormal, x, low_table); /* by the lowest six bits of x */
    high = _mm512_mask_permutexvar_epi8(high, denormal, x, high_table);
    /* the sign: x where the mask is set, `high` elsewhere */
    high = _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)0x80), x, high, 0xca);
    to[0] = _mm512_unpacklo_epi8(low, high);
    to[1] = _mm512_unpackhi_epi8(low, high);
}

/* 64 elements of a row as bf16, or with `half` only 32. */
INLINE void load_bf16(const enum dtype dtype, const uint8_t *from, bool half, __m512i to[2])
{
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    if (dtype == DTYPE_BF16) {
        to[0] = _mm512_loadu_si512(from);
        to[1] = half ? to[0] : _mm512_loadu_si512(from + 64);
        return;
    }
    __m512i x = _mm512_maskz_loadu_epi64(half ? 0x0f : 0xff, from);
    convert_fp8(dtype, _mm512_permutexvar_epi64(order, x), to);
}

/* ---- the keys ------------------------------------------------------------------------------------ */

/* A token whose rows may be read, for one that no row sees. */
INLINE uint32_t readable(const struct work *w, uint32_t token)
{
    return token < w->first ? w->first : token < w->end ? token : w->end - 1;
}

/* Where the rows of every 16 tokens begin; false when some of them do not lie one stride apart. */
INLINE bool find_blocks(struct amx_work *a)
{
    const struct cpu_tile *t = a->w.t;
    uint32_t b = 0;
    if (a->w.first > 0 || a->w.end < TILE_TOKENS)
        return false;
    for (uint32_t i = 0; i < t->span_count; i++) {
        if (t->spans[i].tokens % BLOCK)
            return false;
        for (uint32_t token = 0; token < t->spans[i].tokens; token += BLOCK, b++) {
            a->keys[b] = t->spans[i].k + token * t->token_stride;
            a->values[b] = t->spans[i].v + token * t->token_stride;
        }
    }
    return true;
}

/* The row of one token among the keys, or among the values. */
INLINE const uint8_t *row_of(const struct amx_work *a, const uint8_t *const *blocks,
                             const uint8_t *const *rows, uint32_t token)
{
    return a->regular ? blocks[token / BLOCK] + token % BLOCK * a->w.t->token_stride
                      : rows[readable(&a->w, token)];
}

/* The keys of the tile as bf16, one behind the other. */
INLINE void copy_keys(const enum dtype dtype, struct amx_work *a, uint32_t lines)
{
    struct work *w = &a->w;
    uint32_t d = w->t->head_dim;
    a->key_stride = key_bytes(w->t);
    for (uint32_t token = 0; token < TILE_TOKENS; token++) {
        uint16_t *to = a->at.k + token * a->key_stride / sizeof *to;
        const uint8_t *from = row_of(a, a->keys, w->keys, token);
        fetch_ahead(w, lines);
        for (uint32_t at = 0; at < d; at += 2 * PAIRED) {
            __m512i x[2];
            bool half = d - at == PAIRED;
            load_bf16(dtype, from + at * kv_bytes(dtype), half, x);
            _mm512_storeu_si512(to + at, x[0]);
            if (!half)
                _mm512_storeu_si512(to + at + PAIRED, x[1]);
        }
    }
    for (uint32_t b = 0; b < TILE_TOKENS / BLOCK; b++)
        a->keys[b] = (const uint8_t *)a->at.k + b * BLOCK * a->key_stride;
}

/* Scores of all tokens and of one block of rows, to s. */
INLINE void multiply_keys(struct amx_work *a, const uint32_t *q, uint32_t lines)
{
    uint32_t d = a->w.t->head_dim, n = a->n;
    size_t row_bytes = n * sizeof *q, stride = a->key_stride;
    barrier();
    for (uint32_t b = 0; b < TILE_TOKENS / BLOCK; b += 2) {
        float *s = a->at.s + (size_t)b * BLOCK * n;
        _tile_zero(0);
        _tile_zero(1);
        for (uint32_t i = 0; i < d; i += PAIRED) {
            _tile_loadd(3, q + (size_t)(i / 2) * n, row_bytes);
            _tile_loadd(2, a->keys[b] + i * 2, stride);
            _tile_dpbf16ps(0, 2, 3);
            fetch_ahead(&a->w, lines);
            _tile_loadd(2, a->keys[b + 1] + i * 2, stride);
            _tile_dpbf16ps(1, 2, 3);
            fetch_ahead(&a->w, lines);
        }
        _tile_stored(0, s, row_bytes);
        _tile_stored(1, s + (size_t)BLOCK * n, row_bytes);
    }
    barrier();
}

/* Four columns of the scores of 16 tokens into four rows. */
INLINE void transpose_scores(const float *s, uint32_t n, float *p)
{
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29),
                  third = _mm512_add_epi32(first, _mm512_set1_epi32(2));
    __m512 z[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++, s += 4 * n) { /* four tokens */
        z[i] = _mm512_castps128_ps512(_mm_loadu_ps(s));
        z[i] = _mm512_insertf32x4(z[i], _mm_loadu_ps(s + n), 1);
        z[i] = _mm512_insertf32x4(z[i], _mm_loadu_ps(s + 2 * n), 2);
        z[i] = _mm512_insertf32x4(z[i], _mm_loadu_ps(s + 3 * n), 3);
    }
    __m512 a = _mm512_permutex2var_ps(z[0], first, z[1]), b = _mm512_permutex2var_ps(z[2], first, z[3]),
           c = _mm512_permutex2var_ps(z[0], third, z[1]), d = _mm512_permutex2var_ps(z[2], third, z[3]);
    vec_store(p, _mm512_shuffle_f32x4(a, b, 0x44));
    vec_store(p + TILE_TOKENS, _mm512_shuffle_f32x4(a, b, 0xee));
    vec_store(p + 2 * TILE_TOKENS, _mm512_shuffle_f32x4(c, d, 0x44));
    vec_store(p + 3 * TILE_TOKENS, _mm512_shuffle_f32x4(c, d, 0xee));
}

/* The scores of the first `rows` rows of a block, row by row, to p. */
INLINE void spread_scores(const struct amx_work *a, uint32_t rows)
{
    if (a->n == 1) {
        memcpy(a->at.p, a->at.s, TILE_TOKENS * sizeof *a->at.p);
        return;
    }
    for (uint32_t row = 0; row < rows; row += 4) {
        for (uint32_t token = 0; token < TILE_TOKENS; token += BLOCK)
            transpose_scores(a->at.s + (size_t)token * a->n + row, a->n,
                             a->at.p + (size_t)row * TILE_TOKENS + token);
    }
}

/* ---- the values ---------------------------------------------------------------------------------- */

/* The values of the tile as bf16, two tokens side by side:
 *
 *   pair 0, dims 0..31   t0d0 t1d0 t0d1 t1d1 t0d2 t1d2 t0d3 t1d3 t0d8 ... | t0d4 t1d4 ... t0d12 ...
 *
 * Unpacking works inside 128-bit lanes, so of 32 dims those with (d & 4) == 0 come first; add_outputs()
 * puts them back. */
INLINE void pair_values(const enum dtype dtype, struct amx_work *a, uint32_t lines)
{
    struct work *w = &a->w;
    uint32_t d = w->t->head_dim;
    for (uint32_t token = 0; token < TILE_TOKENS; token += 2) {
        uint16_t *to = a->at.v + token / 2 * pair_bytes(w->t) / sizeof *to;
        const uint8_t *even = row_of(a, a->values, w->values, token),
                      *odd = row_of(a, a->values, w->values, token + 1);
        fetch_ahead(w, lines);
        for (uint32_t at = 0; at < d; at += 2 * PAIRED) {
            __m512i x[2], y[2];
            bool half = d - at == PAIRED;
            load_bf16(dtype, even + at * kv_bytes(dtype), half, x);
            load_bf16(dtype, odd + at * kv_bytes(dtype), half, y);
            for (int i = 0; i < (half ? 1 : 2); i++, to += 2 * PAIRED) {
                _mm512_storeu_si512(to, _mm512_unpacklo_epi16(x[i], y[i]));
                _mm512_storeu_si512(to + PAIRED, _mm512_unpackhi_epi16(x[i], y[i]));
            }
        }
    }
}

/* p of up to ROWS_OF_P rows as bf16: hi of the first, lo of the first, hi of the second, ... */
INLINE void split_p(const struct amx_work *a, const float *p, uint32_t rows)
{
    uint16_t *to = a->at.hilo;
    for (uint32_t r = 0; r < rows; r++, p += TILE_TOKENS, to += 2 * TILE_TOKENS) {
        for (uint32_t i = 0; i < TILE_TOKENS; i += PAIRED) {
            vec x = vec_load(p + i), y = vec_load(p + i + LANES);
            __m512i hi = (__m512i)_mm512_cvtne2ps_pbh(y, x);
            vec x_lo = x - from_bf16(_mm512_castsi512_si256(hi)),
                y_lo = y - from_bf16(_mm512_extracti64x4_epi64(hi, 1));
            _mm512_storeu_si512(to + i, hi);
            _mm512_storeu_si512(to + TILE_TOKENS + i, (__m512i)_mm512_cvtne2ps_pbh(y_lo, x_lo));
        }
    }
}

/* o of one row: o a + both products, with the dims in their order. */
INLINE void add_outputs(const struct amx_work *w, uint32_t r, float a, float *o)
{
    const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                  back = _mm512_add_epi32(front, _mm512_set1_epi32(8));
    uint32_t d = w->w.t->head_dim;
    size_t row = output_bytes(w->w.t) / sizeof(float);
    const float *hi = w->at.o + 2 * r * row, *lo = hi + row;
    for (uint32_t i = 0; i < d; i += PAIRED) {
        vec even = vec_load(hi + i) + vec_load(lo + i),
            odd = vec_load(hi + i + LANES) + vec_load(lo + i + LANES);
        vec x = _mm512_permutex2var_ps(even, front, odd), y = _mm512_permutex2var_ps(even, back, odd);
        if (a != 0) {
            x = vec_fma(vec_load(o + i), vec_set1(a), x);
            y = vec_fma(vec_load(o + i + LANES), vec_set1(a), y);
        }
        vec_store(o + i, x + vec_set1(0));
        vec_store(o + i + LANES, y + vec_set1(0));
    }
}

/* o of up to ROWS_OF_P rows from `row` on, whose p begins at `p` and whose factors at `factors`. */
INLINE void add_values(struct amx_work *a, uint32_t row, const float *p, const float *factors, uint32_t rows,
                       uint32_t lines)
{
    const struct cpu_tile *t = a->w.t;
    uint32_t d = t->head_dim;
    size_t stride = pair_bytes(t), half = BLOCK * stride;
    const uint8_t *v = (const uint8_t *)a->at.v;
    float *o = a->at.o;
    split_p(a, p, rows);
    barrier();
    _tile_loadd(6, a->at.hilo, TILE_TOKENS * sizeof *a->at.hilo);
    _tile_loadd(7, a->at.hilo + PAIRED, TILE_TOKENS * sizeof *a->at.hilo);
    for (uint32_t i = 0; i < d; i += BLOCK, v += 4 * BLOCK, o += BLOCK) {
        _tile_zero(5);
        _tile_loadd(4, v, stride);
        _tile_dpbf16ps(5, 6, 4);
        fetch_ahead(&a->w, lines);
        _tile_loadd(4, v + half, stride);
        _tile_dpbf16ps(5, 7, 4);
        fetch_ahead(&a->w, lines);
        _tile_stored(5, o, output_bytes(t));
    }
    barrier();
    for (uint32_t r = 0; r < rows; r++)
        add_outputs(a, r, factors[r], t->states.o + (size_t)(row + r) * d);
}

/* ---- the tile ------------------------------------------------------------------------------------ */

/* The tile. The values are paired first: what that stores is on its way when the tile loads want it.
 * Meanwhile the next tile is fetched: of bf16 half of it while the values are paired and a quarter with
 * each product; of fp8, whose conversion takes longer, a sixth, a third with the keys, and a quarter. */
INLINE void run_amx(const enum dtype dtype, struct amx_work *a)
{
    const struct cpu_tile *t = a->w.t;
    const bool fp8 = dtype != DTYPE_BF16;
    uint32_t all = a->w.ahead.lines, pairs = t->head_dim / 2;
    uint32_t steps = TILE_TOKENS / BLOCK * t->head_dim / PAIRED; /* of a product */
    uint32_t lines = all / 4 / steps + 1;
    pair_values(dtype, a, all / (fp8 ? 6 : 2) / (TILE_TOKENS / 2) + 1);
    if (fp8 || !a->regular)
        copy_keys(dtype, a, all / 3 / TILE_TOKENS + 1);
    for (uint32_t row = 0; row < t->rows; row += a->n) {
        float factors[BLOCK];
        uint32_t rows = t->rows - row < a->n ? t->rows - row : a->n;
        multiply_keys(a, a->at.q + (size_t)row * pairs, lines);
        spread_scores(a, rows);
        for (uint32_t r = 0; r < rows; r++)
            factors[r] = soften(t, row + r, a->at.p + (size_t)r * TILE_TOKENS);
        for (uint32_t r = 0; r < rows; r += ROWS_OF_P)
            add_values(a, row + r, a->at.p + (size_t)r * TILE_TOKENS, factors + r,
                       rows - r < ROWS_OF_P ? rows - r : ROWS_OF_P, lines);
    }
}

/* What tile registers do not take: as in cpu_avx512.c, but for e4m3 and few rows. */
static void vbmi_tile(const struct cpu_tile *t)
{
    if (t->kv_dtype == DTYPE_E4M3 && t->rows < ROWS_AT_ONCE)
        simd_tile_as(DTYPE_E4M3, t);
    else
        cpu_kernels_avx512.tile(t);
}

static void amx_tile(const struct cpu_tile *t)
{
    struct amx_work a;
    if (!is_ours(t)) {
        vbmi_tile(t);
        return;
    }
    if (!open_work(&a.w, t))
        return;
    a.at = lay_out(t);
    a.n = columns_for(t->rows);
    a.key_stride = t->token_stride;
    a.regular = find_blocks(&a);
    if (!a.regular)
        find_tokens(&a.w);
    if (t->kv_dtype == DTYPE_BF16)
        run_amx(DTYPE_BF16, &a);
    else if (t->kv_dtype == DTYPE_E4M3)
        run_amx(DTYPE_E4M3, &a);
    else
        run_amx(DTYPE_E5M2, &a);
}

/* All that this file is compiled for but tile registers: Zen 4 and Sapphire Rapids have it. */
static bool vbmi_supported(void)
{
    return vec512_supported() && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("gfni");
}

/* The processor has it, and the kernel lets this process use it (Linux 5.16 and later; asked once, for
 * all threads). */
static bool amx_supported(void)
{
    return vbmi_supported() && __builtin_cpu_supports("amx-bf16") && __builtin_cpu_supports("amx-tile") &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

const struct cpu_kernels cpu_kernels_amx = {
    "amx", amx_supported, amx_begin, amx_tile, states_merge, states_finish,
};

const struct cpu_kernels cpu_kernels_avx512_vbmi = {
    "avx512", vbmi_supported, NULL, vbmi_tile, states_merge, states_finish,
};

#else

const struct cpu_kernels cpu_kernels_amx = {.isa = "amx"};
const struct cpu_kernels cpu_kernels_avx512_vbmi = {.isa = "avx512"};

#endif
