/* test_sequences.c - ids: the daemon never gives out one that it gave out before or that a client ever
 * chose, however many were chosen and removed; against a set of all ids. */
#include "scheduler/sequences.h"
#include "tests/unit/suites.h"

#include <stdlib.h>

enum { ROWS = 64, IDS = 1 << 17, ROUNDS = 60000 };

static uint64_t random_state = 7;

static uint32_t below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return (uint32_t)((random_state >> 33) % n);
}

/* Add and remove at random; a client chooses ids below `range`, one in `every`. */
static void run(uint32_t range, uint32_t every)
{
    static bool used[IDS];
    struct sequences *s;
    uint64_t in_row[ROWS] = {0}, highest = 0;
    for (uint32_t i = 0; i < IDS; i++)
        used[i] = false;
    ck_assert_int_eq(sequences_create(ROWS, &s), 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t row = below(ROWS);
        if (in_row[row]) {
            sequences_remove(s, row);
            in_row[row] = 0;
            continue;
        }
        uint64_t wanted = below(every) == 0 ? 1 + below(range) : 0;
        if (wanted && sequences_find(s, wanted) != NO_ROW)
            continue;
        uint64_t id = sequences_add(s, row, wanted, 0, 0);
        if (wanted)
            ck_assert_uint_eq(id, wanted);
        else
            ck_assert_msg(id >= IDS || !used[id], "id %llu was given out again (range %u, every %u)",
                          (unsigned long long)id, range, every);
        if (id < IDS)
            used[id] = true;
        if (!wanted)
            highest = id;
        in_row[row] = id;
    }
    ck_assert_uint_gt(highest, ROUNDS / 4);
    sequences_destroy(s);
}

START_TEST(ids_are_given_out_once)
{
    run(100, 2);
    run(IDS - 1, 2); /* scattered: more ranges than are remembered one by one */
    run(IDS - 1, 10);
    run(30000, 3);
}
END_TEST

START_TEST(a_far_id_takes_none_of_those_before_it)
{
    struct sequences *s;
    ck_assert_int_eq(sequences_create(ROWS, &s), 0);
    ck_assert_uint_eq(sequences_add(s, 0, (UINT64_C(1) << SEQUENCE_NODE_SHIFT) - 1, 0, 0),
                      (UINT64_C(1) << SEQUENCE_NODE_SHIFT) - 1);
    ck_assert_uint_eq(sequences_add(s, 1, 2, 0, 0), 2);
    ck_assert_uint_eq(sequences_add(s, 2, 0, 0, 0), 1);
    ck_assert_uint_eq(sequences_add(s, 3, 0, 0, 0), 3);
    sequences_remove(s, 1);
    ck_assert_uint_eq(sequences_add(s, 1, 0, 0, 0), 4);
    sequences_destroy(s);
}
END_TEST

TCase *sequences_case(void)
{
    TCase *c = tcase_create("sequences");
    tcase_add_test(c, ids_are_given_out_once);
    tcase_add_test(c, a_far_id_takes_none_of_those_before_it);
    return c;
}
