/* SPDX-License-Identifier: Apache-2.0 */
/* test_step_log.c - the ring of the latest steps.
 *
 * Property: it has the last STEP_LOG_STEPS steps that were added, and gives those behind a step, or the last ones, in
 * their order; each step's rows are its owners', as many as it has room for, and others'.
 * Method: many values of `since` and some limits, with 0, few, and more steps than it has room for, whose numbers have gaps. */
#include "scheduler/step_log.h"
#include "tests/unit/suites.h"

#include <stdlib.h>

static const uint32_t counts[] = {
    0, 1, 7, STEP_LOG_STEPS - 1, STEP_LOG_STEPS, STEP_LOG_STEPS + 1, 3 * STEP_LOG_STEPS + 5};
static const uint32_t limits[] = {1, 2, 999, STEP_LOG_STEPS};

enum { COUNTS = sizeof counts / sizeof counts[0], LIMITS = sizeof limits / sizeof limits[0] };

/* The number of the n-th step: every third one is missing. */
static uint64_t number_of(uint32_t n)
{
    return (uint64_t)n + n / 2 + 1;
}

static struct step_log *make_log(uint32_t steps)
{
    struct step_log *log = calloc(1, sizeof *log);
    ck_assert_ptr_nonnull(log);
    for (uint32_t n = 0; n < steps; n++) {
        const struct step_log_entry entry = {.step = number_of(n), .kv_bytes = n};
        step_log_add(log, &entry);
    }
    return log;
}

/* What is read has to be steps [first, end), or the first `limit` of them, of those that were added. */
static void check_read(const struct step_log *log, uint64_t since, bool latest, uint32_t limit,
                       uint32_t first, uint32_t end)
{
    static struct step_log_entry read[STEP_LOG_STEPS];
    uint32_t want = end - first < limit ? end - first : limit;
    uint32_t n = step_log_read(log, since, latest, limit, read);
    ck_assert_msg(n == want, "%u steps, limit %u, since %llu: %u read, %u wanted", end, limit,
                  (unsigned long long)since, n, want);
    for (uint32_t i = 0; i < n; i++) {
        ck_assert_uint_eq(read[i].step, number_of(first + i));
        ck_assert_uint_eq(read[i].kv_bytes, first + i);
    }
}

START_TEST(every_step_behind_another_is_found)
{
    for (int c = 0; c < COUNTS; c++) {
        uint32_t steps = counts[c], oldest = steps < STEP_LOG_STEPS ? 0 : steps - STEP_LOG_STEPS;
        struct step_log *log = make_log(steps);
        for (uint64_t since = 0; since < number_of(steps) + 3; since += since % 100 < 9 ? 1 : 13) {
            uint32_t first = oldest;
            while (first < steps && number_of(first) <= since)
                first++;
            for (int l = 0; l < LIMITS; l++)
                check_read(log, since, false, limits[l], first, steps);
        }
        free(log);
    }
}
END_TEST

START_TEST(the_last_steps_are_found)
{
    for (int c = 0; c < COUNTS; c++) {
        uint32_t steps = counts[c], oldest = steps < STEP_LOG_STEPS ? 0 : steps - STEP_LOG_STEPS;
        struct step_log *log = make_log(steps);
        for (int l = 0; l < LIMITS; l++)
            check_read(log, 0, true, limits[l], steps - oldest > limits[l] ? steps - limits[l] : oldest,
                       steps);
        free(log);
    }
}
END_TEST

START_TEST(rows_are_their_owners)
{
    struct step_log_entry e = {0};
    step_log_own(&e, 99, 0); /* nothing */
    for (int round = 0; round < 2; round++) {
        for (uint64_t key = 0; key < STEP_LOG_OWNERS + 3; key++)
            step_log_own(&e, key, (uint32_t)key + 1);
    }
    ck_assert_uint_eq(e.owner_count, STEP_LOG_OWNERS);
    for (uint32_t i = 0; i < STEP_LOG_OWNERS; i++) {
        ck_assert_uint_eq(e.owners[i].key, i);
        ck_assert_uint_eq(e.owners[i].rows, 2 * (i + 1));
    }
    ck_assert_uint_eq(e.rows_of_others, 2 * (9 + 10 + 11));
}
END_TEST

TCase *step_log_case(void)
{
    TCase *tc = tcase_create("step_log");
    tcase_add_test(tc, every_step_behind_another_is_found);
    tcase_add_test(tc, the_last_steps_are_found);
    tcase_add_test(tc, rows_are_their_owners);
    return tc;
}
