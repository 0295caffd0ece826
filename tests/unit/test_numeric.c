/* SPDX-License-Identifier: Apache-2.0 */
/* test_numeric.c - conversions: every bit pattern of every narrow format, and every midpoint between
 * neighbours. */
#include "kernels/numeric.h"
#include "tests/unit/suites.h"

#include <math.h>
#include <string.h>

static const enum dtype narrow[] = {DTYPE_F16, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2};
static const float largest[] = {65504.0F, 0x1.fep127F, 448.0F, 57344.0F};

static float decode(enum dtype dtype, uint32_t bits)
{
    uint8_t bytes[2] = {(uint8_t)bits, (uint8_t)(bits >> 8)};
    return numeric_load(dtype, bytes, 0);
}

static uint32_t encode(enum dtype dtype, float value)
{
    uint8_t bytes[2] = {0, 0};
    numeric_store(dtype, bytes, 0, value);
    return bytes[0] | (uint32_t)bytes[1] << 8;
}

static uint32_t patterns(enum dtype dtype)
{
    return 1U << (8 * dtype_bytes(dtype));
}

START_TEST(finite_values_survive_the_round_trip)
{
    enum dtype dtype = narrow[_i];
    for (uint32_t bits = 0; bits < patterns(dtype); bits++) {
        float value = decode(dtype, bits);
        if (isfinite(value))
            ck_assert_msg(encode(dtype, value) == bits, "%s 0x%x", dtype_name(dtype), bits);
        else if (isnan(value))
            ck_assert(isnan(decode(dtype, encode(dtype, value))));
        else
            ck_assert_float_eq(fabsf(decode(dtype, encode(dtype, value))), largest[_i]);
    }
}
END_TEST

/* Between neighbours a < b: the midpoint goes to the even one, anything nearer to one of them goes
 * there. */
START_TEST(rounding_is_to_nearest_even)
{
    enum dtype dtype = narrow[_i];
    for (uint32_t bits = 0; bits + 1 < patterns(dtype) / 2; bits++) {
        double a = (double)decode(dtype, bits), b = (double)decode(dtype, bits + 1);
        if (!isfinite(b) || isnan(b))
            break;
        float middle = (float)((a + b) / 2); /* exact: one more bit than the format has */
        ck_assert_double_eq((double)middle, (a + b) / 2);
        uint32_t even = bits % 2 ? bits + 1 : bits, sign = patterns(dtype) / 2;
        ck_assert_msg(encode(dtype, middle) == even, "%s between 0x%x and the next", dtype_name(dtype), bits);
        ck_assert_uint_eq(encode(dtype, -middle), even | sign);
        ck_assert_uint_eq(encode(dtype, nextafterf(middle, 0)), bits);
        ck_assert_uint_eq(encode(dtype, nextafterf(middle, INFINITY)), bits + 1);
    }
}
END_TEST

START_TEST(what_is_too_large_saturates)
{
    enum dtype dtype = narrow[_i];
    ck_assert_float_eq(decode(dtype, encode(dtype, 3.4e38F)), largest[_i]);
    ck_assert_float_eq(decode(dtype, encode(dtype, -INFINITY)), -largest[_i]);
    ck_assert(isnan(decode(dtype, encode(dtype, NAN))));
}
END_TEST

/* A number by the definition of its format: NaN and infinity, if it has one, are above the largest. */
static double defined(enum dtype dtype, uint32_t bits)
{
    static const int mantissas[DTYPE_COUNT] = {
        [DTYPE_F16] = 10, [DTYPE_BF16] = 7, [DTYPE_E4M3] = 3, [DTYPE_E5M2] = 2};
    int width = 8 * (int)dtype_bytes(dtype) - 1, mantissa = mantissas[dtype];
    uint32_t magnitude = bits & ((1U << width) - 1), exponent = magnitude >> mantissa;
    int bias = (1 << (width - mantissa - 1)) - 1, is_top = exponent == (1U << (width - mantissa)) - 1;
    double fraction = magnitude & ((1U << mantissa) - 1), sign = bits >> width ? -1 : 1;
    if (dtype == DTYPE_E4M3 ? magnitude == 0x7f : is_top && fraction != 0)
        return (double)NAN;
    if (dtype != DTYPE_E4M3 && is_top)
        return sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - mantissa);
    return sign * ldexp(fraction + (1 << mantissa), (int)exponent - bias - mantissa);
}

