/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_vec512.h - vectors of 16 lanes for cpu_simd.h. Needs AVX-512 F, BW, DQ and VL (every server since
 * Skylake-SP, and Zen 4). Included by each path that is compiled for them. */
#ifndef KERNELS_CPU_CPU_VEC512_H
#define KERNELS_CPU_CPU_VEC512_H

#include "kernels/cpu/cpu_kernels.h"

#ifdef __AVX512F__ /* nothing for a compiler that may not use them */

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#define LANES        16
#define ACCUMULATORS 16

typedef __m512 vec;

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_set1(float x)
{
    return _mm512_set1_ps(x);
}

/* The first 8 lanes; the others are 0. */
INLINE vec vec_load_tail(const float *from)
{
    return _mm512_maskz_loadu_ps(0xff, from);
}

INLINE void vec_store_tail(float *to, vec x)
{
    _mm512_mask_storeu_ps(to, 0xff, x);
}

INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* b where a is NaN. */
INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

/* 0, 1, 2, ... */
INLINE vec vec_ramp(void)
{
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}

/* x in the lanes [first, end), -inf in the others; both may lie outside. */
INLINE vec vec_keep_lanes(vec x, int first, int end)
{
    uint32_t from = first > 0 ? (first < LANES ? 0xffffU << first : 0) : 0xffffU;
    uint32_t to = end < LANES ? (end > 0 ? (1U << end) - 1 : 0) : 0xffffU;
    return _mm512_mask_blend_ps((__mmask16)(from & to), vec_set1(-INFINITY), x);
}

INLINE float vec_highest(vec x)
{
    return _mm512_reduce_max_ps(x);
}

/* Lanes 8 apart, then 4, 2 and 1. */
INLINE float vec_sum(vec x)
{
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* ---- stored formats ------------------------------------------------------------------------------ */

/* 16 bytes of e4m3. As f16 the bits are the value times 2^-8, denormals included, and f16 converts
 * without the penalty that denormals of f32 have. */
INLINE vec from_e4m3(__m128i x)
{
    __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8);
    __m256i half = _mm256_and_si256(_mm256_srai_epi16(wide, 1), _mm256_set1_epi16((short)0xbfff));
    return _mm512_cvtph_ps(half) * vec_set1(256);
}

INLINE vec from_e5m2(__m128i x)
{
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(x), 8));
}

INLINE vec from_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

#ifdef __AVX512VBMI__
#define HAVE_LOAD_E4M3
enum { E4M3_VECS = 4 };

/* 64 elements of e4m3: 10 instructions, where from_e4m3() takes 24. Both bytes of a bf16 come from tables
 * of the 128 codes without their sign, denormals too. In `order` and unpacked they make dwords of two bf16,
 * one for each of two vectors. */
INLINE void load_e4m3(const uint8_t *from, vec *x)
{
    const __m512i order = _mm512_setr_epi32(
        0x11011000, 0x13031202, 0x31213020, 0x33233222, 0x15051404, 0x17071606, 0x35253424, 0x37273626,
        0x19091808, 0x1b0b1a0a, 0x39293828, 0x3b2b3a2a, 0x1d0d1c0c, 0x1f0f1e0e, 0x3d2d3c2c, 0x3f2f3e2e);
    const long long low8 = 0x7060504030201000, next8 = (long long)0xf0e0d0c0b0a09080;
    const __m512i low[2] = {
        _mm512_setr_epi64(0x60402000c0800000, next8, low8, next8, low8, next8, low8, next8),
        _mm512_setr_epi64(low8, next8, low8, next8, low8, next8, low8, next8),
    };
    const __m512i high[2] = {
        _mm512_setr_epi64(0x3c3c3c3c3b3b3b00, 0x3c3c3c3c3c3c3c3c, 0x3d3d3d3d3d3d3d3d, 0x3d3d3d3d3d3d3d3d,
                          0x3e3e3e3e3e3e3e3e, 0x3e3e3e3e3e3e3e3e, 0x3f3f3f3f3f3f3f3f, 0x3f3f3f3f3f3f3f3f),
        _mm512_setr_epi64(0x4040404040404040, 0x4040404040404040, 0x4141414141414141, 0x4141414141414141,
                          0x4242424242424242, 0x4242424242424242, 0x4343434343434343, 0x4343434343434343),
    };
    __m512i codes = _mm512_permutexvar_epi8(order, _mm512_loadu_si512(from));
    __m512i l = _mm512_permutex2var_epi8(low[0], codes, low[1]),
            h = _mm512_permutex2var_epi8(high[0], codes, high[1]);
    /* the sign of the code, the rest as it is */
    h = _mm512_ternarylogic_epi32(_mm512_set1_epi8((char)0x80), codes, h, 0xca);
    const __m512i pairs[2] = {_mm512_unpacklo_epi8(l, h), _mm512_unpackhi_epi8(l, h)};
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        x[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32(pairs[i], 16));
        x[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(pairs[i], _mm512_set1_epi32((int)0xffff0000)));
    }
}
#endif

/* LANES elements as f32. */
INLINE vec vec_load_as(const enum dtype dtype, const uint8_t *from)
{
    switch (dtype) {
    case DTYPE_F16:
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
    case DTYPE_BF16:
        return from_bf16(_mm256_loadu_si256((const __m256i *)(const void *)from));
    case DTYPE_E4M3:
        return from_e4m3(_mm_loadu_si128((const __m128i *)(const void *)from));
    case DTYPE_E5M2:
        return from_e5m2(_mm_loadu_si128((const __m128i *)(const void *)from));
    default:
        return _mm512_loadu_ps(from);
    }
}

/* 8 elements; the other lanes are 0. */
INLINE vec vec_load_tail_as(const enum dtype dtype, const uint8_t *from)
{
    __m128i bytes = dtype == DTYPE_F32
                        ? _mm_setzero_si128()
                        : _mm_maskz_loadu_epi8((__mmask16)((1U << (8 * kv_bytes(dtype))) - 1), from);
    switch (dtype) {
    case DTYPE_F16:
        return _mm512_cvtph_ps(_mm256_zextsi128_si256(bytes));
    case DTYPE_BF16:
        return from_bf16(_mm256_zextsi128_si256(bytes));
    case DTYPE_E4M3:
        return from_e4m3(bytes);
    case DTYPE_E5M2:
        return from_e5m2(bytes);
    default:
        return _mm512_maskz_loadu_ps(0xff, from);
    }
}

/* ---- sums ---------------------------------------------------------------------------------------- */

/* Lane i of the result is the sum of all lanes of x[i]: lanes 2 apart inside 4, then 1 apart, then 4,
 * then 8. */
INLINE vec reduce_lanes(const vec x[16])
{
    vec pairs[8], quads[4], halves[2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        pairs[i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]) + _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512d a = _mm512_castps_pd(pairs[2 * i]), b = _mm512_castps_pd(pairs[2 * i + 1]);
        quads[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        halves[i] = _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0x88) +
                    _mm512_shuffle_f32x4(quads[2 * i], quads[2 * i + 1], 0xdd);
    return _mm512_shuffle_f32x4(halves[0], halves[1], 0x88) +
           _mm512_shuffle_f32x4(halves[0], halves[1], 0xdd);
}

static bool vec512_supported(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#undef INLINE

#endif

#endif
