/* SPDX-License-Identifier: Apache-2.0 */
/* test_shares.c - time is shared by weight.
 *
 * Property: over a second of machine time every owner who always has work gets its weight's part of it
 * within 5 %, and so does every connection of its own that always has work, whoever else comes and goes,
 * whatever steps take.
 * Method: steps of slices are formed by the rules of the scheduler, for random owners, with estimates that
 * are wrong by a factor of each step. */
#include "scheduler/policy.h"
#include "scheduler/shares.h"
#include "tests/unit/suites.h"

#include <math.h>

enum { OWNERS = 6, CONNECTIONS = 3, SLOTS = 2, SEEDS = 200, FIRST_OWNER = 100 };

static const double STEP_US = 20000, SECOND_US = 1e6;

static uint64_t random_state;

static uint32_t below(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((random_state >> 33) % n);
}

/* An owner of the model. */
struct model {
    bool always;                  /* has work, on all of its connections */
    uint32_t weight, connections; /* those that have */
    uint32_t account[CONNECTIONS];
    double had_us[CONNECTIONS], charged_us[CONNECTIONS]; /* so far; in the step being formed */
    bool wants;                                          /* now */
};

static struct model owners[OWNERS];
static uint32_t owner_count;

static void make_owners(struct shares *shares)
{
    owner_count = 2 + below(OWNERS - 1);
    for (uint32_t i = 0; i < owner_count; i++) {
        struct model *m = &owners[i];
        *m = (struct model){
            .always = i < 2 || below(3) > 0, .weight = 1 + below(4), .connections = 1 + below(CONNECTIONS)};
        for (uint32_t k = 0; k < m->connections; k++)
            m->account[k] = shares_hold(shares, FIRST_OWNER + i, k, m->weight);
    }
}

/* The owner who is next of those that want time, and its connection; false: none is. */
static bool find_next(const struct shares *shares, struct model **owner, uint32_t *connection, double *behind)
{
    double least = INFINITY, second = INFINITY, first = INFINITY;
    for (uint32_t i = 0; i < owner_count; i++) {
        double at = shares_at(shares, shares_owner(shares, owners[i].account[0]));
        if (!owners[i].wants)
            continue;
        *owner = at < least ? &owners[i] : *owner;
        second = fmin(second, fmax(least, at));
        least = fmin(least, at);
    }
    *behind = second - least;
    for (uint32_t k = 0; !isinf(least) && k < (*owner)->connections; k++) {
        double at = shares_at(shares, (*owner)->account[k]);
        *connection = at < first ? k : *connection;
        first = fmin(first, at);
    }
    return !isinf(least);
}

/* Form a step, let it take its time, and retire it; returns microseconds. */
static double run_step(struct shares *shares, uint32_t slot)
{
    struct model *owner = NULL;
    uint32_t connection = 0, wanting = 0;
    double behind, sum = 0, factor = 0.5 + below(1000) * 0.002;
    for (uint32_t i = 0; i < owner_count; i++) {
        owners[i].wants = owners[i].always || below(4) == 0;
        wanting += owners[i].wants;
        for (uint32_t k = 0; k < CONNECTIONS; k++)
            owners[i].charged_us[k] = 0;
    }
    while (sum < STEP_US && find_next(shares, &owner, &connection, &behind)) {
        double us = policy_slice_us(STEP_US, wanting, behind) * (0.3 + below(1000) * 0.0007);
        owner->charged_us[connection] += us;
        shares_charge(shares, slot, owner->account[connection], us);
        sum += us;
        if (!owner->always)
            owner->wants = false; /* that was all */
    }
    for (uint32_t i = 0; i < owner_count; i++) {
        for (uint32_t k = 0; owners[i].wants && k < owners[i].connections; k++)
            shares_wait(shares, owners[i].account[k]);
        for (uint32_t k = 0; k < CONNECTIONS; k++)
            owners[i].had_us[k] += owners[i].charged_us[k] * factor;
    }
    shares_end(shares);
    shares_retire(shares, slot, sum * factor);
    return sum * factor;
}

static double had(const struct model *m)
{
    double sum = 0;
    for (uint32_t k = 0; k < CONNECTIONS; k++)
        sum += m->had_us[k];
    return sum;
}

START_TEST(each_gets_its_part_of_a_second)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct shares *shares;
        double took = 0, all = 0;
        uint32_t weights = 0;
        random_state = seed;
        ck_assert_int_eq(shares_create(OWNERS * CONNECTIONS, SLOTS, &shares), 0);
        make_owners(shares);
        for (uint32_t step = 0; step < 50 || took < SECOND_US; step++) { /* begins in the midst of others */
            if (step == 50) {
                took = 0;
                for (uint32_t i = 0; i < owner_count; i++) {
                    for (uint32_t k = 0; k < CONNECTIONS; k++)
                        owners[i].had_us[k] = 0;
                }
            }
            took += run_step(shares, step % SLOTS);
        }
        for (uint32_t i = 0; i < owner_count; i++) {
            all += owners[i].always ? had(&owners[i]) : 0;
            weights += owners[i].always ? owners[i].weight : 0;
        }
        for (uint32_t i = 0; i < owner_count; i++) {
            const struct model *m = &owners[i];
            double part = all * m->weight / weights;
            if (!m->always)
                continue;
            ck_assert_msg(fabs(had(m) - part) < 0.05 * SECOND_US,
                          "seed %llu: owner %u of weight %u had %.0f us, its part is %.0f",
                          (unsigned long long)seed, i, m->weight, had(m), part);
            for (uint32_t k = 0; k < m->connections; k++)
                ck_assert_msg(fabs(m->had_us[k] - had(m) / m->connections) < 0.05 * SECOND_US,
                              "seed %llu: connection %u of %u of owner %u had %.0f us of %.0f",
                              (unsigned long long)seed, k, m->connections, i, m->had_us[k], had(m));
        }
        shares_destroy(shares);
    }
}
END_TEST

