/* SPDX-License-Identifier: Apache-2.0 */
/* tenant_calls.h - what of a key the loop and the engine both hand out: calls at a time, staging memory that they hold, requests a
 * second; and what both count for it. A limit of 0 is none. Any thread; the limits are the loop's. */
#ifndef SCHEDULER_TENANT_CALLS_H
#define SCHEDULER_TENANT_CALLS_H

#include "scheduler/work_done.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct tenant_calls {
    atomic_uint_least32_t calls, calls_max;
    atomic_uint_least64_t staging_bytes, staging_max;
    atomic_uint_least64_t gpu_bytes; /* of regions, of which a key may have half of all */
    atomic_uint_least32_t requests_per_s;
    atomic_uint_least64_t due_ns;   /* when the requests so far have been paid for, at that rate */
    struct work_tally done;         /* since the start, like */
    atomic_uint_least64_t problems; /* answers that were one */
};

/* tenant_calls_take: one more call; false: they are used up, and nothing is taken. */
static inline bool tenant_calls_take(struct tenant_calls *t)
{
    uint32_t most = atomic_load(&t->calls_max);
    if (atomic_fetch_add(&t->calls, 1) < most || !most)
        return true;
    atomic_fetch_sub(&t->calls, 1);
    return false;
}

/* tenant_calls_add: likewise, whatever the limit. */
static inline bool tenant_calls_add(struct tenant_calls *t)
{
    atomic_fetch_add(&t->calls, 1);
    return true;
}

static inline void tenant_calls_give(struct tenant_calls *t)
{
    atomic_fetch_sub(&t->calls, 1);
}

/* tenant_calls_part: how much staging memory a key may have of `all`: as its quota says, or half. */
static inline uint64_t tenant_calls_part(struct tenant_calls *t, uint64_t all)
{
    uint64_t quota = atomic_load(&t->staging_max);
    return quota ? quota : all / 2;
}

/* tenant_calls_take_staging: so many bytes of `all`; false likewise. */
static inline bool tenant_calls_take_staging(struct tenant_calls *t, uint64_t bytes, uint64_t all)
{
    uint64_t most = tenant_calls_part(t, all), used = atomic_fetch_add(&t->staging_bytes, bytes);
    if (used <= most && bytes <= most - used)
        return true;
    atomic_fetch_sub(&t->staging_bytes, bytes);
    return false;
}

static inline void tenant_calls_give_staging(struct tenant_calls *t, uint64_t bytes)
{
    atomic_fetch_sub(&t->staging_bytes, bytes);
}

/* tenant_calls_take_gpu: so many bytes of GPU memory, of `all`; false likewise. */
static inline bool tenant_calls_take_gpu(struct tenant_calls *t, uint64_t bytes, uint64_t all)
{
    uint64_t most = all / 2, used = atomic_fetch_add(&t->gpu_bytes, bytes);
    if (used <= most && bytes <= most - used)
        return true;
    atomic_fetch_sub(&t->gpu_bytes, bytes);
    return false;
}

static inline void tenant_calls_give_gpu(struct tenant_calls *t, uint64_t bytes)
{
    atomic_fetch_sub(&t->gpu_bytes, bytes);
}

/* tenant_calls_ask: another request at now_ns; false: there were as many as a second has, and nothing is taken. */
static inline bool tenant_calls_ask(struct tenant_calls *t, uint64_t now_ns)
{
    enum { SECOND_NS = 1000000000 };
    uint32_t rate = atomic_load(&t->requests_per_s);
    uint64_t due = atomic_load(&t->due_ns), next;
    if (!rate)
        return true;
    do {
        next = (due > now_ns ? due : now_ns) + SECOND_NS / rate;
        if (next > now_ns + SECOND_NS)
            return false;
    } while (!atomic_compare_exchange_weak(&t->due_ns, &due, next));
    return true;
}

#endif
