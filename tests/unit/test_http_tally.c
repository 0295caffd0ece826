/* SPDX-License-Identifier: Apache-2.0 */
/* test_http_tally.c - an answer is counted once by its status and once by its time; bounds belong to the bucket below them; what has no
 * slot is counted as status 0. */
#include "server/http_tally.h"
#include "tests/unit/suites.h"

#include <stdlib.h>

START_TEST(counts_by_time)
{
    struct http_tally *tally = http_tally_create(1);
    ck_assert_ptr_nonnull(tally);
    for (unsigned i = 0; i < HTTP_TALLY_TIMES; i++) {
        uint64_t bound_ns = (uint64_t)(http_tally_bounds[i] * 1e9 + 0.5);
        http_tally_note(tally, 0, 200, 0, bound_ns - 1);
        http_tally_note(tally, 0, 200, 0, bound_ns + 1);
    }
    ck_assert_uint_eq(tally->each[0].times[0], 1);
    for (unsigned i = 1; i < HTTP_TALLY_TIMES; i++)
        ck_assert_uint_eq(tally->each[0].times[i], 2);
    ck_assert_uint_eq(tally->each[0].times[HTTP_TALLY_TIMES], 1);
    ck_assert_uint_eq(tally->each[0].answered[0], 2 * HTTP_TALLY_TIMES);
    ck_assert_uint_eq(tally->each[1].answered[0], 0);
    free(tally);
}
END_TEST

START_TEST(counts_by_status)
{
    struct http_tally *tally = http_tally_create(3);
    ck_assert_ptr_nonnull(tally);
    for (int i = 0; i < HTTP_TALLY_STATUSES + 5; i++) {
        for (int n = 0; n <= i; n++)
            http_tally_note(tally, 3, 400 + i, 0, 1000);
    }
    struct http_tally_route *of = &tally->each[3];
    uint64_t rest = 0;
    for (int i = 0; i < HTTP_TALLY_STATUSES; i++) {
        ck_assert_uint_eq(of->status[i], 400U + (unsigned)i);
        ck_assert_uint_eq(of->answered[i], (unsigned)i + 1);
    }
    for (int i = HTTP_TALLY_STATUSES; i < HTTP_TALLY_STATUSES + 5; i++)
        rest += (unsigned)i + 1;
    ck_assert_uint_eq(of->status[HTTP_TALLY_STATUSES], 0);
    ck_assert_uint_eq(of->answered[HTTP_TALLY_STATUSES], rest);
    free(tally);
}
END_TEST

START_TEST(counts_problems)
{
    struct http_tally *tally = http_tally_create(1);
    ck_assert_ptr_nonnull(tally);
    for (unsigned i = 0; i < STATUS_COUNT; i++) {
        int status = status_of_number(i);
        ck_assert_uint_eq(status_number(status), i);
        for (unsigned n = 0; n <= i; n++)
            http_tally_note(tally, 0, status_http(status), status, 1000);
    }
    for (unsigned i = 0; i < STATUS_COUNT; i++)
        ck_assert_uint_eq(tally->problems[i], i + 1);
    free(tally);
}
END_TEST

TCase *http_tally_case(void)
{
    TCase *tc = tcase_create("http_tally");
    tcase_add_test(tc, counts_by_time);
    tcase_add_test(tc, counts_by_status);
    tcase_add_test(tc, counts_problems);
    return tc;
}
