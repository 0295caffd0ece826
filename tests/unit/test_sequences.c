/* SPDX-License-Identifier: Apache-2.0 */
/* test_sequences.c - ids: the daemon never gives out one that it gave out before or that a client ever
 * chose, however many were chosen and removed; against a set of all ids. */
#include "scheduler/sequences.h"
#include "tests/unit/suites.h"

#include <stdlib.h>

enum { ROWS = 64, IDS = 1 << 17, ROUNDS = ROUNDS_OF(60000) };

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
    ck_assert_int_eq(sequences_create(ROWS, 0, &s), 0);
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
        uint64_t id = sequences_add(s, row, wanted, 0, 0, 0);
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
    ck_assert_int_eq(sequences_create(ROWS, 0, &s), 0);
    ck_assert_uint_eq(sequences_add(s, 0, (UINT64_C(1) << SEQUENCE_NODE_SHIFT) - 1, 0, 0, 0),
                      (UINT64_C(1) << SEQUENCE_NODE_SHIFT) - 1);
    ck_assert_uint_eq(sequences_add(s, 1, 2, 0, 0, 0), 2);
    ck_assert_uint_eq(sequences_add(s, 2, 0, 0, 0, 0), 1);
    ck_assert_uint_eq(sequences_add(s, 3, 0, 0, 0, 0), 3);
    sequences_remove(s, 1);
    ck_assert_uint_eq(sequences_add(s, 1, 0, 0, 0, 0), 4);
    sequences_destroy(s);
}
END_TEST

/* States noted at random, against the states of all sequences one by one; steps retire in their order. */
START_TEST(states_are_counted)
{
    struct sequences *s;
    struct {
        bool used, noted;
        enum sequence_state state;
        uint64_t until;
    } in_row[ROWS] = {0};
    uint64_t retired = 0;
    ck_assert_int_eq(sequences_create(ROWS, 0, &s), 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t row = below(ROWS), counts[SEQUENCE_STATES], wanted[SEQUENCE_STATES] = {0};
        retired += below(4) == 0;
        if (!in_row[row].used)
            (void)sequences_add(s, row, 0, 0, 0, 0);
        else if (below(5) == 0)
            sequences_remove(s, row);
        in_row[row].noted &= in_row[row].used && sequences_at(s, row)->id;
        in_row[row].used = sequences_at(s, row)->id != 0;
        if (in_row[row].used && below(6)) {
            in_row[row].noted = true;
            in_row[row].state = (enum sequence_state)below(SEQUENCE_STATES);
            in_row[row].until = below(3) ? retired + 1 + below(STEPS_IN_FLIGHT_MAX) : SEQUENCE_RUNS_ON;
            sequences_note_state(s, row, in_row[row].state, in_row[row].until);
        }
        for (uint32_t i = 0; i < ROWS; i++) {
            bool ran = in_row[i].state == SEQUENCE_RUNNING && in_row[i].until <= retired;
            enum sequence_state state = ran ? SEQUENCE_IDLE : in_row[i].state;
            wanted[state] += in_row[i].noted;
            if (in_row[i].noted)
                ck_assert_uint_eq(sequences_state(s, i, retired), state);
        }
        sequences_count(s, retired, counts);
        for (int i = 0; i < SEQUENCE_STATES; i++)
            ck_assert_msg(counts[i] == wanted[i], "round %d, state %d: %u, wanted %u", round, i, counts[i],
                          wanted[i]);
        ck_assert_ptr_null(sequences_fault(s));
    }
    sequences_destroy(s);
}
END_TEST

/* What another start has given out, and what clients chose then, is not given out; nor is what is not allowed yet. */
START_TEST(those_of_another_start_are_not_given_out)
{
    struct sequences *s;
    uint64_t last = 0;
    ck_assert_int_eq(sequences_create(ROWS, 0, &s), 0);
    ck_assert(sequences_may_add(s));
    sequences_choose(s, 900, 1100); /* around the number; behind it; far ahead */
    sequences_choose(s, 20000, 20100);
    sequences_choose(s, 50000, UINT64_C(1) << 30);
    sequences_allow(s, 1000, 30000);
    while (sequences_may_add(s)) {
        uint64_t id = sequences_add(s, 0, 0, 0, 0, 0), reach = sequences_reach(s, 5);
        ck_assert_uint_gt(id, last);
        ck_assert_uint_gt(id, 1100);
        ck_assert(id < 20000 || id > 20100);
        ck_assert_uint_lt(id, 30000);
        ck_assert_uint_gt(reach, id + 5);
        ck_assert_uint_le(reach, id + 6 + 101);
        sequences_remove(s, 0);
        last = id;
    }
    ck_assert_uint_gt(last, 20100); /* as many as there is room for are kept in hand */
    sequences_allow(s, 0, UINT64_C(1) << 31);
    ck_assert(sequences_may_add(s));
    sequences_destroy(s);
}
END_TEST

TCase *sequences_case(void)
{
    TCase *c = tcase_create("sequences");
    tcase_add_test(c, ids_are_given_out_once);
    tcase_add_test(c, states_are_counted);
    tcase_add_test(c, a_far_id_takes_none_of_those_before_it);
    tcase_add_test(c, those_of_another_start_are_not_given_out);
    return c;
}
