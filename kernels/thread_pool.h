/* SPDX-License-Identifier: Apache-2.0 */
/* thread_pool.h - a fixed team of threads that runs one function at a time, together.
 *
 * The calling thread is worker 0. Workers that wait spin for at most SPIN_US, then sleep, so the rest
 * of the machine gets its turn between steps. Work inside the function is taken from a shared counter,
 * so a worker that the kernel preempts delays one piece and not the whole share. */
#ifndef KERNELS_THREAD_POOL_H
#define KERNELS_THREAD_POOL_H

#include "config/status.h"

#include <stdint.h>

struct thread_pool;

typedef void (*thread_pool_fn)(uint32_t worker, void *cookie);

/* thread_pool_create(threads, pool): `threads` workers in all, the caller included; 1 starts none.
 * Returns 0 or ATTND_NO_MEMORY (a thread could not be started). */
MUST_USE int thread_pool_create(uint32_t threads, struct thread_pool **pool);
void thread_pool_destroy(struct thread_pool *pool);

/* thread_pool_run(pool, fn, cookie): every worker calls fn(worker, cookie); returns when all have.
 * Worker 0 is the caller. */
void thread_pool_run(struct thread_pool *pool, thread_pool_fn fn, void *cookie);

/* thread_pool_run_alone(pool, fn, cookie): the caller alone calls fn(0, cookie); no worker is woken and a
 * barrier returns at once. For work that ends sooner than the workers would be awake. */
void thread_pool_run_alone(struct thread_pool *pool, thread_pool_fn fn, void *cookie);

/* Inside a running function. thread_pool_take: the next number from 0 on, a different one for every
 * caller, until thread_pool_barrier() sets it back to 0. The barrier returns when all workers have
 * reached it. */
uint32_t thread_pool_take(struct thread_pool *pool);
void thread_pool_barrier(struct thread_pool *pool);

uint32_t thread_pool_threads(const struct thread_pool *pool);

/* thread_pool_wakes: how often thread_pool_run() has had workers to wake. The caller's thread only. */
uint64_t thread_pool_wakes(const struct thread_pool *pool);

/* thread_pool_default_threads: processors that this process may use: its affinity mask, and its
 * cgroup's quota rounded up. */
uint32_t thread_pool_default_threads(void);

#endif
