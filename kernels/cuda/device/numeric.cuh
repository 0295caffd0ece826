/* SPDX-License-Identifier: Apache-2.0 */
/* numeric.cuh - number formats on the device, with the bits of kernels/numeric.c: round to nearest
 * even, saturate, NaN stays NaN. To f32 is exact. */
#pragma once

#include "config/geometry.h"

#define INFINITE __int_as_float(0x7f800000)

static constexpr uint32_t bytes_of(dtype d)
{
    return d == DTYPE_F32 ? 4 : d == DTYPE_F16 || d == DTYPE_BF16 ? 2 : 1;
}

/* What as many bytes are loaded as. */
template <uint32_t BYTES> struct word {
    using type = uint8_t;
};
template <> struct word<2> {
    using type = uint16_t;
};
template <> struct word<4> {
    using type = uint32_t;
};
template <> struct word<8> {
    using type = uint2;
};
template <> struct word<16> {
    using type = uint4;
};
template <dtype D> using bits_of = typename word<bytes_of(D)>::type;

/* Exponent bits, mantissa bits, and the largest finite value of a narrow format. */
template <dtype D> struct narrow_format;
template <> struct narrow_format<DTYPE_F16> {
    static constexpr uint32_t E = 5, M = 10, LARGEST = 0x7bff;
};
template <> struct narrow_format<DTYPE_E4M3> {
    static constexpr uint32_t E = 4, M = 3, LARGEST = 0x7e;
};
template <> struct narrow_format<DTYPE_E5M2> {
    static constexpr uint32_t E = 5, M = 2, LARGEST = 0x7b;
};

/* In units of the last place the value is an integer plus a fraction, exactly; rintf ties to even. */
template <dtype D> uint32_t encode_narrow(float value)
{
    using F = narrow_format<D>;
    constexpr int bias = (1 << (F::E - 1)) - 1;
    uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
    uint32_t sign = (bits >> 31) << (F::E + F::M);
    if (magnitude > 0x7f800000)
        return sign | ((1u << (F::E + F::M)) - 1);
    if (magnitude == 0x7f800000)
        return sign | F::LARGEST;
    int exponent = (int)(magnitude >> 23) - 127; /* of the leading bit, or of the denormals */
    exponent = exponent < 1 - bias ? 1 - bias : exponent;
    float unit = __uint_as_float((uint32_t)((int)F::M - exponent + 127) << 23); /* 2^(M - exponent) */
    uint32_t rounded = (uint32_t)rintf(__uint_as_float(magnitude) * unit);      /* up to 2^(M + 1) */
    if (rounded >= 1u << F::M) /* a carry out of the mantissa moves into the exponent by itself */
        rounded += (uint32_t)(exponent + bias - 1) << F::M;
    return sign | (rounded > F::LARGEST ? F::LARGEST : rounded);
}

template <dtype D> float decode_narrow(uint32_t bits)
{
    using F = narrow_format<D>;
    constexpr int bias = (1 << (F::E - 1)) - 1;
    constexpr uint32_t width = F::E + F::M;
    uint32_t magnitude = bits & ((1u << width) - 1), exponent = magnitude >> F::M;
    uint32_t mantissa = magnitude & ((1u << F::M) - 1);
    float value;
    if (magnitude > F::LARGEST)
        value = D != DTYPE_E4M3 && mantissa == 0 ? INFINITE : __uint_as_float(0x7fc00000);
    else if (exponent == 0)
        value = (float)mantissa * __uint_as_float((uint32_t)(1 - bias - (int)F::M + 127) << 23);
    else
        value = __uint_as_float((exponent - bias + 127) << 23 | mantissa << (23 - F::M));
    return bits >> width & 1 ? -value : value;
}

static inline uint32_t encode_bf16(float value)
{
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return bits >> 16 | 0x40;
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (rounded & 0x7fffffff) >= 0x7f800000 ? (bits >> 16 & 0x8000) | 0x7f7f : rounded >> 16;
}

/* The value of an element's bits, and the bits of a value. */
template <dtype D> float decode(uint32_t bits)
{
    if constexpr (D == DTYPE_F32)
        return __uint_as_float(bits);
    else if constexpr (D == DTYPE_BF16)
        return __uint_as_float(bits << 16);
    else
        return decode_narrow<D>(bits);
}

template <dtype D> uint32_t encode(float value)
{
    if constexpr (D == DTYPE_F32)
        return __float_as_uint(value);
    else if constexpr (D == DTYPE_BF16)
        return encode_bf16(value);
    else
        return encode_narrow<D>(value);
}

/* Element `i` of an array. */
template <dtype D> float load_element(const void *array, size_t i)
{
    return decode<D>(((const bits_of<D> *)array)[i]);
}

template <dtype D> void store_element(void *array, size_t i, float value)
{
    ((bits_of<D> *)array)[i] = (bits_of<D>)encode<D>(value);
}

/* As store_element, one or two from an even `i` on, of f32 or of a format of 16 bits, for results of
 * arithmetic, whose NaN is the canonical one: one instruction converts both where there is one, for
 * outputs are written by code that is in no cache, and the other way takes a dozen. */
template <dtype D> uint32_t encode_results(float value, float next)
{
#if __CUDA_ARCH__ >= 800 && __CUDACC_VER_MAJOR__ >= 13
    uint32_t bits;
    if constexpr (D == DTYPE_BF16)
        asm("cvt.rn.satfinite.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(next), "f"(value));
    else
        asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(next), "f"(value));
    return bits;
#else
    return encode<D>(value) | encode<D>(next) << 16;
#endif
}

template <dtype D> void store_result(void *array, size_t i, float value)
{
    if constexpr (D == DTYPE_F32)
        ((float *)array)[i] = value;
    else
        ((uint16_t *)array)[i] = (uint16_t)encode_results<D>(value, 0.0f);
}

template <dtype D> void store_results(void *array, size_t i, float value, float next)
{
    if constexpr (D == DTYPE_F32)
        *(float2 *)((float *)array + i) = {value, next};
    else
        *(uint32_t *)((uint16_t *)array + i) = encode_results<D>(value, next);
}

/* decode() of a format that is known only when it runs. */
static inline float decode_any(dtype d, uint32_t bits)
{
    switch (d) {
    case DTYPE_F32:
        return decode<DTYPE_F32>(bits);
    case DTYPE_F16:
        return decode<DTYPE_F16>(bits);
    case DTYPE_BF16:
        return decode<DTYPE_BF16>(bits);
    case DTYPE_E4M3:
        return decode<DTYPE_E4M3>(bits);
    default:
        return decode<DTYPE_E5M2>(bits);
    }
}
