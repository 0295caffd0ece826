/* SPDX-License-Identifier: Apache-2.0 */
/* test_departures.c - the latest departures are found, and no others; against an array, over random operations. */
#include "scheduler/departures.h"
#include "tests/unit/suites.h"

#include <stdio.h>

enum { REMEMBERED = 7, IDS = 40, ROUNDS = 20000 };

static uint32_t random_state = 4711;

static uint32_t below(uint32_t n)
{
    random_state = random_state * 1103515245 + 12345;
    return (random_state >> 8) % n;
}

/* Departures in their order; id 0: forgotten, its place is taken up all the same. */
static uint64_t order[ROUNDS];
static uint32_t count;

static bool is_remembered(uint64_t id)
{
    for (uint32_t i = count > REMEMBERED ? count - REMEMBERED : 0; i < count; i++) {
        if (order[i] == id)
            return true;
    }
    return false;
}

START_TEST(the_latest_are_found)
{
    struct departures *d;
    ck_assert_int_eq(departures_create(REMEMBERED, &d), 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t id = 1 + below(IDS);
        struct departure gone = {.id = id, .key = id * 3, .lease = id % 2, .at_s = round};
        snprintf(gone.moved_to, sizeof gone.moved_to, "/x/%u", (unsigned)id);
        if (is_remembered(id)) {
            departures_forget(d, id);
            for (uint32_t i = 0; i < count; i++)
                order[i] = order[i] == id ? 0 : order[i];
        } else if (below(4)) {
            departures_note(d, &gone);
            order[count++] = id;
        } else {
            departures_forget(d, id); /* of one that is not there: nothing */
        }
        id = 1 + below(IDS);
        const struct departure *found = departures_find(d, id);
        ck_assert_int_eq(found != NULL, is_remembered(id));
        if (!found)
            continue;
        snprintf(gone.moved_to, sizeof gone.moved_to, "/x/%u", (unsigned)id);
        ck_assert_uint_eq(found->id, id);
        ck_assert_uint_eq(found->key, id * 3);
        ck_assert_int_eq(found->lease, id % 2);
        ck_assert_str_eq(found->moved_to, gone.moved_to);
    }
    departures_destroy(d);
}
END_TEST

TCase *departures_case(void)
{
    TCase *tc = tcase_create("departures");
    tcase_add_test(tc, the_latest_are_found);
    return tc;
}
