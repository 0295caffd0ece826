/* SPDX-License-Identifier: Apache-2.0 */
/* thread_pool.c - see thread_pool.h.
 *
 * Two words are waited on, each a counter that only grows: `calls` (a new function to run) and `turns`
 * (a barrier has been passed). A waiter remembers the value and waits for another one: first by looking
 * again and again, then in a futex. The last one to arrive at a barrier resets the ticket counter and
 * moves `turns` on.
 *
 * `alone` is written between calls and read by a worker before it arrives at a barrier, so nobody reads it
 * while it changes: the call ends only when all have arrived. */
#include "kernels/thread_pool.h"

#include "config/clock.h"
#include "config/numbers.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPIN_US = 20, LOOKS_PER_CLOCK_READ = 32 };

struct thread_pool {
    uint32_t threads;
    _Atomic uint32_t calls, turns;
    _Atomic uint32_t sleepers; /* in a futex on either word */
    _Atomic uint32_t arrived;  /* at the barrier */
    _Atomic uint32_t ticket;
    bool stop;
    bool alone; /* only the caller runs the function */
    uint64_t wakes;
    thread_pool_fn fn;
    void *cookie;
    struct worker *workers; /* [threads - 1], workers 1 and on */
};

struct worker {
    struct thread_pool *pool;
    pthread_t thread;
    uint32_t number;
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* Return when *word is no longer `old`. */
static void wait_change(struct thread_pool *pool, _Atomic uint32_t *word, uint32_t old)
{
    double until = clock_s() + SPIN_US * 1e-6;
    do {
        for (int i = 0; i < LOOKS_PER_CLOCK_READ; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old)
                return;
            relax();
        }
    } while (clock_s() < until);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(word) == old)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&pool->sleepers, 1);
}

static void change(struct thread_pool *pool, _Atomic uint32_t *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&pool->sleepers))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void *work(void *cookie)
{
    struct worker *w = cookie;
    struct thread_pool *pool = w->pool;
    for (uint32_t call = 0;; call++) {
        wait_change(pool, &pool->calls, call);
        if (pool->stop)
            return NULL;
        pool->fn(w->number, pool->cookie);
        thread_pool_barrier(pool);
    }
}

int thread_pool_create(uint32_t threads, struct thread_pool **result)
{
    struct thread_pool *pool = calloc(1, sizeof *pool);
    struct worker *workers = calloc(threads, sizeof *workers);
    if (!pool || !workers) {
        free(pool);
        free(workers);
        return ATTND_NO_MEMORY;
    }
    pool->workers = workers;
    pool->threads = 1;
    for (uint32_t i = 1; i < threads; i++) {
        workers[i - 1] = (struct worker){.pool = pool, .number = i};
        if (pthread_create(&workers[i - 1].thread, NULL, work, &workers[i - 1]) != 0) {
            thread_pool_destroy(pool);
            return ATTND_NO_MEMORY;
        }
        pool->threads++;
    }
    *result = pool;
    return 0;
}

void thread_pool_destroy(struct thread_pool *pool)
{
    if (!pool)
        return;
    pool->stop = true;
    change(pool, &pool->calls);
    for (uint32_t i = 1; i < pool->threads; i++)
        pthread_join(pool->workers[i - 1].thread, NULL);
    free(pool->workers);
    free(pool);
}

void thread_pool_run(struct thread_pool *pool, thread_pool_fn fn, void *cookie)
{
    pool->fn = fn;
    pool->cookie = cookie;
    pool->wakes += pool->threads > 1;
    change(pool, &pool->calls);
    fn(0, cookie);
    thread_pool_barrier(pool);
}

void thread_pool_run_alone(struct thread_pool *pool, thread_pool_fn fn, void *cookie)
{
    pool->alone = true;
    fn(0, cookie);
    thread_pool_barrier(pool);
    pool->alone = false;
}

uint32_t thread_pool_take(struct thread_pool *pool)
{
    return atomic_fetch_add_explicit(&pool->ticket, 1, memory_order_relaxed);
}

void thread_pool_barrier(struct thread_pool *pool)
{
    if (pool->alone) {
        atomic_store_explicit(&pool->ticket, 0, memory_order_relaxed);
        return;
    }
    uint32_t turn = atomic_load(&pool->turns);
    if (atomic_fetch_add(&pool->arrived, 1) + 1 < pool->threads) {
        wait_change(pool, &pool->turns, turn);
        return;
    }
    atomic_store(&pool->arrived, 0);
    atomic_store(&pool->ticket, 0);
    change(pool, &pool->turns);
}

uint32_t thread_pool_threads(const struct thread_pool *pool)
{
    return pool->threads;
}

uint64_t thread_pool_wakes(const struct thread_pool *pool)
{
    return pool->wakes;
}

/* Processors that the cgroup's quota pays for, rounded up; UINT32_MAX when there is no limit. */
static uint32_t quota_processors(void)
{
    unsigned long long quota, period;
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
    bool limited = f && fscanf(f, "%llu %llu", &quota, &period) == 2 && period > 0;
    if (f)
        fclose(f);
    return limited ? (uint32_t)((quota + period - 1) / period) : UINT32_MAX;
}

uint32_t thread_pool_default_threads(void)
{
    cpu_set_t set;
    uint32_t quota = quota_processors(), allowed = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        allowed = (uint32_t)CPU_COUNT(&set);
    return larger(smaller(allowed, quota), 1);
}
