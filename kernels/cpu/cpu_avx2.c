/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_avx2.c - the vector path with 8 lanes. Needs AVX2, FMA and F16C (Haswell, Zen and later). See
 * cpu_simd.h. */
#include "kernels/cpu/cpu_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#define LANES        8
#define ACCUMULATORS 8

typedef __m256 vec;

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_set1(float x)
{
    return _mm256_set1_ps(x);
}

/* head_dim is a multiple of 8: there are no tails. */
INLINE vec vec_load_tail(const float *from)
{
    return _mm256_loadu_ps(from);
}

INLINE void vec_store_tail(float *to, vec x)
{
    _mm256_storeu_ps(to, x);
}

INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* b where a is NaN. */
INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

/* 0, 1, 2, ... */
INLINE vec vec_ramp(void)
{
    return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
}

/* x in the lanes [first, end), -inf in the others; both may lie outside. */
INLINE vec vec_keep_lanes(vec x, int first, int end)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i from = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(first - 1));
    __m256i to = _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane);
    return _mm256_blendv_ps(vec_set1(-INFINITY), x, _mm256_castsi256_ps(_mm256_and_si256(from, to)));
}

INLINE float vec_highest(vec x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Lanes 4 apart, then 2 and 1. */
INLINE float vec_sum(vec x)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Lane i of the result is the sum of all lanes of x[i]: lanes 2 apart inside 4, then 1 apart, then 4. */
INLINE vec reduce_lanes(const vec x[8])
{
    vec pairs[4], quads[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        pairs[i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]) + _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        __m256d a = _mm256_castps_pd(pairs[2 * i]), b = _mm256_castps_pd(pairs[2 * i + 1]);
        quads[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)) + _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
    }
    return _mm256_permute2f128_ps(quads[0], quads[1], 0x20) +
           _mm256_permute2f128_ps(quads[0], quads[1], 0x31);
}

/* ---- stored formats ------------------------------------------------------------------------------ */

/* 8 bytes of e4m3. As f16 the bits are the value times 2^-8, denormals included, and f16 converts
 * without the penalty that denormals of f32 have. */
INLINE vec from_e4m3(__m128i x)
{
    __m128i wide = _mm_slli_epi16(_mm_cvtepu8_epi16(x), 8);
    __m128i half = _mm_and_si128(_mm_srai_epi16(wide, 1), _mm_set1_epi16((short)0xbfff));
    return _mm256_cvtph_ps(half) * vec_set1(256);
}

/* LANES elements as f32. */
INLINE vec vec_load_as(const enum dtype dtype, const uint8_t *from)
{
    const __m128i *at = (const __m128i *)(const void *)from;
    switch (dtype) {
    case DTYPE_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128(at));
    case DTYPE_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
    case DTYPE_E4M3:
        return from_e4m3(_mm_loadl_epi64(at));
    case DTYPE_E5M2:
        return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(at)), 8));
    default:
        return _mm256_loadu_ps((const float *)(const void *)from);
    }
}

INLINE vec vec_load_tail_as(const enum dtype dtype, const uint8_t *from)
{
    return vec_load_as(dtype, from);
}

#undef INLINE
#include "kernels/cpu/cpu_simd.h"

static bool avx2_supported(void)
{
    unsigned eax, ebx, ecx, edx; /* clang 14 has no name for F16C */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

const struct cpu_kernels cpu_kernels_avx2 = {
    "avx2", avx2_supported, NULL, simd_tile, states_merge, states_finish,
};

#else

const struct cpu_kernels cpu_kernels_avx2 = {.isa = "avx2"};

#endif