/* All at once, and by themselves. */
START_TEST(every_pattern_is_what_its_format_says)
{
    enum dtype dtype = narrow[_i];
    static uint8_t from[2 * 65536];
    static float to[65536];
    uint32_t n = patterns(dtype);
    for (uint32_t bits = 0; bits < n; bits++)
        memcpy(from + bits * dtype_bytes(dtype), &bits, dtype_bytes(dtype)); /* little-endian hosts */
    numeric_to_float(dtype, from, n, to);
    for (uint32_t bits = 0; bits < n; bits++) {
        float value = (float)defined(dtype, bits), one = decode(dtype, bits);
        ck_assert_msg(isnan(value) ? isnan(one) : memcmp(&one, &value, 4) == 0, "%s 0x%x: %a, %a",
                      dtype_name(dtype), bits, (double)one, (double)value);
        ck_assert_msg(isnan(value) ? isnan(to[bits]) : memcmp(&to[bits], &value, 4) == 0, "%s 0x%x: %a, %a",
                      dtype_name(dtype), bits, (double)to[bits], (double)value);
    }
}
END_TEST

START_TEST(finds_the_first_value_that_is_not_finite)
{
    float values[5] = {1, -2, 0, 3, 4};
    ck_assert_uint_eq(numeric_first_nonfinite(DTYPE_F32, values, 5), 5);
    values[3] = NAN;
    ck_assert_uint_eq(numeric_first_nonfinite(DTYPE_F32, values, 5), 3);
    values[1] = -INFINITY;
    ck_assert_uint_eq(numeric_first_nonfinite(DTYPE_F32, values, 5), 1);
}
END_TEST

START_TEST(finds_the_first_value_whose_sums_may_overflow)
{
    float values[5] = {1, -0x1.fffffep96F, 0, 3, 4};
    uint16_t bf16[2] = {0x6fff, 0xf000}; /* just below 2^97, and -2^97 */
    uint16_t f16[2] = {0x7bff, 0x7c00};
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_F32, values, 5), 5);
    values[3] = NAN;
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_F32, values, 5), 3);
    values[2] = -0x1p97F;
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_F32, values, 5), 2);
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_BF16, bf16, 1), 1);
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_BF16, bf16, 2), 1);
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_F16, f16, 1), 1);
    ck_assert_uint_eq(numeric_first_unsummable(DTYPE_F16, f16, 2), 1);
}
END_TEST

/* Every bit pattern of up to 16 bits, in short arrays of any length. */
START_TEST(finds_every_pattern_that_is_not_finite)
{
    static const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2};
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        size_t size = dtype_bytes(dtypes[d]), patterns = (size_t)1 << 8 * size;
        for (uint32_t bits = 0; bits < patterns; bits++) {
            uint8_t array[40 * 2];
            size_t n = 1 + bits % 40, at = bits / 40 % n;
            for (size_t i = 0; i < n; i++)
                numeric_store(dtypes[d], array, i, i % 2 ? -240 : 0x1p-14F);
            memcpy(array + at * size, &bits, size);
            bool finite = isfinite(numeric_load(dtypes[d], array, at));
            ck_assert_uint_eq(numeric_first_nonfinite(dtypes[d], array, n), finite ? n : at);
        }
    }
}
END_TEST

TCase *numeric_case(void)
{
    TCase *tc = tcase_create("numeric");
    tcase_add_loop_test(tc, finite_values_survive_the_round_trip, 0, 4);
    tcase_add_loop_test(tc, rounding_is_to_nearest_even, 0, 4);
    tcase_add_loop_test(tc, what_is_too_large_saturates, 0, 4);
    tcase_add_loop_test(tc, every_pattern_is_what_its_format_says, 0, 4);
    tcase_add_test(tc, finds_the_first_value_that_is_not_finite);
    tcase_add_test(tc, finds_the_first_value_whose_sums_may_overflow);
    tcase_add_test(tc, finds_every_pattern_that_is_not_finite);
    return tc;
}
