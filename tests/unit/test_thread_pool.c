/* SPDX-License-Identifier: Apache-2.0 */
/* test_thread_pool.c - every worker runs every function, no task is taken twice, and nobody passes a
 * barrier early. */
#include "kernels/thread_pool.h"
#include "tests/unit/suites.h"

#include <stdatomic.h>
#include <unistd.h>

enum { THREADS = 5, TASKS = 100, PHASES = 4 };

struct work {
    struct thread_pool *pool;
    _Atomic uint32_t taken[PHASES][TASKS];
    _Atomic uint32_t early;
};

static void do_work(uint32_t worker, void *cookie)
{
    struct work *w = cookie;
    for (int phase = 0; phase < PHASES; phase++) {
        uint32_t task;
        while ((task = thread_pool_take(w->pool)) < TASKS)
            atomic_fetch_add(&w->taken[phase][task], 1);
        thread_pool_barrier(w->pool);
        for (task = 0; task < TASKS; task++) /* all of this phase is done when the barrier is passed */
            atomic_fetch_add(&w->early, atomic_load(&w->taken[phase][task]) == 0);
        thread_pool_barrier(w->pool);
    }
    ck_assert_uint_lt(worker, THREADS);
}

START_TEST(phases_and_tasks)
{
    static struct work w;
    ck_assert_int_eq(thread_pool_create(THREADS, &w.pool), 0);
    for (uint32_t run = 1; run <= 200; run++) {
        thread_pool_run(w.pool, do_work, &w);
        for (int phase = 0; phase < PHASES; phase++) {
            for (int task = 0; task < TASKS; task++)
                ck_assert_uint_eq(atomic_load(&w.taken[phase][task]), run);
        }
        if (run % 50 == 0)
            usleep(2000); /* long enough for the workers to go to sleep */
    }
    ck_assert_uint_eq(atomic_load(&w.early), 0);
    thread_pool_destroy(w.pool);
}
END_TEST

START_TEST(one_thread_is_enough)
{
    static struct work w;
    ck_assert_int_eq(thread_pool_create(1, &w.pool), 0);
    thread_pool_run(w.pool, do_work, &w);
    ck_assert_uint_eq(atomic_load(&w.taken[PHASES - 1][TASKS - 1]), 1);
    thread_pool_destroy(w.pool);
    ck_assert_uint_ge(thread_pool_default_threads(), 1);
}
END_TEST

START_TEST(alone_nobody_is_woken)
{
    static struct work w;
    ck_assert_int_eq(thread_pool_create(THREADS, &w.pool), 0);
    for (uint32_t run = 1; run <= 200; run++) { /* in turn with the team, whose members still spin */
        thread_pool_run_alone(w.pool, do_work, &w);
        ck_assert_uint_eq(thread_pool_wakes(w.pool), run - 1);
        thread_pool_run(w.pool, do_work, &w);
        ck_assert_uint_eq(thread_pool_wakes(w.pool), run);
        for (int task = 0; task < TASKS; task++)
            ck_assert_uint_eq(atomic_load(&w.taken[PHASES - 1][task]), 2 * run);
    }
    ck_assert_uint_eq(atomic_load(&w.early), 0);
    thread_pool_destroy(w.pool);
}
END_TEST

TCase *thread_pool_case(void)
{
    TCase *tc = tcase_create("thread_pool");
    tcase_add_test(tc, phases_and_tasks);
    tcase_add_test(tc, one_thread_is_enough);
    tcase_add_test(tc, alone_nobody_is_woken);
    return tc;
}