/* Whoever does nothing for a while comes back where the others are. */
START_TEST(nothing_is_saved_up)
{
    struct shares *shares;
    ck_assert_int_eq(shares_create(4, SLOTS, &shares), 0);
    uint32_t busy = shares_hold(shares, 1, 1, 1), idle = shares_hold(shares, 2, 1, 1);
    for (int i = 0; i < 100; i++) {
        shares_charge(shares, 0, busy, 1000);
        shares_wait(shares, busy);
        shares_end(shares);
        shares_retire(shares, 0, 1000);
    }
    ck_assert_double_eq_tol(shares_at(shares, shares_owner(shares, idle)), 100000, 1e-6);
    ck_assert_double_eq_tol(shares_lead(shares, shares_owner(shares, busy)), 0, 1e-6);
    shares_destroy(shares);
}
END_TEST

/* Nor is anything owed by one who was ahead, once nobody waits. */
START_TEST(nothing_is_owed_when_nobody_waits)
{
    struct shares *shares;
    ck_assert_int_eq(shares_create(4, SLOTS, &shares), 0);
    uint32_t busy = shares_hold(shares, 1, 1, 1), idle = shares_hold(shares, 2, 1, 1);
    shares_charge(shares, 0, busy, 5000);
    shares_end(shares);
    shares_retire(shares, 0, 5000);
    ck_assert_double_eq_tol(shares_at(shares, shares_owner(shares, idle)), 5000, 1e-6);
    shares_destroy(shares);
}
END_TEST

/* A step that takes longer than it was estimated is charged for so much, by what it had of each. */
START_TEST(charges_are_corrected)
{
    struct shares *shares;
    ck_assert_int_eq(shares_create(4, SLOTS, &shares), 0);
    uint32_t a = shares_hold(shares, 1, 1, 1), b = shares_hold(shares, 2, 1, 2);
    shares_charge(shares, 0, a, 100);
    shares_charge(shares, 0, b, 300);
    shares_wait(shares, a);
    shares_wait(shares, b);
    shares_end(shares);
    shares_charge(shares, 1, a, 50);
    shares_retire(shares, 0, 4000);
    ck_assert_double_eq_tol(shares_at(shares, shares_owner(shares, a)), 1050, 1e-6);
    ck_assert_double_eq_tol(shares_at(shares, shares_owner(shares, b)), 1500, 1e-6);
    shares_retire(shares, 1, 500);
    ck_assert_double_eq_tol(shares_at(shares, shares_owner(shares, a)), 1500, 1e-6);
    shares_destroy(shares);
}
END_TEST

/* Many more come than there is room for; those that are held stay what they were. */
START_TEST(others_are_forgotten)
{
    struct shares *shares;
    ck_assert_int_eq(shares_create(2, SLOTS, &shares), 0);
    uint32_t held = shares_hold(shares, 1, 1, 1);
    shares_charge(shares, 0, held, 10);
    for (uint64_t i = 0; i < 10000; i++) {
        uint32_t account = shares_hold(shares, 2 + i / 3, i, 1);
        shares_charge(shares, 0, account, (double)(i % 7) * 1000);
        shares_drop(shares, account);
        if (i % 50 == 0) {
            shares_wait(shares, held);
            shares_end(shares);
        }
    }
    ck_assert_double_eq_tol(shares_at(shares, shares_owner(shares, held)), 10, 1e-6);
    ck_assert_uint_eq(shares_hold(shares, 1, 1, 1), held);
    shares_destroy(shares);
}
END_TEST

START_TEST(turns_are_by_time_then_priority_then_connection_then_arrival)
{
    const struct policy_claim first = {.owner_at = 1, .priority = 0, .connection_at = 5, .arrived_s = 5},
                              second = {.owner_at = 2, .priority = 9, .connection_at = 5, .arrived_s = 5},
                              third = {.owner_at = 2, .priority = 1, .connection_at = 1, .arrived_s = 9},
                              fourth = {.owner_at = 2, .priority = 1, .connection_at = 2, .arrived_s = 1},
                              fifth = {.owner_at = 2, .priority = 1, .connection_at = 2, .arrived_s = 2};
    const struct policy_claim *const order[] = {&first, &second, &third, &fourth, &fifth};
    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < 5; k++)
            ck_assert_int_eq(policy_goes_before(order[i], order[k]), i < k);
    }
}
END_TEST

TCase *shares_case(void)
{
    TCase *tc = tcase_create("shares");
    tcase_add_test(tc, each_gets_its_part_of_a_second);
    tcase_add_test(tc, nothing_is_saved_up);
    tcase_add_test(tc, nothing_is_owed_when_nobody_waits);
    tcase_add_test(tc, charges_are_corrected);
    tcase_add_test(tc, others_are_forgotten);
    tcase_add_test(tc, turns_are_by_time_then_priority_then_connection_then_arrival);
    return tc;
}
