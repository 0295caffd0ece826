/* SPDX-License-Identifier: Apache-2.0 */
/* work_done.h - counters of what was done: tokens, queries and prompts, of all clients and of each key.
 *
 * The engine counts work once it is done, or, of workloads, once a round of it is begun. A token counts once, at layer 0; a row of
 * queries once for each layer. */
#ifndef SCHEDULER_WORK_DONE_H
#define SCHEDULER_WORK_DONE_H

#include <stdatomic.h>
#include <stdint.h>

struct work_done {
    uint64_t tokens;        /* appended */
    uint64_t query_rows;    /* attended */
    uint64_t prompt_tokens; /* of prompts that were looked up in the prefix cache; */
    uint64_t cached_tokens; /* of these, found */
};

struct work_tally {
    atomic_uint_least64_t tokens, query_rows, prompt_tokens, cached_tokens;
};

/* work_tally_add: engine thread. work_tally_read: any thread; each figure by itself is one that was true. */
static inline void work_tally_add(struct work_tally *t, const struct work_done *more)
{
    atomic_fetch_add_explicit(&t->tokens, more->tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->query_rows, more->query_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->prompt_tokens, more->prompt_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->cached_tokens, more->cached_tokens, memory_order_relaxed);
}

static inline struct work_done work_tally_read(const struct work_tally *t)
{
    return (struct work_done){.tokens = atomic_load_explicit(&t->tokens, memory_order_relaxed),
                              .query_rows = atomic_load_explicit(&t->query_rows, memory_order_relaxed),
                              .prompt_tokens = atomic_load_explicit(&t->prompt_tokens, memory_order_relaxed),
                              .cached_tokens = atomic_load_explicit(&t->cached_tokens, memory_order_relaxed)};
}

#endif
