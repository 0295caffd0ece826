/* SPDX-License-Identifier: Apache-2.0 */
/* memory_budget.h - how much of memory.bytes clients have in use: bodies, answers, lists, workloads, tensors.
 *
 * Whatever a client can make grow is taken here first, as much as it may come to be, and given back when it is freed.
 * Any thread. */
#ifndef CONFIG_MEMORY_BUDGET_H
#define CONFIG_MEMORY_BUDGET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct memory_budget {
    uint64_t limit; /* bytes; set before it is used, and stays */
    atomic_uint_least64_t used, refused;
};

/* memory_take: false: there is not so much left, and nothing is taken. NULL is a budget without a limit. */
static inline bool memory_take(struct memory_budget *b, uint64_t bytes)
{
    if (!b)
        return true;
    uint64_t used = atomic_fetch_add(&b->used, bytes);
    if (used <= b->limit && bytes <= b->limit - used)
        return true;
    atomic_fetch_sub(&b->used, bytes);
    atomic_fetch_add(&b->refused, 1);
    return false;
}

/* memory_take_bulk: likewise, of what may be large, or stay for long: an eighth is left for small requests. */
static inline bool memory_take_bulk(struct memory_budget *b, uint64_t bytes)
{
    if (!b)
        return true;
    uint64_t used = atomic_load(&b->used), most = b->limit - b->limit / 8;
    if (used <= most && bytes <= most - used)
        return memory_take(b, bytes);
    atomic_fetch_add(&b->refused, 1);
    return false;
}

static inline void memory_give(struct memory_budget *b, uint64_t bytes)
{
    if (b)
        atomic_fetch_sub(&b->used, bytes);
}

#endif
