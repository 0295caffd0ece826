/* SPDX-License-Identifier: Apache-2.0 */
/* test_id_ranges.c - the set has every id that was added, and no other as long as it need not join ranges; against an array. */
#include "scheduler/id_ranges.h"
#include "tests/unit/suites.h"

#include <string.h>

enum { IDS = 3000, ROUNDS = 4000 };

static uint64_t random_state = 99;

static uint32_t below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)((random_state >> 33) % n);
}

static void add_at_random(struct id_ranges *r, bool *has, uint32_t longest)
{
    uint32_t first = 1 + below(IDS - longest - 1), last = first + below(longest);
    id_ranges_add(r, first, last);
    memset(has + first, true, last - first + 1);
}

START_TEST(has_what_was_added)
{
    static bool has[IDS];
    struct id_ranges r = {0};
    bool joined = false;
    memset(has, 0, sizeof has);
    for (int round = 0; round < ROUNDS; round++) {
        if (below(400) == 0) {
            uint32_t id = below(IDS);
            id_ranges_remove_below(&r, id);
            memset(has, 0, id);
        }
        add_at_random(&r, has, _i ? 40 : 2);
        joined |= r.count == ID_RANGES_MOST;
        for (uint32_t i = 1; i < r.count; i++)
            ck_assert_uint_gt(r.all[i].first, r.all[i - 1].last + 1);
        for (uint32_t id = 1; round % 50 == 0 && id < IDS; id++) {
            ck_assert(!has[id] || id_ranges_has(&r, id));
            ck_assert(joined || has[id] || !id_ranges_has(&r, id));
        }
    }
    ck_assert_int_eq(joined, _i == 0);
}
END_TEST

TCase *id_ranges_case(void)
{
    TCase *tc = tcase_create("id_ranges");
    tcase_add_loop_test(tc, has_what_was_added, 0, 2);
    return tc;
}
