/* SPDX-License-Identifier: Apache-2.0 */
/* test_values.c - the generator is Philox4x32-10 (against the vectors of its authors' distribution),
 * and nearly normal. */
#include "kernels/values.h"
#include "tests/unit/suites.h"

#include <math.h>

START_TEST(matches_the_published_vectors)
{
    /* counter and key zero: words 6627e8d5 e169c58d bc57ac4c 9b00dbd8 */
    static const float zero[4] = {76 / 128.0F, 158 / 128.0F, 13 / 128.0F, 80 / 128.0F};
    /* counter 243f6a88 85a308d3 13198a2e 03707344, key a4093822 299f31d0: words d16cfe09 94fdcceb
     * 5001e420 24126ea1 */
    static const float pi[4] = {70 / 128.0F, 330 / 128.0F, -169 / 128.0F, -185 / 128.0F};
    float row[20];
    values_row((struct value_source){.seed = 0}, 0, 0, VALUES_Q, 0, 4, row);
    for (int i = 0; i < 4; i++)
        ck_assert_float_eq(row[i], zero[i]);
    values_row(
        (struct value_source){.seed = UINT64_C(0x299f31d0a4093822), .content = UINT64_C(0x85a308d3243f6a88)},
        0x13198a2e, 0x037, VALUES_Q, 0x1cd, 20, row);
    for (int i = 0; i < 4; i++)
        ck_assert_float_eq(row[16 + i], pi[i]);
}
END_TEST

START_TEST(every_argument_matters)
{
    float a[8], b[8];
    values_row((struct value_source){.seed = 1, .content = 2}, 3, 4, VALUES_K, 5, 8, a);
    const struct {
        struct value_source source;
        uint32_t position, layer, head;
        enum values_tensor tensor;
    } others[] = {{{9, 2, 0}, 3, 4, 5, VALUES_K}, {{1, 9, 0}, 3, 4, 5, VALUES_K},
                  {{1, 2, 0}, 9, 4, 5, VALUES_K}, {{1, 2, 0}, 3, 9, 5, VALUES_K},
                  {{1, 2, 0}, 3, 4, 9, VALUES_K}, {{1, 2, 0}, 3, 4, 5, VALUES_V},
                  {{1, 2, 1}, 3, 4, 5, VALUES_K}};
    for (int i = 0; i < 7; i++) {
        int equal = 0;
        values_row(others[i].source, others[i].position, others[i].layer, others[i].tensor, others[i].head, 8,
                   b);
        for (int d = 0; d < 8; d++)
            equal += a[d] == b[d];
        ck_assert_int_lt(equal, 3);
    }
}
END_TEST

START_TEST(values_are_nearly_normal)
{
    enum { ROWS = 2000, DIMS = 64 };
    double sum = 0, squares = 0, fourth = 0, n = (double)ROWS * DIMS;
    for (uint32_t at = 0; at < ROWS; at++) {
        float row[DIMS];
        values_row((struct value_source){.seed = 3, .content = 4}, at, 0, VALUES_V, 1, DIMS, row);
        for (int d = 0; d < DIMS; d++) {
            double x = (double)row[d];
            sum += x;
            squares += x * x;
            fourth += x * x * x * x;
        }
    }
    double variance = squares / n - (sum / n) * (sum / n);
    ck_assert_double_eq_tol(sum / n, 0, 0.02);
    ck_assert_double_eq_tol(variance, 21845.0 / (128 * 128), 0.03); /* of four bytes, in units of 1/128 */
    ck_assert_double_eq_tol(fourth / n / (variance * variance), 2.7, 0.1); /* a normal distribution has 3 */
}
END_TEST

/* The bits of a value's mantissa, behind its last one that is set. */
static int mantissa_bits(float value)
{
    int exponent, bits = 0;
    for (double rest = fabs(frexp(value, &exponent)); rest != 0; bits++)
        rest = rest * 2 - floor(rest * 2);
    return bits;
}

START_TEST(wide_values_have_whole_mantissas_and_channels)
{
    enum { WIDE = 128, TOKENS = 64, SPREAD = 10 };
    float q[WIDE], k[WIDE], largest_q[WIDE] = {0}, largest_k[WIDE] = {0};
    int bits = 0, outliers = 0;
    float least = INFINITY, most = 0;
    for (uint32_t at = 0; at < TOKENS; at++) {
        values_row((struct value_source){3, 4, 1 + SPREAD}, at, 1, VALUES_Q, 2, WIDE, q);
        values_row((struct value_source){3, 4, 1 + SPREAD}, at, 1, VALUES_K, 2, WIDE, k);
        for (int dim = 0; dim < WIDE; dim++) {
            bits = mantissa_bits(q[dim]) > bits ? mantissa_bits(q[dim]) : bits;
            largest_q[dim] = fmaxf(largest_q[dim], fabsf(q[dim]));
            largest_k[dim] = fmaxf(largest_k[dim], fabsf(k[dim]));
        }
    }
    for (int dim = 0; dim < WIDE; dim++) {
        float both = largest_q[dim] * largest_k[dim]; /* 2 * 2 at most, 8 times as much in an outlier */
        ck_assert_float_le(both, 32);
        outliers += both > 6;
        least = fminf(least, largest_q[dim]);
        most = fmaxf(most, largest_q[dim]);
    }
    ck_assert_int_eq(bits, 24);
    ck_assert_int_eq(outliers, WIDE / 32);
    ck_assert_float_gt(most / least, 1 << (2 * SPREAD - 2));
}
END_TEST

TCase *values_case(void)
{
    TCase *tc = tcase_create("values");
    tcase_add_test(tc, matches_the_published_vectors);
    tcase_add_test(tc, every_argument_matters);
    tcase_add_test(tc, values_are_nearly_normal);
    tcase_add_test(tc, wide_values_have_whole_mantissas_and_channels);
    return tc;
}
