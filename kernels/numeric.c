/* SPDX-License-Identifier: Apache-2.0 */
/* numeric.c - see numeric.h.
 *
 * A format is told by its exponent and mantissa widths. There is one loop for each direction, without branches and
 * inlined for each format, so that the compiler can use whole vectors. */
#include "kernels/numeric.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A binary format of 1 sign bit, `exponent` bits and `mantissa` bits. */
struct format {
    unsigned exponent, mantissa;
    uint32_t largest; /* bits of the largest finite value; above it: infinity (not in e4m3), NaN */
};

static const struct format formats[DTYPE_COUNT] = {[DTYPE_F32] = {8, 23, 0x7f7fffff},
                                                   [DTYPE_F16] = {5, 10, 0x7bff},
                                                   [DTYPE_BF16] = {8, 7, 0x7f7f},
                                                   [DTYPE_E4M3] = {4, 3, 0x7e},
                                                   [DTYPE_E5M2] = {5, 2, 0x7b}};

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The bits of a value in a narrower format: those of an f32 whose mantissa is rounded, ties to even, and whose bias is the
 * format's. Below the smallest normal number a sum rounds: the last place of `least` is that of the denormals. */
static inline __attribute__((always_inline)) uint32_t encode(const struct format f, float value)
{
    const unsigned width = f.exponent + f.mantissa, shift = 23 - f.mantissa;
    const uint32_t rebias = 127U - ((1U << (f.exponent - 1)) - 1);
    const float least = float_of((rebias + 1 + shift) << 23);
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits >> 31 << width;
    uint32_t normal =
        ((magnitude + (1U << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift) - (rebias << f.mantissa);
    uint32_t denormal = bits_of(float_of(magnitude) + least) - bits_of(least);
    uint32_t rounded = magnitude < (rebias + 1) << 23 ? denormal : normal;
    rounded = rounded > f.largest ? f.largest : rounded;
    return sign | (magnitude > 0x7f800000 ? (1U << width) - 1 : rounded);
}

/* Likewise of bf16, whose exponents are those of f32, and whose NaN keep what they carry. */
static inline __attribute__((always_inline)) uint32_t encode_bf16(float value)
{
    uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    uint32_t rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
    rounded = rounded > 0x7f7f ? 0x7f7f : rounded;
    return sign | (magnitude > 0x7f800000 ? magnitude >> 16 | 0x40 : rounded);
}

/* n numbers in a format of `size` bytes. */
static inline __attribute__((always_inline)) void
narrow(const enum dtype dtype, const size_t size, const float *restrict from, size_t n, uint8_t *restrict to)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t x = (uint16_t)(dtype == DTYPE_BF16 ? encode_bf16(from[i]) : encode(formats[dtype], from[i]));
        if (size == sizeof x)
            memcpy(to + size * i, &x, size);
        else
            to[i] = (uint8_t)x;
    }
}

void numeric_from_float(enum dtype dtype, const float *from, size_t n, void *to)
{
    switch (dtype) {
    case DTYPE_F32:
        memcpy(to, from, n * sizeof *from);
        return;
    case DTYPE_F16:
        narrow(DTYPE_F16, 2, from, n, to);
        return;
    case DTYPE_BF16:
        narrow(DTYPE_BF16, 2, from, n, to);
        return;
    case DTYPE_E4M3:
        narrow(DTYPE_E4M3, 1, from, n, to);
        return;
    case DTYPE_E5M2:
        narrow(DTYPE_E5M2, 1, from, n, to);
        return;
    case DTYPE_COUNT:
        break;
    }
    assert(!"no such dtype");
}

float numeric_load(enum dtype dtype, const void *array, size_t i)
{
    float value;
    numeric_to_float(dtype, (const uint8_t *)array + i * dtype_bytes(dtype), 1, &value);
    return value;
}

void numeric_store(enum dtype dtype, void *array, size_t i, float value)
{
    numeric_from_float(dtype, &value, 1, (uint8_t *)array + i * dtype_bytes(dtype));
}

/* n numbers of `size` bytes in a format. Exponent and mantissa, moved to the top of an f32's, are the number times a
 * power of two, denormals included; infinity and NaN keep their exponent, which in bf16 is that of f32 already. */
