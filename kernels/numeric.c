/* SPDX-License-Identifier: Apache-2.0 */
/* numeric.c - see numeric.h.
 *
 * A format is told by its exponent and mantissa widths. Conversions to f32 go through one loop, those from
 * f32 through one function, but for bf16, which most outputs have: a shift rounds it. */
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

static uint32_t encode(const struct format *f, float value)
{
    uint32_t sign = bits_of(value) >> 31 << (f->exponent + f->mantissa);
    int bias = (1 << (f->exponent - 1)) - 1, exponent;
    if (isnan(value))
        return sign | ((1U << (f->exponent + f->mantissa)) - 1);
    if (isinf(value))
        return sign | f->largest;
    float magnitude = fabsf(value);
    (void)frexpf(magnitude, &exponent);
    exponent =
        exponent - 1 < 1 - bias ? 1 - bias : exponent - 1; /* of the leading bit, or of the denormals */
    /* in units of the last place the value is an integer plus a fraction, exactly; rintf ties to even */
    float units = rintf(ldexpf(magnitude, (int)f->mantissa - exponent));
    uint32_t bits = (uint32_t)units; /* up to 2^(mantissa + 1) */
    uint32_t hidden = 1U << f->mantissa;
    if (bits >= hidden) /* normal; a carry out of the mantissa moves into the exponent by itself */
        bits += (uint32_t)(exponent + bias - 1) << f->mantissa;
    return sign | (bits > f->largest ? f->largest : bits);
}

static uint16_t encode_bf16(float value)
{
    uint32_t bits = bits_of(value);
    if (isnan(value))
        return (uint16_t)(bits >> 16 | 0x40);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    if ((rounded & 0x7fffffff) >= 0x7f800000)
        return (uint16_t)((bits >> 16 & 0x8000) | 0x7f7f);
    return (uint16_t)(rounded >> 16);
}

float numeric_load(enum dtype dtype, const void *array, size_t i)
{
    float value;
    numeric_to_float(dtype, (const uint8_t *)array + i * dtype_bytes(dtype), 1, &value);
    return value;
}

void numeric_store(enum dtype dtype, void *array, size_t i, float value)
{
    uint8_t *bytes = array;
    uint16_t half;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(bytes + 4 * i, &value, 4);
        break;
    case DTYPE_F16:
        half = (uint16_t)encode(&formats[DTYPE_F16], value);
        memcpy(bytes + 2 * i, &half, 2);
        break;
    case DTYPE_BF16:
        half = encode_bf16(value);
        memcpy(bytes + 2 * i, &half, 2);
        break;
    default:
        bytes[i] = (uint8_t)encode(&formats[dtype], value);
    }
}

/* n numbers of `size` bytes in a format: branch-free, and inlined with both known, so that the compiler can
 * use whole vectors. Exponent and mantissa, moved to the top of an f32's, are the number times a power of
 * two, denormals included; infinity and NaN keep their exponent, which in bf16 is that of f32 already. */
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

void numeric_from_float(enum dtype dtype, const float *from, size_t n, void *to)
{
    for (size_t i = 0; i < n; i++)
        numeric_store(dtype, to, i, from[i]);
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
