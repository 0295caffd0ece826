/* SPDX-License-Identifier: Apache-2.0 */
/* test_roof.c - how a measurement of the read roof goes, what of several measurements counts, and when the next one is made
 * unasked: of a backend whose passes are as fast as the test says. No time is taken. */
#include "kernels/backend.h"
#include "kernels/roof.h"
#include "scheduler/roof.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { PARTS = 4, HALF_HOUR_S = 1800 };

/* A backend whose measurements have PARTS parts, and find `next`. */
struct fake {
    struct attention base;
    struct attention_roof next;
    uint32_t part, begun;
};

static bool fake_roof_part(struct attention *attention, bool begins, struct attention_roof *roof)
{
    struct fake *f = (struct fake *)attention;
    f->begun += begins;
    f->part = begins ? 1 : f->part + 1;
    if (f->part < PARTS)
        return false;
    *roof = f->next;
    return true;
}

static const struct attention_ops fake_ops = {.roof_part = fake_roof_part};

static struct fake fake_of(double best)
{
    return (struct fake){.base = {.ops = &fake_ops}, .next = {best, best / 2, best / 4}};
}

/* A roof that was measured at `now_s`. */
static void init(struct roof *roof, double best, double now_s)
{
    const struct attention_roof first = {best, best, best};
    roof_init(roof);
    roof_note(roof, &first, now_s);
}

START_TEST(the_fastest_way_is_repeated)
{
    static const double rates[] = {5, 9, 7, 3, 11, 8, 10}; /* the second way, and four passes more of it */
    static const uint32_t ways[] = {0, 1, 2, 1, 1, 1, 1};
    struct roof_trial t;
    struct attention_roof roof = {0};
    roof_trial_begin(&t, ROOF_PASSES_MAX);
    for (int i = 0; i < 7; i++) {
        ck_assert_uint_eq(roof_trial_way(&t), ways[i]);
        ck_assert_int_eq(roof_trial_add(&t, rates[i], &roof), i == 6);
    }
    ck_assert_double_eq(roof.best, 11);
    ck_assert_double_eq(roof.median, 9);
    ck_assert_double_eq(roof.worst, 3);
    roof_trial_begin(&t, 1);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(roof_trial_add(&t, rates[i], &roof), i == 2);
    ck_assert_double_eq(roof.best, 9);
    ck_assert_double_eq(roof.worst, 9);
}
END_TEST

START_TEST(the_best_of_lately_counts)
{
    struct roof roof;
    struct attention_roof m = {0, 0, 0};
    init(&roof, 4, 10); /* a noisy start */
    m.best = 12;
    roof_note(&roof, &m, 70);
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 12);
    ck_assert_double_eq(roof_report(&roof).seen_s, 70);
    m = (struct attention_roof){6, 5, 3};
    roof_note(&roof, &m, 200);
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 12); /* and not the noise of later */
    ck_assert_double_eq(roof_report(&roof).seen_s, 70);
    ck_assert_double_eq(roof_report(&roof).latest.median, 5);
    ck_assert_double_eq(roof_report(&roof).latest_s, 200);
    ck_assert_uint_eq(roof_report(&roof).measurements, 3);
    m = (struct attention_roof){0, 0, 0}; /* could not be measured: says nothing */
    roof_note(&roof, &m, 210);
    ck_assert_uint_eq(roof_report(&roof).measurements, 3);
    m = (struct attention_roof){7, 7, 7};
    roof_note(&roof, &m, HALF_HOUR_S + 10);
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 12);
    roof_note(&roof, &m, 2 * HALF_HOUR_S + 10); /* what it did once it does not do any more */
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 7);
    m.best = 3;
    roof_note(&roof, &m, 9 * HALF_HOUR_S);
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 3);
    roof_deinit(&roof);
}
END_TEST