static inline __attribute__((always_inline)) void widen(const enum dtype dtype, const size_t size,
                                                        const uint8_t *from, size_t n, float *to)
{
    const struct format f = formats[dtype];
    const unsigned width = f.exponent + f.mantissa;
    const float power = float_of((127U + 127 - ((1U << (f.exponent - 1)) - 1)) << 23);
    for (size_t i = 0; i < n; i++) {
        uint16_t x = from[size * i];
        if (size == sizeof x)
            memcpy(&x, from + size * i, size);
        uint32_t top = (uint32_t)x << (31 - width), sign = top & 0x80000000;
        uint32_t bits = bits_of(float_of((top & 0x7fffffff) >> (8 - f.exponent)) * power);
        bits |= f.exponent < 8 && (top & 0x7fffffff) > f.largest << (31 - width) ? 0x7f800000 : 0;
        to[i] = float_of(bits | sign);
    }
}

void numeric_to_float(enum dtype dtype, const void *from, size_t n, float *to)
{
    switch (dtype) {
    case DTYPE_F32:
        memcpy(to, from, n * sizeof *to);
        return;
    case DTYPE_F16:
        widen(DTYPE_F16, 2, from, n, to);
        return;
    case DTYPE_BF16:
        widen(DTYPE_BF16, 2, from, n, to);
        return;
    case DTYPE_E4M3:
        widen(DTYPE_E4M3, 1, from, n, to);
        return;
    case DTYPE_E5M2:
        widen(DTYPE_E5M2, 1, from, n, to);
        return;
    case DTYPE_COUNT:
        break;
    }
    assert(!"no such dtype");
}

typedef uint64_t vector __attribute__((vector_size(16)));

/* Whether any of n elements of `size` bytes has all the bits of `mask`, its exponent (a NaN or infinity, or,
 * in e4m3, a NaN) or the upper ones of it. Adding the lowest bit carries into the sign's place only then, so
 * any number of elements are looked at in one word:
 *
 *     bf16   x & 7f80    7f80    7f00    0000
 *              + 0080    8000    7f80    0080
 */
static bool any_has_bits(const uint8_t *from, size_t n, size_t size, uint32_t mask)
{
    uint64_t ones = UINT64_MAX / ((UINT64_C(1) << 8 * size) - 1), masks = ones * mask,
             low = ones * (mask & -mask), found = 0, word = 0;
    size_t i = 0, bytes = n * size;
    vector x, all = {0};
    for (; i + sizeof x <= bytes; i += sizeof x) {
        memcpy(&x, from + i, sizeof x);
        all |= (x & masks) + low;
    }
    for (; i < bytes; i += size) {
        memcpy(&word, from + i, size);
        found |= (word & masks) + low;
    }
    return (found | all[0] | all[1]) & ones * (mask + (mask & -mask));
}

/* The first of n elements that has all bits of `mask`, and so is `limit` or more, or NaN. */
static size_t first_beyond(enum dtype dtype, const void *array, size_t n, uint32_t mask, float limit)
{
    enum { AT_ONCE = 4096 };
    size_t bytes = dtype_bytes(dtype);
    for (size_t i = 0; i < n; i += AT_ONCE) {
        size_t end = n - i < AT_ONCE ? n : i + AT_ONCE;
        if (!any_has_bits((const uint8_t *)array + i * bytes, end - i, bytes, mask))
            continue;
        while (fabsf(numeric_load(dtype, array, i)) < limit)
            i++;
        return i;
    }
    return n;
}

size_t numeric_first_nonfinite(enum dtype dtype, const void *array, size_t n)
{
    return first_beyond(dtype, array, n, formats[dtype].largest + 1, INFINITY);
}

size_t numeric_first_unsummable(enum dtype dtype, const void *array, size_t n)
{
    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16)
        return numeric_first_nonfinite(dtype, array, n);
    uint32_t upper_half = dtype == DTYPE_F32 ? 0x70000000 : 0x7000; /* exponents of 2^97 and more */
    return first_beyond(dtype, array, n, upper_half, 0x1p97F);
}
