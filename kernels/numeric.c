/* numeric.c - see numeric.h.
 *
 * All narrow formats but bf16 go through one pair of functions, told their exponent and mantissa
 * widths. */
#include "kernels/numeric.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A binary format of 1 sign bit, `exponent` bits and `mantissa` bits. */
struct format {
    unsigned exponent, mantissa;
    uint32_t largest; /* bits of the largest finite value */
    bool has_infinity;
};

static const struct format f16 = {5, 10, 0x7bff, true};
static const struct format e4m3 = {4, 3, 0x7e, false}; /* 0x7f is NaN, there is no infinity */
static const struct format e5m2 = {5, 2, 0x7b, true};

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

static float decode(const struct format *f, uint32_t bits)
{
    unsigned width = f->exponent + f->mantissa;
    int bias = (1 << (f->exponent - 1)) - 1;
    uint32_t magnitude = bits & ((1U << width) - 1), mantissa = magnitude & ((1U << f->mantissa) - 1);
    uint32_t exponent = magnitude >> f->mantissa;
    float value;
    if (magnitude > f->largest)
        value = f->has_infinity && mantissa == 0 ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexpf((float)mantissa, 1 - bias - (int)f->mantissa);
    else
        value = ldexpf((float)(mantissa | 1U << f->mantissa), (int)exponent - bias - (int)f->mantissa);
    return bits >> width & 1 ? -value : value;
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
    const uint8_t *bytes = array;
    uint16_t half;
    float value;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(&value, bytes + 4 * i, 4);
        return value;
    case DTYPE_F16:
        memcpy(&half, bytes + 2 * i, 2);
        return decode(&f16, half);
    case DTYPE_BF16:
        memcpy(&half, bytes + 2 * i, 2);
        return float_of((uint32_t)half << 16);
    case DTYPE_E4M3:
        return decode(&e4m3, bytes[i]);
    case DTYPE_E5M2:
        return decode(&e5m2, bytes[i]);
    case DTYPE_COUNT:
        break;
    }
    assert(!"no such dtype");
    return NAN;
}

void numeric_store(enum dtype dtype, void *array, size_t i, float value)
{
    uint8_t *bytes = array;
    uint16_t half;
    switch (dtype) {
    case DTYPE_F32:
        memcpy(bytes + 4 * i, &value, 4);
        return;
    case DTYPE_F16:
        half = (uint16_t)encode(&f16, value);
        memcpy(bytes + 2 * i, &half, 2);
        return;
    case DTYPE_BF16:
        half = encode_bf16(value);
        memcpy(bytes + 2 * i, &half, 2);
        return;
    case DTYPE_E4M3:
        bytes[i] = (uint8_t)encode(&e4m3, value);
        return;
    case DTYPE_E5M2:
        bytes[i] = (uint8_t)encode(&e5m2, value);
        return;
    case DTYPE_COUNT:
        break;
    }
    assert(!"no such dtype");
}

/* The loops below are branch-free so that the compiler can use whole vectors. A narrow number's
 * exponent and mantissa, moved to the top of an f32's, are the number times a power of two, denormals
 * included. */

static void f16_to_float(const uint8_t *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
        uint32_t bits = bits_of(float_of(magnitude) * 0x1p112F);
        bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000 : 0; /* infinity and NaN keep their exponent */
        to[i] = float_of(bits | sign);
    }
}

static void e4m3_to_float(const uint8_t *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(from[i] & 0x7f) << 20, sign = (uint32_t)(from[i] & 0x80) << 24;
        uint32_t bits = bits_of(float_of(magnitude) * 0x1p120F);
        bits |= (from[i] & 0x7f) == 0x7f ? 0x7fc00000 : 0;
        to[i] = float_of(bits | sign);
    }
}

static void e5m2_to_float(const uint8_t *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(from[i] & 0x7f) << 21, sign = (uint32_t)(from[i] & 0x80) << 24;
        uint32_t bits = bits_of(float_of(magnitude) * 0x1p112F);
        bits |= (from[i] & 0x7c) == 0x7c ? 0x7f800000 : 0;
        to[i] = float_of(bits | sign);
    }
}

static void bf16_to_float(const uint8_t *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, 2);
        to[i] = float_of((uint32_t)h << 16);
    }
}

void numeric_to_float(enum dtype dtype, const void *from, size_t n, float *to)
{
    switch (dtype) {
    case DTYPE_F32:
        memcpy(to, from, n * sizeof *to);
        return;
    case DTYPE_F16:
        f16_to_float(from, n, to);
        return;
    case DTYPE_BF16:
        bf16_to_float(from, n, to);
        return;
    case DTYPE_E4M3:
        e4m3_to_float(from, n, to);
        return;
    case DTYPE_E5M2:
        e5m2_to_float(from, n, to);
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

static const uint32_t exponents[DTYPE_COUNT] = {[DTYPE_F32] = 0x7f800000,
                                                [DTYPE_F16] = 0x7c00,
                                                [DTYPE_BF16] = 0x7f80,
                                                [DTYPE_E4M3] = 0x7f,
                                                [DTYPE_E5M2] = 0x7c};

size_t numeric_first_nonfinite(enum dtype dtype, const void *array, size_t n)
{
    return first_beyond(dtype, array, n, exponents[dtype], INFINITY);
}

size_t numeric_first_unsummable(enum dtype dtype, const void *array, size_t n)
{
    if (dtype != DTYPE_F32 && dtype != DTYPE_BF16)
        return numeric_first_nonfinite(dtype, array, n);
    uint32_t upper_half = dtype == DTYPE_F32 ? 0x70000000 : 0x7000; /* exponents of 2^97 and more */
    return first_beyond(dtype, array, n, upper_half, 0x1p97F);
}
