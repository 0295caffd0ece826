/* SPDX-License-Identifier: Apache-2.0 */
/* test_cost.c - estimates of work, and how they follow what steps take. */
#include "scheduler/cost.h"
#include "tests/unit/suites.h"

#include <math.h>

static const struct geometry geometry = {.layers = 4,
                                         .query_heads = 8,
                                         .kv_heads = 2,
                                         .head_dim = 64,
                                         .block_size = 16,
                                         .dtype = DTYPE_F16,
                                         .kv_dtype = DTYPE_F16};

START_TEST(every_fallback_rate_is_above_0)
{
    struct cost_rates r = cost_fallback(&geometry);
    const double rates[] = {r.step_us,  r.pass_us,   r.token_us,    r.weigh_us,
                            r.query_us, r.append_us, r.generate_us, r.copy_us};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        ck_assert_msg(rates[i] > 0, "rate %zu is %g", i, rates[i]);
}
END_TEST

START_TEST(estimates_add_up)
{
    const struct cost_model m = {cost_fallback(&geometry), 1.5};
    const struct cost_work a = {1, 2, 3, 4, 5, 6, 7}, b = {10, 20, 30, 40, 50, 60, 70};
    struct cost_work sum = a;
    cost_add(&sum, &b);
    ck_assert_double_eq_tol(cost_us(&m, &sum), cost_us(&m, &a) + cost_us(&m, &b), 1e-9 * cost_us(&m, &sum));
    ck_assert_double_eq_tol(cost_step_us(&m, &a), cost_us(&m, &a) + 1.5 * m.rates.step_us, 1e-9);
}
END_TEST

/* A machine that becomes four times slower, or faster, is estimated within a tenth after 20 steps,
 * whatever the estimates vary by. */
START_TEST(a_change_of_speed_is_followed_within_20_steps)
{
    for (int slower = 0; slower < 2; slower++) {
        struct cost_model m = {cost_fallback(&geometry), 1};
        double truth = slower ? 4 : 0.25, estimate = 0;
        const struct cost_work work = {.passes = 1, .tokens = 1000};
        for (int step = 0; step < 20; step++) {
            estimate = cost_step_us(&m, &work);
            cost_correct(&m, estimate, truth * (estimate / m.factor) * (step % 2 ? 1.05 : 0.95));
        }
        ck_assert_double_eq_tol(m.factor / truth, 1, 0.1);
    }
}
END_TEST

START_TEST(what_is_no_time_corrects_nothing)
{
    struct cost_model m = {cost_fallback(&geometry), 2};
    cost_correct(&m, 100, 0);
    cost_correct(&m, 0, 100);
    cost_correct(&m, 100, NAN);
    ck_assert_double_eq(m.factor, 2);
}
END_TEST

TCase *cost_case(void)
{
    TCase *tc = tcase_create("cost");
    tcase_add_test(tc, every_fallback_rate_is_above_0);
    tcase_add_test(tc, estimates_add_up);
    tcase_add_test(tc, a_change_of_speed_is_followed_within_20_steps);
    tcase_add_test(tc, what_is_no_time_corrects_nothing);
    return tc;
}
