/* SPDX-License-Identifier: Apache-2.0 */
/* test_prompts.c - prompts keep the ids that they were given, whatever others do, and give all their
 * room back; against arrays, over random operations. */
#include "scheduler/prompts.h"
#include "tests/unit/suites.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 5, MOST = 700, ROUNDS = 20000 };

static uint32_t random_state = 12345;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 1103515245 + 12345;
    return (random_state >> 8) % n;
}

START_TEST(keep_what_they_were_given)
{
    static uint32_t model[ROWS][MOST], got[MOST];
    uint32_t length[ROWS] = {0}, refused = 0;
    struct prompts *p;
    ck_assert_int_eq(prompts_create(ROWS, 1000, &p), 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t row = below(ROWS), n = below(MOST + 1);
        if (length[row] == 0) {
            for (uint32_t i = 0; i < n; i++)
                model[row][i] = below(1000000);
            int rc = prompts_set(p, row, model[row], n);
            refused += rc != 0;
            length[row] = rc == 0 ? n : 0;
        } else {
            prompts_cut(p, row, n);
            length[row] = n < length[row] ? n : length[row];
        }
        row = below(ROWS);
        ck_assert_uint_eq(prompts_length(p, row), length[row]);
        uint32_t at = below(length[row] + 1), count = below(length[row] - at + 1);
        prompts_read(p, row, at, count, got);
        ck_assert_mem_eq(got, model[row] + at, count * sizeof *got);
        ck_assert_uint_eq(prompts_agree(p, row, at, model[row] + at, MOST - at), MOST - at);
        if (count == 0)
            continue;
        got[count - 1]++;
        ck_assert_uint_eq(prompts_agree(p, row, at, got, count), count - 1);
    }
    ck_assert_uint_gt(refused, 0);
    for (uint32_t row = 0; row < ROWS; row++)
        prompts_cut(p, row, 0);
    ck_assert_int_eq(prompts_set(p, 0, model[0], MOST), 0);
    prompts_destroy(p);
}
END_TEST

TCase *prompts_case(void)
{
    TCase *c = tcase_create("prompts");
    tcase_add_test(c, keep_what_they_were_given);
    return c;
}