START_TEST(an_idle_engine_measures_again)
{
    struct roof roof;
    struct fake f = fake_of(8);
    double now_s = 100;
    init(&roof, 4, now_s);
    ck_assert(!roof_turn(&roof, &f.base, true, now_s));
    ck_assert_double_eq(roof_idle_s(&roof, now_s), 60);
    ck_assert(!roof_turn(&roof, &f.base, false, now_s + 59)); /* not yet */
    ck_assert(!roof_turn(&roof, &f.base, true, now_s + 59));
    ck_assert(!roof_turn(&roof, &f.base, false, now_s + 61)); /* it is not quiet for long */
    ck_assert_double_eq(roof_idle_s(&roof, now_s + 61), 3);
    now_s += 64;
    for (int part = 0; part < PARTS; part++)
        ck_assert(roof_turn(&roof, &f.base, false, now_s += 0.1));
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 8);
    ck_assert(!roof_turn(&roof, &f.base, false, now_s));
    ck_assert_double_eq_tol(roof_idle_s(&roof, now_s), 300, 1e-6); /* a thousand times what it took */
    roof_deinit(&roof);
}
END_TEST

START_TEST(what_is_computed_ends_it)
{
    struct roof roof;
    struct fake f = fake_of(8);
    init(&roof, 4, 0);
    for (int part = 0; part < PARTS - 1; part++)
        ck_assert(roof_turn(&roof, &f.base, false, 100));
    ck_assert(!roof_turn(&roof, &f.base, true, 100));
    for (int part = 0; part < PARTS; part++) { /* anew */
        ck_assert_uint_eq(roof_report(&roof).measurements, 1);
        ck_assert(roof_turn(&roof, &f.base, false, 200));
    }
    ck_assert_uint_eq(roof_report(&roof).measurements, 2);
    ck_assert_uint_eq(f.begun, 2);
    roof_deinit(&roof);
}
END_TEST

START_TEST(who_asks_has_one_of_its_own)
{
    struct roof roof;
    struct fake f = fake_of(8);
    int who, other;
    init(&roof, 4, 0);
    ck_assert(roof_turn(&roof, &f.base, false, 100)); /* one is under way */
    for (int part = 0; part < PARTS; part++) {
        ck_assert_int_eq(roof_part(&roof, &f.base, &who, 101), part == PARTS - 1);
        ck_assert(!roof_turn(&roof, &f.base, true, 101)); /* steps between the parts do not end it */
    }
    for (int part = 0; part < PARTS; part++)
        ck_assert_int_eq(roof_part(&roof, &f.base, &other, 102), part == PARTS - 1);
    ck_assert_uint_eq(f.begun, 3);
    ck_assert_uint_eq(roof_report(&roof).measurements, 3);
    roof_deinit(&roof);
}
END_TEST

START_TEST(what_cannot_be_measured_is_not)
{
    struct roof roof;
    struct fake f = fake_of(0);
    init(&roof, 0, 0);
    ck_assert_double_lt(roof_idle_s(&roof, 1000), 0);
    ck_assert(!roof_turn(&roof, &f.base, false, 1000));
    for (int part = 0; part < PARTS; part++) /* but when it is asked for */
        ck_assert_int_eq(roof_part(&roof, &f.base, &f, 1000), part == PARTS - 1);
    ck_assert_double_eq(roof_report(&roof).gb_per_s, 0);
    roof_deinit(&roof);
}
END_TEST

START_TEST(above_it_there_is_a_reason)
{
    struct roof_report quiet = {.gb_per_s = 10, .latest = {10, 10, 9}},
                       noisy = {.gb_per_s = 10, .latest = {10, 7, 4}};
    ck_assert_ptr_null(roof_explain(&quiet, 1));
    ck_assert_ptr_null(roof_explain(&noisy, 0));
    ck_assert_ptr_nonnull(strstr(roof_explain(&quiet, 1.01), "faster than memory"));
    ck_assert_ptr_nonnull(strstr(roof_explain(&noisy, 1.01), "others used the machine"));
}
END_TEST

TCase *roof_case(void)
{
    TCase *tc = tcase_create("roof");
    tcase_add_test(tc, the_fastest_way_is_repeated);
    tcase_add_test(tc, the_best_of_lately_counts);
    tcase_add_test(tc, an_idle_engine_measures_again);
    tcase_add_test(tc, what_is_computed_ends_it);
    tcase_add_test(tc, who_asks_has_one_of_its_own);
    tcase_add_test(tc, what_cannot_be_measured_is_not);
    tcase_add_test(tc, above_it_there_is_a_reason);
    return tc;
}
